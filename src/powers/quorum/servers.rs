//! The servers of a quorum: asked at the same time, each on a thread of its locker.

use std::borrow::Borrow;
use std::sync::Arc;
use std::time::Duration;

use proto::quorum::{self, QuorumTerms, Verdict};
use proto::values::{Key, Uptime};

use crate::extend::HoldKind;
use crate::system::clock;
use crate::system::sync::mpsc::{self, Receiver, RecvTimeoutError};
use crate::{Error, Lock, LockGuard, LockOptions, Locker};

/// How much longer than the command timeout an answer is waited for.
const ANSWER_GRACE: Duration = Duration::from_millis(50);

/// Where servers' answers come, each with the number of the server.
pub(super) type Inbox<G> = Receiver<(usize, Result<G, Error>)>;

/// The lock's guard on each server that has granted it, with the number of the server.
pub(super) type Guards = Vec<(usize, Arc<LockGuard>)>;

/// What the servers have answered.
pub(super) type Answers<G> = quorum::Answers<G, Error>;

/// The inbox for servers that are slower than the majority, and what tells their threads that their answers are
/// wanted.
pub(super) type Late = (Inbox<Arc<LockGuard>>, Arc<()>);

/// The servers, each with the lock on it.
#[derive(Clone, Debug)]
pub(super) struct Servers {
    pub(super) key: Key,
    list: Arc<[Server]>,
    pub(super) terms: QuorumTerms,
    /// True if a dropped guard releases in the background.
    pub(super) releases_later: bool,
}

/// One of the servers.
#[derive(Debug)]
struct Server {
    lock: Lock,
    /// Its address, or its number if the address is unknown.
    name: String,
}

impl Servers {
    pub(super) fn of<L: Borrow<Locker>>(
        lockers: impl IntoIterator<Item = L>,
        key: Key,
        options: &LockOptions,
    ) -> Result<Self, Error> {
        let server = |(index, locker): (usize, L)| {
            let lock = Lock::of_whole_key(locker.borrow(), key.clone(), options.in_a_quorum())?;
            let address = locker.borrow().address();
            Ok(Server { lock, name: address.unwrap_or_else(|| format!("server {}", index + 1)) })
        };
        let list = lockers.into_iter().enumerate().map(server).collect::<Result<Arc<[Server]>, Error>>()?;
        if let Some(problem) = problem(&list, options) {
            return Err(Error::invalid(key, problem));
        }
        let lease = options.terms.expiration.unwrap_or_default().saturating_sub(options.terms.allowance);
        let releases_later = options.releases_later;
        Ok(Self { key, terms: QuorumTerms::of(list.len(), lease), list, releases_later })
    }

    pub(super) fn lockers(&self) -> impl Iterator<Item = &Locker> {
        self.list.iter().map(|server| server.lock.locker())
    }

    pub(super) fn refuse_after_fork(&self) -> Result<(), Error> {
        self.lockers().try_for_each(|locker| locker.refuse_after_fork(&self.key))
    }

    /// Returns how this thread holds the lock, if it does.
    pub(super) fn by_this_thread(&self) -> Option<HoldKind> {
        self.lockers().filter_map(|locker| locker.held_by_this_thread(&self.key)).max()
    }

    pub(super) fn is_shut_down(&self) -> bool {
        self.lockers().any(Locker::is_shut_down)
    }

    pub(super) fn longest(&self, time: impl Fn(&Locker) -> Duration) -> Duration {
        self.lockers().map(time).max().unwrap_or_default()
    }

    /// Asks all servers for the lock, at the same time. Without a majority everything is given back.
    pub(super) fn ask_for_locks(
        &self,
        began: Uptime,
        attempts: u32,
    ) -> Result<(Answers<Arc<LockGuard>>, Late), Error> {
        let (sender, inbox) = mpsc::channel();
        let wanted = Arc::new(());
        for (index, Server { lock, .. }) in self.list.iter().enumerate() {
            let (asked, sender, wanted) = (lock.clone(), sender.clone(), Arc::downgrade(&wanted));
            lock.locker().spawn(move || {
                if wanted.strong_count() > 0 {
                    let answer = asked.acquire(&asked.options.timeout(Duration::ZERO), None);
                    // If the call has ended, the answer is dropped, and the guard in it releases.
                    drop(sender.send((index, answer.map(Arc::new))));
                }
            });
        }
        drop(sender);
        let mut answers = self.gather(&inbox, self.list.len(), time_left);
        if answers.is_held() {
            return Ok((answers, (inbox, wanted)));
        }
        // One that is too old by now has come too late.
        let in_time =
            answers.granted.iter().filter(|(_, guard)| self.terms.spare(time_left(guard)).is_some());
        let agreed: Vec<usize> = in_time.map(|(server, _)| *server).collect();
        drop((inbox, wanted));
        let given_back = self.each(answers.take_grants(), |guard| {
            drop(guard);
            Ok(())
        });
        // A process that ends now would leave the locks.
        complete(&given_back, self.answered_by());
        let time = clock::uptime().since(began);
        let plural = if attempts == 1 { "attempt" } else { "attempts" };
        Err(self.no_majority(
            format!("not acquired in {time:.1?} and {attempts} {plural}"),
            &agreed,
            answers.refused,
        ))
    }

    /// Acts on each of these locks, on its server's thread. Returns the inbox of the answers.
    pub(super) fn each(
        &self,
        guards: Guards,
        act: impl Fn(Arc<LockGuard>) -> Result<(), Error> + Clone + Send + 'static,
    ) -> Inbox<()> {
        let (sender, inbox) = mpsc::channel();
        for (index, guard) in guards {
            let (sender, act) = (sender.clone(), act.clone());
            self.spawn(index, move || drop(sender.send((index, act(guard)))));
        }
        inbox
    }

    /// Lets the thread of a server do this, after its earlier jobs.
    pub(super) fn spawn(&self, server: usize, job: impl FnOnce() + Send + 'static) {
        self.list[server].lock.locker().spawn(job);
    }

    /// Waits for the answers of the servers, at most one command timeout, until a majority agrees or cannot agree
    /// any more, by what is left of each grant.
    pub(super) fn gather<G>(
        &self,
        inbox: &Inbox<G>,
        asked: usize,
        time_left: impl Fn(&G) -> Duration,
    ) -> Answers<G> {
        let (began, mut by) = (clock::uptime(), self.answered_by());
        let mut answers = Answers::of(asked, self.terms);
        loop {
            let now = clock::uptime();
            if now >= by {
                answers.close();
            }
            let at_most = match answers.judge(&time_left) {
                Verdict::Open(time) => time,
                // The error is to say what the others answer; they need about as long.
                Verdict::Failed if answers.open() > 0 => {
                    by = by.min(now.after(now.since(began)));
                    Duration::MAX
                }
                Verdict::Agreed | Verdict::Failed => return answers,
            };
            match inbox.recv_timeout(by.since(now).min(at_most)) {
                Ok((server, answer)) => answers.add(server, answer),
                Err(RecvTimeoutError::Disconnected) => answers.close(),
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Returns the deadline for answers to requests that are sent now.
    fn answered_by(&self) -> Uptime {
        clock::uptime().after(self.longest(Locker::command_timeout)).after(ANSWER_GRACE)
    }

    /// Returns the error if only these servers have agreed, with the answers of the others.
    pub(super) fn no_majority(
        &self,
        failed: String,
        agreed: &[usize],
        mut refused: Vec<(usize, Error)>,
    ) -> Error {
        let other = |(index, server): (usize, &Server)| {
            let at = refused.iter().position(|(other, _)| *other == index);
            let mut answer = at.map(|at| refused.swap_remove(at).1);
            if let Some(Error::Contended { details, .. }) = &mut answer {
                // The server's own thread has asked.
                details.taken_by_this_thread = self.by_this_thread().is_some();
            }
            (server.name.clone(), answer)
        };
        let others = self.list.iter().enumerate().filter(|(index, _)| !agreed.contains(index));
        let (key, answers) = (self.key.clone(), others.map(other).collect());
        Error::NoMajority { key, failed, agreed: agreed.len(), lost: false, answers }
    }
}

/// Returns why these are no quorum, in words for the user.
fn problem(servers: &[Server], options: &LockOptions) -> Option<String> {
    let twin = servers.iter().enumerate().find(|(index, one)| {
        servers[..*index].iter().any(|other| {
            one.name.eq_ignore_ascii_case(&other.name) || one.lock.locker().is_clone_of(other.lock.locker())
        })
    });
    if let (Some((_, Server { name, .. })), 1) = (twin, servers.len() % 2) {
        return Some(format!(
            "{name} is there twice, so its failure would count double; give each server once"
        ));
    }
    let prefixes: Vec<&Key> = servers.iter().map(|server| server.lock.locker().key_prefix()).collect();
    if prefixes.windows(2).any(|two| two[0] != two[1]) {
        return Some("its lockers have different key prefixes; give all the same".to_owned());
    }
    Some(match (servers.len(), options.terms.expiration) {
        (0, _) => "a quorum of no servers grants nothing; give the lockers of three or five".to_owned(),
        (even, _) if even % 2 == 0 => format!(
            "a quorum of {even} servers survives the loss of no more than one of {} does; give an odd number of lockers",
            even - 1
        ),
        (_, None) => {
            "a quorum needs an expiration, since a server that is lost cannot release; use `expiring_after`"
                .to_owned()
        }
        (_, Some(expiration)) if options.terms.allowance > expiration / 2 => format!(
            "an allowance for clocks of {:?} leaves less than half of the lease of {expiration:?}; set the clocks, or use a longer expiration",
            options.terms.allowance
        ),
        _ => return options.problem().map(str::to_owned),
    })
}

/// What is left of the lease on one server.
pub(super) fn time_left(guard: &Arc<LockGuard>) -> Duration {
    guard.remaining().unwrap_or_default()
}

/// Waits until each server has answered, and at most until then.
pub(super) fn complete(inbox: &Inbox<()>, by: Uptime) {
    while inbox.recv_timeout(by.since(clock::uptime())).is_ok() {}
}
