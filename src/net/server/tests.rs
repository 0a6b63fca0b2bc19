//! What many share says nothing about one: a random search with a server that refuses, and keys that others write.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use proto::{Expected, Reply};
use redis::{FromRedisValue as _, RedisError, Value};

use super::*;
use crate::net::connections::fake::{FakeConnection, refused};
use crate::net::connections::{Lender, Transport};
use crate::net::errors::RefusalKind;
use crate::net::request::tests::{GET, LPOP, SET};

/// What happens to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fate {
    Nothing,
    /// Another client writes it, and leaves its value, each time after it was read.
    IsTouched,
    /// Another client writes it after it was read for the first time.
    IsTouchedOnce,
    /// The server does not queue its change.
    IsRefused,
    /// Its change fails when the transaction is carried out.
    Fails,
    /// It holds something else.
    IsAnothers,
}

#[derive(Debug, Default)]
struct Server {
    fates: BTreeMap<String, Fate>,
    /// True if it is a node of a cluster.
    in_cluster: bool,
    changed: BTreeSet<String>,
    watched: Vec<String>,
    queued: Option<Vec<String>>,
    is_aborted: bool,
    popped: BTreeMap<String, usize>,
}

impl Server {
    fn carry_out(&mut self, words: &[String]) -> Value {
        let key = words.get(1).cloned().unwrap_or_default();
        match words[0].as_str() {
            "WATCH" => self.watched.push(key),
            "MULTI" => self.queued = Some(Vec::new()),
            "DISCARD" if self.queued.take().is_none() => return refused("ERR DISCARD without MULTI"),
            "DISCARD" => self.watched.clear(),
            "GET" if self.fates[&key] == Fate::IsAnothers => return Value::BulkString(b"z".to_vec()),
            "GET" => {
                let value: &[u8] = if self.changed.contains(&key) { b"y" } else { b"x" };
                return Value::BulkString(value.to_vec());
            }
            "SET" if self.fates[&key] == Fate::IsRefused => {
                self.is_aborted = true;
                return refused("OOM command not allowed when used memory > 'maxmemory'.");
            }
            "SET" => {
                self.queued.as_mut().expect("it is in a transaction").push(key);
                return Value::SimpleString("QUEUED".into());
            }
            "EXEC" => return self.exec(),
            "LPOP" => {
                *self.popped.entry(key).or_default() += 1;
                return Value::Nil;
            }
            other => panic!("{other}"),
        }
        Value::Okay
    }

    fn exec(&mut self) -> Value {
        let queued = self.queued.take().expect("a transaction is open");
        let watched = std::mem::take(&mut self.watched);
        if std::mem::take(&mut self.is_aborted) {
            return refused("EXECABORT Transaction discarded because of previous errors.");
        }
        let slots: BTreeSet<u16> = queued.iter().map(|key| slot_of(&Key::from(key.as_str()))).collect();
        if self.in_cluster && slots.len() > 1 {
            return refused("CROSSSLOT Keys in request don't hash to the same slot");
        }
        let mut is_touched = false;
        for key in watched {
            let fate = self.fates.get_mut(&key).expect("it is one of them");
            is_touched |= matches!(fate, Fate::IsTouched | Fate::IsTouchedOnce);
            if *fate == Fate::IsTouchedOnce {
                *fate = Fate::Nothing;
            }
        }
        if is_touched {
            return Value::Nil;
        }
        let change = |key: String| {
            if self.fates[&key] == Fate::Fails {
                return refused("ERR value is not an integer or out of range");
            }
            self.changed.insert(key);
            Value::Okay
        };
        Value::Array(queued.into_iter().map(change).collect())
    }

    /// Carries this many packed commands out, and returns their replies.
    fn answer(&mut self, packed: &str, count: usize) -> (Vec<Value>, Option<RedisError>) {
        let (mut parser, mut left) = (redis::Parser::new(), packed.as_bytes());
        let mut command = || Vec::<String>::from_redis_value(parser.parse_value(&mut left).unwrap()).unwrap();
        ((0..count).map(|_| self.carry_out(&command())).collect(), None)
    }
}

/// Changes these keys together. Returns what came of each, and the server.
fn changed(keys: &[(String, Fate)], in_cluster: bool) -> (Vec<Sent>, Arc<Mutex<Server>>) {
    let fates = keys.iter().cloned().collect();
    let server = Arc::new(Mutex::new(Server { fates, in_cluster, ..Server::default() }));
    let answering = Arc::clone(&server);
    let connection =
        FakeConnection::answering_to(move |packed, count| answering.lock().unwrap().answer(packed, count));
    let mut opener = connection.opener();
    opener.command_timeout = Duration::from_secs(60);
    let backend = OneServer::new(opener, 1, Duration::ZERO);
    let expected = Expected { bytes: b"x".to_vec(), without_ttl: false };
    let names: Vec<Key> = keys.iter().map(|(key, _)| Key::from(key.as_str())).collect();
    let trips: Vec<KeyTrip<'_>> = names
        .iter()
        .map(|key| KeyTrip { if_holds: Some(&expected), behind: Some(&LPOP), ..KeyTrip::of(key, &SET) })
        .collect();
    let now = clock::now();
    let limits = Limits::within(Some(now.uptime), Duration::ZERO, Duration::from_secs(60), now);
    let sent = backend.send_all(&trips, &limits);
    (sent, server)
}

/// Returns what is wrong with what came of a key.
fn problem(fate: Fate, key: &str, sent: &Sent, server: &Server) -> Option<String> {
    let is_refused =
        |kind| matches!(&sent.reply, Some(Err(Failure::Refused(refusal))) if refusal.kind() == kind);
    let done = matches!(sent.reply, Some(Ok(Reply::Executed(Some(1)))));
    let changed = server.changed.contains(key);
    let fits = match fate {
        Fate::Nothing | Fate::IsTouchedOnce if done => changed,
        // It was touched while it was alone.
        Fate::IsTouchedOnce | Fate::IsTouched => {
            matches!(sent.reply, Some(Ok(Reply::Executed(None)))) && !changed
        }
        Fate::Nothing => false,
        Fate::IsRefused => is_refused(RefusalKind::OverMemory) && !changed,
        Fate::Fails => is_refused(RefusalKind::Other) && !changed,
        Fate::IsAnothers => sent.reply.is_none() && !changed,
    };
    let popped = server.popped.get(&format!("list:{{{key}}}")).copied().unwrap_or_default();
    let pops = usize::from(fate != Fate::IsAnothers);
    let fits = fits && sent.undecided.is_none() && popped == pops;
    (!fits).then(|| format!("{key}, {fate:?}: {sent:?}, changed: {changed}, LPOP: {popped}"))
}

#[test]
fn each_key_has_the_outcome_that_it_would_have_alone() {
    let fate = prop_oneof![
        20 => Just(Fate::Nothing),
        1 => Just(Fate::IsTouched),
        1 => Just(Fate::IsTouchedOnce),
        1 => Just(Fate::IsRefused),
        1 => Just(Fate::Fails),
        1 => Just(Fate::IsAnothers),
    ];
    let keys = (prop::collection::vec(fate, 1..60), any::<bool>());
    let config = Config { cases: 300, failure_persistence: None, ..Config::default() };
    let searched = TestRunner::new(config).run(&keys, |(fates, in_cluster)| {
        let keys: Vec<_> = fates.into_iter().enumerate().map(|(n, fate)| (format!("k{n}"), fate)).collect();
        let (sent, server) = changed(&keys, in_cluster);
        let server = server.lock().unwrap();
        for ((key, fate), sent) in keys.iter().zip(&sent) {
            prop_assert_eq!(problem(*fate, key, sent, &server), None);
        }
        Ok(())
    });
    searched.unwrap_or_else(|problem| panic!("{problem}"));
}

#[test]
fn of_two_changes_of_a_key_the_second_finds_the_first() {
    let twice = [("k".to_owned(), Fate::Nothing), ("k".to_owned(), Fate::Nothing)];
    let (sent, _) = changed(&twice, false);
    assert!(matches!(sent[0].reply, Some(Ok(Reply::Executed(Some(1))))), "{sent:?}");
    assert!(sent[1].reply.is_none(), "{sent:?}");
    assert!(matches!(&sent[1].found, Some(Ok(Reply::Bulk(Some(found)))) if found == b"y"), "{sent:?}");
}

/// A pool whose event handler panics at first, each time that it is asked.
struct PanicsAtFirst(FakeConnection, Mutex<u32>);

impl PanicsAtFirst {
    fn ask(&self) {
        let mut left = self.1.lock().unwrap();
        if *left > 0 {
            *left -= 1;
            drop(left);
            // Without the panic hook, whose backtrace takes long.
            std::panic::resume_unwind(Box::new("on purpose"));
        }
    }
}

impl Lender for PanicsAtFirst {
    fn lend_at_once(&self) -> Option<Transport> {
        self.ask();
        self.0.lend_at_once()
    }

    fn lend_within(&self, limit: Duration, turn: Duration) -> Result<Transport, Option<String>> {
        self.ask();
        self.0.lend_within(limit, turn)
    }

    fn open(&self) -> u32 {
        0
    }

    fn size(&self) -> u32 {
        1
    }

    fn tests_on_check_out(&self) -> bool {
        false
    }
}

#[test]
fn a_pool_that_panics_is_asked_again_and_keeps_no_thread_waiting() {
    let fake = FakeConnection::answering(|_| (vec![Value::Nil], None));
    let pool = PanicsAtFirst(fake, Mutex::new(2));
    let server = OneServer::new(Opener::borrowing(Arc::new(pool)), 1, Duration::ZERO);
    let get = || {
        let now = clock::now();
        let limits = Limits::within(Some(now.uptime), Duration::ZERO, Duration::from_secs(60), now);
        let key = Key::from("k");
        server.send(&KeyTrip::of(&key, &GET), &limits).plain()
    };
    let failure = get().unwrap_err().to_string();
    assert_eq!(failure, "the pool panicked: on purpose");
    // Until the next attempt may begin.
    while get().is_err() {}
}
