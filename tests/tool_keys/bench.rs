//! `bench`: its results, and that it leaves nothing behind. How fast anything is, no test says.

use std::collections::BTreeSet;

use rustix::process::Signal;
use serde_json::Value;

use super::program::{Running, ran};
use super::schema::{BENCH_RESULTS, read};
use super::values::calls;
use crate::servers::{Emulated, Proxy};
use crate::support::notified::until;
use crate::support::scenario::closed_port;
use crate::support::{Outcome, RedisServer, Test, tests};

pub(super) const TESTS: &[(&str, Test)] = tests![
    every_acquisition_is_counted,
    threads_contend_for_one_lock,
    results_are_shown_as_text,
    protocols_are_chosen,
    a_signal_ends_it_with_results,
    wrong_arguments,
    without_a_server_it_exits_with_69,
];

/// Measures until each thread has acquired a lock, which none does while the machine is busy with other things.
#[track_caller]
pub(super) fn results(url: &str, arguments: &[&str]) -> Value {
    loop {
        let ran = ran(url, ["bench", "--for", "0.5s", "--json"].iter().chain(arguments)).exits(0);
        assert_eq!(ran.err, "");
        if !ran.out.contains("\"protocol\":\"\"") {
            return read(BENCH_RESULTS, &ran.out);
        }
    }
}

/// Asserts that each quantile is at most the next.
#[track_caller]
fn assert_ordered(results: &Value) {
    for times in ["acquire_micros", "release_micros"] {
        let times = ["p50", "p90", "p99", "p999", "max"].map(|name| results[times][name].as_u64().unwrap());
        // The greatest one is exact, the others are rounded up a little.
        assert!(times.is_sorted_by(|a, b| *a <= b + b / 500 + 1), "{results}");
    }
}

fn every_acquisition_is_counted() -> Outcome {
    let server = RedisServer::start()?;
    let arguments = ["bench", "--for", "0.5s", "--threads", "4", "--protocol", "classic", "--json"];
    let found: Value = serde_json::from_str(&ran(&server.url(), arguments).exits(0).out)?;
    assert_eq!((&found["threads"], &found["contended"]), (&4.into(), &false.into()));
    let count = found["acquisitions"].as_u64().unwrap();
    assert_eq!((calls(&server, "setnx"), calls(&server, "del")), (count, count));
    assert_ordered(&found);
    let seconds = found["seconds"].as_f64().unwrap();
    assert!(seconds >= 0.5, "{found}");
    #[expect(clippy::cast_precision_loss, reason = "so many are not acquired")]
    let per_second = count as f64 / seconds;
    assert!((found["acquisitions_per_second"].as_f64().unwrap() - per_second).abs() < 1.0, "{found}");
    assert_eq!(server.say(&["DBSIZE"])?, ":0", "no key is left behind");
    Ok(())
}

fn threads_contend_for_one_lock() -> Outcome {
    let server = RedisServer::start()?;
    let proxy = Proxy::before(server.address())?;
    let keys = || -> BTreeSet<String> {
        let asked = proxy.asked().into_iter().filter(|asked| asked.name == "SETNX");
        asked.map(|asked| asked.arguments[0].clone()).collect()
    };
    let found = results(&proxy.url(), &["--threads", "4", "--contend"]);
    assert_eq!((&found["threads"], &found["contended"]), (&4.into(), &true.into()));
    assert_ordered(&found);
    let in_all = keys();
    assert!(
        in_all.iter().all(|key| key.starts_with("setnx-lock:bench:") && key.ends_with(":all")),
        "{in_all:?}"
    );
    proxy.forget();
    let found = results(&proxy.url(), &["--threads", "4"]);
    assert_eq!(found["contended"], false);
    let own = keys();
    assert!(!own.is_empty() && own.iter().all(|key| !in_all.contains(key)), "{own:?}");
    assert!(own.iter().all(|key| ["0", "1", "2", "3"].contains(&&key[key.len() - 1..])), "{own:?}");
    assert_eq!(server.say(&["DBSIZE"])?, ":0", "no key is left behind");
    Ok(())
}

fn results_are_shown_as_text() -> Outcome {
    let server = RedisServer::start()?;
    let shown = ran(&server.url(), ["bench", "--for", "500ms"]).exits(0);
    assert_eq!(shown.err, "");
    let lines: Vec<_> = shown.out.lines().collect();
    assert!(lines[0].contains(" acquisitions a second: ") && lines[0].contains("threads: 1, "), "{shown}");
    assert!(lines[0].contains("each with a lock of its own, protocol "), "{shown}");
    assert_eq!(
        lines[2].split_whitespace().collect::<Vec<_>>(),
        ["in", "\u{b5}s", "p50", "p90", "p99", "p99.9", "max"]
    );
    assert!(lines[3].starts_with("acquire ") && lines[4].starts_with("release "), "{shown}");
    ran(&server.url(), ["bench", "--for", "500ms", "--contend"]).exits(0).shows(&["one lock for all"]);
    assert_eq!(server.say(&["DBSIZE"])?, ":0", "no key is left behind");
    Ok(())
}

fn protocols_are_chosen() -> Outcome {
    let server = RedisServer::start()?;
    for protocol in ["classic", "watched", "ttl"] {
        assert_eq!(results(&server.url(), &["--protocol", protocol])["protocol"], protocol);
    }
    let proxy = Proxy::emulating(Emulated::V2_0, server.address())?;
    assert_eq!(results(&proxy.url(), &[])["protocol"], "classic");
    ran(&proxy.url(), ["bench", "--for", "0.5s", "--protocol", "ttl"])
        .exits(77)
        .says_only(&["needs Redis 2.6.12"]);
    assert_eq!(server.say(&["DBSIZE"])?, ":0");
    Ok(())
}

fn a_signal_ends_it_with_results() -> Outcome {
    let server = RedisServer::start()?;
    for signal in [Signal::INT, Signal::TERM] {
        let running = Running::start(&server.url(), &["bench", "--for", "60s", "--json"])?;
        let before = calls(&server, "setnx");
        until("locks are acquired", || calls(&server, "setnx") > before + 10);
        running.signal(signal)?;
        let ended = running.ends().exits(0);
        assert_eq!(ended.err, "");
        let found = read(BENCH_RESULTS, &ended.out);
        assert!(found["seconds"].as_f64().unwrap() < 60.0, "{found}");
        assert!(found["acquisitions"].as_u64().unwrap() > 0, "{found}");
        assert_ordered(&found);
        assert_eq!(server.say(&["DBSIZE"])?, ":0", "no key is left behind");
    }
    Ok(())
}

fn wrong_arguments() -> Outcome {
    let server = RedisServer::start()?;
    for (arguments, words) in [
        (["--for", "2m"], "a minute at most"),
        (["--for", "60.001"], "a minute at most"),
        (["--for", "0"], "a millisecond at least"),
        (["--for", "soon"], "write 30s"),
        (["--threads", "0"], "0 is not in 1..=256"),
        (["--threads", "257"], "257 is not in 1..=256"),
        (["--protocol", "other"], "possible values: auto, classic, watched, ttl"),
    ] {
        let ran = ran(&server.url(), ["bench"].iter().chain(&arguments)).exits(64).says(&[words]);
        assert_eq!(ran.out, "");
    }
    assert_eq!(calls(&server, "setnx"), 0);
    Ok(())
}

fn without_a_server_it_exits_with_69() -> Outcome {
    let port = closed_port()?;
    let nowhere = format!("redis://127.0.0.1:{port}/");
    ran(&nowhere, ["bench", "--for", "0.5s"]).exits(69).says_only(&[&format!("127.0.0.1:{port}")]);
    Ok(())
}
