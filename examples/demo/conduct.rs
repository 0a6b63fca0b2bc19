//! The run itself: has the workers contend, kills one of them while it holds the lock, sees another take over, and lets
//! them finish. Returns the account of it. However it ends, no process, folder or key is left.

use std::time::Duration;
use std::{fs, process, thread};

use setnx_lock::{LockState, Lock, LockOptions, Locker};

use crate::Failure;
use crate::account::{Account, Death, Turns};
use crate::workers::{Crew, Orders};
use crate::moment::Moment;
use crate::options::Options;
use crate::progress::Progress;
use crate::record::What;
use crate::server::Server;
use crate::shield::Parent;

/// The worker that is killed.
const DOOMED: u16 = 2;
/// How often the logs are read.
const LOOK: Duration = Duration::from_millis(10);
/// How long the doomed worker is seen holding the lock, alive, before it is killed. Well below the shortest expiration.
const LAST_MOMENTS: Duration = Duration::from_millis(150);
/// How long the run goes on at least after the takeover, for the picture.
const AFTERMATH: Duration = Duration::from_millis(500);
/// How long something that must come may take: the doomed worker's turn, the takeover once the lease has ended.
const LIMIT: Duration = Duration::from_secs(15);

/// Conducts a run.
pub(crate) fn conduct(options: &Options) -> Result<Account, Failure> {
    let parent = Parent::watch();
    let server = Server::find()?;
    println!("server: {server}");
    let url = server.url();
    let key = format!("setnx-lock:demo:{}", process::id());
    // Dropped in the reverse order: first the workers, then the key, the folder, and the server.
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
    let orders = Orders {
        options,
        url: &url,
        key: &key,
        folder: folder.path(),
        counter: &counter,
        keeper: (DOOMED, began.after(options.length / 3)),
    };
    let mut crew = Crew::start(&orders)?;
    let mut run = Run {
        began,
        progress: Progress::start(began, options.length)?,
        end: began.after(options.length),
        turns: Turns::default(),
        story: Story::Contention { until: orders.keeper.1.after(LIMIT) },
    };
    let death = loop {
        thread::sleep(LOOK);
        if parent.is_gone() {
            return Err("interrupted; the workers, the key and the folder are removed".into());
        }
        crew.check()?;
        run.read(&mut crew)?;
        if let Some(death) = run.step(&mut crew, &lock.0, Moment::now())? {
            break death;
        }
    };
    let mut troubles = crew.end()?;
    run.read(&mut crew)?;
    let ended = Moment::now();
    troubles.append(&mut run.turns.troubles);
    Ok(Account {
        began,
        ended,
        pids: crew.pids(),
        threads: options.threads,
        expiration: options.expiration,
        turns: run.turns.finish(death, ended),
        death,
        counter: fs::read_to_string(&counter)?.trim().parse()?,
        troubles,
    })
}

/// A run in progress.
struct Run {
    began: Moment,
    progress: Progress,
    end: Moment,
    turns: Turns,
    story: Story,
}

/// How far the story has come.
#[derive(Clone, Copy)]
enum Story {
    /// All contend; the doomed worker will keep the lock by then.
    Contention { until: Moment },
    /// It keeps the lock, promised to it until then, and will be killed.
    Kept { kill: Moment, promised: Moment },
    /// It is dead, and the others wait for its lease to end.
    Dead(Death),
    /// Somebody has taken over, or nobody has in all the time there was.
    Over(Death),
}

impl Run {
    /// Reads what the workers wrote.
    fn read(&mut self, crew: &mut Crew) -> Result<(), Failure> {
        for (worker, line) in crew.news()? {
            if let What::Keeps { until } = line.what {
                self.story = Story::Kept { kill: Moment::now().after(LAST_MOMENTS), promised: until };
            }
            self.turns.add(worker, line);
        }
        Ok(())
    }

    /// Does what the time has come for. Returns the death that was to be seen when the run is over.
    fn step(&mut self, crew: &mut Crew, lock: &Lock, now: Moment) -> Result<Option<Death>, Failure> {
        self.progress.advance(now, self.turns.count());
        match self.story {
            Story::Contention { until } if now > until => {
                return Err(format!("worker {DOOMED} did not get the lock in {LIMIT:?}").into());
            }
            // It would no longer be a death with the lock.
            Story::Kept { promised, .. } if now >= promised => {
                return Err(
                    "this machine stood still for the length of a lease; give a longer --expiration".into()
                );
            }
            Story::Kept { kill, promised } if now >= kill => {
                let expiry = named_expiry(lock)?;
                let at = crew.kill(DOOMED)?;
                self.story = Story::Dead(Death { worker: DOOMED, at, promised, expiry });
                self.extend(expiry);
                let wait = expiry.since(at).as_secs_f64();
                self.progress.tell(
                    at,
                    &format!(
                        "worker {DOOMED} is killed while it holds the lock, which expires in {wait:.3} s"
                    ),
                );
            }
            Story::Dead(death) => {
                if let Some(turn) = self.turns.first_from(death.expiry) {
                    self.extend(turn.entered);
                    let late = turn.entered.since(death.expiry).as_secs_f64() * 1e3;
                    self.progress.tell(
                        turn.entered,
                        &format!("worker {} takes over, {late:.1} ms after the expiry", turn.worker),
                    );
                    self.story = Story::Over(death);
                } else if now > death.expiry.after(LIMIT) {
                    self.story = Story::Over(death);
                }
            }
            Story::Over(death) if now >= self.end => return Ok(Some(death)),
            Story::Contention { .. } | Story::Kept { .. } | Story::Over(_) => {}
        }
        Ok(None)
    }

    /// Makes the run last beyond `moment`.
    fn extend(&mut self, moment: Moment) {
        self.end = self.end.max(moment.after(AFTERMATH));
        self.progress.set_length(self.end.since(self.began));
    }
}

/// Reads from the key how long its holder's lease lasts for the others.
fn named_expiry(lock: &Lock) -> Result<Moment, Failure> {
    match lock.state()? {
        LockState::Until(expiry) => {
            let time = expiry.system_time().ok_or("the key names a time that this platform cannot hold")?;
            Ok(time.into())
        }
        other => Err(format!("worker {DOOMED} holds the lock, but the key is {other}").into()),
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
