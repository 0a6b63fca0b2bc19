//! The rules of acquiring several locks at once, reply by reply.

use std::time::Duration;

use super::*;
use crate::clock::{Uptime, Wall};
use crate::options::LockOptions;
use crate::value::Nonce;

const START: u64 = 1_795_000_000_000_000;
const EXPIRATION: Duration = Duration::from_secs(10);
const PAST: &[u8] = b"1532000016.5";
const HELD: &[u8] = b"1895000000.5";

fn at(seconds: u64) -> Now {
    Now { wall: Wall(START + seconds * 1_000_000), uptime: Uptime(Duration::from_secs(seconds)) }
}

fn begin(protocol: Protocol, expiration: Option<Duration>, once: bool) -> (AcquiringAll, Next) {
    let keys: Arc<[Key]> = ["a", "b", "c"].map(Key::from).into();
    let options = expiration.map_or(LockOptions::without_expiration(), LockOptions::expiring_after);
    let params = Params {
        options: options.protocol(protocol),
        deadline: Some(at(10).uptime),
        retry_for: Duration::from_secs(5),
        nonce: Nonce::from_random(7),
    };
    AcquiringAll::start(keys, params, once, at(0))
}

fn lease() -> Lease {
    Lease::beginning(at(0), Some(EXPIRATION), Nonce::from_random(7))
}

fn bulks(values: [Option<&[u8]>; 3]) -> Vec<Reply> {
    values.into_iter().map(|value| Reply::Bulk(value.map(<[u8]>::to_vec))).collect()
}

fn command(next: &Next) -> &'static str {
    match next {
        Next::Send(request) => request.command.name(),
        Next::Watch => "WATCH",
        Next::Replace(_) => "EXEC",
        Next::Held { .. } => "held",
        Next::Contended { .. } => "contended",
        Next::Late => "late",
        Next::OneByOne(None) => "one by one",
        Next::OneByOne(Some(_)) => "one by one, it may come",
        Next::Pause(_) => "pause",
        Next::GiveUp(GiveUp::Unknown) => "unknown",
        Next::GiveUp(_) => "give up",
    }
}

#[test]
fn msetnx_comes_first_but_in_ttl() {
    for (protocol, first) in [
        (Protocol::Auto, "MSETNX"),
        (Protocol::Classic, "MSETNX"),
        (Protocol::Watched, "MSETNX"),
        (Protocol::Ttl, "WATCH"),
    ] {
        let (rules, next) = begin(protocol, Some(EXPIRATION), false);
        assert_eq!(command(&next), first);
        assert_eq!(rules.protocol(), protocol);
    }
    let (_, next) = begin(Protocol::Classic, Some(EXPIRATION), false);
    let Next::Send(request) = next else { panic!("{next:?}") };
    assert_eq!(request.before, lease().end, "it is not sent after its lease");
}

#[test]
fn what_follows_the_reply_to_msetnx() {
    let expiring = Some(EXPIRATION);
    for (protocol, expiration, once, reply, next) in [
        (Protocol::Classic, expiring, false, Reply::Integer(1), "held"),
        (Protocol::Classic, expiring, false, Reply::Integer(0), "one by one"),
        (Protocol::Classic, expiring, true, Reply::Integer(0), "MGET"),
        (Protocol::Auto, expiring, true, Reply::Integer(0), "MGET"),
        (Protocol::Watched, expiring, false, Reply::Integer(0), "WATCH"),
        (Protocol::Watched, expiring, true, Reply::Integer(0), "WATCH"),
        (Protocol::Watched, expiring, false, Reply::Integer(1), "held"),
        (Protocol::Classic, None, false, Reply::Integer(1), "held"),
        (Protocol::Watched, None, false, Reply::Integer(0), "one by one"),
        (Protocol::Classic, None, true, Reply::Integer(0), "MGET"),
        // The value of a lock without an expiration proves nothing.
        (Protocol::Classic, None, false, Reply::Lost, "unknown"),
        (Protocol::Classic, expiring, false, Reply::Lost, "MGET"),
        (Protocol::Classic, expiring, true, Reply::Lost, "MGET"),
        (Protocol::Classic, expiring, false, Reply::Refused, "one by one"),
        (Protocol::Classic, expiring, false, Reply::NoLock, "one by one"),
        (Protocol::Classic, expiring, false, Reply::TooLate, "one by one"),
        (Protocol::Classic, expiring, false, Reply::Unsent, "give up"),
    ] {
        let (mut rules, _) = begin(protocol, expiration, once);
        let then = rules.reply(&reply, at(1));
        assert_eq!(command(&then), next, "{protocol:?}, {expiration:?}, once: {once}, {reply:?}");
    }
}

#[test]
fn what_the_keys_hold_after_a_lost_reply_decides() {
    let ours = || Some(lease().value);
    let unresolved = || Some(Unresolved { lease: lease(), from: Vec::new() });
    for (reply, next) in [
        (Reply::Bulks(vec![ours(), ours(), ours()]), Next::Held { lease: lease(), from: Vec::new() }),
        (Reply::Bulks(vec![None, None, None]), Next::OneByOne(unresolved())),
        (Reply::Bulks(vec![ours(), None, ours()]), Next::OneByOne(unresolved())),
        (Reply::Bulks(vec![Some(HELD.to_vec()), None, None]), Next::OneByOne(unresolved())),
        (Reply::Refused, Next::OneByOne(unresolved())),
        (Reply::Unsent, Next::GiveUp(GiveUp::Unknown)),
    ] {
        let (mut rules, _) = begin(Protocol::Classic, Some(EXPIRATION), false);
        assert_eq!(command(&rules.reply(&Reply::Lost, at(1))), "MGET");
        assert_eq!(rules.reply(&reply, at(2)), next, "{reply:?}");
    }
}

#[test]
fn the_keys_are_read_until_the_server_is_unreachable_for_too_long() {
    let (mut rules, _) = begin(Protocol::Classic, Some(EXPIRATION), false);
    assert_eq!(command(&rules.reply(&Reply::Lost, at(1))), "MGET");
    for seconds in 1..6 {
        assert_eq!(command(&rules.reply(&Reply::Lost, at(seconds))), "pause", "after {seconds} s");
        assert_eq!(command(&rules.look()), "MGET");
    }
    assert_eq!(command(&rules.reply(&Reply::Lost, at(6))), "unknown");
}

#[test]
fn a_grant_after_the_lease_is_not_used() {
    for (seconds, next) in [(9, "held"), (10, "late"), (11, "late")] {
        let (mut rules, _) = begin(Protocol::Classic, Some(EXPIRATION), false);
        assert_eq!(command(&rules.reply(&Reply::Integer(1), at(seconds))), next, "after {seconds} s");
        let (mut rules, _) = begin(Protocol::Ttl, Some(EXPIRATION), false);
        assert_eq!(command(&rules.watched(&bulks([None; 3]), at(0))), "EXEC");
        let done = vec![Reply::Executed(Some(1)); 3];
        assert_eq!(command(&rules.replaced(&done, at(seconds))), next, "after {seconds} s");
    }
}

#[test]
fn what_each_key_holds_decides() {
    for (found, contended) in [
        ([None, None, None], None),
        ([None, Some(PAST), None], None),
        ([Some(PAST), Some(PAST), Some(PAST)], None),
        ([Some(PAST), Some(HELD), None], Some(1)),
        ([Some(HELD), Some(HELD), None], Some(0)),
        ([None, None, Some(b"1".as_slice())], Some(2)),
        ([None, Some(b"".as_slice()), None], Some(1)),
    ] {
        let (mut rules, _) = begin(Protocol::Watched, Some(EXPIRATION), false);
        let _ = rules.reply(&Reply::Integer(0), at(0));
        let next = rules.watched(&bulks(found), at(0));
        let (mut ttl, _) = begin(Protocol::Ttl, Some(EXPIRATION), false);
        let in_ttl = ttl.watched(&bulks(found), at(0));
        let (mut reading, _) = begin(Protocol::Classic, Some(EXPIRATION), true);
        let _ = reading.reply(&Reply::Integer(0), at(0));
        let read = reading.reply(&Reply::Bulks(found.map(|found| found.map(<[u8]>::to_vec)).to_vec()), at(0));
        match contended {
            None => {
                assert!(matches!(next, Next::Replace(Command::Exec(Change::Set(_)))), "{found:?}: {next:?}");
                assert_eq!(read, Next::OneByOne(None), "Classic takes over one at a time");
                let is_free = found == [None; 3];
                assert_eq!(command(&in_ttl), if is_free { "EXEC" } else { "one by one" }, "{found:?}");
            }
            Some(place) => {
                let seen = LockState::of_value(found[place]);
                assert_eq!(next, Next::Contended { index: place, seen: seen.clone() });
                assert_eq!(in_ttl, next);
                assert_eq!(read, Next::Contended { index: place, seen });
            }
        }
    }
}

#[test]
fn what_follows_a_watch_that_fails() {
    let mixed = || {
        let mut replies = bulks([None; 3]);
        replies[1] = Reply::NoLock;
        replies
    };
    for (replies, next) in [
        (vec![Reply::Refused; 3], "one by one"),
        (vec![Reply::Lost; 3], "one by one"),
        (vec![Reply::Lost], "one by one"),
        (vec![Reply::Unsent], "give up"),
        (mixed(), "one by one"),
    ] {
        let (mut rules, _) = begin(Protocol::Ttl, Some(EXPIRATION), false);
        assert_eq!(command(&rules.watched(&replies, at(0))), next, "{replies:?}");
    }
}

#[test]
fn what_follows_the_transaction() {
    let (done, not, lost) = (Reply::Executed(Some(1)), Reply::Executed(None), Reply::Lost);
    for (replies, next) in [
        ([done.clone(), done.clone(), done.clone()], "held"),
        ([not.clone(), not.clone(), not.clone()], "one by one"),
        ([Reply::Refused, Reply::Refused, Reply::Refused], "one by one"),
        ([lost.clone(), lost.clone(), lost], "MGET"),
        // As servers before 2.6.5 do.
        ([done.clone(), not, done], "MGET"),
    ] {
        let (mut rules, _) = begin(Protocol::Watched, Some(EXPIRATION), false);
        let _ = rules.reply(&Reply::Integer(0), at(1));
        let next_command = rules.watched(&bulks([None, Some(PAST), None]), at(2));
        let Next::Replace(Command::Exec(Change::Set(entry))) = next_command else {
            panic!("{next_command:?}")
        };
        assert_ne!(entry.value, lease().value, "no value is sent twice");
        assert_eq!(entry.ttl, None);
        let then = rules.replaced(&replies, at(3));
        assert_eq!(command(&then), next, "{replies:?}");
        let Next::Held { lease, from } = then else { continue };
        assert_eq!(lease.value, entry.value);
        assert_eq!(from, [LockState::Absent, LockState::of_value(Some(PAST)), LockState::Absent]);
    }
}
