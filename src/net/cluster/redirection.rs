//! What a node's refusal says of where a command belongs.

use crate::net::Sent;
use crate::net::connections::Address;
use crate::net::errors::{ConnectError, Failure, NoConnection, RefusalKind};

/// What is to be done about a trip.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// The slot is another node's.
    Moved(Address),
    /// The slot moves there, with this key already.
    Ask(Address),
    /// The node is gone, or the cluster has no node for the slot.
    Wait,
}

/// Returns what is to be done about a trip that was not carried out, on keys of this slot.
pub(super) fn next_for(sent: &Sent, slot: u16) -> Option<Next> {
    let outcomes = [sent.watched.as_ref(), sent.reply.as_ref()];
    match outcomes.into_iter().flatten().find_map(|outcome| outcome.as_ref().err())? {
        Failure::Refused(refusal) => match refusal.kind() {
            RefusalKind::OtherNode => redirection(refusal.text(), slot),
            RefusalKind::NotReady => Some(Next::Wait),
            _ => None,
        },
        Failure::NoConnection {
            cause:
                NoConnection::Connect(ConnectError::Failed(_) | ConnectError::Replica { .. })
                | NoConnection::Connecting { .. },
            ..
        } => Some(Next::Wait),
        _ => None,
    }
}

/// Reads `MOVED 3999 127.0.0.1:6381`, or the same with ASK. Another slot is that of a side key, whose name cannot have this one.
fn redirection(text: &str, slot: u16) -> Option<Next> {
    let mut words = text.split(' ');
    let (word, named, address) = (words.next()?, words.next()?, words.next()?);
    if named.parse() != Ok(slot) {
        return None;
    }
    let (host, port) = address.rsplit_once(':')?;
    let address = (host.to_owned(), port.parse().ok()?);
    // A node that does not know its own host leaves it out.
    if address.0.is_empty() {
        return Some(Next::Wait);
    }
    Some(if word == "ASK" { Next::Ask(address) } else { Next::Moved(address) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::errors::Refusal;

    fn next(text: &str) -> Option<Next> {
        let refused = Err(Failure::Refused(Refusal::new(text)));
        next_for(&Sent { reply: Some(refused), ..Sent::default() }, 3999)
    }

    #[test]
    fn a_refusal_says_which_node_has_the_slot() {
        let address = |host: &str, port| (host.to_owned(), port);
        assert_eq!(next("MOVED 3999 127.0.0.1:6381"), Some(Next::Moved(address("127.0.0.1", 6381))));
        assert_eq!(next("ASK 3999 ::1:6381"), Some(Next::Ask(address("::1", 6381))));
        assert_eq!(next("MOVED 3999 :6381"), Some(Next::Wait), "a node that does not know its own host");
        assert_eq!(next("MOVED 4000 127.0.0.1:6381"), None, "the slot of a side key");
        assert_eq!(next("CLUSTERDOWN The cluster is down"), Some(Next::Wait));
        assert_eq!(next("WRONGTYPE Operation against a key"), None);
        assert_eq!(next_for(&Sent::default(), 0), None);
    }
}
