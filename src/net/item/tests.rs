//! What is sent of items, and the outcome of each.

use std::time::Duration;

use proto::values::{Key, Version};

use super::*;
use crate::net::connections::fake::{FakeConnection, closed, late, refused};
use crate::net::incoming::{AfterTrip, Incoming, hung_up};
use crate::net::replies::{read, read_change};
use crate::net::request::Request;
use crate::net::request::tests::{COUNT_FOR, DEL, GET, SET_NX, TestCommand};
use crate::system::clock;

/// Sends those of the items that say so, and receives their replies.
fn trip(fake: &FakeConnection, items: &mut [&mut Item]) -> AfterTrip {
    let mut packed = Packed::default();
    items.iter_mut().filter(|item| item.is_sent()).for_each(|item| packed.take(&mut item.packed));
    let mut replies = Vec::new();
    let limit = Duration::from_secs(1);
    let ended = fake.open().exchange(&packed.bytes, packed.awaited.len(), limit, &mut replies);
    let mut replies = Incoming::of(&mut replies, ended);
    for item in items {
        replies.give(item);
    }
    replies.after
}

/// The outcome of an item, in short.
fn short(item: &mut Item) -> String {
    outcome(item, read)
}

/// The outcome of a deletion in a transaction, in short.
fn changed(item: &mut Item) -> String {
    outcome(item, |_, replies, awaited| read_change(replies, awaited))
}

fn outcome(
    item: &mut Item,
    read: impl FnOnce(&str, &mut Vec<Value>, &[AwaitedReply]) -> ReadReply,
) -> String {
    if !item.is_sent() {
        return match item.unsent() {
            Some(Undecided::NoRoom(refusal)) => format!("no room: {:?}", refusal.kind()),
            Some(Undecided::Settles(_)) => "settles".into(),
            Some(Undecided::TooOld(refusal)) => format!("too old: {:?}", refusal.kind()),
            None => "too late".into(),
            Some(other) => unreachable!("{other:?}"),
        };
    }
    match item.outcome(read) {
        Some(Ok(Reply::Integer(n))) => n.to_string(),
        Some(Ok(Reply::Bulk(bytes))) => bytes.map_or("nil".into(), |bytes| String::from_utf8(bytes).unwrap()),
        Some(Ok(Reply::Executed(count))) => format!("executed: {count:?}"),
        Some(Ok(other)) => unreachable!("{other:?}"),
        Some(Err(Failure::Refused(refusal))) => format!("refused: {:?}", refusal.kind()),
        Some(Err(Failure::Lost(_))) => "lost".into(),
        Some(Err(other)) => unreachable!("{other:?}"),
        None => unreachable!("it was sent"),
    }
}

fn item(command: TestCommand, needs: Protocol, before: Option<End>) -> Item {
    let mut item = Item::default();
    item.begin(command.name(), needs, before);
    command.pack(&Key::from("k"), &mut item.packed);
    item
}

/// A command in a transaction.
fn change(command: TestCommand) -> Item {
    Item { queues: true, ..item(command, Protocol::Watched, None) }
}

/// Sends SETNX, GET, DEL and SETNX in one trip. Returns the four outcomes, and whether the connection stays.
fn four(replies: &[Value], ended: Option<redis::RedisError>) -> (String, bool) {
    let replies = replies.to_vec();
    let fake = FakeConnection::answering(move |count| {
        assert_eq!(count, 4);
        (replies.clone(), ended.clone())
    });
    let commands = [SET_NX, GET, DEL, SET_NX];
    let mut items = commands.map(|command| item(command, Protocol::Classic, None));
    assert!(items.iter_mut().all(|item| item.sends(&Known::default(), clock::now())));
    let after = trip(&fake, &mut items.each_mut());
    let all: Vec<_> = items.iter_mut().map(short).collect();
    (all.join(", "), !after.out_of_order)
}

#[test]
fn each_command_has_its_own_outcome_and_no_reply_after_a_wrong_one_counts() {
    let bulk = || Value::BulkString(b"x".to_vec());
    let (one, zero) = (Value::Int(1), Value::Int(0));
    let usual = [one.clone(), bulk(), zero.clone(), zero.clone()];
    let with = |position: usize, value: Value| {
        let mut replies = usual.clone();
        replies[position] = value;
        replies
    };
    let too_many_clients = || refused("ERR max number of clients reached");
    let table = [
        (&usual[..], None, "1, x, 0, 0", true),
        // Refused: the other commands are not concerned.
        (&with(0, refused("OOM command not allowed")), None, "refused: OverMemory, x, 0, 0", true),
        (&with(1, refused("WRONGTYPE list")), None, "1, refused: WrongType, 0, 0", true),
        // A replica: neither are they, but the connection is invalidated.
        (&with(2, refused("READONLY replica")), None, "1, x, refused: ReadOnly, 0", false),
        // Of the wrong form: which commands the rest belong to is unknown.
        (&with(0, Value::Okay), None, "lost, lost, lost, lost", false),
        (&with(1, one.clone()), None, "1, lost, lost, lost", false),
        (&with(3, Value::Nil), None, "1, x, 0, lost", false),
        // Cut.
        (&[], Some(closed()), "lost, lost, lost, lost", false),
        (&usual[..2], Some(closed()), "1, x, lost, lost", false),
        (&[refused("NOPERM first")], None, "refused: NotPermitted, lost, lost, lost", false),
        // Disconnected: nothing was read.
        (
            &[too_many_clients()],
            None,
            "no room: TooManyClients, no room: TooManyClients, no room: TooManyClients, no room: TooManyClients",
            false,
        ),
        // Or by a proxy that refuses one command and does not answer the others in time: they may have been read.
        (&[too_many_clients()], Some(late()), "refused: TooManyClients, lost, lost, lost", false),
        // Or by one of several servers behind a proxy: what has a reply was read.
        (&with(0, too_many_clients()), None, "refused: TooManyClients, x, 0, 0", false),
        (&with(1, too_many_clients())[..2], None, "1, refused: TooManyClients, lost, lost", false),
    ];
    for (replies, ended, outcomes, in_order) in table {
        assert_eq!(four(replies, ended), (outcomes.to_owned(), in_order), "{replies:?}");
    }
}

#[test]
fn what_may_not_be_sent_is_left_out() {
    let fake = FakeConnection::answering(|count| (vec![Value::Int(1); count], None));
    let now = clock::now();
    let settled_at = now.uptime.after(Duration::from_secs(1));
    let settles = Some((settled_at, Refusal::new("LOADING")));
    let server = Known { version: Some(Version::new(2, 4, 0)), settles, epoch: None };
    let (over, later) = (End::of(now, Duration::ZERO), End::of(now, Duration::from_secs(1)));
    let mut items = [
        item(DEL, Protocol::Classic, Some(over)),
        item(DEL, Protocol::Classic, Some(later)),
        Item::default(),
        item(SET_NX, Protocol::Ttl, None),
        item(SET_NX, Protocol::Watched, None),
        item(SET_NX, Protocol::Watched, None),
    ];
    items[5].grants = true;
    assert!(items[5].sends(&server, Now { uptime: settled_at, ..now }));
    let sends = items.each_mut().map(|item| item.sends(&server, now));
    assert_eq!(sends, [false, true, false, false, true, false], "to a server that is too old, or settles");
    let expected = [&items[1], &items[4]].map(|item| item.packed.bytes.clone()).concat();
    let after = trip(&fake, &mut items.each_mut());
    assert!(!after.out_of_order);
    let outcomes: Vec<_> = items.iter_mut().map(short).collect();
    assert_eq!(outcomes, ["too late", "1", "too late", "too old: TooOld", "1", "settles"]);
    let sent = fake.sent.lock().unwrap();
    let [packed] = sent.as_slice() else { panic!("{sent:?}") };
    assert_eq!(packed.as_bytes(), expected);
}

#[test]
fn one_that_is_sent_is_lost_as_long_as_it_has_no_reply_and_has_its_reply_then() {
    let mut item = item(DEL, Protocol::Classic, None);
    assert!(item.sends(&Known::default(), clock::now()));
    assert_eq!(short(&mut item), "lost");
    Incoming::of(&mut [Value::Int(1)], None).give(&mut item);
    assert_eq!(short(&mut item), "1");
}

#[test]
fn one_that_was_not_read_and_may_not_be_sent_again_stays() {
    let (now, fake) = (clock::now(), FakeConnection::answering(|count| (vec![Value::Int(1); count], None)));
    let mut item = item(DEL, Protocol::Classic, Some(End::of(now, Duration::from_secs(1))));
    assert!(item.sends(&Known::default(), now));
    Incoming::of(&mut [refused("ERR max number of clients reached")], None).give(&mut item);
    assert!(matches!(item.unsent(), Some(Undecided::NoRoom(_))));
    let later = proto::values::Now { uptime: now.uptime.after(Duration::from_secs(2)), ..now };
    assert!(!item.sends(&Known::default(), later));
    trip(&fake, &mut [&mut item]);
    assert_eq!(fake.sent.lock().unwrap().as_slice(), [""]);
    assert_eq!(short(&mut item), "too late");
}

/// Two deletions in one transaction, and a GET behind it.
fn transaction(replies: &[Value], ended: Option<TransportError>) -> ([String; 3], bool, bool) {
    let now = clock::now();
    let mut changes = [(); 2].map(|()| change(DEL));
    for change in &mut changes {
        assert!(change.sends(&Known::default(), now));
    }
    let mut behind = item(GET, Protocol::Classic, None);
    assert!(behind.sends(&Known::default(), now));
    let mut replies = replies.to_vec();
    let mut replies = Incoming::of(&mut replies, ended);
    let refused = replies.give_changes(&mut changes.each_mut());
    replies.give(&mut behind);
    let [first, second] = &mut changes;
    let outcomes = [changed(first), changed(second), short(&mut behind)];
    (outcomes, refused, replies.after.out_of_order)
}

#[test]
fn each_change_of_a_transaction_has_its_part_of_exec() {
    let queued = || Value::SimpleString("QUEUED".into());
    let list = |results: &[Value]| Value::Array(results.to_vec());
    let bulk = || Value::BulkString(b"x".to_vec());
    let done = || list(&[Value::Int(1), Value::Int(0)]);
    let oom = || refused("OOM command not allowed");
    let table: [(Vec<Value>, [&str; 3], bool, bool); 9] = [
        (
            vec![queued(), queued(), done(), bulk()],
            ["executed: Some(1)", "executed: Some(0)", "x"],
            false,
            false,
        ),
        (vec![queued(), queued(), done()], ["executed: Some(1)", "executed: Some(0)", "lost"], false, true),
        (
            vec![queued(), queued(), Value::Nil, bulk()],
            ["executed: None", "executed: None", "x"],
            false,
            false,
        ),
        (
            vec![oom(), queued(), refused("EXECABORT discarded"), bulk()],
            ["refused: OverMemory", "refused: Other", "x"],
            false,
            false,
        ),
        // Up to 2.4.
        (
            vec![queued(), queued(), oom(), bulk()],
            ["refused: OverMemory", "refused: OverMemory", "x"],
            true,
            false,
        ),
        // Before 2.6.5.
        (
            vec![oom(), queued(), list(&[Value::Int(1)]), bulk()],
            ["refused: OverMemory", "executed: Some(1)", "x"],
            false,
            false,
        ),
        (vec![queued(), queued()], ["lost", "lost", "lost"], false, true),
        (vec![queued(), queued(), list(&[Value::Int(1)]), bulk()], ["lost", "lost", "lost"], false, true),
        (vec![queued(), Value::Okay, done(), bulk()], ["lost", "lost", "lost"], false, true),
    ];
    for (replies, outcomes, may_be_open, out_of_order) in table {
        let ended = (replies.len() < 4).then(hung_up);
        let came = transaction(&replies, ended);
        assert_eq!(came, (outcomes.map(str::to_owned), may_be_open, out_of_order), "{replies:?}");
    }
}

#[test]
fn a_change_alone_is_read_as_one_of_several() {
    let queued = || Value::SimpleString("QUEUED".into());
    let list = |results: &[Value]| Value::Array(results.to_vec());
    let oom = || refused("OOM command not allowed");
    let table: [(Vec<Value>, &str, bool, bool); 8] = [
        (vec![queued(), list(&[Value::Int(1)])], "executed: Some(1)", false, false),
        (vec![queued(), Value::Nil], "executed: None", false, false),
        (vec![oom(), refused("EXECABORT discarded")], "refused: OverMemory", false, false),
        (vec![queued(), oom()], "refused: OverMemory", true, false),
        // Before 2.6.5.
        (vec![oom(), list(&[])], "refused: OverMemory", false, false),
        (vec![queued(), list(&[Value::Int(1), Value::Int(0)])], "lost", false, true),
        (vec![queued(), list(&[])], "lost", false, true),
        (vec![queued()], "lost", false, true),
    ];
    for (mut replies, outcome, may_be_open, out_of_order) in table {
        let shown = format!("{replies:?}");
        let mut change = change(DEL);
        assert!(change.sends(&Known::default(), clock::now()));
        let ended = (replies.len() < 2).then(hung_up);
        let mut replies = Incoming::of(&mut replies, ended);
        assert_eq!(replies.give_changes(&mut [&mut change]), may_be_open, "{shown}");
        assert_eq!(changed(&mut change), outcome, "{shown}");
        assert_eq!(replies.after.out_of_order, out_of_order, "{shown}");
    }
}

#[test]
fn a_change_of_two_commands_has_both_results() {
    let mut items = [COUNT_FOR, DEL].map(change);
    assert!(items.iter_mut().all(|item| item.sends(&Known::default(), clock::now())));
    let queued = || Value::SimpleString("QUEUED".into());
    let exec = Value::Array(vec![Value::Int(5), Value::Int(1), Value::Int(0)]);
    let mut replies = [queued(), queued(), queued(), exec];
    let mut replies = Incoming::of(&mut replies, None);
    assert!(!replies.give_changes(&mut items.each_mut()));
    assert_eq!(items.each_mut().map(changed), ["executed: Some(5)", "executed: Some(0)"]);
}
