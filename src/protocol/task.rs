//! Runs an `async fn` that does no I/O, one command at a time.
//!
//! The rules are written as straight-line code: send a command, look at its reply, send the next. A function that could be stopped at
//! each command and continued later would do, and that is what `async` makes: at each `await` the compiler stores where the function is,
//! and what its variables hold. No runtime is needed. [`Io::send`] leaves the request in a cell and is pending until the reply is in
//! another; [`Task::resume`] puts the reply there, polls once, and takes out the next request. So the owner of the task decides when the
//! function goes on: the engine once the server has answered, a test at any moment.
//!
//! The test below has an example.

use std::cell::Cell;
use std::fmt;
use std::future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use super::{Change, GiveUp, Reply, Request, Step};
use crate::clock::Now;

/// What the code of a task sees of the world.
pub(crate) struct Io {
    asked: Cell<Option<Request>>,
    answer: Cell<Option<Reply>>,
    now: Cell<Now>,
    plan: Cell<Option<Plan>>,
}

/// What follows a WATCH whose key holds these bytes.
pub(crate) struct Plan {
    pub(crate) own: Vec<u8>,
    pub(crate) change: Change,
}

impl Io {
    /// Returns the time at which the last reply was read.
    pub(crate) fn now(&self) -> Now {
        self.now.get()
    }

    /// Sends a command, and returns its reply.
    pub(crate) async fn send(&self, request: Request) -> Reply {
        self.asked.set(Some(request));
        future::poll_fn(|_| self.answer.take().map_or(Poll::Pending, Poll::Ready)).await
    }

    /// Says what follows the next command, a WATCH, so that it can be sent along.
    pub(super) fn plan(&self, plan: Plan) {
        self.plan.set(Some(plan));
    }
}

/// Code that has been begun, and waits for the reply to the command of its last [`Step`].
pub(crate) struct Task<T> {
    io: Rc<Io>,
    code: Pin<Box<dyn Future<Output = Result<T, GiveUp>>>>,
}

impl<T> Task<T> {
    /// Begins `code`. Returns its first step with it.
    pub(crate) fn begin<F>(now: Now, code: impl FnOnce(Rc<Io>) -> F) -> (Self, Step<T>)
    where
        F: Future<Output = Result<T, GiveUp>> + 'static,
    {
        let io = Io {
            asked: Cell::default(),
            answer: Cell::default(),
            now: Cell::new(now),
            plan: Cell::default(),
        };
        let io = Rc::new(io);
        let mut task = Self { code: Box::pin(code(Rc::clone(&io))), io };
        let step = task.step();
        (task, step)
    }

    /// Goes on after the command of the last step.
    pub(crate) fn resume(&mut self, reply: Reply, now: Now) -> Step<T> {
        self.io.plan.set(None);
        self.io.now.set(now);
        self.io.answer.set(Some(reply));
        self.step()
    }

    /// Takes what follows the WATCH of the last step, if that is known.
    pub(crate) fn take_plan(&self) -> Option<Plan> {
        self.io.plan.take()
    }

    fn step(&mut self) -> Step<T> {
        match self.code.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok(outcome)) => Step::Done(outcome),
            Poll::Ready(Err(reason)) => Step::GiveUp(reason),
            Poll::Pending => match self.io.asked.take() {
                Some(request) => Step::Send(request),
                None => unreachable!("rules wait for nothing but a reply"),
            },
        }
    }
}

impl<T> fmt::Debug for Task<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Task").field("now", &self.io.now()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;
    use crate::protocol::Command;

    /// Code as a rule has it.
    async fn is_ours(io: Rc<Io>, own: Vec<u8>) -> Result<bool, GiveUp> {
        for _ in 0..2 {
            match io.send(Request::at_any_time(Command::Get)).await {
                Reply::Bulk(found) => return Ok(found.as_ref() == Some(&own)),
                Reply::Lost => {}
                _ => return Err(GiveUp::Refused),
            }
        }
        Err(GiveUp::Io)
    }

    #[test]
    fn a_task_stops_at_each_command_and_goes_on_with_its_reply() {
        let (look, now) = (Request::at_any_time(Command::Get), clock::now());
        let begin = || Task::begin(now, |io| is_ours(io, b"5.25".to_vec()));
        let (mut task, step) = begin();
        assert_eq!(step, Step::Send(look.clone()));
        assert_eq!(task.resume(Reply::Lost, now), Step::Send(look.clone()));
        assert_eq!(task.resume(Reply::Bulk(Some(b"5.25".to_vec())), now), Step::Done(true));

        let (mut other, _) = begin();
        let (mut third, _) = begin();
        assert_eq!(
            other.resume(Reply::Refused, now),
            Step::GiveUp(GiveUp::Refused),
            "one does not disturb another"
        );
        assert_eq!(third.resume(Reply::Bulk(None), now), Step::Done(false));
    }
}
