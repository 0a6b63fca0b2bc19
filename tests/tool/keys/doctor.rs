//! `doctor`: what a server can do for locks, and what may harm them there.

use serde_json::Value;

use super::program::ran;
use super::schema::{DOCTOR_REPORT, read};
use crate::servers::{Emulated, Proxy};
use crate::support::notified::until;
use crate::support::scenario::closed_port;
use crate::support::{Outcome, RedisServer, Test, tests};

pub(super) const TESTS: &[(&str, Test)] = tests![
    a_server_with_notes_only_exits_with_0,
    what_should_be_changed_exits_with_1,
    a_replica_exits_with_2,
    a_full_server_exits_with_2_and_says_what_to_do,
    an_old_version_says_which_protocols_work,
    the_server_is_named_by_an_argument_or_the_environment,
];

#[track_caller]
fn report(url: &str, code: i32) -> Value {
    read(DOCTOR_REPORT, &ran(url, ["doctor", "--json"]).exits(code).out)
}

/// The texts of the findings of this severity.
fn findings(report: &Value, severity: &str) -> Vec<String> {
    let findings = report["findings"].as_array().unwrap().iter();
    let of_it = findings.filter(|finding| finding["severity"] == severity);
    of_it.map(|finding| finding["text"].as_str().unwrap().to_owned()).collect()
}

fn works(report: &Value) -> Vec<(&str, bool)> {
    let protocols = report["protocols"].as_array().unwrap().iter();
    protocols.map(|protocol| (protocol["name"].as_str().unwrap(), protocol["works"] == true)).collect()
}

fn a_server_with_notes_only_exits_with_0() -> Outcome {
    let server = RedisServer::start()?;
    let found = report(&server.url(), 0);
    assert_eq!(works(&found), [("classic", true), ("watched", true), ("ttl", true)]);
    assert_eq!((&found["role"], &found["persistence"]), (&"master".into(), &"none".into()));
    assert_eq!((&found["maxmemory_bytes"], &found["idle_timeout_seconds"]), (&0.into(), &0.into()));
    assert!(
        !found["recommended"].is_null()
            && found["clock_ahead_seconds_min"].as_f64().is_some_and(|least| least <= 0.0)
            && found["clock_ahead_seconds_max"].as_f64().is_some_and(|most| most >= 0.0),
        "{found}"
    );
    let notes = findings(&found, "note");
    assert!(notes.len() == 1 && notes[0].starts_with("after a crash it has no data"), "{notes:?}");
    assert_eq!(found["findings"].as_array().unwrap().len(), 1);

    let version = found["version"].as_str().unwrap();
    let shown =
        ran(&server.url(), ["doctor"]).exits(0).shows(&[version, "\nnote: after a crash it has no data"]);
    assert_eq!(shown.out.matches("after a crash it").count(), 1, "{shown}");
    assert!(
        !shown.out.contains("warning") && !shown.out.contains("error") && shown.err.is_empty(),
        "{shown}"
    );

    let kept = RedisServer::start_with("appendonly yes")?;
    let found = report(&kept.url(), 0);
    assert_eq!((&found["persistence"], &found["findings"]), (&"append_only".into(), &Value::Array(vec![])));
    Ok(())
}

fn what_should_be_changed_exits_with_1() -> Outcome {
    let evicting = RedisServer::start_with("maxmemory 100mb\nmaxmemory-policy allkeys-lru")?;
    let found = report(&evicting.url(), 1);
    let warnings = findings(&found, "warning");
    assert!(warnings.len() == 1 && warnings[0].contains("allkeys-lru"), "{warnings:?}");
    assert_eq!(
        (&found["maxmemory_bytes"], &found["maxmemory_policy"]),
        (&(100 << 20).into(), &"allkeys-lru".into())
    );
    assert_eq!(found["findings"][0]["severity"], "warning", "the gravest first: {found}");
    let shown = ran(&evicting.url(), ["doctor"]).exits(1);
    let said: Vec<_> = shown.out.lines().filter(|line| line.contains("allkeys-lru, locks too")).collect();
    assert!(said.len() == 1 && said[0].starts_with("warning: "), "{shown}");
    Ok(())
}

fn a_replica_exits_with_2() -> Outcome {
    let server = RedisServer::start()?;
    let replica = RedisServer::start_with(&format!("replicaof 127.0.0.1 {}", server.port()))?;
    until("the replica is connected", || report(&server.url(), 0)["replicas"] == 1);
    let found = report(&replica.url(), 2);
    assert_eq!((&found["role"], &found["recommended"]), (&"replica".into(), &Value::Null));
    assert_eq!(found["master"], format!("127.0.0.1:{}", server.port()));
    let errors = findings(&found, "error");
    assert!(errors.len() == 1 && errors[0].starts_with("it is a replica of 127.0.0.1"), "{errors:?}");
    assert_eq!(works(&found), [("classic", false), ("watched", false), ("ttl", false)]);
    assert!(found["protocols"][0]["reason"].is_string(), "{found}");
    ran(&replica.url(), ["doctor"]).exits(2).shows(&["\nerror: it is a replica of 127.0.0.1"]);
    let notes = findings(&report(&server.url(), 0), "note");
    assert!(notes.iter().any(|note| note.starts_with("a replica follows it")), "{notes:?}");
    Ok(())
}

fn a_full_server_exits_with_2_and_says_what_to_do() -> Outcome {
    let server = RedisServer::start_with("maxmemory 1")?;
    let shown = ran(&server.url(), ["doctor"]).exits(2);
    let remedy = "the server is over its maxmemory; free memory or raise the limit";
    let shown = shown.shows(&[&format!("\nrecommended:     {remedy}"), "\nmemory:          1 bytes at most"]);
    assert!(!shown.out.contains("another server"), "{shown}");
    let found = report(&server.url(), 2);
    let errors = findings(&found, "error");
    assert!(errors.len() == 1 && errors[0].contains(remedy), "{errors:?}");
    assert_eq!(found["maxmemory_bytes"], 1);
    Ok(())
}

fn an_old_version_says_which_protocols_work() -> Outcome {
    let server = RedisServer::start()?;
    let proxy = Proxy::emulating(Emulated::V2_0, server.address())?;
    let found = report(&proxy.url(), 0);
    assert_eq!(found["version"], Emulated::V2_0.number());
    assert_eq!(works(&found), [("classic", true), ("watched", false), ("ttl", false)]);
    for protocol in found["protocols"].as_array().unwrap() {
        assert_eq!(protocol["reason"].is_null(), protocol["works"] == true, "{protocol}");
    }
    assert_eq!(found["recommended"], "classic", "{found}");
    // That is what --protocol takes.
    ran(&proxy.url(), ["run", "--protocol", "classic", "k", "--", "true"]).exits(0);
    Ok(())
}

fn the_server_is_named_by_an_argument_or_the_environment() -> Outcome {
    let server = RedisServer::start()?;
    let nowhere = format!("redis://127.0.0.1:{}/", closed_port()?);
    ran(&server.url(), ["doctor"]).exits(0);
    ran(&nowhere, ["doctor", "--url", &nowhere, &server.url()]).exits(0);
    ran(&nowhere, ["doctor", "--url", &server.url()]).exits(0);
    ran(&nowhere, ["doctor", &format!("unix://{}", server.socket().display())]).exits(0);
    for wrong in ["http://127.0.0.1/", ""] {
        ran(&server.url(), ["doctor", wrong]).exits(64).says_only(&[]);
    }
    Ok(())
}
