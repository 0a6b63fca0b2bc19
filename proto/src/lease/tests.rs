//! The ends of leases, and what their values show.

use super::*;

const fn at(wall: u64, uptime: u64) -> Now {
    Now { wall: Wall(wall * 1_000_000), uptime: Uptime::of(Duration::from_secs(uptime)) }
}

#[test]
fn the_wire_names_a_second_more_than_is_promised() {
    let lease = Lease::beginning(
        at(2_000_000_000, 50),
        Some(Duration::from_secs(10)),
        Protocol::Classic,
        Nonce::from_random(7),
    );
    assert_eq!(&*lease.value, b"2000000011.0000000000000007");
    assert!(!lease.has_passed(at(2_000_000_009, 59)));
    assert!(lease.has_passed(at(2_000_000_010, 59)), "by the wall clock");
    assert!(lease.has_passed(at(2_000_000_009, 60)), "by the monotonic clock");
}

#[test]
fn what_remains_is_by_the_clock_that_allows_less() {
    let end = End { wall: Wall(2_000_000_010_000_000), uptime: Uptime::of(Duration::from_secs(10)) };
    assert_eq!(end.remaining(at(2_000_000_004, 1)), Duration::from_secs(6));
    assert_eq!(end.remaining(at(2_000_000_001, 4)), Duration::from_secs(6));
    assert_eq!(end.remaining(at(2_000_000_099, 1)), Duration::ZERO);
    assert_eq!(end.remaining(at(4, 1)), Duration::ZERO, "a clock that cannot be right says nothing");
}

#[test]
fn it_may_be_overwritten_for_a_while_after_it_was_made_and_while_it_lasts() {
    let now = at(2_000_000_000, 50);
    let may_be = |expiration: Option<u64>, wall, uptime| {
        let expiration = expiration.map(Duration::from_millis);
        let lease = Lease::beginning(now, expiration, Protocol::Watched, Nonce::from_random(7));
        let after = |wall, uptime| Now { wall: now.wall.after(wall), uptime: now.uptime.after(uptime) };
        let then = after(Duration::from_millis(wall), Duration::from_millis(uptime));
        lease.overwritten_until().is_some_and(|end| !end.has_passed(then))
    };
    assert!(may_be(Some(3000), 699, 699));
    assert!(!may_be(Some(3000), 0, 700), "by the monotonic clock");
    assert!(!may_be(Some(3000), 700, 100), "the machine was suspended");
    assert!(!may_be(Some(500), 500, 499), "its lease has passed");
    assert!(!may_be(None, 0, 0), "its value names no holder");
}

#[test]
fn only_an_extension_after_the_lease_may_be_overwritten_anew() {
    let began = at(2_000_000_000, 50);
    let lease =
        |now| Lease::beginning(now, Some(Duration::from_secs(3)), Protocol::Watched, Nonce::from_random(7));
    for (seconds, since) in [(2, 50), (3, 53)] {
        let now = at(2_000_000_000 + seconds, 50 + seconds);
        let extended = lease(began).replaced_by(&lease(now), now);
        assert_eq!(extended.since, Uptime::of(Duration::from_secs(since)), "after {seconds} s");
    }
}

#[test]
fn what_replaces_a_losers_value_names_the_same_time_and_lasts_as_long() {
    let began = at(2_000_000_000, 50);
    let of = |protocol| {
        Lease::beginning(began, Some(Duration::from_secs(10)), protocol, Nonce::from_random(7))
            .ending_earlier(Duration::from_secs(2))
    };
    let again = of(Protocol::Ttl).written_again(Nonce::from_random(8), at(2_000_000_001, 51));
    assert_eq!(&*again.value, b"2000000020.0000000000000008");
    assert_eq!(again.ttl, Some(Duration::from_millis(9500)));
    let classic = of(Protocol::Classic);
    let again = classic.written_again(Nonce::from_random(8), at(2_000_000_001, 51));
    assert_eq!((again.ttl, again.end, again.since), (None, classic.end, classic.since));
}

#[test]
fn an_earlier_value_of_ttl_shows_the_same_end_on_an_older_server() {
    let began = at(2_000_000_000, 50);
    let lease =
        |protocol| Lease::beginning(began, Some(Duration::from_secs(10)), protocol, Nonce::from_random(7));
    for older in [Protocol::Watched, Protocol::Classic] {
        let ttl = lease(Protocol::Ttl);
        let extended = ttl.clone().on(Some(older));
        let extended = extended.next(Duration::from_secs(10), Nonce::from_random(8), at(2_000_000_005, 55));
        assert_eq!((extended.protocol, extended.ttl), (older, None));
        let Wrote::Before(end) = extended.wrote(&ttl.value) else { panic!("it is an earlier one") };
        assert_eq!(Some(end), ttl.end, "and not nine seconds later");
    }
}

#[test]
fn a_command_of_ttl_is_sent_within_four_seconds_whatever_the_allowance() {
    let now = at(2_000_000_000, 50);
    let sent_within = |expiration, early| {
        let nonce = Nonce::from_random(7);
        let lease = Lease::beginning(now, Some(Duration::from_secs(expiration)), Protocol::Ttl, nonce);
        let lease = lease.ending_earlier(Duration::from_secs(early));
        (lease.sent_before().unwrap().remaining(now).as_secs(), lease.end.unwrap().remaining(now).as_secs())
    };
    assert_eq!(sent_within(60, 0), (4, 60));
    assert_eq!(sent_within(15, 5), (4, 10));
    assert_eq!(sent_within(6, 3), (3, 3));
    assert_eq!(sent_within(2, 0), (2, 2));
}

#[test]
fn without_an_expiration_it_never_passes() {
    let lease = Lease::beginning(at(2_000_000_000, 50), None, Protocol::Classic, Nonce::from_random(7));
    assert_eq!(&*lease.value, b"1");
    assert!(!lease.has_passed(Now { wall: Wall::MAX, uptime: Uptime::MAX }));
}
