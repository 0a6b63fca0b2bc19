//! What the files are made of where every schedule is tried, as weakly ordered as the standard library's. And signals, that come at a
//! bad time.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};
use std::rc::Rc;
use std::sync::Arc;
pub(super) use std::sync::{PoisonError, TryLockError};

pub(super) use loom::sync::atomic;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread::{self, ThreadId};

/// A word, and what it protects; the inner mutexes are never waited for. Whoever does not get it sleeps, as far as the checker is
/// concerned: it would follow two that ask again and again for ever.
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

    pub(super) fn lock(&self) -> Result<MutexGuard<'_, T>, PoisonError<MutexGuard<'_, T>>> {
        loop {
            match self.try_lock() {
                Ok(guard) => return Ok(guard),
                Err(TryLockError::Poisoned(poisoned)) => return Err(poisoned),
                Err(TryLockError::WouldBlock) => {
                    self.waiting.lock().unwrap().push(thread::current());
                    thread::park();
                }
            }
        }
    }

    pub(super) fn try_lock(&self) -> Result<MutexGuard<'_, T>, TryLockError<MutexGuard<'_, T>>> {
        match self.locked.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => {}
            Err(_) => return Err(TryLockError::WouldBlock),
        }
        let inner = self.inner.try_lock().expect("whoever has the word has it alone");
        Ok(MutexGuard { mutex: self, inner: Some(inner) })
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
        self.inner.as_ref().expect("it is there until it is dropped")
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.inner.as_mut().expect("it is there until it is dropped")
    }
}

/// A thread, and the token that it wakes by: the checker's own is taken away by any other wait.
#[derive(Clone)]
pub(super) struct Thread {
    notification: Arc<AtomicBool>,
    thread: thread::Thread,
}

impl Thread {
    pub(super) fn id(&self) -> ThreadId {
        self.thread.id()
    }

    pub(super) fn unpark(&self) {
        Signal::may_come(When::Waking);
        self.notification.swap(true, Ordering::Release);
        self.thread.unpark();
    }
}

loom::thread_local! {
    static TOKEN: Arc<AtomicBool> = Arc::new(AtomicBool::new(false));
    static SIGNAL: RefCell<Option<Rc<Armed>>> = RefCell::new(None);
}

pub(super) fn current() -> Thread {
    Signal::may_come(When::Naming);
    Thread { notification: TOKEN.with(Arc::clone), thread: thread::current() }
}

pub(super) fn park() {
    let notification = TOKEN.with(Arc::clone);
    while !notification.swap(false, Ordering::Acquire) {
        thread::park();
    }
}

/// A signal to this thread: a handler that is called once, where the canceller has its mutex.
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

    pub(super) fn has_come(&self) -> bool {
        self.0.handler.borrow().is_none()
    }

    fn armed(when: When, handler: impl FnOnce() + 'static) -> Self {
        let armed = Rc::new(Armed { when, handler: RefCell::new(Some(Box::new(handler))) });
        SIGNAL.with(|signal| *signal.borrow_mut() = Some(Rc::clone(&armed)));
        Self(armed)
    }

    fn may_come(when: When) {
        let armed = SIGNAL.with(|signal| signal.borrow().clone());
        let handler =
            armed.filter(|armed| armed.when == when).and_then(|armed| armed.handler.borrow_mut().take());
        if let Some(handler) = handler {
            handler();
        }
    }
}
