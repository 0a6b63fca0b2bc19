//! What goes into a batch, and the outcome of each command.

use super::*;
use crate::backend::Budget;
use crate::backend::connections::fake::{FakeConnection, closed, late, refused};
use crate::clock;
use crate::protocol::Entry;
use crate::protocol::lease::End;

/// The outcome of a command, in short.
fn short(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Reply(Reply::Integer(n)) => n.to_string(),
        Outcome::Reply(Reply::Bulk(bytes)) => {
            bytes.as_ref().map_or("nil".into(), |bytes| String::from_utf8(bytes.clone()).unwrap())
        }
        Outcome::Reply(other) => unreachable!("{other:?}"),
        Outcome::Refused(refusal) => format!("refused: {:?}", refusal.kind()),
        Outcome::Lost(_) => "lost".into(),
        Outcome::Unread => "unread".into(),
    }
}

fn queued(name: &str, command: Command, before: Option<End>, needs: Protocol) -> QueuedCommand {
    let budget =
        Budget { deadline: None, unreachable_timeout: Duration::ZERO, command_timeout: Duration::ZERO };
    let limits = Limits { needs, ..Limits::within(budget, clock::now()) };
    QueuedCommand::new(&Key::from(name), &Request { command, before }, None, &limits)
}

/// A DEL, and behind it a SETNX of another thread.
fn deleting(name: &str, needs: Protocol, before: Option<End>) -> QueuedCommand {
    let mut queued = queued(name, Command::Del, None, Protocol::Classic);
    let next = Next { request: Request { command: set(), before }, needs };
    queued.next = Some(PackedNext::new(&queued.key, &next));
    queued
}

impl QueuedCommand {
    fn alone(&self) -> Job<'_> {
        self.job(None, clock::now()).expect("it may be sent at any time")
    }
}

fn set() -> Command {
    Command::SetNx(Entry { value: b"1".to_vec(), ttl: None })
}

/// A SETNX leads a batch with GET, DEL and SETNX. Returns the four outcomes, and whether the connection stays.
fn four(replies: &[Value], ended: Option<redis::RedisError>) -> (String, bool) {
    let replies = replies.to_vec();
    let mut fake = FakeConnection::answering(move |count| {
        assert_eq!(count, 4);
        (replies.clone(), ended.clone())
    });
    let others =
        [Command::Get, Command::Del, set()].map(|command| queued("k", command, None, Protocol::Classic));
    let own = queued("own", set(), None, Protocol::Classic);
    let outcomes = send(&mut fake, own.alone(), others.iter(), clock::now, Duration::from_secs(1));
    let all: Vec<_> = outcomes.all().map(short).step_by(2).collect();
    (all.join(", "), outcomes.leave_in_order(own.alone().own))
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
        (&[too_many_clients()], None, "refused: TooManyClients, unread, unread, unread", false),
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
fn a_command_that_may_not_be_sent_is_left_out() {
    let mut fake = FakeConnection::answering(|count| (vec![Value::Int(1); count], None));
    fake.version = Some(Version::new(2, 4, 0));
    let now = clock::now();
    let (over, later) = (End::of(now, Duration::ZERO), End::of(now, Duration::from_secs(1)));
    let others = [
        queued("too-late", Command::Del, Some(over), Protocol::Classic),
        queued("in-time", Command::Del, Some(later), Protocol::Classic),
        queued("too-new", set(), None, Protocol::Ttl),
        queued("new-enough", set(), None, Protocol::Watched),
    ];
    let own = queued("own", Command::Del, None, Protocol::Classic);
    let outcomes = send(&mut fake, own.alone(), others.iter(), || now, Duration::from_secs(1));
    assert_eq!(outcomes.all().map(short).step_by(2).collect::<Vec<_>>(), ["1", "unread", "1", "unread", "1"]);
    assert!(outcomes.leave_in_order(own.alone().own));
    let sent = fake.sent.lock().unwrap();
    let [(packed, 3)] = sent.as_slice() else { panic!("{sent:?}") };
    let all = [&own, &others[1], &others[3]].map(|command| command.packed.clone()).concat();
    assert_eq!(packed.as_bytes(), all);
}

#[test]
fn the_command_behind_another_has_an_outcome_of_its_own() {
    let (one, zero) = (Value::Int(1), Value::Int(0));
    let full = || refused("ERR max number of clients reached");
    for (replies, expected, in_order) in [
        (vec![one.clone(), one.clone(), zero.clone(), one.clone()], "1, 1, 0, 1", true),
        (
            vec![one.clone(), refused("OOM command not allowed"), zero.clone(), one.clone()],
            "1, refused: OverMemory, 0, 1",
            true,
        ),
        (
            vec![refused("OOM command not allowed"), one.clone(), zero.clone(), one.clone()],
            "refused: OverMemory, 1, 0, 1",
            true,
        ),
        (vec![one.clone(), one.clone(), Value::Okay, one.clone()], "1, 1, lost, lost", false),
        (vec![one.clone()], "1, lost, lost, lost", false),
        (vec![full()], "refused: TooManyClients, unread, unread, unread", false),
    ] {
        let short_of = replies.len() < 4 && replies != [full()];
        let mut fake = FakeConnection::answering(move |count| {
            assert_eq!(count, 4);
            (replies.clone(), short_of.then(closed))
        });
        let (own, other) = (deleting("own", Protocol::Classic, None), deleting("k", Protocol::Classic, None));
        let outcomes = send(&mut fake, own.alone(), [&other].into_iter(), clock::now, Duration::from_secs(1));
        assert_eq!(outcomes.all().map(short).collect::<Vec<_>>().join(", "), expected);
        assert_eq!(outcomes.leave_in_order(own.alone().own), in_order);
    }
}

#[test]
fn the_command_behind_another_is_left_out_where_it_may_not_be_sent() {
    let mut fake = FakeConnection::answering(|count| (vec![Value::Int(1); count], None));
    fake.version = Some(Version::new(2, 4, 0));
    let now = clock::now();
    let others = [
        deleting("too-late", Protocol::Classic, Some(End::of(now, Duration::ZERO))),
        deleting("too-new", Protocol::Ttl, None),
        deleting("sent", Protocol::Watched, None),
    ];
    let own = queued("own", Command::Del, None, Protocol::Classic);
    let outcomes = send(&mut fake, own.alone(), others.iter(), || now, Duration::from_secs(1));
    let expected = ["1", "unread", "1", "unread", "1", "unread", "1", "1"];
    assert_eq!(outcomes.all().map(short).collect::<Vec<_>>(), expected);
}

#[test]
fn a_watch_that_is_refused_may_be_watching() {
    let own = queued("own", Command::WatchGet, None, Protocol::Watched);
    for (replies, in_order) in [
        (vec![Value::Okay, Value::Nil, Value::Okay], true),
        (vec![Value::Okay, refused("WRONGTYPE list"), Value::Okay], false),
    ] {
        let mut fake = FakeConnection::answering(move |_| (replies.clone(), None));
        let outcomes = send(&mut fake, own.alone(), [].iter(), clock::now, Duration::from_secs(1));
        assert_eq!(outcomes.leave_in_order(own.alone().own), in_order);
    }
}
