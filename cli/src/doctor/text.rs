//! A report in words, for people.

use std::fmt;
use std::time::Duration;

use setnx_lock::Protocol;

use super::report::{PROTOCOLS, Persistence, Role, ServerReport};

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
            (limit, Some(policy)) => format!("{} at most, then {policy}", Bytes(limit)),
            (limit, None) => format!("{} at most", Bytes(limit)),
        });
        let idle = self.idle_timeout.map(|idle| match idle {
            Duration::ZERO => "kept".to_owned(),
            idle => format!("closed after {} s", idle.as_secs()),
        });
        let remains = self.persistence.map(|persistence| match persistence {
            Persistence::None => "nothing is left",
            Persistence::Snapshots => "at most the last snapshot is left",
            Persistence::AppendOnly => "all but about a second is left",
            Persistence::AppendOnlyUnsynced => "all but up to half a minute is left",
        });
        let works = PROTOCOLS.map(|protocol| {
            let why = self.unsupported_reason(protocol).map(|why| format!("does not work: {why}"));
            (protocol.name().to_owned(), why.unwrap_or_else(|| "works".into()))
        });
        let recommended = match self.recommended() {
            Some(best @ (Protocol::Watched | Protocol::Ttl)) => {
                format!("{}, which Protocol::Auto selects; the library's default is classic", best.name())
            }
            Some(best) => best.name().to_owned(),
            None => self.remedy().to_owned(),
        };
        let facts = [
            ("recommended", recommended),
            ("clock", or_unknown(self.clock.map(|clock| clock.to_string()))),
            ("memory", or_unknown(memory)),
            ("idle clients", or_unknown(idle)),
            ("after a crash", or_unknown(remains.map(str::to_owned))),
            ("replicas", or_unknown(self.replicas.map(|n| n.to_string()))),
        ];
        let facts = facts.map(|(name, what)| (name.to_owned(), what));
        let refused =
            self.refused.iter().map(|(name, refusal)| (format!("refused {name}"), refusal.text().into()));
        writeln!(f, "Redis {}, role: {role}", self.version)?;
        for (name, what) in works.into_iter().chain(facts).chain(refused) {
            writeln!(f, "{:<17}{what}", format!("{name}:"))?;
        }
        Ok(())
    }
}

/// A number of bytes in the unit that shows it in one to four digits.
struct Bytes(u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
        let power =
            (0..units.len() - 1).find(|power| self.0 >> (10 * power) < 10_000).unwrap_or(units.len() - 1);
        write!(f, "{} {}", self.0 >> (10 * power), units[power])
    }
}
