//! A backend without a server, whose replies a test chooses.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::{
    Answers, Backend, Changed, Failure, Inspect, KeyRequest, Limits, Next, Refusal, ServerReport,
    TransportError, WatchedAll, WatchedConnection,
};
use crate::clock::Now;
use crate::key::Key;
use crate::protocol::lease::End;
use crate::protocol::{Change, Command, Reply, Request};
use crate::version::Version;

/// A command that was sent: its name, when it was decided on, and the time it was bound to.
pub(crate) type Sent = (&'static str, Now, Option<End>);

type Script = dyn Fn(&Key, &Command) -> Reply + Send + Sync;

pub(crate) struct ScriptedBackend {
    reply: Box<Script>,
    pub(crate) sent: Mutex<Vec<Sent>>,
}

impl ScriptedBackend {
    pub(crate) fn replying(reply: impl Fn(&Command) -> Reply + Send + Sync + 'static) -> Arc<Self> {
        Self::replying_for(move |_, command| reply(command))
    }

    pub(crate) fn replying_for(reply: impl Fn(&Key, &Command) -> Reply + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self { reply: Box::new(reply), sent: Mutex::default() })
    }

    /// Grants every lock, and deletes every key.
    pub(crate) fn granting() -> Arc<Self> {
        Self::replying(|_| Reply::Integer(1))
    }
}

impl Backend for ScriptedBackend {
    fn call(&self, key: &Key, request: &Request, next: Option<&Next>, limits: &Limits<'_>) -> Answers {
        let reply = |request: &Request| {
            self.sent.lock().unwrap().push((request.command.name(), limits.decided_at, request.before));
            match (self.reply)(key, &request.command) {
                Reply::Lost => {
                    Err(Failure::Lost(TransportError::new(std::io::ErrorKind::ConnectionReset, "on purpose")))
                }
                Reply::Refused => Err(Failure::Refused(Refusal::new("ERR on purpose"))),
                reply => Ok(reply),
            }
        };
        Answers { own: reply(request), next: next.map(|next| reply(&next.request)) }
    }

    fn call_all(&self, requests: &[KeyRequest], limits: &Limits<'_>) -> Vec<Answers> {
        let call =
            |KeyRequest { key, request, next }: &KeyRequest| self.call(key, request, next.as_ref(), limits);
        requests.iter().map(call).collect()
    }

    fn watch_all(&self, _: &[Key], _: &Limits<'_>) -> Result<WatchedAll, Failure> {
        unreachable!("Classic watches nothing")
    }

    fn watch(
        &self,
        _: &Key,
        _: &Command,
        _: &Limits<'_>,
    ) -> Result<(Reply, Box<dyn WatchedConnection>), Failure> {
        unreachable!("Classic watches nothing")
    }

    fn change(
        &self,
        _: &Key,
        _: &[u8],
        _: &Change,
        _: Option<&Next>,
        _: &Limits<'_>,
    ) -> Result<(Reply, Changed), Failure> {
        unreachable!("Classic watches nothing")
    }

    fn server_version(&self) -> Option<Version> {
        None
    }

    fn command_timeout(&self) -> Duration {
        Duration::from_secs(2)
    }

    fn retry_for(&self) -> Duration {
        Duration::from_secs(5)
    }
}

impl Inspect for ScriptedBackend {
    fn inspect(&self, _: &Key, _: &Limits<'_>) -> Result<Result<ServerReport, Refusal>, Failure> {
        unreachable!("it is not inspected")
    }
}

impl fmt::Debug for ScriptedBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScriptedBackend").finish_non_exhaustive()
    }
}
