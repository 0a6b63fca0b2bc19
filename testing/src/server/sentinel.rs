//! A Sentinel: what it knows of the masters that it watches.

use std::time::Duration;

use super::Server;
use super::call::Call;
use super::reply::{Answer, Refusal, Reply};

/// A Sentinel executes these alone.
const OF_SENTINEL: &[&str] = &[
    "AUTH",
    "CLIENT",
    "COMMAND",
    "HELLO",
    "INFO",
    "PING",
    "PSUBSCRIBE",
    "PUBLISH",
    "PUNSUBSCRIBE",
    "QUIT",
    "ROLE",
    "SENTINEL",
    "SUBSCRIBE",
    "UNSUBSCRIBE",
];

/// A master that a Sentinel watches. In a failover its answers do not change at once and together, so each is a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchedMaster {
    /// The name that it watches it by.
    pub name: String,
    /// Host and port that `SENTINEL GET-MASTER-ADDR-BY-NAME` returns.
    pub address: (String, u16),
    /// Host and port in the reply to `SENTINEL MASTER`.
    pub described: (String, u16),
    /// The `config-epoch` in the same reply.
    pub epoch: u64,
    /// Since when the server reports that it is a master: the time since 1970.
    pub since: Duration,
}

impl Server {
    /// Makes it a Sentinel that watches these masters, or tells it what has changed; `None`: it is one no more.
    pub fn set_sentinel(&mut self, watched: Option<Vec<WatchedMaster>>) {
        self.settings.sentinel = watched;
    }

    /// Returns true if a Sentinel knows no such command.
    pub(super) fn is_not_for_sentinels(&self, name: &str) -> bool {
        let is_sentinel = self.settings.sentinel.is_some();
        is_sentinel && !OF_SENTINEL.contains(&name) || !is_sentinel && name == "SENTINEL"
    }
}

pub(super) fn sentinel(call: &mut Call<'_>) -> Answer {
    let name = call.words.get(2).map(|name| String::from_utf8_lossy(name).into_owned()).unwrap_or_default();
    let now = call.server.now;
    let watched = call.server.settings.sentinel.iter().flatten().find(|master| master.name == name);
    match (call.upper(1).as_str(), watched) {
        ("GET-MASTER-ADDR-BY-NAME", Some(WatchedMaster { address: (host, port), .. })) => {
            Ok(Reply::bulks([host.clone(), port.to_string()]))
        }
        ("GET-MASTER-ADDR-BY-NAME", None) => Ok(Reply::NilArray),
        ("MASTER", Some(WatchedMaster { name, described: (host, port), epoch, since, .. })) => {
            let reported = now.saturating_sub(*since).as_millis().to_string();
            let (port, epoch) = (port.to_string(), epoch.to_string());
            let fields = [
                ("name", name),
                ("ip", host),
                ("port", &port),
                ("flags", &"master".to_owned()),
                ("role-reported-time", &reported),
                ("config-epoch", &epoch),
            ];
            let pair = |(field, value): (&str, &String)| (Reply::bulk(field), Reply::bulk(value.as_str()));
            Ok(Reply::Map(fields.into_iter().map(pair).collect()))
        }
        ("MASTER", None) => Err(Refusal::new("ERR No such master with that name")),
        (other, _) => Err(Refusal(format!("ERR Unknown sentinel subcommand '{other}'"))),
    }
}
