//! One run of the search: clients, servers, and what is on its way between them.

use std::mem;
use std::time::Duration;

use super::{CLIENTS, Conditions, EXPIRATION, Flaw};
use setnx_lock_proto::lease::Lease;
use setnx_lock_proto::quorum::{Answers, QuorumTerms, Verdict};
use setnx_lock_proto::unresolved::Unresolved;
use setnx_lock_proto::values::{Nonce, Now, Protocol, State, Tag, Terms, Uptime, ValueBytes, Wall};

/// The wall clock of the first client shows this when the search begins.
const EPOCH: u64 = 1_795_000_000_000;

#[derive(Debug, Default)]
struct Server {
    key: Option<ValueBytes>,
    /// When it grants locks again.
    settled: u64,
}

#[derive(Debug)]
struct Client {
    /// The number of its call, or of its next one.
    call: u64,
    state: ClientState,
    /// What was granted: what is left of these leases.
    answers: Answers<Lease, ()>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClientState {
    Idle,
    Asks,
    Holds,
    /// It held the lock, and its leases have ended.
    HasHeld,
}

impl Client {
    fn of(call: u64, answers: Answers<Lease, ()>) -> Self {
        Self { call, state: ClientState::Idle, answers }
    }
}

/// What is on its way between a client and a server.
#[derive(Debug)]
enum Message {
    /// A thread of the client is to ask.
    Queued,
    /// The request, with the lease that it begins.
    Request(Lease),
    Reply(Lease, bool),
    /// A request whose client does not wait for the reply any more.
    LateRequest(Lease),
    /// The reply was lost, or the request, or it comes late: the client looks whether the key is its own.
    Doubt(ValueBytes, Unresolved),
    GiveBack(Lease),
}

#[derive(Debug)]
struct Sent {
    client: usize,
    call: u64,
    server: usize,
    message: Message,
}

#[derive(Debug)]
pub(super) struct Run {
    conditions: Conditions,
    terms: QuorumTerms,
    now: u64,
    nonces: u64,
    servers: Vec<Server>,
    clients: Vec<Client>,
    messages: Vec<Sent>,
    /// The values that cannot be given back: their client has crashed, their lease has passed, or what would have
    /// deleted the key was lost.
    abandoned: Vec<ValueBytes>,
    has_deleted_another_s: bool,
    pub(super) held: u64,
    pub(super) given_back: u64,
}

pub(super) type Step = (u16, usize, u64);

impl Run {
    pub(super) fn new(conditions: Conditions) -> Self {
        let Conditions { servers, allowance, flaw, .. } = conditions;
        let mut terms = QuorumTerms::of(servers, Duration::from_millis(EXPIRATION - allowance));
        if flaw == Some(Flaw::Half) {
            terms.majority = servers / 2;
        }
        Self {
            conditions,
            terms,
            now: 0,
            nonces: 0,
            servers: (0..servers).map(|_| Server::default()).collect(),
            clients: (0..CLIENTS).map(|_| Client::of(0, Answers::of(servers, terms))).collect(),
            messages: Vec::new(),
            abandoned: Vec::new(),
            has_deleted_another_s: false,
            held: 0,
            given_back: 0,
        }
    }

    /// Performs the steps. Returns the law that is broken.
    pub(super) fn perform(&mut self, steps: &[Step]) -> Option<&'static str> {
        for (what, which, pause) in steps {
            self.now += pause;
            match what {
                0..=1 => self.client(which % CLIENTS),
                2..=20 => self.message(*which),
                21 => self.lose(*which),
                22 => self.crash(which % CLIENTS),
                _ => self.restart(which % self.servers.len()),
            }
            if let Some(law) = self.look_at_holders() {
                return Some(law);
            }
        }
        self.finish()
    }

    fn look_at_holders(&mut self) -> Option<&'static str> {
        if self.has_deleted_another_s {
            return Some("the key of another client is deleted");
        }
        let mut holders = 0;
        for index in 0..CLIENTS {
            let (state, left) = (self.clients[index].state, self.remaining(index));
            match state {
                ClientState::Holds if left.is_zero() => self.clients[index].state = ClientState::HasHeld,
                ClientState::Holds => holders += 1,
                ClientState::HasHeld if !left.is_zero() => return Some("a hold goes on that had ended"),
                ClientState::Idle | ClientState::Asks | ClientState::HasHeld => {}
            }
        }
        (holders > 1).then_some("two clients hold the lock")
    }

    /// Ends all calls and delivers what is on its way: no key is left that its owner could have given back.
    fn finish(&mut self) -> Option<&'static str> {
        for client in 0..CLIENTS {
            self.end(client);
        }
        // A reply that leads to a doubt, which leads to a grant that is given back.
        for _ in 0..5 {
            for _ in 0..self.messages.len() {
                self.message(0);
            }
        }
        let mut left = self.servers.iter().filter_map(|server| server.key.clone());
        left.any(|value| !self.abandoned.contains(&value)).then_some("a key is left that is not given back")
    }

    fn remaining(&self, client: usize) -> Duration {
        self.clients[client].answers.remaining(self.left(client))
    }

    /// What is left of a lease of this client.
    fn left(&self, client: usize) -> impl Fn(&Lease) -> Duration + use<> {
        let (flaw, now) = (self.conditions.flaw, self.now(client));
        move |lease| match flaw {
            Some(Flaw::CountsOnly) => Duration::from_millis(EXPIRATION),
            _ => lease.end.map_or(Duration::ZERO, |end| end.remaining(now)),
        }
    }

    fn now(&self, client: usize) -> Now {
        let wall = EPOCH + self.now - self.conditions.clock_difference * client as u64;
        Now { wall: Wall(wall * 1000), uptime: Uptime::of(Duration::from_millis(self.now)) }
    }

    fn lease(&mut self, client: usize) -> Lease {
        let allowance = Duration::from_millis(self.conditions.allowance);
        let terms = Terms { allowance, ..Terms::expiring_after(Duration::from_millis(EXPIRATION)) };
        self.nonces += 1;
        let nonce = Nonce::from_random(self.nonces);
        let tag = Tag { nonce, name: (client == 1).then(|| "worker:7".into()) };
        Lease::of(&terms, Protocol::Classic, &tag, self.now(client))
    }

    /// A client begins a call, decides, or releases.
    fn client(&mut self, index: usize) {
        let (servers, left) = (self.conditions.servers, self.left(index));
        let client = &mut self.clients[index];
        match client.state {
            ClientState::Idle => {
                let call = client.call;
                client.state = ClientState::Asks;
                let queued = |server| Sent { client: index, call, server, message: Message::Queued };
                self.messages.extend((0..servers).map(queued));
            }
            ClientState::Holds | ClientState::HasHeld => self.end(index),
            ClientState::Asks => match client.answers.judge(left) {
                Verdict::Agreed => {
                    client.state = ClientState::Holds;
                    self.held += 1;
                }
                Verdict::Failed => {
                    self.given_back += 1;
                    self.end(index);
                }
                Verdict::Open(_) => {}
            },
        }
    }

    /// Ends the call of a client. What is granted later is given back as well.
    fn end(&mut self, index: usize) {
        let Client { call, mut answers, .. } = self.replace(index);
        let give_back =
            |(server, lease)| Sent { client: index, call, server, message: Message::GiveBack(lease) };
        self.messages.extend(answers.take_grants().into_iter().map(give_back));
    }

    /// Puts an idle client in the place of one. Returns that.
    fn replace(&mut self, index: usize) -> Client {
        let answers = Answers::of(self.conditions.servers, self.terms);
        let next = Client::of(self.clients[index].call + 1, answers);
        mem::replace(&mut self.clients[index], next)
    }

    /// Takes a message one stage on.
    fn message(&mut self, which: usize) {
        if self.messages.is_empty() {
            return;
        }
        let at = which % self.messages.len();
        let Sent { client, call, server, message } = self.messages.remove(at);
        let is_current = self.clients[client].call == call;
        let send = |run: &mut Self, message| run.messages.push(Sent { client, call, server, message });
        match message {
            Message::Queued if !is_current => {}
            Message::Queued => {
                let lease = self.lease(client);
                send(self, Message::Request(lease));
            }
            Message::Request(lease) => {
                let granted = self.set(client, server, &lease);
                send(self, Message::Reply(lease, granted));
            }
            Message::LateRequest(lease) => {
                if self.set(client, server, &lease) && lease.has_passed(self.now(client)) {
                    self.abandoned.push(lease.value.clone());
                }
            }
            Message::Reply(mut lease, true) => {
                let end = match self.conditions.flaw {
                    Some(Flaw::LeaseFromReply) => self.lease(client).end,
                    _ => lease.end,
                };
                lease.end = end;
                self.granted(client, call, server, lease);
            }
            Message::Reply(_, false) if is_current => self.clients[client].answers.add(server, Err(())),
            Message::Reply(_, false) => {}
            Message::Doubt(value, mut unresolved) => {
                let found = self.servers[server].key.clone();
                if !unresolved.may_hold(self.now(client)) {
                    self.abandoned.push(value);
                } else if let Some((lease, _)) = unresolved.take(found.as_deref()) {
                    send(self, Message::GiveBack(lease));
                } else {
                    send(self, Message::Doubt(value, unresolved));
                }
            }
            Message::GiveBack(lease) => self.delete(client, server, &lease),
        }
    }

    /// SETNX, and the takeover of an expired key by a transaction.
    fn set(&mut self, client: usize, server: usize, lease: &Lease) -> bool {
        let wall = self.now(client).wall;
        let Server { key, settled } = &mut self.servers[server];
        let is_free = *settled <= self.now
            && match State::of_value(key.as_deref()) {
                State::Until { until, .. } => until < wall,
                state => state == State::Absent,
            };
        if is_free {
            *key = Some(lease.value.clone());
        }
        is_free
    }

    /// DEL, by a transaction if not in Classic.
    fn delete(&mut self, client: usize, server: usize, lease: &Lease) {
        let Conditions { classic, allowance, flaw, .. } = self.conditions;
        let late = if flaw == Some(Flaw::DeletesLate) { allowance } else { 0 };
        let Now { wall, uptime } = self.now(client);
        let late = Duration::from_millis(late);
        let judged = Now { wall: wall.before(late), uptime: uptime.before(late) };
        let key = &mut self.servers[server].key;
        if !classic {
            key.take_if(|value| *value == lease.value);
        } else if !lease.has_passed(judged) {
            self.has_deleted_another_s |= key.take().is_some_and(|value| value != lease.value);
        } else {
            self.abandoned.push(lease.value.clone());
        }
    }

    /// A grant reaches its client, which keeps it, or gives it back.
    fn granted(&mut self, client: usize, call: u64, server: usize, lease: Lease) {
        let (flaw, left) = (self.conditions.flaw, self.left(client));
        let current = &mut self.clients[client];
        if current.call == call && (current.answers.wants(left) || flaw == Some(Flaw::RevivesHolds)) {
            current.answers.add(server, Ok(lease));
        } else if flaw != Some(Flaw::KeepsLateGrants) {
            self.messages.push(Sent { client, call, server, message: Message::GiveBack(lease) });
        }
    }

    /// Loses a request or a reply. The client learns of it, and looks.
    fn lose(&mut self, which: usize) {
        if self.messages.is_empty() {
            return;
        }
        let at = which % self.messages.len();
        let Sent { client, call, server, message } = self.messages.remove(at);
        let lease = match message {
            Message::Request(lease) => {
                let message = Message::LateRequest(lease.clone());
                self.messages.push(Sent { client, call, server, message });
                lease
            }
            Message::Reply(lease, _) => lease,
            Message::GiveBack(lease) => return self.abandoned.push(lease.value.clone()),
            Message::LateRequest(_) => return,
            message @ (Message::Queued | Message::Doubt(..)) => {
                return self.messages.push(Sent { client, call, server, message });
            }
        };
        let now = self.now(client);
        if self.clients[client].call == call {
            self.clients[client].answers.add(server, Err(()));
        }
        if self.conditions.flaw != Some(Flaw::ForgetsLostReplies) {
            let (value, mut unresolved) = (lease.value.clone(), Unresolved::default());
            unresolved.add(lease, None, now);
            self.messages.push(Sent { client, call, server, message: Message::Doubt(value, unresolved) });
        }
    }

    /// A client crashes with all that it has, and another takes its place.
    fn crash(&mut self, index: usize) {
        let Client { answers, .. } = self.replace(index);
        self.abandoned.extend(answers.granted.iter().map(|(_, lease)| lease.value.clone()));
        let lost = self.messages.iter().filter(|sent| sent.client == index);
        self.abandoned.extend(lost.filter_map(|sent| match &sent.message {
            Message::Request(lease)
            | Message::LateRequest(lease)
            | Message::Reply(lease, _)
            | Message::GiveBack(lease) => Some(lease.value.clone()),
            Message::Doubt(value, _) => Some(value.clone()),
            Message::Queued => None,
        }));
        // What is on its way to a server arrives.
        self.messages.retain(|sent| {
            sent.client != index || matches!(sent.message, Message::Request(_) | Message::LateRequest(_))
        });
    }

    /// A server restarts without its data.
    fn restart(&mut self, server: usize) {
        self.servers[server] = Server { key: None, settled: self.now + self.conditions.settles };
    }
}
