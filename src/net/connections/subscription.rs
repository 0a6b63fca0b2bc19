//! A connection that is used for nothing but receiving what is published on one channel.

use std::io;
use std::time::Duration;

use proto::values::Version;
use redis::{RedisError, RedisResult, Value, cmd};

use super::handshake::Opened;
use super::socket::Socket;
use super::transport::{Longest, Spin, Transport};
use crate::net::errors::{Failure, Refusal, TransportError};
use crate::system::clock;

/// The first version that has PUBLISH.
pub(in crate::net) const NEEDS: Version = Version::new(2, 0, 0);

/// How often whatever listens is asked whether to go on, if nothing else is received.
const TICK: Duration = Duration::from_secs(1);
/// After so many ticks SUBSCRIBE is sent again: a server that is gone does not answer.
const TICKS: usize = 5;

/// What a subscription receives.
#[derive(Clone, Copy)]
pub(crate) enum Heard<'a> {
    /// From now on messages arrive; what was published before is lost.
    Subscribed,
    Message(&'a [u8]),
    /// Nothing, for a while.
    Silence,
}

/// Receives until `heard` returns `false`, or something fails. `answered_within` is the time for a reply.
pub(in crate::net) fn listen(
    opened: Opened,
    channel: &[u8],
    answered_within: Duration,
    address: &str,
    mut heard: impl FnMut(Heard<'_>) -> bool,
) -> Result<(), Failure> {
    if let Some(version) = opened.version.filter(|version| *version < NEEDS) {
        return Err(Failure::Refused(Refusal::without_channels(version)));
    }
    let listened = match opened.transport {
        Transport::Socket(mut socket) => on_socket(&mut socket, channel, answered_within, &mut heard),
        Transport::Crate { mut connection, .. } => {
            on_crate(&mut connection, channel, answered_within, &mut heard)
        }
        #[cfg(test)]
        Transport::Fake(_) => unreachable!("it has no channels"),
    };
    listened.map_err(|error| match Refusal::of(&error) {
        Some(refusal) => Failure::Refused(refusal),
        None => Failure::Lost(TransportError::on(address, answered_within, &error)),
    })
}

fn on_socket(
    socket: &mut Socket,
    channel: &[u8],
    answered_within: Duration,
    heard: &mut dyn FnMut(Heard<'_>) -> bool,
) -> RedisResult<()> {
    let subscribe = cmd("SUBSCRIBE").arg(channel).get_packed_command();
    let mut is_subscribed = false;
    loop {
        let deadline = || clock::uptime().after(answered_within);
        socket.write(&subscribe, clock::uptime(), deadline())?;
        while let Some(message) = message(socket.receive(deadline(), Longest::WHOLE, Spin::Never)?)? {
            if !heard(Heard::Message(&message)) {
                return Ok(());
            }
        }
        if !is_subscribed && !heard(Heard::Subscribed) {
            return Ok(());
        }
        is_subscribed = true;
        for _ in 0..TICKS {
            let tick = clock::uptime().after(TICK);
            loop {
                match socket.receive(tick, Longest::WHOLE, Spin::Never) {
                    Ok(value) => match message(value)? {
                        Some(message) if !heard(Heard::Message(&message)) => return Ok(()),
                        _ => {}
                    },
                    Err(error) if error.is_timeout() => break,
                    Err(error) => return Err(error),
                }
            }
            if !heard(Heard::Silence) {
                return Ok(());
            }
        }
    }
}

/// Returns the message that was received; `None` for the reply to SUBSCRIBE.
fn message(received: Value) -> RedisResult<Option<Vec<u8>>> {
    let Value::Array(parts) = received else {
        return match received.extract_error() {
            Ok(_) => Err(unexpected()),
            Err(refused) => Err(refused),
        };
    };
    match <[Value; 3]>::try_from(parts) {
        Ok([Value::BulkString(kind), _, Value::BulkString(payload)]) if kind == b"message" => {
            Ok(Some(payload))
        }
        Ok([Value::BulkString(kind), _, Value::Int(_)]) if kind == b"subscribe" => Ok(None),
        _ => Err(unexpected()),
    }
}

fn unexpected() -> RedisError {
    io::Error::new(io::ErrorKind::InvalidData, "what the server sent is no message and no reply to SUBSCRIBE")
        .into()
}

/// For TLS. The crate's connection would take a message that comes after a time limit for the reply that is late.
fn on_crate(
    connection: &mut redis::Connection,
    channel: &[u8],
    answered_within: Duration,
    heard: &mut dyn FnMut(Heard<'_>) -> bool,
) -> RedisResult<()> {
    let mut subscription = connection.as_pubsub();
    let mut is_subscribed = false;
    loop {
        subscription.set_read_timeout(Some(answered_within))?;
        subscription.subscribe(channel)?;
        if !is_subscribed && !heard(Heard::Subscribed) {
            return Ok(());
        }
        is_subscribed = true;
        subscription.set_read_timeout(Some(TICK))?;
        for _ in 0..TICKS {
            let goes_on = match subscription.get_message() {
                Ok(message) => heard(Heard::Message(message.get_payload_bytes())),
                Err(error) if error.is_timeout() => heard(Heard::Silence),
                Err(error) => return Err(error),
            };
            if !goes_on {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    #[test]
    fn a_message_is_told_from_the_reply_to_subscribe() {
        let received = |parts: Vec<Value>| message(Value::Array(parts));
        let payload = received(vec![bulk("message"), bulk("c"), bulk("k")]).unwrap();
        assert_eq!(payload.as_deref(), Some(&b"k"[..]));
        assert_eq!(received(vec![bulk("subscribe"), bulk("c"), Value::Int(1)]).unwrap(), None);
        assert!(received(vec![bulk("message"), bulk("c")]).is_err());
        assert!(received(vec![bulk("subscribe"), bulk("c"), bulk("k")]).is_err());
        assert!(message(Value::Int(1)).is_err());
        let refused = redis::parse_redis_value(b"-NOPERM no channel\r\n").unwrap();
        assert!(Refusal::of(&message(refused).unwrap_err()).is_some());
    }
}
