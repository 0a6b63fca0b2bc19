//! A locker whose master Sentinels know: how it finds the server, logs in, and follows it. One Sentinel is told where
//! the master is, so that no test waits for a failover; `faults/numbers` and `faults/went_back` have those.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use setnx_lock::{Error, Lock, Locker, Protocol, RefusalKind};
use setnx_lock_testing::Proxy;
use testkit::failover::{MASTER, ask};

use super::connections::works;
use crate::support::notified::{NOTIFIED, Waiter, elsewhere, until, until_waiting};
use crate::support::scenario::closed_port;
use crate::support::{LONG, Outcome, RedisServer, chain, expiring, trials_of};

trials_of! {
    "sentinels";
    passwords_and_databases_of_sentinels_and_master_are_their_own,
    the_next_sentinel_is_asked_where_one_does_not_answer,
    what_sentinels_do_not_know_is_an_error_that_says_so,
    a_master_that_becomes_a_replica_is_left_for_the_next,
    connections_to_an_earlier_master_are_not_used,
    busy_connections_to_an_earlier_master_are_left,
    a_sentinel_that_has_not_heard_of_a_failover_is_passed_over,
    sentinels_that_were_set_up_anew_are_a_majority,
    a_new_master_settles_while_locks_are_extended_and_released,
    a_waiter_listens_to_the_next_master,
    settling_needs_sentinels,
}

/// Starts a Sentinel that knows this server as the master.
fn sentinel_of(server: &RedisServer, config: &str) -> io::Result<RedisServer> {
    RedisServer::start_sentinel(&format!("sentinel monitor {MASTER} 127.0.0.1 {} 1\n{config}", server.port()))
}

/// Has a Sentinel know the server at another port as the master.
fn switch(sentinel: &RedisServer, port: &str) -> Outcome {
    assert_eq!(sentinel.say(&["SENTINEL", "REMOVE", MASTER])?, "+OK");
    assert_eq!(sentinel.say(&["SENTINEL", "MONITOR", MASTER, "127.0.0.1", port, "1"])?, "+OK");
    Ok(())
}

fn locker(sentinel: &RedisServer) -> Result<Locker, Error> {
    Locker::sentinel_builder([sentinel.url()], MASTER)?.retry_for(LONG).build()
}

fn passwords_and_databases_of_sentinels_and_master_are_their_own() -> Outcome {
    let server = RedisServer::start_with("requirepass secret\nuser worker on >hidden ~* +@all")?;
    let sentinel = sentinel_of(&server, &format!("sentinel auth-pass {MASTER} secret\nrequirepass watch"))?;
    let address = sentinel.address();
    let sentinels = [format!("redis://:watch@{address}")];
    works(&Locker::sentinel(&sentinels, "redis://:secret@mymaster/3")?, &server, ":secret@", 3)?;
    let url = format!("redis+sentinel://worker:hidden@{address}/{MASTER}/5?sentinel_password=watch");
    works(&Locker::open(&url)?, &server, ":secret@", 5)?;
    for (sentinels, master, kind, refuses) in [
        (address.to_string(), "redis://:secret@mymaster", RefusalKind::NoPassword, Some(address)),
        (sentinels[0].clone(), "redis://:wrong@mymaster", RefusalKind::WrongPassword, Some(server.address())),
        (sentinels[0].clone(), "mymaster", RefusalKind::NoPassword, None),
    ] {
        let error = refused(&Locker::sentinel([sentinels], master)?, kind)?;
        let text = chain(&error);
        assert!(
            refuses.is_none_or(|address| text.contains(&format!("{address}: the server refused"))),
            "{text}"
        );
    }
    Ok(())
}

/// Returns the error of a call, which is a refusal of this kind.
#[track_caller]
fn refused(locker: &Locker, kind: RefusalKind) -> Result<Error, Error> {
    let error = Lock::new(locker, "refused", expiring())?.lock().expect_err("it is refused");
    let Error::Refused { refusal, .. } = &error else { panic!("{error:?}") };
    assert_eq!(refusal.kind(), kind, "{error}");
    Ok(error)
}

fn the_next_sentinel_is_asked_where_one_does_not_answer() -> Outcome {
    let server = RedisServer::start()?;
    let (frozen, sentinel) = (sentinel_of(&server, "")?, sentinel_of(&server, "")?);
    frozen.freeze();
    let gone = format!("127.0.0.1:{}", closed_port()?);
    let addresses = [gone, frozen.address().to_string(), sentinel.address().to_string()];
    works(&Locker::sentinel(&addresses, MASTER)?, &server, "", 0)?;
    works(&Locker::open(&format!("redis+sentinel://{}/{MASTER}", addresses.join(",")))?, &server, "", 0)?;
    frozen.thaw();
    Ok(())
}

fn what_sentinels_do_not_know_is_an_error_that_says_so() -> Outcome {
    let server = RedisServer::start()?;
    let sentinel = sentinel_of(&server, "")?;
    let says = |error: &Error, words: &[&str]| {
        let text = chain(error);
        assert!(words.iter().all(|words| text.contains(words)), "{text}");
    };
    let error = refused(&Locker::sentinel([sentinel.url()], "other")?, RefusalKind::NoSuchMaster)?;
    says(&error, &["knows no master named \"other\"", &sentinel.address().to_string(), "`sentinel monitor`"]);
    assert!(!error.is_transient());
    let error = refused(&Locker::sentinel([server.url()], MASTER)?, RefusalKind::UnknownCommand)?;
    says(&error, &[&format!("{} is no Sentinel", server.address()), "port 26379"]);
    let gone = format!("127.0.0.1:{}", closed_port()?);
    let locker = Locker::sentinel_builder([&gone], MASTER)?.retry_for(Duration::ZERO).build()?;
    let error = Lock::new(&locker, "gone", expiring())?.lock().expect_err("nothing answers");
    assert!(matches!(error, Error::Unavailable { .. }) && error.is_transient());
    says(&error, &["none of the Sentinels of \"mymaster\" answers", &gone]);
    for (sentinels, master) in [(vec![], MASTER), (vec!["127.0.0.1:1"], ""), (vec!["redis://a:b:c"], MASTER)]
    {
        let error = Locker::sentinel(sentinels, master).expect_err("it is no address");
        assert!(matches!(error, Error::Invalid { .. }), "{error:?}");
    }
    for url in
        ["redis+sentinel://", "redis+sentinel://127.0.0.1:1", "redis+sentinel://127.0.0.1:1/m?password=x"]
    {
        let error = Locker::open(url).expect_err("it is no address");
        assert!(matches!(error, Error::Invalid { .. }), "{url}: {error:?}");
    }
    Ok(())
}

/// What it refuses was not carried out, so it is sent to the next master.
fn a_master_that_becomes_a_replica_is_left_for_the_next() -> Outcome {
    for protocol in [Protocol::Classic, Protocol::Watched, Protocol::Ttl] {
        let (server, next) = (RedisServer::start()?, RedisServer::start()?);
        let sentinel = sentinel_of(&server, "")?;
        let proxy = Proxy::before(server.address())?;
        let url = proxy.url();
        let port = url.trim_end_matches('/').rsplit(':').next().unwrap_or_default();
        switch(&sentinel, port)?;
        let lock = Lock::new(&locker(&sentinel)?, "moves", expiring().protocol(protocol))?;
        lock.lock()?.release()?;
        server.say(&["REPLICAOF", "127.0.0.1", &next.port().to_string()])?;
        proxy.clear_log();
        switch(&sentinel, &next.port().to_string())?;
        let held = lock.lock()?;
        assert!(next.say(&["EXISTS", "moves"])? == ":1", "{protocol:?}");
        let is_grant = |name: &&String| ["SETNX", "SET"].contains(&name.as_str());
        assert_eq!(proxy.names().iter().filter(is_grant).count(), 1, "{protocol:?}: {:?}", proxy.names());
        held.extend()?;
        held.release()?;
    }
    Ok(())
}

/// One that goes on as a master, which the Sentinels have given up.
fn connections_to_an_earlier_master_are_not_used() -> Outcome {
    let (server, next) = (RedisServer::start()?, RedisServer::start()?);
    let sentinel = sentinel_of(&server, "")?;
    let lock = Lock::new(&locker(&sentinel)?, "moves", expiring())?;
    lock.lock()?.release()?;
    switch(&sentinel, &next.port().to_string())?;
    thread::sleep(Duration::from_millis(1100));
    let held = lock.lock()?;
    assert_eq!([server.say(&["EXISTS", "moves"])?, next.say(&["EXISTS", "moves"])?], [":0", ":1"]);
    held.release()?;
    Ok(())
}

/// A thread finds the next master, while others are busy on connections to one that goes on as a master.
fn busy_connections_to_an_earlier_master_are_left() -> Outcome {
    let (server, next) = (RedisServer::start()?, RedisServer::start()?);
    let sentinel = sentinel_of(&server, "")?;
    let locker = locker(&sentinel)?;
    let (rounds, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    let more = |than: u64| until("locks are had", || rounds.load(Ordering::Relaxed) > than + 200);
    let granted = |server: &RedisServer| -> redis::RedisResult<Option<String>> {
        Ok(ask::<redis::InfoDict>(server, redis::cmd("INFO").arg("commandstats"))?.get("cmdstat_setnx"))
    };
    thread::scope(|scope| -> Outcome {
        let (locker, rounds, is_over) = (&locker, &rounds, &is_over);
        let work = |n: usize| {
            move || -> Result<(), Error> {
                let lock = Lock::new(locker, format!("busy:{n}"), expiring().protocol(Protocol::Classic))?;
                while !is_over.load(Ordering::Relaxed) {
                    match lock.lock() {
                        Ok(held) => drop(held),
                        Err(error) if error.is_transient() => {}
                        // The Sentinel is told of the next master in two steps.
                        Err(Error::Refused { refusal, .. })
                            if refusal.kind() == RefusalKind::NoSuchMaster => {}
                        Err(error) => return Err(error),
                    }
                    rounds.fetch_add(1, Ordering::Relaxed);
                }
                Ok(())
            }
        };
        let workers: Vec<_> = (0..16).map(|n| scope.spawn(work(n))).collect();
        more(0);
        switch(&sentinel, &next.port().to_string())?;
        let clients: String = ask(&server, redis::cmd("CLIENT").arg("LIST"))?;
        let is_busy = |line: &&str| line.contains("cmd=setnx") || line.contains("cmd=del");
        let id = |line: &str| Some(line.strip_prefix("id=")?.split(' ').next()?.to_owned());
        let id = clients.lines().filter(is_busy).find_map(id);
        let () =
            ask(&server, redis::cmd("CLIENT").arg(&["KILL", "ID", id.as_deref().expect("one is busy")]))?;
        until("a thread finds the next master", || granted(&next).is_ok_and(|count| count.is_some()));
        more(rounds.load(Ordering::Relaxed));
        let before = granted(&server)?;
        more(rounds.load(Ordering::Relaxed));
        assert_eq!(granted(&server)?, before, "the earlier master grants nothing more");
        is_over.store(true, Ordering::Relaxed);
        workers.into_iter().try_for_each(|worker| worker.join().unwrap())?;
        Ok(())
    })
}

/// It names the old master, which goes on as one.
fn a_sentinel_that_has_not_heard_of_a_failover_is_passed_over() -> Outcome {
    let (server, next) = (RedisServer::start()?, RedisServer::start()?);
    let (old, new) = (in_epoch(&server, 1)?, in_epoch(&next, 2)?);
    let locker = Locker::sentinel_builder([new.url(), old.url()], MASTER)?.retry_for(LONG).build()?;
    let lock = Lock::new(&locker, "epoch", expiring())?;
    lock.lock()?.release()?;
    // The other is asked next, as long as only it answers.
    new.freeze();
    thread::sleep(Duration::from_millis(1100));
    for _ in 0..3 {
        let error = lock.try_lock().expect_err("it leads to the old master");
        assert!(chain(&error).contains("has not heard of the last failover yet"), "{}", chain(&error));
        thread::sleep(Duration::from_millis(100));
    }
    new.thaw();
    let held = lock.lock()?;
    assert_eq!([server.say(&["EXISTS", "epoch"])?, next.say(&["EXISTS", "epoch"])?], [":0", ":1"]);
    held.release()?;
    Ok(())
}

/// A Sentinel that says that this server is the master, in this epoch.
fn in_epoch(server: &RedisServer, epoch: u64) -> io::Result<RedisServer> {
    let config = format!("sentinel config-epoch {MASTER} {epoch}\nsentinel current-epoch {epoch}");
    sentinel_of(server, &config)
}

/// Two of three listed Sentinels count from the beginning, and the third is gone: the master is found again.
fn sentinels_that_were_set_up_anew_are_a_majority() -> Outcome {
    let (server, elsewhere) = (RedisServer::start()?, RedisServer::start()?);
    let mut before = (0..3).map(|_| in_epoch(&server, 7)).collect::<io::Result<Vec<_>>>()?;
    let addresses: Vec<String> = before.iter().map(RedisServer::url).collect();
    let locker = Locker::sentinel_builder(addresses, MASTER)?.retry_for(LONG).build()?;
    let lock = Lock::new(&locker, "anew", expiring())?;
    lock.lock()?.release()?;
    // All at once: one that runs on would tell the others of its epoch.
    before.iter_mut().for_each(RedisServer::stop);
    // One of them alone does not count, whoever else may say what.
    for (sentinel, master) in [(1, &server), (2, &elsewhere)] {
        before[sentinel].restart_with(&monitoring(master))?;
    }
    thread::sleep(Duration::from_millis(1100));
    let error = lock.try_lock().expect_err("no majority agrees");
    let text = chain(&error);
    for (sentinel, master) in [(1, &server), (2, &elsewhere)] {
        let view = format!("{} calls {} the master in epoch 0", before[sentinel].address(), master.address());
        assert!(text.contains(&view) && text.contains("before epoch 7"), "{text}");
    }
    before[2].restart_with(&monitoring(&server))?;
    let held = lock.lock()?;
    assert_eq!([server.say(&["EXISTS", "anew"])?, elsewhere.say(&["EXISTS", "anew"])?], [":1", ":0"]);
    held.release()?;
    Ok(())
}

fn monitoring(server: &RedisServer) -> String {
    format!("sentinel monitor {MASTER} 127.0.0.1 {} 1", server.port())
}

fn a_new_master_settles_while_locks_are_extended_and_released() -> Outcome {
    const SETTLES: Duration = Duration::from_secs(4);
    for protocol in [Protocol::Classic, Protocol::Watched, Protocol::Ttl] {
        let server = RedisServer::start()?;
        let next = RedisServer::start_with(&format!("replicaof 127.0.0.1 {}", server.port()))?;
        let sentinel = sentinel_of(&server, "")?;
        let locker = Locker::sentinel_builder([sentinel.url()], MASTER)?
            .retry_for(LONG)
            .settle_after_failover(SETTLES);
        let locker = locker.build()?;
        let options = expiring().protocol(protocol);
        let (lock, other) = (Lock::new(&locker, "held", options)?, Lock::new(&locker, "other", options)?);
        // A Sentinel that has just started cannot know for how long it has been the master.
        let error = lock.try_lock().expect_err("it settles");
        assert!(chain(&error).contains("by `settle_after_failover`"), "{}", chain(&error));
        let held = lock.lock()?;
        let followed = || next.say(&["EXISTS", "held"]).is_ok_and(|reply| reply == ":1");
        until("the lock is replicated", followed);
        next.say(&["REPLICAOF", "NO", "ONE"])?;
        server.say(&["REPLICAOF", "127.0.0.1", &next.port().to_string()])?;
        switch(&sentinel, &next.port().to_string())?;
        held.extend()?;
        let error = other.try_lock().expect_err("it settles");
        let Error::Refused { refusal, .. } = &error else { panic!("{error:?}") };
        assert_eq!(refusal.kind(), RefusalKind::Settling);
        assert!(error.is_transient());
        held.release()?;
        assert_eq!(next.say(&["EXISTS", "held"])?, ":0");
        assert!(other.try_lock().is_err(), "{protocol:?}: it still settles");
        other.lock()?.release()?;
    }
    Ok(())
}

fn a_waiter_listens_to_the_next_master() -> Outcome {
    let (server, next) = (RedisServer::start()?, RedisServer::start()?);
    let sentinel = sentinel_of(&server, "")?;
    let held = elsewhere(&next, "waits", NOTIFIED)?.lock()?;
    let locker = locker(&sentinel)?;
    let waiter = Waiter::of(&Lock::new(&locker, "busy", NOTIFIED)?);
    drop(waiter.came()?);
    switch(&sentinel, &next.port().to_string())?;
    server.say(&["REPLICAOF", "127.0.0.1", &next.port().to_string()])?;
    let waiter = Waiter::of(&Lock::new(&locker, "waits", NOTIFIED)?);
    until_waiting(&next, "waits", 1);
    drop(held);
    drop(waiter.came()?);
    Ok(())
}

fn settling_needs_sentinels() -> Outcome {
    let builder = Locker::builder("redis://127.0.0.1:1/")?.settle_after_failover(LONG);
    let error = builder.build().expect_err("nobody knows");
    assert!(error.to_string().contains("`settle_after_failover` needs Sentinels"), "{error}");
    let long = setnx_lock::LockOptions::MAX_EXPIRATION + Duration::from_millis(1);
    let builder = || Locker::builder("redis://127.0.0.1:1/");
    for builder in [builder()?.settle_after_restart(long), builder()?.settle_after_failover(long)] {
        let error = builder.build().unwrap_err().to_string();
        assert!(error.contains("over ten years"), "{error}");
    }
    Ok(())
}
