//! What errors say, what their sources are, and how they are classified.

use super::*;
use std::error::Error as _;
use std::io;

use crate::net::{ConnectError, NoConnection, TooOld};
use crate::values::options::Protocol;
use crate::values::value::LockState;

fn chain(error: &dyn std::error::Error) -> Vec<String> {
    let sources = std::iter::successors(Some(error), |error| (*error).source());
    sources.map(ToString::to_string).collect()
}

#[test]
fn a_cause_is_the_source_and_stands_in_no_other_text() {
    let reset = TransportError::at("10.0.0.1:6379", io::ErrorKind::ConnectionReset, " closed the connection");
    let key = || Key::from("k");
    let connect = NoConnection::Connect(ConnectError::Failed(reset.clone()));
    let errors = [
        Error::InDoubt { key: key(), command: "SETNX", advice: "wait", cause: reset.clone() },
        Error::no_reply(key(), "GET", reset.clone()),
        Error::no_connection(key(), connect, Duration::ZERO),
    ];
    for error in errors {
        let chain = chain(&error);
        let times = chain.iter().filter(|text| text.contains("closed the connection")).count();
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
        ahead: 7,
        holder: Some("x".repeat(256)),
        permits: None,
        taken_by_this_thread: true,
    };
    let refusal = Refusal::new([b"ERR unknown command ".as_slice(), &huge].concat());
    let timeout = Duration::from_secs(5);
    let lost = TransportError::new(io::ErrorKind::InvalidData, &String::from_utf8_lossy(&huge));
    let errors = [
        Error::Contended { key: key.clone(), timeout: Some(timeout), details: Box::new(details) },
        Error::refused(key.clone(), refusal.clone()),
        Error::refused(key.clone(), Refusal::too_old(Protocol::Ttl, TooOld::Refuses(&refusal))),
        Error::no_reply(key, "GET", lost),
    ];
    let answers =
        (0..7).map(|n| (format!("10.0.0.{n}:6379"), Some(Error::refused(Key::from("k"), refusal.clone()))));
    let failed = "not acquired in 5.0s and 31 attempts".to_owned();
    let key = Key::from(huge.as_slice());
    let none = Error::NoMajority { key, failed, agreed: 0, lost: false, answers: answers.collect() };
    assert!(none.to_string().len() <= 1500 && none.to_string().ends_with("; and 2 more"), "{none}");
    for error in errors {
        for text in chain(&error).into_iter().chain([format!("{error:?}")]) {
            assert!(text.len() <= 1200, "{} bytes: {text}", text.len());
        }
    }
}

#[test]
fn the_answers_of_a_quorum_s_servers_classify_its_error() {
    let key = || Key::from("k");
    let held = || {
        let seen = LockState::of_value(Some(b"1895000000.5"));
        let details = Contention {
            attempts: 1,
            waited: Duration::ZERO,
            seen: Some(seen),
            expiring: true,
            ahead: 0,
            holder: None,
            permits: None,
            taken_by_this_thread: false,
        };
        Some(Error::Contended { key: key(), timeout: None, details: Box::new(details) })
    };
    let gone = || {
        let reset = TransportError::new(io::ErrorKind::ConnectionReset, "reset");
        Some(Error::no_reply(key(), "GET", reset))
    };
    let refused = || Some(Error::refused(key(), Refusal::new("NOAUTH Authentication required.")));
    let doubt = || {
        let cause = TransportError::new(io::ErrorKind::TimedOut, "no answer");
        Some(Error::InDoubt { key: key(), command: "SETNX", advice: "", cause })
    };
    let error = |agreed, lost, answers: Vec<Option<Error>>| {
        let answers = answers.into_iter().map(|answer| ("a:1".to_owned(), answer)).collect();
        Error::NoMajority { key: key(), failed: "not acquired".into(), agreed, lost, answers }
    };
    // Contended, transient, lost, may be held.
    for (error, expected) in [
        (error(1, false, vec![held(), held()]), [true, true, false, false]),
        (error(1, false, vec![held(), gone()]), [true, true, false, false]),
        (error(0, false, vec![held(), gone(), gone()]), [false, true, false, false]),
        (error(1, false, vec![None, None]), [false, true, false, false]),
        (error(1, false, vec![refused(), refused()]), [false, false, false, false]),
        (error(1, false, vec![refused(), doubt()]), [false, true, false, true]),
        (error(1, true, vec![held(), None]), [false, false, true, false]),
    ] {
        let found = [error.is_contention(), error.is_transient(), error.is_lost(), error.may_hold_lock()];
        assert_eq!(found, expected, "{error}");
    }
    let text = error(1, false, vec![held(), gone()]).to_string();
    assert_eq!(
        text,
        "lock k not acquired: 1 of 3 servers agreed, and 2 must; a:1: held until 2030-01-18T20:53:20.500Z at the latest; a:1: GET failed; \
         check the server and the network, then try again"
    );
}

#[test]
fn errors_are_classified() {
    let key = || Key::from("k");
    let refused = |text| Error::refused(key(), Refusal::new(text));
    assert!(refused("LOADING Redis is loading the dataset in memory").is_transient());
    assert!(!refused("WRONGTYPE Operation against a key").is_transient());
    let replica = NoConnection::Connect(ConnectError::Replica { address: "a:1".into(), of: None });
    assert!(Error::no_connection(key(), replica, Duration::ZERO).is_transient());
    let cause = TransportError::new(io::ErrorKind::TimedOut, "no answer");
    let unknown = Error::InDoubt { key: key(), command: "DEL", advice: "", cause };
    assert!(unknown.may_hold_lock() && unknown.is_transient() && !unknown.is_contention());
    let nested = Error::Nested { key: key() };
    assert!(!nested.may_hold_lock() && !nested.is_transient() && !nested.is_contention());
}

#[test]
fn seconds_are_written_as_they_were_given() {
    let text = |millis| {
        let timeout = Some(Duration::from_millis(millis));
        TimedOut(&Key::from("k"), timeout).to_string()
    };
    for (millis, seconds) in [(5000, "5"), (250, "0.25"), (1602, "1.602"), (1, "0.001")] {
        assert_eq!(text(millis), format!("Timeout on lock k exceeded {seconds} sec"));
    }
}

#[test]
fn a_release_that_failed_says_what_that_means_for_the_lock() {
    let reset = TransportError::at("a:1", io::ErrorKind::ConnectionReset, " closed the connection");
    let error = Error::no_reply(Key::from("k"), "WATCH", reset).not_released("it frees itself");
    assert_eq!(error.to_string(), "lock k: WATCH failed at a:1; it frees itself");
}
