//! One client of the run: how it acquires its keys, in their order.

use std::collections::HashMap;

use crate::rules::Reply;
use crate::rules::lease::Lease;
use crate::rules::owned::Ending;
use crate::rules::task::Task;
use crate::simulated::Leg;
use crate::values::clock::Now;
use crate::values::options::Protocol;

pub(super) const KEYS: usize = 3;

/// Commands of one trip, each on a key.
pub(super) type Legs = Vec<(usize, Leg)>;

#[derive(Debug)]
pub(super) enum Doing {
    Nothing,
    Sent { trip: Legs, since: u64 },
    Replied(Legs, Vec<Reply>),
    Asleep,
    Working,
}

/// A lock that was asked for together with others.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    pub(super) lease: Lease,
    pub(super) reply: Reply,
}

impl Answer {
    pub(super) fn is_granted(&self) -> bool {
        self.reply == Reply::Integer(1)
    }
}

#[derive(Debug)]
pub(super) enum Rules {
    None,
    /// SETNX of several keys.
    Asking(Vec<Lease>),
    /// GET of the keys whose SETNX had no reply, so many times at most.
    Settling {
        keys: Vec<usize>,
        reads: u32,
    },
    /// The next key in their order.
    Acquiring(Task<Lease>),
    /// What is not wanted, and what follows: the wait for the next key with this answer, or the end.
    Releasing {
        releasing: Box<Ending>,
        left: Vec<(usize, Lease)>,
        then: Then,
    },
}

#[derive(Clone, Debug)]
pub(super) enum Then {
    Wait(Option<Answer>),
    End,
    /// One was lost while another was waited for.
    Again,
}

#[derive(Debug)]
pub(super) struct Client {
    pub(super) protocol: Protocol,
    /// In their order.
    pub(super) keys: Vec<usize>,
    /// How many of them it has acquired.
    pub(super) index: usize,
    pub(super) doing: Doing,
    pub(super) rules: Rules,
    pub(super) answers: [Option<Answer>; KEYS],
    pub(super) held: [Option<Lease>; KEYS],
    /// True if it had to wait for a key.
    pub(super) waited: bool,
    /// The leases of values that it knows to have written and has not deleted, as far as it knows.
    pub(super) known: HashMap<Vec<u8>, Lease>,
}

impl Client {
    pub(super) fn new(protocol: Protocol, keys: Vec<usize>) -> Self {
        Self {
            protocol,
            keys,
            index: 0,
            doing: Doing::Nothing,
            rules: Rules::None,
            answers: Default::default(),
            held: Default::default(),
            waited: false,
            known: HashMap::new(),
        }
    }

    /// Returns the key that is its next.
    pub(super) fn key(&self) -> usize {
        self.keys[self.index]
    }

    /// Returns the keys that are asked for together with the next, if there are others.
    pub(super) fn together(&self) -> Option<Vec<usize>> {
        let rest = self.keys[self.index..].iter().copied();
        let keys: Vec<usize> = rest.take_while(|key| self.answers[*key].is_none()).collect();
        (keys.len() > 1).then_some(keys)
    }

    /// Returns the keys whose SETNX had no reply.
    pub(super) fn lost(&self) -> Vec<usize> {
        let is_lost =
            |key: &usize| matches!(&self.answers[*key], Some(answer) if answer.reply == Reply::Lost);
        (0..KEYS).filter(is_lost).collect()
    }

    /// Takes what was acquired and is not waited for, and forgets what was not.
    pub(super) fn take_granted(&mut self) -> Vec<(usize, Lease)> {
        let granted = |(key, place): (usize, &mut Option<Answer>)| {
            let answer = place.take_if(|answer| answer.reply != Reply::Lost)?;
            answer.is_granted().then_some((key, answer.lease))
        };
        self.answers.iter_mut().enumerate().filter_map(granted).collect()
    }

    /// Takes all that it holds.
    pub(super) fn take_held(&mut self) -> Vec<(usize, Lease)> {
        let held = |(key, place): (usize, &mut Option<Lease>)| Some((key, place.take()?));
        self.held.iter_mut().enumerate().filter_map(held).collect()
    }

    /// Returns true if it has written this value, within the lease, and knows of it.
    pub(super) fn knows(&self, value: &[u8], now: Now) -> bool {
        self.known.get(value).is_some_and(|lease| !lease.has_passed(now))
    }
}
