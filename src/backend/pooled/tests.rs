//! How many commands go in a batch.

use std::sync::Arc;

use redis::Value;

use super::*;
use crate::backend::connections::fake::FakeConnection;
use crate::backend::limits::{Report, StopCheck};
use crate::clock::Uptime;
use crate::options::Protocol;

const LONG: Duration = Duration::from_secs(60);

fn limits(answered_by: Uptime) -> Limits<'static> {
    Limits {
        needs: Protocol::Classic,
        decided_at: clock::now(),
        waits_since: clock::uptime(),
        reachable_by: answered_by,
        accepted_by: answered_by,
        connected_by: answered_by,
        answered_by,
        held_until: None,
        stop: StopCheck::NEVER,
        pipelined: true,
        report: Report::NONE,
    }
}

/// Sends a command whose reply may take `limit` while `others` are queued with more time. Returns how many commands go in each batch.
fn batches(others: usize, limit: Duration) -> Vec<usize> {
    let fake = FakeConnection::answering(|count| (vec![Value::Int(1); count], None));
    let sent = Arc::clone(&fake.sent);
    let builder = r2d2::Pool::builder().max_size(1).test_on_check_out(false);
    let pooled = PooledBackend::new(builder.build(fake).unwrap());
    let (key, request) = (Key::from("k"), Request::at_any_time(Command::Del));
    let drive = |limit, batch| {
        let limits = limits(clock::uptime().after(limit));
        let (answers, _) = pooled.send(&key, &request, None, &limits, false, Some(batch)).unwrap();
        assert_eq!(answers.own.unwrap(), Reply::Integer(1));
    };
    let join = || {
        let job = || QueuedCommand::new(&key, &request, None, &limits(clock::uptime().after(LONG)));
        pooled.combiner.join(
            job,
            |_| true,
            |_| {
                thread::park_timeout(LONG);
                true
            },
        )
    };
    thread::scope(|scope| {
        let Joined::Leader { batch, .. } = join() else { panic!("no batch is in progress") };
        for _ in 0..others {
            scope.spawn(|| match join() {
                Joined::Leader { batch, .. } => drive(LONG, batch),
                Joined::Completed(outcome) => {
                    assert_eq!(outcome.answers().unwrap().own.unwrap(), Reply::Integer(1));
                    // I9: no other thread could have taken it since.
                    let is_back = format!("{:?}", pooled.pool).contains("idle_connections: 1");
                    assert!(is_back || others >= MAX_BATCH);
                }
                Joined::Abandoned => panic!("all have results"),
            });
        }
        while !format!("{:?}", pooled.combiner).contains(&format!("queued: {others},")) {
            thread::sleep(Duration::from_millis(1));
        }
        drive(limit, batch);
    });
    let sent = sent.lock().unwrap();
    sent.iter().map(|(_, count)| *count).collect()
}

#[test]
fn a_batch_has_a_largest_size_and_the_rest_go_in_the_next() {
    assert_eq!(batches(MAX_BATCH - 1, LONG), [MAX_BATCH]);
    assert_eq!(batches(MAX_BATCH + 20, LONG), [MAX_BATCH, 21]);
}

#[test]
fn a_leader_with_much_less_time_than_others_sends_alone() {
    assert_eq!(batches(5, DEFAULT_COMMAND_TIMEOUT / 2), [1, 5]);
}

#[test]
fn a_leader_that_has_waited_a_little_sends_for_others() {
    assert_eq!(batches(5, DEFAULT_COMMAND_TIMEOUT * 9 / 10), [6]);
}
