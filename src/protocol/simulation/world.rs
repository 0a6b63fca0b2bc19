//! A world of the search: three clients, their clocks, one key, and what is on its way.

use std::fmt;
use std::time::Duration;

use crate::clock::{Now, Uptime, Wall};
use crate::options::{LockOptions, Protocol};
use crate::protocol::acquire::{Acquiring, Action, Observation, Params};
use crate::protocol::lease::Lease;
use crate::protocol::release::{Release, Releasing};
use crate::protocol::renew::{Renewal, Renewed, Renewing};
use crate::protocol::simulated::{Server, Watching};
use crate::protocol::{Command, Reply, Request, Rules as _, Step};
use crate::value::Nonce;
use crate::version::Version;

const START: u64 = 1_795_000_000_000_000;
const MILLI: u64 = 1000;

/// What a world allows, in milliseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Laws {
    pub(super) protocols: [Protocol; 3],
    pub(super) expirations: [u64; 3],
    /// How far clocks are apart at most.
    pub(super) skew: u64,
    /// How much longer than its time a lock is left alone.
    pub(super) margin: u64,
    /// How long a command may take from being sent to being carried out.
    pub(super) delay: u64,
    /// Whether a command may wait for a connection before it is sent, for any time, unless it is bound to one.
    pub(super) waits: bool,
}

/// Which client, which of its possible steps, and after how many milliseconds.
pub(super) type Choice = (usize, u8, u64);

#[derive(Debug)]
enum Doing {
    Nothing,
    /// There is no connection yet.
    Waiting(Request),
    /// A command is on its way since then.
    Sent {
        command: Command,
        since: u64,
    },
    /// It was carried out, and this is on its way back.
    Answered(Reply),
    Asleep,
    Inside(Lease),
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
}

#[derive(Debug)]
pub(super) struct World {
    laws: Laws,
    /// True time, in microseconds.
    time: u64,
    server: Server,
    clients: Vec<Client>,
    /// What happened, if it is to be read: writing it takes longer than all the rest.
    log: Option<Vec<String>>,
    /// How often a client acquired the lock, and how often a holder's lease was renewed.
    pub(super) entries: u64,
    pub(super) renewals: u64,
    nonces: u64,
}

impl World {
    fn new(laws: Laws) -> Self {
        let clients = (0..3).map(|n| Client {
            protocol: laws.protocols[n],
            // Two of three know that the server supports Watched.
            server: (n > 0).then_some(Version::new(2, 4, 18)),
            holds_by: laws.protocols[n],
            expiration: Duration::from_millis(laws.expirations[n]),
            skew: laws.skew * MILLI * n as u64 / 2,
            doing: Doing::Nothing,
            attempt: None,
            releasing: None,
            renewing: None,
            watching: Watching::default(),
            observation: None,
        });
        Self {
            laws,
            time: START,
            server: Server::holding(Some(b"1532000016.5".to_vec())),
            clients: clients.collect(),
            log: None,
            entries: 0,
            renewals: 0,
            nonces: 0,
        }
    }

    /// Plays the steps, and returns the world, and whether two were inside at the end of one, which is the last.
    pub(super) fn play(laws: Laws, steps: &[Choice]) -> (Self, bool) {
        let mut world = Self::new(laws);
        let overlap = steps.iter().any(|(n, choice, millis)| world.step(*n, *choice, *millis));
        (world, overlap)
    }

    /// Plays them again, and returns what happened.
    pub(super) fn log(laws: Laws, steps: &[Choice]) -> String {
        let mut world = Self { log: Some(Vec::new()), ..Self::new(laws) };
        steps.iter().any(|(n, choice, millis)| world.step(*n, *choice, *millis));
        world.log.unwrap_or_default().join("\n")
    }

    fn now(&self, n: usize) -> Now {
        let uptime = Duration::from_micros(self.time - START);
        Now { wall: Wall(self.time + self.clients[n].skew), uptime: Uptime(uptime) }
    }

    /// Lets client `n` take one of its possible steps, after some time. Returns whether two are inside.
    fn step(&mut self, n: usize, choice: u8, millis: u64) -> bool {
        self.pass(millis * MILLI);
        let now = self.now(n);
        match std::mem::replace(&mut self.clients[n].doing, Doing::Nothing) {
            Doing::Nothing => self.start(n, choice, now),
            Doing::Waiting(Request { before, .. }) if before.is_some_and(|end| end.has_passed(now)) => {
                self.answer(n, Reply::TooLate);
            }
            Doing::Waiting(_) if one_in(16, choice) => self.answer(n, Reply::Unsent),
            Doing::Waiting(Request { command, .. }) => {
                self.clients[n].doing = Doing::Sent { command, since: self.time };
            }
            Doing::Sent { command, .. } if one_in(8, choice) => {
                drop(command); // lost on its way
                self.answer(n, Reply::Lost);
            }
            Doing::Sent { command, .. } => {
                let reply = self.carry_out(n, &command);
                self.clients[n].doing = Doing::Answered(reply);
            }
            Doing::Answered(_) if one_in(8, choice) => self.answer(n, Reply::Lost),
            Doing::Answered(reply) => self.answer(n, reply),
            Doing::Asleep => {
                // A hint may be old, or of another's release.
                let go_on = if one_in(5, choice) { Acquiring::freed } else { Acquiring::woken };
                let action = self.clients[n].attempt.as_mut().map(|attempt| go_on(attempt, now));
                self.act(n, action);
            }
            // It crashes, and comes back as another holder.
            Doing::Inside(_) if one_in(4, choice) => {}
            Doing::Inside(lease) if one_in(3, choice) => self.clients[n].doing = Doing::Inside(lease),
            Doing::Inside(lease) if one_in(2, choice) => self.renew(n, lease, choice, now),
            Doing::Inside(lease) => {
                let (releasing, step) = Releasing::start(self.clients[n].holds_by, &lease, now);
                self.clients[n].releasing = Some(releasing);
                self.act_on_release(n, step);
            }
        }
        self.inside().count() > 1
    }

    /// Time goes on, and what has been on its way for as long as the laws allow is carried out.
    fn pass(&mut self, time: u64) {
        let end = self.time + time;
        let limit = self.laws.delay * MILLI;
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
                self.clients[n].doing = Doing::Answered(reply);
            }
        }
        self.time = self.time.max(end);
    }

    fn inside(&self) -> impl Iterator<Item = usize> {
        (0..3).filter(
            |n| matches!(&self.clients[*n].doing, Doing::Inside(lease) if !lease.has_passed(self.now(*n))),
        )
    }

    fn start(&mut self, n: usize, choice: u8, now: Now) {
        let other = usize::from(choice / 6) % 3;
        let observation = self.clients[other].observation.clone().filter(|_| one_in(6, choice));
        let nonce = self.fresh_nonce();
        let client = &mut self.clients[n];
        let options = LockOptions::expiring_after(client.expiration).protocol(client.protocol).wait_forever();
        let params = Params {
            options: options.takeover_margin(Duration::from_millis(self.laws.margin)),
            deadline: None,
            unreachable_timeout: Duration::from_secs(5),
            nonce,
        };
        let (attempt, action) = match observation {
            Some(observation) => Acquiring::behind(params, observation, now),
            None => Acquiring::start(params, now),
        };
        client.attempt = Some(attempt);
        self.act(n, Some(action));
    }

    /// The holder replaces its own lease by one of any client's expiration.
    fn renew(&mut self, n: usize, lease: Lease, choice: u8, now: Now) {
        let expiration = Duration::from_millis(self.laws.expirations[usize::from(choice / 5) % 3]);
        let nonce = self.fresh_nonce();
        let client = &mut self.clients[n];
        let (renewing, step) = Renewing::start(client.holds_by, &lease, Some(expiration), nonce, now);
        client.renewing = Some((renewing, lease));
        self.act_on_renewal(n, step);
    }

    fn answer(&mut self, n: usize, reply: Reply) {
        let now = self.now(n);
        let client = &mut self.clients[n];
        if let Some(releasing) = &mut client.releasing {
            let step = releasing.reply(&reply, now);
            self.act_on_release(n, step);
        } else if let Some((renewing, _)) = &mut client.renewing {
            let step = renewing.reply(&reply, now);
            self.act_on_renewal(n, step);
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
                self.entries += 1;
                Doing::Inside(lease)
            }
            Some(Action::GiveUp(_)) | None => Doing::Nothing,
        };
    }

    fn act_on_release(&mut self, n: usize, step: Step<Release>) {
        self.note(n, format_args!("{step:?}"));
        match step {
            Step::Send(request) => self.clients[n].doing = self.sent(request),
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
        let Some((_, old)) = self.clients[n].renewing.take() else { unreachable!("it was renewing") };
        self.clients[n].doing = match outcome {
            Some(Renewal::Renewed(Renewed { lease, .. })) => {
                self.renewals += 1;
                Doing::Inside(lease)
            }
            Some(Renewal::NotRenewed) => Doing::Inside(old),
            Some(Renewal::Lost { .. }) | None => Doing::Nothing,
        };
    }

    /// A nonce that is far from all others, with the values written since.
    fn fresh_nonce(&mut self) -> Nonce {
        self.nonces += 1_000_000;
        Nonce::from_random(self.nonces)
    }

    fn sent(&self, request: Request) -> Doing {
        if self.laws.waits {
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
        self.note(n, format_args!("has {command:?} carried out: {reply:?}"));
        reply
    }
}

fn one_in(n: u8, choice: u8) -> bool {
    choice.is_multiple_of(n)
}
