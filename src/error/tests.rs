//! What errors say, what their sources are, and how they are classified.

use super::*;
use std::error::Error as _;
use std::io;

use crate::value::LockState;

fn chain(error: &dyn std::error::Error) -> Vec<String> {
    let sources = std::iter::successors(Some(error), |error| (*error).source());
    sources.map(ToString::to_string).collect()
}

#[test]
fn a_cause_is_the_source_and_stands_in_no_other_text() {
    let reset = TransportError::new(io::ErrorKind::ConnectionReset, "10.0.0.1:6379 closed the connection");
    let key = || Key::from("k");
    let connect = NoConnection::Connect(ConnectError::Failed(reset.clone()));
    let errors = [
        Error::Unknown { key: key(), command: "SETNX", advice: "wait", cause: reset.clone() },
        Error::Io { key: key(), command: "GET", source: reset.clone() },
        Error::NoConnection { key: key(), waited: Duration::ZERO, cause: connect.clone() },
        Error::Inspection { cause: Box::new(InspectionFailure::Lost(reset.clone())) },
        Error::Inspection {
            cause: Box::new(InspectionFailure::NoConnection { waited: Duration::ZERO, cause: connect }),
        },
    ];
    for error in errors {
        let chain = chain(&error);
        let times = chain.iter().filter(|text| text.contains("10.0.0.1")).count();
        assert_eq!(times, 1, "{chain:?}");
        assert!(error.source().is_some() && error.is_transient());
        assert!(format!("{error:?}").contains("10.0.0.1"), "Debug shows the fields: {error:?}");
    }
}

#[test]
fn no_text_grows_with_what_it_shows() {
    let huge = vec![0xff; 20_000_000];
    let key = Key::from(huge.as_slice());
    let details = Contention {
        attempts: 5,
        waited: Duration::from_secs(5),
        seen: Some(LockState::of_value(Some(&huge))),
        expiring: true,
        takeover_margin: Duration::from_secs(1),
        ahead: 7,
        holder: Some("x".repeat(256)),
        permits: None,
        taken_by_this_thread: true,
    };
    let refusal = Refusal::new([b"ERR unknown command ".as_slice(), &huge].concat());
    let timeout = Duration::from_secs(5);
    let lost = TransportError::new(io::ErrorKind::InvalidData, &String::from_utf8_lossy(&huge));
    let errors = [
        Error::Timeout { key: key.clone(), timeout, details: Box::new(details) },
        Error::Refused { key: key.clone(), refusal: Box::new(refusal.clone()), advice: None },
        Error::Unsupported {
            key: key.clone(),
            protocol: Protocol::Ttl,
            version: None,
            refusal: Some(Box::new(refusal)),
        },
        Error::Io { key, command: "GET", source: lost },
    ];
    for error in errors {
        for text in chain(&error).into_iter().chain([format!("{error:?}")]) {
            assert!(text.len() <= 1200, "{} bytes: {text}", text.len());
        }
    }
}

#[test]
fn errors_are_classified() {
    let key = || Key::from("k");
    let refused = |text| Error::Refused { key: key(), refusal: Box::new(Refusal::new(text)), advice: None };
    assert!(refused("LOADING Redis is loading the dataset in memory").is_transient());
    assert!(!refused("WRONGTYPE Operation against a key").is_transient());
    let replica = NoConnection::Connect(ConnectError::Replica { address: "a:1".into(), of: None });
    assert!(Error::NoConnection { key: key(), waited: Duration::ZERO, cause: replica }.is_transient());
    let cause = TransportError::new(io::ErrorKind::TimedOut, "no answer");
    let unknown = Error::Unknown { key: key(), command: "DEL", advice: "", cause };
    assert!(unknown.may_hold_lock() && unknown.is_transient() && !unknown.is_contention());
    let nested = Error::Nested { key: key() };
    assert!(!nested.may_hold_lock() && !nested.is_transient() && !nested.is_contention());
}
