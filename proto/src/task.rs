//! Runs an `async fn` that does no I/O, one trip to the server at a time.
//!
//! The rules are straight-line async code: send a command, look at its reply, send the next. At each `await` the
//! compiler keeps where the code is and what its variables hold, so a caller can stop the rules and resume them; no
//! runtime is needed. [`Io::send`] leaves the trip in a cell and is pending until the replies are in another;
//! [`Task::resume`] puts them there, polls once, and takes out the next trip. So the caller decides when the code goes
//! on: the driver once the server has answered, a test at any moment. The README has an example.

use alloc::boxed::Box;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::fmt;
use core::future;
use core::ops::DerefMut;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};

use super::{Cue, GiveUp, Note, Pause, Replies, Step, Trip};
use crate::values::Now;

/// What the code of a task sees of the world.
pub struct Io {
    asked: Cell<Option<Awaited>>,
    replies: Cell<Option<Replies>>,
    cue: Cell<Option<Cue>>,
    now: Cell<Now>,
    notes: RefCell<Vec<Note>>,
}

impl fmt::Debug for Io {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Io").field("now", &self.now()).finish_non_exhaustive()
    }
}

enum Awaited {
    Trip(Trip),
    Pause(Pause),
}

impl Io {
    /// Makes what code sees of the world, which begins at this time.
    pub fn new(now: Now) -> Self {
        Self {
            asked: Cell::default(),
            replies: Cell::default(),
            cue: Cell::default(),
            now: Cell::new(now),
            notes: RefCell::default(),
        }
    }

    /// Returns the time at which the last reply was read, or the last pause ended.
    pub fn now(&self) -> Now {
        self.now.get()
    }

    /// Makes a trip to the server, and returns the replies.
    #[inline]
    pub fn send(&self, trip: Trip) -> impl Future<Output = Replies> {
        self.asked.set(Some(Awaited::Trip(trip)));
        future::poll_fn(|_| self.replies.take().map_or(Poll::Pending, Poll::Ready))
    }

    /// Pauses, and returns how to go on.
    pub async fn sleep(&self, pause: Pause) -> Cue {
        self.asked.set(Some(Awaited::Pause(pause)));
        future::poll_fn(|_| self.cue.take().map_or(Poll::Pending, Poll::Ready)).await
    }

    /// Notes something to be reported.
    pub(super) fn note(&self, note: Note) {
        self.notes.borrow_mut().push(note);
    }

    /// Takes what is to be reported since the last step.
    pub fn take_notes(&self) -> Vec<Note> {
        if self.notes.borrow().is_empty() { Vec::new() } else { self.notes.take() }
    }

    /// Lets the code go on after its trip.
    pub fn answer(&self, replies: Replies, now: Now) {
        self.now.set(now);
        self.replies.set(Some(replies));
    }

    /// Lets the code go on after its pause.
    pub fn wake(&self, cue: Cue, now: Now) {
        self.now.set(now);
        self.cue.set(Some(cue));
    }

    /// Runs code with this `Io` to its next trip or pause, or its end.
    pub fn step<T>(&self, code: Pin<&mut (impl Future<Output = Result<T, GiveUp>> + ?Sized)>) -> Step<T> {
        match code.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok(outcome)) => Step::Done(outcome),
            Poll::Ready(Err(reason)) => Step::GiveUp(reason),
            Poll::Pending => match self.asked.take() {
                Some(Awaited::Trip(trip)) => Step::Send(trip),
                Some(Awaited::Pause(pause)) => Step::Sleep(pause),
                None => unreachable!("rules wait for nothing but a reply or a pause"),
            },
        }
    }
}

/// Rules that have begun, and go on from the replies to one trip to the next.
pub trait Rules {
    /// What the rules come to.
    type Outcome;

    /// Goes on after the trip of the last step.
    fn resume(&mut self, replies: impl Into<Replies>, now: Now) -> Step<Self::Outcome>;

    /// Takes what is to be reported since the last step.
    fn take_notes(&self) -> Vec<Note>;
}

/// Code that has been begun where its caller keeps it: on the stack, or in a box.
#[derive(Debug)]
pub struct Begun<'a, P> {
    io: &'a Io,
    code: Pin<P>,
}

impl<'a, T, P: DerefMut<Target: Future<Output = Result<T, GiveUp>>>> Begun<'a, P> {
    /// Begins `code`, which was made with this `Io`. Returns its first step with it.
    #[inline]
    pub fn begin(io: &'a Io, mut code: Pin<P>) -> (Self, Step<T>) {
        let step = io.step(code.as_mut());
        (Self { io, code }, step)
    }
}

impl<T, P: DerefMut<Target: Future<Output = Result<T, GiveUp>>>> Rules for Begun<'_, P> {
    type Outcome = T;

    #[inline]
    fn resume(&mut self, replies: impl Into<Replies>, now: Now) -> Step<T> {
        self.io.answer(replies.into(), now);
        self.io.step(self.code.as_mut())
    }

    #[inline]
    fn take_notes(&self) -> Vec<Note> {
        self.io.take_notes()
    }
}

/// Code that has been begun, and waits for the replies to the trip of its last [`Step`].
pub struct Task<T> {
    io: Rc<Io>,
    code: Pin<Box<dyn Future<Output = Result<T, GiveUp>>>>,
}

impl<T> Task<T> {
    /// Begins `code`. Returns its first step with it.
    pub fn begin(now: Now, code: impl AsyncFnOnce(&Io) -> Result<T, GiveUp> + 'static) -> (Self, Step<T>) {
        let io = Rc::new(Io::new(now));
        let own = Rc::clone(&io);
        let mut task = Self { code: Box::pin(async move { code(&own).await }), io };
        let step = task.step();
        (task, step)
    }

    fn step(&mut self) -> Step<T> {
        self.io.step(self.code.as_mut())
    }
}

impl<T> Rules for Task<T> {
    type Outcome = T;

    fn resume(&mut self, replies: impl Into<Replies>, now: Now) -> Step<T> {
        self.io.answer(replies.into(), now);
        self.step()
    }

    fn take_notes(&self) -> Vec<Note> {
        self.io.take_notes()
    }
}

impl<T> Task<T> {
    /// Returns what the code sees of the world.
    pub fn io(&self) -> &Io {
        &self.io
    }

    /// Goes on after the pause of the last step.
    pub fn wake(&mut self, cue: Cue, now: Now) -> Step<T> {
        self.io.wake(cue, now);
        self.step()
    }
}

impl<T> fmt::Debug for Task<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Task").field("now", &self.io.now()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;
    use crate::values::{Uptime, Wall};
    use crate::{Command, Reply, WhyRefused};

    /// Code as a rule has it.
    async fn is_ours(io: &Io, own: Vec<u8>) -> Result<bool, GiveUp> {
        for _ in 0..2 {
            match io.send(Trip::of(Command::Get)).await.plain() {
                Reply::Bulk(found) => return Ok(found.as_ref() == Some(&own)),
                Reply::Lost => {}
                _ => return Err(GiveUp::Refused),
            }
        }
        Err(GiveUp::Io)
    }

    #[test]
    fn a_task_stops_at_each_trip_and_goes_on_with_its_reply() {
        let (look, now) = (Trip::of(Command::Get), Now { wall: Wall(0), uptime: Uptime::of(Duration::ZERO) });
        let begin = || Task::begin(now, async |io| is_ours(io, b"5.25".to_vec()).await);
        let (mut task, step) = begin();
        assert_eq!(step, Step::Send(look.clone()));
        assert_eq!(task.resume(Reply::Lost, now), Step::Send(look.clone()));
        assert_eq!(task.resume(Reply::Bulk(Some(b"5.25".to_vec())), now), Step::Done(true));

        let (mut other, _) = begin();
        let (mut third, _) = begin();
        assert_eq!(
            other.resume(Reply::Refused(WhyRefused::Command), now),
            Step::GiveUp(GiveUp::Refused),
            "one does not disturb another"
        );
        assert_eq!(third.resume(Reply::Bulk(None), now), Step::Done(false));
    }
}
