//! What a reply leads to that comes after the lease.

use std::time::Duration;

use super::*;
use crate::rules::Step;
use crate::rules::task::Task;
use crate::values::clock::{Uptime, Wall};
use crate::values::identity::Identity;

const EXPIRATION: Duration = Duration::from_secs(10);

fn at(time: Duration) -> Now {
    let (wall, uptime) = (Wall(1_795_000_000_000_000), Uptime::of(Duration::from_secs(3600)));
    Now { wall: wall.after(time), uptime: uptime.after(time) }
}

fn own() -> Owned {
    let lease = Lease::beginning(
        at(Duration::ZERO),
        Some(EXPIRATION),
        Protocol::Watched,
        Identity::new().next_nonce(),
    );
    Owned::new(lease, Protocol::Watched, Protocol::Watched)
}

/// What a gem writes that loses the takeover.
const LOSERS: &[u8] = b"1795000010.999";

#[test]
fn a_change_that_was_sent_with_its_watch_is_not_judged_again() {
    let (soon, late) = (at(Duration::from_millis(500)), at(EXPIRATION));
    let (own, found) = (own(), Reply::Bulk(Some(LOSERS.to_vec())));
    let end = own.lease.end;
    let (mut task, _) = Task::begin(at(Duration::ZERO), async move |io| release(io, own).await);
    task.resume(found.clone(), soon);
    // Its own bytes were expected, so nothing was sent.
    task.resume(Reply::Executed(None), soon);
    let plan = task.take_plan().expect("it watches again");
    assert_eq!(
        (plan.expected.as_slice(), plan.change.before),
        (LOSERS, end),
        "a loser's bytes are not deleted later"
    );
    let step = task.resume(found, late);
    assert!(matches!(step, Step::Send(Request { command: Command::Exec(Change::Del), .. })), "{step:?}");
    let step = task.resume(Reply::Executed(Some(1)), late);
    assert_eq!(step, Step::Done(Release::Released { certified: false }));
}

#[test]
fn what_an_extension_has_written_is_changed_after_the_lease_too() {
    let (mut own, late) = (own(), at(2 * EXPIRATION));
    let extended = own.next_lease(EXPIRATION, Identity::new().next_nonce(), at(Duration::from_secs(1)));
    own.lease.may_have_become(&extended, true, at(Duration::from_secs(1)));
    let found = Reply::Bulk(Some(extended.value.to_vec()));
    let (mut task, _) = Task::begin(at(Duration::ZERO), async move |io| release(io, own).await);
    task.resume(found.clone(), late);
    task.resume(Reply::Executed(None), late);
    let plan = task.take_plan().expect("it watches again");
    assert_eq!((plan.expected, plan.change.before), (extended.value.to_vec(), None));
}
