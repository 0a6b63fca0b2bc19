//! A few threads, what each of them does, and a server that knows no more than whether a key is there.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use shuttle::sync::{Condvar, Mutex};
use shuttle::thread;

use super::sync::{self, Thread, lock, wait_while};
use super::{Handoff, HolderTicket, Key, WaitQueue, Hint, Ticket, Observation, Turn, WaitMode, Woken};

/// What a thread does.
#[derive(Clone, Copy, Debug)]
pub(super) struct Encoded {
    key: usize,
    kind: Kind,
    rounds: usize,
    ending: Ending,
    release: Release,
    /// In which way it waits. Each has a head of its own.
    variant: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Waits,
    /// Tries once, and stands in no line.
    Tries,
    /// The same in another process: no line of this one gets to know, but by a token.
    Elsewhere,
}

/// How its waiting ends if the lock does not come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    Never,
    /// Its time is over at any moment.
    Late,
    /// It looks once without being told to, at any moment, and goes on waiting.
    Polls,
    /// It panics where it sleeps, at any moment.
    Dies,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Release {
    Plain,
    /// To the head of the line, if it sleeps.
    PassesOn,
    /// The server does as it is told, but its answer is lost.
    Unsure,
    LeavesAToken,
    /// Not before the next in line is at its head, where it would take over.
    Overruns,
}

impl Encoded {
    pub(super) fn waits() -> Self {
        Self { key: 0, kind: Kind::Waits, rounds: 1, ending: Ending::Never, release: Release::Plain, variant: 0 }
    }

    pub(super) fn tries() -> Self {
        Self { kind: Kind::Tries, ..Self::waits() }
    }

    pub(super) fn elsewhere() -> Self {
        Self { kind: Kind::Elsewhere, release: Release::LeavesAToken, ..Self::waits() }
    }

    pub(super) fn of_key(self, key: usize) -> Self {
        Self { key, ..self }
    }

    pub(super) fn twice(self) -> Self {
        Self { rounds: 2, ..self }
    }

    pub(super) fn until(self, ending: Ending) -> Self {
        Self { ending, ..self }
    }

    pub(super) fn another_way(self) -> Self {
        Self { variant: 1, ..self }
    }

    pub(super) fn then(self, release: Release) -> Self {
        Self { release, ..self }
    }
}

const KEYS: usize = 2;

#[allow(clippy::struct_excessive_bools, reason = "each may be there or not")]
pub(super) struct Scene {
    parts: Vec<Encoded>,
    in_order: bool,
    closed: bool,
    taken: bool,
    tokens: bool,
    unparks: Vec<usize>,
}

impl Scene {
    pub(super) fn of<const N: usize>(parts: [Encoded; N]) -> Self {
        Self {
            parts: parts.to_vec(),
            in_order: false,
            closed: false,
            taken: false,
            tokens: false,
            unparks: Vec::new(),
        }
    }

    /// They come one after the other, each before the lock is free for the first time.
    pub(super) fn in_order(self) -> Self {
        Self { in_order: true, ..self }
    }

    /// All waiting is ended at any moment.
    pub(super) fn closed(self) -> Self {
        Self { closed: true, ..self }
    }

    /// The lock is somebody else's, for ever.
    pub(super) fn taken(self) -> Self {
        Self { taken: true, ..self }
    }

    /// Somebody waits for tokens, and lets the lines know.
    pub(super) fn with_tokens(self) -> Self {
        Self { tokens: true, ..self }
    }

    /// These threads are unparked for no reason, at any moment.
    pub(super) fn with_unparks<const N: usize>(self, threads: [usize; N]) -> Self {
        Self { unparks: threads.to_vec(), ..self }
    }

    /// Plays it once, in the schedule of the checker, and looks whether all came out right.
    pub(super) fn play(self) {
        let world = Arc::new(World::new(&self));
        let listener = self.tokens.then(|| spawn(&world, World::listen));
        let actors: Vec<_> = self
            .parts
            .iter()
            .enumerate()
            .map(|(number, part)| {
                let part = *part;
                spawn(&world, move |world| {
                    world.threads[number].clone().enter();
                    Actor { world, number, part }.act();
                })
            })
            .collect();
        // Who ends waits: one thread for each kind of end, so that every kind comes at any moment.
        let mut fates = Vec::new();
        for (number, part) in self.parts.iter().enumerate() {
            if part.ending != Ending::Never {
                let thread = world.threads[number].clone();
                fates.push(spawn(&world, move |world| {
                    world.over[number].store(true, SeqCst);
                    thread.unpark();
                }));
            }
        }
        if self.closed {
            fates.push(spawn(&world, |world| world.lines.close()));
        }
        if !self.unparks.is_empty() {
            let threads: Vec<_> = self.unparks.iter().map(|number| world.threads[*number].clone()).collect();
            fates.push(spawn(&world, move |_| threads.iter().for_each(Thread::unpark)));
        }
        for thread in actors.into_iter().chain(fates) {
            thread.join().unwrap();
        }
        world.tokens.stop();
        if let Some(listener) = listener {
            listener.join().unwrap();
        }
        world.look_back(&self);
    }
}

fn spawn(world: &Arc<World>, body: impl FnOnce(&World) + Send + 'static) -> thread::JoinHandle<()> {
    let world = Arc::clone(world);
    thread::spawn(move || body(&world))
}

struct World {
    lines: Arc<WaitQueue>,
    keys: Vec<Key>,
    servers: Vec<Server>,
    tokens: Tokens,
    threads: Vec<Thread>,
    /// Whose time is over, or whose end has come.
    over: Vec<AtomicBool>,
    /// Who has come to the line, where the order matters.
    came: Option<(Mutex<usize>, Condvar)>,
    /// Who came last to the head of the line.
    head: (Mutex<usize>, Condvar),
    /// Who got the lock, in that order, where it matters.
    served: Mutex<Vec<usize>>,
    /// Whether a thread panics in this scene, and may take a gift with it.
    somebody_dies: AtomicBool,
}

const FREE: usize = 0;
const HELD: usize = 1;
/// Renewed for whoever it is passed on to, and not accepted.
const GIFT: usize = 2;

struct Server {
    value: AtomicUsize,
    /// Whether the head of the line has a command under way.
    asked: [AtomicBool; 2],
    inside: AtomicUsize,
}

impl World {
    fn new(scenario: &Scene) -> Self {
        let server = |name| Server {
            value: AtomicUsize::new(if scenario.taken || scenario.in_order && name == 0 { HELD } else { FREE }),
            asked: [AtomicBool::new(false), AtomicBool::new(false)],
            inside: AtomicUsize::new(0),
        };
        Self {
            lines: Arc::default(),
            keys: (0..KEYS).map(|name| Key { name, copies: Arc::new(()) }).collect(),
            servers: (0..KEYS).map(server).collect(),
            tokens: Tokens::default(),
            threads: scenario.parts.iter().map(|_| Thread::default()).collect(),
            over: scenario.parts.iter().map(|_| AtomicBool::new(false)).collect(),
            came: scenario.in_order.then(|| (Mutex::new(0), Condvar::new())),
            head: (Mutex::new(0), Condvar::new()),
            served: Mutex::new(Vec::new()),
            somebody_dies: AtomicBool::new(false),
        }
    }

    /// The thread of the tokens, which is in the line's way like any other.
    fn listen(&self) {
        while self.tokens.next_notification() {
            if !self.lines.notify(&self.keys[0], Hint::Freed) {
                // Somebody else's, until somebody here waits.
                self.tokens.put_back(|| self.lines.is_waited_for(&self.keys[0]));
            }
        }
    }

    fn look_back(&self, scenario: &Scene) {
        for (key, server) in self.keys.iter().zip(&self.servers) {
            let value = server.value.load(SeqCst);
            let left = if scenario.taken { HELD } else { FREE };
            let died = value == GIFT && self.somebody_dies.load(SeqCst);
            assert!(value == left || died, "a lock is lost: {value}");
            assert_eq!(
                Arc::strong_count(&key.copies),
                1,
                "an entry outlives its key's last holder and waiter"
            );
        }
        if scenario.in_order {
            let served = lock(&self.served);
            assert!(served.is_sorted(), "not first come, first served: {served:?}");
            let patient = scenario
                .parts
                .iter()
                .enumerate()
                .filter(|(_, part)| part.ending == Ending::Never)
                .map(|(number, _)| number);
            assert!(patient.clone().all(|number| served.contains(&number)));
        }
    }
}

impl Server {
    /// SETNX. Whoever may take over from a thread that panicked does so if it was given the lock.
    fn set(&self, takes_over: bool) -> bool {
        self.value.compare_exchange(FREE, HELD, SeqCst, SeqCst).is_ok()
            || takes_over && self.value.compare_exchange(GIFT, HELD, SeqCst, SeqCst).is_ok()
    }

    fn hold(&self) {
        assert_eq!(self.inside.fetch_add(1, SeqCst), 0, "two have the lock");
        thread::yield_now();
        assert_eq!(self.inside.fetch_sub(1, SeqCst), 1, "two have the lock");
    }
}

/// Tokens for the first key.
#[derive(Default)]
struct Tokens {
    list: Mutex<List>,
    changed: Condvar,
}

#[derive(Default)]
struct List {
    tokens: usize,
    /// Whether this process waits for them.
    wanted: bool,
    stopped: bool,
}

impl Tokens {
    fn leave(&self) {
        lock(&self.list).tokens += 1;
        self.changed.notify_all();
    }

    fn want(&self) {
        lock(&self.list).wanted = true;
        self.changed.notify_all();
    }

    /// Returns whether there was one; else it is over.
    fn next_notification(&self) -> bool {
        let list = lock(&self.list);
        let silent = |list: &mut List| !list.stopped && (list.tokens == 0 || !list.wanted);
        let mut list = wait_while(&self.changed, list, silent);
        if list.stopped {
            return false;
        }
        list.tokens -= 1;
        true
    }

    fn put_back(&self, still_wanted: impl FnOnce() -> bool) {
        let mut list = lock(&self.list);
        list.tokens += 1;
        list.wanted = still_wanted();
    }

    fn stop(&self) {
        lock(&self.list).stopped = true;
        self.changed.notify_all();
    }
}

/// What a thread panics with that is meant to.
struct Death;

struct Actor<'a> {
    world: &'a World,
    number: usize,
    part: Encoded,
}

impl Actor<'_> {
    fn act(&self) {
        for _ in 0..self.part.rounds {
            let got = match self.part.kind {
                Kind::Waits => match catch_unwind(AssertUnwindSafe(|| self.wait())) {
                    Ok(got) => got,
                    Err(panic) if panic.is::<Death>() => None,
                    Err(panic) => resume_unwind(panic),
                },
                Kind::Tries => self.server().set(false).then(|| self.world.lines.hold(self.key(), Observation)),
                Kind::Elsewhere => {
                    if self.server().set(false) {
                        self.server().hold();
                        self.server().value.store(FREE, SeqCst);
                        self.world.tokens.leave();
                    }
                    None
                }
            };
            if let Some(hold) = got {
                self.served();
                self.server().hold();
                self.release(hold);
            }
        }
    }

    /// As the engine does it: behind what somebody else has seen it sleeps first, and where it is late it looks once more.
    fn wait(&self) -> Option<HolderTicket> {
        let tokens = self.part.release == Release::LeavesAToken;
        let mut ticket = self.join(WaitMode { tokens, variant: self.part.variant, of: self.number });
        let mut look = match ticket.turn(|| self.park(false)) {
            Turn::Given(handoff, hold) => return Some(self.accept(&handoff, hold)),
            Turn::StopCheck { .. } => return None,
            Turn::Ours(observation) => observation.is_none(),
        };
        let (head, changed) = &self.world.head;
        *lock(head) = self.number;
        changed.notify_all();
        let mut over = false;
        loop {
            if look && self.ask() {
                return Some(ticket.enter(Observation));
            }
            if over {
                return None;
            }
            if tokens {
                self.world.tokens.want();
            }
            look = true;
            match ticket.sleep(Observation, || self.park(true)) {
                Woken::Given(handoff, hold) => return Some(self.accept(&handoff, hold)),
                // Whoever is late leaves the news to others.
                Woken::Hint(hint) if self.part.ending == Ending::Late && self.is_over() => {
                    self.world.lines.notify(self.key(), hint);
                    return None;
                }
                Woken::Hint(_) => {}
                Woken::StopCheck => over = self.part.ending != Ending::Polls || self.world.lines.is_closed(),
            }
        }
    }

    fn join(&self, mode: WaitMode) -> Ticket {
        let Some((came, more)) = &self.world.came else { return self.world.lines.join(self.key(), mode) };
        let mut count = wait_while(more, lock(came), |count| *count < self.number);
        let ticket = self.world.lines.join(self.key(), mode);
        *count += 1;
        let last = *count == self.world.over.len();
        drop(count);
        more.notify_all();
        if last {
            // It was somebody else's until now.
            self.server().value.store(FREE, SeqCst);
            self.world.lines.notify(self.key(), Hint::Freed);
        }
        ticket
    }

    /// One command of the head of the line.
    fn ask(&self) -> bool {
        let server = self.server();
        let asked = &server.asked[self.part.variant];
        assert!(!asked.swap(true, SeqCst), "two are at the head of the line");
        let got = server.set(self.world.somebody_dies.load(SeqCst));
        assert!(asked.swap(false, SeqCst));
        got
    }

    fn accept(&self, handoff: &Handoff, hold: HolderTicket) -> HolderTicket {
        assert_eq!(handoff.mode.of, self.number, "renewed for somebody else");
        let renewed = self.server().value.compare_exchange(GIFT, HELD, SeqCst, SeqCst);
        assert_eq!(renewed, Ok(GIFT), "what was given is not there");
        hold
    }

    fn release(&self, hold: HolderTicket) {
        let (world, server) = (self.world, self.server());
        if self.part.release == Release::Overruns {
            let (head, changed) = &world.head;
            let _next = wait_while(changed, lock(head), |head| *head <= self.number);
        }
        let mut ours = HELD;
        let mut hold = hold;
        if self.part.release == Release::PassesOn
            && let Some((successor, mode)) = hold.successor()
        {
            server.value.store(GIFT, SeqCst);
            ours = GIFT;
            match hold.give(successor, &Handoff { observation: Observation, mode }) {
                None => return,
                Some(kept) => hold = kept,
            }
        }
        let released = server.value.compare_exchange(ours, FREE, SeqCst, SeqCst);
        assert!(released.is_ok() || world.somebody_dies.load(SeqCst), "another has it: {released:?}");
        match self.part.release {
            Release::Plain | Release::PassesOn | Release::Overruns => hold.end(Hint::Freed, false),
            Release::Unsure => drop(hold),
            Release::LeavesAToken => {
                world.tokens.leave();
                hold.end(Hint::Freed, true);
            }
        }
    }

    /// Sleeps, and says whether to sleep on.
    fn park(&self, at_the_head: bool) -> bool {
        let ended = match self.part.ending {
            Ending::Never => false,
            Ending::Late | Ending::Dies => self.is_over(),
            Ending::Polls => at_the_head && self.world.over[self.number].swap(false, SeqCst),
        };
        if ended && self.part.ending == Ending::Dies {
            self.world.somebody_dies.store(true, SeqCst);
            resume_unwind(Box::new(Death));
        }
        if ended {
            return false;
        }
        // It may return for no reason at all.
        if !thread_rng().gen_bool(0.1) {
            sync::park();
        }
        true
    }

    fn is_over(&self) -> bool {
        self.world.over[self.number].load(SeqCst)
    }

    fn served(&self) {
        if self.world.came.is_some() {
            lock(&self.world.served).push(self.number);
        }
    }

    fn key(&self) -> &Key {
        &self.world.keys[self.part.key]
    }

    fn server(&self) -> &Server {
        &self.world.servers[self.part.key]
    }
}
