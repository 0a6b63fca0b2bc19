//! Addresses, passwords, sockets, TLS, pools of somebody else's, and too few connections.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use libtest_mimic::Trial;
use redis::Commands as _;
use setnx_lock::{Error, Lock, LockOptions, Locker, Manager, Release};

use crate::servers::Fault;
use crate::support::scenario::Scenario;
use crate::support::{LONG, Outcome, RedisServer, Target, Test, assert_says, expiring, millis, tests};

pub(crate) fn trials() -> Vec<Trial> {
    #[cfg(feature = "tls-rustls")]
    let tls: &[(&str, Test)] = tests![tls_with_a_certificate_of_one_s_own];
    #[cfg(not(feature = "tls-rustls"))]
    let tls: &[(&str, Test)] = tests![tls_without_the_feature_is_refused];
    let mut trials = crate::support::trials("pools", tls);
    trials.extend(crate::support::trials(
        "pools",
        tests![
            a_connection_that_was_idle_for_long_is_not_used,
            a_password_and_a_database_number,
            a_user_and_a_password,
            a_unix_socket,
            resp3_is_understood,
            a_plain_pool_of_the_redis_crate,
            a_pool_of_the_manager_is_shared_with_other_work,
            connections_are_opened_on_demand_and_used_again,
            nothing_public_tells_a_password,
            a_release_that_waits_for_a_connection_beyond_its_lease,
            a_release_that_waits_for_room_beyond_its_lease_deletes_nothing,
            more_waiters_than_connections,
            more_threads_than_the_server_takes_clients,
            a_pool_that_tests_its_connections_releases_nothing_too_late,
            a_connection_that_dies_elsewhere_is_replaced_for_whoever_waits,
            a_slow_connection_is_opened_once,
            a_restarted_server_is_met_with_fresh_connections,
            a_pool_that_is_empty_for_the_whole_timeout,
        ],
    ));
    trials
}

/// Takes and releases a lock through `locker`, and looks for its key in `database`.
fn works(locker: &Locker, server: &RedisServer, password: &str, database: i64) -> Outcome {
    let lock = Lock::new(locker, "works", expiring())?;
    let url = format!("redis://{password}{}/{database}", server.address());
    let mut connection = redis::Client::open(url)?.get_connection()?;
    let held = lock.lock()?;
    assert!(connection.exists::<_, bool>("works")?, "not in database {database}");
    drop(held);
    assert!(!connection.exists::<_, bool>("works")?);
    Ok(())
}

fn a_password_and_a_database_number() -> Outcome {
    let server = RedisServer::start_with("requirepass secret")?;
    let locker = Locker::open(&format!("redis://:secret@{}/7", server.address()))?;
    works(&locker, &server, ":secret@", 7)?;
    let error = Locker::open(&format!("redis://:secret@{}/99", server.address()))
        .and_then(|locker| Lock::new(&locker, "k", expiring()))?
        .lock()
        .unwrap_err();
    assert!(error.to_string().contains("no database of that number"), "{error}");
    Ok(())
}

fn a_user_and_a_password() -> Outcome {
    let server = RedisServer::start_with("user worker on >secret ~* +setnx +get +getset +del +exists")?;
    works(
        &Locker::open(&format!("redis://worker:secret@{}/", server.address()))?,
        &server,
        "worker:secret@",
        0,
    )
}

fn a_unix_socket() -> Outcome {
    let server = RedisServer::start_with("requirepass secret")?;
    let address = format!("unix://{}?db=3&pass=secret", server.socket().display());
    works(&Locker::open(&address)?, &server, ":secret@", 3)
}

#[cfg(feature = "tls-rustls")]
fn tls_with_a_certificate_of_one_s_own() -> Outcome {
    let rcgen::CertifiedKey { cert, signing_key } =
        rcgen::generate_simple_self_signed(["localhost".to_owned()])?;
    let folder = tempfile::tempdir()?;
    let file = |name: &str, text: String| -> std::io::Result<String> {
        let path = folder.path().join(name);
        std::fs::write(&path, text)?;
        Ok(path.display().to_string())
    };
    let (certificate, key) = (file("cert.pem", cert.pem())?, file("key.pem", signing_key.serialize_pem())?);
    let port = crate::support::redis_server::free_port()?;
    let server = RedisServer::start_with(&format!(
        "tls-port {port}\ntls-cert-file {certificate}\ntls-key-file {key}\ntls-ca-cert-file {certificate}\ntls-auth-clients no"
    ))?;
    let url = format!("rediss://localhost:{port}/");
    let trusted = redis::TlsCertificates { client_tls: None, root_cert: Some(cert.pem().into_bytes()) };
    let client = redis::Client::build_with_tls(url.as_str(), trusted)?;
    let brief = expiring().timeout(millis(200));

    works(&Locker::with_client(client).build()?, &server, "", 0)?;

    // A certificate that nobody vouches for is refused.
    let error = Lock::new(&Locker::open(&url)?, "works", brief)?.lock().unwrap_err();
    assert!(matches!(error, setnx_lock::Error::NoConnection { .. }), "nothing was sent: {error}");
    assert!(error.to_string().contains("certificate") && error.to_string().contains("localhost"), "{error}");
    Ok(())
}

#[cfg(not(feature = "tls-rustls"))]
fn tls_without_the_feature_is_refused() -> Outcome {
    let error = Locker::open("rediss://localhost/").unwrap_err();
    assert!(error.to_string().contains("TLS"), "{error}");
    Ok(())
}

fn resp3_is_understood() -> Outcome {
    let server = RedisServer::start_with("requirepass secret")?;
    let locker = Locker::open(&format!("redis://:secret@{}/2?protocol=resp3", server.address()))?;
    works(&locker, &server, ":secret@", 2)?;
    let lock = Lock::new(&locker, "gone", expiring())?;
    assert!(!lock.exists()?);
    Ok(())
}

fn a_plain_pool_of_the_redis_crate() -> Outcome {
    let server = RedisServer::start()?;
    let pool = r2d2::Pool::builder()
        .max_size(2)
        .test_on_check_out(false)
        .build(redis::Client::open(server.url())?)?;
    works(&Locker::with_pool(pool), &server, "", 0)?;
    // One that has to open a connection first, for a wait that is as long as there can be.
    let cold = r2d2::Pool::builder().min_idle(Some(0)).build_unchecked(redis::Client::open(server.url())?);
    let lock = Lock::new(&Locker::with_pool(cold), "cold", expiring())?;
    assert!(lock.try_lock_for(Duration::MAX)?.is_some());
    Ok(())
}

fn a_pool_of_the_manager_is_shared_with_other_work() -> Outcome {
    let server = RedisServer::start()?;
    // With a PING for each checkout, as r2d2 does it unless told not to.
    let pool = r2d2::Pool::builder().max_size(1).build(Manager::new(redis::Client::open(server.url())?))?;
    let locker = Locker::with_pool(pool.clone());
    works(&locker, &server, "", 0)?;
    let () = pool.get()?.set("other", "work")?;
    let (a, b): (String, i64) = redis::pipe().get("other").incr("n", 1).query(&mut *pool.get()?)?;
    assert_eq!((a.as_str(), b), ("work", 1));
    // An error reply is no reason to give a connection up.
    assert!(redis::cmd("INCR").arg("other").query::<i64>(&mut *pool.get()?).is_err());
    works(&locker, &server, "", 0)?;
    assert_eq!(pool.state().connections, 1);
    Ok(())
}

fn connections_are_opened_on_demand_and_used_again() -> Outcome {
    let server = RedisServer::start()?;
    // All but those that ask this, one of which the server may not have seen leave.
    let clients = || -> Result<usize, redis::RedisError> {
        let mut asking = redis::Client::open(server.url())?.get_connection()?;
        let list: String = redis::cmd("CLIENT").arg("LIST").query(&mut asking)?;
        Ok(list.lines().filter(|line| !line.contains("cmd=client")).count())
    };
    let locker = Locker::builder(&server.url())?.pool_size(3).build()?;
    assert_eq!(clients()?, 0, "opening connects to nothing");
    let lock = Lock::new(&locker, "k", expiring().timeout(LONG))?;
    for _ in 0..20 {
        drop(lock.lock()?);
    }
    assert_eq!(clients()?, 1, "one thread at a time needs one connection");
    let held = lock.lock()?;
    let waiters: Vec<_> =
        vec![lock; 8].into_iter().map(|lock| thread::spawn(move || lock.lock().map(drop))).collect();
    thread::sleep(millis(30));
    assert!(clients()? <= 3);
    drop(held);
    waiters.into_iter().try_for_each(|waiter| waiter.join().unwrap())?;
    Ok(())
}

fn nothing_public_tells_a_password() -> Outcome {
    let settings = Locker::builder("redis://user:secret@127.0.0.1:1/")?;
    let locker = settings.clone().build()?;
    let lock = Lock::new(&locker, "k", expiring())?;
    let manager = Manager::new(redis::Client::open("redis://user:secret@127.0.0.1:1/")?);
    for shown in [format!("{settings:?}"), format!("{locker:?}"), format!("{lock:?}"), format!("{manager:?}")]
    {
        assert!(!shown.contains("secret"), "{shown}");
    }
    assert!(format!("{settings:?}").contains("127.0.0.1:1"));
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
    let key = Target::of(&server).key("release");
    let (locker, pool) = pool_of_one(&server, LONG)?;
    let held = Lock::new(&locker, &key.key, LockOptions::expiring_after(millis(300)))?.lock()?;
    let taken = pool.get()?;
    let releasing = thread::spawn(move || held.release());
    thread::sleep(millis(400));
    key.set("1895000000.5"); // by now it can be another's
    drop(taken);
    assert_eq!(releasing.join().unwrap()?, Release::Expired);
    assert_eq!(key.value().as_deref(), Some("1895000000.5"));
    Ok(())
}

fn more_waiters_than_connections() -> Outcome {
    let server = Arc::new(RedisServer::start()?);
    let key = Target::of(&server).key("waiters");
    key.set("1895000000.5");
    let locker = Locker::builder(&server.url())?.pool_size(1).build()?;
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
    // With a password it is the connecting that is refused, and without one the first command.
    for (config, password) in [("requirepass secret", ":secret@"), ("", "")] {
        let server = RedisServer::start_with(&format!("maxclients 1\n{config}"))?;
        let manager = Manager::new(redis::Client::open(format!("redis://{password}{}/", server.address()))?);
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
        assert_eq!(releasing.join().unwrap()?, Release::Released { certified: false });
    }
    Ok(())
}

fn a_pool_that_tests_its_connections_releases_nothing_too_late() -> Outcome {
    let scenario = Scenario::set()?;
    let key = scenario.target.key("tested");
    let manager = Manager::new(redis::Client::open(scenario.proxy.url())?).command_timeout(LONG);
    let pool = r2d2::Pool::builder().max_size(1).test_on_check_out(true).build(manager.clone())?;
    let locker = Locker::with_managed_pool(pool, &manager);
    let held = Lock::new(&locker, &key.key, LockOptions::expiring_after(millis(500)))?.lock()?;
    key.set("1895000000.5");
    scenario.proxy.next("PING", Fault::AnswerLate(millis(700)));
    assert_eq!(held.release()?, Release::Expired, "the test of the connection took longer than the lease");
    assert_eq!(key.value().as_deref(), Some("1895000000.5"));
    Ok(())
}

fn a_connection_that_dies_elsewhere_is_replaced_for_whoever_waits() -> Outcome {
    let server = RedisServer::start()?;
    let (locker, pool) = pool_of_one(&server, millis(900))?; // less than r2d2 is left to itself
    let lock = Lock::new(&locker, "waits", expiring())?;
    let mut taken = pool.get()?;
    let waiting = thread::spawn(move || lock.try_lock());
    thread::sleep(millis(100));
    server.say(&["CLIENT", "KILL", "TYPE", "normal"])?;
    assert!(redis::cmd("PING").query::<String>(&mut *taken).is_err());
    drop(taken);
    assert!(waiting.join().unwrap()?.is_some());
    Ok(())
}

fn a_slow_connection_is_opened_once() -> Outcome {
    let scenario = Scenario::set()?;
    let url = scenario.proxy.url().replace("redis://", "redis://:secret@");
    scenario.target.connection().set_read_timeout(None)?;
    let () = redis::cmd("CONFIG")
        .arg("SET")
        .arg("requirepass")
        .arg("secret")
        .query(&mut scenario.target.connection())?;
    scenario.proxy.next("AUTH", Fault::AnswerLate(millis(400)));
    drop(Lock::new(&Locker::open(&url)?, "slow", expiring())?.lock()?);
    let connections: std::collections::BTreeSet<usize> =
        scenario.proxy.asked().iter().map(|asked| asked.connection).collect();
    assert_eq!(connections.len(), 1, "{:?}", scenario.proxy.asked());
    Ok(())
}

fn a_restarted_server_is_met_with_fresh_connections() -> Outcome {
    let mut server = RedisServer::start()?;
    let manager = Manager::new(redis::Client::open(server.url())?).command_timeout(millis(900));
    let builder = r2d2::Pool::builder().max_size(4).min_idle(Some(0)).test_on_check_out(false);
    let pool = builder.connection_timeout(millis(1000)).build_unchecked(manager.clone());
    let four: Vec<_> = (0..4).map(|_| pool.get()).collect::<Result<_, _>>()?;
    drop(four);
    assert_eq!(pool.state().idle_connections, 4);
    let locker = Locker::with_managed_pool(pool, &manager);
    let options = expiring().timeout(Duration::ZERO);
    server.restart()?;
    let lock = Lock::new(&locker, "restart:0", options)?;
    let held = lock.lock()?;
    assert_eq!(held.release()?, Release::Released { certified: false });
    // Without an expiration a lost answer is an error: once per restart at most, not once per dead connection.
    let unexpiring =
        Lock::new(&locker, "restart:1", LockOptions::held_until_released().timeout(Duration::ZERO))?;
    drop(unexpiring.lock()?);
    // A server that was away for some time is found again.
    server.stop();
    assert!(lock.lock().is_err());
    thread::sleep(millis(700));
    assert!(matches!(lock.lock(), Err(Error::NoConnection { .. })));
    server.restart()?;
    drop(Lock::new(&locker, "restart:2", expiring().timeout(LONG))?.lock()?);
    Ok(())
}

fn a_pool_that_is_empty_for_the_whole_timeout() -> Outcome {
    let server = Arc::new(RedisServer::start()?);
    let key = Target::of(&server).key("pool");
    let (managed, pool) = pool_of_one(&server, millis(300))?;
    let options = expiring().timeout(millis(100));
    for (locker, words) in
        [(managed, "make the pool larger"), (Locker::with_pool(pool.clone()), "the pool is large enough")]
    {
        let lock = Lock::new(&locker, &key.key, options)?;
        let mut taken = pool.get()?;
        let error = lock.lock().expect_err("the pool is empty");
        assert!(matches!(error, Error::NoConnection { .. }), "{error:?}");
        assert_says(&error, &key, &[" within ", words]);
        let _: String = redis::cmd("PING").query(&mut *taken)?;
        assert_eq!(key.value(), None);
        drop(taken);
        // What is held is not lost by it: the lock frees itself.
        let held = lock.lock()?;
        let taken = pool.get()?;
        assert!(matches!(held.release(), Err(Error::NoConnection { .. })));
        assert!(key.value().is_some());
        drop(taken);
        key.delete();
    }
    Ok(())
}

fn a_release_that_waits_for_room_beyond_its_lease_deletes_nothing() -> Outcome {
    let server = RedisServer::start()?;
    let mut admin = redis::Client::open(server.url())?.get_connection()?;
    let manager = Manager::new(redis::Client::open(server.url())?);
    // A pool that opens its connections ahead, so that there is always one at hand.
    let pool = r2d2::Pool::builder().max_size(2).test_on_check_out(false).build(manager.clone())?;
    let locker = Locker::with_managed_pool(pool.clone(), &manager);
    let busy = pool.get()?;
    let held = Lock::new(&locker, "room", LockOptions::expiring_after(millis(500)))?.lock()?;
    // The other connection dies, and what the pool opens in its place the server has no room for.
    let () = redis::cmd("CONFIG").arg("SET").arg("maxclients").arg(2).query(&mut admin)?;
    let mut other = pool.get()?;
    let id: i64 = redis::cmd("CLIENT").arg("ID").query(&mut other)?;
    let () = redis::cmd("CLIENT").arg("KILL").arg("ID").arg(id).query(&mut admin)?;
    let _dies = redis::cmd("PING").query::<String>(&mut other);
    drop(other);
    thread::sleep(millis(200));
    let releasing = thread::spawn(move || held.release());
    thread::sleep(millis(500));
    let () = admin.set("room", "1895000000.5")?; // the lease has passed, and another has taken over
    let () = redis::cmd("CONFIG").arg("SET").arg("maxclients").arg(100).query(&mut admin)?;
    assert_eq!(releasing.join().unwrap()?, Release::Expired);
    assert_eq!(admin.get::<_, Option<String>>("room")?.as_deref(), Some("1895000000.5"));
    drop(busy);
    Ok(())
}

/// A server that closes idle connections is not noticed before something is sent on one.
fn a_connection_that_was_idle_for_long_is_not_used() -> Outcome {
    let server = RedisServer::start_with("timeout 5")?;
    let locker = Locker::open(&server.url())?;
    let (expiring, unexpiring) = (expiring(), LockOptions::held_until_released());
    let held = [
        Lock::new(&locker, "idle", expiring)?.lock()?,
        Lock::new(&locker, "idle-unexpiring", unexpiring)?.lock()?,
    ];
    thread::sleep(millis(11_000));
    for held in held {
        assert_eq!(held.release()?, Release::Released { certified: false });
    }
    Ok(())
}
