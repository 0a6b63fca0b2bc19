//! Permits that are handed over in a pause, and how long a pause lasts.

use super::*;

/// A lease that a holder has written for the attempt.
fn written(protocol: Protocol) -> Lease {
    Lease::of(&expiring(), protocol, &params(expiring()).tag, start())
}

#[test]
fn a_permit_that_is_handed_over_is_held() {
    let lease = written(Protocol::Classic);
    let sleeping = || {
        let (mut attempt, ..) = asking(expiring());
        sleeps(attempt.asked(&TAKEN, &all(held_for(60)), start()));
        attempt
    };
    let hand_over = |mut attempt: Stepped, now| attempt.handed_over(1, lease.clone(), false, now);
    let held = |another_is_free| Action::Held(Held { slot: 1, lease: lease.clone(), another_is_free });
    assert_eq!(hand_over(sleeping(), start()), held(false));
    // What it leaves to other processes is free, and no other thread knows.
    let mut attempt = sleeping();
    assert!(pause(attempt.wake(Cue::Leave(later(POLL).uptime), start())).leaves);
    assert_eq!(hand_over(attempt, start()), held(true));
    let action = hand_over(sleeping(), later(expiring().expiration.unwrap()));
    assert!(matches!(action, Action::Sleep(_)), "too late: {action:?}");
}

#[test]
fn a_permit_that_may_have_been_handed_over_is_looked_for() {
    let lease = written(Protocol::Watched);
    let (mut attempt, ..) = asking(expiring());
    attempt.asked(&TAKEN, &all(held_for(60)), start());
    let action = attempt.handed_over(1, lease.clone(), true, start());
    assert_eq!(action, Action::Look);
    let action = attempt.reply(but(&[(1, Some(&lease.value))]), start());
    assert_eq!(held(action).slot, 1);
    // In Classic its bytes would prove nothing.
    let (mut attempt, ..) = asking(expiring());
    attempt.asked(&TAKEN, &all(held_for(60)), start());
    asks(&attempt.handed_over(1, written(Protocol::Classic), true, start()));
}

#[test]
fn locks_are_left_to_other_processes_for_that_time_and_no_longer() {
    let terms = Terms { poll_interval: HOUR, ..expiring() };
    let params = Params { terms, ..params(expiring()) };
    let until = later(POLL).uptime;
    let waiting = |params| {
        let (mut attempt, _) = Stepped::start(params, SLOTS, start());
        attempt.asked(&TAKEN, &all(held_for(60)), start());
        attempt
    };
    let mut attempt = waiting(params.clone());
    assert_eq!(sleeps(attempt.wake(Cue::Leave(until), start())), POLL);
    let half = later(POLL / 2);
    assert_eq!(sleeps(attempt.wake(Cue::Leave(until), half)), POLL / 2);
    asks(&attempt.woken(later(POLL)));
    // Not beyond the deadline, where it asks once more.
    let params = Params { deadline: Some(half.uptime), ..params };
    let mut attempt = waiting(params);
    assert_eq!(sleeps(attempt.wake(Cue::Leave(until), start())), POLL / 2);
    asks(&attempt.wake(Cue::Leave(until), half));
    assert_eq!(attempt.asked(&TAKEN, &all(held_for(60)), half), Action::GiveUp(GiveUp::Timeout));
}

#[test]
fn in_ttl_the_pause_ends_when_the_server_removes_a_permit_that_looks_expired() {
    let terms = Terms { poll_interval: HOUR, ..Terms::expiring_after(HOUR) };
    let params = Params { terms, protocol: Protocol::Ttl, ..params(terms) };
    let (mut rules, _) = Stepped::start(params, 1, start());
    let past = || Some(PAST.to_vec());
    let action = rules.asked(&Reply::Integer(0), &Reply::Bulks(vec![past()]), start());
    assert!(matches!(action, Action::Send { .. }), "{action:?}");
    let action = rules.reply(Reply::Bulk(past()), start());
    assert!(
        matches!(&action, Action::Send { trip, .. } if trip.if_holds.as_ref().is_some_and(|expected| expected.without_ttl)),
        "{action:?}"
    );
    let left = Duration::from_millis(40);
    let found = Some(Reply::Expiring(Box::new((PAST.to_vec(), left))));
    let action = rules.reply(Replies { found, ..Replies::default() }, start());
    assert_eq!(sleeps(action), left + Duration::from_millis(1));
}
