//! `Locker::inspect()` on every version, and what it leaves behind.

use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use setnx_lock::{Error, Lock, Locker, Persistence, Protocol, Role, Version, Warning};

use crate::servers::{Emulated, Fault, Proxy};
use crate::support::releases::record;
use crate::support::scenario::{Scenario, client_pool, closed_port, opened, patient};
use crate::support::{LONG, Outcome, RedisServer, Release, expiring, millis, release, tests};

pub(crate) fn trials() -> Vec<Trial> {
    crate::support::trials(
        "inspection",
        tests![
            every_version_reports_what_it_can_do_and_is_left_as_it_was,
            a_configuration_that_can_lose_locks_is_warned_of,
            a_user_with_few_rights_gets_the_rest_of_the_report,
            an_inspection_that_is_refused_or_cut_off_removes_its_key,
            an_inspection_leaves_no_transaction_open_without_discard,
            an_inspection_without_a_reply,
            an_inspection_without_a_connection,
            a_server_that_reports_its_clock_too_slowly_is_refused,
            any_pool_and_both_wire_protocols_can_inspect,
        ],
    )
}

/// A locker on a shared pool of one connection: what an inspection leaves on it, the next call finds.
fn on_one_connection(url: &str) -> Result<Locker, Box<dyn std::error::Error>> {
    Ok(Locker::with_pool(client_pool(url)).command_timeout(LONG).observer(record).build()?)
}

fn every_version_reports_what_it_can_do_and_is_left_as_it_was() -> Outcome {
    let server = RedisServer::start()?;
    for emulated in Emulated::ALL {
        let proxy = Proxy::emulating(emulated, server.address())?;
        let locker = on_one_connection(&proxy.url())?;
        let report = locker.inspect()?;
        let numbers: Vec<u16> = emulated.number().split('.').map(|n| n.parse().unwrap()).collect();
        assert_eq!(report.version(), Version::new(numbers[0], numbers[1], numbers[2]));
        assert_eq!((report.role(), report.replicas()), (Some(&Role::Master), Some(0)));
        for (protocol, since) in [
            (Protocol::Classic, Emulated::V1_2),
            (Protocol::Watched, Emulated::V2_2),
            (Protocol::Ttl, Emulated::V2_6),
        ] {
            assert_eq!(report.unsupported_reason(protocol).is_none(), emulated >= since, "{report}");
        }
        let best = match emulated {
            _ if emulated >= Emulated::V2_6 => Protocol::Ttl,
            _ if emulated >= Emulated::V2_2 => Protocol::Watched,
            _ => Protocol::Classic,
        };
        assert_eq!(report.recommended(), Some(best));
        // The machine is the same, and so is the clock: the reported range includes a difference of zero.
        let clock = report.clock().expect("every version reports its clock, by TIME or by EXPIREAT");
        assert_eq!((clock.at_least(), clock.server_is_ahead()), (Duration::ZERO, None), "{clock}");
        // CONFIG is sent to the versions that have it, and reported of them.
        let config = proxy.names().contains(&"CONFIG".to_owned());
        assert_eq!(config, emulated >= Emulated::V2_0);
        assert_eq!(report.idle_timeout().is_some(), config);
        assert_eq!(report.persistence(), config.then_some(Persistence::None), "{report}");
        let report = report.to_string();
        assert!(report.starts_with(&format!("Redis {}, role: master\n", emulated.number())), "{report}");
        assert!(!report.contains("refused"), "{report}");

        // No key is left, nothing is watched, and no transaction is open.
        assert_eq!(server.say(&["DBSIZE"])?, ":0", "{}", emulated.number());
        Lock::new(&locker, "after", expiring().protocol(best))?.lock()?.release()?;
        assert_eq!(server.say(&["EXISTS", "after"])?, ":0");
    }
    let report = opened(&server.url())?.inspect()?;
    assert!(report.version() >= Version::new(2, 8, 0), "{report}");
    assert_eq!(report.maxmemory_policy(), Some("noeviction"));
    Ok(())
}

fn a_configuration_that_can_lose_locks_is_warned_of() -> Outcome {
    let config = "maxmemory 100mb\nmaxmemory-policy allkeys-lru\ntimeout 10";
    let server = RedisServer::start_with(config)?;
    let replica = RedisServer::start_with(&format!("replicaof 127.0.0.1 {}", server.port()))?;
    let locker = opened(&server.url())?;
    let report = loop {
        let report = locker.inspect()?;
        if report.replicas() == Some(1) {
            break report;
        }
        thread::sleep(millis(20));
    };
    assert_eq!((report.maxmemory(), report.idle_timeout()), (Some(100 << 20), Some(Duration::from_secs(10))));
    let warnings = report.warnings();
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
        assert!(report.to_string().contains(&format!("warning: {warning}")), "{report}");
    }
    drop(replica);
    Ok(())
}

fn a_user_with_few_rights_gets_the_rest_of_the_report() -> Outcome {
    let rights = "+info +setnx +get +getset +del +watch +exec +discard +set";
    let server = RedisServer::start_with(&format!("user few on >pw ~locks:* {rights}"))?;
    let url = server.url().replace("redis://", "redis://few:pw@");
    let report = opened(&url)?.inspect()?;
    assert!(report.version() > Version::new(2, 6, 0));
    assert_eq!(
        (report.clock(), report.idle_timeout(), report.persistence()),
        (None, None, Some(Persistence::Snapshots))
    );
    assert_eq!(report.maxmemory(), Some(0), "INFO reports it as well");
    let why = report.unsupported_reason(Protocol::Watched).expect("no MULTI");
    assert!(why.starts_with("the server refused MULTI: NOPERM"), "{why}");
    assert_eq!(report.recommended(), Some(Protocol::Classic));
    assert!(matches!(report.warnings().last(), Some(Warning::NotReported { .. })), "{report}");
    let report = report.to_string();
    assert!(
        report.contains("refused CONFIG:  NOPERM") && report.contains("refused TIME:    NOPERM"),
        "{report}"
    );
    // Without INFO there is no report, and locks work as before.
    let server = RedisServer::start_with("user none on >pw ~locks:* +setnx +get +getset +del")?;
    let locker = opened(&server.url().replace("redis://", "redis://none:pw@"))?;
    let error = locker.inspect().expect_err("no INFO");
    assert!(matches!(error, Error::Refused { .. }), "{error:?}");
    let text = crate::support::chain(&error);
    assert!(
        text.starts_with("the server refused INFO: NOPERM") && text.ends_with("permit INFO to this user"),
        "{text}"
    );
    assert!(Lock::new(&locker, "locks:a", expiring())?.try_lock()?.is_some());
    Ok(())
}

/// A locker that soon gives up the wait for a reply.
fn soon(url: &str) -> Result<Locker, Error> {
    patient(url)?.pool_size(1).command_timeout(millis(500)).build()
}

fn an_inspection_that_is_refused_or_cut_off_removes_its_key() -> Outcome {
    const NO: &str = "-ERR unknown command\r\n";
    let server = RedisServer::start()?;
    let proxy = Proxy::emulating(Emulated::V2_4, server.address())?;
    let (whole, cut_off) = (opened(&proxy.url())?, soon(&proxy.url())?);
    for (command, n, fault, reported) in [
        ("EXPIREAT", 1, Fault::Say(NO), true),
        ("TTL", 2, Fault::Say(NO), true),
        // A user without DEL writes no key.
        ("DEL", 1, Fault::Say("-NOPERM this user has no permissions to run the 'del' command\r\n"), true),
        ("GETSET", 1, Fault::SwallowAnswer, false),
        ("TTL", 2, Fault::HalfOpen, false),
    ] {
        proxy.forget();
        proxy.nth(command, n, fault.clone());
        let locker = if reported { &whole } else { &cut_off };
        let report = locker.inspect();
        assert_eq!(report.is_ok(), reported, "{command}: {report:?}");
        assert_eq!(proxy.faults_left(), 0, "{command}");
        assert_eq!(server.say(&["DBSIZE"])?, ":0", "{command} {fault:?}");
        assert_eq!(proxy.names().contains(&"SETNX".to_owned()), command != "DEL", "{command}");
    }
    Ok(())
}

fn an_inspection_leaves_no_transaction_open_without_discard() -> Outcome {
    let server = RedisServer::start_with("user half on >pw ~* &* +@all -discard")?;
    let locker = on_one_connection(&server.url().replace("redis://", "redis://half:pw@"))?;
    let report = locker.inspect()?;
    let reason = report.unsupported_reason(Protocol::Watched);
    assert!(reason.is_some_and(|why| why.contains("DISCARD")), "{report}");
    let held = Lock::new(&locker, "half", expiring())?.lock()?;
    assert_eq!(server.say(&["EXISTS", "half"])?, ":1", "it was not queued");
    assert_eq!(release(held)?, Release::Released { certified: false });
    Ok(())
}

fn an_inspection_without_a_reply() -> Outcome {
    let scenario = Scenario::set()?;
    let locker = soon(&scenario.proxy.url())?;
    scenario.proxy.next("CONFIG", Fault::SwallowAnswer);
    let error = locker.inspect().expect_err("no reply");
    assert!(error.to_string().starts_with("inspecting the server failed at 127.0.0.1:"), "{error:?}");
    let _again = locker.inspect()?;
    Ok(())
}

fn until_connected_to(client: &redis::Client) -> redis::Connection {
    let end = Instant::now() + LONG;
    loop {
        let connected = client.get_connection().and_then(|mut connection| {
            let () = redis::cmd("PING").exec(&mut connection)?;
            Ok(connection)
        });
        match connected {
            Ok(connection) => return connection,
            Err(error) => assert!(Instant::now() < end, "{error}"),
        }
    }
}

fn an_inspection_without_a_connection() -> Outcome {
    let limit = millis(300);
    let port = closed_port()?;
    let builder = Locker::builder(&format!("redis://127.0.0.1:{port}/"))?.retry_for(limit);
    let error = builder.build()?.inspect().expect_err("no server listens there");
    let text = crate::support::chain(&error);
    assert!(text.starts_with(&format!("no connection to 127.0.0.1:{port} within")), "{text}");
    assert_eq!(error.key(), None);

    // The server has room for one client.
    let server = RedisServer::start_with("maxclients 1")?;
    // The client that saw the server start may not be gone yet.
    let client = redis::Client::open(server.url())?;
    let only = until_connected_to(&client);
    let full = Locker::builder(&server.url())?.retry_for(limit);
    // Its words may be lost as it hangs up.
    let is_full = |error| matches!(error, Error::Refused { .. } | Error::Unavailable { .. });
    assert!(full.clone().build()?.inspect().is_err_and(is_full));
    assert!(full.max_clock_difference(millis(500)).build().is_err_and(is_full));
    drop(only);

    let pool = client_pool(&server.url());
    let locker = Locker::with_pool(pool.clone()).retry_for(limit).build()?;
    let opening = Instant::now() + LONG;
    let taken = loop {
        match pool.get() {
            Ok(taken) => break taken,
            Err(error) => assert!(Instant::now() < opening, "{error}"),
        }
    };
    let error = locker.inspect().expect_err("its only connection is in use");
    assert!(error.to_string().starts_with("no free connection of the pool within"), "{error:?}");
    drop(taken);
    Ok(())
}

fn a_server_that_reports_its_clock_too_slowly_is_refused() -> Outcome {
    let scenario = Scenario::set()?;
    scenario.proxy.slow_down(|asked| if asked.name == "TIME" { millis(120) } else { Duration::ZERO });
    let builder = patient(&scenario.proxy.url())?;
    let error = builder.clone().max_clock_difference(millis(60)).build().expect_err("it may be 120 ms apart");
    assert!(matches!(error, Error::Invalid { .. }), "{error:?}");
    assert!(error.to_string().contains("of ours, and 60ms is allowed"), "{error}");
    assert!(builder.max_clock_difference(LONG).build().is_ok());

    let server = RedisServer::start_with("user none on >pw ~* &* +@all -time")?;
    let builder = patient(&server.url().replace("redis://", "redis://none:pw@"))?;
    let error = builder.max_clock_difference(LONG).build().expect_err("no TIME");
    assert!(error.to_string().contains("the server does not report its own; permit TIME"), "{error}");
    Ok(())
}

fn any_pool_and_both_wire_protocols_can_inspect() -> Outcome {
    let server = RedisServer::start()?;
    let plain = Locker::with_pool(client_pool(&server.url())).build()?;
    let newer = opened(&format!("{}?protocol=resp3", server.url()))?;
    for locker in [plain, newer] {
        let report = locker.inspect()?;
        assert!(report.clock().is_some() && report.idle_timeout().is_some(), "{report}");
        assert_eq!(report.refused().count(), 0, "{report}");
        assert!(Lock::new(&locker, "asked", expiring())?.try_lock()?.is_some());
    }
    Ok(())
}
