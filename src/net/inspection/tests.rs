//! What a report and its warnings say of the answers of old and new servers.

use std::time::Duration;

use super::report::{Persistence, ServerAnswers, ServerReport};
use super::{ClockDifference, Warning};
use crate::net::connections::ServerInfo;
use crate::net::errors::Refusal;
use crate::values::options::Protocol;
use crate::values::version::Version;

const OLD: &str = "redis_version:2.0.5\r\nconnected_slaves:0\r\nrole:master\r\n";
const NEW: &str = "# Server\r\nredis_version:7.0.15\r\n# Persistence\r\naof_enabled:0\r\n# Memory\r\nmaxmemory:0\r\n\
                   maxmemory_policy:noeviction\r\n# Replication\r\nrole:master\r\nconnected_slaves:2\r\n";

fn answers(info: &str, config: &[(&'static str, &str)], refused: &[(&'static str, &str)]) -> ServerAnswers {
    let info = ServerInfo::parse(redis::Value::SimpleString(info.into())).unwrap();
    ServerAnswers {
        version: info.version().unwrap(),
        info,
        config: config.iter().map(|(name, value)| (*name, (*value).to_owned())).collect(),
        refused: refused.iter().map(|(name, text)| (*name, Refusal::new(*text))).collect(),
        clock: None,
    }
}

fn server(info: &str, config: &[(&'static str, &str)], refused: &[(&'static str, &str)]) -> ServerReport {
    ServerReport::from_answers(answers(info, config, refused))
}

#[test]
fn an_old_server_reports_what_it_knows() {
    let server = server(OLD, &[("timeout", "300"), ("appendonly", "no"), ("save", "900 1")], &[]);
    assert_eq!(server.version(), Version::new(2, 0, 5));
    assert_eq!(server.unsupported_reason(Protocol::Classic), None);
    assert_eq!(server.unsupported_reason(Protocol::Watched).unwrap(), "needs Redis 2.2.0");
    assert_eq!(server.recommended(), Some(Protocol::Classic));
    assert_eq!((server.maxmemory(), server.maxmemory_policy()), (None, None));
    assert_eq!(server.persistence(), Some(Persistence::Snapshots));
    let warnings = server.warnings();
    assert_eq!(warnings, [Warning::ForgetsLocks { persistence: Persistence::Snapshots }]);
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
    assert_eq!((reported.maxmemory(), reported.maxmemory_policy()), (Some(0), Some("noeviction")));
    assert_eq!(
        (reported.persistence(), reported.idle_timeout()),
        (Some(Persistence::Snapshots), None),
        "without `save` it may have snapshots, and no more"
    );
    assert_eq!(reported.recommended(), Some(Protocol::Ttl));
    let forgets = Warning::ForgetsLocks { persistence: Persistence::Snapshots };
    let failover = Warning::FailoverLosesLocks { replicas: 2 };
    assert_eq!(reported.warnings(), [forgets, failover, Warning::NotReported { commands: vec!["CONFIG"] }]);
    assert!(reported.to_string().contains("refused CONFIG:  NOPERM"), "{reported}");
    let appends = NEW.replace("aof_enabled:0", "aof_enabled:1");
    assert_eq!(server(&appends, &[], &[]).persistence(), Some(Persistence::AppendOnly));
    assert_eq!(server(NEW, &[("save", "")], &[]).persistence(), Some(Persistence::None));
}

#[test]
fn an_append_only_file_that_is_not_synced_lacks_the_last_half_minute() {
    let server = |sync| server(OLD, &[("appendonly", "yes"), ("appendfsync", sync)], &[]);
    for synced in ["everysec", "always"] {
        assert_eq!(server(synced).persistence(), Some(Persistence::AppendOnly));
        assert_eq!(server(synced).warnings(), []);
    }
    let unsynced = server("no");
    assert_eq!(unsynced.persistence(), Some(Persistence::AppendOnlyUnsynced));
    let report = unsynced.to_string();
    assert!(report.contains("after a crash:   all but up to half a minute is left"), "{report}");
    assert!(
        report.contains("warning: after a crash of its machine") && report.contains("everysec"),
        "{report}"
    );
}

#[test]
fn where_no_protocol_works_the_report_says_what_to_do() {
    let oom = "OOM command not allowed when used memory > 'maxmemory'.";
    let full = server(NEW, &[], &[("SETNX", oom), ("SET", oom)]);
    assert_eq!(full.recommended(), None);
    let report = full.to_string();
    assert!(
        report.contains("recommended:     the server is over its maxmemory; free memory or raise"),
        "{report}"
    );
    let remedy = |info: &str| server(info, &[], &[]).remedy();
    assert_eq!(remedy(OLD), None);
    assert_eq!(remedy(&OLD.replace("2.0.5", "1.0.2")), Some("use a newer server"));
    assert_eq!(remedy(&OLD.replace("role:master", "role:slave")), Some("lock on its master"));
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
        Protocol::ALL.map(|protocol| server.unsupported_reason(protocol).is_some())
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
fn what_may_harm_locks_is_warned_of_and_nothing_else() {
    let warned = |info: &str, config: &[(&'static str, &str)]| server(info, config, &[]).warnings();
    let safe = [("save", ""), ("appendonly", "yes"), ("timeout", "300"), ("maxmemory", "100")];
    assert_eq!(warned(OLD, &safe), []);
    let with = |name: &'static str, value| {
        let mut config = safe.to_vec();
        config.retain(|(other, _)| *other != name);
        config.push((name, value));
        warned(OLD, &config)
    };
    assert_eq!(with("timeout", "10"), [Warning::ClosesIdle { idle: Duration::from_secs(10) }]);
    assert_eq!(with("timeout", "11"), []);
    assert_eq!(with("timeout", "0"), []);
    assert!(matches!(with("maxmemory-policy", "allkeys-lru")[..], [Warning::MayEvict { any_key: true, .. }]));
    let volatile = |version: &str| {
        let mut config = safe.to_vec();
        config.push(("maxmemory-policy", "volatile-lru"));
        warned(&OLD.replace("2.0.5", version), &config)
    };
    for without_ttl in ["2.2.15", "2.4.18", "2.6.11"] {
        assert_eq!(volatile(without_ttl), [], "{without_ttl} has no locks with a time to live");
    }
    let warning = &volatile("2.6.12")[0];
    assert!(matches!(warning, Warning::MayEvict { any_key: false, .. }), "{warning}");
    assert!(warning.to_string().contains("locks of the protocol Ttl"), "{warning}");
    assert_eq!(with("maxmemory-policy", "noeviction"), []);
    let unlimited = [("maxmemory-policy", "allkeys-lru"), ("maxmemory", "0"), ("appendonly", "yes")];
    assert_eq!(warned(OLD, &unlimited), []);
    let replica = OLD.replace("role:master", "role:slave\r\nmaster_host:10.0.0.1\r\nmaster_port:6379");
    let replica = server(&replica, &safe, &[]);
    assert!(matches!(replica.warnings()[..], [Warning::IsReplica { of: Some(_) }]));
    assert!(replica.unsupported_reason(Protocol::Classic).unwrap().contains("replica"));
    assert!(replica.to_string().starts_with("Redis 2.0.5, role: replica of 10.0.0.1:6379\n"));
    assert_eq!(warned(&format!("{OLD}cluster_enabled:1\r\n"), &safe), [Warning::IsInACluster]);
}

#[test]
fn a_clock_that_differs_much_is_warned_of() {
    use crate::values::clock::Wall;
    let at = |millis: u64| Wall((1_795_000_000_000 + millis) * 1000);
    for (ahead, warned) in [(499, false), (503, true)] {
        let clock = ClockDifference::of(at(0), at(2), at(ahead), Duration::ZERO);
        let server =
            ServerReport::from_answers(ServerAnswers { clock: Some(clock), ..answers(OLD, &[], &[]) });
        let found = server.warnings().iter().any(|warning| matches!(warning, Warning::ClockDiffers { .. }));
        assert_eq!(found, warned, "{ahead} ms");
    }
}
