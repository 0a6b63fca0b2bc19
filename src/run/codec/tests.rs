//! How commands are packed, and what their replies come to.

use std::time::Duration;

use proto::Reply;
use proto::values::Key;
use redis::Value;

use super::*;
use crate::net::{ReadReply, RefusalKind};

fn entry(ttl: Option<Duration>) -> NewValue {
    NewValue { value: b"2".as_slice().into(), ttl }
}

fn next_after(expires: bool) -> Command {
    Command::Waiting(Waiting::NextAfter { channel: b"c".to_vec(), expires })
}

fn check(expires: bool) -> Command {
    Command::Waiting(Waiting::Check { channel: b"c".to_vec(), expires })
}

fn wake(polled: bool) -> Command {
    Command::Waiting(Waiting::Wake { channel: b"c".to_vec(), polled })
}

/// What the replies come to, whose forms are those that the command asks for.
fn read(command: &Command, replies: Vec<Value>) -> ReadReply {
    packed(command).read_replies(command.name(), replies)
}

fn packed(command: &Command) -> Packed {
    let mut packed = Packed::default();
    command.pack(&Key::from("k"), &mut packed);
    packed
}

fn words(command: &Command) -> (String, usize) {
    let packed = packed(command);
    let (text, count) = packed.shown();
    (text.split("\r\n").filter(|line| !line.starts_with(['*', '$'])).collect::<Vec<_>>().join(" "), count)
}

#[test]
fn commands_on_several_keys() {
    let keys: std::sync::Arc<[Key]> = ["a", "b"].map(Key::from).into();
    let get = Command::GetAll(keys);
    assert_eq!(words(&get), ("MGET a b ".to_owned(), 1));
    let (bulk, error) =
        (Value::BulkString(b"x".to_vec()), || redis::parse_redis_value(b"-NOPERM no\r\n").unwrap());
    let found = read(&get, vec![Value::Array(vec![bulk.clone(), Value::Nil])]).unwrap();
    assert_eq!(found, Ok(Reply::Bulks(vec![Some(b"x".to_vec()), None])));
    assert_eq!(read(&get, vec![error()]).unwrap().unwrap_err().kind(), RefusalKind::NotPermitted);
    for broken in [vec![bulk.clone()], vec![bulk.clone(); 3], vec![bulk, Value::Int(1)]] {
        assert!(read(&get, vec![Value::Array(broken)]).is_err());
    }
}

#[test]
fn commands_are_packed_as_the_gem_s_client_packs_them() {
    let set = packed(&Command::SetNx(entry(None)));
    assert_eq!(set.shown(), ("*3\r\n$5\r\nSETNX\r\n$1\r\nk\r\n$1\r\n2\r\n", 1));
    let ttl = Some(Duration::from_micros(2_000_001));
    let after = || Waiting::NextAfter { channel: b"c".to_vec(), expires: false };
    let table = [
        (Command::SetNx(entry(None)), "SETNX k 2 ", 1),
        (Command::SetNx(entry(ttl)), "SET k 2 PX 2001 NX ", 1),
        (Command::Get, "GET k ", 1),
        (Command::GetSet(b"2".as_slice().into()), "GETSET k 2 ", 1),
        (Command::Del, "DEL k ", 1),
        (Command::Set(entry(None)), "SET k 2 ", 1),
        (Command::Set(entry(ttl)), "SET k 2 PX 2001 ", 1),
        (
            Command::Waiting(Waiting::Enter { channel: b"c".to_vec(), expires: true }),
            "RPUSH k:setnx-lock:waiters:{k} c EXPIRE k:setnx-lock:waiters:{k} 600 ",
            2,
        ),
        (
            Command::Waiting(Waiting::Enter { channel: b"c".to_vec(), expires: false }),
            "RPUSH k:setnx-lock:waiters:{k} c ",
            1,
        ),
        (Command::Waiting(Waiting::Next), "LPOP k:setnx-lock:waiters:{k} ", 1),
        (next_after(false), "RPUSH k:setnx-lock:waiters:{k} c LPOP k:setnx-lock:waiters:{k} ", 2),
        (
            next_after(true),
            "RPUSH k:setnx-lock:waiters:{k} c EXPIRE k:setnx-lock:waiters:{k} 600 LPOP k:setnx-lock:waiters:{k} ",
            3,
        ),
        (
            Command::Take(Box::new([(Key::from("j"), Waiting::Next), (Key::from("n"), after())])),
            "LPOP j:setnx-lock:waiters:{j} RPUSH n:setnx-lock:waiters:{n} c LPOP n:setnx-lock:waiters:{n} ",
            3,
        ),
        (check(false), "LRANGE k:setnx-lock:waiters:{k} 0 -1 ", 1),
        (check(true), "LRANGE k:setnx-lock:waiters:{k} 0 -1 EXPIRE k:setnx-lock:waiters:{k} 600 ", 2),
        (Command::Waiting(Waiting::Leave(b"c".to_vec())), "LREM k:setnx-lock:waiters:{k} 1 c ", 1),
        (wake(false), "PUBLISH c k ", 1),
        (wake(true), "PUBLISH c k:setnx-lock:polled ", 1),
        (Command::Count { forget_after: None }, "INCR k:setnx-lock:fence:{k} ", 1),
        (Command::ForgetAfter(Duration::from_millis(60_001)), "EXPIRE k:setnx-lock:fence:{k} 61 ", 1),
        (
            Command::Count { forget_after: Some(Duration::from_secs(7)) },
            "INCR k:setnx-lock:fence:{k} EXPIRE k:setnx-lock:fence:{k} 7 ",
            2,
        ),
        (
            Command::Renew(Box::new((entry(ttl), Duration::from_secs(7)))),
            "SET k 2 PX 2001 EXPIRE k:setnx-lock:fence:{k} 7 ",
            2,
        ),
    ];
    for (command, text, replies) in table {
        assert_eq!(words(&command), (text.to_owned(), replies));
    }
}

#[test]
fn a_reply_of_another_form_is_an_error() {
    let ttl = Some(Duration::from_secs(2));
    assert!(read(&Command::Get, vec![Value::Int(1)]).is_err());
    assert!(read(&Command::SetNx(entry(None)), vec![Value::BulkString(b"1".to_vec())]).is_err());
    assert!(read(&Command::SetNx(entry(None)), vec![Value::Okay]).is_err());
    assert!(read(&Command::SetNx(entry(ttl)), vec![Value::Int(1)]).is_err());
    assert!(read(&Command::Del, vec![Value::Okay]).is_err());
    assert!(read(&Command::Get, vec![]).is_err());
    assert!(read(&Command::Waiting(Waiting::Next), vec![Value::Int(1)]).is_err());
    assert!(read(&wake(false), vec![Value::Nil]).is_err());
    assert!(read(&check(false), vec![Value::Int(1)]).is_err());
}

#[test]
fn replies_are_read_as_the_rules_want_them() {
    let bulk = |text: &str| Value::BulkString(text.as_bytes().to_vec());
    let some = |text: &str| Some(text.as_bytes().to_vec());
    let ttl = Some(Duration::from_secs(2));
    let table = [
        (Command::GetSet([].as_slice().into()), vec![Value::Nil], Reply::Bulk(None)),
        (Command::SetNx(entry(ttl)), vec![Value::Okay], Reply::Integer(1)),
        (Command::SetNx(entry(ttl)), vec![Value::Nil], Reply::Integer(0)),
        (Command::Waiting(Waiting::Next), vec![bulk("c")], Reply::Bulk(Some(b"c".to_vec()))),
        (next_after(false), vec![Value::Int(1), Value::Nil], Reply::Bulk(None)),
        (
            next_after(true),
            vec![redis::parse_redis_value(b"-OOM no\r\n").unwrap(), Value::Int(0), bulk("c")],
            Reply::Bulk(Some(b"c".to_vec())),
        ),
        (
            check(false),
            vec![Value::Array(vec![bulk("b"), bulk("c")])],
            Reply::Bulks(vec![some("b"), some("c")]),
        ),
        (check(true), vec![Value::Array(vec![bulk("b")]), Value::Int(1)], Reply::Bulks(vec![some("b")])),
        (
            Command::Take(Box::new([
                (Key::from("j"), Waiting::Next),
                (Key::from("n"), Waiting::NextAfter { channel: b"c".to_vec(), expires: false }),
            ])),
            vec![Value::Nil, redis::parse_redis_value(b"-OOM no\r\n").unwrap(), bulk("c")],
            Reply::Bulks(vec![None, Some(b"c".to_vec())]),
        ),
    ];
    for (command, replies, reply) in table {
        assert_eq!(read(&command, replies).unwrap(), Ok(reply));
    }
}

#[test]
fn exec_is_judged_by_the_length_of_its_reply() {
    let queued = || Value::SimpleString("QUEUED".into());
    let changed = |command: Command, replies: Vec<Value>| packed(&command).read_executed(replies);
    let exec = |command, reply: Value| changed(command, vec![queued(), reply]);
    let done = |count| Ok(Ok(Reply::Executed(count)));
    let set = || Command::Set(entry(None));
    assert_eq!(exec(set(), Value::Array(vec![Value::Okay])), done(Some(1)));
    assert_eq!(exec(Command::Del, Value::Array(vec![Value::Int(0)])), done(Some(0)));
    assert_eq!(exec(set(), Value::Nil), done(None));
    for other in [Value::Okay, Value::Array(vec![]), Value::Array(vec![Value::Okay, Value::Okay])] {
        assert!(exec(set(), other.clone()).is_err(), "{other:?}");
        assert!(exec(Command::Del, other.clone()).is_err(), "{other:?}");
    }
    let short = changed(set(), vec![queued()]);
    assert!(short.is_err());
    let two = |command, results| changed(command, vec![queued(), queued(), Value::Array(results)]);
    let renew = || Command::Renew(Box::new((entry(None), Duration::from_secs(7))));
    let count = || Command::Count { forget_after: Some(Duration::from_secs(7)) };
    assert_eq!(two(renew(), vec![Value::Okay, Value::Int(0)]), done(Some(0)), "there is no counter");
    assert_eq!(two(count(), vec![Value::Int(5), Value::Int(1)]), done(Some(5)));
    assert_eq!(changed(renew(), vec![queued(), queued(), Value::Nil]), done(None));
    // The first refusal is the reason; that EXEC is refused as well is a consequence.
    let no = |text: &str| redis::parse_redis_value(format!("-{text}\r\n").as_bytes()).unwrap();
    let aborted = no("EXECABORT Transaction discarded because of previous errors.");
    // Before 2.6.5 the key is changed without what was refused. That shows when it is read; a number is left out.
    let partly = vec![queued(), no("ERR unknown command 'EXPIRE'"), Value::Array(vec![Value::Okay])];
    assert!(changed(renew(), partly).is_err());
    let partly = vec![queued(), no("ERR unknown command 'EXPIRE'"), Value::Array(vec![Value::Int(5)])];
    assert!(matches!(changed(count(), partly), Ok(Err(_))));
    let whole = vec![queued(), no("NOPERM no permissions to run 'expire'"), aborted.clone()];
    assert!(matches!(changed(renew(), whole), Ok(Err(_))));
    for replies in [
        vec![no("NOPERM first"), aborted.clone()],
        vec![queued(), no("NOPERM first")],
        vec![queued(), Value::Array(vec![no("NOPERM first")])],
        vec![no("NOPERM first")],
    ] {
        let outcome = changed(set(), replies.clone());
        assert!(
            matches!(&outcome, Ok(Err(refusal)) if refusal.kind() == RefusalKind::NotPermitted),
            "{replies:?}: {outcome:?}"
        );
    }
}

#[test]
fn of_commands_that_belong_together_it_is_said_which_count() {
    let ok = |n| Value::Int(n);
    let no = |text: &str| redis::parse_redis_value(format!("-{text}\r\n").as_bytes()).unwrap();
    let count = Command::Count { forget_after: Some(Duration::from_secs(7)) };
    let enter = Command::Waiting(Waiting::Enter { channel: b"c".to_vec(), expires: true });
    let list = || Value::Array(vec![Value::BulkString(b"c".to_vec())]);
    let reason = |command: &Command, replies| read(command, replies).unwrap().unwrap_err().kind();
    // Both are to be carried out, and the first refusal is the reason.
    assert_eq!(read(&count, vec![ok(5), ok(1)]).unwrap(), Ok(Reply::Integer(5)));
    assert_eq!(reason(&count, vec![ok(5), no("NOPERM no")]), RefusalKind::NotPermitted);
    assert_eq!(reason(&count, vec![no("WRONGTYPE no"), no("NOPERM no")]), RefusalKind::WrongType);
    assert_eq!(reason(&check(true), vec![list(), no("NOPERM no")]), RefusalKind::NotPermitted);
    assert_eq!(reason(&check(true), vec![no("WRONGTYPE no"), no("NOPERM no")]), RefusalKind::WrongType);
    // The list need not get a time to live, nor the process an entry.
    assert_eq!(read(&enter, vec![ok(1), no("NOPERM no")]).unwrap(), Ok(Reply::Integer(1)));
    assert_eq!(reason(&enter, vec![no("OOM no"), ok(0)]), RefusalKind::OverMemory);
    assert_eq!(reason(&next_after(false), vec![ok(1), no("NOPERM no")]), RefusalKind::NotPermitted);
    // Of one list and of several that are all refused.
    let take =
        |keys: &[&str]| Command::Take(keys.iter().map(|key| (Key::from(*key), Waiting::Next)).collect());
    let taken = || Value::BulkString(b"c".to_vec());
    assert_eq!(read(&take(&["j"]), vec![taken()]).unwrap(), Ok(Reply::Bulk(Some(b"c".to_vec()))));
    assert_eq!(reason(&take(&["j", "n"]), vec![no("NOPERM no"), Value::Nil]), RefusalKind::NotPermitted);
}

#[test]
fn what_the_network_has_to_know_of_commands() {
    let key = Key::from("k");
    let epoch = Epoch(1);
    let renew = || Command::Renew(Box::new((entry(None), Duration::from_secs(7))));
    let count = || Command::Count { forget_after: None };
    let raise = || Command::Raise { by: 3, epoch };
    let set = || Command::Set(entry(None));
    let all = [set(), renew(), Command::Del, Command::GetDel, count(), raise(), Command::Get];
    let those = |is: &dyn Fn(&Command) -> bool| -> Vec<&str> {
        all.iter().filter(|command| is(command)).map(Command::name).collect()
    };
    assert_eq!(those(&|command| command.changes_counter()), ["SET", "INCR"]);
    assert!(!set().changes_counter() && renew().changes_counter());
    assert_eq!(those(&|command| !command.waits_for_slot()), ["SET"]);
    assert!(!renew().waits_for_slot());
    assert_eq!(those(&|command| command.watched(&key) != key), ["INCRBY"]);
    assert_eq!(those(&|command| Request::only_in(command).is_some()), ["INCRBY"]);
    let by = |compares| move |command: &Command| command.comparing(compares);
    assert_eq!(all.iter().filter_map(by(Compares::DelEx)).collect::<Vec<_>>(), ["SET", "DELEX"]);
    assert_eq!(all.iter().filter_map(by(Compares::DelIfEq)).collect::<Vec<_>>(), ["SET", "DELIFEQ"]);
}
