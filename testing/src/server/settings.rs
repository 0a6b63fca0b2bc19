//! The configuration.

use super::Server;
use super::cluster::ClusterNode;
use super::reply::Refusal;
use super::sentinel::WatchedMaster;

pub(super) const DATABASES: usize = 16;

/// The settings that have an effect here, and some that clients ask for, with their defaults.
const DEFAULTS: &[(&str, &str)] = &[
    ("appendfsync", "everysec"),
    ("appendonly", "no"),
    ("databases", "16"),
    ("maxclients", "10000"),
    ("maxmemory", "0"),
    ("maxmemory-policy", "noeviction"),
    ("min-replicas-max-lag", "10"),
    ("min-replicas-to-write", "0"),
    ("notify-keyspace-events", ""),
    ("replica-read-only", "yes"),
    ("save", ""),
    ("timeout", "0"),
];

#[derive(Debug)]
pub(super) struct Settings {
    values: Vec<(String, String)>,
    /// The process and the port that INFO tells.
    pub(super) process: u32,
    pub(super) port: u16,
    /// A test has filled it up.
    pub(super) is_full: bool,
    /// What it answers for now instead, if so.
    pub(super) refuses: Option<String>,
    /// Host and port of its master, if it is a replica.
    pub(super) master: Option<(String, u16)>,
    /// What it knows, if it is a node of a cluster.
    pub(super) cluster: Option<ClusterNode>,
    /// What it watches, if it is a Sentinel.
    pub(super) sentinel: Option<Vec<WatchedMaster>>,
}

impl Default for Settings {
    fn default() -> Self {
        let values = DEFAULTS.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Self {
            values,
            process: 1,
            port: 6379,
            is_full: false,
            refuses: None,
            master: None,
            cluster: None,
            sentinel: None,
        }
    }
}

impl Settings {
    pub(super) fn all(&self) -> &[(String, String)] {
        &self.values
    }

    pub(super) fn text(&self, name: &str) -> &str {
        self.values.iter().find(|(known, _)| known == name).map_or("", |(_, value)| value)
    }

    pub(super) fn number(&self, name: &str) -> u64 {
        self.text(name).parse().unwrap_or(0)
    }

    pub(super) fn memory_limit(&self) -> u64 {
        self.number("maxmemory")
    }

    pub(super) fn is_read_only(&self) -> bool {
        self.text("replica-read-only") == "yes"
    }

    /// It wants replicas that are connected, and none ever is.
    pub(super) fn lacks_replicas(&self) -> bool {
        self.number("min-replicas-to-write") > 0
            && self.number("min-replicas-max-lag") > 0
            && self.master.is_none()
    }
}

/// A number of bytes such as `100mb`.
fn bytes(text: &str) -> Option<u64> {
    let text = text.to_lowercase();
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let factor = match &text[digits.len()..] {
        "" | "b" => 1,
        "k" => 1000,
        "kb" => 1 << 10,
        "m" => 1_000_000,
        "mb" => 1 << 20,
        "g" => 1_000_000_000,
        "gb" => 1 << 30,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(factor)
}

impl Server {
    /// Sets a setting by its name in lower case.
    pub(super) fn set(&mut self, name: &str, value: &[u8]) -> Result<(), Refusal> {
        let text = String::from_utf8_lossy(value).trim_matches('"').to_owned();
        match name {
            "requirepass" => {
                self.users.require(value);
                return Ok(());
            }
            "replicaof" | "slaveof" => {
                let (host, port) = text.split_once(' ').unwrap_or(("127.0.0.1", "6379"));
                self.settings.master = Some((host.to_owned(), port.parse().unwrap_or(6379)));
                return Ok(());
            }
            _ => {}
        }
        let unknown = || format!("ERR Unknown option or number of arguments for CONFIG SET - '{name}'");
        let old = self.settings.values.iter_mut().find(|(known, _)| known == name);
        let (_, old) = old.ok_or_else(|| Refusal(unknown()))?;
        let failed = |problem| {
            Refusal(format!("ERR CONFIG SET failed (possibly related to argument '{name}') - {problem}"))
        };
        *old = match name {
            "maxmemory" => bytes(&text).ok_or_else(|| failed("argument must be a memory value"))?.to_string(),
            "maxclients" | "min-replicas-to-write" | "min-replicas-max-lag" | "timeout" => text
                .parse::<u64>()
                .map_err(|_| failed("argument couldn't be parsed into an integer"))?
                .to_string(),
            "databases" => {
                return Err(Refusal::new(
                    "ERR CONFIG SET failed (possibly related to argument 'databases') - can't set immutable config",
                ));
            }
            "appendonly" | "replica-read-only" if !["yes", "no"].contains(&text.as_str()) => {
                return Err(failed("argument must be 'yes' or 'no'"));
            }
            _ => text,
        };
        Ok(())
    }

    /// How many bytes it uses, as far as that depends on its keys.
    pub(super) fn memory_in_use(&self) -> u64 {
        let data: usize = self.databases.iter().map(|database| database.bytes() + 64 * database.len()).sum();
        1_000_000 + data as u64
    }
}
