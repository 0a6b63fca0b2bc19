//! What a server reports of itself in INFO, in the words of every version from 1.2 on.

use std::time::Duration;

use proto::fencing::Epoch;
use proto::values::{Cut, Now, Uptime, Version};
use redis::Value;

use crate::net::errors::Refusal;
use crate::net::request::Compares;

/// What is known of the server of a connection.
#[derive(Default)]
pub(crate) struct Known {
    /// As it was reported, if it was.
    pub(crate) version: Option<Version>,
    /// No lock is granted before, and why not.
    pub(crate) settles: Option<(Uptime, Refusal)>,
    /// That of its configuration, if it is known.
    pub(crate) epoch: Option<Epoch>,
}

impl Known {
    /// Returns why the server grants no lock now, if it does not.
    pub(crate) fn settles_at(&self, now: Now) -> Option<&Refusal> {
        self.settles.as_ref().filter(|(until, _)| *until > now.uptime).map(|(_, refusal)| refusal)
    }
}

/// Why a server settles, and for how long.
#[derive(Debug)]
pub(in crate::net) struct Settling {
    pub(in crate::net) left: Duration,
    pub(in crate::net) refusal: Refusal,
}

/// The answer to INFO: lines of `field:value`, from 2.6 on under headings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServerInfo(String);

impl ServerInfo {
    /// Reads the reply, if it names a version. The rest may contain bytes of any kind, in a file's name say.
    pub(crate) fn parse(answer: Value) -> Option<Self> {
        Self::lines(answer).filter(|info| info.version().is_some())
    }

    /// Reads a reply of such lines.
    fn lines(answer: Value) -> Option<Self> {
        Some(Self(match answer {
            Value::BulkString(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Value::SimpleString(text) | Value::VerbatimString { text, .. } => text,
            _ => return None,
        }))
    }

    /// Reads the epoch of a node's configuration from the reply to CLUSTER INFO.
    pub(in crate::net) fn epoch_in_cluster(answer: Value) -> Option<Epoch> {
        let epoch: u64 = Self::lines(answer)?.get("cluster_my_epoch")?.parse().ok()?;
        Some(epoch.into())
    }

    /// Returns the value of a field.
    pub(crate) fn get(&self, field: &str) -> Option<&str> {
        self.0.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':')).map(str::trim)
    }

    pub(crate) fn version(&self) -> Option<Version> {
        self.get("redis_version")?.parse().ok()
    }

    /// Returns how the server compares and changes a key in one
    /// command, if it does. Valkey calls itself Redis 7.2 as well.
    pub(in crate::net) fn compares(&self) -> Option<Compares> {
        match self.get("valkey_version") {
            Some(version) => {
                let is_new = version.parse().is_ok_and(|version: Version| version >= Version::new(9, 0, 0));
                is_new.then_some(Compares::DelIfEq)
            }
            None => (self.version()? >= Version::new(8, 4, 0)).then_some(Compares::DelEx),
        }
    }

    /// Returns why a server that answers INFO refuses all commands of locks: it is a Sentinel, or is loading its data.
    pub(in crate::net) fn answers_nothing_else(&self, address: &str) -> Option<Refusal> {
        if self.get("redis_mode") == Some("sentinel") {
            return Some(Refusal::of_sentinel(address));
        }
        let refusal = Refusal::new("LOADING Redis is loading the dataset in memory");
        (self.get("loading") == Some("1")).then(|| refusal.of_connecting(address))
    }

    /// Returns for how long the server grants no locks, since it may have lost some in a restart less than `settles`
    /// ago. Fails if it does not report how long it has run.
    pub(in crate::net) fn settling(
        &self,
        settles: Duration,
        address: &str,
    ) -> Result<Option<Settling>, Refusal> {
        let up = self.get("uptime_in_seconds").and_then(|seconds| seconds.parse().ok());
        // The server counts whole seconds of its wall clock, from a whole
        // one: that may be nearly a second too many, or below zero.
        let up = up.map(|seconds: i64| {
            Duration::from_secs(u64::try_from(seconds.saturating_sub(1)).unwrap_or_default())
        });
        let left = settles.saturating_sub(up.unwrap_or_default());
        if left.is_zero() {
            return Ok(None);
        }
        let refusal = Refusal::settling(address, up, settles);
        if up.is_some() { Ok(Some(Settling { left, refusal })) } else { Err(refusal) }
    }

    pub(in crate::net) fn is_in_cluster(&self) -> bool {
        self.get("cluster_enabled") == Some("1")
    }

    pub(crate) fn is_replica(&self) -> bool {
        matches!(self.get("role"), Some("slave" | "replica"))
    }

    /// Returns host and port of the master, if the server reports them.
    pub(crate) fn master(&self) -> Option<String> {
        let address = format!("{}:{}", self.get("master_host")?, self.get("master_port").unwrap_or("?"));
        Some(Cut(address.as_bytes()).to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(bytes: impl AsRef<[u8]>) -> Option<ServerInfo> {
        ServerInfo::parse(Value::BulkString(bytes.as_ref().to_vec()))
    }

    #[test]
    fn a_server_settles_after_its_restart() {
        let up =
            |seconds: &str| info(format!("redis_version:1.2.6\r\nuptime_in_seconds:{seconds}\r\n")).unwrap();
        let settles =
            |seconds, up: &ServerInfo| !matches!(up.settling(Duration::from_secs(seconds), "a:1"), Ok(None));
        assert!(!settles(0, &up("0")) && settles(1, &up("0")) && settles(1, &up("1")));
        assert!(settles(10, &up("10")) && !settles(10, &up("11")) && !settles(10, &up("9999999")));
        let settling = |info: &ServerInfo| info.settling(Duration::from_secs(10), "a:1");
        let text = |info: &ServerInfo| settling(info).unwrap().unwrap().refusal.to_string();
        assert!(
            text(&up("-7200")).contains("a:1 has run for about 0 s since its restart"),
            "its clock was set back"
        );
        let silent = info("redis_version:1.2.6\r\n").unwrap();
        assert!(settles(1, &silent) && settles(1, &up("?")) && !settles(0, &silent));
        assert!(text(&up("3")).contains("a:1 has run for about 2 s since its restart"), "{}", text(&up("3")));
        let refusal = settling(&silent).unwrap_err().to_string();
        assert!(refusal.contains("a:1 does not report how long it has run"), "{refusal}");
    }

    #[test]
    fn old_and_new_forms_are_read() {
        let old = "redis_version:1.2.6\r\narch_bits:64\r\nconnected_slaves:2\r\nrole:master\r\n";
        let reported = info(old).unwrap();
        assert_eq!(reported.version(), Some(Version::new(1, 2, 6)));
        assert_eq!((reported.is_replica(), reported.get("connected_slaves")), (false, Some("2")));
        assert_eq!((reported.get("slaves"), reported.get("version")), (None, None), "names are whole names");

        let new = "# Server\r\nredis_version:7.0.15\r\n\r\n# Replication\r\nrole:slave\r\nmaster_host:10.1.2.3\r\nmaster_port:6380\r\n";
        let reported = info(new).unwrap();
        assert_eq!((reported.is_replica(), reported.master()), (true, Some("10.1.2.3:6380".into())));
        let without = info("redis_version:2.0.5\nrole:slave\n").unwrap();
        assert_eq!((without.is_replica(), without.master()), (true, None));
        assert!(!info("redis_version:2.0.5\n").unwrap().is_replica());
        assert_eq!(info("something else"), None);
        assert_eq!(ServerInfo::parse(Value::Nil), None);
        let any_bytes =
            info(b"config_file:/etc/r\xe9dis.conf\r\nredis_version:2.4.18\r\nrole:slave\r\n").unwrap();
        assert!(any_bytes.is_replica());
    }
}
