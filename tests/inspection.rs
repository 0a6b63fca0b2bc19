//! What a locker finds out about its server: `Locker::server()` on every version, and the look at each new connection.

use std::thread;
use std::time::Duration;

use libtest_mimic::Trial;
use setnx_lock::{
    ConnectError, Error, InspectionFailure, Lock, Locker, Manager, NoConnection, Persistence, Protocol,
    RefusalKind, Release, Role, Version, Warning,
};

use crate::servers::{Fault, Played, Proxy};
use crate::support::scenario::{Scenario, impatient};
use crate::support::{LONG, Outcome, RedisServer, expiring, millis, redis_server, tests};

pub(crate) fn trials() -> Vec<Trial> {
    crate::support::trials(
        "inspection",
        tests![
            every_version_tells_what_it_can_do,
            what_may_do_harm_to_locks_is_warned_of,
            a_user_with_few_rights_is_told_the_rest,
            a_survey_leaves_nothing_behind,
            a_survey_that_is_refused_or_cut_short_removes_what_it_wrote,
            a_survey_leaves_no_transaction_open_for_a_user_who_may_not_end_it,
            a_survey_that_gets_no_answer,
            a_proxy_that_hangs_up_on_info_is_used_without,
            a_server_that_is_too_slow_to_tell_its_clock_is_refused,
            a_survey_on_a_connection_that_was_closed_is_made_again,
            a_replica_is_refused_before_anything_is_sent,
            a_master_that_becomes_a_replica_is_left_for_whoever_has_its_address_then,
            servers_that_are_too_old_and_do_not_answer_take_one_time_out,
            any_pool_and_both_protocols_of_the_wire_can_be_asked,
            a_server_is_asked_once_for_each_connection,
            a_server_that_is_replaced_by_a_newer_one_is_known_as_that,
        ],
    )
}

fn every_version_tells_what_it_can_do() -> Outcome {
    let server = RedisServer::start()?;
    for played in Played::ALL {
        let proxy = Proxy::playing(played, server.address())?;
        let reported = Locker::open(&proxy.url())?.inspect()?;
        let numbers: Vec<u16> = played.number().split('.').map(|n| n.parse().unwrap()).collect();
        assert_eq!(reported.version(), Version::new(numbers[0], numbers[1], numbers[2]));
        assert_eq!((reported.role(), reported.replicas()), (Some(&Role::Master), Some(0)));
        assert_eq!(reported.unsupported_reason(Protocol::Classic), None);
        assert_eq!(
            reported.unsupported_reason(Protocol::Watched).is_none(),
            played >= Played::V2_2,
            "{reported}"
        );
        assert_eq!(
            reported.unsupported_reason(Protocol::Ttl).is_none(),
            played >= Played::V2_6,
            "{reported}"
        );
        let best = if played >= Played::V2_2 { Protocol::Watched } else { Protocol::Classic };
        assert_eq!(reported.recommended(), Some(best));
        // The same machine, so the same clock: the true difference, none, is within what is told.
        let clock = reported.clock().expect("every version tells its clock, one way or another");
        assert_eq!((clock.at_least(), clock.server_is_ahead()), (Duration::ZERO, None), "{clock}");
        // To less than half a second, unless the machine stands still just then, and again and again.
        let precise = (0..10).any(|_| {
            let reported = Locker::open(&proxy.url()).and_then(|locker| locker.inspect());
            reported.is_ok_and(|reported| reported.clock().is_some_and(|clock| clock.at_most() < millis(500)))
        });
        assert!(precise, "{}", played.number());
        // What a version says yes to is said of it, and nothing else is sent to it.
        let config = proxy.names().contains(&"CONFIG".to_owned());
        assert_eq!(config, played >= Played::V2_0);
        assert_eq!(reported.idle_timeout().is_some(), config);
        assert_eq!(reported.persistence(), config.then_some(Persistence::None), "{reported}");
        let report = reported.to_string();
        assert!(report.starts_with(&format!("Redis {}, role: master\n", played.number())), "{report}");
        assert!(!report.contains("refused"), "{report}");
    }
    let reported = Locker::open(&server.url())?.inspect()?;
    assert!(
        reported.version() >= Version::new(2, 8, 0) && reported.unsupported_reason(Protocol::Ttl).is_none(),
        "{reported}"
    );
    assert_eq!(reported.maxmemory_policy(), Some("noeviction"));
    let clock = reported.clock().expect("by TIME");
    assert_eq!((clock.at_least(), clock.server_is_ahead()), (Duration::ZERO, None), "{clock}");
    Ok(())
}

fn what_may_do_harm_to_locks_is_warned_of() -> Outcome {
    let config = "maxmemory 100mb\nmaxmemory-policy allkeys-lru\ntimeout 10";
    let server = RedisServer::start_with(config)?;
    let replica = RedisServer::start_with(&format!("replicaof 127.0.0.1 {}", server.port()))?;
    let locker = Locker::open(&server.url())?;
    let reported = loop {
        let reported = locker.inspect()?;
        if reported.replicas() == Some(1) {
            break reported;
        }
        thread::sleep(millis(20));
    };
    assert_eq!(
        (reported.maxmemory(), reported.idle_timeout()),
        (Some(100 << 20), Some(Duration::from_secs(10)))
    );
    let warnings = reported.warnings();
    assert!(
        matches!(
            warnings[..],
            [
                Warning::MayEvict { .. },
                Warning::ForgetsLocks { persistence: Persistence::None, .. },
                Warning::FailoverLosesLocks { replicas: 1, .. },
                Warning::ClosesIdle { .. },
            ]
        ),
        "{warnings:?}"
    );
    for (warning, words) in
        warnings.iter().zip(["noeviction", "appendonly", "after one wait", "a minute or more"])
    {
        assert!(warning.to_string().contains(words), "{warning}");
        assert!(reported.to_string().contains(&format!("warning: {warning}")), "{reported}");
    }
    drop(replica);
    Ok(())
}

fn a_user_with_few_rights_is_told_the_rest() -> Outcome {
    let rights = "+info +setnx +get +getset +del +watch +unwatch +exec +discard +set";
    let server = RedisServer::start_with(&format!("user few on >pw ~locks:* {rights}"))?;
    let url = server.url().replace("redis://", "redis://few:pw@");
    let reported = Locker::open(&url)?.inspect()?;
    assert!(reported.version() > Version::new(2, 6, 0));
    assert_eq!(
        (reported.clock(), reported.idle_timeout(), reported.persistence()),
        (None, None, Some(Persistence::Snapshots))
    );
    assert_eq!(reported.maxmemory(), Some(0), "INFO tells that as well");
    let why = reported.unsupported_reason(Protocol::Watched).expect("no MULTI");
    assert!(why.starts_with("the server refused MULTI: NOPERM"), "{why}");
    assert_eq!(reported.recommended(), Some(Protocol::Classic));
    assert!(matches!(reported.warnings().last(), Some(Warning::NotReported { .. })), "{reported}");
    let report = reported.to_string();
    assert!(
        report.contains("refused CONFIG:  NOPERM") && report.contains("refused TIME:    NOPERM"),
        "{report}"
    );
    // Without INFO nothing is known, and locking works as ever.
    let server = RedisServer::start_with("user none on >pw ~locks:* +setnx +get +getset +del")?;
    let locker = Locker::open(&server.url().replace("redis://", "redis://none:pw@"))?;
    let error = locker.inspect().expect_err("no INFO");
    let Error::Inspection { cause, .. } = &error else { panic!("{error:?}") };
    assert!(matches!(**cause, InspectionFailure::Refused(_)), "{error:?}");
    assert!(
        crate::support::chain(&error)
            .starts_with("cannot inspect the server; permit INFO to this user: it refused INFO: NOPERM")
    );
    assert!(Lock::new(&locker, "locks:a", expiring())?.try_lock()?.is_some());
    Ok(())
}

fn a_survey_leaves_nothing_behind() -> Outcome {
    let server = RedisServer::start()?;
    for played in Played::ALL {
        let proxy = Proxy::playing(played, server.address())?;
        let manager = Manager::new(redis::Client::open(proxy.url())?);
        let pool = r2d2::Pool::builder().max_size(1).test_on_check_out(false).build(manager.clone())?;
        let locker = Locker::with_managed_pool(pool, &manager);
        for _ in 0..2 {
            let _told = locker.inspect()?;
        }
        assert_eq!(server.say(&["DBSIZE"])?, ":0", "{}", played.number());
        // Nothing is watched, and no transaction is open.
        let protocol = if played >= Played::V2_2 { Protocol::Watched } else { Protocol::Classic };
        let lock = Lock::new(&locker, "after", expiring().protocol(protocol))?;
        let _released = lock.lock()?.release()?;
        assert_eq!(server.say(&["EXISTS", "after"])?, ":0");
    }
    Ok(())
}

fn a_survey_that_is_refused_or_cut_short_removes_what_it_wrote() -> Outcome {
    const NO: &str = "-ERR unknown command\r\n";
    let server = RedisServer::start()?;
    let proxy = Proxy::playing(Played::V2_4, server.address())?;
    let locker = impatient(&proxy.url(), 1);
    for (command, n, fault, reported) in [
        ("EXPIREAT", 1, Fault::Say(NO), true),
        ("TTL", 2, Fault::Say(NO), true),
        ("GETSET", 1, Fault::Say(NO), true),
        // Nothing is written by whoever cannot remove it.
        ("DEL", 1, Fault::Say("-NOPERM this user has no permissions to run the 'del' command\r\n"), true),
        ("GETSET", 1, Fault::SwallowAnswer, false),
        ("TTL", 2, Fault::HalfOpen, false),
    ] {
        proxy.forget();
        proxy.nth(command, n, fault.clone());
        let survey = locker.inspect();
        assert_eq!(survey.is_ok(), reported, "{command}: {survey:?}");
        assert_eq!(proxy.faults_left(), 0, "{command}");
        assert_eq!(server.say(&["DBSIZE"])?, ":0", "{command} {fault:?}");
        assert_eq!(proxy.names().contains(&"SETNX".to_owned()), command != "DEL", "{command}");
    }
    Ok(())
}

fn a_survey_leaves_no_transaction_open_for_a_user_who_may_not_end_it() -> Outcome {
    let server = RedisServer::start_with("user half on >pw ~* &* +@all -discard -unwatch")?;
    let manager = Manager::new(redis::Client::open(server.url().replace("redis://", "redis://half:pw@"))?);
    let pool = r2d2::Pool::builder().max_size(1).test_on_check_out(false).build(manager.clone())?;
    let locker = Locker::with_managed_pool(pool, &manager);
    let reported = locker.inspect()?;
    assert!(
        reported.unsupported_reason(Protocol::Watched).is_some_and(|why| why.contains("UNWATCH")),
        "{reported}"
    );
    let held = Lock::new(&locker, "half", expiring())?.lock()?;
    assert_eq!(server.say(&["EXISTS", "half"])?, ":1", "it was not queued");
    assert_eq!(held.release()?, Release::Released { certified: false });
    Ok(())
}

fn a_survey_that_gets_no_answer() -> Outcome {
    let port = redis_server::free_port()?;
    let error = impatient(&format!("redis://127.0.0.1:{port}/"), 1).inspect().expect_err("nobody is there");
    let text = crate::support::chain(&error);
    assert!(text.starts_with("cannot inspect the server: no connection to the server within"), "{text}");
    assert_eq!(error.key(), None);

    let scenario = Scenario::set()?;
    let locker = scenario.locker();
    scenario.proxy.next("CONFIG", Fault::SwallowAnswer);
    let error = locker.inspect().expect_err("no answer");
    let Error::Inspection { cause, .. } = &error else { panic!("{error:?}") };
    assert!(matches!(**cause, InspectionFailure::Lost(_)), "{error:?}");
    // The late answer is nobody's: the connection is not used again.
    let _told = locker.inspect()?;
    let connections: Vec<usize> = scenario.proxy.asked().iter().map(|asked| asked.connection).collect();
    assert!(connections.first() != connections.last(), "{connections:?}");
    Ok(())
}

fn a_proxy_that_hangs_up_on_info_is_used_without() -> Outcome {
    let scenario = Scenario::set()?;
    let key = scenario.target.key("proxy");
    for _ in 0..4 {
        scenario.proxy.next("INFO", Fault::CutBefore);
    }
    let lock = scenario.lock(&key, expiring());
    assert!(lock.try_lock()?.is_some());
    assert_eq!(scenario.proxy.names(), ["SETNX", "DEL"]);
    // It is asked again on the next connection.
    let info = || scenario.proxy.everything().iter().filter(|asked| asked.name == "INFO").count();
    assert_eq!(info(), 2);
    scenario.proxy.next("SETNX", Fault::CutBefore);
    assert!(lock.try_lock()?.is_some());
    assert_eq!(info(), 4);
    Ok(())
}

fn a_server_that_is_too_slow_to_tell_its_clock_is_refused() -> Outcome {
    let scenario = Scenario::set()?;
    scenario.proxy.slow_down(|asked| if asked.name == "TIME" { millis(300) } else { Duration::ZERO });
    let settings = Locker::builder(&scenario.proxy.url())?;
    let error =
        settings.clone().max_clock_difference(millis(200)).build().expect_err("it may be 300 ms apart");
    let Error::Clocks { difference: Some(difference), .. } = &error else { panic!("{error:?}") };
    assert_eq!(difference.at_least(), Duration::ZERO, "nor is it known to be: {error}");
    assert!(error.to_string().contains("of ours, and 200ms is allowed"), "{error}");
    assert!(settings.max_clock_difference(LONG).build().is_ok());

    let server = RedisServer::start_with("user none on >pw ~* &* +@all -time")?;
    let settings = Locker::builder(&server.url().replace("redis://", "redis://none:pw@"))?;
    let error = settings.max_clock_difference(LONG).build().expect_err("no TIME");
    assert!(error.to_string().contains("the server does not report its own; permit TIME"), "{error}");
    Ok(())
}

fn a_survey_on_a_connection_that_was_closed_is_made_again() -> Outcome {
    let mut server = RedisServer::start()?;
    let locker = Locker::open(&server.url())?;
    Lock::new(&locker, "before", expiring())?.try_with(|_| Ok::<_, Error>(()))?;
    server.restart()?;
    let _told = locker.inspect()?;
    Ok(())
}

fn a_replica_is_refused_before_anything_is_sent() -> Outcome {
    let master = RedisServer::start()?;
    // Up to 2.4 a replica takes writes, and nothing but INFO tells that it is one.
    let replica =
        RedisServer::start_with(&format!("replicaof 127.0.0.1 {}\nreplica-read-only no", master.port()))?;
    let proxy = Proxy::playing(Played::V2_4, replica.address())?;
    let locker = Locker::open(&proxy.url())?;
    let error = Lock::new(&locker, "report", expiring())?.lock().expect_err("a lock there protects nothing");
    let Error::NoConnection { cause: NoConnection::Connect(ConnectError::Replica { of, .. }), .. } = &error
    else {
        panic!("{error:?}")
    };
    assert_eq!(of.as_deref(), Some(format!("127.0.0.1:{}", master.port()).as_str()));
    let text = crate::support::chain(&error);
    assert!(
        text.contains("the server cannot be used; lock on its master: it is a replica of 127.0.0.1:")
            && text.contains("lock on its master"),
        "{text}"
    );
    assert_eq!(proxy.names(), [""; 0], "nothing but INFO was sent");
    assert!(crate::support::chain(&locker.inspect().unwrap_err()).contains("it is a replica of"));

    let unasked = Locker::builder(&proxy.url())?.skip_server_check().build()?;
    let reported = unasked.inspect()?;
    let written = proxy.names().into_iter().find(|name| ["SET", "SETNX", "GETSET"].contains(&name.as_str()));
    assert_eq!(written, None, "a replica is not written to");
    assert!(matches!(reported.warnings()[..], [Warning::IsReplica { .. }, ..]), "{reported}");
    assert!(reported.unsupported_reason(Protocol::Classic).is_some());
    assert!(
        Lock::new(&unasked, "report", expiring())?.try_lock()?.is_some(),
        "the trap, for whoever asks for it"
    );
    Ok(())
}

fn a_master_that_becomes_a_replica_is_left_for_whoever_has_its_address_then() -> Outcome {
    let (server, other) = (RedisServer::start()?, RedisServer::start()?);
    let proxy = Proxy::before(server.address())?;
    // Long enough that what was told before is at hand before what is told now.
    proxy.slow_down(|asked| if asked.name == "INFO" { millis(100) } else { Duration::ZERO });
    let locker = Locker::open(&proxy.url())?;
    let lock = Lock::new(&locker, "failover", expiring().timeout(Duration::ZERO))?;
    // Two connections, so that one is left when the other is thrown away.
    thread::scope(|scope| {
        let peeks: Vec<_> =
            (0..8).map(|_| scope.spawn(|| (0..50).try_for_each(|_| lock.state().map(drop)))).collect();
        peeks.into_iter().try_for_each(|peeking| peeking.join().unwrap())
    })?;
    server.say(&["REPLICAOF", "127.0.0.1", &other.port().to_string()])?;
    let error = lock.lock().expect_err("it takes no writes");
    assert!(
        matches!(&error, Error::Refused { refusal, .. } if refusal.kind() == RefusalKind::ReadOnly),
        "{error:?}"
    );
    // All that were open are left, and the next is asked what it leads to.
    let error = lock.lock().expect_err("it is a replica");
    assert!(
        matches!(
            error,
            Error::NoConnection { cause: NoConnection::Connect(ConnectError::Replica { .. }), .. }
        ),
        "{error:?}"
    );
    server.say(&["REPLICAOF", "NO", "ONE"])?;
    assert!(lock.try_lock()?.is_some(), "it is not told what was true before");
    Ok(())
}

fn servers_that_are_too_old_and_do_not_answer_take_one_time_out() -> Outcome {
    let server = RedisServer::start()?;
    let proxy = Proxy::playing(Played::V2_0, server.address())?;
    let manager = Manager::new(redis::Client::open(proxy.url())?).command_timeout(millis(300));
    let pool = r2d2::Pool::builder().max_size(4).test_on_check_out(false).build(manager.clone())?;
    for _ in 0..4 {
        proxy.next("PING", Fault::HalfOpen);
    }
    let lock =
        Lock::new(&Locker::with_managed_pool(pool, &manager), "old", expiring().protocol(Protocol::Watched))?;
    let error = lock.try_lock().expect_err("it does not answer");
    assert!(matches!(error, Error::NoConnection { .. }), "nothing was sent: {error:?}");
    // The first took all the time that there was.
    assert_eq!(proxy.names(), ["PING"]);
    Ok(())
}

fn any_pool_and_both_protocols_of_the_wire_can_be_asked() -> Outcome {
    let server = RedisServer::start()?;
    let client = redis::Client::open(server.url())?;
    let plain = r2d2::Pool::builder().max_size(1).test_on_check_out(false).build(client)?;
    let newer = Locker::open(&format!("{}?protocol=resp3", server.url()))?;
    for locker in [Locker::with_pool(plain), newer] {
        for _ in 0..2 {
            let reported = locker.inspect()?;
            assert!(reported.clock().is_some() && reported.idle_timeout().is_some(), "{reported}");
            assert_eq!(reported.refused().count(), 0, "{reported}");
        }
        assert!(Lock::new(&locker, "asked", expiring())?.try_lock()?.is_some());
    }
    Ok(())
}

fn a_server_is_asked_once_for_each_connection() -> Outcome {
    let scenario = Scenario::set()?;
    let key = scenario.target.key("asked");
    let lock = Lock::new(&Locker::open(&scenario.proxy.url())?, &key.key, expiring())?;
    for _ in 0..5 {
        lock.try_with(|_| Ok::<_, Error>(()))?;
    }
    let names: Vec<String> = scenario.proxy.everything().into_iter().map(|asked| asked.name).collect();
    assert_eq!(names[..3], ["INFO", "SETNX", "DEL"]);
    assert_eq!(names.iter().filter(|name| *name == "INFO").count(), 1);
    // A connection that is opened later is asked as well.
    scenario.proxy.next("SETNX", Fault::CutBefore);
    lock.try_with(|_| Ok::<_, Error>(()))?;
    let everything = scenario.proxy.everything();
    assert_eq!(everything.iter().filter(|asked| asked.name == "INFO").count(), 2);
    let first_on_second = everything.iter().find(|asked| asked.connection != everything[0].connection);
    assert_eq!(first_on_second.map(|asked| asked.name.as_str()), Some("INFO"));
    Ok(())
}

fn a_server_that_is_replaced_by_a_newer_one_is_known_as_that() -> Outcome {
    let server = RedisServer::start()?;
    let proxy = Proxy::playing(Played::V2_0, server.address())?;
    let lock = Lock::new(&impatient(&proxy.url(), 2), "upgrade", expiring().protocol(Protocol::Watched))?;
    let error = lock.lock().expect_err("too old");
    assert!(matches!(error, Error::Unsupported { version: Some(_), .. }), "{error:?}");
    proxy.restart_as(Played::V2_2);
    assert_eq!(lock.lock()?.release()?, Release::Released { certified: true });
    Ok(())
}
