//! The tool behind a proxy that closes connections on INFO, SCAN and WATCH.

use super::program::ran;
use super::values::{get, set};
use crate::servers::Proxy;
use crate::support::{Outcome, PAST, RedisServer, Test, tests};

pub(super) const TESTS: &[(&str, Test)] = tests![
    what_a_key_holds_is_shown_and_removed,
    the_doctor_says_why_not,
    a_protocol_that_does_not_work_runs_nothing,
];

fn behind() -> std::io::Result<(RedisServer, Proxy)> {
    let server = RedisServer::start()?;
    let proxy = Proxy::before(server.address())?;
    proxy.forward_little(true);
    Ok((server, proxy))
}

fn what_a_key_holds_is_shown_and_removed() -> Outcome {
    let (server, proxy) = behind()?;
    set(&server, "k", PAST);
    ran(&proxy.url(), ["status", "k"]).exits(0).shows(&["k: expired"]);
    ran(&proxy.url(), ["clear", "k", "--yes"]).exits(0).shows(&["k: expired", "removed"]);
    assert_eq!(get(&server, "k"), None);
    Ok(())
}

fn the_doctor_says_why_not() -> Outcome {
    let (_server, proxy) = behind()?;
    ran(&proxy.url(), ["doctor"])
        .exits(77)
        .says_only(&["closed on INFO", "the address of the server itself"]);
    Ok(())
}

fn a_protocol_that_does_not_work_runs_nothing() -> Outcome {
    let (server, proxy) = behind()?;
    for protocol in ["watched", "ttl"] {
        let run = ["run", "--protocol", protocol, "k", "--", "echo", "started"];
        ran(&proxy.url(), run).exits(77).says_only(&["closed on WATCH", "use --protocol auto"]);
        assert_eq!(get(&server, "k"), None, "{protocol}");
    }
    for protocol in ["auto", "classic"] {
        ran(&proxy.url(), ["run", "--protocol", protocol, "k", "--", "echo", "started"])
            .exits(0)
            .shows(&["started"]);
    }
    Ok(())
}
