//! What several keys send over a connection that carries nothing else, and what comes of each.

mod beside;

use std::sync::{Arc, Mutex};
use std::time::Duration;
use std::{slice, thread};

use proto::values::{Key, Protocol};
use proto::{Expected, Reply};

use super::*;
use crate::net::connections::Connection;
use crate::net::connections::fake::{FakeConnection, closed, refused};
use crate::net::errors::Failure;
use crate::net::request::tests::{GET, SET};
use crate::net::{KeyTrip, Sent};
use crate::system::clock;

type Answer = (Vec<Value>, Option<redis::RedisError>);
/// A name, the replies to each trip, what is sent, what comes of each key, and whether the connection stays.
type Row = (&'static str, Vec<Answer>, &'static [&'static str], [&'static str; 2], bool);

fn bulk() -> Value {
    Value::BulkString(b"x".to_vec())
}

fn queued() -> Value {
    Value::SimpleString("QUEUED".into())
}

fn list(results: &[Value]) -> Value {
    Value::Array(results.to_vec())
}

fn short(outcome: Option<Result<Reply, Failure>>) -> String {
    match outcome {
        None => "-".into(),
        Some(Ok(Reply::Bulk(None))) => "nil".into(),
        Some(Ok(Reply::Bulk(Some(bytes)))) => String::from_utf8(bytes).unwrap(),
        Some(Ok(Reply::Executed(None))) => "not done".into(),
        Some(Ok(Reply::Executed(Some(_)))) => "done".into(),
        Some(Ok(Reply::Expiring(..))) => "expires".into(),
        Some(Ok(other)) => format!("{other:?}"),
        Some(Err(Failure::Refused(refusal))) => format!("{:?}", refusal.kind()),
        Some(Err(Failure::Lost(_))) => "lost".into(),
        Some(Err(other)) => format!("{other:?}"),
    }
}

/// What a key should hold.
fn x(without_ttl: bool) -> Expected {
    Expected { bytes: b"x".to_vec(), without_ttl }
}

/// Sets a key that should hold something.
fn set<'a>(key: &'a Key, expected: &'a Expected) -> KeyTrip<'a> {
    KeyTrip { if_holds: Some(expected), ..KeyTrip::of(key, &SET) }
}

/// Changes the keys, which should hold `x`, with GET behind each. Returns
/// what was sent, what came of each, and whether the connection stays.
fn changed(keys: [&str; 2], answers: &[Answer]) -> (Vec<String>, [String; 2], bool) {
    changed_on(&mut Wire::default(), [false; 2], keys, answers)
}

fn changed_on(
    wire: &mut Wire,
    without_ttl: [bool; 2],
    keys: [&str; 2],
    answers: &[Answer],
) -> (Vec<String>, [String; 2], bool) {
    let script = Arc::new(Mutex::new(answers.to_vec()));
    let connection = FakeConnection::answering(move |count| {
        let (replies, ended) = script.lock().unwrap().remove(0);
        assert!(ended.is_some() || replies.len() == count, "{replies:?}: {count}");
        (replies, ended)
    });
    let keys = keys.map(Key::from);
    let expected = without_ttl.map(x);
    let trips = [0, 1].map(|n| KeyTrip { behind: Some(&GET), ..set(&keys[n], &expected[n]) });
    let entries = begun(&trips);
    let after = exchange(wire, &mut connection.open(), &entries);
    let ended = outcomes(&entries, &trips).map(|sent| {
        let Sent { found, reply, behind, undecided, .. } = sent;
        let reply = if undecided.is_some() { "undecided".into() } else { short(reply) };
        format!("{}, {reply}, {}", short(found), short(behind))
    });
    let packed = connection.sent.lock().unwrap().iter().map(|packed| words(packed)).collect();
    (packed, ended, !after.out_of_order)
}

/// Returns what was packed, without lengths.
fn words(packed: &str) -> String {
    let words = packed.split("\r\n").filter(|line| !line.starts_with(['*', '$']));
    words.collect::<Vec<_>>().join(" ").trim_end().to_owned()
}

type Entries = Vec<Arc<Entry<Jobs, ()>>>;

/// The jobs of two trips that begin now, of a thread each.
fn begun(trips: &[KeyTrip<'_>; 2]) -> Entries {
    let begun = |trip| {
        let entry = Entry::new(Jobs::default());
        entry.job().set(slice::from_ref(trip), Protocol::Watched, false);
        entry
    };
    trips.iter().map(begun).collect()
}

/// Sends the jobs over a connection until nothing is open.
fn exchange(wire: &mut Wire, connection: &mut Connection, entries: &Entries) -> AfterTrip {
    // As another connection left it.
    wire.open = None;
    loop {
        wire.pack(entries, &Known::default(), clock::now());
        if wire.count() == 0 {
            return AfterTrip::default();
        }
        let (count, limit) = (wire.count(), Duration::from_secs(1));
        let ended = connection.exchange(&wire.packed.bytes, count, limit, &mut wire.replies);
        let after = wire.read(entries, ended);
        if after.out_of_order || !wire.is_watching() {
            return after;
        }
    }
}

fn outcomes(entries: &Entries, trips: &[KeyTrip<'_>; 2]) -> [Sent; 2] {
    [0, 1].map(|n| entries[n].job().all()[0].take_outcome(&trips[n]))
}

fn ok() -> Value {
    Value::Okay
}

fn oom() -> Value {
    refused("OOM command not allowed")
}

/// What two keys that are watched are answered, with MULTI.
fn looks(first: Value, second: Value) -> Answer {
    (vec![ok(), first, ok(), second, ok()], None)
}

fn found() -> Answer {
    looks(bulk(), bulk())
}

/// What two changes are answered, and the looks behind them.
fn exec(exec: Value) -> Answer {
    (vec![queued(), queued(), exec, bulk(), Value::Nil], None)
}

const KEYS: [&str; 2] = ["k0", "k1"];
const LOOKS: &str = "WATCH k0 GET k0 WATCH k1 GET k1 MULTI";
const CHANGES: &str = "SET k0 y SET k1 y EXEC GET k0 GET k1";

#[test]
fn several_keys_are_changed_by_one_transaction() {
    let table: [Row; 9] = [
        (
            "done",
            vec![found(), exec(list(&[ok(), ok()]))],
            &[LOOKS, CHANGES],
            ["x, done, x", "x, done, nil"],
            true,
        ),
        (
            "one holds something else",
            vec![looks(bulk(), Value::Nil), (vec![queued(), list(&[ok()]), bulk()], None)],
            &[LOOKS, "SET k0 y EXEC GET k0"],
            ["x, done, x", "nil, -, -"],
            true,
        ),
        (
            "none holds what is expected",
            vec![looks(Value::Nil, Value::Nil), (vec![ok()], None)],
            &[LOOKS, "DISCARD"],
            ["nil, -, -", "nil, -, -"],
            true,
        ),
        (
            "one is no string",
            vec![looks(bulk(), refused("WRONGTYPE list")), (vec![queued(), list(&[ok()]), bulk()], None)],
            &[LOOKS, "SET k0 y EXEC GET k0"],
            ["x, done, x", "WrongType, -, -"],
            true,
        ),
        (
            "no MULTI",
            vec![(vec![ok(), bulk(), ok(), bulk(), refused("ERR unknown command 'MULTI'")], None)],
            &[LOOKS],
            ["UnknownCommand, -, -", "UnknownCommand, -, -"],
            false,
        ),
        (
            "over its memory",
            vec![found(), (vec![oom(), oom(), refused("EXECABORT discarded"), bulk(), bulk()], None)],
            &[LOOKS, CHANGES],
            ["x, OverMemory, x", "x, OverMemory, x"],
            true,
        ),
        (
            "one fails in EXEC",
            vec![found(), exec(list(&[ok(), refused("ERR value is not an integer")]))],
            &[LOOKS, CHANGES],
            ["x, done, x", "x, Other, nil"],
            true,
        ),
        (
            "cut",
            vec![found(), (vec![queued()], Some(closed()))],
            &[LOOKS, CHANGES],
            ["x, lost, lost"; 2],
            false,
        ),
        ("cut before", vec![(vec![ok(), bulk()], Some(closed()))], &[LOOKS], ["lost, -, -"; 2], false),
    ];
    assert_changed(table);
}

/// Which of the keys it was for is unknown.
#[test]
fn a_transaction_that_is_not_carried_out_decides_nothing_about_a_key() {
    let table: [Row; 5] = [
        (
            "written meanwhile",
            vec![found(), exec(Value::Nil)],
            &[LOOKS, CHANGES],
            ["x, undecided, x", "x, undecided, nil"],
            true,
        ),
        (
            "refused for one of them",
            vec![found(), (vec![queued(), oom(), refused("EXECABORT discarded"), bulk(), bulk()], None)],
            &[LOOKS, CHANGES],
            ["x, undecided, x", "x, OverMemory, x"],
            true,
        ),
        (
            "EXEC is refused, and the transaction is open still",
            vec![found(), exec(oom()), (vec![ok()], None)],
            &[LOOKS, CHANGES, "DISCARD"],
            ["x, undecided, x", "x, undecided, nil"],
            true,
        ),
        (
            "refused in several slots",
            vec![
                found(),
                exec(refused("CROSSSLOT Keys")),
                (vec![refused("ERR DISCARD without MULTI")], None),
            ],
            &[LOOKS, CHANGES, "DISCARD"],
            ["x, undecided, x", "x, undecided, nil"],
            true,
        ),
        (
            "one key has changed before, and the other since",
            vec![looks(bulk(), Value::Nil), (vec![queued(), Value::Nil, bulk()], None)],
            &[LOOKS, "SET k0 y EXEC GET k0"],
            ["x, undecided, x", "nil, -, -"],
            true,
        ),
    ];
    assert_changed(table);
}

fn assert_changed<const N: usize>(table: [Row; N]) {
    for (name, answers, sent, outcomes, stays) in table {
        let expected =
            (sent.iter().map(|sent| (*sent).to_owned()).collect(), outcomes.map(str::to_owned), stays);
        assert_eq!(changed(KEYS, &answers), expected, "{name}");
    }
}

#[test]
fn a_key_with_a_time_to_live_is_left_to_the_server() {
    let ttl = Value::Int;
    let looks = vec![ok(), bulk(), ttl(-1), ok(), bulk(), ttl(700), ok()];
    let answers = [(looks, None), (vec![queued(), list(&[ok()]), bulk()], None)];
    let (sent, outcomes, stays) = changed_on(&mut Wire::default(), [true; 2], KEYS, &answers);
    assert_eq!(sent[0], "WATCH k0 GET k0 PTTL k0 WATCH k1 GET k1 PTTL k1 MULTI");
    assert_eq!(outcomes, ["x, done, x", "expires, -, -"]);
    assert!(stays);
}

#[test]
fn of_two_changes_of_a_key_one_is_sent() {
    let looks = vec![ok(), bulk(), ok(), bulk(), ok()];
    let answers = [(looks, None), (vec![queued(), list(&[ok()]), bulk()], None)];
    let (sent, outcomes, _) = changed(["k0", "k0"], &answers);
    assert_eq!(sent[1], "SET k0 y EXEC GET k0");
    assert_eq!(outcomes, ["x, done, x", "x, undecided, -"]);
    // However each of them looks.
    let looks = vec![ok(), bulk(), ok(), bulk(), Value::Int(-1), ok()];
    let answers = [(looks, None), (vec![queued(), list(&[ok()]), bulk()], None)];
    let (_, outcomes, _) = changed_on(&mut Wire::default(), [false, true], ["k0", "k0"], &answers);
    assert_eq!(outcomes, ["x, done, x", "x, undecided, -"]);
}

#[test]
fn a_connection_that_is_out_of_order_leaves_nothing_to_the_next() {
    let looks = || (vec![ok(), bulk(), ok(), bulk(), ok()], None);
    let replica = || refused("READONLY You can't write against a read only replica.");
    let refused = (vec![replica(), replica(), refused("EXECABORT discarded"), bulk(), bulk()], None);
    let mut wire = Wire::default();
    let (_, outcomes, stays) = changed_on(&mut wire, [false; 2], KEYS, &[looks(), refused]);
    assert_eq!((outcomes[0].as_str(), stays), ("x, ReadOnly, x", false));
    let done = (vec![queued(), queued(), list(&[ok(), ok()]), bulk(), bulk()], None);
    let (sent, outcomes, stays) = changed_on(&mut wire, [false; 2], KEYS, &[looks(), done]);
    assert_eq!(sent, [LOOKS, CHANGES]);
    assert_eq!((outcomes[0].as_str(), stays), ("x, done, x", true));
}
