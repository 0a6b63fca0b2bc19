//! What is refused before a command is executed or queued, and the words of each version.

use std::fmt::Write as _;

use super::client::ClientId;
use super::commands::{Effect, Spec};
use super::reply::Refusal;
use super::version::ServerVersion;
use super::{Server, commands};

use ServerVersion::{V2_4, V2_6};

/// In the state of a subscriber only these are accepted.
const OF_SUBSCRIBERS: &[&str] =
    &["SUBSCRIBE", "PSUBSCRIBE", "UNSUBSCRIBE", "PUNSUBSCRIBE", "PING", "QUIT", "RESET"];

/// What concerns a connection alone is accepted whatever the server is doing.
const OF_ITSELF: &[&str] = &["AUTH", "DISCARD", "HELLO", "MULTI", "QUIT", "RESET", "UNWATCH", "WATCH"];

const OUT_OF_MEMORY: &str = "OOM command not allowed when used memory > 'maxmemory'.";
const NOT_LOGGED_IN: &str = "NOAUTH Authentication required.";

/// How a current server's refusal begins, the last version with another one, and that other one.
const WORDED_BEFORE: &[(&str, ServerVersion, &str)] = &[
    ("WRONGTYPE ", V2_6, "ERR Operation against a key holding the wrong kind of value"), // measured
    ("OOM command not allowed", V2_4, "ERR command not allowed when used memory > 'maxmemory'"),
    ("NOAUTH ", V2_6, "ERR operation not permitted"),
    ("WRONGPASS ", V2_6, "ERR invalid password"),
    ("ERR AUTH <password> called without", V2_6, "ERR Client sent AUTH, but no password is set"),
    ("ERR DB index is out of range", V2_6, "ERR invalid DB index"),
    ("READONLY ", V2_6, "READONLY You can't write against a read only slave."),
];

/// Returns this version's words for a current server's refusal.
pub(super) fn worded(version: ServerVersion, current: String) -> String {
    let line = WORDED_BEFORE.iter().find(|(now, until, _)| current.starts_with(now) && version <= *until);
    line.map_or(current, |(_, _, before)| (*before).to_owned())
}

/// Measured on 1.1.94; 1.3.4 and all later ones name it as it was typed as well.
fn unknown(version: ServerVersion, words: &[Vec<u8>]) -> Refusal {
    let shown = |word: &[u8]| String::from_utf8_lossy(word).replace(['\r', '\n'], " ");
    let typed = shown(&words[0]);
    if version <= V2_6 {
        return Refusal::new(format!("ERR unknown command '{typed}'"));
    }
    let mut arguments = String::new();
    for word in &words[1..] {
        if arguments.len() >= 128 {
            break;
        }
        let left = 128 - arguments.len();
        let _infallible = write!(arguments, "'{}' ", shown(&word[..word.len().min(left)]));
    }
    let typed: String = typed.chars().take(128).collect();
    Refusal::new(format!("ERR unknown command '{typed}', with args beginning with: {arguments}"))
}

impl Server {
    /// Returns what the command is if it is accepted.
    pub(super) fn refusal(
        &mut self,
        id: ClientId,
        spec: Option<&'static Spec>,
        words: &[Vec<u8>],
    ) -> Result<&'static Spec, Refusal> {
        let client = self.client(id);
        let (version, is_privileged) = (client.version, client.is_privileged);
        let is_known = |spec: &&Spec| !self.is_not_for_sentinels(spec.name);
        let spec = spec.filter(is_known).ok_or_else(|| unknown(version, words))?;
        if !spec.arguments.contains(&(words.len() - 1)) {
            return Err(super::call::wrong_number(spec.name));
        }
        let name = commands::full_name(version, spec, words)?;
        if is_privileged {
            return Ok(spec);
        }
        let of_version = |text: &str| Err(Refusal(worded(version, text.to_owned())));
        if self.client(id).user.is_none() && !["AUTH", "HELLO", "QUIT", "RESET"].contains(&spec.name) {
            return of_version(NOT_LOGGED_IN);
        }
        self.users.permit(
            self.clients.get(&id).and_then(|client| client.user.as_deref()),
            spec,
            &name,
            words,
        )?;
        if let Some(refusal) = self.refused_for_now(spec) {
            return Err(refusal);
        }
        if let Some(refusal) = self.redirection(id, spec, words) {
            return Err(refusal);
        }
        if self.is_over_memory() && self.is_refused_over_memory(id, spec) {
            return of_version(OUT_OF_MEMORY);
        }
        let changes = spec.changes_keys() || spec.name == "EXEC" && self.queue_has(id, Spec::changes_keys);
        if changes && self.settings.lacks_replicas() {
            return of_version("NOREPLICAS Not enough good replicas to write.");
        }
        if changes && self.settings.master.is_some() && self.settings.is_read_only() && version >= V2_6 {
            return of_version("READONLY You can't write against a read only replica.");
        }
        let client = self.client(id);
        let is_accepted = OF_SUBSCRIBERS.contains(&spec.name) && (spec.name != "PING" || version > V2_6);
        if client.is_subscribed() && !client.resp3 && !is_accepted {
            return Err(in_channels(version, &name));
        }
        Ok(spec)
    }

    /// While it loads its data or runs a script it refuses nearly all, for other reasons what changes keys.
    fn refused_for_now(&self, spec: &Spec) -> Option<Refusal> {
        let text = self.settings.refuses.as_deref()?;
        let is_refused = match text.split(' ').next() {
            Some("LOADING") => spec.name != "INFO" && !OF_ITSELF.contains(&spec.name),
            Some("BUSY") => !OF_ITSELF.contains(&spec.name),
            _ => spec.changes_keys(),
        };
        is_refused.then(|| Refusal::new(text))
    }

    /// Up to 2.4 EXEC is among what is refused, with any content (read: its flag in the source of 2.1, and of the time
    /// between 2.2 and 2.4). In 2.6 it is executed. Later ones queue nothing in a transaction, and refuse EXEC if
    /// something that was queued adds.
    fn is_refused_over_memory(&mut self, id: ClientId, spec: &Spec) -> bool {
        let version = self.client(id).version;
        let adds = spec.effect == Effect::Adds;
        match spec.name {
            "EXEC" if version <= V2_4 => true,
            "EXEC" if version <= V2_6 => false,
            "EXEC" => self.queue_has(id, |spec| spec.effect == Effect::Adds),
            name if version > V2_6 && self.client(id).queue.is_some() => {
                !["DISCARD", "RESET", "QUIT"].contains(&name)
            }
            _ => adds,
        }
    }

    fn queue_has(&mut self, id: ClientId, is_so: impl Fn(&Spec) -> bool) -> bool {
        let client = self.client(id);
        let table = commands::of(client.version);
        let queue = client.queue.as_ref();
        queue.is_some_and(|queue| {
            let mut specs =
                queue.commands.iter().filter_map(|words| table.get(super::upper(&words[0]).as_str()));
            specs.any(is_so)
        })
    }

    fn is_over_memory(&self) -> bool {
        let limit = self.settings.memory_limit();
        self.settings.is_full || limit > 0 && self.memory_in_use() > limit
    }
}

fn in_channels(version: ServerVersion, name: &str) -> Refusal {
    Refusal::new(match version {
        old if old <= V2_6 => {
            "ERR only (P)SUBSCRIBE / (P)UNSUBSCRIBE / QUIT allowed in this context".to_owned()
        }
        _ => format!(
            "ERR Can't execute '{name}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this context"
        ),
    })
}
