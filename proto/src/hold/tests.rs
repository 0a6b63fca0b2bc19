//! What a reply leads to that comes after the lease.

use std::time::Duration;

use super::*;
use crate::fencing::Epoch;
use crate::task::{Rules, Task};
use crate::values::{Uptime, Wall};
use crate::{Replies, Step, WhyRefused};

const EXPIRATION: Duration = Duration::from_secs(10);

fn at(time: Duration) -> Now {
    let (wall, uptime) = (Wall(1_795_000_000_000_000), Uptime::of(Duration::from_secs(3600)));
    Now { wall: wall.after(time), uptime: uptime.after(time) }
}

fn own() -> Lease {
    Lease::beginning(at(Duration::ZERO), Some(EXPIRATION), Protocol::Watched, Nonce::from_random(7))
}

/// What a gem writes that loses the takeover.
const LOSERS: &[u8] = b"1795000010.999";

#[test]
fn a_change_that_was_carried_out_is_not_judged_again() {
    let (soon, late) = (at(Duration::from_millis(500)), at(EXPIRATION));
    let (own, found) = (own(), Reply::Bulk(Some(LOSERS.to_vec())));
    let end = own.end;
    let (mut task, _) = Task::begin(at(Duration::ZERO), async move |io| release(io, &own).await);
    // Its own bytes were expected, so nothing was sent.
    let step = task.resume(Replies { found: Some(found.clone()), ..Replies::default() }, soon);
    let Step::Send(Trip { command: Command::Del, before, if_holds: Some(expected), .. }) = step else {
        panic!("it looks again: {step:?}")
    };
    assert_eq!((expected.bytes.as_slice(), before), (LOSERS, end), "a loser's bytes are not deleted later");
    let done = Some(Reply::Executed(Some(1)));
    let step = task.resume(Replies { found: Some(found), reply: done, ..Replies::default() }, late);
    assert_eq!(step, Step::Done(Release::Released { certified: false }));
}

#[test]
fn what_an_extension_has_written_is_changed_after_the_lease_too() {
    let (mut own, late) = (own(), at(2 * EXPIRATION));
    let extended = own.next(EXPIRATION, Nonce::from_random(7), at(Duration::from_secs(1)));
    own.may_have_become(&extended, true, at(Duration::from_secs(1)));
    let found = Reply::Bulk(Some(extended.value.to_vec()));
    let (mut task, _) = Task::begin(at(Duration::ZERO), async move |io| release(io, &own).await);
    let step = task.resume(Replies { found: Some(found), ..Replies::default() }, late);
    let Step::Send(Trip { before, if_holds: Some(expected), .. }) = step else {
        panic!("it looks again: {step:?}")
    };
    assert_eq!((expected.bytes, before), (extended.value.to_vec(), None));
}

#[test]
fn a_change_of_our_value_that_was_not_sent_in_time_is_tried_again() {
    let own = own();
    let unsent = || Replies { found: Some(Reply::Bulk(Some(own.value.to_vec()))), ..Replies::default() };
    let (lease, now) = (own.clone(), at(Duration::from_secs(1)));
    let (mut task, first) = Task::begin(now, async move |io| release(io, &lease).await);
    assert_eq!(task.resume(unsent(), now), first, "the thread that was to send it has not");
    let done = Some(Reply::Executed(Some(1)));
    let step = task.resume(Replies { reply: done, ..unsent() }, now);
    assert_eq!(step, Step::Done(Release::Released { certified: true }));
}

#[test]
fn a_number_after_the_lease_is_a_token_only_where_no_failover_can_have_brought_our_value_back() {
    let (own, late) = (own(), at(EXPIRATION));
    for (epoch, counted) in
        [(None, Counted::Token((5 << 32) + 1)), (Some(Epoch(5)), Counted::Lost(Loss::Expired))]
    {
        let (lease, found) = (own.clone(), Some(Reply::Bulk(Some(own.value.to_vec()))));
        let (mut task, _) = Task::begin(at(Duration::ZERO), async move |io| count(io, &lease, None).await);
        let reply = Some(Reply::Executed(Some((5 << 32) + 1)));
        let step = task.resume(Replies { found, reply, epoch, ..Replies::default() }, late);
        assert_eq!(step, Step::Done(counted), "{epoch:?}");
    }
}

#[test]
fn a_full_server_is_sent_no_deletion_alone_while_a_transaction_may_yet_come() {
    let (now, refused) = (at(Duration::from_secs(1)), Some(Reply::Refused(WhyRefused::OverMemory)));
    for (before, goes_on) in [(GiveUp::Unsent, true), (GiveUp::Unknown, false)] {
        for own in [own(), own().by_own_bytes_only()] {
            let found = Some(Reply::Bulk(Some(own.value.to_vec())));
            let own = own.again(before, None, now).expect("its lease has not passed");
            let (mut ending, _) =
                Task::begin(now, async move |io| end(io, &own, None, EXPIRATION / 10).await);
            let step = ending.resume(Replies { found, reply: refused.clone(), ..Replies::default() }, now);
            let looks = matches!(step, Step::Send(Trip { command: Command::Get, .. }));
            assert_eq!(looks, goes_on, "{step:?} after {before:?}");
        }
    }
}
