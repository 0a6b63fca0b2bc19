//! What a node's refusal says of where a command belongs.

use proto::Reply;

use crate::net::connections::Address;
use crate::net::errors::{Failure, RefusalKind};
use crate::net::{KeyTrip, Sent};

/// What is to be done about a trip.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Redirected {
    /// The slot is another node's.
    Moved(Address),
    /// The slot moves there, with this key already.
    Ask(Address),
    /// The slot moves. The lock's key, which must hold something,
    /// and the counter, which is changed, may be on two nodes.
    Split,
    /// The node is gone, or the cluster has no node for the slot.
    Wait,
}

/// Returns what is to be done about a trip that was not carried out, on keys of this slot.
pub(super) fn next_for(trip: &KeyTrip<'_>, sent: &Sent, slot: u16) -> Option<Redirected> {
    let outcomes = [sent.found.as_ref(), sent.reply.as_ref()];
    match outcomes.into_iter().flatten().find_map(|outcome| outcome.as_ref().err())? {
        Failure::Refused(refusal) => match refusal.kind() {
            RefusalKind::OtherNode => match redirection(refusal.text(), slot)? {
                // A node that takes a slot over makes a second one of a key
                // that the other has still, and counts in an epoch of before.
                Redirected::Ask(_) if trip.command.changes_counter() => Some(Redirected::Split),
                next => Some(next),
            },
            RefusalKind::NotReady => Some(Redirected::Wait),
            RefusalKind::ReadOnly if refusal.is_of_replica() => Some(Redirected::Wait),
            _ => None,
        },
        Failure::Unreachable { all_in_use: false, .. } => Some(Redirected::Wait),
        _ => None,
    }
}

/// Returns true if a node refuses the command because it has not the key.
pub(super) fn is_redirected(outcome: Option<&Result<Reply, Failure>>, slot: u16) -> bool {
    matches!(outcome, Some(Err(Failure::Refused(refusal)))
        if refusal.kind() == RefusalKind::OtherNode && redirection(refusal.text(), slot).is_some())
}

/// Reads `MOVED 3999 127.0.0.1:6381`, or the same with ASK. Another
/// slot is that of a side key, whose name cannot have this one.
fn redirection(text: &str, slot: u16) -> Option<Redirected> {
    let mut words = text.split(' ');
    let (word, named, address) = (words.next()?, words.next()?, words.next()?);
    if named.parse() != Ok(slot) {
        return None;
    }
    let (host, port) = address.rsplit_once(':')?;
    let address = (host.to_owned(), port.parse().ok()?);
    // A node that does not know its own host leaves it out.
    if address.0.is_empty() {
        return Some(Redirected::Wait);
    }
    Some(if word == "ASK" { Redirected::Ask(address) } else { Redirected::Moved(address) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::errors::Refusal;
    use crate::net::request::Request;
    use crate::net::request::tests::{COUNT, DEL, GET};
    use proto::Expected;
    use proto::values::Key;

    fn refused(text: &str) -> Result<Reply, Failure> {
        Err(Failure::Refused(Refusal::new(text)))
    }

    fn next(text: &str) -> Option<Redirected> {
        let sent = Sent { reply: Some(refused(text)), ..Sent::default() };
        next_for(&KeyTrip::of(&Key::from("k"), &GET), &sent, 3999)
    }

    #[test]
    fn a_refusal_says_which_node_has_the_slot() {
        let address = |host: &str, port| (host.to_owned(), port);
        assert_eq!(next("MOVED 3999 127.0.0.1:6381"), Some(Redirected::Moved(address("127.0.0.1", 6381))));
        assert_eq!(next("ASK 3999 ::1:6381"), Some(Redirected::Ask(address("::1", 6381))));
        assert_eq!(
            next("MOVED 3999 :6381"),
            Some(Redirected::Wait),
            "a node that does not know its own host"
        );
        assert_eq!(next("MOVED 4000 127.0.0.1:6381"), None, "the slot of a side key");
        assert_eq!(next("CLUSTERDOWN The cluster is down"), Some(Redirected::Wait));
        assert_eq!(next("WRONGTYPE Operation against a key"), None);
        let behind = |text: &str| is_redirected(Some(&refused(text)), 3999);
        assert!(behind("ASK 3999 ::1:6381") && behind("MOVED 3999 ::1:6381"));
        assert!(!behind("MOVED 4000 ::1:6381") && !behind("WRONGTYPE Operation against a key"));
        assert!(!is_redirected(Some(&Ok(Reply::Integer(1))), 3999) && !is_redirected(None, 3999));
    }

    #[test]
    fn a_counter_is_changed_where_it_is_and_a_lock_s_key_follows_its_own_answer() {
        let key = Key::from("k");
        let expected = Expected { bytes: b"1".to_vec(), without_ttl: false };
        let ask = || Some(refused("ASK 3999 a:1"));
        let key_has_moved = || Sent { found: ask(), ..Sent::default() };
        let found = Some(Ok(Reply::Bulk(Some(b"1".to_vec()))));
        let counter_has_moved = || Sent { found: found.clone(), reply: ask(), ..Sent::default() };
        let to = |command: &dyn Request, if_holds, sent: Sent| {
            next_for(&KeyTrip { if_holds, ..KeyTrip::of(&key, command) }, &sent, 3999)
        };
        for sent in [key_has_moved(), counter_has_moved()] {
            assert_eq!(to(&COUNT, Some(&expected), sent.clone()), Some(Redirected::Split));
            assert_eq!(to(&DEL, Some(&expected), sent), Some(Redirected::Ask(("a".to_owned(), 1))));
        }
        assert_eq!(
            to(&COUNT, None, Sent { reply: ask(), ..Sent::default() }),
            Some(Redirected::Split),
            "its epoch is not known"
        );
    }
}
