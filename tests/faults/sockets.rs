//! The library's own socket: replies that come in pieces, are long, or are interrupted by a signal.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};
use std::{io, thread};

use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Pid, Signal, kill_process};
use setnx_lock::{Error, Lock, LockOptions, Locker, Protocol};
use setnx_lock_testing::Received;

use crate::support::notified::until;
use crate::support::processes::{TaskOutcome, worker};
use crate::support::scenario::{Scenario, opened, patient};
use crate::support::{LONG, Outcome, RedisServer, TestKey, expiring, millis, trials_of};

trials_of! {
    "sockets";
    a_process_that_is_stopped_and_continued_gets_its_reply,
    a_long_value_harms_no_other_thread,
    a_unix_socket_whose_process_hangs,
}

/// Acquires and releases a lock without an expiration, whose lost replies cannot be resolved, for each line of input.
pub(crate) fn acquire_for_each_line(url: &str, key: &str) -> TaskOutcome {
    let lock = Lock::new(&opened(url)?, key, LockOptions::without_expiration().timeout(LONG))?;
    println!("ready");
    for line in io::stdin().lines() {
        line?;
        println!("asking");
        println!("{}", lock.lock()?.release().is_ok());
    }
    Ok(())
}

/// Stopping and continuing a process ends its blocking system calls.
fn a_process_that_is_stopped_and_continued_gets_its_reply() -> Outcome {
    let server = RedisServer::start()?;
    let mut worker = worker(&["acquire_for_each_line", &server.url(), "interrupted"])?;
    let pid = i32::try_from(worker.id()).ok().and_then(Pid::from_raw).expect("a process has an id");
    let mut input = worker.stdin.take().expect("stdin is piped");
    let mut lines = BufReader::new(worker.stdout.take().expect("stdout is piped")).lines();
    let mut line = || lines.next().expect("the worker goes on");
    assert_eq!(line()?, "ready");
    for freezes in [false, true] {
        if freezes {
            server.freeze();
        }
        writeln!(input, "again")?;
        assert_eq!(line()?, "asking");
        for _ in 0..if freezes { 3 } else { 0 } {
            thread::sleep(millis(100));
            kill_process(pid, Signal::STOP)?;
            thread::sleep(millis(20));
            kill_process(pid, Signal::CONT)?;
        }
        server.thaw();
        assert_eq!(line()?, "true");
    }
    drop(input);
    assert!(worker.wait()?.success());
    Ok(())
}

/// Threads that wait for a key with a value of many megabytes
/// share connections with others, whose replies come behind it.
fn a_long_value_harms_no_other_thread() -> Outcome {
    const FOR: Duration = Duration::from_secs(3);
    let scenario = Scenario::set();
    let key = scenario.target.key("long");
    key.set(&"x".repeat(5_000_000));
    let locker = scenario.open(patient(&scenario.server.url())?.pool_size(2));
    let own: Vec<TestKey> = (0..32).map(|n| scenario.target.key(&format!("own:{n}"))).collect();
    let end = Instant::now() + FOR;
    thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let options = expiring().timeout(FOR).poll_interval(millis(20));
            Lock::new(&locker, &key.key, options)?.lock()
        });
        for (n, own) in own.iter().enumerate() {
            let protocol = [Protocol::Classic, Protocol::Watched, Protocol::Ttl][n % 3];
            let lock = Lock::new(&locker, &own.key, expiring().protocol(protocol)).unwrap();
            scope.spawn(move || {
                while Instant::now() < end {
                    lock.lock().unwrap().release().unwrap();
                    thread::sleep(millis(1));
                }
            });
        }
        let error = waiting.join().unwrap().expect_err("it is no lock's value");
        assert!(error.is_contention(), "{error:?}");
    });
    let name = key.key.to_string();
    let is_read = |asked: &Received| asked.name == "GET" && asked.arguments.contains(&name);
    let reads = scenario.server.log().iter().filter(|asked| is_read(asked)).count();
    assert!((2..=8).contains(&reads), "once a second, not every 20 ms: {reads}");
    Ok(())
}

/// It has no room for another connection. When a server has taken the path, the locker uses that.
fn a_unix_socket_whose_process_hangs() -> Outcome {
    let server = RedisServer::start()?;
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("redis.sock");
    let hung = UnixListener::bind(&path)?;
    // Those that the system keeps for it.
    let mut kept = Vec::new();
    while kept.len() < 10_000 {
        let socket = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::NONBLOCK, None)?;
        match net::connect(&socket, &SocketAddrUnix::new(&path)?) {
            Ok(()) => kept.push(socket),
            Err(_) => break,
        }
    }
    let builder = Locker::builder(&format!("unix://{}", path.display()))?.connect_timeout(millis(200));
    let locker = builder.retry_for(millis(500)).pool_size(1).build()?;
    let lock = Lock::new(&locker, "unix", expiring().timeout(LONG))?;
    for _ in 0..3 {
        let error = lock.lock().expect_err("it accepts nothing");
        assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    }
    std::fs::remove_file(&path)?;
    std::os::unix::fs::symlink(server.socket(), &path)?;
    until("the server is used", || lock.lock().is_ok());
    drop((hung, kept));
    Ok(())
}
