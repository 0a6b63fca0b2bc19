//! Connections: addresses, passwords, sockets, TLS, and when a connection is opened, used again or replaced.

use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use redis::Commands as _;
use setnx_lock::{Error, Lock, LockOptions, Locker, RefusalKind};
use setnx_lock_testing::TestServer;

use crate::support::notified::until;
#[cfg(feature = "tls-rustls")]
use crate::support::notified::{NOTIFIED, Waiter, elsewhere, until_waiting};
use crate::support::scenario::{opened, patient};
use crate::support::{
    AnyServer, LONG, Outcome, RedisServer, Release, Test, expiring, millis, release, tests,
};

pub(crate) fn trials() -> Vec<Trial> {
    #[cfg(feature = "tls-rustls")]
    let tls: &[(&str, Test)] = tests![tls_with_a_self_signed_certificate, tls_with_client_certificates];
    #[cfg(not(feature = "tls-rustls"))]
    let tls: &[(&str, Test)] = tests![tls_without_the_feature_is_refused];
    let mut trials = crate::support::trials("connections", tls);
    trials.extend(crate::support::trials(
        "connections",
        tests![
            addresses_with_users_passwords_databases_and_sockets,
            a_database_that_does_not_exist_is_named_at_once,
            connections_are_opened_on_demand_and_used_again,
            connections_to_a_restarted_server_are_replaced,
            a_connection_that_was_idle_for_long_is_not_used,
            what_a_burst_has_opened_is_given_back,
            a_connection_that_is_too_old_is_replaced,
        ],
    ));
    trials
}

/// Acquires and releases a lock through `locker`, and looks for its key in `database`.
pub(crate) fn works(locker: &Locker, server: &impl AnyServer, password: &str, database: i64) -> Outcome {
    let lock = Lock::new(locker, "works", expiring())?;
    let url = format!("redis://{password}{}/{database}", server.address());
    let mut connection = redis::Client::open(url)?.get_connection()?;
    let held = lock.lock()?;
    assert!(connection.exists::<_, bool>("works")?, "not in database {database}");
    drop(held);
    assert!(!connection.exists::<_, bool>("works")?);
    Ok(())
}

fn addresses_with_users_passwords_databases_and_sockets() -> Outcome {
    let server = RedisServer::start_with("user worker on >secret ~* +setnx +get +getset +del +exists")?;
    works(&opened(&format!("redis://worker:secret@{}/", server.address()))?, &server, "worker:secret@", 0)?;
    let server = RedisServer::start_with("requirepass secret")?;
    works(&opened(&format!("redis://:secret@{}/7", server.address()))?, &server, ":secret@", 7)?;
    let address = format!("unix://{}?db=3&pass=secret", server.socket().display());
    works(&Locker::open(&address)?, &server, ":secret@", 3)?;
    let locker = opened(&format!("redis://:secret@{}/2?protocol=resp3", server.address()))?;
    works(&locker, &server, ":secret@", 2)?;
    assert!(!Lock::new(&locker, "gone", expiring())?.state()?.is_held());
    Ok(())
}

fn a_database_that_does_not_exist_is_named_at_once() -> Outcome {
    let server = RedisServer::start()?;
    let locker = opened(&format!("{}99", server.url()))?;
    let began = Instant::now();
    let error = Lock::new(&locker, "database", expiring())?.lock().expect_err("no such database");
    let Error::Refused { refusal, .. } = &error else { panic!("{error:?}") };
    assert_eq!(refusal.kind(), RefusalKind::NoSuchDatabase);
    assert!(error.to_string().contains("no database of that number"), "{error}");
    assert!(began.elapsed() < LONG * 2 / 3, "waiting does not help");
    Ok(())
}

#[cfg(feature = "tls-rustls")]
fn tls_with_a_self_signed_certificate() -> Outcome {
    let rcgen::CertifiedKey { cert, signing_key } =
        rcgen::generate_simple_self_signed(["localhost".to_owned()])?;
    let folder = tempfile::tempdir()?;
    let file = |name: &str, text: String| -> std::io::Result<String> {
        let path = folder.path().join(name);
        std::fs::write(&path, text)?;
        Ok(path.display().to_string())
    };
    let (certificate, key) = (file("cert.pem", cert.pem())?, file("key.pem", signing_key.serialize_pem())?);
    let port = setnx_lock_testing::free_port()?;
    let server = RedisServer::start_with(&format!(
        "tls-port {port}\ntls-cert-file {certificate}\ntls-key-file {key}\ntls-ca-cert-file {certificate}\ntls-auth-clients no"
    ))?;
    let url = format!("rediss://localhost:{port}/");
    let trusted = redis::TlsCertificates { client_tls: None, root_cert: Some(cert.pem().into_bytes()) };
    let client = redis::Client::build_with_tls(url.as_str(), trusted)?;
    let locker = Locker::with_client(client).connect_timeout(LONG).command_timeout(LONG).retry_for(LONG);
    let locker = locker.build()?;
    works(&locker, &server, "", 0)?;

    // It listens by TLS as well, and through seconds of silence.
    let held = elsewhere(&server, "waits", NOTIFIED)?.lock()?;
    let waiter = Waiter::of(&Lock::new(&locker, "waits", NOTIFIED)?);
    until_waiting(&server, "waits", 1);
    std::thread::sleep(Duration::from_millis(1200));
    drop(held);
    drop(waiter.came()?);

    // By its address alone, with the certificates of the builder.
    let trusted = redis::TlsCertificates { client_tls: None, root_cert: Some(cert.pem().into_bytes()) };
    works(&patient(&url)?.tls_certificates(&trusted)?.build()?, &server, "", 0)?;
    let error = patient("redis://localhost/")?.tls_certificates(&trusted).unwrap_err();
    assert!(error.to_string().contains("rediss://"), "{error}");
    let broken = redis::TlsCertificates { client_tls: None, root_cert: Some(b"no certificate".to_vec()) };
    let refused = patient(&url)?.tls_certificates(&broken).and_then(|builder| {
        Lock::new(&builder.retry_for(Duration::ZERO).build()?, "works", expiring())?.lock().map(drop)
    });
    assert!(refused.is_err());

    // Without it in the trusted roots, the certificate is refused.
    let once = patient(&url)?.retry_for(Duration::ZERO).build()?;
    let error = Lock::new(&once, "works", expiring().timeout(LONG))?.lock().unwrap_err();
    assert!(matches!(error, setnx_lock::Error::Unavailable { .. }), "nothing was sent: {error}");
    let text = crate::support::chain(&error);
    assert!(text.contains("certificate") && text.contains("localhost"), "{text}");
    Ok(())
}

/// A private CA signs the certificates of the server and the client,
/// on one server, a master of Sentinels, and a cluster of one node.
#[cfg(feature = "tls-rustls")]
fn tls_with_client_certificates() -> Outcome {
    let ca_key = rcgen::KeyPair::generate()?;
    let mut ca = rcgen::CertificateParams::new(Vec::new())?;
    ca.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    // Not that of what it signs, which would count as signed by itself.
    ca.distinguished_name.push(rcgen::DnType::CommonName, "a private CA");
    let ca_cert = ca.self_signed(&ca_key)?;
    let issuer = rcgen::Issuer::new(ca, ca_key);
    let names = || vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
    let issue = || -> Result<(String, String), rcgen::Error> {
        let key = rcgen::KeyPair::generate()?;
        let cert = rcgen::CertificateParams::new(names())?.signed_by(&key, &issuer)?;
        Ok((cert.pem(), key.serialize_pem()))
    };
    let ((cert, key), (client_cert, client_key)) = (issue()?, issue()?);
    let folder = tempfile::tempdir()?;
    let file = |name: &str, text: &str| -> std::io::Result<String> {
        let path = folder.path().join(name);
        std::fs::write(&path, text)?;
        Ok(path.display().to_string())
    };
    let (ca, cert, key) = (file("ca.pem", &ca_cert.pem())?, file("cert.pem", &cert)?, file("key.pem", &key)?);
    let port = setnx_lock_testing::free_port()?;
    let config = format!("tls-port {port}\ntls-cert-file {cert}\ntls-key-file {key}\ntls-ca-cert-file {ca}");
    let server = RedisServer::start_with(&config)?;
    let certificates = redis::TlsCertificates {
        client_tls: Some(redis::ClientTlsConfig {
            client_cert: client_cert.into_bytes(),
            client_key: client_key.into_bytes(),
        }),
        root_cert: Some(ca_cert.pem().into_bytes()),
    };
    let url = format!("rediss://localhost:{port}/");
    works(&patient(&url)?.tls_certificates(&certificates)?.build()?, &server, "", 0)?;

    // The server refuses a client without one.
    let anonymous = redis::TlsCertificates { client_tls: None, ..certificates.clone() };
    let locker = patient(&url)?.tls_certificates(&anonymous)?.retry_for(Duration::ZERO).build()?;
    let error = Lock::new(&locker, "works", expiring())?.lock().expect_err("it has no certificate");
    assert!(matches!(error, Error::Unavailable { .. }), "nothing was sent: {error:?}");

    let watched = format!("{config}\ntls-replication yes\nsentinel monitor main 127.0.0.1 {port} 1");
    let watched = watched.replacen(&format!("tls-port {port}"), "port 0\ntls-port SENTINEL", 1);
    let sentinel_port = setnx_lock_testing::free_port()?;
    let watched = watched.replacen("SENTINEL", &sentinel_port.to_string(), 1);
    let _sentinel = RedisServer::start_sentinel(&watched)?;
    let url = format!("rediss+sentinel://127.0.0.1:{sentinel_port}/main");
    works(&patient(&url)?.tls_certificates(&certificates)?.build()?, &server, "", 0)
}

#[cfg(not(feature = "tls-rustls"))]
fn tls_without_the_feature_is_refused() -> Outcome {
    let error = Locker::open("rediss://localhost/").unwrap_err();
    assert!(error.to_string().contains("TLS"), "{error}");
    Ok(())
}

fn connections_are_opened_on_demand_and_used_again() -> Outcome {
    let server = RedisServer::start()?;
    // Without the connections that ask here, and that of the server's start, which used the socket: the server may not
    // have noticed yet that an earlier one has closed.
    let clients = || -> Result<usize, redis::RedisError> {
        let mut asking = redis::Client::open(server.url())?.get_connection()?;
        let list: String = redis::cmd("CLIENT").arg("LIST").query(&mut asking)?;
        let of_the_locker = |line: &&str| line.contains(" addr=127.0.0.1:") && !line.contains("cmd=client");
        Ok(list.lines().filter(of_the_locker).count())
    };
    let locker = patient(&server.url())?.pool_size(3).build()?;
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

fn connections_to_a_restarted_server_are_replaced() -> Outcome {
    let mut server = RedisServer::start()?;
    let locker = patient(&server.url())?.pool_size(4).build()?;
    thread::scope(|scope| {
        for n in 0..8 {
            let lock = Lock::new(&locker, format!("restart:{n}"), expiring()).unwrap();
            scope.spawn(move || (0..20).for_each(|_| lock.lock().unwrap().release().unwrap()));
        }
    });
    let options = expiring().timeout(Duration::ZERO);
    server.restart()?;
    let lock = Lock::new(&locker, "restart:0", options)?;
    let held = lock.lock()?;
    assert_eq!(release(held)?, Release::Released { certified: false });
    // Without an expiration a lost reply is an error: at most once for each restart, not for each closed connection.
    let unexpiring =
        Lock::new(&locker, "restart:1", LockOptions::without_expiration().timeout(Duration::ZERO))?;
    drop(unexpiring.lock()?);
    // A server that was down for some time is found again.
    server.stop();
    assert!(lock.lock().is_err());
    thread::sleep(millis(300));
    assert!(matches!(lock.lock(), Err(Error::Unavailable { .. })));
    server.restart()?;
    drop(Lock::new(&locker, "restart:2", expiring().timeout(LONG))?.lock()?);
    Ok(())
}

/// That the server has closed an idle connection shows only when a command is sent on it.
fn a_connection_that_was_idle_for_long_is_not_used() -> Outcome {
    let server = RedisServer::start_with("timeout 5")?;
    let locker = opened(&server.url())?;
    let (expiring, unexpiring) = (expiring(), LockOptions::without_expiration());
    let held = [
        Lock::new(&locker, "idle", expiring)?.lock()?,
        Lock::new(&locker, "idle-unexpiring", unexpiring)?.lock()?,
    ];
    thread::sleep(millis(11_000));
    for held in held {
        assert_eq!(release(held)?, Release::Released { certified: false });
    }
    Ok(())
}

/// How many clients are connected to a server.
fn clients(server: &RedisServer) -> usize {
    let mut connection = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
    let list: String = redis::cmd("CLIENT").arg("LIST").query(&mut connection).unwrap();
    list.lines().count() - 1
}

/// Has so many connections opened, which are released then.
fn burst(locker: &Locker, count: usize) -> Outcome {
    let names: Vec<String> = (0..count).map(|n| format!("burst{n}")).collect();
    thread::scope(|scope| {
        let keys = |name| move || Lock::new(locker, name, expiring())?.lock();
        let held: Vec<_> = names.iter().map(|name| scope.spawn(keys(name.as_str()))).collect();
        held.into_iter().try_for_each(|held| held.join().unwrap().map(drop))
    })?;
    Ok(())
}

fn what_a_burst_has_opened_is_given_back() -> Outcome {
    const MOST: usize = 8;
    let server = RedisServer::start_with("maxclients 9")?;
    let builder = || patient(&server.url()).map(|builder| builder.pool_size(u32::try_from(MOST).unwrap()));
    let first = builder()?.idle_timeout(millis(40)).build()?;
    // Until a burst has opened several: threads share connections.
    until("there was a burst", || {
        burst(&first, 64).unwrap();
        clients(&server) > 1
    });
    until("one is left", || clients(&server) == 1);
    burst(&first, 1)?;
    // Others have room.
    let second = builder()?.build()?;
    burst(&second, 64)?;
    drop(first);
    until("a locker that is dropped leaves none", || {
        burst(&second, 1).unwrap();
        clients(&server) <= MOST
    });
    Ok(())
}

fn a_connection_that_is_too_old_is_replaced() -> Outcome {
    let server = TestServer::start();
    let builder = || patient(&server.url()).map(|builder| builder.pool_size(1));
    let connections = |locker: &Locker| {
        let lock = Lock::new(locker, "k", expiring())?;
        server.clear_log();
        lock.with(|_| thread::sleep(millis(110)))?;
        lock.with(|_| ())?;
        let mut connections: Vec<_> = server.log().iter().map(|received| received.connection).collect();
        connections.dedup();
        Ok::<_, Error>(connections.len())
    };
    // DEL and the next SETNX each find one that is older.
    assert!(connections(&builder()?.max_connection_age(millis(100)).build()?)? > 1);
    assert_eq!(connections(&builder()?.build()?)?, 1, "there is no limit by default");
    Ok(())
}
