//! `doctor`: what a server can do for locks, and what may harm them there.

use serde_json::Value;
use setnx_lock_testing::{Fault, ServerVersion, TestServer};

use super::program::ran;
use super::schema::{DOCTOR_REPORT, read};
use crate::support::notified::until;
use crate::support::scenario::closed_port;
use crate::support::{AnyServer, Outcome, RedisServer, Test, server_of, tests};

pub(super) const TESTS: &[(&str, Test)] = tests![
    a_node_that_does_not_tell_its_epoch_exits_with_1,
    a_server_with_notes_only_exits_with_0,
    what_should_be_changed_exits_with_1,
    a_replica_exits_with_2,
    a_full_server_exits_with_2_and_says_what_to_do,
    each_version_says_what_it_can_do_and_is_left_as_it_was,
    a_user_with_few_rights_gets_the_rest_of_the_report,
    a_user_without_info_gets_advice,
    what_is_refused_or_cut_off_leaves_no_key,
    a_server_that_does_not_reply_exits_with_69,
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
    // Nothing is written to it, even where it would take it.
    for version in [ServerVersion::V7, ServerVersion::V2_4] {
        let server = server_of(version);
        server.become_replica();
        report(&server.url(), 2);
        let sent = server.names();
        assert!(sent.iter().all(|name| ["CONFIG", "TIME"].contains(&name.as_str())), "{sent:?}");
    }
    assert_eq!(works(&found), [("classic", false), ("watched", false), ("ttl", false)]);
    assert!(found["protocols"][0]["reason"].is_string(), "{found}");
    ran(&replica.url(), ["doctor"]).exits(2).shows(&["\nerror: it is a replica of 127.0.0.1"]);
    let notes = findings(&report(&server.url(), 0), "note");
    let words = ["a replica follows it", "fencing tokens can come again after one", "redis+sentinel://"];
    assert!(notes.iter().any(|note| words.iter().all(|words| note.contains(words))), "{notes:?}");
    Ok(())
}

fn a_full_server_exits_with_2_and_says_what_to_do() -> Outcome {
    let server = TestServer::builder().config("maxmemory 1").start();
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

fn each_version_says_what_it_can_do_and_is_left_as_it_was() -> Outcome {
    for emulated in ServerVersion::OLD {
        let server = server_of(emulated);
        let found = report(&server.url(), 0);
        assert_eq!(found["version"], emulated.number());
        let since = [
            ("classic", ServerVersion::V1_2),
            ("watched", ServerVersion::V2_2),
            ("ttl", ServerVersion::V2_6),
        ];
        assert_eq!(works(&found), since.map(|(name, since)| (name, emulated >= since)));
        for protocol in found["protocols"].as_array().unwrap() {
            assert_eq!(protocol["reason"].is_null(), protocol["works"] == true, "{protocol}");
        }
        let best = since.into_iter().rev().find(|(_, since)| emulated >= *since).unwrap().0;
        assert_eq!(found["recommended"], best);
        // The machine is the same, and so is the clock: by TIME, or by EXPIREAT and TTL.
        assert!(
            found["clock_ahead_seconds_min"].as_f64().is_some_and(|least| least <= 0.0)
                && found["clock_ahead_seconds_max"].as_f64().is_some_and(|most| most >= 0.0),
            "{found}"
        );
        let config = server.names().contains(&"CONFIG".to_owned());
        assert_eq!(config, emulated >= ServerVersion::V2_0);
        assert_eq!(
            (found["idle_timeout_seconds"].is_null(), found["persistence"].is_null()),
            (!config, !config)
        );
        assert_eq!(server.say(&["DBSIZE"])?, ":0", "{}", emulated.number());
        // That is what --protocol takes.
        ran(&server.url(), ["run", "--protocol", best, "k", "--", "true"]).exits(0);
    }
    Ok(())
}

fn a_user_with_few_rights_gets_the_rest_of_the_report() -> Outcome {
    let rights = "+info +setnx +get +getset +del +watch +exec +discard +set";
    let server = TestServer::builder().config(&format!("user few on >pw ~locks:* {rights}")).start();
    let url = server.url().replace("redis://", "redis://few:pw@");
    let found = report(&url, 0);
    assert_eq!(
        (&found["clock_ahead_seconds_min"], &found["idle_timeout_seconds"]),
        (&Value::Null, &Value::Null)
    );
    assert_eq!(
        (&found["persistence"], &found["maxmemory_bytes"]),
        (&"snapshots".into(), &0.into()),
        "by INFO"
    );
    assert_eq!(works(&found), [("classic", true), ("watched", false), ("ttl", false)]);
    let why = found["protocols"][1]["reason"].as_str().unwrap();
    assert!(why.starts_with("the server refused MULTI: NOPERM"), "{why}");
    let notes = findings(&found, "note");
    assert!(notes.last().unwrap().starts_with("it refused CONFIG and TIME, so"), "{notes:?}");
    ran(&url, ["doctor"]).exits(0).shows(&["refused CONFIG:  NOPERM", "refused TIME:    NOPERM"]);
    Ok(())
}

fn a_user_without_info_gets_advice() -> Outcome {
    let server = TestServer::builder().config("user none on >pw ~locks:* +setnx +get +getset +del").start();
    let url = server.url().replace("redis://", "redis://none:pw@");
    ran(&url, ["doctor"])
        .exits(77)
        .says_only(&["the server refused INFO: NOPERM", "permit INFO to this user"]);
    Ok(())
}

fn what_is_refused_or_cut_off_leaves_no_key() -> Outcome {
    const NO: &str = "-ERR unknown command\r\n";
    const NOPERM: &str = "-NOPERM this user has no permissions to run the 'del' command\r\n";
    let server = server_of(ServerVersion::V2_4);
    for (command, n, fault, code) in [
        ("EXPIREAT", 1, Fault::Say(NO), 0),
        ("TTL", 2, Fault::Say(NO), 0),
        // A user without DEL writes no key, and no protocol works.
        ("DEL", 1, Fault::Say(NOPERM), 2),
        ("GETSET", 1, Fault::CutAfter, 69),
        // For longer than the tool waits for a reply.
        ("SETNX", 1, Fault::Hang, 69),
        ("TTL", 2, Fault::CutAfter, 69),
    ] {
        server.clear_log();
        server.nth(command, n, fault.clone());
        ran(&server.url(), ["doctor"]).exits(code);
        assert_eq!(server.faults_left(), 0, "{command}");
        assert_eq!(server.say(&["DBSIZE"])?, ":0", "{command} {fault:?}");
        assert_eq!(server.names().contains(&"SETNX".to_owned()), command != "DEL", "{command}");
    }
    Ok(())
}

fn a_server_that_does_not_reply_exits_with_69() -> Outcome {
    let server = TestServer::start();
    server.next("CONFIG", Fault::CutAfter);
    ran(&server.url(), ["doctor"]).exits(69).says_only(&["no reply from the server"]);
    ran(&format!("redis://127.0.0.1:{}/", closed_port()?), ["doctor"])
        .exits(69)
        .says_only(&["no connection"]);
    server.next("INFO", Fault::Say("$46\r\nredis_version:7.0.15\r\nrole:master\r\nloading:1\r\n\r\n"));
    ran(&server.url(), ["doctor"]).exits(69).says_only(&["loading its data"]);
    server.next("INFO", Fault::Say("$43\r\nredis_version:7.0.15\r\nredis_mode:sentinel\r\n\r\n"));
    ran(&server.url(), ["doctor"]).exits(77).says_only(&["is a Sentinel, which has no keys"]);
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

fn a_node_that_does_not_tell_its_epoch_exits_with_1() -> Outcome {
    let users = "user blind on >pw ~* &* +@all -cluster|info\nuser seeing on >pw ~* &* +@all";
    let server = RedisServer::start_with(&format!("cluster-enabled yes\n{users}"))?;
    server.say(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"])?;
    until("it is up", || server.say(&["SETNX", "k", "1"]).is_ok_and(|reply| reply.starts_with(':')));
    let found =
        |user: &str| findings(&report(&format!("redis://{user}:pw@{}/", server.address()), 1), "warning");
    let says =
        |warnings: &[String]| warnings.iter().any(|text| text.starts_with("it refused CLUSTER INFO (NOPERM"));
    let (blind, seeing) = (found("blind"), found("seeing"));
    assert!(says(&blind) && !says(&seeing), "{blind:?} {seeing:?}");
    Ok(())
}
