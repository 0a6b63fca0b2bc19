//! Reads the replies that locks get. Anything else is left to the redis crate's parser.

use proto::values::CutAt;
use redis::{ErrorKind, RedisError, Value};

/// What QUEUED is read as, which costs no text. No command is answered by a boolean.
pub(super) const QUEUED: Value = Value::Boolean(true);

/// Returns true if it says that a command is queued: as it is read here, or by the redis crate's parser.
pub(super) fn is_queued(value: &Value) -> bool {
    *value == QUEUED || matches!(value, Value::SimpleString(text) if text == "QUEUED")
}

/// How deep lists may be nested here.
const DEPTH: u8 = 4;

/// What a buffer begins with.
#[derive(Debug, PartialEq)]
pub(super) enum Read {
    /// A reply, and how many bytes it has.
    Reply(Value, usize),
    /// A part of one.
    Part,
    /// A part of one, with a text that is longer than is kept: where its head and the text begin, and how long it is.
    Long { head: usize, text: usize, length: usize },
    /// Something that the redis crate's parser knows, or that is no reply.
    Other,
}

/// Reads the reply that the bytes begin with, whose texts are kept up to a length.
pub(super) fn read(bytes: &[u8], longest: usize) -> Read {
    let mut at = 0;
    match value(bytes, &mut at, DEPTH, longest) {
        Ok(value) => Read::Reply(value, at),
        Err(other) => other,
    }
}

fn value(bytes: &[u8], at: &mut usize, depth: u8, longest: usize) -> Result<Value, Read> {
    let began = *at;
    let line = line(bytes, at)?;
    let (kind, text) = line.split_first().ok_or(Read::Other)?;
    Ok(match kind {
        b':' => Value::Int(number(text)?),
        b'+' if text == b"OK" => Value::Okay,
        b'+' if text == b"QUEUED" => QUEUED,
        b'+' => Value::SimpleString(str::from_utf8(text).map_err(|_| Read::Other)?.to_owned()),
        b'-' => redis::parse_redis_value(&bytes[began..*at]).map_err(|_| Read::Other)?,
        b'$' => match number(text)? {
            -1 => Value::Nil,
            length => {
                let length = usize::try_from(length).map_err(|_| Read::Other)?;
                let end = at.checked_add(length).and_then(|end| end.checked_add(2)).ok_or(Read::Other)?;
                let part = || {
                    if length > longest { Read::Long { head: began, text: *at, length } } else { Read::Part }
                };
                let body = bytes.get(*at..end).ok_or_else(part)?;
                *at = end;
                Value::BulkString(body[..length].to_vec())
            }
        },
        b'*' => match number(text)? {
            -1 => Value::Nil,
            count if depth > 0 => {
                let count = usize::try_from(count).map_err(|_| Read::Other)?;
                // A server that is none may promise any number.
                let mut values = Vec::with_capacity(count.min(1024));
                for _ in 0..count {
                    values.push(value(bytes, at, depth - 1, longest)?);
                }
                Value::Array(values)
            }
            _ => return Err(Read::Other),
        },
        _ => return Err(Read::Other),
    })
}

/// Takes a line, without its end.
fn line<'a>(bytes: &'a [u8], at: &mut usize) -> Result<&'a [u8], Read> {
    let rest = &bytes[*at..];
    let Some(end) = rest.iter().position(|byte| *byte == b'\r') else { return Err(unfinished(rest)) };
    match rest.get(end + 1) {
        Some(b'\n') => {
            *at += end + 2;
            Ok(&rest[..end])
        }
        Some(_) => Err(Read::Other),
        None => Err(Read::Part),
    }
}

/// What a server that is none sends may never have the end of a line.
fn unfinished(rest: &[u8]) -> Read {
    match rest.first() {
        None | Some(b':' | b'+' | b'-' | b'$' | b'*') => Read::Part,
        Some(_) => Read::Other,
    }
}

/// With what any reply begins, in RESP2 and RESP3.
const BEGINNINGS: &[u8] = b"+-:$*_,#!=(%~>|";
/// How much is shown of what is none, in bytes of text.
const LONGEST_SHOWN: usize = 80;

/// Returns the error of bytes that no Redis server sends, if they are none: they are shown, which says more about the
/// server than the parser does.
#[cold]
pub(super) fn foreign(bytes: &[u8]) -> Option<RedisError> {
    let first = bytes.first().filter(|first| !BEGINNINGS.contains(first))?;
    // A record of TLS.
    let what = if *first == 0x15 && bytes.get(1) == Some(&3) {
        "it speaks TLS; use rediss:// in its URL".to_owned()
    } else {
        let line = bytes.split(|byte| b"\r\n".contains(byte)).next().unwrap_or_default();
        format!("it says \"{}\"", CutAt(line, LONGEST_SHOWN))
    };
    Some((ErrorKind::Parse, "no reply", what).into())
}

fn number(text: &[u8]) -> Result<i64, Read> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    if digits.is_empty() || digits.len() > 18 {
        return Err(Read::Other);
    }
    let mut number = 0;
    for digit in digits {
        if !digit.is_ascii_digit() {
            return Err(Read::Other);
        }
        number = 10 * number + i64::from(digit - b'0');
    }
    Ok(if digits.len() < text.len() { -number } else { number })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_read_as_the_redis_crate_reads_them_and_parts_are_waited_for() {
        for reply in [
            ":1\r\n",
            ":-17\r\n",
            "+OK\r\n",
            "+QUEUED\r\n",
            "-ERR unknown command\r\n",
            "$-1\r\n",
            "$0\r\n\r\n",
            "$4\r\na\r\nb\r\n",
            "*-1\r\n",
            "*0\r\n",
            "*3\r\n:1\r\n$1\r\nx\r\n*1\r\n+OK\r\n",
        ] {
            let more = format!("{reply}:5\r\n");
            let expected = match reply {
                "+QUEUED\r\n" => QUEUED,
                reply => redis::parse_redis_value(reply.as_bytes()).unwrap(),
            };
            assert_eq!(read(more.as_bytes(), 9), Read::Reply(expected, reply.len()), "{reply:?}");
            for end in 0..reply.len() {
                assert_eq!(read(&reply.as_bytes()[..end], 9), Read::Part, "{:?}", &reply[..end]);
            }
        }
    }

    #[test]
    fn anything_else_is_left_to_the_redis_crate() {
        for other in [
            ">2\r\n+a\r\n+b\r\n",
            "HTTP/1.1 200 OK\r\n",
            ":x\r\n",
            ":1234567890123456789\r\n",
            "$-2\r\n",
            "*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n",
            ":1\rx",
        ] {
            assert_eq!(read(other.as_bytes(), 9), Read::Other, "{other:?}");
        }
    }
}
