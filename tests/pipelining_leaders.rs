//! Leaders that come to harm with others' commands aboard: they stall, panic, or are sent away.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, mpsc};

use libtest_mimic::Trial;
use redis::Commands as _;
use setnx_lock::{Error, RefusalKind};

use crate::support::contention::{LostReplies, assert_nothing_sent_by_two, contention, pairs};
use crate::support::scenario::Scenario;
use crate::support::staged::{Packed, staged};
use crate::support::{LONG, Outcome, expiring, log_capture, millis, tests};

pub(crate) fn trials() -> Vec<Trial> {
    crate::support::trials(
        "pipelining_leaders",
        tests![a_leader_that_stalls, a_leader_that_panics, a_leader_that_the_server_has_no_room_for],
    )
}

/// How many threads there are, and how many commands a trip has at least that comes to harm.
const THREADS: usize = 12;
const COMPANY: usize = 4;

/// The commands of the first trip with company, once it is under way.
#[derive(Clone, Default)]
struct Chosen(Arc<OnceLock<Vec<[String; 2]>>>);

impl Chosen {
    /// Whether this is the one.
    fn is(&self, trip: Packed<'_>, wanted: impl Fn(&[[String; 2]]) -> bool) -> bool {
        let commands = trip.commands();
        commands.len() >= COMPANY && wanted(&commands) && self.0.set(commands).is_ok()
    }

    /// What was taken along, if it is under way.
    fn batched(&self) -> Option<&[[String; 2]]> {
        self.0.get().map(|commands| &commands[1..])
    }
}

fn a_leader_that_stalls() -> Outcome {
    log_capture::open();
    let scenario = Scenario::set()?;
    let (chosen, lost_replies) = (Chosen::default(), LostReplies::default());
    let (open, door) = mpsc::channel::<()>();
    let (stalls, door) = (chosen.clone(), Mutex::new(door));
    let locker = staged::<true>(&scenario.proxy.url(), 2, move |inner, packed, replies| {
        let asks = |commands: &[[String; 2]]| commands[1..].iter().any(|[name, _]| name == "SETNX");
        let is_it = stalls.is(packed, asks);
        packed.carry(inner, replies)?;
        if is_it {
            let _opened = door.lock().unwrap().recv_timeout(LONG);
        }
        Ok(())
    })
    .observed_by(lost_replies.clone());
    let mut open = Some(open);
    let wrong = contention(
        THREADS,
        "passengers that give up",
        || {
            let without = lost_replies.keys();
            let batched = chosen.batched();
            let have_given_up = batched.is_some_and(|all| all.iter().all(|[_, key]| without.contains(key)));
            if have_given_up {
                open = None;
            }
            have_given_up
        },
        // Each key is used in one run of the test, since there is one log.
        |n| pairs(&scenario.target, &locker, &format!("stalled:{n}"), expiring().timeout(millis(500))),
    );
    let batched = chosen.batched().expect("it was under way");
    // Who was aboard is told that nobody knows, or has found out; all others have not noticed.
    for (n, error) in &wrong {
        let key = format!("stalled:{n}");
        assert!(batched.iter().any(|[_, other]| *other == key), "{error:?}");
        assert!(matches!(error, Error::Unknown { .. } | Error::Io { .. }), "{error:?}");
    }
    for [name, key] in batched {
        let reported = log_capture::warnings_about(key);
        let granted =
            reported.iter().filter(|line| line.contains("the lock has no holder until it expires")).count();
        assert_eq!(granted, usize::from(name == "SETNX"), "{name} {key}: {reported:?}");
    }
    assert_nothing_sent_by_two(&scenario.proxy);
    Ok(())
}

const PANICS: &str = "on stage";

fn a_leader_that_panics() -> Outcome {
    let scenario = Scenario::set()?;
    let (chosen, lost_replies) = (Chosen::default(), LostReplies::default());
    let panics = chosen.clone();
    let locker = staged::<true>(&scenario.proxy.url(), 1, move |inner, packed, replies| {
        packed.carry(inner, replies)?;
        assert!(!panics.is(packed, |_| true), "{PANICS}");
        Ok(())
    })
    .observed_by(lost_replies.clone());
    let panicked = AtomicUsize::new(0);
    let wrong = contention(
        THREADS,
        "a panic",
        || panicked.load(Ordering::SeqCst) > 0,
        |n| {
            let key = format!("own:{n}");
            let mut pair = pairs(&scenario.target, &locker, &key, expiring().timeout(LONG));
            let (mut direct, panicked) = (scenario.target.connection(), &panicked);
            move || {
                catch_unwind(AssertUnwindSafe(&mut pair)).unwrap_or_else(|panic| {
                    if panic.downcast_ref::<String>().is_none_or(|text| text != PANICS) {
                        resume_unwind(panic);
                    }
                    // Its command was carried out.
                    let () = direct.del(&key).unwrap();
                    panicked.fetch_add(1, Ordering::SeqCst);
                    Ok(())
                })
            }
        },
    );
    assert_eq!(panicked.into_inner(), 1);
    // The others find out by reading, each of them.
    assert!(wrong.is_empty(), "{wrong:?}");
    let mut keys: Vec<&String> =
        chosen.batched().expect("it was under way").iter().map(|[_, key]| key).collect();
    keys.sort();
    assert_eq!(lost_replies.keys().iter().collect::<Vec<_>>(), keys);
    assert_nothing_sent_by_two(&scenario.proxy);
    Ok(())
}

fn a_leader_that_the_server_has_no_room_for() -> Outcome {
    let scenario = Scenario::set()?;
    let (chosen, lost_replies) = (Chosen::default(), LostReplies::default());
    let crowded = chosen.clone();
    let locker = staged::<true>(&scenario.proxy.url(), 1, move |inner, packed, replies| {
        if crowded.is(packed, |_| true) {
            // As a server does it that closes the connection then.
            replies.push(redis::parse_redis_value(b"-ERR max number of clients reached\r\n")?);
            return Ok(());
        }
        packed.carry(inner, replies)
    })
    .observed_by(lost_replies.clone());
    let wrong = contention(
        THREADS,
        "a crowded trip",
        || chosen.batched().is_some(),
        |n| pairs(&scenario.target, &locker, &format!("own:{n}"), expiring().timeout(LONG)),
    );
    // Nothing was read, so what was taken along is sent again, and only its leader is told.
    let [(_, Error::Refused { refusal, .. })] = wrong.as_slice() else { panic!("{wrong:?}") };
    assert_eq!(refusal.kind(), RefusalKind::TooManyClients);
    assert!(lost_replies.keys().is_empty());
    assert_nothing_sent_by_two(&scenario.proxy);
    let connections = scenario.proxy.asked().iter().map(|asked| asked.connection).max();
    assert_eq!(connections, Some(1), "the connection is not used again");
    Ok(())
}
