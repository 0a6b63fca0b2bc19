//! Servers that refuse: each command says why and what to do, and exits with 69 if it helps to try again, else with 77.

use setnx_lock_testing::{Fault, ServerVersion, TestServer};

use super::list::set_all_kinds;
use super::program::ran;
use super::schema::reports;
use super::values::{get, set};
use crate::support::stranger::{Says, Stranger};
use crate::support::{Outcome, PAST, Test, server_of, tests};

pub(super) const TESTS: &[(&str, Test)] = tests![
    a_missing_password_is_told_by_every_version,
    a_version_that_is_not_reported_is_probed,
    a_server_that_is_not_ready_or_a_sentinel,
    keys_on_another_node_do_not_hide_the_others,
    a_list_of_one_node_says_that_it_is_partial,
    behind_a_proxy_that_forwards_little,
    what_a_server_says_to_a_client_that_it_turns_away,
];

/// The commands that ask a server, for every version.
const ASKING: [&[&str]; 8] = [
    &["status", "k"],
    &["list", "--keys"],
    &["clear", "--yes", "k"],
    &["clear", "--yes", "--keys", "--expired", "*"],
    &["watch", "k"],
    &["fence", "k"],
    &["fence", "--at-least", "7", "k"],
    &["doctor"],
];

fn a_missing_password_is_told_by_every_version() -> Outcome {
    for version in ServerVersion::OLD.into_iter().chain([ServerVersion::V7]) {
        let server = TestServer::builder().version(version.name()).password("secret").start();
        let refusal = if version == ServerVersion::V7 { "NOAUTH" } else { "operation not permitted" };
        for arguments in ASKING {
            let refused = ran(&server.url(), arguments).exits(77);
            refused.says_only(&[&server.address().to_string(), "refused: ", refusal, "password"]);
        }
    }
    Ok(())
}

fn a_version_that_is_not_reported_is_probed() -> Outcome {
    for version in ServerVersion::OLD {
        let server = server_of(version);
        set_all_kinds(&server);
        set(&server, "k", PAST);
        (0..9).for_each(|_| server.next("INFO", Fault::Say("-ERR unknown command 'INFO'\r\n")));
        ran(&server.url(), ["list"]).exits(64).says_only(&["--keys uses KEYS"]);
        let listed = ran(&server.url(), ["list", "--keys"]).exits(0);
        listed.shows(&["locks:1_lock"]).says(&["KEYS blocks the server"]);
        ran(&server.url(), ["status", "k"]).exits(0).shows(&["k: expired "]);
        ran(&server.url(), ["clear", "--yes", "k"]).exits(0).shows(&["removed"]);
        ran(&server.url(), ["clear", "--yes", "--keys", "--expired", "*"]).exits(0);
    }
    // It has SCAN.
    let newer = TestServer::builder().config("user worker on >word ~* &* +@all -info").start();
    set(&newer, "k_lock", "1");
    let url = format!("redis://worker:word@{}/", newer.address());
    let line = "k_lock: held without an expiration; if its holder has crashed, clear it\n";
    ran(&url, ["status", "k_lock"]).exits(0).prints(line);
    ran(&url, ["list"]).exits(0).shows(&["k_lock"]);
    ran(&url, ["clear", "--yes", "k_lock"]).exits(0).shows(&["removed"]);
    Ok(())
}

/// For the first it helps to try again.
fn a_server_that_is_not_ready_or_a_sentinel() -> Outcome {
    const LOADING: Fault = Fault::Say("$46\r\nredis_version:7.0.15\r\nrole:master\r\nloading:1\r\n\r\n");
    const FULL: Fault = Fault::Say("-ERR max number of clients reached\r\n");
    const SENTINEL: Fault = Fault::Say("$43\r\nredis_version:7.0.15\r\nredis_mode:sentinel\r\n\r\n");
    let server = TestServer::start();
    for arguments in ASKING.into_iter().chain([&["run", "k", "--", "true"][..]]) {
        for (fault, code, words) in [
            (LOADING, 69, "still loading its data"),
            (FULL, 69, "max number of clients reached"),
            (SENTINEL, 77, " is a Sentinel, which has no keys"),
        ] {
            // `watch` retries for ever, `run` for a time.
            if code == 69 && ["watch", "run"].contains(&arguments[0]) {
                continue;
            }
            server.next("INFO", fault);
            ran(&server.url(), arguments).exits(code).says_only(&[words]);
        }
    }
    Ok(())
}

fn keys_on_another_node_do_not_hide_the_others() -> Outcome {
    const MOVED: Fault = Fault::Say("-MOVED 3999 127.0.0.1:6381\r\n");
    let server = TestServer::start();
    set(&server, "b", "1");
    let status = |option: &[&str], moved: &[usize]| {
        for n in moved {
            server.nth("TYPE", *n, MOVED);
        }
        ran(&server.url(), [&["status"], option, &["a", "b", "c"]].concat())
    };
    let shown =
        status(&[], &[1, 3]).exits(77).says(&["lock a: the server refused: MOVED 3999 127.0.0.1:6381"]);
    let shown =
        shown.says(&["lock c: the server refused: MOVED", "name the cluster with --url redis+cluster"]);
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
    let server = TestServer::start();
    set(&server, "k", PAST);
    for arguments in [&["list", "--json"][..], &["clear", "--yes", "--expired", "*"]] {
        server.clear_log();
        server.next("INFO", NODE);
        let listed = ran(&server.url(), arguments).exits(0).shows(&["k"]);
        assert!(
            listed.err.starts_with("setnx-lock: warning: the server is a cluster node: only"),
            "{listed}"
        );
        assert_eq!(listed.err.lines().count(), 1, "{listed}");
    }
    Ok(())
}

/// As twemproxy does, it closes connections on INFO, SCAN and WATCH.
fn behind_a_proxy_that_forwards_little() -> Outcome {
    let server = TestServer::start();
    server.forward_little(true);
    set(&server, "k", PAST);
    ran(&server.url(), ["status", "k"]).exits(0).shows(&["k: expired"]);
    ran(&server.url(), ["clear", "k", "--yes"]).exits(0).shows(&["k: expired", "removed"]);
    assert_eq!(get(&server, "k"), None);
    let words = ["closed on INFO", "the address of the server itself"];
    ran(&server.url(), ["doctor"]).exits(77).says_only(&words);
    let run = ["run", "--protocol", "watched", "k", "--", "echo", "started"];
    ran(&server.url(), run).exits(77).says_only(&["closed on WATCH", "use --protocol auto"]);
    assert_eq!(get(&server, "k"), None);
    ran(&server.url(), ["run", "k", "--", "echo", "started"]).exits(0).shows(&["started"]);
    Ok(())
}

fn what_a_server_says_to_a_client_that_it_turns_away() -> Outcome {
    let protected = b"-DENIED Redis is running in protected mode because no password is set. In this mode it is not for you.\r\n";
    for (words, says) in [
        (&protected[..], ["because no password is set: ", "protected-mode no"]),
        (b"-ERR the proxy has no server\r\n", ["refused: ERR the proxy has no server", "127.0.0.1"]),
    ] {
        for when in [Says::AtOnce, Says::First] {
            let stranger = Stranger::start(when, words)?;
            for arguments in ASKING {
                let refused = ran(&stranger.url(), arguments).exits(77);
                refused.says_only(&says);
            }
            ran(&stranger.url(), ["run", "-n", "k", "--", "true"]).exits(77).says_only(&says);
        }
    }
    Ok(())
}
