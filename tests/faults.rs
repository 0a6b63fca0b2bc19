//! What a lock does when the server or the network does not do what it should: the call ends in time, with the right answer
//! or the right error, nothing is sent twice, and the key is as it was unless it is ours.

use std::net::TcpListener;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use redis::Commands as _;
use setnx_lock::{Content, Error, Lock, LockOptions, Locker, Manager, NoConnection, RefusalKind, Release};

use crate::support::faulty::{Fault, FaultyServer};
use crate::support::{
    Ground, LONG, Outcome, RedisServer, TestKey, assert_says, expiring, millis, redis_server, tests,
};

pub(crate) fn trials() -> Vec<Trial> {
    crate::support::trials(
        "faults",
        tests![
            a_server_that_is_down,
            a_server_that_accepts_and_never_answers,
            a_server_that_freezes_and_thaws,
            a_connection_reset_before_the_request_was_read,
            the_answer_to_setnx_is_lost,
            the_answer_to_setnx_is_lost_without_an_expiration,
            the_answer_to_getset_is_lost,
            the_answer_to_del_is_lost,
            a_late_answer_is_nobody_s,
            a_late_answer_on_a_plain_pool_is_nobody_s,
            a_late_answer_to_other_work_is_nobody_s,
            garbage_on_the_wire,
            garbage_on_a_plain_pool_s_wire,
            an_answer_of_another_kind,
            a_server_that_takes_longer_over_each_answer_than_there_is_time,
            a_release_that_waits_for_a_connection_beyond_its_lease,
            more_waiters_than_connections,
            more_threads_than_the_server_takes_clients,
            a_slow_connection_is_opened_once,
            a_restarted_server_is_met_with_fresh_connections,
            a_key_of_another_type,
            a_password_that_is_missing_or_wrong,
            a_server_over_its_memory,
            a_server_with_too_many_clients,
            a_replica_that_takes_no_writes,
            refusals_in_the_words_of_old_servers,
            a_refusal_on_release,
            a_pool_that_is_empty_for_the_whole_timeout,
            a_lock_that_is_granted_too_late,
            options_that_make_no_sense,
            settings_that_make_no_sense,
            addresses_that_make_no_sense,
        ],
    )
}

/// A real server and a faulty one before it.
struct Scene {
    ground: Ground,
    faulty: FaultyServer,
}

impl Scene {
    fn set() -> Result<Self, std::io::Error> {
        let server = Arc::new(RedisServer::start()?);
        Ok(Self { faulty: FaultyServer::before(server.address())?, ground: Ground::of(&server) })
    }

    /// A locker through the faulty server, with a pool of one and short time-outs.
    fn locker(&self) -> Locker {
        impatient(&self.faulty.url(), 1)
    }

    fn lock(&self, key: &TestKey, options: LockOptions) -> Lock {
        Lock::new(&self.locker(), &key.key, options).unwrap()
    }
}

fn impatient(url: &str, pool_size: u32) -> Locker {
    let settings = Locker::at(url).unwrap().pool_size(pool_size);
    settings.connect_timeout(millis(500)).command_timeout(millis(300)).patience(millis(500)).open().unwrap()
}

/// Long enough for any load, and short enough to tell from waiting for ever.
const IN_TIME: Duration = Duration::from_secs(20);

/// Asserts that none of our values was sent by more than one command.
#[track_caller]
fn assert_nothing_sent_twice(faulty: &FaultyServer) {
    let mut values: Vec<String> = faulty
        .asked()
        .into_iter()
        .filter(|asked| asked.name == "SETNX" || asked.name == "GETSET")
        .map(|asked| asked.arguments[1].clone())
        .collect();
    values.sort();
    let sent = values.len();
    values.dedup();
    assert_eq!(values.len(), sent, "a value was sent twice: {:?}", faulty.asked());
}

fn a_server_that_is_down() -> Outcome {
    let port = redis_server::free_port()?;
    let locker = impatient(&format!("redis://127.0.0.1:{port}/"), 2);
    let began = Instant::now();
    for options in
        [expiring().timeout(millis(300)), expiring().timeout(Duration::ZERO), expiring().wait_forever()]
    {
        let lock = Lock::new(&locker, "report", options)?;
        let error = lock.lock().expect_err("nobody is there");
        let Error::Pool { cause: NoConnection::Failed(_), .. } = &error else { panic!("{error:?}") };
        let text = error.to_string();
        assert!(text.starts_with("lock report: no connection to the server within "), "{text}");
        assert!(text.contains(&format!("127.0.0.1:{port}: ")) && text.contains("refused"), "{text}");
        assert!(text.contains("refused") && text.contains("check that the server is up"), "{text}");
        assert!(matches!(lock.peek(), Err(Error::Pool { .. })));
        assert!(matches!(lock.clear(), Err(Error::Pool { .. })));
    }
    assert!(began.elapsed() < IN_TIME);
    Ok(())
}

fn a_server_that_accepts_and_never_answers() -> Outcome {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let locker = impatient(&format!("redis://{}/", listener.local_addr()?), 2);
    for options in
        [expiring().timeout(millis(500)), expiring().timeout(Duration::ZERO), expiring().wait_forever()]
    {
        let began = Instant::now();
        let error = Lock::new(&locker, "report", options)?.lock().expect_err("nobody answers");
        assert!(matches!(error, Error::Unknown { command: "SETNX", .. }), "{error:?}");
        let text = error.to_string();
        assert!(
            text.contains("gave no answer within") && text.contains("if it is ours, it frees itself"),
            "{text}"
        );
        assert!(began.elapsed() < IN_TIME);
    }
    let error = Lock::new(&locker, "report", LockOptions::held_until_released())?.lock().unwrap_err();
    assert!(error.to_string().contains("look at the key, and clear it"), "{error}");
    // With a password it is the connecting that gets no answer.
    let locker = impatient(&format!("redis://:secret@{}/", listener.local_addr()?), 2);
    let error = Lock::new(&locker, "report", expiring().timeout(millis(100)))?.lock().unwrap_err();
    assert!(matches!(error, Error::Pool { .. }), "{error:?}");
    Ok(())
}

fn a_server_that_freezes_and_thaws() -> Outcome {
    let server = Arc::new(RedisServer::start()?);
    let ground = Ground::of(&server);
    let key = ground.key("frozen");
    let brief = LockOptions::expiring_after(millis(100));
    let lock = Lock::new(&impatient(&server.url(), 2), &key.key, brief.timeout(LONG))?;
    drop(lock.lock()?);
    server.freeze();
    let frozen = lock.try_lock();
    server.thaw();
    assert!(matches!(frozen, Err(Error::Unknown { .. })), "{frozen:?}");
    // The server carries out what it finds in its buffers: the key is then ours, with our expiry in it, or free. Either way
    // others get the lock once that has passed.
    assert!(matches!(lock.peek()?, Content::Absent | Content::Until(_)));
    drop(lock.lock()?);
    Ok(())
}

fn a_connection_reset_before_the_request_was_read() -> Outcome {
    let scene = Scene::set()?;
    let key = scene.ground.key("reset");
    scene.faulty.next("SETNX", Fault::LoseRequest);
    let held = scene.lock(&key, expiring()).lock()?;
    assert_eq!(scene.faulty.names(), ["SETNX", "GET", "SETNX"]);
    assert_eq!(held.attempts(), 2);
    assert_nothing_sent_twice(&scene.faulty);
    assert_eq!(held.release()?, Release::Released);
    Ok(())
}

fn the_answer_to_setnx_is_lost() -> Outcome {
    let scene = Scene::set()?;
    let key = scene.ground.key("lost");
    scene.faulty.next("SETNX", Fault::LoseAnswer);
    let held = scene.lock(&key, expiring()).lock()?;
    let asked = scene.faulty.asked();
    assert_eq!(scene.faulty.names(), ["SETNX", "GET"], "recognised by reading, and not sent again");
    assert_ne!(asked[0].connection, asked[1].connection);
    assert_eq!(key.value().as_ref(), asked[0].arguments.get(1));
    assert_eq!(held.release()?, Release::Released);
    assert_eq!(key.value(), None);
    Ok(())
}

fn the_answer_to_setnx_is_lost_without_an_expiration() -> Outcome {
    let scene = Scene::set()?;
    let key = scene.ground.key("lost");
    scene.faulty.next("SETNX", Fault::LoseAnswer);
    let error = scene.lock(&key, LockOptions::held_until_released()).lock().expect_err("1 names nobody");
    assert!(matches!(error, Error::Unknown { command: "SETNX", .. }), "{error:?}");
    assert_says(&error, &key, &["answer to SETNX was lost", "nobody can tell whether it is ours"]);
    assert_eq!(scene.faulty.names(), ["SETNX"]);
    assert_eq!(key.value().as_deref(), Some("1"));
    Ok(())
}

fn the_answer_to_getset_is_lost() -> Outcome {
    let scene = Scene::set()?;
    let key = scene.ground.key("lost");
    key.set("1532000016.5");
    scene.faulty.next("GETSET", Fault::LoseAnswer);
    let error = scene
        .lock(&key, expiring().timeout(millis(50)))
        .lock()
        .expect_err("our bytes do not prove that we won");
    assert!(matches!(error, Error::Unknown { command: "GETSET", .. }), "{error:?}");
    assert_nothing_sent_twice(&scene.faulty);
    assert_eq!(scene.faulty.names().iter().filter(|name| *name == "GETSET").count(), 1);
    // Once that value has passed, it is taken over as any other.
    key.delete();
    key.set("1532000016.5");
    scene.faulty.next("GETSET", Fault::LoseAnswer);
    let held = scene.lock(&key, LockOptions::expiring_after(millis(100)).timeout(LONG)).lock()?;
    drop(held);
    Ok(())
}

fn the_answer_to_del_is_lost() -> Outcome {
    let scene = Scene::set()?;
    let key = scene.ground.key("lost");
    let lock = scene.lock(&key, expiring());
    let held = lock.lock()?;
    scene.faulty.next("DEL", Fault::LoseAnswer);
    assert_eq!(held.release()?, Release::Released, "found out by reading");
    assert_eq!(scene.faulty.names(), ["SETNX", "DEL", "GET"]);

    let held = lock.lock()?;
    scene.faulty.next("DEL", Fault::LoseRequest);
    let error = held.release().expect_err("it may still come");
    assert!(matches!(error, Error::Unknown { command: "DEL", .. }), "{error:?}");
    assert_says(&error, &key, &["if it was not released, it frees itself when its lease has passed"]);
    key.delete();

    let lock = scene.lock(&key, LockOptions::held_until_released());
    let held = lock.lock()?;
    scene.faulty.next("DEL", Fault::LoseAnswer);
    assert_says(&held.release().unwrap_err(), &key, &["clear it if it is still there"]);
    Ok(())
}

fn a_late_answer_is_nobody_s() -> Outcome {
    let scene = Scene::set()?;
    late_answer(&scene, &scene.locker())
}

fn a_late_answer_on_a_plain_pool_is_nobody_s() -> Outcome {
    let scene = Scene::set()?;
    let pool = plain_pool(&scene.faulty.url());
    late_answer(&scene, &Locker::with_pool(pool))
}

/// The same for somebody who shares the pool and asks the server for other things.
fn a_late_answer_to_other_work_is_nobody_s() -> Outcome {
    let scene = Scene::set()?;
    let manager = Manager::new(redis::Client::open(scene.faulty.url())?).command_timeout(millis(300));
    let pool = r2d2::Pool::builder().max_size(1).test_on_check_out(false).build(manager)?;
    let mut connection = scene.ground.connection();
    let () = connection.mset(&[("one", "1"), ("two", "2")])?;
    scene.faulty.next("GET", Fault::AnswerLate(millis(1300)));
    let mut shared = pool.get()?;
    assert!(shared.get::<_, String>("one").is_err());
    thread::sleep(millis(1200));
    assert!(shared.get::<_, String>("two").is_err(), "broken for good, also for whoever keeps it");
    drop(shared);
    assert_eq!(pool.get()?.get::<_, String>("two")?, "2");
    let connections: Vec<usize> = scene.faulty.asked().iter().map(|asked| asked.connection).collect();
    assert_eq!(connections, [0, 1]);
    Ok(())
}

/// A pool of one of the redis crate's own connections, which a user has given a time-out.
fn plain_pool(url: &str) -> r2d2::Pool<redis::Client> {
    #[derive(Debug)]
    struct TimeOut;
    impl r2d2::CustomizeConnection<redis::Connection, redis::RedisError> for TimeOut {
        fn on_acquire(&self, connection: &mut redis::Connection) -> Result<(), redis::RedisError> {
            connection.set_read_timeout(Some(millis(300)))
        }
    }
    let client = redis::Client::open(url).unwrap();
    let builder = r2d2::Pool::builder().max_size(1).test_on_check_out(false);
    builder.connection_customizer(Box::new(TimeOut)).build_unchecked(client)
}

/// The grant of one lock comes when its caller has given up. The next lock, which another holds, must not get it.
fn late_answer(scene: &Scene, locker: &Locker) -> Outcome {
    let (late, taken) = (scene.ground.key("late"), scene.ground.key("taken"));
    taken.set("1895000000.5");
    let late_lock = Lock::new(locker, &late.key, LockOptions::held_until_released())?;
    let taken_lock = Lock::new(locker, &taken.key, expiring())?;
    for round in 1..=2 {
        scene.faulty.next("SETNX", Fault::AnswerLate(millis(1300)));
        assert!(matches!(late_lock.lock(), Err(Error::Unknown { .. })));
        thread::sleep(millis(1200)); // by now the answer is in the old connection's buffer
        assert!(taken_lock.try_lock()?.is_none(), "round {round}: the late answer was taken for this lock's");
        late.delete();
    }
    let asked = scene.faulty.asked();
    let late_ones = asked.iter().filter(|asked| asked.arguments[0] == late.key.to_string());
    for late_one in late_ones {
        let on_it = asked.iter().filter(|asked| asked.connection == late_one.connection);
        assert_eq!(
            on_it.collect::<Vec<_>>().pop(),
            Some(late_one),
            "the connection was used again: {asked:?}"
        );
    }
    Ok(())
}

fn garbage_on_the_wire() -> Outcome {
    let scene = Scene::set()?;
    garbage(&scene, &scene.locker())
}

fn garbage_on_a_plain_pool_s_wire() -> Outcome {
    let scene = Scene::set()?;
    let locker = Locker::with_pool(plain_pool(&scene.faulty.url()));
    garbage(&scene, &locker)
}

fn garbage(scene: &Scene, locker: &Locker) -> Outcome {
    let key = scene.ground.key("garbage");
    key.set("1895000000.5");
    let lock = Lock::new(locker, &key.key, LockOptions::held_until_released().timeout(Duration::ZERO))?;
    // The second line would pass for a grant if anybody went on reading.
    scene.faulty.next("SETNX", Fault::Say("HTTP/1.1 400 Bad Request\r\n:1\r\n:1\r\n"));
    let error = lock.lock().expect_err("no answer to SETNX");
    assert!(matches!(error, Error::Unknown { .. }), "{error:?}");
    assert!(lock.try_lock()?.is_none(), "what was left on the wire was taken for a grant");
    scene.faulty.next("GET", Fault::Say("HTTP/1.1 400 Bad Request\r\n$-1\r\n"));
    let error = lock.peek().expect_err("no answer to GET");
    assert!(matches!(error, Error::Io { command: "GET", .. }), "{error:?}");
    assert_says(&error, &key, &["GET failed", "check the server and the network"]);
    assert!(!error.to_string().contains('\n'), "{error}");
    assert_eq!(key.value().as_deref(), Some("1895000000.5"));
    Ok(())
}

fn an_answer_of_another_kind() -> Outcome {
    let scene = Scene::set()?;
    let key = scene.ground.key("kind");
    let lock = scene.lock(&key, LockOptions::held_until_released().timeout(Duration::ZERO));
    for answer in ["+OK\r\n", "$1\r\n1\r\n", "*0\r\n", "$-1\r\n"] {
        scene.faulty.next("SETNX", Fault::Say(answer));
        assert!(
            matches!(lock.lock(), Err(Error::Unknown { .. })),
            "{answer:?} was taken for an answer to SETNX"
        );
    }
    assert_eq!(
        scene.faulty.asked().last().map(|asked| asked.connection),
        Some(3),
        "each on a connection of its own"
    );
    Ok(())
}

fn a_server_that_takes_longer_over_each_answer_than_there_is_time() -> Outcome {
    let scene = Scene::set()?;
    let key = scene.ground.key("slow");
    key.set("1895000000.5");
    let locker = Locker::at(&scene.faulty.url())?.command_timeout(millis(1000)).open()?;
    let lock = Lock::new(&locker, &key.key, expiring())?;
    // Each answer would come in time, but both together would not: what the first took is missing for the second.
    scene.faulty.next("SETNX", Fault::AnswerLate(millis(700)));
    scene.faulty.next("GET", Fault::AnswerLate(millis(700)));
    let error = lock.try_lock().expect_err("the second answer was waited for beyond the call's time");
    assert!(matches!(error, Error::Io { .. } | Error::Unknown { .. }), "{error:?}");
    Ok(())
}

/// A locker on a pool of one, and the pool.
fn pool_of_one(
    server: &RedisServer,
    timeout: Duration,
) -> Result<(Locker, r2d2::Pool<Manager>), redis::RedisError> {
    let manager = Manager::new(redis::Client::open(server.url())?).command_timeout(timeout);
    let builder = r2d2::Pool::builder().max_size(1).min_idle(Some(0)).test_on_check_out(false);
    let pool = builder.build_unchecked(manager.clone());
    Ok((Locker::with_managed_pool(pool.clone(), &manager), pool))
}

fn a_release_that_waits_for_a_connection_beyond_its_lease() -> Outcome {
    let server = Arc::new(RedisServer::start()?);
    let key = Ground::of(&server).key("release");
    let (locker, pool) = pool_of_one(&server, LONG)?;
    let held = Lock::new(&locker, &key.key, LockOptions::expiring_after(millis(300)))?.lock()?;
    let taken = pool.get()?;
    let releasing = thread::spawn(move || held.release());
    thread::sleep(millis(400));
    key.set("1895000000.5"); // by now it can be another's
    drop(taken);
    assert_eq!(releasing.join().unwrap()?, Release::Overran);
    assert_eq!(key.value().as_deref(), Some("1895000000.5"));
    Ok(())
}

fn more_waiters_than_connections() -> Outcome {
    let server = Arc::new(RedisServer::start()?);
    let key = Ground::of(&server).key("waiters");
    key.set("1895000000.5");
    let locker = Locker::at(&server.url())?.pool_size(1).open()?;
    let lock = Lock::new(&locker, &key.key, expiring().poll_interval(millis(20)))?;
    let waiters: Vec<_> = vec![lock; 32]
        .into_iter()
        .map(|lock| {
            thread::spawn(move || {
                (0..3).try_for_each(|_| lock.try_lock_for(millis(100)).map(|got| assert!(got.is_none())))
            })
        })
        .collect();
    // All of them make their last try at about the same time, with one connection: they wait for it, and get their answer.
    waiters.into_iter().try_for_each(|waiter| waiter.join().unwrap())?;
    Ok(())
}

fn more_threads_than_the_server_takes_clients() -> Outcome {
    let server = RedisServer::start_with("maxclients 1\nrequirepass secret")?;
    let manager = Manager::new(redis::Client::open(format!("redis://:secret@{}/", server.address()))?);
    let builder = r2d2::Pool::builder().max_size(4).min_idle(Some(0)).test_on_check_out(false);
    let pool = builder.build_unchecked(manager.clone());
    let locker = Locker::with_managed_pool(pool.clone(), &manager);
    // That the pool cannot grow is no reason to fail for those who have a connection to share.
    let held = Lock::new(&locker, "clients", expiring().timeout(LONG))?.lock()?;
    let taken = pool.get()?;
    let releasing = thread::spawn(move || held.release());
    thread::sleep(millis(1300)); // r2d2 is asked again after a second
    assert!(!releasing.is_finished(), "{:?}", releasing.join());
    drop(taken);
    assert_eq!(releasing.join().unwrap()?, Release::Released);
    Ok(())
}

fn a_slow_connection_is_opened_once() -> Outcome {
    let scene = Scene::set()?;
    let url = scene.faulty.url().replace("redis://", "redis://:secret@");
    scene.ground.connection().set_read_timeout(None)?;
    let () = redis::cmd("CONFIG")
        .arg("SET")
        .arg("requirepass")
        .arg("secret")
        .query(&mut scene.ground.connection())?;
    scene.faulty.next("AUTH", Fault::AnswerLate(millis(400)));
    drop(Lock::new(&Locker::open(&url)?, "slow", expiring())?.lock()?);
    let connections: std::collections::BTreeSet<usize> =
        scene.faulty.asked().iter().map(|asked| asked.connection).collect();
    assert_eq!(connections.len(), 1, "{:?}", scene.faulty.asked());
    Ok(())
}

fn a_restarted_server_is_met_with_fresh_connections() -> Outcome {
    let mut server = RedisServer::start()?;
    let manager = Manager::new(redis::Client::open(server.url())?);
    let pool = r2d2::Pool::builder().max_size(4).test_on_check_out(false).build(manager.clone())?;
    assert_eq!(pool.state().idle_connections, 4);
    let locker = Locker::with_managed_pool(pool, &manager);
    let options = expiring().timeout(Duration::ZERO);
    server.restart()?;
    let lock = Lock::new(&locker, "restart:0", options)?;
    let held = lock.lock()?;
    assert_eq!(held.release()?, Release::Released);
    // Without an expiration a lost answer is an error: once per restart at most, not once per dead connection.
    let unexpiring =
        Lock::new(&locker, "restart:1", LockOptions::held_until_released().timeout(Duration::ZERO))?;
    drop(unexpiring.lock()?);
    // A server that was away for some time is found again.
    server.stop();
    assert!(lock.lock().is_err());
    thread::sleep(millis(700));
    assert!(matches!(lock.lock(), Err(Error::Pool { .. })));
    server.restart()?;
    drop(Lock::new(&locker, "restart:2", expiring().timeout(LONG))?.lock()?);
    Ok(())
}

fn refused(error: &Error) -> RefusalKind {
    let Error::Refused { refusal, .. } = error else { panic!("{error:?}") };
    refusal.kind()
}

fn a_key_of_another_type() -> Outcome {
    let server = Arc::new(RedisServer::start()?);
    let ground = Ground::of(&server);
    let key = ground.key("list");
    let _: i32 = ground.connection().rpush(key.key.as_bytes(), &["a", "b"])?;
    let lock = ground.lock(&key, expiring());
    let error = lock.lock().expect_err("it is a list");
    assert_eq!(refused(&error), RefusalKind::WrongType);
    assert_says(&error, &key, &["WRONGTYPE", "choose another key"]);
    assert_eq!(refused(&lock.peek().unwrap_err()), RefusalKind::WrongType);
    // Without an expiration nothing but SETNX is sent, and the list is as good as a holder.
    assert!(ground.lock(&key, LockOptions::held_until_released()).try_lock()?.is_none());
    let left: Vec<String> = ground.connection().lrange(key.key.as_bytes(), 0, -1)?;
    assert_eq!(left, ["a", "b"]);
    Ok(())
}

fn a_password_that_is_missing_or_wrong() -> Outcome {
    let server = RedisServer::start_with("requirepass secret")?;
    let address = server.address();
    let lock = |url: String| Lock::new(&impatient(&url, 1), "report", expiring());
    let error = lock(format!("redis://{address}/"))?.lock().unwrap_err();
    assert_eq!(refused(&error), RefusalKind::NoPassword);
    assert!(
        error.to_string().contains("lock report: ") && error.to_string().contains("redis://:password@host"),
        "{error}"
    );
    for url in [format!("redis://:wrong@{address}/"), format!("redis://somebody:secret@{address}/")] {
        let error = lock(url)?.lock().unwrap_err();
        assert_eq!(refused(&error), RefusalKind::WrongPassword, "{error}");
        assert!(error.to_string().contains("check the address"), "{error}");
        assert!(!error.to_string().contains("secret"), "{error}");
    }
    drop(lock(format!("redis://:secret@{address}/"))?.lock()?);
    // The other way about: a password where none is wanted.
    let open = RedisServer::start()?;
    let error = lock(format!("redis://:secret@{}/", open.address()))?.lock().unwrap_err();
    assert_eq!(refused(&error), RefusalKind::WrongPassword, "{error}");
    Ok(())
}

fn a_server_over_its_memory() -> Outcome {
    let server = Arc::new(RedisServer::start()?);
    let ground = Ground::of(&server);
    let key = ground.key("memory");
    let lock = ground.lock(&key, expiring());
    let held = lock.lock()?;
    server.say(&["CONFIG", "SET", "maxmemory", "1"])?;
    assert_eq!(refused(&lock.lock().unwrap_err()), RefusalKind::OverMemory);
    assert_eq!(held.release()?, Release::Released, "DEL is let through");
    let error = lock.lock().unwrap_err();
    assert_says(&error, &key, &["OOM", "free memory or raise the limit"]);
    server.say(&["CONFIG", "SET", "maxmemory", "0"])?;
    drop(lock.lock()?);
    Ok(())
}

fn a_server_with_too_many_clients() -> Outcome {
    let server = Arc::new(RedisServer::start_with("maxclients 2")?);
    let ground = Ground::of(&server);
    let first = redis::Client::open(server.url())?;
    let mut taken = [first.get_connection()?, first.get_connection()?];
    let _: String = redis::cmd("PING").query(&mut taken[0])?;
    let _: String = redis::cmd("PING").query(&mut taken[1])?;
    for url in [server.url(), format!("redis://:secret@{}/", server.address())] {
        let lock = Lock::new(&impatient(&url, 1), "report", expiring().timeout(millis(100)))?;
        let error = lock.lock().expect_err("there is no room");
        // The server says so and hangs up, and whether its words are still read is a matter of who was first.
        match &error {
            Error::Refused { refusal, .. } => assert_eq!(refusal.kind(), RefusalKind::TooManyClients),
            Error::Unknown { .. } | Error::Pool { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    drop(taken);
    let held = Lock::new(&Locker::open(&ground.url)?, "report", expiring())?.lock();
    drop(held?);
    Ok(())
}

fn a_replica_that_takes_no_writes() -> Outcome {
    let master = RedisServer::start()?;
    let replica = RedisServer::start_with(&format!("replicaof 127.0.0.1 {}", master.port()))?;
    // Until it has its data from the master it may say that it is loading.
    let error = loop {
        let error = Lock::new(&Locker::open(&replica.url())?, "report", expiring())?.lock().unwrap_err();
        if refused(&error) != RefusalKind::Loading {
            break error;
        }
        thread::sleep(millis(50));
    };
    assert_eq!(refused(&error), RefusalKind::ReadOnly);
    assert!(error.to_string().contains("lock on its master"), "{error}");
    Ok(())
}

fn refusals_in_the_words_of_old_servers() -> Outcome {
    let scene = Scene::set()?;
    let key = scene.ground.key("words");
    let lock = scene.lock(&key, expiring());
    for (words, kind) in [
        ("-ERR operation not permitted\r\n", RefusalKind::NoPassword),
        ("-ERR command not allowed when used memory > 'maxmemory'\r\n", RefusalKind::OverMemory),
        ("-LOADING Redis is loading the dataset in memory\r\n", RefusalKind::Loading),
        ("-ERR Operation against a key holding the wrong kind of value\r\n", RefusalKind::WrongType),
        ("-ERR unknown command 'SETNX'\r\n", RefusalKind::UnknownCommand),
        ("-MISCONF Redis is configured to save RDB snapshots\r\n", RefusalKind::CannotSave),
        ("-ERR max number of clients reached\r\n", RefusalKind::TooManyClients),
    ] {
        scene.faulty.next("SETNX", Fault::Say(words));
        let error = lock.lock().unwrap_err();
        assert_eq!(refused(&error), kind, "{error}");
        assert_says(&error, &key, &[words.trim_start_matches('-').trim_end()]);
        assert_eq!(key.value(), None);
    }
    // A server that has no room for us closes the connection; the others are good to use again.
    let connections: Vec<usize> = scene.faulty.asked().iter().map(|asked| asked.connection).collect();
    assert_eq!(connections, [0; 7]);
    drop(lock.lock()?);
    assert_eq!(scene.faulty.asked().last().map(|asked| asked.connection), Some(1));
    Ok(())
}

fn a_refusal_on_release() -> Outcome {
    let scene = Scene::set()?;
    let key = scene.ground.key("refused");
    let lock = scene.lock(&key, expiring());
    let held = lock.lock()?;
    scene.faulty.next("DEL", Fault::Say("-NOPERM this user has no permissions to run the 'del' command\r\n"));
    assert_eq!(refused(&held.release().unwrap_err()), RefusalKind::NotPermitted);
    assert!(key.value().is_some());
    Ok(())
}

fn a_pool_that_is_empty_for_the_whole_timeout() -> Outcome {
    let server = Arc::new(RedisServer::start()?);
    let key = Ground::of(&server).key("pool");
    let (managed, pool) = pool_of_one(&server, millis(300))?;
    let options = expiring().timeout(millis(100));
    for (locker, words) in
        [(managed, "make the pool larger"), (Locker::with_pool(pool.clone()), "the pool is large enough")]
    {
        let lock = Lock::new(&locker, &key.key, options)?;
        let mut taken = pool.get()?;
        let error = lock.lock().expect_err("the pool is empty");
        assert!(matches!(error, Error::Pool { .. }), "{error:?}");
        assert_says(&error, &key, &["no connection to the server within", words]);
        let _: String = redis::cmd("PING").query(&mut *taken)?;
        assert_eq!(key.value(), None);
        drop(taken);
        // What is held is not lost by it: the lock frees itself.
        let held = lock.lock()?;
        let taken = pool.get()?;
        assert!(matches!(held.release(), Err(Error::Pool { .. })));
        assert!(key.value().is_some());
        drop(taken);
        key.delete();
    }
    Ok(())
}

fn a_lock_that_is_granted_too_late() -> Outcome {
    let scene = Scene::set()?;
    let key = scene.ground.key("late-grant");
    let lock = Lock::new(
        &Locker::open(&scene.faulty.url())?,
        &key.key,
        LockOptions::expiring_after(millis(100)).timeout(LONG),
    )?;
    scene.faulty.next("SETNX", Fault::AnswerLate(millis(200)));
    let held = lock.lock()?;
    assert!(held.attempts() > 1, "the first grant came after its lease");
    drop(held);
    assert_nothing_sent_twice(&scene.faulty);
    Ok(())
}

fn options_that_make_no_sense() -> Outcome {
    let locker = Locker::open("redis://127.0.0.1:1/")?;
    let problem =
        |key: &str, options| Lock::new(&locker, key, options).expect_err("refused at once").to_string();
    assert_eq!(
        problem("", expiring()),
        "lock \"\": a lock's key must not be empty; give it the name of what it protects"
    );
    assert!(
        problem("k", LockOptions::expiring_after(Duration::ZERO))
            .starts_with("lock \"k\": the expiration is zero")
    );
    let century = Duration::from_secs(100 * 365 * 24 * 3600);
    assert!(problem("k", LockOptions::expiring_after(century)).contains("over ten years"));
    assert!(problem("k", expiring().poll_interval(Duration::ZERO)).contains("poll interval"));
    assert!(Lock::new(&locker, "k", expiring().timeout(Duration::MAX)).is_ok());
    Ok(())
}

fn settings_that_make_no_sense() -> Outcome {
    let settings = Locker::at("redis://127.0.0.1:1/")?;
    let zero = Duration::ZERO;
    for (settings, words) in [
        (settings.clone().pool_size(0), "at least one"),
        (settings.clone().connect_timeout(zero), "time-out of zero"),
        (settings.clone().command_timeout(zero), "time-out of zero"),
        (settings.patience(zero), "time-out of zero"),
    ] {
        let error = settings.open().expect_err("refused at once");
        assert!(
            error.to_string().starts_with("cannot open a locker: ") && error.to_string().contains(words),
            "{error}"
        );
        assert_eq!(error.key(), None);
    }
    Ok(())
}

fn addresses_that_make_no_sense() -> Outcome {
    for address in ["", "localhost", "http://localhost/", "redis://localhost/first", "redis://"] {
        let error = Locker::open(address).expect_err(address);
        assert!(matches!(error, Error::Address { .. }), "{error:?}");
        assert!(error.to_string().contains("redis://[:password@]host[:port]"), "{error}");
        assert_eq!(error.key(), None);
    }
    Ok(())
}
