//! Windows, in which a process that keeps a key busy leaves it to pollers, and what they must not delay.

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use setnx_lock::{Contention, Error, Lock, LockOptions, LockState, Locker, Semaphore};
use setnx_lock_testing::TestServer;

use crate::support::notified::{IN_TIME, NOTIFIED};
use crate::support::scenario::{QUEUED, opened};
use crate::support::{AnyServer, LONG, Outcome, RedisServer, expiring, millis, trials_of};

trials_of! {
    "windows";
    busy_processes_leave_a_key_in_the_same_windows,
    a_process_that_holds_for_long_asks_at_once_when_notified,
    free_permits_are_acquired_in_a_window,
    a_call_asks_at_its_deadline_in_a_window,
}

/// Threads that acquire a lock, hold it for a millisecond and ask again at once.
struct BusyThreads {
    over: Arc<AtomicBool>,
    threads: Vec<thread::JoinHandle<Result<(), Error>>>,
}

impl BusyThreads {
    fn start(locks: impl IntoIterator<Item = Lock>) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let busy = |lock: Lock| {
            let over = Arc::clone(&over);
            thread::spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    lock.with(|_| thread::sleep(millis(1)))?;
                }
                Ok(())
            })
        };
        let threads = locks.into_iter().map(busy).collect();
        Self { over, threads }
    }

    fn end(self) -> Outcome {
        self.over.store(true, Ordering::Relaxed);
        self.threads.into_iter().try_for_each(|thread| thread.join().unwrap())?;
        Ok(())
    }
}

/// Returns the pauses of at least this time between two commands
/// of a name, by the server's clock, for as long as commands come.
fn pauses(
    server: &RedisServer,
    name: &'static str,
    least: Duration,
) -> io::Result<impl Iterator<Item = Duration>> {
    let mut stream = TcpStream::connect(server.address())?;
    stream.set_read_timeout(Some(LONG))?;
    stream.write_all(b"MONITOR\r\n")?;
    let (end, mut sent) = (Instant::now() + LONG, None);
    // +1795157376.492303 [0 127.0.0.1:40000] "SETNX" "key" "value"
    let pause = move |line: io::Result<String>| {
        let line = line.ok().filter(|line| line.contains(&format!("\"{name}\"")))?;
        let time = line.trim_start_matches('+').split(' ').next()?.parse::<f64>().ok()?;
        let pause = Duration::from_secs_f64(time - sent.replace(time)?);
        (pause >= least).then_some(pause)
    };
    Ok(BufReader::new(stream).lines().take_while(move |_| Instant::now() < end).filter_map(pause))
}

/// In a window no command that acquires the key is sent, except
/// by the process that has only waited, until it is hot, too.
fn busy_processes_leave_a_key_in_the_same_windows() -> Outcome {
    const WINDOWS: usize = 2;
    let server = RedisServer::start()?;
    // Each polls so often that it would use the windows of the other.
    let options = expiring().timeout(2 * LONG).poll_interval(millis(10));
    let lockers = [opened(&server.url())?, opened(&server.url())?];
    let locks = [0, 0, 0, 1, 1, 1]
        .map(|n: usize| Lock::new(&lockers[n], "busy", options))
        .into_iter()
        .collect::<Result<Vec<_>, _>>()?;
    let busy = BusyThreads::start(locks);
    let windows = pauses(&server, "SETNX", millis(60))?.take(WINDOWS).count();
    busy.end()?;
    assert_eq!(windows, WINDOWS);
    Ok(())
}

/// Longer than what a thread of a quiet machine needs to wake, and shorter than most of a window.
const DELAY: Duration = Duration::from_millis(20);

/// A process has held locks for `busy`, in which others waited for them in two threads each. Returns how many of the
/// first of these got the lock later than [`DELAY`] after its release.
fn delayed(server: &impl AnyServer, round: &str, busy: Duration) -> Result<usize, Error> {
    const KEYS: u32 = 100;
    let lockers: [Locker; 2] = [opened(&server.url())?, opened(&server.url())?];
    let key = |n: u32| format!("{round} {n}");
    let lock = |locker: &Locker, n: u32| Lock::new(locker, key(n), NOTIFIED);
    let began = Instant::now();
    thread::scope(|scope| {
        let pairs: Vec<_> = (0..KEYS)
            .map(|n| {
                let held = lock(&lockers[0], n)?.lock()?;
                let waiting = [lock(&lockers[1], n)?, lock(&lockers[1], n)?];
                let waiters = waiting.map(|lock| scope.spawn(move || lock.with(|_| Instant::now())));
                Ok((n, held, waiters))
            })
            .collect::<Result<_, Error>>()?;
        let mut delayed = 0;
        for (n, held, waiters) in pairs {
            // The releases are spread over a second.
            let at = busy + Duration::from_secs(1) * n / KEYS;
            thread::sleep(at.saturating_sub(began.elapsed()));
            let released = Instant::now();
            held.release()?;
            let mut entered =
                waiters.map(|waiter| waiter.join().unwrap()).into_iter().collect::<Result<Vec<_>, _>>()?;
            entered.sort();
            assert!(released.elapsed() < IN_TIME, "no notification came");
            delayed += usize::from(entered[0] - released > DELAY);
        }
        Ok(delayed)
    })
}

fn a_process_that_holds_for_long_asks_at_once_when_notified() -> Outcome {
    let server = TestServer::start();
    let mut counts = Vec::new();
    // A busy machine delays some; windows would delay more, each time.
    for n in 0..3 {
        // No process is hot before it has been busy for a second.
        let otherwise = delayed(&server, &format!("brief {n}"), Duration::ZERO)?;
        let late = delayed(&server, &format!("long {n}"), millis(1200))?;
        if late <= otherwise + 2 {
            return Ok(());
        }
        counts.push((late, otherwise));
    }
    panic!("hand-overs were delayed, and those of brief holds: {counts:?}");
}

/// Acquires a permit again and again, a thousand times a second
/// at most. Returns how often that took longer than [`DELAY`].
fn delayed_permits(semaphore: &Semaphore) -> Result<usize, Error> {
    let (began, mut delayed) = (Instant::now(), 0);
    while began.elapsed() < Duration::from_millis(4300) {
        let asked = Instant::now();
        let permit = semaphore.acquire()?;
        delayed += usize::from(asked.elapsed() > DELAY);
        permit.release()?;
        thread::sleep(millis(1));
    }
    Ok(delayed)
}

fn free_permits_are_acquired_in_a_window() -> Outcome {
    let server = TestServer::start();
    let locker = opened(&server.url())?;
    let [kept, idle] = ["kept", "idle"].map(|name| Semaphore::new(&locker, name, 4, QUEUED));
    let (kept, idle) = (kept?, idle?);
    // The process of a permit that is held is busy all the time.
    let _held = kept.acquire()?;
    let (kept, idle) = thread::scope(|scope| {
        let idle = scope.spawn(|| delayed_permits(&idle));
        (delayed_permits(&kept), idle.join().unwrap())
    });
    let (kept, idle) = (kept?, idle?);
    assert!(kept <= idle + 1, "{kept} calls were delayed, and {idle} where no permit is kept");
    Ok(())
}

fn a_call_asks_at_its_deadline_in_a_window() -> Outcome {
    let server = TestServer::start();
    let locker = opened(&server.url())?;
    let lock = |options: LockOptions| Lock::new(&locker, "busy", options);
    let busy = BusyThreads::start((0..4).map(|_| lock(QUEUED)).collect::<Result<Vec<_>, _>>()?);
    let brief = lock(QUEUED.timeout(millis(20)))?;
    let (began, mut refused) = (Instant::now(), Vec::new());
    while began.elapsed() < Duration::from_millis(2300) {
        match brief.lock() {
            Ok(held) => held.release().map(drop)?,
            Err(Error::Contended { details, .. }) => refused.push(details),
            Err(error) => return Err(error.into()),
        }
    }
    busy.end()?;
    // A thread whose turn does not come in time has seen who has the lock, or has asked while others were faster.
    let has_looked =
        |details: &Contention| details.attempts > 0 || matches!(details.seen, Some(LockState::Until { .. }));
    assert!(refused.iter().all(|details| has_looked(details)), "{refused:?}");
    Ok(())
}
