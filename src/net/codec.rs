//! How commands are packed for the wire, and how their replies are
//! read. A reply of another form than its command's is an error.

use std::io;
use std::time::Duration;

use proto::values::SideKey;
use proto::waiting_list::{self, LIST_TTL, Waiting};
use proto::{Command, Expected, NewValue, Reply};
use redis::Value;

use super::errors::{Refusal, TransportError};
use super::resp::{Digits, Form, Packed, is_queued};

/// How a command begins that is sent often.
const GET: &[u8] = b"*2\r\n$3\r\nGET\r\n";

/// The reply to PTTL of a key that the server does not remove by itself.
pub(super) const NO_TTL: i64 = -1;

/// What replies come to: the rules' reply, or the server's refusal. The
/// error is of replies that have another form than their command's.
pub(super) type ReadReply = Result<Result<Reply, Refusal>, TransportError>;

/// Packs a command that depends on nothing.
pub(super) fn pack(packed: &mut Packed, key: &[u8], command: &Command) {
    match command {
        Command::SetNx(NewValue { value, ttl: None }) => {
            packed.begun(Form::Integer, b"*3\r\n$5\r\nSETNX\r\n", &[key, value]);
        }
        Command::SetNx(entry) => set(packed, Form::OkayOrNil, key, entry, &[b"NX"]),
        Command::Get => packed.begun(Form::Bulk, GET, &[key]),
        Command::TimeToLive => packed.command(Form::Integer, &[b"PTTL", key]),
        Command::GetAll(keys) => {
            packed.begin(Form::List, 1 + keys.len());
            packed.word(b"MGET");
            for key in keys.iter() {
                packed.word(key.as_bytes());
            }
        }
        Command::GetSet(value) => packed.command(Form::Bulk, &[b"GETSET", key, value]),
        Command::Set(entry) => set(packed, Form::Okay, key, entry, &[]),
        Command::Renew(renewed) => {
            let (entry, time) = &**renewed;
            set(packed, Form::Okay, key, entry, &[]);
            expire_counter(packed, key, *time);
        }
        Command::Del => packed.begun(Form::Integer, b"*2\r\n$3\r\nDEL\r\n", &[key]),
        Command::GetDel => packed.command(Form::Bulk, &[b"GETDEL", key]),
        Command::Count { forget_after } => {
            packed.command(Form::Integer, &[b"INCR", &SideKey::Fence.of(key)]);
            if let Some(time) = forget_after {
                expire_counter(packed, key, *time);
            }
        }
        Command::Raise { by, .. } => {
            packed.command(Form::Integer, &[b"INCRBY", &SideKey::Fence.of(key), by.to_string().as_bytes()]);
        }
        Command::ForgetAfter(time) => expire_counter(packed, key, *time),
        Command::Waiting(waiting) => pack_waiting(packed, key, waiting),
        Command::Take(lists) => {
            for (key, next) in lists {
                pack_waiting(packed, key.as_bytes(), next);
            }
        }
    }
}

/// The command by which a server compares what a key holds, and deletes it. Each also has SET with IFEQ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Compares {
    /// Redis 8.4.
    DelEx,
    /// Valkey 9.
    DelIfEq,
}

impl Compares {
    pub(super) fn name(self, command: &Command) -> &'static str {
        match (command, self) {
            (Command::Set(_), _) => "SET",
            (_, Self::DelEx) => "DELEX",
            (_, Self::DelIfEq) => "DELIFEQ",
        }
    }

    /// Packs a change of a key that holds these bytes.
    pub(super) fn pack(self, packed: &mut Packed, key: &[u8], command: &Command, bytes: &[u8]) {
        match (command, self) {
            (Command::Set(entry), _) => set(packed, Form::OkayOrNil, key, entry, &[b"IFEQ", bytes]),
            (_, Self::DelEx) => packed.begun(Form::Integer, b"*4\r\n$5\r\nDELEX\r\n", &[key, b"IFEQ", bytes]),
            (_, Self::DelIfEq) => packed.begun(Form::Integer, b"*3\r\n$7\r\nDELIFEQ\r\n", &[key, bytes]),
        }
    }

    /// Reads the reply to that: whether the key was changed.
    pub(super) fn read(command: &Command, replies: &mut Vec<Value>, forms: &[Form]) -> ReadReply {
        let read = read(command, replies, forms)?;
        Ok(read.map(|reply| Reply::Executed((reply != Reply::Integer(0)).then_some(1))))
    }
}

/// Packs what looks whether a key holds what is expected. MULTI goes behind all that is watched: a server that refuses
/// it does so before anything that changes a key is on its way.
pub(super) fn pack_look(packed: &mut Packed, key: &[u8], asks_ttl: bool) {
    packed.begun(Form::Okay, b"*2\r\n$5\r\nWATCH\r\n", &[key]);
    packed.begun(Form::Bulk, GET, &[key]);
    if asks_ttl {
        packed.command(Form::Integer, &[b"PTTL", key]);
    }
}

fn pack_waiting(packed: &mut Packed, key: &[u8], waiting: &Waiting) {
    let list: &[u8] = &SideKey::Waiters.of(key);
    let expire = |packed: &mut Packed| {
        packed.command(Form::Integer, &[b"EXPIRE", list, LIST_TTL.to_string().as_bytes()]);
    };
    let expires = match waiting {
        Waiting::Enter { channel, expires } => {
            packed.command(Form::IntegerOrOkay, &[b"RPUSH", list, channel]);
            *expires
        }
        Waiting::Check { expires, .. } => {
            packed.command(Form::List, &[b"LRANGE", list, b"0", b"-1"]);
            *expires
        }
        Waiting::Next => {
            packed.command(Form::Bulk, &[b"LPOP", list]);
            false
        }
        Waiting::NextAfter { channel, expires } => {
            packed.command(Form::IntegerOrOkay, &[b"RPUSH", list, channel]);
            if *expires {
                expire(packed);
            }
            packed.command(Form::Bulk, &[b"LPOP", list]);
            false
        }
        Waiting::Leave(channel) => {
            packed.command(Form::Integer, &[b"LREM", list, b"1", channel]);
            false
        }
        Waiting::Wake { channel, polled } => {
            packed.command(Form::Integer, &[b"PUBLISH", channel, &waiting_list::message(key, *polled)]);
            false
        }
    };
    if expires {
        expire(packed);
    }
}

fn expire_counter(packed: &mut Packed, key: &[u8], time: Duration) {
    // Rounded up.
    let seconds = time.as_millis().div_ceil(1000).to_string();
    packed.command(Form::Integer, &[b"EXPIRE", &SideKey::Fence.of(key), seconds.as_bytes()]);
}

fn set(packed: &mut Packed, form: Form, key: &[u8], entry: &NewValue, condition: &[&[u8]]) {
    // Rounded up: the server must not free the lock before the time in the value.
    let ttl =
        entry.ttl.map(|ttl| Digits::of(u64::try_from(ttl.as_micros().div_ceil(1000)).unwrap_or(u64::MAX)));
    let mut words: [&[u8]; 7] = [b"SET", key, &entry.value, b"", b"", b"", b""];
    let mut length = 3;
    if let Some(ttl) = &ttl {
        (words[3], words[4], length) = (b"PX", ttl, 5);
    }
    for word in condition {
        words[length] = word;
        length += 1;
    }
    packed.command(form, &words[..length]);
}

/// Reads the replies to a command that depends on nothing, which have these forms.
#[inline]
pub(super) fn read(command: &Command, replies: &mut Vec<Value>, forms: &[Form]) -> ReadReply {
    match (replies.as_slice(), forms) {
        // The usual one first.
        ([Value::Int(n)], [Form::Integer]) => Ok(Ok(Reply::Integer(*n))),
        _ => read_any(command, replies, forms),
    }
}

fn read_any(command: &Command, replies: &mut Vec<Value>, forms: &[Form]) -> ReadReply {
    if let Command::Take(_) = command {
        return read_taken(replies, forms);
    }
    // Which of them counts: what was taken, also where the entry of this process was refused; or the entry, also where
    // its list gets no time to live.
    let (counts, all) = match command {
        Command::Waiting(Waiting::NextAfter { .. }) => (forms.len() - 1, false),
        Command::Waiting(Waiting::Enter { .. }) => (0, false),
        _ => (0, true),
    };
    let mut judged = replies.iter().enumerate().filter(|(at, _)| all || *at == counts);
    if let Some(refusal) = judged.find_map(|(_, reply)| refusal(reply)) {
        return Ok(Err(refusal));
    }
    let reply = replies.drain(..).nth(counts).map(|value| forms[counts].reply(value));
    match (command, reply) {
        (Command::GetAll(keys), Some(Ok(Reply::Bulks(found)))) if found.len() != keys.len() => {
            Err(unexpected(command.name(), None))
        }
        (Command::Waiting(Waiting::Check { channel, .. }), Some(Ok(Reply::Bulks(channels)))) => {
            let listed = channels.iter().filter(|entry| entry.as_ref() == Some(channel)).count();
            Ok(Ok(Reply::Integer(i64::try_from(listed).unwrap_or(i64::MAX))))
        }
        (_, Some(Ok(reply))) => Ok(Ok(reply)),
        (_, Some(Err(other))) => Err(unexpected(command.name(), Some(&other))),
        (_, None) => Err(unexpected(command.name(), None)),
    }
}

/// Reads what was taken from several waiting lists, also where the entry of this process was refused.
fn read_taken(replies: &mut Vec<Value>, forms: &[Form]) -> ReadReply {
    let (mut all, mut refused) = (Vec::new(), None);
    for (reply, form) in replies.drain(..).zip(forms).filter(|(_, form)| **form == Form::Bulk) {
        if let Some(refusal) = refusal(&reply) {
            // What was taken from another list is to be notified.
            refused.get_or_insert(refusal);
            all.push(None);
            continue;
        }
        match form.reply(reply) {
            Ok(Reply::Bulk(channel)) => all.push(channel),
            Ok(_) => {}
            Err(other) => return Err(unexpected("LPOP", Some(&other))),
        }
    }
    match refused.filter(|_| all.iter().all(Option::is_none)) {
        Some(refusal) => Ok(Err(refusal)),
        None => Ok(Ok(Reply::Bulks(all))),
    }
}

impl Form {
    /// Returns the rules' reply for a value of this form, which is no refusal. The error is another value.
    fn reply(self, value: Value) -> Result<Reply, Value> {
        Ok(match (self, value) {
            (Self::Integer | Self::IntegerOrOkay, Value::Int(n)) => Reply::Integer(n),
            // Redis 1.x says of a push that it is done.
            (Self::Okay | Self::OkayOrNil | Self::IntegerOrOkay, Value::Okay) => Reply::Integer(1),
            (Self::OkayOrNil, Value::Nil) => Reply::Integer(0),
            (Self::Bulk, value) => Reply::Bulk(found(value)?),
            (Self::List, Value::Array(values)) => {
                Reply::Bulks(values.into_iter().map(found).collect::<Result<_, _>>()?)
            }
            (_, other) => return Err(other),
        })
    }
}

/// Reads the replies to WATCH, GET, PTTL if that was asked, and MULTI: what the key was found to hold.
pub(super) fn read_look(Expected { without_ttl, .. }: &Expected, replies: &mut Vec<Value>) -> ReadReply {
    if let Some(refusal) = replies.iter().find_map(refusal) {
        return Ok(Err(refusal));
    }
    let mut replies = replies.drain(..);
    let mut next = || replies.next();
    let (watch, found_there) = (next(), next().map(found));
    let ttl = if *without_ttl { next() } else { Some(Value::Int(NO_TTL)) };
    Ok(Ok(match (watch, found_there, ttl, next(), next()) {
        (Some(Value::Okay), Some(Ok(found)), Some(Value::Int(left)), Some(Value::Okay), None) => {
            match (found, u64::try_from(left)) {
                (Some(value), Ok(left)) => Reply::Expiring(Box::new((value, Duration::from_millis(left)))),
                // Without a time to live; or it ended behind GET.
                (found, Err(_)) => Reply::Bulk(found.filter(|_| left == NO_TTL)),
                (None, Ok(_)) => Reply::Bulk(None),
            }
        }
        (Some(Value::Okay), Some(Err(other)), ..) => return Err(unexpected("WATCH", Some(&other))),
        (watch, ..) => return Err(unexpected("WATCH", watch.as_ref())),
    }))
}

/// Reads the replies to the commands of a change in a transaction, each answered by QUEUED, and to EXEC, which is
/// answered by the outcome: nil if the key was written, or a list of exactly as many replies as there were commands.
/// Servers before 2.6.5 carry out the rest when one could not be queued, and answer with a shorter list.
pub(super) fn read_change(command: &Command, replies: &[Value]) -> ReadReply {
    let results = match replies.last() {
        Some(Value::Array(results)) => results.as_slice(),
        _ => &[],
    };
    // What a key was given although more was to be done shows when it is read.
    if let (Command::Renew(_), [Value::Okay] | [Value::Okay, Value::ServerError(_)]) = (command, results) {
        return Err(unexpected("EXEC", replies.last()));
    }
    // The first refusal is the reason; EXEC's own only repeats that there was one.
    if let Some(refusal) = replies.iter().chain(results).find_map(refusal) {
        return Ok(Err(refusal));
    }
    let Some((exec, queued)) = replies.split_last().filter(|(_, queued)| !queued.is_empty()) else {
        return Err(unexpected("EXEC", None));
    };
    if let Some(other) = queued.iter().find(|queued| !is_queued(queued)) {
        return Err(unexpected("EXEC", Some(other)));
    }
    let count = match (command, results) {
        _ if *exec == Value::Nil => None,
        (Command::Set(_), [Value::Okay]) => Some(1),
        (Command::Renew(_), [Value::Okay, Value::Int(n)]) => Some(*n),
        (Command::Del | Command::Raise { .. } | Command::Count { forget_after: None }, [Value::Int(n)]) => {
            Some(*n)
        }
        (Command::Count { .. }, [Value::Int(n), Value::Int(_)]) => Some(*n),
        _ => return Err(unexpected("EXEC", Some(exec))),
    };
    Ok(Ok(Reply::Executed(count)))
}

/// What a key was found to hold. The error is of a reply of another form.
fn found(reply: Value) -> Result<Option<Vec<u8>>, Value> {
    match reply {
        Value::BulkString(bytes) => Ok(Some(bytes)),
        Value::Nil => Ok(None),
        other => Err(other),
    }
}

fn refusal(reply: &Value) -> Option<Refusal> {
    match reply {
        Value::ServerError(error) => Some(error.clone().into()),
        _ => None,
    }
}

const NO_REDIS: &str = "the server does not answer as a Redis server does";

/// A reply to the command of this name that has another form, or none.
pub(super) fn unexpected(name: &str, reply: Option<&Value>) -> TransportError {
    TransportError::new(
        io::ErrorKind::InvalidData,
        &match reply {
            // The bytes of a long value are not shown.
            Some(Value::BulkString(bytes)) => format!("{NO_REDIS}: {} bytes to {name}", bytes.len()),
            Some(reply) => format!("{NO_REDIS}: {reply:?} to {name}"),
            None => format!("{NO_REDIS}: too few replies to {name}"),
        },
    )
}

#[cfg(test)]
mod tests;
