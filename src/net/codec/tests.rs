//! How commands are packed, and how their replies are read.

use std::time::Duration;

use proto::values::Key;

use super::*;
use crate::net::errors::RefusalKind;

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

fn packed(key: &Key, command: &Command) -> Packed {
    let mut packed = Packed::default();
    pack(&mut packed, key.as_bytes(), command);
    packed
}

/// What the replies come to, whose forms are those that the command asks for.
fn read(command: &Command, mut replies: Vec<Value>) -> Result<Result<Reply, Refusal>, TransportError> {
    super::read(command, &mut replies, &packed(&Key::from("k"), command).forms)
}

fn words(command: &Command) -> (String, usize) {
    text(packed(&Key::from("k"), command))
}

fn text(Packed { bytes, forms, .. }: Packed) -> (String, usize) {
    let text = String::from_utf8(bytes).unwrap();
    (
        text.split("\r\n").filter(|line| !line.starts_with(['*', '$'])).collect::<Vec<_>>().join(" "),
        forms.len(),
    )
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
    let Packed { bytes: packed, .. } = packed(&Key::from("k"), &Command::SetNx(entry(None)));
    assert_eq!(packed, b"*3\r\n$5\r\nSETNX\r\n$1\r\nk\r\n$1\r\n2\r\n");
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
    let (okay, nil, one) = (|| Value::Okay, || Value::Nil, || Value::Int(1));
    for replies in [
        vec![nil()],
        vec![okay(), nil()],
        vec![okay(), nil(), nil()],
        vec![one(), nil(), okay()],
        vec![okay(), one(), okay()],
        vec![okay(), nil(), okay(), okay()],
    ] {
        assert!(looked(false, replies.clone()).is_err(), "{replies:?}");
    }
    assert!(looked(true, vec![okay(), nil(), okay()]).is_err());
}

/// What the replies come to of what looks whether a key holds what is expected.
fn looked(without_ttl: bool, mut replies: Vec<Value>) -> ReadReply {
    read_look(&Expected { bytes: Vec::new(), without_ttl }, &mut replies)
}

#[test]
fn what_is_looked_for_is_the_value_and_whether_it_has_a_time_to_live() {
    let look = |asks_ttl| {
        let mut packed = Packed::default();
        pack_look(&mut packed, b"k", asks_ttl);
        text(packed)
    };
    assert_eq!(look(false), ("WATCH k GET k ".to_owned(), 2));
    assert_eq!(look(true), ("WATCH k GET k PTTL k ".to_owned(), 3));
    let x = || Value::BulkString(b"x".to_vec());
    let found = |value: Option<&[u8]>| Ok(Ok(Reply::Bulk(value.map(<[u8]>::to_vec))));
    assert_eq!(looked(false, vec![Value::Okay, x(), Value::Okay]), found(Some(b"x")));
    let with_ttl = |value, left| looked(true, vec![Value::Okay, value, Value::Int(left), Value::Okay]);
    assert_eq!(with_ttl(x(), NO_TTL), found(Some(b"x")));
    assert_eq!(with_ttl(Value::Nil, -2), found(None));
    assert_eq!(with_ttl(x(), -2), found(None), "its time ended behind GET");
    assert_eq!(
        with_ttl(x(), 700),
        Ok(Ok(Reply::Expiring(Box::new((b"x".to_vec(), Duration::from_millis(700))))))
    );
    let refused = redis::parse_redis_value(b"-NOPERM no\r\n").unwrap();
    let outcome = looked(true, vec![Value::Okay, x(), refused, Value::Okay]);
    assert!(matches!(outcome, Ok(Err(refusal)) if refusal.kind() == RefusalKind::NotPermitted));
}

#[test]
fn replies_are_read_as_the_rules_want_them() {
    let bulk = |text: &str| Value::BulkString(text.as_bytes().to_vec());
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
        (check(false), vec![Value::Array(vec![bulk("b"), bulk("c"), bulk("c")])], Reply::Integer(2)),
        (check(true), vec![Value::Array(vec![bulk("b")]), Value::Int(1)], Reply::Integer(0)),
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
    let changed = |command: Command, replies: Vec<Value>| read_change(&command, &replies);
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
