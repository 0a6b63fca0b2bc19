//! One run of the random search: three clients, their clocks, one key, and the commands and replies on their way.

use std::fmt;
use std::time::Duration;

use crate::clock::{Now, Uptime, Wall};
use crate::options::{LockOptions, Protocol};
use crate::protocol::acquire::{Acquiring, Action, Observation, Params, first_command};
use crate::protocol::lease::Lease;
use crate::protocol::release::{Release, Releasing};
use crate::protocol::renew::{Renewal, Renewed, Renewing};
use crate::protocol::simulated::{Server, Watching};
use crate::protocol::{Command, Reply, Request, Rules as _, Step};
use crate::value::Nonce;
use crate::version::Version;

const START: u64 = 1_795_000_000_000_000;
const MILLI: u64 = 1000;

/// The conditions of a run. Times are in milliseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Conditions {
    pub(super) protocols: [Protocol; 3],
    pub(super) expirations: [u64; 3],
    /// How far apart the clocks are at most.
    pub(super) skew: u64,
    /// The takeover margin.
    pub(super) margin: u64,
    /// How long a command may take from being sent to being carried out.
    pub(super) delay: u64,
    /// Whether a command may wait for a connection before it is sent, for any time, unless its time is limited.
    pub(super) waits: bool,
}

/// Which client, which of its possible steps, and after how many milliseconds.
pub(super) type Choice = (usize, u8, u64);

#[derive(Debug)]
enum Doing {
    Nothing,
    /// There is no connection yet.
    Waiting(Request),
    /// A command is on its way.
    Sent {
        command: Command,
        since: u64,
    },
    /// The command was carried out, and the reply is on its way.
    Replied(Reply),
    Asleep,
    Holding(Lease),
}

#[derive(Debug)]
struct Client {
    protocol: Protocol,
    /// The version that its connection reported.
    server: Option<Version>,
    /// The protocol that its attempt decided on.
    holds_by: Protocol,
    expiration: Duration,
    skew: u64,
    doing: Doing,
    attempt: Option<Acquiring>,
    releasing: Option<Releasing>,
    /// With the lease that is to be replaced.
    renewing: Option<(Renewing, Lease)>,
    watching: Watching,
    /// What it saw last of the lock, and when.
    observation: Option<Observation>,
    /// The lease of the command that another client has sent for it.
    asked_for: Option<Lease>,
}

#[derive(Debug)]
pub(super) struct Run {
    conditions: Conditions,
    /// True time, in microseconds.
    time: u64,
    server: Server,
    clients: Vec<Client>,
    /// What happened; only on request, since writing it takes longer than the rest of the run.
    log: Option<Vec<String>>,
    /// How often a client acquired the lock, and how often a holder's lease was renewed.
    pub(super) grants: u64,
    pub(super) renewals: u64,
    nonces: u64,
}

impl Run {
    fn new(conditions: Conditions) -> Self {
        let clients = (0..3).map(|n| Client {
            protocol: conditions.protocols[n],
            // Two of three know that the server supports Watched.
            server: (n > 0).then_some(Version::new(2, 4, 18)),
            holds_by: conditions.protocols[n],
            expiration: Duration::from_millis(conditions.expirations[n]),
            skew: conditions.skew * MILLI * n as u64 / 2,
            doing: Doing::Nothing,
            attempt: None,
            releasing: None,
            renewing: None,
            watching: Watching::default(),
            observation: None,
            asked_for: None,
        });
        Self {
            conditions,
            time: START,
            server: Server::holding(Some(b"1532000016.5".to_vec())),
            clients: clients.collect(),
            log: None,
            grants: 0,
            renewals: 0,
            nonces: 0,
        }
    }

    /// Performs the steps until there is an overlap. Returns the run, and whether there is one.
    pub(super) fn perform(conditions: Conditions, steps: &[Choice]) -> (Self, bool) {
        let mut run = Self::new(conditions);
        let overlap = steps.iter().any(|(n, choice, millis)| run.step(*n, *choice, *millis));
        (run, overlap)
    }

    /// Performs the steps again, and returns what happened.
    pub(super) fn log(conditions: Conditions, steps: &[Choice]) -> String {
        let mut run = Self { log: Some(Vec::new()), ..Self::new(conditions) };
        steps.iter().any(|(n, choice, millis)| run.step(*n, *choice, *millis));
        run.log.unwrap_or_default().join("\n")
    }

    fn now(&self, n: usize) -> Now {
        let uptime = Duration::from_micros(self.time - START);
        Now { wall: Wall(self.time + self.clients[n].skew), uptime: Uptime(uptime) }
    }

    /// Lets client `n` take one of its possible steps, after some time. Returns whether two clients hold the lock.
    fn step(&mut self, n: usize, choice: u8, millis: u64) -> bool {
        self.pass(millis * MILLI);
        let now = self.now(n);
        match std::mem::replace(&mut self.clients[n].doing, Doing::Nothing) {
            Doing::Nothing => self.start(n, choice, now),
            Doing::Waiting(Request { before, .. }) if before.is_some_and(|end| end.has_passed(now)) => {
                self.reply(n, Reply::TooLate);
            }
            Doing::Waiting(_) if one_in(16, choice) => self.reply(n, Reply::Unsent),
            Doing::Waiting(Request { command, .. }) => {
                self.clients[n].doing = Doing::Sent { command, since: self.time };
            }
            Doing::Sent { command, .. } if one_in(8, choice) => {
                drop(command); // The request is lost.
                self.reply(n, Reply::Lost);
            }
            Doing::Sent { command, .. } => {
                let reply = self.carry_out(n, &command);
                self.clients[n].doing = Doing::Replied(reply);
            }
            Doing::Replied(_) if one_in(8, choice) => self.reply(n, Reply::Lost),
            Doing::Replied(reply) => self.reply(n, reply),
            Doing::Asleep => {
                // A hint may be old, or of another's release.
                let go_on = if one_in(5, choice) { Acquiring::freed } else { Acquiring::woken };
                let action = self.clients[n].attempt.as_mut().map(|attempt| go_on(attempt, now));
                self.act(n, action);
            }
            // It crashes, and starts again as another holder.
            Doing::Holding(_) if one_in(4, choice) => {}
            Doing::Holding(lease) if one_in(3, choice) => self.clients[n].doing = Doing::Holding(lease),
            Doing::Holding(lease) if one_in(2, choice) => self.renew(n, lease, choice, now),
            Doing::Holding(lease) => {
                let (releasing, step) =
                    Releasing::start(self.clients[n].holds_by, self.clients[n].protocol, &lease, now);
                self.clients[n].releasing = Some(releasing);
                self.act_on_release(n, step);
            }
        }
        self.holders().count() > 1
    }

    /// Lets time pass. A command that has been on its way for the longest delay is carried out.
    fn pass(&mut self, time: u64) {
        let end = self.time + time;
        let limit = self.conditions.delay * MILLI;
        loop {
            let due = |client: &Client| match client.doing {
                Doing::Sent { since, .. } => Some(since + limit),
                _ => None,
            };
            let next = (0..3).filter_map(|n| due(&self.clients[n]).map(|at| (at, n))).min();
            let Some((at, n)) = next.filter(|(at, _)| *at <= end) else { break };
            self.time = self.time.max(at);
            if let Doing::Sent { command, .. } = std::mem::replace(&mut self.clients[n].doing, Doing::Nothing)
            {
                let reply = self.carry_out(n, &command);
                self.clients[n].doing = Doing::Replied(reply);
            }
        }
        self.time = self.time.max(end);
    }

    fn holders(&self) -> impl Iterator<Item = usize> {
        (0..3).filter(
            |n| matches!(&self.clients[*n].doing, Doing::Holding(lease) if !lease.has_passed(self.now(*n))),
        )
    }

    fn start(&mut self, n: usize, choice: u8, now: Now) {
        let other = usize::from(choice / 6) % 3;
        let observation = self.clients[other].observation.clone().filter(|_| one_in(6, choice));
        let nonce = self.fresh_nonce();
        let options = self.options(n);
        let client = &mut self.clients[n];
        let params = Params { options, deadline: None, unreachable_timeout: Duration::from_secs(5), nonce };
        let (attempt, action) = match observation {
            Some(observation) => Acquiring::behind(params, observation, now),
            None => Acquiring::start(params, now),
        };
        client.attempt = Some(attempt);
        self.act(n, Some(action));
    }

    fn options(&self, n: usize) -> LockOptions {
        let Client { expiration, protocol, .. } = self.clients[n];
        let options = LockOptions::expiring_after(expiration).protocol(protocol).wait_forever();
        options.takeover_margin(Duration::from_millis(self.conditions.margin))
    }

    /// A client that deletes the key asks for one that sleeps, whose command is on its way for as long as it may be here.
    fn ask_for_another(&mut self, n: usize) {
        let asleep = |client: &Client| {
            let attempt = client.attempt.as_ref().filter(|attempt| !attempt.is_in_doubt());
            matches!(client.doing, Doing::Asleep) && attempt.is_some()
        };
        let Some(other) = (0..3).find(|other| *other != n && asleep(&self.clients[*other])) else { return };
        let (nonce, now) = (self.fresh_nonce(), self.now(n));
        let (lease, request) = first_command(&self.options(other), nonce, now);
        self.note(other, format_args!("is asked for by client {n}: {request:?}"));
        self.clients[other].asked_for = Some(lease);
        self.clients[other].doing = self.sent(request);
    }

    /// The holder replaces its lease by one of any client's expiration.
    fn renew(&mut self, n: usize, lease: Lease, choice: u8, now: Now) {
        let expiration = Duration::from_millis(self.conditions.expirations[usize::from(choice / 5) % 3]);
        let nonce = self.fresh_nonce();
        let client = &mut self.clients[n];
        let (renewing, step) = Renewing::start(client.holds_by, &lease, Some(expiration), nonce, now);
        client.renewing = Some((renewing, lease));
        self.act_on_renewal(n, step);
    }

    fn reply(&mut self, n: usize, reply: Reply) {
        let now = self.now(n);
        let client = &mut self.clients[n];
        if let Some(releasing) = &mut client.releasing {
            let step = releasing.reply(&reply, now);
            self.act_on_release(n, step);
        } else if let Some((renewing, _)) = &mut client.renewing {
            let step = renewing.reply(&reply, now);
            self.act_on_renewal(n, step);
        } else if let (Some(attempt), Some(lease)) = (&mut client.attempt, client.asked_for.take()) {
            let action = attempt.answered(lease, reply, client.server, now);
            client.holds_by = attempt.protocol();
            self.act(n, Some(action));
        } else if let Some(attempt) = &mut client.attempt {
            if matches!(reply, Reply::Integer(_) | Reply::Bulk(_)) {
                attempt.decide_protocol(client.server);
                client.holds_by = attempt.protocol();
            }
            let action = attempt.reply(reply, now);
            client.observation = Some(Observation { seen: attempt.seen.clone(), at: now.uptime });
            self.act(n, Some(action));
        }
    }

    fn act(&mut self, n: usize, action: Option<Action>) {
        self.note(n, format_args!("{action:?}"));
        self.clients[n].doing = match action {
            Some(Action::Send(request)) => self.sent(request),
            Some(Action::Sleep(_)) => Doing::Asleep,
            Some(Action::Held(lease)) => {
                self.grants += 1;
                Doing::Holding(lease)
            }
            Some(Action::GiveUp(_)) | None => Doing::Nothing,
        };
    }

    fn act_on_release(&mut self, n: usize, step: Step<Release>) {
        self.note(n, format_args!("{step:?}"));
        match step {
            Step::Send(request) => {
                if request.command.deletes() {
                    self.ask_for_another(n);
                }
                self.clients[n].doing = self.sent(request);
            }
            Step::Done(_) | Step::GiveUp(_) => self.clients[n].releasing = None,
        }
    }

    fn act_on_renewal(&mut self, n: usize, step: Step<Renewal>) {
        self.note(n, format_args!("{step:?}"));
        let outcome = match step {
            Step::Send(request) => {
                self.clients[n].doing = self.sent(request);
                return;
            }
            Step::Done(renewal) => Some(renewal),
            Step::GiveUp(_) => None,
        };
        let Some((_, old)) = self.clients[n].renewing.take() else {
            unreachable!("a renewal is in progress")
        };
        self.clients[n].doing = match outcome {
            Some(Renewal::Renewed(Renewed { lease, .. })) => {
                self.renewals += 1;
                Doing::Holding(lease)
            }
            Some(Renewal::NotRenewed) => Doing::Holding(old),
            Some(Renewal::Lost { .. }) | None => Doing::Nothing,
        };
    }

    /// A nonce that is far from all others and their successors.
    fn fresh_nonce(&mut self) -> Nonce {
        self.nonces += 1_000_000;
        Nonce::from_random(self.nonces)
    }

    fn sent(&self, request: Request) -> Doing {
        if self.conditions.waits {
            Doing::Waiting(request)
        } else {
            Doing::Sent { command: request.command, since: self.time }
        }
    }

    fn note(&mut self, n: usize, what: fmt::Arguments<'_>) {
        let millis = (self.time - START) / MILLI;
        if let Some(log) = &mut self.log {
            log.push(format!("{millis:>6} ms  client {n} {what}"));
        }
    }

    fn carry_out(&mut self, n: usize, command: &Command) -> Reply {
        let now = Duration::from_micros(self.time - START);
        let mut watching = self.clients[n].watching;
        let reply = self.server.carry_out(now, &mut watching, command);
        self.clients[n].watching = watching;
        self.note(n, format_args!("carried out: {command:?}, reply: {reply:?}"));
        reply
    }
}

fn one_in(n: u8, choice: u8) -> bool {
    choice.is_multiple_of(n)
}
