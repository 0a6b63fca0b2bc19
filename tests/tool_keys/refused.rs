//! Servers that refuse: each command says why and what to do, and exits with 69 if it helps to try again, else with 77.

use super::list::set_all_kinds;
use super::program::ran;
use super::schema::reports;
use super::values::set;
use crate::servers::{Emulated, Fault, Proxy};
use crate::support::{Outcome, PAST, RedisServer, Test, tests};

pub(super) const TESTS: &[(&str, Test)] = tests![
    a_missing_password_is_told_by_every_version,
    a_version_that_is_not_reported_is_found_out,
    a_server_that_is_not_ready_exits_with_69,
    a_sentinel_is_told_with_advice,
    keys_on_another_node_do_not_hide_the_others,
    a_list_of_one_node_says_that_it_is_partial,
];

/// The commands that ask a server, for every version.
const ASKING: [&[&str]; 6] = [
    &["status", "k"],
    &["list", "--keys"],
    &["clear", "--yes", "k"],
    &["clear", "--yes", "--keys", "--expired", "*"],
    &["watch", "k"],
    &["doctor"],
];

fn a_missing_password_is_told_by_every_version() -> Outcome {
    let server = RedisServer::start_with("requirepass secret")?;
    let proxies = Emulated::ALL.map(|version| Proxy::emulating(version, server.address()));
    for proxy in proxies {
        let proxy = proxy?;
        let without_keys = [&["list"][..], &["clear", "--yes", "--expired", "*"]];
        for arguments in ASKING.into_iter().chain(without_keys) {
            ran(&proxy.url(), arguments).exits(77).says_only(&[
                "refused: ",
                "operation not permitted",
                "password",
            ]);
        }
    }
    for arguments in ASKING {
        ran(&server.url(), arguments).exits(77).says_only(&[
            &server.address().to_string(),
            "NOAUTH",
            "password",
        ]);
    }
    Ok(())
}

fn a_version_that_is_not_reported_is_found_out() -> Outcome {
    let server = RedisServer::start()?;
    let listed = |url: &str| {
        let listed = ran(url, ["list", "--keys", "--json"]).exits(0);
        (reports(&listed.out).len(), listed.err.contains("KEYS looks at every key"))
    };
    for version in Emulated::ALL {
        let proxy = Proxy::emulating(version, server.address())?;
        set_all_kinds(&server);
        let known = listed(&proxy.url());
        assert!(known.0 > 0 && known.1);
        let hidden =
            || (0..9).for_each(|_| proxy.next("INFO", Fault::Say("-ERR unknown command 'INFO'\r\n")));
        hidden();
        proxy.forget();
        assert_eq!(listed(&proxy.url()), known, "{version:?}");
        ran(&proxy.url(), ["list"]).exits(64).says_only(&["--keys uses KEYS"]);
        set(&server, "k", PAST);
        ran(&proxy.url(), ["status", "k"]).exits(0).shows(&["k: expired "]);
        ran(&proxy.url(), ["clear", "--yes", "k"]).exits(0).shows(&["removed"]);
        ran(&proxy.url(), ["clear", "--yes", "--keys", "--expired", "*"]).exits(0);
        assert!(!proxy.names().iter().any(|name| ["PTTL", "GETRANGE"].contains(&name.as_str())));
    }
    let newer = RedisServer::start_with("rename-command INFO \"\"")?;
    set_all_kinds(&newer);
    assert!(!listed(&newer.url()).1, "it has SCAN");
    Ok(())
}

fn a_server_that_is_not_ready_exits_with_69() -> Outcome {
    const LOADING: Fault = Fault::Say("$46\r\nredis_version:7.0.15\r\nrole:master\r\nloading:1\r\n\r\n");
    const FULL: Fault = Fault::Say("-ERR max number of clients reached\r\n");
    let server = RedisServer::start()?;
    for (fault, words) in [(LOADING, "still loading its data"), (FULL, "max number of clients reached")] {
        for arguments in ASKING.into_iter().filter(|arguments| arguments[0] != "watch") {
            let proxy = Proxy::before(server.address())?;
            proxy.next("INFO", fault.clone());
            ran(&proxy.url(), arguments).exits(69).says_only(&[words]);
        }
    }
    Ok(())
}

fn a_sentinel_is_told_with_advice() -> Outcome {
    const SENTINEL: Fault = Fault::Say("$43\r\nredis_version:7.0.15\r\nredis_mode:sentinel\r\n\r\n");
    let server = RedisServer::start()?;
    for arguments in ASKING.into_iter().chain([&["run", "k", "--", "true"][..]]) {
        let proxy = Proxy::before(server.address())?;
        proxy.next("INFO", SENTINEL);
        let address = proxy.url().replace("redis://", "").replace('/', "");
        ran(&proxy.url(), arguments)
            .exits(77)
            .says_only(&["lock on its master", &format!("{address} is a Sentinel, which has no keys")]);
    }
    Ok(())
}

fn keys_on_another_node_do_not_hide_the_others() -> Outcome {
    const MOVED: Fault = Fault::Say("-MOVED 3999 127.0.0.1:6381\r\n");
    let server = RedisServer::start()?;
    let proxy = Proxy::before(server.address())?;
    set(&server, "b", "1");
    let status = |option: &[&str], moved: &[usize]| {
        for n in moved {
            proxy.nth("TYPE", *n, MOVED);
        }
        ran(&proxy.url(), [&["status"], option, &["a", "b", "c"]].concat())
    };
    let shown =
        status(&[], &[1, 3]).exits(77).says(&["lock a: the server refused: MOVED 3999 127.0.0.1:6381"]);
    let shown = shown.says(&["lock c: the server refused: MOVED", "give that node's address in --url"]);
    assert!(shown.out.starts_with("b: held without") && shown.out.lines().count() == 1, "{shown}");
    assert_eq!(shown.err.lines().count(), 2, "{shown}");
    let keys = reports(&status(&["--json"], &[1]).exits(77).out);
    assert_eq!(keys.iter().map(|report| report["key"].as_str().unwrap()).collect::<Vec<_>>(), ["b", "c"]);
    status(&["-q"], &[1]).exits(75);
    status(&["-q"], &[2]).exits(77);
    Ok(())
}

fn a_list_of_one_node_says_that_it_is_partial() -> Outcome {
    const NODE: Fault = Fault::Say("$54\r\nredis_version:7.0.15\r\nrole:master\r\ncluster_enabled:1\r\n\r\n");
    let server = RedisServer::start()?;
    set(&server, "k", PAST);
    for arguments in [&["list", "--json"][..], &["clear", "--yes", "--expired", "*"]] {
        let proxy = Proxy::before(server.address())?;
        (0..2).for_each(|_| proxy.next("INFO", NODE));
        let listed = ran(&proxy.url(), arguments).exits(0).shows(&["k"]);
        assert!(
            listed.err.starts_with("setnx-lock: warning: the server is a node of a cluster: only"),
            "{listed}"
        );
        assert_eq!(listed.err.lines().count(), 1, "{listed}");
    }
    Ok(())
}
