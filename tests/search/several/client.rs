//! One client of the run: it does what the rules of several locks say.

use std::collections::HashMap;

use crate::simulated::Leg;
use setnx_lock_proto::hold::Ending;
use setnx_lock_proto::lease::Lease;
use setnx_lock_proto::several::Several;
use setnx_lock_proto::task::Task;
use setnx_lock_proto::values::{Now, Protocol};
use setnx_lock_proto::{Command, Reply};

pub(super) const KEYS: usize = 3;

/// The client of these keys does not wait for others.
const TRIES_ONCE: [usize; 2] = [0, 2];

/// A mistake in what a client does of what the rules say, or tells them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flaw {
    /// It waits without giving back what is granted behind.
    KeepsWhatIsBehind,
    GivesBackOneAlone,
    /// It takes a lock whose SETNX had no reply for granted.
    BelievesWhatIsLost,
    /// After a failure it forgets such locks.
    ForgetsWhatIsLost,
    /// After a failure it keeps all but the last.
    KeepsAllButTheLast,
}

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

/// What its trips are for.
#[derive(Debug)]
pub(super) enum Part {
    None,
    Asking(Vec<usize>),
    Taking(usize, Task<Lease>),
    /// The last of these, and then those before.
    Releasing(Vec<(usize, Lease)>, Box<Ending>),
}

#[derive(Debug)]
pub(super) struct Client {
    pub(super) protocol: Protocol,
    /// In their order.
    pub(super) keys: Vec<usize>,
    pub(super) doing: Doing,
    pub(super) part: Part,
    pub(super) rules: Several,
    /// What came of asking for each.
    pub(super) asked: Vec<Option<(Lease, Reply)>>,
    pub(super) held: Vec<Option<Lease>>,
    /// True if it had to wait for a key.
    pub(super) waited: bool,
    pub(super) failed: bool,
    /// True if one was lost while another was waited for.
    pub(super) begins_again: bool,
    /// The leases of values that it knows to have written and has not deleted, as far as it knows.
    known: HashMap<Vec<u8>, Lease>,
    /// The values of its call that it is to delete.
    owed: HashMap<Vec<u8>, Lease>,
}

impl Client {
    pub(super) fn new(protocol: Protocol, keys: Vec<usize>) -> Self {
        let rules = Several::new(keys.len(), keys != TRIES_ONCE);
        Self {
            protocol,
            asked: vec![None; keys.len()],
            held: vec![None; keys.len()],
            keys,
            doing: Doing::Nothing,
            part: Part::None,
            rules,
            waited: false,
            failed: false,
            begins_again: false,
            known: HashMap::new(),
            owed: HashMap::new(),
        }
    }

    pub(super) fn may_wait(&self) -> bool {
        self.keys != TRIES_ONCE
    }

    /// Returns the client as it was before its call, with the values that it still owes.
    pub(super) fn ended(&mut self) -> HashMap<Vec<u8>, Lease> {
        let owed = std::mem::take(&mut self.owed);
        *self = Self { waited: self.waited, ..Self::new(self.protocol, self.keys.clone()) };
        owed
    }

    /// Notes that a value is on its way, which is to be deleted.
    pub(super) fn owes(&mut self, lease: &Lease) {
        self.owed.insert(lease.value.to_vec(), lease.clone());
    }

    pub(super) fn learns(&mut self, lease: &Lease) {
        self.owes(lease);
        self.known.insert(lease.value.to_vec(), lease.clone());
    }

    /// Notes that a value is being deleted. Whatever comes of it, nothing more is known of the key.
    pub(super) fn deletes(&mut self, lease: &Lease) {
        self.known.remove(&*lease.value);
    }

    /// Notes that it cannot know whether the key holds a value.
    pub(super) fn is_excused(&mut self, value: &[u8]) {
        self.owed.remove(value);
    }

    /// Notes that a trip may still arrive.
    pub(super) fn may_write_later(&mut self, trip: &Legs) {
        for (_, leg) in trip {
            if let Some(Command::SetNx(new)) = leg.command() {
                self.is_excused(&new.value);
            }
        }
    }

    /// Notes that a reply was lost: if it was that of a release, the value may stay.
    pub(super) fn may_not_release(&mut self) {
        if let Part::Releasing(left, _) = &self.part
            && let Some((_, lease)) = left.last().cloned()
        {
            self.is_excused(&lease.value);
        }
    }

    /// Returns true if it has written this value, within the lease, and knows of it.
    pub(super) fn knows(&self, value: &[u8], now: Now) -> bool {
        self.known.get(value).is_some_and(|lease| !lease.has_passed(now))
    }
}
