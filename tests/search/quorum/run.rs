//! One run of the search: clients, servers, and what is on its way between them.

use std::mem;
use std::time::Duration;

use super::{CLIENTS, Conditions, EXPIRATION, Flaw};
use crate::rules::lease::GUARD;
use crate::rules::quorum::{QuorumTerms, Verdict};

/// The wall clock of the first client shows this when the search begins, so that no clock is negative.
const EPOCH: u64 = 1_000_000;

/// What a client has of one server, for as long as the lease lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Grant {
    /// In the key, it names this question to this server.
    owner: u64,
    ends: u64,
}

impl Grant {
    fn left(self, now: u64) -> Duration {
        Duration::from_millis(self.ends.saturating_sub(now))
    }
}

#[derive(Debug, Default)]
struct Server {
    /// The owner, and the time in the key.
    key: Option<(u64, u64)>,
    /// When it grants locks again.
    settled: u64,
}

#[derive(Debug, Default)]
struct Client {
    /// The number of its call, or of its next one.
    call: u64,
    state: State,
    /// What was granted, with the number of the server.
    grants: Vec<(usize, Grant)>,
    /// How many servers have refused.
    refused: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Idle,
    Asks,
    Holds,
    /// It held the lock, and its leases have ended.
    HasHeld,
}

/// What is on its way between a client and a server.
#[derive(Clone, Copy, Debug)]
enum Message {
    /// A thread of the client is to ask.
    Queued,
    /// The request, with the lease that it begins.
    Request(Grant),
    Reply(Grant, bool),
    /// A request whose client does not wait for the reply any more.
    LateRequest(Grant),
    /// The reply was lost, or the request, or it comes late: the client looks whether the key is its own.
    Doubt(Grant),
    GiveBack(Grant),
}

#[derive(Clone, Copy, Debug)]
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
    owners: u64,
    servers: Vec<Server>,
    clients: Vec<Client>,
    messages: Vec<Sent>,
    /// The owners whose keys cannot be given back: their client has crashed, or what would have deleted the key was lost.
    abandoned: Vec<u64>,
    has_deleted_another_s: bool,
    pub(super) held: u64,
    pub(super) given_back: u64,
}

pub(super) type Step = (u8, usize, u64);

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
            owners: 0,
            servers: (0..servers).map(|_| Server::default()).collect(),
            clients: (0..CLIENTS).map(|_| Client::default()).collect(),
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
            let (state, left) = (self.clients[index].state, self.remaining(&self.clients[index]));
            match state {
                State::Holds if left.is_zero() => self.clients[index].state = State::HasHeld,
                State::Holds => holders += 1,
                State::HasHeld if !left.is_zero() => return Some("a hold goes on that had ended"),
                State::Idle | State::Asks | State::HasHeld => {}
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
        let mut owners = self.servers.iter().filter_map(|server| server.key).map(|(owner, _)| owner);
        owners.any(|owner| !self.abandoned.contains(&owner)).then_some("a key is left that is not given back")
    }

    fn remaining(&self, client: &Client) -> Duration {
        self.terms.remaining(client.grants.iter().map(|(_, grant)| self.left(*grant)))
    }

    fn left(&self, grant: Grant) -> Duration {
        match self.conditions.flaw {
            Some(Flaw::CountsOnly) => Duration::from_millis(EXPIRATION),
            _ => grant.left(self.now),
        }
    }

    /// How long a lease lasts: the value in the key does not know of the allowance.
    fn lease(&self) -> u64 {
        EXPIRATION - self.conditions.allowance
    }

    fn wall(&self, client: usize) -> u64 {
        EPOCH + self.now - self.conditions.clock_difference * client as u64
    }

    /// A client begins a call, decides, or releases.
    fn client(&mut self, index: usize) {
        let servers = self.conditions.servers;
        let client = &self.clients[index];
        match client.state {
            State::Idle => {
                let call = client.call;
                self.clients[index].state = State::Asks;
                let queued = |server| Sent { client: index, call, server, message: Message::Queued };
                self.messages.extend((0..servers).map(queued));
            }
            State::Holds | State::HasHeld => self.end(index),
            State::Asks => {
                let open = servers - client.grants.len() - client.refused;
                let leases = client.grants.iter().map(|(_, grant)| self.left(*grant));
                match self.terms.judge(leases, open) {
                    Verdict::Agreed => {
                        self.clients[index].state = State::Holds;
                        self.held += 1;
                    }
                    Verdict::Failed => {
                        self.given_back += 1;
                        self.end(index);
                    }
                    Verdict::Open(_) => {}
                }
            }
        }
    }

    /// Ends the call of a client. What is granted later is given back as well.
    fn end(&mut self, index: usize) {
        let Client { call, grants, .. } = mem::take(&mut self.clients[index]);
        self.clients[index].call = call + 1;
        let give_back =
            |(server, grant)| Sent { client: index, call, server, message: Message::GiveBack(grant) };
        self.messages.extend(grants.into_iter().map(give_back));
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
                self.owners += 1;
                let grant = Grant { owner: self.owners, ends: self.now + self.lease() };
                send(self, Message::Request(grant));
            }
            Message::Request(grant) => {
                let granted = self.set(client, server, grant);
                send(self, Message::Reply(grant, granted));
            }
            Message::LateRequest(grant) => {
                if self.set(client, server, grant) && grant.ends <= self.now {
                    self.abandoned.push(grant.owner);
                }
            }
            Message::Reply(grant, true) => {
                let ends = match self.conditions.flaw {
                    Some(Flaw::LeaseFromReply) => self.now + self.lease(),
                    _ => grant.ends,
                };
                self.answer(client, call, server, Grant { ends, ..grant });
            }
            Message::Reply(_, false) => self.clients[client].refused += usize::from(is_current),
            Message::Doubt(Grant { owner, .. })
                if self.servers[server].key.is_some_and(|key| key.0 == owner) =>
            {
                self.servers[server].key = None;
            }
            Message::Doubt(grant) if grant.ends > self.now => send(self, message),
            Message::Doubt(_) => {}
            Message::GiveBack(grant) => self.delete(server, grant),
        }
    }

    /// SETNX, and the takeover of an expired key by a transaction.
    fn set(&mut self, client: usize, server: usize, grant: Grant) -> bool {
        let wall = self.wall(client);
        let guard = u64::try_from(GUARD.as_millis()).unwrap_or(u64::MAX);
        let began = grant.ends - self.lease();
        let until = wall - (self.now - began) + EXPIRATION + guard;
        let Server { key, settled } = &mut self.servers[server];
        let is_free = key.is_none_or(|(_, until)| until < wall) && *settled <= self.now;
        if is_free {
            *key = Some((grant.owner, until));
        }
        is_free
    }

    /// DEL, by a transaction if not in Classic.
    fn delete(&mut self, server: usize, grant: Grant) {
        let Conditions { classic, allowance, flaw, .. } = self.conditions;
        let late = if flaw == Some(Flaw::DeletesLate) { allowance } else { 0 };
        let key = &mut self.servers[server].key;
        if !classic {
            key.take_if(|(owner, _)| *owner == grant.owner);
        } else if self.now < grant.ends + late {
            let deleted = key.take();
            self.has_deleted_another_s |= deleted.is_some_and(|(owner, _)| owner != grant.owner);
        } else {
            self.abandoned.push(grant.owner);
        }
    }

    /// A grant reaches its client, which keeps it, or gives it back.
    fn answer(&mut self, client: usize, call: u64, server: usize, grant: Grant) {
        let flaw = self.conditions.flaw;
        let current = &mut self.clients[client];
        let revives = current.state == State::HasHeld && flaw != Some(Flaw::RevivesHolds);
        if current.call == call && !revives {
            current.grants.push((server, grant));
        } else if flaw != Some(Flaw::KeepsLateGrants) {
            self.messages.push(Sent { client, call, server, message: Message::GiveBack(grant) });
        }
    }

    /// Loses a request or a reply. The client learns of it, and looks.
    fn lose(&mut self, which: usize) {
        if self.messages.is_empty() {
            return;
        }
        let at = which % self.messages.len();
        let Sent { client, call, message, .. } = self.messages[at];
        let grant = match message {
            Message::Request(grant) => {
                self.messages.push(Sent { message: Message::LateRequest(grant), ..self.messages[at] });
                grant
            }
            Message::Reply(grant, _) => grant,
            Message::GiveBack(grant) => {
                self.messages.remove(at);
                return self.abandoned.push(grant.owner);
            }
            Message::LateRequest(_) => {
                self.messages.remove(at);
                return;
            }
            Message::Queued | Message::Doubt(_) => return,
        };
        let Client { call: current, refused, .. } = &mut self.clients[client];
        *refused += usize::from(*current == call);
        if self.conditions.flaw == Some(Flaw::ForgetsLostReplies) {
            self.messages.remove(at);
        } else {
            self.messages[at].message = Message::Doubt(grant);
        }
    }

    /// A client crashes with all that it has, and another takes its place.
    fn crash(&mut self, index: usize) {
        let Client { call, grants, .. } = mem::take(&mut self.clients[index]);
        self.clients[index].call = call + 1;
        self.abandoned.extend(grants.iter().map(|(_, grant)| grant.owner));
        let lost = self.messages.iter().filter(|sent| sent.client == index);
        self.abandoned.extend(lost.filter_map(|sent| match sent.message {
            Message::Request(grant)
            | Message::LateRequest(grant)
            | Message::Reply(grant, _)
            | Message::Doubt(grant)
            | Message::GiveBack(grant) => Some(grant.owner),
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
