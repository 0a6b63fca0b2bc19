//! `run`: a command under a lock.

mod child;
mod event;
mod events;
mod group;
mod guardian;
mod signals;
mod spinner;
mod starter;
mod supervisor;
mod terminal;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use log::LevelFilter;
use nix::sys::signal::Signal;
use setnx_lock::{CancelToken, Contention, Error, Key, Lock, LockGuard, LockOptions, LockState, LossReason};

use crate::arguments::{Condition, OnLoss, Run};
use crate::failure::Failure;
use crate::keys::{self, Found, KeyReport};
use crate::output;
use crate::server::Target;
use event::{Event, Status};
use events::RunEvent;
use group::Group;
use guardian::Guard;
pub(crate) use guardian::{GUARDIAN, guardian};
use spinner::Spinner;
pub(crate) use starter::start;
use supervisor::{Action, Supervisor};

/// How long a lease lasts unless given.
const EXPIRATION: Duration = Duration::from_secs(60);
/// For how long in all a lease is extended unless given: longer than a job takes that does not hang.
const AT_MOST: Duration = Duration::from_secs(24 * 60 * 60);
/// How long after the end of its lease others take a lock over.
const MARGIN: Duration = Duration::from_secs(1);
/// How often the clocks are looked at while the command runs.
const LONGEST_LOOK: Duration = Duration::from_secs(1);
const SHORTEST_LOOK: Duration = Duration::from_millis(1);
/// How often a process group is looked at that outlives the command.
const GROUP_LOOK: Duration = Duration::from_millis(500);
/// A wait that is not mentioned.
const SHORT: Duration = Duration::from_millis(50);
/// A lock needs a connection only while a command is on its way; the keeper thread and the display need one as well.
const CONNECTIONS: u32 = 3;
/// The longest name of a holder, in bytes.
const LONGEST_NAME: usize = 64;

pub(crate) fn run(arguments: &Run) -> Result<ExitCode, Failure> {
    child::find(arguments)?;
    let (events, received) = mpsc::channel();
    let cancel = CancelToken::new();
    let waiting = signals::listen(&cancel, events.clone())?;
    let target = Target::of(&arguments.server)?;
    let builder = arguments.outages.apply(target.locker().pool_size(CONNECTIONS), &arguments.server.url)?;
    let released_late = Arc::new(AtomicBool::new(false));
    let note = Arc::clone(&released_late);
    let builder = builder.observer(move |event: &setnx_lock::Event<'_>| {
        if matches!(event, setnx_lock::Event::ReleasedLate { .. }) {
            note.store(true, Ordering::Relaxed);
        }
        if output::is_json() {
            RunEvent::of(event).iter().for_each(output::event);
        }
    });
    let locker = match &arguments.name {
        Some(name) if !name.is_empty() => builder.holder_name(name),
        Some(_) => builder.holder_name(own_name()?),
        None => builder,
    };
    let locker = locker.build()?;
    let lock = Lock::new(&locker, arguments.key().clone(), options(arguments)?)?.cancelled_by(&cancel);
    let held = {
        let _display = Spinner::start(&lock, arguments.quiet || arguments.json);
        lock.lock()
    };
    drop(waiting);
    // A signal that came before the command has begun.
    if let Some(signal) = received.try_iter().find_map(|event| event.ending_signal()) {
        drop(held);
        return Ok(exit_code(Status::Signaled(signal as i32)));
    }
    let held = match held {
        Err(Error::Cancelled { .. }) => return Ok(exit_code(Status::Signaled(Signal::SIGINT as i32))),
        Err(Error::Contended { details, .. }) => return Err(contended(&target, lock.key(), *details)),
        held => held?,
    };
    let guard = Guard::start(arguments);
    let group = child::spawn(arguments, &held, &guard, &events)?;
    output::event(&RunEvent::started(group.id().as_raw(), &held));
    held.on_loss(move |reason| {
        // Once the command has ended there is nothing to be done about it.
        let _ = events.send(Event::Lost(reason));
    });
    let (status, lost) = Supervision { arguments, held: &held, group: &group }.wait(&received);
    guard.dismiss();
    // The release is tried once more.
    let tries_again = || {
        locker.shut_down();
        released_late.load(Ordering::Relaxed)
    };
    finished(arguments, held, status, lost, tries_again)
}

/// That another holder has the lock, until when, and which; or that the key holds what never frees itself.
fn contended(target: &Target, key: &Key, details: Contention) -> Failure {
    let Contention { waited, seen, .. } = details;
    // The key is read once more, for the time to live.
    let read = target.connect_for(key).and_then(|mut raw| keys::detail(&mut raw, key)).ok();
    let is_free = read.as_ref().is_some_and(|report| report.found == Found::State(LockState::Absent));
    let report = read
        .filter(|_| !is_free)
        .unwrap_or_else(|| KeyReport::of(key.clone(), Found::State(seen.unwrap_or(LockState::Absent))));
    let is_stuck = !is_free && report.is_stuck();
    let within = if waited < SHORT { String::new() } else { format!(" in {}", keys::rounded(waited)) };
    let now = keys::now();
    let by = report.held_by(now).map(|holder| format!(", by {holder}")).unwrap_or_default();
    Failure::of(
        if is_stuck { Condition::Stuck } else { Condition::Contended },
        format!("lock {key}: not acquired{within}: {}{by}", report.words(now)),
    )
}

fn options(arguments: &Run) -> Result<LockOptions, Failure> {
    let expiration = arguments.expiration.unwrap_or(EXPIRATION.max(arguments.hold_at_least));
    let at_most = arguments.auto_extend.unwrap_or(AT_MOST.max(expiration));
    if arguments.hold_at_least > expiration {
        return Err(Failure::usage(
            "--hold-at-least is longer than --expiration; shorten it, or lengthen the expiration",
        ));
    }
    if at_most < expiration {
        return Err(Failure::usage(
            "--auto-extend is shorter than --expiration; give the longest time that the command may take, or the expiration to disable extension",
        ));
    }
    let options = LockOptions::expiring_after(expiration)
        .poll_interval(arguments.poll)
        .protocol(arguments.protocol.into())
        .auto_extend(at_most)
        .hold_at_least(arguments.hold_at_least);
    let options = match (arguments.no_wait, arguments.wait_forever) {
        (true, _) => options.timeout(Duration::ZERO),
        (_, true) => options.wait_forever(),
        _ => options.timeout(arguments.timeout),
    };
    Ok(match arguments.notify {
        Some(notifies) => options.notify_waiters(notifies),
        None => options,
    })
}

/// The host and the process id.
fn own_name() -> Result<String, Failure> {
    let host =
        nix::unistd::gethostname().map_err(|error| Failure::system("cannot read the host's name", error))?;
    Ok(name_of(&host.to_string_lossy(), std::process::id()))
}

/// The name of a process. Of a host with a long name it has the end, which tells the pods of a deployment from each other.
fn name_of(host: &str, process: u32) -> String {
    let process = format!(":{process}");
    let mut begin = host.len().saturating_sub(LONGEST_NAME - process.len());
    while !host.is_char_boundary(begin) {
        begin += 1;
    }
    host[begin..].to_owned() + &process
}

/// Releases the lock after the command has ended, and says how it went.
fn finished(
    arguments: &Run,
    held: LockGuard,
    status: Status,
    lost: Option<LossReason>,
    tries_again: impl FnOnce() -> bool,
) -> Result<ExitCode, Failure> {
    let key = held.key().clone();
    let ends = held.expires_at();
    if lost.is_some() && !arguments.verbose {
        // What the release finds has been said.
        log::set_max_level(LevelFilter::Off);
    }
    let released = if arguments.keep { held.leave_to_expire() } else { held.release() };
    let lost = match (lost, released) {
        (Some(reason), _) => Some(reason.to_string()),
        (None, Err(Error::Lost { reason, .. })) => Some(reason.to_string()),
        (None, Err(_)) if tries_again() => None,
        (None, Err(_)) => {
            // Why is in the log.
            let until = ends.map_or_else(String::new, |end| format!(" until {}", keys::date(end + MARGIN)));
            log::warn!(
                "lock {key}: the command has ended in time, but others wait{until} for the lock to expire"
            );
            None
        }
        (None, Ok(())) => None,
    };
    match lost {
        Some(reason) if arguments.on_loss != OnLoss::Warn => Err(lost_failure(&key, &reason, status)),
        _ => Ok(exit_code(status)),
    }
}

fn lost_failure(key: &Key, reason: &str, status: Status) -> Failure {
    Failure::of(
        Condition::Lost,
        format!(
            "lock {key}: lost while the command ran: {reason}; the command {status}, another holder may have worked at the same time"
        ),
    )
}

fn exit_code(status: Status) -> ExitCode {
    match status {
        Status::Exited(code) => code.into(),
        // There are 64 signals.
        Status::Signaled(signal) => u8::try_from(128 + signal).unwrap_or(u8::MAX).into(),
    }
}

/// Waits for the command, and carries out what the supervisor says meanwhile.
struct Supervision<'a> {
    arguments: &'a Run,
    held: &'a LockGuard,
    group: &'a Group,
}

impl Supervision<'_> {
    fn wait(&self, received: &Receiver<Event>) -> (Status, Option<LossReason>) {
        let mut supervisor = Supervisor::new(self.arguments.on_loss);
        let mut kill_at: Option<Instant> = None;
        let (mut lost, mut ended) = (None, None);
        loop {
            if let Some(status) = ended
                && !self.group.exists()
            {
                return (status, lost);
            }
            let event = match kill_at.map(|at| at.saturating_duration_since(Instant::now())) {
                Some(left) => received.recv_timeout(left).unwrap_or(Event::GraceOver),
                None => match received.recv_timeout(self.until_next_look(lost.is_some(), ended.is_some())) {
                    Ok(event) => event,
                    // The keeper thread of the locker may be waiting for a server that hangs.
                    Err(_) => match self.held.loss_signal().reason() {
                        Some(reason) if lost.is_none() => Event::Lost(reason),
                        _ => continue,
                    },
                },
            };
            if let Event::Lost(reason) = &event {
                lost.get_or_insert(reason.clone());
            }
            let mut actions = supervisor.on(&event, terminal::is_ours());
            if let Event::Ended(status) = event {
                self.carry_out(&actions, &mut kill_at);
                if lost.is_some() && self.arguments.on_loss != OnLoss::Warn {
                    // What the command has left behind ends with it.
                    self.group.end_rest(kill_at);
                }
                output::event(&RunEvent::ended(status));
                if !self.arguments.wait_group {
                    return (status, lost);
                }
                ended = Some(status);
                continue;
            }
            while let Some(was_stopped) = self.carry_out(&actions, &mut kill_at) {
                // After a stop: the lease may have passed meanwhile.
                actions = match self.held.loss_signal().reason() {
                    Some(reason) => {
                        supervisor.on(&Event::Lost(lost.insert(reason).clone()), terminal::is_ours())
                    }
                    None => Vec::new(),
                };
                actions.extend(supervisor.on(&Event::Resumed { was_stopped }, terminal::is_ours()));
            }
        }
    }

    /// How long no event is waited for: until the lease ends, and not long, since a clock may be set.
    fn until_next_look(&self, is_lost: bool, has_ended: bool) -> Duration {
        if has_ended {
            return GROUP_LOOK;
        }
        let left = self.held.remaining().filter(|_| !is_lost);
        left.map_or(LONGEST_LOOK, |left| left.clamp(SHORTEST_LOOK, LONGEST_LOOK))
    }

    /// Returns true if this process was stopped, if it was to be, and goes on.
    fn carry_out(&self, actions: &[Action], kill_at: &mut Option<Instant>) -> Option<bool> {
        let mut was_stopped = None;
        for action in actions {
            match action {
                Action::Send(signal) => _ = self.group.send(*signal),
                Action::EndWithin => {
                    *kill_at = Some(Instant::now() + self.arguments.grace);
                    log::info!(
                        "sent SIGTERM to the command; SIGKILL follows in {}",
                        humantime::format_duration(self.arguments.grace)
                    );
                }
                Action::Kill => {
                    *kill_at = None;
                    if self.group.send(Signal::SIGKILL) {
                        log::info!("sent SIGKILL to the command");
                    } else {
                        output::warning(&format!(
                            "lock {}: the command goes on without the lock: it runs as another user, and has to be ended by hand",
                            self.held.key()
                        ));
                    }
                }
                Action::GiveTerminal => terminal::give(self.group.id()),
                Action::TakeTerminal => terminal::take_from(self.group.id()),
                Action::Stop { all } => {
                    was_stopped = Some(terminal::stop(*all));
                }
            }
        }
        was_stopped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_process_is_as_long_as_a_holders_at_most() {
        assert_eq!(name_of("web1", 77), "web1:77");
        assert_eq!(name_of("", 77), ":77");
        for length in [61, 62, 63, 64] {
            let host = "x".repeat(length - 1) + "y";
            let name = name_of(&host, 77);
            assert!(name.ends_with("y:77") && name.len() == (length + 3).min(64), "{name}");
        }
        // A character is not cut.
        assert_eq!(name_of(&"é".repeat(32), 77).len(), 63);
    }
}
