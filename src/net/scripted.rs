//! A backend without a server, whose replies a test chooses.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use proto::Reply;
use proto::lease::End;
use proto::values::{Key, Now, Protocol, Version};

use super::{
    Backend, Failure, Heard, KeyTrip, Limits, NodeId, Packed, Refusal, Request, Sent, TransportError,
};

/// A command that was sent: its name, when it was decided on, and the time it was bound to.
type SentCommand = (&'static str, Now, Option<End>);

/// Replies to a command, which is given by its words.
type Script = dyn Fn(&Key, &[&str]) -> Reply + Send + Sync;

pub(crate) struct ScriptedBackend {
    reply: Box<Script>,
    pub(crate) sent: Mutex<Vec<SentCommand>>,
}

impl ScriptedBackend {
    /// How long each command that is not sent has waited for a connection.
    const WAITED: Duration = Duration::from_millis(2);

    pub(crate) fn replying(reply: impl Fn(&str) -> Reply + Send + Sync + 'static) -> Arc<Self> {
        Self::replying_for(move |_, words| reply(words[0]))
    }

    pub(crate) fn replying_for(reply: impl Fn(&Key, &[&str]) -> Reply + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self { reply: Box::new(reply), sent: Mutex::default() })
    }

    /// Grants every lock, and deletes every key.
    pub(crate) fn granting() -> Arc<Self> {
        Self::replying(|_| Reply::Integer(1))
    }
}

impl Backend for ScriptedBackend {
    fn send(&self, trip: &KeyTrip<'_>, limits: &Limits<'_>) -> Sent {
        let reply = |command: &dyn Request, before: Option<End>| {
            let mut packed = Packed::default();
            command.pack(trip.key, &mut packed);
            let text = String::from_utf8(packed.bytes).unwrap();
            let words: Vec<&str> = text.split("\r\n").filter(|line| !line.starts_with(['*', '$'])).collect();
            self.sent.lock().unwrap().push((command.name(), limits.decided_at, before));
            Some(match (self.reply)(trip.key, &words) {
                Reply::Lost => {
                    Err(Failure::Lost(TransportError::new(std::io::ErrorKind::ConnectionReset, "on purpose")))
                }
                Reply::Unsent => {
                    let error = TransportError::new(std::io::ErrorKind::NotConnected, "on purpose");
                    Err(Failure::unreachable(error).after(Self::WAITED))
                }
                Reply::Refused(_) => Err(Failure::Refused(Refusal::new("ERR on purpose"))),
                reply => Ok(reply),
            })
        };
        assert!(!trip.transacts(), "Classic has no transactions");
        let own = reply(trip.command, trip.before.copied());
        let behind = trip.behind.and_then(|behind| reply(behind, None));
        Sent { reply: own, behind, ..Sent::default() }
    }

    fn send_all(&self, trips: &[KeyTrip<'_>], limits: &Limits<'_>) -> Vec<Sent> {
        trips.iter().map(|trip| self.send(trip, limits)).collect()
    }

    fn node_of(&self, _: &Key) -> NodeId {
        NodeId::ONLY
    }

    fn has_slots(&self) -> bool {
        false
    }

    fn address(&self) -> Option<String> {
        None
    }

    fn wake_waiting(&self) {}

    fn probe(&self, _: &Key, _: Protocol, _: &Limits<'_>) -> Result<(), Failure> {
        Ok(())
    }

    fn knows(&self, _: Protocol) -> bool {
        true
    }

    fn best_protocol(&self) -> Protocol {
        Protocol::Auto.on(None)
    }

    fn is_known(&self) -> bool {
        true
    }

    fn server_version(&self) -> Option<Version> {
        None
    }

    fn can_listen(&self) -> bool {
        false
    }

    fn listen(&self, _: NodeId, _: &[u8], _: &mut dyn FnMut(Heard<'_>) -> bool) -> Result<(), Failure> {
        unreachable!("it cannot")
    }

    fn command_timeout(&self) -> Duration {
        Duration::from_secs(2)
    }

    fn retry_for(&self) -> Duration {
        Duration::from_secs(5)
    }
}
