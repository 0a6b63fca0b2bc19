//! Threads of a run, by the names of [`std::thread`].

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::scheduler::{Nanos, ThreadId, own, scheduler};

pub use std::thread::Scope;

/// How large a stack is, if a thread does not say. Only what is used of it takes memory.
const STACK: usize = 1 << 20;

/// Starts threads.
#[derive(Debug, Default)]
pub struct Builder {
    name: Option<String>,
    stack: Option<usize>,
}

/// The handle of a thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thread(ThreadId);

/// Waits for the end of a thread.
#[derive(Debug)]
pub struct JoinHandle<T> {
    thread: Thread,
    result: Arc<Mutex<Option<std::thread::Result<T>>>>,
}

thread_local! {
    /// The threads that were started in each scope that is open.
    static SCOPES: RefCell<Vec<Vec<ThreadId>>> = const { RefCell::new(Vec::new()) };
}

impl Builder {
    /// Returns what starts a thread.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Names the thread.
    #[must_use]
    pub fn name(self, name: String) -> Self {
        Self { name: Some(name), ..self }
    }

    /// Gives it a stack of so many bytes.
    #[must_use]
    pub fn stack_size(self, bytes: usize) -> Self {
        Self { stack: Some(bytes), ..self }
    }

    fn of_system(&self) -> std::thread::Builder {
        std::thread::Builder::new().stack_size(self.stack.unwrap_or(STACK))
    }

    fn add(&self) -> ThreadId {
        let own = own();
        let mut state = scheduler().lock();
        let process = state.threads[own].process;
        state.add_thread(self.name.as_deref().unwrap_or("thread"), process)
    }

    /// Starts a thread. Where the system has no room for it the run ends.
    ///
    /// # Errors
    ///
    /// None.
    pub fn spawn<T: Send + 'static>(
        self,
        body: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<JoinHandle<T>> {
        let id = self.add();
        Ok(spawn_as(id, &self, body))
    }

    /// Starts a thread that ends before `scope`, which the calling thread has opened.
    ///
    /// # Errors
    ///
    /// Those of the system.
    ///
    /// # Panics
    ///
    /// If another thread has opened the scope.
    pub fn spawn_scoped<'scope, T: Send + 'scope>(
        self,
        scope: &'scope Scope<'scope, '_>,
        body: impl FnOnce() -> T + Send + 'scope,
    ) -> io::Result<()> {
        let id = self.add();
        let run = move || {
            scheduler().enter(id);
            body()
        };
        let handle = self.of_system().spawn_scoped(scope, run).unwrap_or_else(|error| no_room(&error));
        scheduler().started(id, handle.thread().clone());
        SCOPES.with_borrow_mut(|scopes| {
            scopes.last_mut().expect("a scope that this thread has opened").push(id);
        });
        scheduler().step();
        Ok(())
    }
}

/// Ends the run: the system has no room for its threads. Says which there are.
fn no_room(error: &io::Error) -> ! {
    let state = scheduler().lock();
    let mut count = BTreeMap::<String, usize>::new();
    for thread in state.threads.iter().filter(|thread| !thread.is_finished) {
        let process = &state.processes[thread.process];
        let name =
            format!("{}/{}{}", process.name, thread.name, if process.is_dead { ", killed" } else { "" });
        *count.entry(name).or_default() += 1;
    }
    drop(state);
    println!("broken law: the system has no room for a thread ({error}): {count:#?}");
    crate::run::fail()
}

fn spawn_as<T: Send + 'static>(
    id: ThreadId,
    builder: &Builder,
    body: impl FnOnce() -> T + Send + 'static,
) -> JoinHandle<T> {
    let result = Arc::new(Mutex::new(None));
    let returned = Arc::clone(&result);
    let run = move || {
        scheduler().enter(id);
        let outcome = catch_unwind(AssertUnwindSafe(body));
        *returned.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
    };
    let of_system = builder.of_system().spawn(run).unwrap_or_else(|error| no_room(&error));
    scheduler().started_alone(id, of_system);
    scheduler().step();
    JoinHandle { thread: Thread(id), result }
}

/// Starts a thread of another process.
pub(crate) fn start_in(process: usize, name: &str, body: impl FnOnce() + Send + 'static) {
    let id = scheduler().lock().add_thread(name, process);
    drop(spawn_as(id, &Builder::new(), body));
}

/// Starts a thread.
///
/// # Panics
///
/// If the system has no room for it.
pub fn spawn<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    Builder::new().spawn(body).expect("the system has room for a thread")
}

/// Opens a scope, and returns once the threads that were started in it have ended.
pub fn scope<'env, T>(body: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> T) -> T {
    struct Joins;
    impl Drop for Joins {
        fn drop(&mut self) {
            let started = SCOPES.with_borrow_mut(Vec::pop).unwrap_or_default();
            started.into_iter().for_each(wait_for);
        }
    }
    std::thread::scope(|scope| {
        SCOPES.with_borrow_mut(|scopes| scopes.push(Vec::new()));
        let _joins = Joins;
        body(scope)
    })
}

fn wait_for(id: ThreadId) {
    loop {
        let own = own();
        let mut state = scheduler().lock();
        if state.threads[id].is_finished {
            return;
        }
        state.threads[id].joining.push(own);
        scheduler().block_from(state, None);
    }
}

impl<T> JoinHandle<T> {
    /// Waits for its end.
    ///
    /// # Errors
    ///
    /// What it has panicked with.
    ///
    /// # Panics
    ///
    /// If it was killed, which leaves nothing to wait for.
    pub fn join(self) -> std::thread::Result<T> {
        wait_for(self.thread.0);
        let outcome = self.result.lock().unwrap_or_else(PoisonError::into_inner).take();
        outcome.expect("it has ended")
    }
}

impl Thread {
    /// Has it return from the park that it is in, or comes to next.
    pub fn unpark(&self) {
        scheduler().lock().unpark(self.0);
        scheduler().step();
    }

    /// Returns what tells it from others.
    #[must_use]
    pub fn id(&self) -> usize {
        self.0
    }
}

/// Returns the handle of the calling thread.
#[must_use]
pub fn current() -> Thread {
    Thread(own())
}

/// Returns the time at which so much time will have passed by the process's clock.
pub(crate) fn after(time: Duration) -> Nanos {
    let own = own();
    let state = scheduler().lock();
    state.now + state.processes[state.threads[own].process].true_time(time)
}

/// Waits until another thread unparks this one.
pub fn park() {
    scheduler().park(None);
}

/// The same, for at most this time.
pub fn park_timeout(time: Duration) {
    scheduler().park(Some(after(time)));
}

/// Waits for this time.
pub fn sleep(time: Duration) {
    let until = after(time);
    while scheduler().now() < until {
        scheduler().block(Some(until));
    }
}

/// Returns true if the calling thread unwinds from a panic.
#[must_use]
pub fn panicking() -> bool {
    std::thread::panicking()
}

/// Lets another thread run.
pub fn yield_now() {
    scheduler().yield_now();
}
