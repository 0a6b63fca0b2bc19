//! What errors say, what their sources are, and how they are classified.

use proto::values::Protocol;

use super::*;
use std::error::Error as _;
use std::io;

use crate::net::{Failure, TooOld};
use crate::report::state::LockState;

fn chain(error: &dyn std::error::Error) -> Vec<String> {
    let sources = std::iter::successors(Some(error), |error| (*error).source());
    sources.map(ToString::to_string).collect()
}

#[test]
fn a_cause_is_the_source_and_stands_in_no_other_text() {
    let reset = TransportError::at("10.0.0.1:6379", io::ErrorKind::ConnectionReset, " closed the connection");
    let key = || Key::from("k");
    let errors = [
        Error::InDoubt { key: key(), command: "SETNX", advice: "wait", cause: reset.clone() },
        Error::of_failure(key(), "GET", Failure::Lost(reset.clone())),
        Error::of_failure(key(), "GET", Failure::unreachable(reset)),
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
        permits: None,
        left_to_writer: false,
        taken_by_this_thread: true,
    };
    let refusal = Refusal::new([b"ERR unknown command ".as_slice(), &huge].concat());
    let timeout = Duration::from_secs(5);
    let lost = TransportError::new(io::ErrorKind::InvalidData, &String::from_utf8_lossy(&huge));
    let errors = [
        Error::Contended { key: key.clone(), timeout: Some(timeout), details: Box::new(details) },
        Error::refused(key.clone(), refusal.clone()),
        Error::refused(key.clone(), Refusal::too_old(Protocol::Ttl, TooOld::Refuses(&refusal))),
        Error::of_failure(key, "GET", Failure::Lost(lost)),
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
            permits: None,
            left_to_writer: false,
            taken_by_this_thread: false,
        };
        Some(Error::Contended { key: key(), timeout: None, details: Box::new(details) })
    };
    let gone = || {
        let reset = TransportError::new(io::ErrorKind::ConnectionReset, "reset");
        Some(Error::of_failure(key(), "GET", Failure::Lost(reset)))
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
    assert!(Error::refused(key(), Refusal::of_replica("a:1", None)).is_transient());
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
    let error =
        Error::of_failure(Key::from("k"), "WATCH", Failure::Lost(reset)).not_released("", "it frees itself");
    assert_eq!(error.to_string(), "lock k: WATCH failed at a:1; it frees itself");
}

/// Asserts what the error of each failure of a command says, with its cause.
fn assert_says(table: impl IntoIterator<Item = (Failure, &'static str, &'static str)>) {
    for (failure, command, text) in table {
        let error = Error::of_failure(Key::from("k"), command, failure.after(Duration::from_secs(2)));
        assert_eq!(chain(&error).join(" | "), format!("lock k: {text}"));
    }
}

#[test]
fn what_a_failure_says() {
    let at = |kind, what| TransportError::at("a:1", kind, what);
    let refused = at(io::ErrorKind::ConnectionRefused, ": refused");
    let closed = at(io::ErrorKind::ConnectionReset, " closed the connection");
    let nodes = TransportError::new(io::ErrorKind::NotConnected, "none of the nodes answers");
    assert_says([
        (
            Failure::all_in_use(None),
            "GET",
            "no free connection of the pool within 2s; make the pool larger, or hold its connections for less long | all connections of the \
             pool were in use",
        ),
        (
            Failure::all_in_use(Some("a:1")),
            "GET",
            "no reply from a:1 within 2s; check the server and the network | a:1 has not answered earlier commands",
        ),
        (
            Failure::connecting("a:1"),
            "GET",
            "no connection to a:1 within 2s; check that the server is up and that the address is right | a:1 has not answered the attempt to \
             connect yet",
        ),
        (
            Failure::unreachable(refused),
            "GET",
            "no connection to a:1 within 2s; check that the server is up and that the address is right | a:1: refused",
        ),
        (
            Failure::unreachable(nodes),
            "GET",
            "no connection to the server within 2s; check that the server is up and that the address is right | none of the nodes answers",
        ),
        (
            Failure::Panicked("no provider".into()),
            "GET",
            "connecting panicked: no provider; with the feature tls-rustls a program must choose its cryptography: let it depend on rustls \
             with the feature ring or aws_lc_rs",
        ),
        (
            Failure::Lost(closed),
            "GET",
            "GET failed at a:1; check the server and the network, then try again | a:1 closed the connection",
        ),
        (
            Failure::TooLate,
            "GET",
            "no free connection of the pool; make the pool larger, or hold its connections for less long | all connections of the pool were \
             in use",
        ),
    ]);
}

#[test]
fn what_a_refusal_says() {
    use proto::values::Protocol::{Ttl, Watched};
    let said = Refusal::new;
    let reported = |version: &str| TooOld::Reported(version.parse().unwrap());
    let no_watch = said("ERR unknown command 'WATCH'");
    let table = [
        (
            Refusal::of_replica("a:1", None),
            "GET",
            "a:1 is a replica, and a lock there protects nothing; lock on its master",
        ),
        (
            Refusal::of_replica("a:1", Some("b:2")),
            "GET",
            "a:1 is a replica of b:2, and a lock there protects nothing; lock on its master",
        ),
        (
            Refusal::of_sentinel("a:1"),
            "GET",
            "a:1 is a Sentinel, which has no keys; lock on the master, whose address it returns for SENTINEL GET-MASTER-ADDR-BY-NAME",
        ),
        (
            Refusal::too_old(Watched, reported("2.0.4")),
            "WATCH",
            "the server is Redis 2.0.4, too old for the protocol Watched, which needs Redis 2.2.0; use the protocol Auto or Classic",
        ),
        (
            Refusal::too_old(Ttl, reported("2.4.18")),
            "SET",
            "the server is Redis 2.4.18, too old for the protocol Ttl, which needs Redis 2.6.12; use the protocol Auto",
        ),
        (
            Refusal::too_old(Watched, TooOld::HangsUp),
            "WATCH",
            "connections are closed on WATCH, as a proxy does (it is tried again after a minute), so the server lacks the commands of the \
             protocol Watched, which needs Redis 2.2.0; use the protocol Auto or Classic",
        ),
        (
            Refusal::too_old(Ttl, TooOld::Refuses(&no_watch)),
            "WATCH",
            "the server refused with \"ERR unknown command 'WATCH'\", so it lacks the commands of the protocol Ttl, which needs Redis 2.6.12; \
             use the protocol Auto",
        ),
        (
            said("ERR syntax error"),
            "SET",
            "the server refused with \"ERR syntax error\", so it lacks the commands of the protocol Ttl, which needs Redis 2.6.12; use the \
             protocol Auto",
        ),
        (
            no_watch.clone(),
            "WATCH",
            "the server refused with \"ERR unknown command 'WATCH'\", so it lacks the commands of the protocol Watched, which needs Redis \
             2.2.0; use the protocol Auto or Classic",
        ),
        (
            said("NOAUTH Authentication required."),
            "GET",
            "the server refused: NOAUTH Authentication required: the server wants a password; put it into the address, redis://:password@host",
        ),
    ];
    assert_says(table.map(|(refusal, command, text)| (Failure::Refused(refusal), command, text)));
}
