//! A client in a story: what it was declared with, what it is in the middle of, and how what it does next is told.

use std::collections::VecDeque;
use std::time::Duration;

use super::{Told, time};
use crate::clock::Now;
use crate::options::{Polling, Protocol, Takeover};
use crate::protocol::acquire::{Acquiring, Action, Note, Sighting};
use crate::protocol::lease::{End, Lease};
use crate::protocol::release::{Release, Releasing, Step};
use crate::protocol::renew::{self, Found, Renewing};
use crate::protocol::simulated::Watching;
use crate::protocol::{Change, Command, Entry, Reply, Request};
use crate::value::Content;

pub(super) struct Client {
    pub(super) expiration: Option<Duration>,
    pub(super) timeout: Option<Duration>,
    pub(super) takeover: Takeover,
    pub(super) margin: Duration,
    pub(super) polling: Polling,
    pub(super) protocol: Protocol,
    pub(super) number: u64,
    /// How far its wall clock is ahead, in microseconds.
    pub(super) skew: i64,
    pub(super) attempt: Option<Acquiring>,
    /// What it saw last of the lock, and when.
    pub(super) sighting: Option<Sighting>,
    pub(super) lease: Option<Lease>,
    /// Whether the lease is being given back.
    pub(super) releasing: Option<Releasing>,
    /// Whether the lease is being replaced by a later one.
    pub(super) renewing: Option<Renewing>,
    /// How many times it was.
    pub(super) renewals: u64,
    /// What its connection watches.
    pub(super) watching: Watching,
    pub(super) sent: Option<Command>,
    /// When it is no longer to be sent.
    pub(super) before: Option<End>,
    /// The values that the commands of its attempt have carried, each of which is to be in the key once (I2).
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
            polling: Polling::every(Duration::from_millis(100)),
            protocol: Protocol::Classic,
            number: n,
            skew: 0,
            attempt: None,
            sighting: None,
            lease: None,
            releasing: None,
            renewing: None,
            renewals: 0,
            watching: Watching::default(),
            sent: None,
            before: None,
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
                "every" => {
                    client.polling = Polling::every(time(options.next().ok_or("every what")?)?);
                }
                "back-off" => {
                    let longest = time(options.next().ok_or("a back-off to what")?)?;
                    client.polling = client.polling.backing_off_to(longest);
                }
                "jitter" => {
                    let percent = options.next().and_then(|percent| percent.parse().ok());
                    client.polling = client.polling.jittered_by(percent.ok_or("a jitter of what percent")?);
                }
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
            Action::Send(request) => self.sends(request),
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

    fn sends(&mut self, Request { command, before }: Request) -> String {
        let name = command.name().to_owned();
        self.note_value(&command);
        (self.sent, self.before) = (Some(command), before);
        name
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
            Step::Send(request) => self.sends(request),
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

    pub(super) fn shown_renewal(&mut self, step: renew::Step) -> String {
        let step = match step {
            renew::Step::Send(request) => return self.sends(request),
            over => over,
        };
        self.renewing = None;
        match step {
            renew::Step::Send(_) => unreachable!("it is over"),
            renew::Step::Renewed(renewed) => {
                self.lease = Some(renewed.lease);
                match renewed.found {
                    Found::Ours => "renewed, nobody had it meanwhile",
                    Found::Unproven => "renewed",
                    Found::Nothing => "renewed, it had been cleared",
                }
                .into()
            }
            renew::Step::NotRenewed => "not renewed".into(),
            renew::Step::Lost { overwrote } => {
                self.lease = None;
                match overwrote {
                    Content::Until(_) => "lost, overwrote another's".into(),
                    other => format!("lost, overwrote {other:?}"),
                }
            }
            renew::Step::GiveUp(reason) => {
                self.lease = None;
                format!("gives up: {reason:?}")
            }
        }
    }

    /// After a look that was answered.
    pub(super) fn note_sighting(&mut self, now: Now) {
        if let Some(seen) = self.attempt.as_ref().and_then(|attempt| attempt.seen.clone()) {
            self.sighting = Some(Sighting { seen: Some(seen), at: now.uptime });
        }
    }
}
