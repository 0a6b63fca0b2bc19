use std::cell::Cell;

use super::*;
use crate::backend::connections::fake::FakeConnection;
use crate::backend::limits::{Budget, Report};

#[test]
fn a_suspect_connection_that_cannot_be_closed_takes_its_permit_with_it() {
    let mut stuck = FakeConnection::answering(|_| (Vec::new(), None));
    stuck.is_stuck = true;
    let builder = r2d2::Pool::builder().max_size(2).test_on_check_out(false);
    let pool = Pool::shared(builder.build(stuck).unwrap());
    let reported = Cell::new(0);
    let report = |incident: Incident<'_>| {
        assert!(matches!(incident, Incident::ConnectionStuck));
        reported.set(reported.get() + 1);
    };
    let now = clock::now();
    let deadline = Some(now.uptime);
    let command_timeout = Duration::from_millis(100);
    let budget = Budget { deadline, unreachable_timeout: Duration::ZERO, command_timeout };
    let limits = Limits { report: Report(Some(&report)), ..Limits::within(budget, now) };
    for _ in 0..2 {
        assert!(matches!(pool.checkout(&limits), Err(Failure::NoConnection { .. })));
    }
    assert_eq!(reported.get(), 2);
    assert!(pool.permits.try_acquire().is_none(), "it has no connection left");
}
