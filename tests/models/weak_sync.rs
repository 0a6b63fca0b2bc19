//! The synchronization primitives where every schedule is checked: loom's, with memory orders as weak as the standard
//! library's. And signals that arrive at a bad moment.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};
use std::rc::Rc;
use std::sync::Arc;

pub(super) use loom::sync::atomic;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread::{self, ThreadId};

/// An atomic flag and the data. A thread that finds it locked parks: the checker would follow a spinning thread for
/// ever. The inner mutexes are never contended.
pub(super) struct Mutex<T> {
    locked: AtomicBool,
    waiting: std::sync::Mutex<Vec<thread::Thread>>,
    inner: std::sync::Mutex<T>,
}

pub(super) struct MutexGuard<'a, T> {
    mutex: &'a Mutex<T>,
    inner: Option<std::sync::MutexGuard<'a, T>>,
}

impl<T> Mutex<T> {
    pub(super) fn new(value: T) -> Self {
        Self {
            locked: AtomicBool::new(false),
            waiting: std::sync::Mutex::default(),
            inner: std::sync::Mutex::new(value),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, T> {
        loop {
            if let Some(guard) = self.try_lock() {
                return guard;
            }
            self.waiting.lock().unwrap().push(thread::current());
            thread::park();
        }
    }

    pub(super) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.locked.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).ok()?;
        let inner = self.inner.try_lock().expect("only the thread that set the flag locks it");
        Some(MutexGuard { mutex: self, inner: Some(inner) })
    }
}

impl<T: Default> Default for Mutex<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        self.inner = None;
        self.mutex.locked.swap(false, Ordering::Release);
        for thread in self.mutex.waiting.lock().unwrap().drain(..) {
            thread.unpark();
        }
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.inner.as_ref().expect("the inner guard exists until the outer is dropped")
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.inner.as_mut().expect("the inner guard exists until the outer is dropped")
    }
}

/// A thread and its park token: loom's own token is consumed by any other wait.
#[derive(Clone)]
pub(super) struct Thread {
    token: Arc<AtomicBool>,
    thread: thread::Thread,
}

impl Thread {
    pub(super) fn id(&self) -> ThreadId {
        self.thread.id()
    }

    pub(super) fn unpark(&self) {
        Signal::deliver(When::Waking);
        self.token.swap(true, Ordering::Release);
        self.thread.unpark();
    }
}

loom::thread_local! {
    static TOKEN: Arc<AtomicBool> = Arc::new(AtomicBool::new(false));
    static SIGNAL: RefCell<Option<Rc<Armed>>> = RefCell::new(None);
}

pub(super) fn current() -> Thread {
    Signal::deliver(When::Naming);
    Thread { token: TOKEN.with(Arc::clone), thread: thread::current() }
}

pub(super) fn park() {
    let token = TOKEN.with(Arc::clone);
    while !token.swap(false, Ordering::Acquire) {
        thread::park();
    }
}

/// A signal to this thread: a handler that is called once, while this thread has the mutex of the cancel token.
pub(super) struct Signal(Rc<Armed>);

struct Armed {
    when: When,
    handler: RefCell<Option<Box<dyn FnOnce()>>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum When {
    Naming,
    Waking,
}

impl Signal {
    pub(super) fn before_the_next_thread_is_named(handler: impl FnOnce() + 'static) -> Self {
        Self::armed(When::Naming, handler)
    }

    pub(super) fn before_the_next_thread_is_woken(handler: impl FnOnce() + 'static) -> Self {
        Self::armed(When::Waking, handler)
    }

    pub(super) fn was_delivered(&self) -> bool {
        self.0.handler.borrow().is_none()
    }

    fn armed(when: When, handler: impl FnOnce() + 'static) -> Self {
        let armed = Rc::new(Armed { when, handler: RefCell::new(Some(Box::new(handler))) });
        SIGNAL.with(|signal| *signal.borrow_mut() = Some(Rc::clone(&armed)));
        Self(armed)
    }

    /// Calls the handler, if the signal is armed for this moment.
    fn deliver(when: When) {
        let armed = SIGNAL.with(|signal| signal.borrow().clone());
        let handler =
            armed.filter(|armed| armed.when == when).and_then(|armed| armed.handler.borrow_mut().take());
        if let Some(handler) = handler {
            handler();
        }
    }
}
