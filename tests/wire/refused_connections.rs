//! What a server says before its first reply, or in its place:
//! that is about the connection, and nothing was carried out.

use setnx_lock::{Error, Lock, LockOptions, Locker, LockerBuilder, Protocol, RefusalKind};
use setnx_lock_testing::TestServer;

use crate::support::scenario::patient;
use crate::support::stranger::{Says, Stranger};
use crate::support::target::PROTOCOLS;
use crate::support::{LONG, Outcome, chain, expiring, millis, trials_of};

trials_of! {
    "refused_connections";
    what_a_server_says_first_is_the_error,
    without_the_check_as_well,
    sentinels_and_nodes_as_well,
    a_user_without_info_is_let_in,
    what_is_no_redis_server_is_shown,
}

/// As Redis 7 says it to clients of other machines.
const PROTECTED: &[u8] = b"-DENIED Redis is running in protected mode because protected mode is enabled and no password is set for the default \
user. In this mode connections are only accepted from the loopback interface. If you want to connect from external computers to Redis you may \
adopt one of the following solutions: 1) Just disable protected mode sending the command 'CONFIG SET protected-mode no' from the loopback \
interface.\r\n";

/// The words, the kind of the refusal, and what the error says.
const WORDS: [(&[u8], RefusalKind, &[&str]); 4] = [
    (PROTECTED, RefusalKind::ProtectedMode, &["no password is set for the default user: ", "requirepass"]),
    (b"-ERR max number of clients reached\r\n", RefusalKind::TooManyClients, &["maxclients"]),
    (b"-ERR the proxy has no server\r\n", RefusalKind::Other, &["ERR the proxy has no server"]),
    (b"-SHUTTINGDOWN not for long\r\n", RefusalKind::Other, &["SHUTTINGDOWN not for long"]),
];

#[track_caller]
fn assert_refused(error: &Error, kind: RefusalKind, says: &[&str]) {
    let Error::Refused { refusal, .. } = error else { panic!("{error:?}") };
    assert_eq!(refusal.kind(), kind, "{error:?}");
    let text = chain(error);
    assert!(says.iter().all(|words| text.contains(words)), "{text}");
    assert!(!text.contains("loopback"), "the first sentence: {text}");
}

fn to(stranger: &Stranger) -> Result<LockerBuilder, Error> {
    Ok(patient(&stranger.url())?.retry_for(millis(100)))
}

fn options(protocol: Protocol) -> LockOptions {
    LockOptions::expiring_after(LONG).protocol(protocol).timeout(millis(100))
}

fn what_a_server_says_first_is_the_error() -> Outcome {
    for says in [Says::AtOnce, Says::First] {
        for (words, kind, said) in WORDS {
            let stranger = Stranger::start(says, words)?;
            for protocol in PROTOCOLS {
                let lock = Lock::new(&to(&stranger)?.build()?, "k", options(protocol))?;
                for _ in 0..3 {
                    assert_refused(&lock.try_lock().expect_err("no client is let in"), kind, said);
                    assert_refused(&lock.lock().expect_err("no client is let in"), kind, said);
                    assert_refused(&lock.state().expect_err("no client is let in"), kind, said);
                }
            }
        }
    }
    Ok(())
}

/// The first command is one of the lock's.
fn without_the_check_as_well() -> Outcome {
    for (words, kind, said) in WORDS {
        let stranger = Stranger::start(Says::First, words)?;
        let locker = to(&stranger)?.skip_server_check().build()?;
        for protocol in [Protocol::Classic, Protocol::Auto] {
            let lock = Lock::new(&locker, "k", options(protocol))?;
            for _ in 0..3 {
                assert_refused(&lock.try_lock().expect_err("no client is let in"), kind, said);
            }
        }
    }
    Ok(())
}

fn sentinels_and_nodes_as_well() -> Outcome {
    for (words, kind, said) in WORDS.into_iter().filter(|(_, kind, _)| *kind != RefusalKind::TooManyClients) {
        let stranger = Stranger::start(Says::AtOnce, words)?;
        let address = stranger.address().to_string();
        for builder in
            [Locker::sentinel_builder([&address], "mymaster")?, Locker::cluster_builder([&address])?]
        {
            let locker =
                builder.connect_timeout(LONG).command_timeout(LONG).retry_for(millis(100)).build()?;
            let lock = Lock::new(&locker, "k", options(Protocol::Auto))?;
            assert_refused(&lock.lock().expect_err("no client is let in"), kind, said);
        }
    }
    Ok(())
}

/// Its first reply is a refusal, and the connection goes on.
fn a_user_without_info_is_let_in() -> Outcome {
    let server = TestServer::builder().config("user default on nopass ~* &* +@all -info").start();
    for protocol in PROTOCOLS {
        let lock = Lock::new(&patient(&server.url())?.build()?, "k", expiring().protocol(protocol))?;
        lock.lock()?.release()?;
    }
    let first: Vec<String> = server.whole_log().into_iter().map(|asked| asked.name).take(3).collect();
    assert_eq!(first[..2], ["INFO", "PING"]);
    Ok(())
}

fn what_is_no_redis_server_is_shown() -> Outcome {
    let strangers: [(Says, &[u8], &str); 4] = [
        (
            Says::First,
            b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n",
            "it says \"HTTP/1.1 400 Bad Request\"",
        ),
        (Says::First, &[0x15, 3, 1, 0, 2, 2, 0x46], "it speaks TLS; use rediss:// in its URL"),
        (Says::AtOnce, b"SSH-2.0-OpenSSH_9.2\r\n", "it says \"SSH-2.0-OpenSSH_9.2\""),
        (Says::AtOnce, &[0xff, 0xfe, 7], r#"it says "\xff\xfe"#),
    ];
    for (says, words, said) in strangers {
        let stranger = Stranger::start(says, words)?;
        let lock = Lock::new(&to(&stranger)?.build()?, "k", options(Protocol::Classic))?;
        let error = lock.lock().expect_err("it is no Redis server");
        assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
        let text = chain(&error);
        assert!(text.contains("does not answer as a Redis server does: ") && text.contains(said), "{text}");
    }
    Ok(())
}
