//! What a server is and can do, as far as it matters to locks. Pure: the server's replies are arguments.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use super::clock_difference::ClockDifference;
use super::warning::Warning;
use crate::backend::connections::{Role, ServerInfo};
use crate::backend::errors::Refusal;
use crate::options::Protocol;
use crate::version::Version;

/// What a server is and can do, as [`Locker::inspect`](crate::Locker::inspect) found it. Its `Display` is a report of some lines
/// for people.
///
/// What a server does not report, because its version does not know it or the user may not ask, is `None`.
#[derive(Clone, Debug)]
pub struct ServerReport {
    version: Version,
    role: Option<Role>,
    replicas: Option<u32>,
    persistence: Option<Persistence>,
    maxmemory_policy: Option<String>,
    maxmemory: Option<u64>,
    idle_timeout: Option<Duration>,
    clock: Option<ClockDifference>,
    in_a_cluster: bool,
    /// The commands that it refused, and how.
    refused: BTreeMap<&'static str, Refusal>,
}

/// What is left of a server's data when it is started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Persistence {
    /// Nothing.
    None,
    /// At most what it was at the last snapshot (RDB): nothing if it makes none.
    Snapshots,
    /// What it was up to about a second before (AOF), as long as `appendfsync` is not `no`.
    AppendOnly,
}

/// What a server answered.
#[derive(Debug)]
pub(super) struct Answers {
    pub(super) info: ServerInfo,
    pub(super) version: Version,
    /// What CONFIG GET told, by the name of the parameter.
    pub(super) config: BTreeMap<&'static str, String>,
    pub(super) refused: BTreeMap<&'static str, Refusal>,
    pub(super) clock: Option<ClockDifference>,
}

impl ServerReport {
    pub(super) fn from_answers(answers: Answers) -> Self {
        let Answers { info, version, config, refused, clock } = answers;
        // Newer servers tell some of it in INFO, which needs fewer rights.
        let reported = |parameter: &str, field: &str| {
            config.get(parameter).map_or(info.get(field), |value| Some(value.as_str()))
        };
        let number = |text: Option<&str>| text.and_then(|text| text.parse::<u64>().ok());
        let appends = reported("appendonly", "aof_enabled").map(|value| matches!(value, "yes" | "1"));
        let snapshots = config.get("save").map(|save| !save.trim().is_empty());
        let persistence = match (appends, snapshots) {
            (Some(true), _) => Some(Persistence::AppendOnly),
            (Some(false), Some(false)) => Some(Persistence::None),
            (Some(false), None) | (_, Some(true)) => Some(Persistence::Snapshots),
            (None, _) => None,
        };
        Self {
            version,
            role: info.role(),
            replicas: number(info.get("connected_slaves")).and_then(|n| u32::try_from(n).ok()),
            persistence,
            maxmemory_policy: reported("maxmemory-policy", "maxmemory_policy").map(str::to_owned),
            maxmemory: number(reported("maxmemory", "maxmemory")),
            idle_timeout: number(config.get("timeout").map(String::as_str)).map(Duration::from_secs),
            clock,
            in_a_cluster: info.get("cluster_enabled") == Some("1"),
            refused,
        }
    }

    /// Returns the version that the server says it is.
    #[must_use]
    pub fn version(&self) -> Version {
        self.version
    }

    /// Returns whether it is a master, or a replica of which.
    #[must_use]
    pub fn role(&self) -> Option<&Role> {
        self.role.as_ref()
    }

    /// Returns how many replicas follow it.
    #[must_use]
    pub fn replicas(&self) -> Option<u32> {
        self.replicas
    }

    /// Returns what is left of its data when it is started again.
    #[must_use]
    pub fn persistence(&self) -> Option<Persistence> {
        self.persistence
    }

    /// Returns how much memory its data may take, in bytes; 0 where there is no limit.
    #[must_use]
    pub fn maxmemory(&self) -> Option<u64> {
        self.maxmemory
    }

    /// Returns what it does when its memory is full: the `maxmemory-policy`, which there is from 2.2 on.
    #[must_use]
    pub fn maxmemory_policy(&self) -> Option<&str> {
        self.maxmemory_policy.as_deref()
    }

    /// Returns after how long it closes connections on which nothing is said: its `timeout`, zero for never.
    #[must_use]
    pub fn idle_timeout(&self) -> Option<Duration> {
        self.idle_timeout
    }

    /// Returns how its clock differs from this machine's.
    #[must_use]
    pub fn clock(&self) -> Option<ClockDifference> {
        self.clock
    }

    /// Returns whether it is a node of a cluster, where a key may belong to another node.
    #[must_use]
    pub fn is_in_a_cluster(&self) -> bool {
        self.in_a_cluster
    }

    /// Returns the commands that it refused to this user while it was asked, each with its words.
    pub fn refused(&self) -> impl Iterator<Item = (&'static str, &Refusal)> {
        self.refused.iter().map(|(command, refusal)| (*command, refusal))
    }

    /// Returns why this protocol does not work here, in words for people; `None` if nothing is known to be in its way. The commands
    /// were tried on a key of its own; what the user may do with the keys of locks is not known.
    #[must_use]
    pub fn unsupported_reason(&self, protocol: Protocol) -> Option<String> {
        if let Some(Role::Replica { .. }) = self.role {
            return Some("it is a replica, and a lock there protects nothing".into());
        }
        if self.version < protocol.needs() {
            return Some(format!("needs Redis {}; {}", protocol.needs(), protocol.instead()));
        }
        let commands: &[&str] = match protocol.on(Some(self.version)) {
            Protocol::Auto | Protocol::Classic => &["SETNX", "GET", "GETSET", "DEL"],
            Protocol::Watched => {
                &["SETNX", "SET", "GET", "DEL", "WATCH", "UNWATCH", "MULTI", "EXEC", "DISCARD"]
            }
            Protocol::Ttl => &["SET", "GET", "DEL", "WATCH", "UNWATCH", "MULTI", "EXEC", "DISCARD"],
        };
        let (command, refusal) = commands.iter().find_map(|command| self.refused.get_key_value(command))?;
        Some(format!("the server refused {command}: {}", refusal.text()))
    }

    /// Returns the protocol to choose where nothing speaks for another: [`Protocol::Watched`] where it works, else
    /// [`Protocol::Classic`]; `None` where that does not work either.
    #[must_use]
    pub fn recommended(&self) -> Option<Protocol> {
        [Protocol::Watched, Protocol::Classic]
            .into_iter()
            .find(|protocol| self.unsupported_reason(*protocol).is_none())
    }

    /// Returns what may go wrong with locks on this server, the gravest first. Each says what to do.
    #[must_use]
    pub fn warnings(&self) -> Vec<Warning> {
        Warning::about(self)
    }
}

impl fmt::Display for ServerReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let or_unknown = |reported: Option<String>| reported.unwrap_or_else(|| "not reported".into());
        let role = or_unknown(self.role.as_ref().map(|role| match role {
            Role::Master => "master".to_owned(),
            Role::Replica { of: Some(master) } => format!("replica of {master}"),
            Role::Replica { of: None } => "replica".to_owned(),
        }));
        let memory = self.maxmemory.map(|limit| match (limit, &self.maxmemory_policy) {
            (0, _) => "no limit".to_owned(),
            (limit, Some(policy)) => format!("{limit} bytes at most, then {policy}"),
            (limit, None) => format!("{limit} bytes at most"),
        });
        let idle = self.idle_timeout.map(|idle| match idle {
            Duration::ZERO => "kept".to_owned(),
            idle => format!("closed after {} s", idle.as_secs()),
        });
        let kept = self.persistence.map(|persistence| match persistence {
            Persistence::None => "nothing is left",
            Persistence::Snapshots => "at most the last snapshot is left",
            Persistence::AppendOnly => "all but about a second is left",
        });
        writeln!(f, "Redis {}, role: {role}", self.version)?;
        let works = Protocol::ALL.map(|protocol| {
            let why = self.unsupported_reason(protocol).map(|why| format!("does not work: {why}"));
            (format!("{protocol:?}"), why.unwrap_or_else(|| "works".into()))
        });
        let facts = [
            (
                "recommended".into(),
                self.recommended().map_or("another server".into(), |best| format!("{best:?}")),
            ),
            ("clock".into(), or_unknown(self.clock.map(|clock| clock.to_string()))),
            ("memory".into(), or_unknown(memory)),
            ("idle clients".into(), or_unknown(idle)),
            ("after a crash".into(), or_unknown(kept.map(str::to_owned))),
            ("replicas".into(), or_unknown(self.replicas.map(|n| n.to_string()))),
        ];
        let refused =
            self.refused.iter().map(|(name, refusal)| (format!("refused {name}"), refusal.text().into()));
        let lines: Vec<(String, String)> = works.into_iter().chain(facts).chain(refused).collect();
        for (n, (name, what)) in lines.iter().enumerate() {
            let end = if n + 1 < lines.len() { "\n" } else { "" };
            write!(f, "{:<17}{what}{end}", format!("{name}:"))?;
        }
        for warning in self.warnings() {
            write!(f, "\nwarning: {warning}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: &str = "redis_version:2.0.5\r\nconnected_slaves:0\r\nrole:master\r\n";
    const NEW: &str = "# Server\r\nredis_version:7.0.15\r\n# Persistence\r\naof_enabled:0\r\n# Memory\r\nmaxmemory:0\r\n\
                       maxmemory_policy:noeviction\r\n# Replication\r\nrole:master\r\nconnected_slaves:2\r\n";

    fn server(info: &str, config: &[(&'static str, &str)], refused: &[(&'static str, &str)]) -> ServerReport {
        let info = ServerInfo::parse(redis::Value::SimpleString(info.into())).unwrap();
        ServerReport::from_answers(Answers {
            version: info.version().unwrap(),
            info,
            config: config.iter().map(|(name, value)| (*name, (*value).to_owned())).collect(),
            refused: refused.iter().map(|(name, text)| (*name, Refusal::new(*text))).collect(),
            clock: None,
        })
    }

    #[test]
    fn an_old_server_says_what_it_knows() {
        let server = server(OLD, &[("timeout", "300"), ("appendonly", "no"), ("save", "900 1")], &[]);
        assert_eq!(server.version(), Version::new(2, 0, 5));
        assert_eq!(server.unsupported_reason(Protocol::Classic), None);
        assert_eq!(
            server.unsupported_reason(Protocol::Watched).unwrap(),
            "needs Redis 2.2.0; use Protocol::Auto or Protocol::Classic"
        );
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
    fn info_tells_what_config_may_not() {
        let refused = [("CONFIG", "NOPERM this user has no permissions to run the 'config|get' command")];
        let reported = server(NEW, &[], &refused);
        assert_eq!((reported.maxmemory(), reported.maxmemory_policy()), (Some(0), Some("noeviction")));
        assert_eq!(
            (reported.persistence(), reported.idle_timeout()),
            (Some(Persistence::Snapshots), None),
            "without `save` it may have snapshots, and no more"
        );
        assert_eq!(reported.recommended(), Some(Protocol::Watched));
        let forgets = Warning::ForgetsLocks { persistence: Persistence::Snapshots };
        let failover = Warning::FailoverLosesLocks { replicas: 2 };
        assert_eq!(
            reported.warnings(),
            [forgets, failover, Warning::NotReported { commands: vec!["CONFIG"] }]
        );
        assert!(reported.to_string().contains("refused CONFIG:  NOPERM"), "{reported}");
        let appends = NEW.replace("aof_enabled:0", "aof_enabled:1");
        assert_eq!(server(&appends, &[], &[]).persistence(), Some(Persistence::AppendOnly));
        assert_eq!(server(NEW, &[("save", "")], &[]).persistence(), Some(Persistence::None));
    }

    #[test]
    fn a_command_that_is_refused_is_an_obstacle_to_those_who_need_it() {
        let gone = server(NEW, &[], &[("MULTI", "ERR unknown command 'MULTI'")]);
        assert_eq!(
            gone.unsupported_reason(Protocol::Ttl).unwrap(),
            "the server refused MULTI: ERR unknown command 'MULTI'"
        );
        assert_eq!(gone.unsupported_reason(Protocol::Classic), None);
        let obstacles = |command| {
            let server = server(NEW, &[], &[(command, "NOPERM this user has no permissions to run it")]);
            Protocol::ALL.map(|protocol| server.unsupported_reason(protocol).is_some())
        };
        // Classic, Watched, Ttl.
        assert_eq!(obstacles("SETNX"), [true, true, false]);
        assert_eq!(obstacles("SET"), [false, true, true]);
        assert_eq!(obstacles("GETSET"), [true, false, false]);
        assert_eq!(obstacles("EXEC"), [false, true, true]);
        assert_eq!(obstacles("DEL"), [true; 3]);
        assert_eq!(obstacles("CONFIG"), [false; 3]);
    }

    #[test]
    fn what_may_do_harm_is_warned_of_and_nothing_else() {
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
        assert!(matches!(
            with("maxmemory-policy", "allkeys-lru")[..],
            [Warning::MayEvict { any_key: true, .. }]
        ));
        assert!(
            with("maxmemory-policy", "volatile-lru")[0].to_string().contains("locks of the protocol Ttl")
        );
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
    fn a_clock_that_is_far_from_ours_is_warned_of() {
        use crate::clock::Wall;
        let at = |millis: u64| Wall((1_795_000_000_000 + millis) * 1000);
        for (ahead, warned) in [(499, false), (503, true)] {
            let mut server = server(OLD, &[], &[]);
            server.clock = Some(ClockDifference::of(at(0), at(2), at(ahead), Duration::ZERO));
            let found =
                server.warnings().iter().any(|warning| matches!(warning, Warning::ClockDiffers { .. }));
            assert_eq!(found, warned, "{ahead} ms");
        }
    }
}
