//! Logins: passwords that change while a program runs, those of Sentinels, and that no text shows a secret.

use std::fmt::Debug;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use redis::Commands as _;
use setnx_lock::{Credentials, Error, Event, Lock, LockOptions, Locker, LockerBuilder, RefusalKind};

use crate::support::notified::until;
use crate::support::scenario::patient;
use crate::support::{LONG, Outcome, RedisServer, chain, expiring, millis, trials_of};

trials_of! {
    "logins";
    a_password_that_changes_loses_no_lock,
    a_password_that_is_about_to_change_is_waited_for,
    sentinels_have_a_login_of_their_own,
    an_address_with_special_characters_is_explained,
    no_text_shows_a_secret,
    a_login_where_there_is_none_to_set,
    a_function_that_panics_is_named,
    a_function_that_hangs_is_named,
}

const SECRET: &str = "s3cr3t";

fn protected() -> std::io::Result<RedisServer> {
    RedisServer::start_with(&format!("requirepass {SECRET}"))
}

/// A login whose password can be changed.
fn changing(password: &str) -> (Arc<Mutex<String>>, impl Fn() -> Credentials + Send + Sync + use<>) {
    let password = Arc::new(Mutex::new(password.to_owned()));
    let read = Arc::clone(&password);
    (password, move || Credentials::password(read.lock().unwrap().as_str()))
}

/// Old connections are closed, as by a proxy or a restart, so that new ones log in.
fn a_password_that_changes_loses_no_lock() -> Outcome {
    let server = protected()?;
    let (password, credentials) = changing(SECRET);
    let locker = patient(&server.url())?.credentials(credentials).build()?;
    let options = LockOptions::expiring_after(LONG).timeout(LONG);
    let held = Lock::new(&locker, "kept", options)?.lock()?;
    let url = format!("redis://:{SECRET}@{}/", server.address());
    let mut other = redis::Client::open(url)?.get_connection()?;
    for next in ["next", "after that"] {
        let _: () = redis::cmd("CONFIG").arg("SET").arg("requirepass").arg(next).query(&mut other)?;
        let _: () = redis::cmd("CLIENT").arg("KILL").arg("TYPE").arg("normal").query(&mut other)?;
        let error = held.extend().expect_err("the old password is wrong now");
        let Error::Refused { refusal, .. } = &error else { panic!("{error:?}") };
        assert_eq!(refusal.kind(), RefusalKind::WrongPassword);
        next.clone_into(&mut password.lock().unwrap());
        until("it logs in again", || held.extend().is_ok());
        drop(Lock::new(&locker, "another", expiring())?.lock()?);
    }
    // Between the two changes.
    let _: () = redis::cmd("CONFIG").arg("SET").arg("requirepass").arg("the last").query(&mut other)?;
    let _: () = redis::cmd("CLIENT").arg("KILL").arg("TYPE").arg("normal").query(&mut other)?;
    held.extend().expect_err("the old password is wrong now");
    let error = held.release().expect_err("still");
    assert!(matches!(error, Error::Refused { .. }), "{error:?}");
    assert!(chain(&error).contains("the release is tried again"), "{error}");
    "the last".clone_into(&mut password.lock().unwrap());
    until("it is released", || !other.exists::<_, bool>("kept").unwrap());
    Ok(())
}

/// Between the change on the server and that of the secret, once a login has been accepted. One that never was, or
/// cannot change, ends a call at once.
fn a_password_that_is_about_to_change_is_waited_for() -> Outcome {
    let server = protected()?;
    let (password, credentials) = changing(SECRET);
    let refusals = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&refusals);
    let observe = move |event: &Event<'_>| {
        if let Event::RefusedForNow { refusal, .. } = event {
            assert_eq!(refusal.kind(), RefusalKind::WrongPassword);
            count.fetch_add(1, Ordering::Relaxed);
        }
    };
    let locker = patient(&server.url())?.credentials(credentials).observer(observe).build()?;
    drop(Lock::new(&locker, "k", expiring())?.lock()?);
    let url = format!("redis://:{SECRET}@{}/", server.address());
    let fixed = patient(&url)?.build()?;
    drop(Lock::new(&fixed, "k", expiring())?.lock()?);
    let mut other = redis::Client::open(url)?.get_connection()?;
    for (n, options) in [expiring(), expiring().wait_forever()].into_iter().enumerate() {
        let next = format!("next {n}");
        let _: () = redis::cmd("CONFIG").arg("SET").arg("requirepass").arg(&next).query(&mut other)?;
        let _: () = redis::cmd("CLIENT").arg("KILL").arg("TYPE").arg("normal").query(&mut other)?;
        for locker in [&fixed, &locker] {
            // It finds its connection closed.
            let _ = Lock::new(locker, "k", options)?.state();
        }
        let ends = |locker: &Locker| {
            let error = Lock::new(locker, "k", options)?.lock().expect_err("the login is wrong");
            assert!(
                matches!(&error, Error::Refused { refusal, .. } if refusal.kind() == RefusalKind::WrongPassword),
                "{error:?}"
            );
            Ok::<_, Error>(())
        };
        ends(&fixed)?;
        ends(&patient(&server.url())?.credentials(|| Credentials::password("never right")).build()?)?;
        let error = Lock::new(&locker, "k", options)?.try_lock().expect_err("it does not wait");
        assert!(error.is_transient(), "{error:?}");
        let before = refusals.load(Ordering::Relaxed);
        let waiting = ["k", "another"].map(|key| {
            let lock = Lock::new(&locker, key, options).unwrap();
            thread::spawn(move || lock.lock()?.release())
        });
        until("it says why it waits", || refusals.load(Ordering::Relaxed) >= before + 2);
        assert!(!waiting.iter().any(thread::JoinHandle::is_finished));
        *password.lock().unwrap() = next;
        for waiting in waiting {
            waiting.join().unwrap()?;
        }
    }
    Ok(())
}

fn sentinels_have_a_login_of_their_own() -> Outcome {
    let server = protected()?;
    let config = format!(
        "requirepass watch\nsentinel monitor main 127.0.0.1 {} 1\nsentinel auth-pass main {SECRET}",
        server.port()
    );
    let sentinel = RedisServer::start_sentinel(&config)?;
    let builder =
        |query: &str| patient(&format!("redis+sentinel://:{SECRET}@{}/main{query}", sentinel.address()));
    let fails = |builder: LockerBuilder| -> Result<String, Error> {
        let error = Lock::new(&builder.build()?, "k", expiring())?.try_lock().expect_err("no login");
        assert!(matches!(error, Error::Refused { .. }), "{error:?}");
        Ok(chain(&error))
    };
    let address = format!("Sentinel {}", sentinel.address());
    for text in [fails(builder("")?)?, fails(builder("?sentinel_password=wrong")?)?] {
        assert!(text.contains(&address) && text.contains("sentinel_password in the URL"), "{text}");
        assert!(!text.contains("wrong:"), "{text}");
    }
    // The master's.
    let text = fails(builder("?sentinel_password=watch")?.credentials(|| Credentials::password("wrong")))?;
    assert!(!text.contains("Sentinel") && text.contains(&server.address().to_string()), "{text}");
    for builder in [
        builder("?sentinel_password=watch")?,
        builder("")?.sentinel_credentials(|| Credentials::password("watch")),
        builder("?sentinel_password=old")?
            .sentinel_credentials(|| Credentials::password("watch").user("default")),
    ] {
        drop(Lock::new(&builder.build()?, "k", expiring())?.lock()?);
    }
    // Between the change of the Sentinels' password and that of the secret.
    let (password, credentials) = changing("watch");
    let locker = builder("")?.sentinel_credentials(credentials).build()?;
    let lock = Lock::new(&locker, "k", expiring())?;
    lock.lock()?.release()?;
    let mut watching =
        redis::Client::open(format!("redis://:watch@{}/", sentinel.address()))?.get_connection()?;
    let _: () = redis::cmd("ACL")
        .arg("SETUSER")
        .arg("default")
        .arg("resetpass")
        .arg(">later")
        .query(&mut watching)?;
    let mut other =
        redis::Client::open(format!("redis://:{SECRET}@{}/", server.address()))?.get_connection()?;
    let _: () = redis::cmd("CLIENT").arg("KILL").arg("TYPE").arg("normal").query(&mut other)?;
    let _ = lock.state();
    let waiting = thread::spawn(move || lock.lock()?.release());
    thread::sleep(millis(300));
    assert!(!waiting.is_finished());
    "later".clone_into(&mut password.lock().unwrap());
    waiting.join().unwrap()?;
    Ok(())
}

fn an_address_with_special_characters_is_explained() -> Outcome {
    for url in
        ["redis://:qx/ss@host/", "redis://u:qx#ss@host", "redis://u:qx?ss@host", "redis://u:1/2@host:6379/0"]
    {
        let error = Locker::open(url).expect_err(url).to_string();
        assert!(error.contains("%3F") && !error.contains("qx"), "{url}: {error}");
    }
    assert!(Locker::open("redis://u:pa%2Fss%23%3F%40@host/").is_ok());
    Ok(())
}

fn no_text_shows_a_secret() -> Outcome {
    let server = protected()?;
    let hides = |what: &str, value: &dyn Debug| {
        let texts = [format!("{value:?}"), format!("{value:#?}")];
        assert!(texts.iter().all(|text| !text.contains(SECRET)), "{what}: {texts:?}");
    };
    let hidden = || Credentials::password(SECRET).user("worker");
    hides("credentials", &hidden());
    let address = server.address();
    let urls = [
        format!("redis://:{SECRET}@{address}/"),
        format!("redis://worker:{SECRET}@{address}/"),
        format!("unix:///nowhere?pass={SECRET}"),
        format!("redis+sentinel://:{SECRET}@{address}/main?sentinel_password={SECRET}"),
        format!("redis+cluster://:{SECRET}@{address}"),
    ];
    for url in &urls {
        let builder = Locker::builder(url)?.retry_for(Duration::ZERO);
        hides("builder", &builder);
        let builder = if url.contains("sentinel") { builder.sentinel_credentials(hidden) } else { builder };
        let builder = builder.credentials(hidden);
        hides("builder", &builder);
        let locker = builder.build()?;
        hides("locker", &locker);
        let lock = Lock::new(&locker, "k", expiring())?;
        hides("lock", &lock);
        match lock.try_lock() {
            Ok(held) => hides("guard", &held),
            Err(error) => {
                hides("error", &error);
                assert!(!chain(&error).contains(SECRET), "{error}");
            }
        }
        for broken in
            [format!("{url}?"), url.replace("://", ":/"), url.replace('@', "@@["), url.replace(':', "::")]
        {
            if let Err(error) = Locker::open(&broken) {
                hides("error", &error);
                assert!(!chain(&error).contains(SECRET), "{broken}: {error}");
            }
        }
    }
    Ok(())
}

fn a_login_where_there_is_none_to_set() -> Outcome {
    let pool = r2d2::Pool::builder().test_on_check_out(false).min_idle(Some(0));
    let pool = pool.build_unchecked(redis::Client::open("redis://127.0.0.1:1/")?);
    let error = Locker::with_pool(pool).credentials(|| Credentials::password("p")).build().unwrap_err();
    assert!(error.to_string().contains("its login already"), "{error}");
    let builder = Locker::builder("redis://127.0.0.1/")?;
    let error = builder.sentinel_credentials(|| Credentials::password("p")).build().unwrap_err();
    assert!(error.to_string().contains("needs Sentinels"), "{error}");
    Ok(())
}

/// Or that takes longer than connecting may.
fn a_function_that_hangs_is_named() -> Outcome {
    let server = protected()?;
    let brief = |takes: Duration| {
        let builder =
            Locker::builder(&server.url())?.connect_timeout(millis(200)).command_timeout(millis(200));
        builder
            .retry_for(Duration::ZERO)
            .credentials(move || {
                thread::sleep(takes);
                Credentials::password(SECRET)
            })
            .build()
    };
    for takes in [millis(300), Duration::from_secs(3600)] {
        let lock = Lock::new(&brief(takes)?, "k", expiring())?;
        for error in [
            lock.lock().map(drop).unwrap_err(),
            lock.state().unwrap_err(),
            lock.try_lock().map(drop).unwrap_err(),
        ] {
            assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
            let words = "the function given for the login has not returned within the time for connecting";
            let text = chain(&error);
            assert!(text.contains(words) && text.contains("not the server"), "{takes:?}: {text}");
            assert!(!text.contains("address"), "{text}");
        }
    }
    Ok(())
}

/// It may work the next time.
fn a_function_that_panics_is_named() -> Outcome {
    let server = protected()?;
    let count = Mutex::new(0);
    let locker = patient(&server.url())?.retry_for(Duration::ZERO).credentials(move || {
        let mut count = count.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        *count += 1;
        assert!(*count > 1, "the vault is sealed");
        Credentials::password(SECRET)
    });
    let lock = Lock::new(&locker.build()?, "k", expiring())?;
    let error = lock.lock().expect_err("there is no login");
    assert!(matches!(error, Error::Unavailable { .. }) && error.is_transient(), "{error:?}");
    assert!(
        chain(&error).contains("the function given for the login panicked: the vault is sealed"),
        "{error:?}"
    );
    until("it logs in", || lock.lock().is_ok());
    Ok(())
}
