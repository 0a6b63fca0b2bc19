//! A transaction on many keys: how its two trips are packed, and how their replies are read.

use redis::Value;

use super::{read_any, refusal, unexpected, watch};
use crate::backend::errors::{Refusal, TransportError};
use crate::backend::resp::{Form, Packed};
use crate::key::Key;
use crate::protocol::{Command, Reply};

/// Packs WATCH and GET for each key, and MULTI.
pub(in crate::backend) fn packed_watches(keys: &[Key]) -> Packed {
    let mut packed = Packed::default();
    for key in keys {
        watch(&mut packed, key.as_bytes());
    }
    packed.command(Form::Okay, &[b"MULTI"]);
    packed
}

/// Reads the replies to WATCH and GET for each key, and to MULTI: what each key holds, or the server's refusal of a watch.
pub(in crate::backend) fn read_watches(
    keys: usize,
    mut replies: Vec<Value>,
) -> Result<Result<Vec<Result<Reply, Refusal>>, Refusal>, TransportError> {
    let multi = replies.pop();
    if let Some(refusal) = multi.as_ref().and_then(refusal) {
        return Ok(Err(refusal));
    }
    if multi != Some(Value::Okay) || replies.len() != 2 * keys {
        return Err(unexpected(Command::WatchGet.name(), multi.as_ref()));
    }
    let mut found = Vec::new();
    for pair in replies.chunks_exact(2) {
        match pair {
            [Value::ServerError(error), _] => return Ok(Err(error.clone().into())),
            [Value::Okay, value] => found.push(read_any(&Command::Get, vec![value.clone()])?),
            _ => return Err(unexpected(Command::WatchGet.name(), pair.first())),
        }
    }
    Ok(Ok(found))
}

/// Splits the reply to the EXEC of several changes: returns for each what it would have got alone, behind the reply to the change itself.
pub(in crate::backend) fn split_exec(changes: &[Value], exec: Value) -> Result<Vec<Value>, TransportError> {
    let refused = changes.iter().filter(|queued| refusal(queued).is_some()).count();
    match exec {
        // Before 2.6.5 what could not be queued is left out, and the rest is carried out.
        Value::Array(results) if results.len() + refused == changes.len() => {
            let mut results = results.into_iter();
            let of = |queued: &Value| match queued {
                Value::ServerError(_) => Value::Nil,
                _ => Value::Array(results.by_ref().take(1).collect()),
            };
            Ok(changes.iter().map(of).collect())
        }
        reply @ (Value::Nil | Value::ServerError(_)) => Ok(changes.iter().map(|_| reply.clone()).collect()),
        other => Err(unexpected("EXEC", Some(&other))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{Change, Entry};

    fn keys(count: usize) -> Vec<Key> {
        (0..count).map(|n| Key::from(format!("k{n}"))).collect()
    }

    fn words(packed: &[u8]) -> String {
        let text = str::from_utf8(packed).unwrap();
        text.split("\r\n").filter(|line| !line.starts_with(['*', '$'])).collect::<Vec<_>>().join(" ")
    }

    fn no(text: &str) -> Value {
        redis::parse_redis_value(format!("-{text}\r\n").as_bytes()).unwrap()
    }

    fn queued() -> Value {
        Value::SimpleString("QUEUED".into())
    }

    #[test]
    fn many_keys_are_watched_in_one_trip() {
        let packed = packed_watches(&keys(2));
        assert_eq!(
            (words(&packed.bytes).as_str(), packed.forms.len()),
            ("WATCH k0 GET k0 WATCH k1 GET k1 MULTI ", 5)
        );
    }

    #[test]
    fn what_each_key_holds_is_read_or_why_none_is_watched() {
        let (ok, bulk) = (Value::Okay, Value::BulkString(b"x".to_vec()));
        let read = |replies: &[Value]| read_watches(2, replies.to_vec());
        let found = read(&[ok.clone(), bulk.clone(), ok.clone(), no("WRONGTYPE list"), ok.clone()]);
        let found = found.unwrap().unwrap();
        assert_eq!(found[0], Ok(Reply::Bulk(Some(b"x".to_vec()))));
        assert!(found[1].is_err(), "of one key alone");
        for refused in [
            [ok.clone(), bulk.clone(), no("NOPERM key"), bulk.clone(), ok.clone()],
            [ok.clone(), bulk.clone(), ok.clone(), bulk.clone(), no("ERR unknown command")],
        ] {
            assert!(read(&refused).unwrap().is_err());
        }
        for broken in
            [&[ok.clone(), ok.clone(), ok.clone()][..], &[bulk.clone(), bulk, ok.clone(), ok.clone(), ok]]
        {
            assert!(read(broken).is_err());
        }
    }

    #[test]
    fn each_change_has_what_it_would_have_had_alone() {
        let change = Command::Exec(Change::Set(Entry { value: b"2".to_vec(), ttl: None }));
        let read =
            |changes: [Value; 2], exec: Value| -> Result<Vec<Result<Reply, Refusal>>, TransportError> {
                let each = split_exec(&changes, exec)?;
                changes.into_iter().zip(each).map(|(own, exec)| read_any(&change, vec![own, exec])).collect()
            };
        let exec = |exec: Value| read([queued(), queued()], exec);
        let done = exec(Value::Array(vec![Value::Okay, no("OOM no")])).unwrap();
        assert_eq!(done[0], Ok(Reply::Executed(Some(1))));
        assert!(done[1].is_err());
        let written = exec(Value::Nil).unwrap();
        assert_eq!(written, [Ok(Reply::Executed(None)), Ok(Reply::Executed(None))]);
        assert!(exec(no("CROSSSLOT keys")).unwrap().iter().all(Result::is_err));
        let refused = read([queued(), no("OOM no")], no("EXECABORT discarded")).unwrap();
        assert!(refused.iter().all(Result::is_err));
        let before_2_6_5 = read([no("OOM no"), queued()], Value::Array(vec![Value::Okay])).unwrap();
        assert!(before_2_6_5[0].is_err());
        assert_eq!(before_2_6_5[1], Ok(Reply::Executed(Some(1))));
        for broken in [Value::Okay, Value::Array(vec![Value::Okay])] {
            assert!(exec(broken).is_err());
        }
        assert!(read([queued(), Value::Okay], Value::Array(vec![Value::Okay, Value::Okay])).is_err());
    }
}
