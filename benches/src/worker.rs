//! A worker process of a candidate in Rust. Does as it is told on its input, line by line, and ends when that is closed.
//! `peers/worker.rb` and `peers/worker.py` do the same:
//!
//! - `open THREADS LEASE` sets the library up for so many threads and a lease that shows as so many milliseconds in the key, and
//!   lets each take a lock once → `ready`, and the versions of what it uses
//! - `warm` lets each thread take a lock once again → `warm`
//! - `pairs KEYS TIME` acquires and releases for so many milliseconds, each thread on a key of its own → `pairs COUNT NANOS RELEASE`,
//!   the last being what 99 of 100 releases take at most, in nanoseconds
//! - `once KEY HOLD THREADS START STEP` each thread takes the lock once and holds it for so many microseconds; thread n begins to
//!   ask at the moment START + n × STEP → turns
//! - `loop KEY HOLD THREADS START TIME` each thread takes it again and again, from START on, for so many milliseconds → turns
//! - `take KEY` takes the lock and keeps it → `held KEY`; `give KEY` → `gave KEY MOMENT`, the moment before it was released
//! - `cpu` → `cpu NANOS`, the processor time of the process
//!
//! Turns are lines `turn THREAD ENTERED LEFT`, the second being the moment before the release, and then `done KEY`. Moments are
//! nanoseconds of the monotonic clock. What goes wrong is a line `failed` and a reason.

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
use crate::locks::{self, Client, Locks};
use crate::moment::{self, Moment};
use crate::stats::Times;

/// How many pairs each thread does to have its connection open.
const WARMING_PAIRS: usize = 3;

/// Works until the input is closed.
pub(crate) fn run(candidate: &str) -> Result<(), Failure> {
    let url = env::var("REDIS_URL")?;
    let mut crew = None;
    let mut kept: HashMap<String, Sender<()>> = HashMap::new();
    for line in io::stdin().lock().lines() {
        let line = line?;
        let mut words = line.split_whitespace();
        match words.next() {
            Some("open") => {
                let (threads, lease) = (word(&mut words)?, Duration::from_millis(word(&mut words)?));
                let opened = Crew::open(candidate, &url, threads, lease);
                match opened {
                    Ok(opened) => {
                        say(&format!("ready {}", opened.locks.version()));
                        crew = Some(Arc::new(opened));
                    }
                    Err(failure) => say(&format!("failed {failure}")),
                }
            }
            Some("take") => {
                let (key, (told, listen)) = (word::<String>(&mut words)?, mpsc::channel());
                kept.insert(key.clone(), told);
                job(crew.as_ref(), move |crew| {
                    let mut gave = 0;
                    crew.client()?.hold(&key, &mut || {
                        say(&format!("held {key}"));
                        // Told, or the input is closed and the process ends.
                        let _ = listen.recv();
                        gave = moment::now();
                    })?;
                    Ok(format!("gave {key} {gave}"))
                });
            }
            Some("give") => drop(kept.remove(&word::<String>(&mut words)?)),
            Some("cpu") => say(&format!("cpu {}", moment::processor_time())),
            Some("warm") => job(crew.as_ref(), |crew| crew.warm().map(|()| "warm".to_owned())),
            Some("pairs") => {
                let (keys, time) = (word::<String>(&mut words)?, Duration::from_millis(word(&mut words)?));
                job(crew.as_ref(), move |crew| crew.pairs(&keys, time));
            }
            Some(turns @ ("once" | "loop")) => {
                let ask = Ask::read(turns == "loop", &mut words)?;
                job(crew.as_ref(), move |crew| crew.turns(&ask));
            }
            _ => return Err(format!("no such command: {line}").into()),
        }
    }
    // Whoever told it what to do is gone: nothing that still runs here matters.
    process::exit(0)
}

/// Does something on a thread of its own and says what came of it.
fn job(crew: Option<&Arc<Crew>>, work: impl FnOnce(&Crew) -> Result<String, Failure> + Send + 'static) {
    let crew = crew.cloned();
    thread::spawn(move || {
        let crew = crew.ok_or("not opened yet");
        say(&crew.map_err(Into::into).and_then(|crew| work(&crew)).unwrap_or_else(|e| format!("failed {e}")));
    });
}

fn say(lines: &str) {
    let mut output = io::stdout().lock();
    // A reader that is gone closes the input as well.
    let _ = writeln!(output, "{lines}").and_then(|()| output.flush());
}

fn word<T: FromStr>(words: &mut SplitWhitespace<'_>) -> Result<T, Failure> {
    words.next().and_then(|word| word.parse().ok()).ok_or_else(|| "a word is missing or wrong".into())
}

/// What threads are to do with one lock.
struct Ask {
    key: String,
    hold: Duration,
    threads: usize,
    start: Moment,
    /// How much later each thread begins than the one before.
    step: u64,
    /// Until when they take it again; once, if not said.
    end: Option<Moment>,
}

impl Ask {
    fn read(again: bool, words: &mut SplitWhitespace<'_>) -> Result<Self, Failure> {
        let (key, hold) = (word(words)?, Duration::from_micros(word(words)?));
        let (threads, start) = (word(words)?, word(words)?);
        let last: u64 = word(words)?;
        let (step, end) = if again { (0, Some(start + last * 1_000_000)) } else { (last, None) };
        Ok(Self { key, hold, threads, start, step, end })
    }
}

/// The library and what its threads lock with.
struct Crew {
    locks: Box<dyn Locks>,
    threads: usize,
    /// Those that no job uses.
    clients: Mutex<Vec<Box<dyn Client>>>,
}

impl Crew {
    fn open(candidate: &str, url: &str, threads: u32, lease: Duration) -> Result<Self, Failure> {
        let locks = locks::open(candidate, url, threads, lease)?;
        let crew = Self { locks, threads: usize::try_from(threads)?, clients: Mutex::default() };
        let clients = (0..threads).map(|_| crew.locks.client()).collect::<Result<_, _>>()?;
        *crew.clients.lock().unwrap_or_else(PoisonError::into_inner) = clients;
        crew.warm()?;
        Ok(crew)
    }

    fn client(&self) -> Result<Box<dyn Client>, Failure> {
        let idle = self.clients.lock().unwrap_or_else(PoisonError::into_inner).pop();
        idle.map_or_else(|| self.locks.client(), Ok)
    }

    /// Has `work` done by so many threads at once; returns what each came to.
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
        let times = Times::of(releases.collect::<Result<Vec<_>, _>>()?)?.ok_or("no pair was done")?;
        Ok(format!("pairs {count} {time} {}", times.nanos_at(0.99)))
    }

    fn turns(&self, ask: &Ask) -> Result<String, Failure> {
        let each = self.all(ask.threads, |n, client| {
            let mut turns = Vec::new();
            moment::sleep_until(ask.start + ask.step * n as u64);
            while ask.end.map_or(turns.is_empty(), |end| moment::now() < end) {
                client.hold(&ask.key, &mut || {
                    let entered = moment::now();
                    // Those that still wait when the time is over do not count, and keep nobody up.
                    if ask.end.is_none_or(|end| entered < end) {
                        moment::pass(ask.hold);
                        turns.push((entered, moment::now()));
                    }
                })?;
            }
            Ok(turns)
        })?;
        let mut lines = String::new();
        for (thread, turns) in each.iter().enumerate() {
            for (entered, left) in turns {
                writeln!(lines, "turn {thread} {entered} {left}")?;
            }
        }
        Ok(lines + "done " + &ask.key)
    }
}
