//! What a report and its findings say of the answers of old and new servers.

use std::time::Duration;

use setnx_lock::redis::{InfoDict, Value, parse_redis_value};
use setnx_lock::{Protocol, Refusal};

use super::clock_difference::ClockDifference;
use super::finding::{Finding, Severity};
use super::report::{Answers, PROTOCOLS, Persistence, ServerReport};

const OLD: &str = "redis_version:2.0.5\r\nconnected_slaves:0\r\nrole:master\r\n";
const NEW: &str = "# Server\r\nredis_version:7.0.15\r\n# Persistence\r\naof_enabled:0\r\n# Memory\r\nmaxmemory:0\r\n\
                   maxmemory_policy:noeviction\r\n# Replication\r\nrole:master\r\nconnected_slaves:2\r\n";

/// The refusal of a server with these words.
pub(super) fn refusal(text: &str) -> Refusal {
    match parse_redis_value(format!("-{text}\r\n").as_bytes()) {
        Ok(Value::ServerError(error)) => error.into(),
        other => panic!("{other:?}"),
    }
}

fn answers(config: &[(&'static str, &str)], refused: &[(&'static str, &str)]) -> Answers {
    Answers {
        config: config.iter().map(|(name, value)| (*name, (*value).to_owned())).collect(),
        refused: refused.iter().map(|(name, text)| (*name, refusal(text))).collect(),
        clock: None,
        ours: Duration::from_secs(1_795_000_000),
        by_sentinel: false,
    }
}

fn report(info: &str, answers: Answers) -> ServerReport {
    let info = InfoDict::new(info);
    let version = info.get::<String>("redis_version").unwrap();
    ServerReport::of(version.parse().unwrap(), &info, answers)
}

fn server(info: &str, config: &[(&'static str, &str)], refused: &[(&'static str, &str)]) -> ServerReport {
    report(info, answers(config, refused))
}

/// Asserts that there are these findings and no others: how grave, and words of each.
#[track_caller]
fn assert_found(server: &ServerReport, expected: &[(Severity, &str)]) {
    let found = server.findings();
    let matches = |(finding, (severity, words)): (&Finding, &(Severity, &str))| {
        finding.severity == *severity && finding.text.contains(words)
    };
    assert!(found.len() == expected.len() && found.iter().zip(expected).all(matches), "{found:#?}");
}

#[test]
fn an_old_server_reports_what_it_knows() {
    let server = server(OLD, &[("timeout", "300"), ("appendonly", "no"), ("save", "900 1")], &[]);
    assert_eq!(server.unsupported_reason(Protocol::Classic), None);
    assert_eq!(server.unsupported_reason(Protocol::Watched).unwrap(), "needs Redis 2.2.0");
    assert_eq!(server.recommended(), Some(Protocol::Classic));
    assert_eq!((server.maxmemory, server.maxmemory_policy.as_deref()), (None, None));
    assert_eq!(server.persistence, Some(Persistence::Snapshots));
    assert_found(&server, &[(Severity::Note, "it has at most the data of its last snapshot")]);
    let report = server.to_string();
    assert!(report.starts_with("Redis 2.0.5, role: master\n"), "{report}");
    assert!(
        report.contains("closed after 300 s") && report.contains("memory:          not reported"),
        "{report}"
    );
}

#[test]
fn info_reports_what_config_may_not() {
    let refused = [("CONFIG", "NOPERM this user has no permissions to run the 'config|get' command")];
    let reported = server(NEW, &[], &refused);
    assert_eq!((reported.maxmemory, reported.maxmemory_policy.as_deref()), (Some(0), Some("noeviction")));
    assert_eq!(
        (reported.persistence, reported.idle_timeout),
        (Some(Persistence::Snapshots), None),
        "without `save` it may have snapshots, and no more"
    );
    assert_eq!(reported.recommended(), Some(Protocol::Ttl));
    let notes = ["its last snapshot", "2 replicas follow it", "it refused CONFIG, so"];
    assert_found(&reported, &notes.map(|words| (Severity::Note, words)));
    assert!(reported.to_string().contains("refused CONFIG:  NOPERM"), "{reported}");
    let appends = NEW.replace("aof_enabled:0", "aof_enabled:1");
    assert_eq!(server(&appends, &[], &[]).persistence, Some(Persistence::AppendOnly));
    assert_eq!(server(NEW, &[("save", "")], &[]).persistence, Some(Persistence::None));
}

#[test]
fn an_append_only_file_that_is_not_synced_lacks_the_last_half_minute() {
    let server = |sync| server(OLD, &[("appendonly", "yes"), ("appendfsync", sync)], &[]);
    for synced in ["everysec", "always"] {
        assert_eq!(server(synced).persistence, Some(Persistence::AppendOnly));
        assert_found(&server(synced), &[]);
    }
    let unsynced = server("no");
    assert_eq!(unsynced.persistence, Some(Persistence::AppendOnlyUnsynced));
    assert_found(&unsynced, &[(Severity::Note, "set appendfsync to everysec")]);
    assert!(unsynced.to_string().contains("after a crash:   all but up to half a minute is left"));
}

#[test]
fn where_no_protocol_works_the_report_says_what_to_do() {
    let oom = "OOM command not allowed when used memory > 'maxmemory'.";
    let full = server(NEW, &[("save", ""), ("appendonly", "yes")], &[("SETNX", oom), ("SET", oom)]);
    assert_eq!(full.recommended(), None);
    let remedy = "the server is over its maxmemory; free memory or raise the limit";
    assert!(full.to_string().contains(&format!("recommended:     {remedy}")), "{full}");
    let what = format!("no protocol works: the server refused SETNX: {oom}; {remedy}");
    assert_found(&full, &[(Severity::Error, &what), (Severity::Note, "2 replicas follow it")]);
    let remedy = |info: &str| server(info, &[], &[]).remedy();
    assert_eq!(remedy(&OLD.replace("2.0.5", "1.0.2")), "use a newer server");
    assert_eq!(remedy(&OLD.replace("role:master", "role:slave")), "lock on its master");
}

#[test]
fn a_report_names_protocols_and_memory_as_people_write_them() {
    let report = server(NEW, &[("maxmemory", "104857600")], &[]).to_string();
    assert!(
        report.contains("\nwatched:         works") && report.contains("recommended:     ttl"),
        "{report}"
    );
    assert!(report.contains("memory:          100 MiB at most, then noeviction"), "{report}");
}

#[test]
fn a_refused_command_rules_out_the_protocols_that_need_it() {
    let gone = server(NEW, &[], &[("MULTI", "ERR unknown command 'MULTI'")]);
    assert_eq!(
        gone.unsupported_reason(Protocol::Ttl).unwrap(),
        "the server refused MULTI: ERR unknown command 'MULTI'"
    );
    assert_eq!(gone.unsupported_reason(Protocol::Classic), None);
    let unsupported = |command| {
        let server = server(NEW, &[], &[(command, "NOPERM this user has no permissions to run it")]);
        PROTOCOLS.map(|protocol| server.unsupported_reason(protocol).is_some())
    };
    // Classic, Watched, Ttl.
    assert_eq!(unsupported("SETNX"), [true, true, false]);
    assert_eq!(unsupported("SET"), [false, true, true]);
    assert_eq!(unsupported("GETSET"), [true, false, false]);
    assert_eq!(unsupported("EXEC"), [false, true, true]);
    assert_eq!(unsupported("DEL"), [true; 3]);
    assert_eq!(unsupported("CONFIG"), [false; 3]);
}

#[test]
fn what_may_harm_locks_is_found_and_nothing_else() {
    let safe = [("save", ""), ("appendonly", "yes"), ("timeout", "300"), ("maxmemory", "100")];
    assert_found(&server(OLD, &safe, &[]), &[]);
    let with = |info: &str, name: &'static str, value: &'static str| {
        let mut config: Vec<_> = safe.into_iter().filter(|(other, _)| *other != name).collect();
        config.push((name, value));
        server(info, &config, &[])
    };
    assert_found(&with(OLD, "timeout", "10"), &[(Severity::Warning, "idle for 10 s")]);
    assert_found(&with(OLD, "timeout", "11"), &[]);
    assert_found(&with(OLD, "timeout", "0"), &[]);
    let evicts = with(OLD, "maxmemory-policy", "allkeys-lru");
    assert_found(&evicts, &[(Severity::Warning, "by allkeys-lru, locks too")]);
    let volatile = |version| with(&OLD.replace("2.0.5", version), "maxmemory-policy", "volatile-lru");
    for without_ttl in ["2.2.15", "2.4.18", "2.6.11"] {
        assert_found(&volatile(without_ttl), &[]);
    }
    assert_found(&volatile("2.6.12"), &[(Severity::Warning, "locks of the protocol Ttl")]);
    assert_found(&with(OLD, "maxmemory-policy", "noeviction"), &[]);
    let unlimited = [("maxmemory-policy", "allkeys-lru"), ("maxmemory", "0"), ("appendonly", "yes")];
    assert_found(&server(OLD, &unlimited, &[]), &[]);
    let replica = OLD.replace("role:master", "role:slave\r\nmaster_host:10.0.0.1\r\nmaster_port:6379");
    let replica = server(&replica, &safe, &[]);
    assert_found(&replica, &[(Severity::Error, "it is a replica of 10.0.0.1:6379")]);
    assert!(replica.unsupported_reason(Protocol::Classic).unwrap().contains("replica"));
    assert!(replica.to_string().starts_with("Redis 2.0.5, role: replica of 10.0.0.1:6379\n"));
    let node = server(&format!("{OLD}cluster_enabled:1\r\n"), &safe, &[]);
    assert_found(&node, &[(Severity::Warning, "a node of a cluster")]);
    let followed = OLD.replace("connected_slaves:0", "connected_slaves:2");
    assert_found(&server(&followed, &safe, &[]), &[(Severity::Note, "set min-replicas-to-write")]);
    let stops = server(&format!("{followed}min_slaves_good_slaves:2\r\n"), &safe, &[]);
    assert_found(&stops, &[(Severity::Note, "a failover can lose the newest locks")]);
    assert!(!stops.findings()[0].text.contains("min-replicas-to-write"));
}

#[test]
fn what_keeps_a_new_master_from_taking_writes_is_found() {
    let found = |replicas: u32, min: &str, delay: &str| {
        let good = if min == "0" { "" } else { "min_slaves_good_slaves:1\r\n" };
        let info = NEW.replace("connected_slaves:2", &format!("{good}connected_slaves:{replicas}"));
        let config = [
            ("appendonly", "yes"),
            ("min-slaves-to-write", min),
            ("repl-diskless-sync", "yes"),
            ("repl-diskless-sync-delay", delay),
        ];
        let findings = server(&info, &config, &[]).findings();
        let others = |finding: &&Finding| !finding.text.contains("a failover can lose the newest locks");
        findings.iter().find(others).map(|finding| (finding.severity, finding.text.clone()))
    };
    assert_eq!(found(0, "1", "5"), None);
    assert_eq!(found(2, "0", "5"), None);
    assert_eq!(found(2, "1", "0"), None);
    let (severity, text) = found(2, "1", "5").unwrap();
    assert_eq!(severity, Severity::Note);
    assert!(text.contains("for 5 s") && text.contains("at least 14 s"), "{text}");
    for (replicas, min, words) in
        [(1, "1", "set it to 0"), (2, "2", "2 replicas follow"), (2, "3", "set it to 1")]
    {
        let (severity, text) = found(replicas, min, "0").unwrap();
        assert_eq!(severity, Severity::Warning);
        assert!(text.contains(words), "{text}");
    }
}

#[test]
fn a_clock_that_cannot_be_right_is_found() {
    for (ours, shown) in [
        (24, "1970-01-01T00:00:24Z"),
        (999_999_999, "2001-09-09T01:46:39Z"),
        (u64::MAX, "9999-12-31T23:59:59Z"),
    ] {
        let ours = Duration::from_secs(ours);
        let server = report(OLD, Answers { ours, ..answers(&[("appendonly", "yes")], &[]) });
        let expected = format!("the clock of this machine shows {shown}, which cannot be right");
        assert_found(&server, &[(Severity::Error, &expected)]);
    }
}

#[test]
fn a_clock_that_differs_much_is_found() {
    let at = |millis: u64| Duration::from_secs(1_795_000_000) + Duration::from_millis(millis);
    for (ahead, found) in [(499, false), (503, true)] {
        let clock = Some(ClockDifference::of(at(0), at(2), at(ahead), Duration::ZERO));
        let server = report(OLD, Answers { clock, ..answers(&[("appendonly", "yes")], &[]) });
        let expected = found.then_some((Severity::Warning, "its clock is 501ms to 503ms ahead of ours"));
        assert_found(&server, expected.as_slice());
    }
}
