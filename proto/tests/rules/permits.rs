//! What each reply leads to.

mod pauses;

use std::time::Duration;

use setnx_lock_proto::acquire::Params;
use setnx_lock_proto::lease::Lease;
use setnx_lock_proto::values::{Nonce, Now, Protocol, Tag, Terms, Uptime, ValueBytes, Wall};
use setnx_lock_proto::{Command, Cue, GiveUp, Note, Pause, Replies, Reply, Trip, WhyRefused};
use setnx_lock_search::stepped::{Action, Held, Stepped};

const HOUR: Duration = Duration::from_secs(3600);
const POLL: Duration = Duration::from_millis(100);
const SLOTS: usize = 3;
const PAST: &[u8] = b"1532000016.5";

fn start() -> Now {
    Now { wall: Wall(1_795_000_000_000_000), uptime: Uptime::of(HOUR) }
}

fn later(time: Duration) -> Now {
    Now { wall: start().wall.after(time), uptime: start().uptime.after(time) }
}

fn params(terms: Terms) -> Params {
    let tag = Tag { nonce: Nonce::from_random(7), name: None };
    let terms = Terms { poll_interval: POLL, ..terms };
    Params { terms, protocol: Protocol::Classic, deadline: None, retry_for: HOUR, tag }
}

fn expiring() -> Terms {
    Terms::expiring_after(Duration::from_secs(10))
}

#[track_caller]
fn pause(action: Action) -> Pause {
    match action {
        Action::Sleep(pause) => pause,
        action => panic!("{action:?}"),
    }
}

#[track_caller]
fn sleeps(action: Action) -> Duration {
    pause(action).time
}

#[track_caller]
fn held(action: Action) -> Held {
    match action {
        Action::Held(held) => held,
        action => panic!("{action:?}"),
    }
}

/// Begins, and returns also which lock is asked for and what is written.
fn asking(terms: Terms) -> (Stepped, usize, ValueBytes) {
    let (attempt, action) = Stepped::start(params(terms), SLOTS, start());
    let (slot, value) = asks(&action);
    (attempt, slot, value)
}

#[track_caller]
fn asks(action: &Action) -> (usize, ValueBytes) {
    let Action::Ask { slot, trip: Trip { command: Command::SetNx(entry), .. } } = action else {
        panic!("{action:?}")
    };
    assert!(*slot < SLOTS);
    (*slot, entry.value.clone())
}

/// A value that is held for so long.
fn held_for(seconds: u64) -> Option<Vec<u8>> {
    Some(format!("{}.5", 1_795_000_000 + seconds).into_bytes())
}

fn all(value: Option<Vec<u8>>) -> Reply {
    Reply::Bulks(vec![value; SLOTS])
}

/// What the locks hold if all are held but those.
fn but(others: &[(usize, Option<&[u8]>)]) -> Reply {
    let mut values = vec![held_for(60); SLOTS];
    for (slot, value) in others {
        values[*slot] = value.map(<[u8]>::to_vec);
    }
    Reply::Bulks(values)
}

const TAKEN: Reply = Reply::Integer(0);
const GRANTED: Reply = Reply::Integer(1);

#[test]
fn what_is_asked_for_is_held_if_it_was_free() {
    for (found, expected) in [
        (all(held_for(60)), false),
        (but(&[(0, None), (1, None), (2, None)]), true),
        (but(&[(0, Some(PAST)), (1, Some(PAST)), (2, Some(PAST))]), true),
        // Others that wait may know of a release that this one does not.
        (Reply::Lost, true),
        (Reply::Refused(WhyRefused::Command), true),
    ] {
        let (mut attempt, asked, value) = asking(expiring());
        let action = attempt.asked(&GRANTED, &found, start());
        let held = held(action);
        assert_eq!((held.slot, held.lease.value), (asked, value));
        assert_eq!(held.another_is_free, expected, "{found:?}");
    }
}

#[test]
fn a_grant_after_its_lease_is_not_used() {
    let (mut attempt, slot, _) = asking(expiring());
    let action = attempt.asked(&GRANTED, &all(held_for(60)), later(Duration::from_secs(10)));
    sleeps(action);
    assert_eq!(attempt.notes(), [(slot, Note::LateGrant)]);
}

#[test]
fn what_is_free_is_tried_before_what_has_expired() {
    for _ in 0..20 {
        let (mut attempt, asked, first) = asking(expiring());
        let (free, expired) = ((asked + 2) % SLOTS, (asked + 1) % SLOTS);
        let action = attempt.asked(&TAKEN, &but(&[(free, None), (expired, Some(PAST))]), start());
        let Action::Send { slot, trip: Trip { command: Command::SetNx(entry), .. } } = action else {
            panic!("{action:?}")
        };
        assert_eq!(slot, free);
        assert_ne!(entry.value, first, "no value is sent twice");
        // Another client was faster, so the next is tried.
        let action = attempt.reply(TAKEN, start());
        let action = match action {
            Action::Send { slot, trip: Trip { command: Command::Get, .. } } if slot == free => {
                attempt.reply(Reply::Bulk(held_for(60)), start())
            }
            action => action,
        };
        let expected = Trip::of(Command::Get);
        assert_eq!(action, Action::Send { slot: expired, trip: expected });
        let action = attempt.reply(Reply::Bulk(Some(PAST.to_vec())), start());
        let Action::Send { slot, trip: Trip { command: Command::GetSet(value), .. } } = action else {
            panic!("{action:?}")
        };
        assert_eq!(slot, expired);
        let action = attempt.reply(Reply::Bulk(Some(PAST.to_vec())), start());
        let held = held(action);
        assert_eq!((held.slot, held.lease.value, held.another_is_free), (expired, value, false));
        assert_eq!(attempt.notes().len(), 1);
    }
}

#[test]
fn the_one_that_was_asked_for_is_taken_over_if_it_has_expired() {
    let (mut attempt, asked, _) = asking(expiring());
    let action = attempt.asked(&TAKEN, &but(&[(asked, Some(PAST))]), start());
    assert_eq!(action, Action::Send { slot: asked, trip: Trip::of(Command::Get) });
}

#[test]
fn three_that_looked_free_are_tried_in_a_row() {
    let (mut attempt, action) = Stepped::start(params(expiring()), 8, start());
    assert!(matches!(action, Action::Ask { .. }));
    let mut action = attempt.asked(&TAKEN, &Reply::Bulks(vec![None; 8]), start());
    let mut tried = Vec::new();
    while let Action::Send { slot, trip } = &action {
        tried.push(*slot);
        let reply = if trip.command == Command::Get { Reply::Bulk(held_for(60)) } else { TAKEN };
        action = attempt.reply(reply, start());
    }
    tried.dedup();
    assert_eq!(tried.len(), 3, "{tried:?}");
    assert_eq!(sleeps(action), POLL);
}

#[test]
fn held_locks_are_waited_for_until_the_first_expires() {
    let (mut attempt, ..) = asking(expiring());
    assert_eq!(sleeps(attempt.asked(&TAKEN, &all(held_for(60)), start())), POLL);
    let (_, second) = asks(&attempt.woken(later(POLL)));
    let (mut other, _, first) = asking(expiring());
    assert_ne!(first, second);
    // Earlier than the pause, and a microsecond more.
    let soon = Some(b"1795000000.05".to_vec());
    let mut values = vec![held_for(60), Some(b"1".to_vec()), Some(b"rubbish".to_vec())];
    values[0] = soon;
    let action = other.asked(&TAKEN, &Reply::Bulks(values), start());
    assert_eq!(sleeps(action), Duration::from_micros(50_001));
    // Without an expiration none is taken over.
    let (mut waits, ..) = asking(Terms::without_expiration());
    assert_eq!(sleeps(waits.asked(&TAKEN, &all(Some(PAST.to_vec())), start())), POLL);
}

#[test]
fn a_lost_reply_is_resolved_by_a_look() {
    // Carried out, as a look on another connection shows.
    let (mut attempt, asked, value) = asking(expiring());
    assert_eq!(attempt.asked(&Reply::Lost, &Reply::Lost, start()), Action::Look);
    let held_lock = held(attempt.reply(but(&[(asked, Some(&value))]), start()));
    assert_eq!((held_lock.slot, held_lock.lease.value, held_lock.another_is_free), (asked, value, false));

    // Not carried out, and all are held.
    let (mut attempt, asked, value) = asking(expiring());
    attempt.asked(&Reply::Lost, &Reply::Lost, start());
    assert!(!pause(attempt.reply(all(held_for(60)), start())).in_doubt);
    // It was late, and is found by any look that follows.
    asks(&attempt.woken(later(POLL)));
    let action = attempt.asked(&TAKEN, &but(&[(asked, Some(&value))]), later(POLL));
    let late = held(action);
    assert_eq!((late.slot, late.lease.value), (asked, value));

    // The look is lost, too: it is repeated after a pause, and nothing else is sent.
    let (mut attempt, ..) = asking(expiring());
    attempt.asked(&Reply::Lost, &Reply::Lost, start());
    assert!(pause(attempt.reply(Reply::Lost, start())).in_doubt);
    assert_eq!(attempt.woken(later(POLL)), Action::Look);
    let action = attempt.reply(Reply::Lost, later(2 * HOUR));
    assert_eq!(action, Action::GiveUp(GiveUp::Unknown));

    // A value that names no holder says nothing.
    let (mut attempt, ..) = asking(Terms::without_expiration());
    let action = attempt.asked(&Reply::Lost, &Reply::Lost, start());
    assert_eq!(action, Action::GiveUp(GiveUp::Unknown));
}

#[test]
fn the_lost_reply_of_a_lock_that_is_tried_is_resolved_by_a_look_at_all() {
    let lost = || {
        let (mut attempt, asked, _) = asking(expiring());
        let free = (asked + 1) % SLOTS;
        let action = attempt.asked(&TAKEN, &but(&[(free, None)]), start());
        let Action::Send { slot, trip: Trip { command: Command::SetNx(entry), .. } } = action else {
            panic!("{action:?}")
        };
        assert_eq!(slot, free);
        let action = attempt.reply(Reply::Lost, start());
        assert_eq!(action, Action::Send { slot, trip: Trip::of(Command::Get) });
        (attempt, free, entry)
    };
    // It arrives when another has had the lock meanwhile.
    let (mut attempt, free, entry) = lost();
    assert_eq!(sleeps(attempt.reply(Reply::Bulk(held_for(60)), start())), POLL);
    asks(&attempt.woken(later(POLL)));
    let found = held(attempt.asked(&TAKEN, &but(&[(free, Some(&entry.value))]), later(POLL)));
    assert_eq!((found.slot, found.lease.value), (free, entry.value));
    // The look at this lock is lost as well.
    let (mut attempt, free, entry) = lost();
    let mut action = attempt.reply(Reply::Lost, start());
    while let Action::Send { trip: Trip { command: Command::Get, .. }, .. } = action {
        action = attempt.reply(Reply::Lost, start());
    }
    let pause = pause(action);
    assert_eq!((pause.time, pause.in_doubt), (POLL, true));
    assert_eq!(attempt.woken(later(POLL)), Action::Look);
    let action = attempt.reply(but(&[(free, Some(&entry.value))]), start());
    let held = held(action);
    assert_eq!((held.slot, held.lease.value), (free, entry.value));
}

#[test]
fn the_lost_look_at_an_expired_lock_does_not_end_the_wait() {
    let (mut attempt, asked, _) = asking(expiring());
    let mut action = attempt.asked(&TAKEN, &but(&[(asked, Some(PAST))]), start());
    while let Action::Send { trip: Trip { command: Command::Get, .. }, .. } = action {
        action = attempt.reply(Reply::Lost, start());
    }
    assert_eq!(sleeps(action), POLL);
    asks(&attempt.woken(later(POLL)));
}

#[test]
fn a_takeover_without_a_reply_leaves_the_attempt_in_doubt() {
    let (mut attempt, asked, _) = asking(expiring());
    attempt.asked(&TAKEN, &but(&[(asked, Some(PAST))]), start());
    let action = attempt.reply(Reply::Bulk(Some(PAST.to_vec())), start());
    let Action::Send { trip: Trip { command: Command::GetSet(value), .. }, .. } = action else {
        panic!("{action:?}")
    };
    assert!(matches!(attempt.reply(Reply::Lost, start()), Action::Send { .. }));
    // Its value in the key proves nothing: it may have overwritten another's.
    assert!(pause(attempt.reply(Reply::Bulk(Some(value.to_vec())), start())).in_doubt);
}

#[test]
fn of_two_that_were_acquired_without_a_reply_one_is_owed() {
    let (mut attempt, first, value) = asking(expiring());
    attempt.asked(&Reply::Lost, &Reply::Lost, start());
    attempt.reply(all(held_for(60)), start());
    // It is late; meanwhile another is asked for, and that reply is lost, too.
    let mut now = later(POLL);
    let (second, other) = loop {
        let (slot, other) = asks(&attempt.woken(now));
        if slot != first {
            break (slot, other);
        }
        sleeps(attempt.asked(&TAKEN, &all(held_for(60)), now));
        now = Now { wall: now.wall.after(POLL / 10), uptime: now.uptime.after(POLL / 10) };
    };
    assert_eq!(attempt.asked(&Reply::Lost, &Reply::Lost, now), Action::Look);
    let found = but(&[(first, Some(&value)), (second, Some(&other))]);
    let held = held(attempt.reply(found, now));
    assert_eq!((held.slot, held.lease.value), (second, other), "the one that lasts longer");
    let owed: Vec<_> = attempt.owed.iter().map(|(slot, lease)| (*slot, lease.value.clone())).collect();
    assert_eq!(owed, [(first, value)]);
}

#[test]
fn what_comes_late_beside_what_is_granted_is_owed() {
    let (mut attempt, first, value) = asking(expiring());
    attempt.asked(&Reply::Lost, &Reply::Lost, start());
    attempt.reply(all(held_for(60)), start());
    let now = later(POLL);
    loop {
        let (slot, granted) = asks(&attempt.woken(now));
        if slot == first {
            sleeps(attempt.asked(&TAKEN, &all(held_for(60)), now));
            continue;
        }
        let action = attempt.asked(&GRANTED, &but(&[(first, Some(&value)), (slot, Some(&granted))]), now);
        assert_eq!(held(action).slot, slot);
        let owed: Vec<_> = attempt.owed.iter().map(|(slot, lease)| (*slot, lease.value.clone())).collect();
        return assert_eq!(owed, [(first, value)]);
    }
}

#[test]
fn a_key_that_is_no_lock_is_tried_once() {
    let (mut attempt, asked, _) = asking(expiring());
    let wrong = (asked + 1) % SLOTS;
    // MGET shows what is not a string as absent.
    let found = but(&[(wrong, None)]);
    let action = attempt.asked(&TAKEN, &found, start());
    assert!(matches!(action, Action::Send { slot, .. } if slot == wrong), "{action:?}");
    attempt.reply(TAKEN, start());
    assert_eq!(sleeps(attempt.reply(Reply::Refused(WhyRefused::NoLock), start())), POLL);
    // The others are waited for.
    let (mut now, mut others) = (later(POLL), 0);
    while others == 0 {
        let (slot, _) = asks(&attempt.woken(now));
        others += usize::from(slot != wrong);
        sleeps(attempt.asked(&TAKEN, &found, now));
        now = Now { wall: now.wall.after(POLL), uptime: now.uptime.after(POLL) };
    }

    let (mut attempt, ..) = asking(expiring());
    let mut action = attempt.asked(&TAKEN, &all(None), start());
    let mut tried = Vec::new();
    while let Action::Send { slot, trip } = action {
        tried.push(slot);
        action = attempt.reply(
            if trip.command == Command::Get { Reply::Refused(WhyRefused::NoLock) } else { TAKEN },
            start(),
        );
    }
    assert_eq!(action, Action::GiveUp(GiveUp::Refused), "none is a lock");
    tried.dedup();
    assert_eq!(tried.len(), SLOTS);
}

#[test]
fn what_is_refused_or_not_sent_ends_the_attempt() {
    for (set, found, reason) in [
        (Reply::Refused(WhyRefused::Command), Reply::Unsent, GiveUp::Refused),
        (Reply::Refused(WhyRefused::NoLock), Reply::Unsent, GiveUp::Refused),
        (Reply::Unsent, Reply::Unsent, GiveUp::Unsent),
        (TAKEN, Reply::Refused(WhyRefused::Command), GiveUp::Refused),
        (TAKEN, Reply::Unsent, GiveUp::Unsent),
    ] {
        let (mut attempt, ..) = asking(expiring());
        assert_eq!(attempt.asked(&set, &found, start()), Action::GiveUp(reason), "{set:?}, {found:?}");
    }
}
