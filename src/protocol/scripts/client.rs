//! A client in a story: what it was declared with, what it is in the middle of, and how what it does next is told.

use std::collections::VecDeque;
use std::time::Duration;

use super::{Told, time};
use crate::options::{Protocol, Takeover};
use crate::protocol::acquire::{Acquiring, Action, Note};
use crate::protocol::lease::Lease;
use crate::protocol::release::{Release, Releasing, Step};
use crate::protocol::simulated::Watching;
use crate::protocol::{Change, Command, Entry, Reply, Request};

pub(super) struct Client {
    pub(super) expiration: Option<Duration>,
    pub(super) timeout: Option<Duration>,
    pub(super) takeover: Takeover,
    pub(super) margin: Duration,
    pub(super) protocol: Protocol,
    pub(super) number: u64,
    /// How far its wall clock is ahead, in microseconds.
    pub(super) skew: i64,
    pub(super) attempt: Option<Acquiring>,
    pub(super) lease: Option<Lease>,
    /// Whether the lease is being given back.
    pub(super) releasing: Option<Releasing>,
    /// What its connection watches.
    pub(super) watching: Watching,
    pub(super) sent: Option<Command>,
    /// The values that the commands of its attempt have carried, each of which is to be carried once (I2).
    pub(super) values: Vec<Vec<u8>>,
    pub(super) answer: Option<Reply>,
    /// Requests that were lost, with what their connections watched.
    pub(super) lost: VecDeque<(Command, Watching)>,
    pub(super) asleep: bool,
}

impl Client {
    pub(super) fn declared(n: u64, options: &[&str]) -> Told<Self> {
        let mut client = Client {
            expiration: None,
            timeout: Some(Duration::from_secs(5)),
            takeover: Takeover::Expired,
            margin: Duration::ZERO,
            protocol: Protocol::Classic,
            number: n,
            skew: 0,
            attempt: None,
            lease: None,
            releasing: None,
            watching: Watching::default(),
            sent: None,
            values: Vec::new(),
            answer: None,
            lost: VecDeque::new(),
            asleep: false,
        };
        let mut options = options.iter();
        while let Some(option) = options.next() {
            match *option {
                "unexpiring" => client.expiration = None,
                "stealing" => client.takeover = Takeover::AsTheGem,
                "watched" => client.protocol = Protocol::Watched,
                "ttl" => client.protocol = Protocol::Ttl,
                "margin" => client.margin = time(options.next().ok_or("a margin of what")?)?,
                "forever" => client.timeout = None,
                "timeout" => client.timeout = Some(time(options.next().ok_or("timeout of what")?)?),
                expiration => client.expiration = Some(time(expiration)?),
            }
        }
        Ok(client)
    }

    pub(super) fn shown(&mut self, action: Action) -> String {
        let mut shown: Vec<String> = Vec::new();
        if let Some(attempt) = &mut self.attempt {
            shown.extend(attempt.notes.drain(..).map(|note| match note {
                Note::TookOver(_) => "took over".into(),
                Note::Overwrote(_) => "overwrote the winner".into(),
                Note::LateGrant => "granted too late".into(),
                Note::Stuck(content) => format!("stuck on {content:?}"),
            }));
        }
        shown.push(match action {
            Action::Send(Request { command, .. }) => {
                let name = command.name().to_owned();
                self.note_value(&command);
                self.sent = Some(command);
                name
            }
            Action::Sleep(time) => {
                self.asleep = true;
                format!("sleeps {time:?}")
            }
            Action::Held(lease) => {
                self.lease = Some(lease);
                "holds".into()
            }
            Action::GiveUp(reason) => {
                self.attempt = None;
                format!("gives up: {reason:?}")
            }
        });
        shown.join(", ")
    }

    fn note_value(&mut self, command: &Command) {
        if let Command::SetNx(Entry { value, .. })
        | Command::GetSet(value)
        | Command::Exec(Change::Set(Entry { value, .. })) = command
        {
            assert!(self.expiration.is_none() || !self.values.contains(value), "a value is sent twice");
            self.values.push(value.clone());
        }
    }

    pub(super) fn shown_release(&mut self, step: Step) -> String {
        match step {
            Step::Send(Request { command, .. }) => {
                let name = command.name().to_owned();
                self.sent = Some(command);
                name
            }
            Step::Done(release) => {
                self.releasing = None;
                match release {
                    Release::Released { certified: false } => "released".into(),
                    Release::Released { certified: true } => "released, certified".into(),
                    other => format!("released: {other:?}"),
                }
            }
            Step::GiveUp(reason) => {
                self.releasing = None;
                format!("gives up: {reason:?}")
            }
        }
    }
}
