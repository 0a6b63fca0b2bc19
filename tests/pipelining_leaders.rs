//! Faults of the thread that sends a batch, its leader: it stalls, it panics, or the server refuses its connection.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, mpsc};

use libtest_mimic::Trial;
use redis::Commands as _;
use setnx_lock::{Error, Event, Lock, Observe};

use crate::support::contention::{LostReplies, assert_nothing_sent_by_two, contention, pairs};
use crate::support::scenario::Scenario;
use crate::support::staged::{Packed, staged};
use crate::support::{LONG, Outcome, expiring, log_capture, millis, tests};

pub(crate) fn trials() -> Vec<Trial> {
    crate::support::trials(
        "pipelining_leaders",
        tests![
            a_leader_that_stalls,
            a_leader_that_panics,
            a_panic_before_the_reply_is_read,
            a_leader_that_finds_too_many_clients,
        ],
    )
}

const THREADS: usize = 12;
/// How many commands the batch with a fault has at least.
const MIN_BATCH: usize = 4;

/// The commands of the batch with a fault, once it is sent.
#[derive(Clone, Default)]
struct Chosen(Arc<OnceLock<Vec<[String; 2]>>>);

impl Chosen {
    /// Whether this is the batch: the first that is long enough and as wanted.
    fn is(&self, batch: Packed<'_>, wanted: impl Fn(&[[String; 2]]) -> bool) -> bool {
        let commands = batch.commands();
        commands.len() >= MIN_BATCH && wanted(&commands) && self.0.set(commands).is_ok()
    }

    /// The commands of the other threads, once the batch is sent.
    fn batched(&self) -> Option<&[[String; 2]]> {
        self.0.get().map(|commands| &commands[1..])
    }
}

fn a_leader_that_stalls() -> Outcome {
    log_capture::open();
    let scenario = Scenario::set()?;
    let (chosen, lost_replies) = (Chosen::default(), LostReplies::default());
    let late = Arc::new(Mutex::new(Vec::new()));
    let (lost, came) = (lost_replies.clone(), Arc::clone(&late));
    let observer = move |event: &Event<'_>| {
        lost.event(event);
        if let Event::CarriedOutLate { key, command, .. } = event {
            came.lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push([(*command).to_owned(), key.to_string()]);
            // The thread that sent the batch does not notice.
            resume_unwind(Box::new("on purpose"));
        }
    };
    let (end, stall) = mpsc::channel::<()>();
    let (stalls, stall) = (chosen.clone(), Mutex::new(stall));
    let locker = staged::<true>(&scenario.proxy.url(), 2, move |inner, packed, replies| {
        let acquires = |commands: &[[String; 2]]| commands[1..].iter().any(|[name, _]| name == "SETNX");
        let is_it = stalls.is(packed, acquires);
        packed.carry(inner, replies)?;
        if is_it {
            let _ended = stall.lock().unwrap().recv_timeout(LONG);
        }
        Ok(())
    })
    .observed_by(observer);
    let mut end = Some(end);
    let errors = contention(
        THREADS,
        "the other threads of the batch give up",
        || {
            let lost = lost_replies.keys();
            let batched = chosen.batched();
            let all_gave_up = batched.is_some_and(|all| all.iter().all(|[_, key]| lost.contains(key)));
            if all_gave_up {
                end = None;
            }
            all_gave_up
        },
        // No other test uses these keys, since all share one log.
        |n| pairs(&scenario.target, &locker, &format!("stalled:{n}"), expiring().timeout(millis(500))),
    );
    let batched = chosen.batched().expect("it was sent");
    // The threads of the batch get an unknown outcome or have read it. The others get no error.
    for (n, error) in &errors {
        let key = format!("stalled:{n}");
        assert!(batched.iter().any(|[_, other]| *other == key), "{error:?}");
        assert!(matches!(error, Error::Unknown { .. } | Error::Io { .. }), "{error:?}");
    }
    for [name, key] in batched {
        let warnings = log_capture::warnings_about(key);
        let granted =
            warnings.iter().filter(|line| line.contains("the lock has no holder until it expires")).count();
        assert_eq!(granted, usize::from(name == "SETNX"), "{name} {key}: {warnings:?}");
    }
    let mut changed: Vec<_> = batched.iter().filter(|[name, _]| name != "GET").cloned().collect();
    let mut late = late.lock().unwrap_or_else(PoisonError::into_inner).clone();
    changed.sort();
    late.sort();
    assert_eq!(late, changed, "an event for each command that changed its key");
    assert_nothing_sent_by_two(&scenario.proxy);
    Ok(())
}

const PANIC: &str = "on purpose";

fn a_leader_that_panics() -> Outcome {
    let scenario = Scenario::set()?;
    let (chosen, lost_replies) = (Chosen::default(), LostReplies::default());
    let panics = chosen.clone();
    let locker = staged::<true>(&scenario.proxy.url(), 1, move |inner, packed, replies| {
        packed.carry(inner, replies)?;
        if panics.is(packed, |_| true) {
            // Without the panic hook, whose backtrace takes long.
            resume_unwind(Box::new(PANIC.to_owned()));
        }
        Ok(())
    })
    .observed_by(lost_replies.clone());
    let panicked = AtomicUsize::new(0);
    let errors = contention(
        THREADS,
        "a panic",
        || panicked.load(Ordering::SeqCst) > 0,
        |n| {
            let key = format!("own:{n}");
            let mut pair = pairs(&scenario.target, &locker, &key, expiring().timeout(LONG));
            let (mut direct, panicked) = (scenario.target.connection(), &panicked);
            move || {
                catch_unwind(AssertUnwindSafe(&mut pair)).unwrap_or_else(|panic| {
                    if panic.downcast_ref::<String>().is_none_or(|text| text != PANIC) {
                        resume_unwind(panic);
                    }
                    // Its command was executed.
                    let () = direct.del(&key).unwrap();
                    panicked.fetch_add(1, Ordering::SeqCst);
                    Ok(())
                })
            }
        },
    );
    assert_eq!(panicked.into_inner(), 1);
    // Each of the others resolves its outcome by reading.
    assert!(errors.is_empty(), "{errors:?}");
    let mut keys: Vec<&String> = chosen.batched().expect("it was sent").iter().map(|[_, key]| key).collect();
    keys.sort();
    assert_eq!(lost_replies.keys().iter().collect::<Vec<_>>(), keys);
    assert_nothing_sent_by_two(&scenario.proxy);
    Ok(())
}

fn a_panic_before_the_reply_is_read() -> Outcome {
    let scenario = Scenario::set()?;
    let locker = staged::<true>(&scenario.proxy.url(), 1, move |inner, packed, replies| {
        if packed.commands()[0][1] == "first" {
            inner.send_packed_command(packed.bytes)?;
            resume_unwind(Box::new(PANIC.to_owned()));
        }
        packed.carry(inner, replies)
    });
    let lock = |key: &str| Lock::new(&locker, key, expiring());
    let first = lock("first")?;
    assert!(catch_unwind(AssertUnwindSafe(|| first.try_lock())).is_err());
    // On the same connection this SETNX would get the reply to the other.
    let () = scenario.target.connection().set("second", "1895000000.5")?;
    assert!(lock("second")?.try_lock()?.is_none());
    Ok(())
}

fn a_leader_that_finds_too_many_clients() -> Outcome {
    let scenario = Scenario::set()?;
    let (chosen, lost_replies) = (Chosen::default(), LostReplies::default());
    let refused = chosen.clone();
    let locker = staged::<true>(&scenario.proxy.url(), 1, move |inner, packed, replies| {
        // A release that leads does not wait until the server has room.
        if refused.is(packed, |commands| commands[0][0] == "SETNX") {
            // As a server that closes the connection then.
            replies.push(redis::parse_redis_value(b"-ERR max number of clients reached\r\n")?);
            return Ok(());
        }
        packed.carry(inner, replies)
    })
    .observed_by(lost_replies.clone());
    let errors = contention(
        THREADS,
        "a refused batch",
        || chosen.batched().is_some(),
        |n| pairs(&scenario.target, &locker, &format!("own:{n}"), expiring().timeout(LONG)),
    );
    // No command was executed, so all are sent again.
    assert!(errors.is_empty(), "{errors:?}");
    assert!(lost_replies.keys().is_empty());
    assert_nothing_sent_by_two(&scenario.proxy);
    let connections = scenario.proxy.asked().iter().map(|asked| asked.connection).max();
    assert_eq!(connections, Some(1), "the connection is not used again");
    Ok(())
}
