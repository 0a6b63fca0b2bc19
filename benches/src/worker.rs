//! A worker process of a candidate in Rust. Carries out the instructions on its input, one a line, and ends when that
//! is closed. `peers/worker.rb` and `peers/worker.py` do the same, but for `steady`:
//!
//! - `open THREADS LEASE` sets the library up for so many threads and a lease that the key names as so many
//!   milliseconds, and lets each thread acquire a lock once → `ready`, and the versions of what it uses
//! - `warm` lets each thread acquire a lock once again → `warm`
//! - `pairs KEYS TIME` acquires and releases for so many milliseconds, each thread on a key of its own → `pairs COUNT
//!   NANOS RELEASE`, the last being the 99th percentile of a release, in nanoseconds
//! - `steady KEYS THREADS TIME` does the same with so many threads, or tasks, and counts from when each has had its
//!   lock once (`steady.rs`) → `steady COUNT NANOS RELEASE ACQUISITION PROCESSOR`: two 99th percentiles, and the
//!   processor time of the process; a failed call fails it
//! - `once KEY HOLD THREADS START STEP` each thread acquires the lock once and holds it for so many microseconds;
//!   thread n begins to ask at the moment START + n × STEP → acquisitions
//! - `loop KEY HOLD THREADS START TIME` each thread acquires it again and again, from START on, for so many
//!   milliseconds → acquisitions
//! - `acquire KEY` acquires the lock and holds it → `held KEY`; `release
//!   KEY` → `released KEY MOMENT`, the moment before the release
//! - `cpu` → `cpu NANOS`, the processor time of the process
//!
//! Acquisitions are lines `acquisition THREAD ENTERED LEFT`, LEFT being the moment before the release, and then `done
//! KEY`. Moments are nanoseconds of the monotonic clock. A failure is a line `failed` with a reason.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::{self, BufRead, Write as _};
use std::str::{FromStr, SplitWhitespace};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use std::{env, process};

use crate::Failure;
use crate::locks::{self, Client, Locks, TIMEOUT};
use crate::moment::{self, Moment};
use crate::stats::Times;
use crate::steady::{self, Log, Window};

/// How many pairs each thread does to have its connection open.
const WARMING_PAIRS: usize = 3;

/// Works until the input is closed.
pub(crate) fn run(candidate: &str) -> Result<(), Failure> {
    let url = env::var("REDIS_URL")?;
    let mut worker = None;
    let mut held: HashMap<String, Sender<()>> = HashMap::new();
    for line in io::stdin().lock().lines() {
        let line = line?;
        let mut words = line.split_whitespace();
        match words.next() {
            Some("open") => {
                let (threads, lease) = (word(&mut words)?, Duration::from_millis(word(&mut words)?));
                let opened = Worker::open(candidate, &url, threads, lease);
                match opened {
                    Ok(opened) => {
                        answer(&format!("ready {}", opened.locks.version()));
                        worker = Some(Arc::new(opened));
                    }
                    Err(failure) => answer(&format!("failed {failure}")),
                }
            }
            Some("acquire") => {
                let (key, (release, released)) = (word::<String>(&mut words)?, mpsc::channel());
                held.insert(key.clone(), release);
                job(worker.as_ref(), move |worker| {
                    let mut left = 0;
                    worker.client()?.hold(&key, &mut || {
                        answer(&format!("held {key}"));
                        // Ends by the instruction, which drops the sender, or with the process.
                        let _ = released.recv();
                        left = moment::now();
                    })?;
                    Ok(format!("released {key} {left}"))
                });
            }
            Some("release") => drop(held.remove(&word::<String>(&mut words)?)),
            Some("cpu") => answer(&format!("cpu {}", moment::processor_time())),
            Some("warm") => job(worker.as_ref(), |worker| worker.warm().map(|()| "warm".to_owned())),
            Some("pairs") => {
                let (keys, time) = (word::<String>(&mut words)?, Duration::from_millis(word(&mut words)?));
                job(worker.as_ref(), move |worker| worker.pairs(&keys, time));
            }
            Some("steady") => {
                let (keys, threads) = (word::<String>(&mut words)?, word(&mut words)?);
                let time = Duration::from_millis(word(&mut words)?);
                job(worker.as_ref(), move |worker| worker.steady(&keys, threads, time));
            }
            Some(verb @ ("once" | "loop")) => {
                let order = Order::read(verb == "loop", &mut words)?;
                job(worker.as_ref(), move |worker| worker.acquisitions(&order));
            }
            _ => return Err(format!("no such instruction: {line}").into()),
        }
    }
    // The conductor has closed the input: threads that still run here are not waited for.
    process::exit(0)
}

/// Does something on a thread of its own, and answers with the outcome.
fn job(worker: Option<&Arc<Worker>>, work: impl FnOnce(&Worker) -> Result<String, Failure> + Send + 'static) {
    let worker = worker.cloned();
    thread::spawn(move || {
        let outcome = worker.ok_or_else(|| "not opened yet".into()).and_then(|worker| work(&worker));
        answer(&outcome.unwrap_or_else(|failure| format!("failed {failure}")));
    });
}

fn answer(lines: &str) {
    let mut output = io::stdout().lock();
    // A conductor that has ended closes the input as well, which ends this process.
    let _ = writeln!(output, "{lines}").and_then(|()| output.flush());
}

fn word<T: FromStr>(words: &mut SplitWhitespace<'_>) -> Result<T, Failure> {
    words.next().and_then(|word| word.parse().ok()).ok_or_else(|| "a word is missing or wrong".into())
}

/// How threads are to acquire one lock.
struct Order {
    key: String,
    hold: Duration,
    threads: usize,
    start: Moment,
    /// How much later each thread begins than the one before.
    step: u64,
    /// Until when they acquire it again and again; `None` for once.
    end: Option<Moment>,
}

impl Order {
    fn read(again: bool, words: &mut SplitWhitespace<'_>) -> Result<Self, Failure> {
        let (key, hold) = (word(words)?, Duration::from_micros(word(words)?));
        let (threads, start) = (word(words)?, word(words)?);
        let last: u64 = word(words)?;
        let (step, end) = if again { (0, Some(start + last * 1_000_000)) } else { (last, None) };
        Ok(Self { key, hold, threads, start, step, end })
    }
}

/// The library and the clients of its threads.
struct Worker {
    locks: Box<dyn Locks>,
    threads: usize,
    /// Clients that no job uses.
    clients: Mutex<Vec<Box<dyn Client>>>,
}

impl Worker {
    fn open(candidate: &str, url: &str, threads: u32, lease: Duration) -> Result<Self, Failure> {
        let locks = locks::open(candidate, url, lease)?;
        let worker = Self { locks, threads: usize::try_from(threads)?, clients: Mutex::default() };
        let clients = (0..threads).map(|_| worker.locks.client()).collect::<Result<_, _>>()?;
        *worker.clients.lock().unwrap_or_else(PoisonError::into_inner) = clients;
        worker.warm()?;
        Ok(worker)
    }

    fn client(&self) -> Result<Box<dyn Client>, Failure> {
        let idle = self.clients.lock().unwrap_or_else(PoisonError::into_inner).pop();
        idle.map_or_else(|| self.locks.client(), Ok)
    }

    /// Runs `work` on so many threads at once, and returns each thread's result.
    fn all<T: Send>(
        &self,
        threads: usize,
        work: impl Fn(usize, &mut dyn Client) -> Result<T, Failure> + Sync,
    ) -> Result<Vec<T>, Failure> {
        let mut clients = (0..threads).map(|_| self.client()).collect::<Result<Vec<_>, _>>()?;
        let done = thread::scope(|scope| {
            let work = &work;
            let each = clients.iter_mut().enumerate();
            let threads: Vec<_> =
                each.map(|(n, client)| scope.spawn(move || work(n, client.as_mut()))).collect();
            threads.into_iter().map(|thread| thread.join().map_err(|_| "a thread panicked")?).collect()
        });
        self.clients.lock().unwrap_or_else(PoisonError::into_inner).append(&mut clients);
        done
    }

    fn warm(&self) -> Result<(), Failure> {
        self.all(self.threads, |n, client| {
            let key = format!("warm:{}:{n}", process::id());
            (0..WARMING_PAIRS).try_for_each(|_| client.hold(&key, &mut || ()))
        })?;
        Ok(())
    }

    fn pairs(&self, keys: &str, time: Duration) -> Result<String, Failure> {
        let began = Instant::now();
        let end = began + time;
        let releases = self.locks.pairs(self.threads, keys, end).unwrap_or_else(|| {
            let each = self.all(self.threads, |n, client| {
                let key = format!("{keys}:{n}");
                let mut releases = Vec::new();
                let mut left = Instant::now();
                while left < end {
                    client.hold(&key, &mut || left = Instant::now())?;
                    releases.push(left.elapsed());
                }
                Ok(releases)
            });
            Ok(each?.concat())
        })?;
        let time = began.elapsed().as_nanos();
        let count = releases.len();
        let releases = releases.into_iter().map(|release| u64::try_from(release.as_nanos()));
        let times = Times::of(releases.collect::<Result<Vec<_>, _>>()?)?.ok_or("there was no pair")?;
        Ok(format!("pairs {count} {time} {}", times.nanos_at(0.99)))
    }

    fn steady(&self, keys: &str, threads: usize, time: Duration) -> Result<String, Failure> {
        let window = Window::of(threads, time, TIMEOUT);
        let logs = if let Some(logs) = self.locks.steady(keys, &window) {
            logs
        } else {
            let work = (0..threads).map(|n| {
                let (mut client, key) = (self.locks.client()?, steady::key(keys, n));
                Ok(move |mut log: Log| {
                    while log.asks() {
                        client.hold(&key, &mut || log.entered())?;
                        log.left()?;
                    }
                    Ok(log)
                })
            });
            steady::run_threads(work.collect::<Result<_, Failure>>()?, &window)?
        };
        steady::answer(&window, logs)
    }

    fn acquisitions(&self, order: &Order) -> Result<String, Failure> {
        let each = self.all(order.threads, |n, client| {
            let mut acquisitions = Vec::new();
            moment::sleep_until(order.start + order.step * n as u64);
            while order.end.map_or(acquisitions.is_empty(), |end| moment::now() < end) {
                client.hold(&order.key, &mut || {
                    let entered = moment::now();
                    // An acquisition after the end does not count, and delays no other.
                    if order.end.is_none_or(|end| entered < end) {
                        moment::pass(order.hold);
                        acquisitions.push((entered, moment::now()));
                    }
                })?;
            }
            Ok(acquisitions)
        })?;
        let mut lines = String::new();
        for (thread, acquisitions) in each.iter().enumerate() {
            for (entered, left) in acquisitions {
                writeln!(lines, "acquisition {thread} {entered} {left}")?;
            }
        }
        Ok(lines + "done " + &order.key)
    }
}
