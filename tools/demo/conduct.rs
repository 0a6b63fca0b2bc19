//! The run itself: has the workers contend, kills one while it holds the lock, waits until another takes over, and lets
//! them finish. Returns the account of it. However the run ends, it leaves no process, folder or key.

use std::time::{Duration, SystemTime};
use std::{fs, process, thread};

use setnx_lock::{Lock, LockOptions, LockState, Locker};

use crate::Failure;
use crate::account::{Account, Acquisitions, Crash, Victim};
use crate::moment::Moment;
use crate::options::Options;
use crate::progress::Progress;
use crate::record::What;
use crate::server::Server;
use crate::workers::{Setup, Workers};
use testkit::shield::Parent;

/// The worker that is killed.
const VICTIM: u32 = 2;
/// How often the logs are read.
const LOOK: Duration = Duration::from_millis(10);
/// How long the victim holds the lock before it is killed. Well below the shortest expiration.
const HELD: Duration = Duration::from_millis(150);
/// How long the run goes on at least after the takeover, for the picture.
const AFTER_TAKEOVER: Duration = Duration::from_millis(500);
/// How long the victim may take to get the lock, and the takeover after the expiry.
const LIMIT: Duration = Duration::from_secs(15);

/// Conducts a run.
pub(crate) fn conduct(options: &Options) -> Result<Account, Failure> {
    let parent = Parent::watch();
    let mut server = Server::find(options)?;
    println!("server: {server}");
    let url = server.url();
    let key = format!("setnx-lock:demo:{}", process::id());
    // Dropped in reverse order: first the workers, then the key, the folder, and the server.
    let folder = tempfile::Builder::new().prefix("setnx-lock-demo-").tempdir()?;
    let lock =
        Lock::new(&Locker::open(&url)?, key.as_str(), LockOptions::expiring_after(options.expiration))?;
    if lock.state()? != LockState::Absent {
        return Err(format!("the key {key} is in use on this server").into());
    }
    let lock = CleanLock(lock);
    let counter = folder.path().join("counter");
    fs::write(&counter, "0\n")?;

    let began = Moment::now();
    let first_third = began.after(options.length / 3);
    let setup = Setup {
        options,
        url: &url,
        key: &key,
        folder: folder.path(),
        counter: &counter,
        keeper: (!options.failover).then_some((VICTIM, first_third)),
    };
    let mut workers = Workers::start(&setup)?;
    let mut run = Run {
        began,
        progress: Progress::start(began, options.length)?,
        end: began.after(options.length),
        acquisitions: Acquisitions::default(),
        phase: Phase::Contention { until: first_third.after(LIMIT) },
    };
    let crash = loop {
        thread::sleep(LOOK);
        if parent.is_gone() {
            return Err("interrupted; the workers, the key and the folder are removed".into());
        }
        workers.check()?;
        run.read(&mut workers)?;
        if let (Some(settles), Phase::Contention { .. }, true) =
            (options.settles(), run.phase, Moment::now() >= first_third)
        {
            run.fail_over(server.fail_over(), settles);
        }
        if let Some(crash) = run.step(&mut workers, &lock.0, Moment::now())? {
            break crash;
        }
    };
    let mut troubles = workers.end()?;
    run.read(&mut workers)?;
    let ended = Moment::now();
    troubles.append(&mut run.acquisitions.troubles);
    Ok(Account {
        began,
        ended,
        pids: workers.pids(),
        threads: options.threads,
        expiration: options.expiration,
        acquisitions: run.acquisitions.finish(crash, ended),
        crash,
        counter: fs::read_to_string(&counter)?.trim().parse()?,
        troubles,
    })
}

/// A run in progress.
struct Run {
    began: Moment,
    progress: Progress,
    end: Moment,
    acquisitions: Acquisitions,
    phase: Phase,
}

/// How far the run has come.
#[derive(Clone, Copy)]
enum Phase {
    /// All workers contend; the victim must have got the lock by then.
    Contention { until: Moment },
    /// The victim keeps the lock and is about to be killed.
    Kept { kill: Moment, lease_end: Moment },
    /// The victim has crashed, and the others wait until the lock expires.
    Crashed(Crash),
    /// Another worker has taken over, or none has within the limit.
    Over(Crash),
}

impl Run {
    /// Reads what the workers wrote.
    fn read(&mut self, workers: &mut Workers) -> Result<(), Failure> {
        for (worker, line) in workers.new_lines()? {
            if let What::Keeps { until } = line.what {
                self.phase = Phase::Kept { kill: Moment::now().after(HELD), lease_end: until };
            }
            self.acquisitions.add(worker, line);
        }
        Ok(())
    }

    /// Does what is due. Returns the crash when the run is over.
    fn step(&mut self, workers: &mut Workers, lock: &Lock, now: Moment) -> Result<Option<Crash>, Failure> {
        self.progress.advance(now, self.acquisitions.count());
        match self.phase {
            Phase::Contention { until } if now > until => {
                return Err(format!("worker {VICTIM} did not get the lock in {LIMIT:?}").into());
            }
            // It would no longer crash with the lock.
            Phase::Kept { lease_end, .. } if now >= lease_end => {
                return Err("this machine paused for longer than a lease; give a longer --expiration".into());
            }
            Phase::Kept { kill, lease_end } if now >= kill => {
                let expiry = named_expiry(lock)?;
                let at = workers.kill(VICTIM)?;
                self.phase = Phase::Crashed(Crash { victim: Victim::Worker(VICTIM), at, lease_end, expiry });
                self.extend(expiry);
                let wait = expiry.since(at).as_secs_f64();
                self.progress.line(
                    at,
                    &format!(
                        "worker {VICTIM} is killed while it holds the lock, which expires in {wait:.3} s"
                    ),
                );
            }
            Phase::Crashed(crash) => {
                if let Some(takeover) = self.acquisitions.first_from(crash.expiry) {
                    self.extend(takeover.entered);
                    let late = takeover.entered.since(crash.expiry).as_secs_f64() * 1e3;
                    self.progress.line(
                        takeover.entered,
                        &format!("worker {} gets the lock, {late:.1} ms later", takeover.worker),
                    );
                    self.phase = Phase::Over(crash);
                } else if now > crash.expiry.after(LIMIT) {
                    self.phase = Phase::Over(crash);
                }
            }
            Phase::Over(crash) if now >= self.end => return Ok(Some(crash)),
            Phase::Contention { .. } | Phase::Kept { .. } | Phase::Over(_) => {}
        }
        Ok(None)
    }

    /// Notes that the master was killed, and when a Sentinel named the next.
    fn fail_over(&mut self, (at, named): (Moment, Moment), settles: Duration) {
        let expiry = named.after(settles);
        self.phase = Phase::Crashed(Crash { victim: Victim::Master, at, lease_end: named, expiry });
        self.extend(expiry);
        let time = |time: Duration| time.as_secs_f64();
        self.progress.line(at, "the master is killed");
        let words = format!(
            "a Sentinel names the next master, {:.3} s later, which grants locks in {:.3} s",
            time(named.since(at)),
            time(settles)
        );
        self.progress.line(named, &words);
    }

    /// Makes the run last beyond `moment`.
    fn extend(&mut self, moment: Moment) {
        self.end = self.end.max(moment.after(AFTER_TAKEOVER));
        self.progress.set_length(self.end.since(self.began));
    }
}

/// Reads from the key when others may take over.
fn named_expiry(lock: &Lock) -> Result<Moment, Failure> {
    match lock.state()? {
        LockState::Until { expiry, .. } => {
            let time = SystemTime::from(expiry.date().ok_or("the key names a time beyond the calendar")?);
            Ok(time.into())
        }
        other => Err(format!("worker {VICTIM} holds the lock, but the key is {other}").into()),
    }
}

/// Leaves no key on the user's server.
struct CleanLock(Lock);

impl Drop for CleanLock {
    fn drop(&mut self) {
        if let Err(error) = self.0.clear() {
            eprintln!("demo: {error}");
        }
    }
}
