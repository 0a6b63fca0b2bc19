//! W8: what the other keys cost that threads wait for with notifications. Two lockers contend for one key while the
//! threads of one of them wait for many other keys.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use setnx_lock::{Lock, LockOptions, Locker};

use crate::Failure;
use crate::candidates::Candidate;
use crate::format::{cell, plain, rounds};
use crate::moment::as_f64;
use crate::plot::{ALONE, Panel};
use crate::report::{Section, Table};
use crate::rounds::{Contender, Run};
use crate::server_under_test::ServerUnderTest;

/// How many other keys are waited for; the first is what the others are compared with.
const OTHERS: [(&str, usize); 3] = [(NONE, 0), ("100 other keys", 100), ("2,000 other keys", 2_000)];
const NONE: &str = "no other key";

/// Longer than the run: only a notification ends a wait.
const NEVER: Duration = Duration::from_secs(3600);
const OPTIONS: LockOptions =
    LockOptions::expiring_after(NEVER).timeout(NEVER).poll_interval(NEVER).notify_waiters(true);

struct Sample {
    /// Acquisitions of the busy key a second.
    rate: f64,
    commands: f64,
}

/// Two lockers, one of which has threads that wait for other keys.
struct Contention {
    lockers: [Locker; 2],
    key: String,
}

impl Contention {
    fn beside(others: usize, server: &ServerUnderTest) -> Result<Self, Failure> {
        let open = || Locker::builder(&server.url())?.build();
        let (first, second, holder) = (open()?, open()?, open()?);
        let mut began = 0;
        for n in 0..others {
            let key = format!("bench:other:{others}:{n}");
            std::mem::forget(Lock::new(&holder, key.as_str(), OPTIONS)?.lock()?);
            let lock = Lock::new(&first, key.as_str(), OPTIONS)?;
            // Ended by the shut-down of the locker.
            thread::Builder::new().stack_size(256 << 10).spawn(move || drop(lock.lock()))?;
            began += 1;
        }
        // Until all are in their lists.
        let mut connection = redis::Client::open(server.url())?.get_connection()?;
        let end = Instant::now() + Duration::from_secs(60);
        let pattern = format!("bench:other:{others}:*:setnx-lock:waiters:*");
        while redis::cmd("KEYS").arg(&pattern).query::<Vec<String>>(&mut connection)?.len() < began {
            if Instant::now() > end {
                return Err("the waiters of the other keys do not all wait".into());
            }
            thread::sleep(Duration::from_millis(50));
        }
        Ok(Self { lockers: [first, second], key: format!("bench:busy:{others}") })
    }

    fn measure(&self, time: Duration, server: &mut ServerUnderTest) -> Result<Sample, Failure> {
        let count = AtomicU64::new(0);
        let before = server.commands()?;
        let began = Instant::now();
        thread::scope(|scope| -> Result<(), Failure> {
            let contend = |locker: &Locker| -> Result<(), setnx_lock::Error> {
                let lock = Lock::new(locker, self.key.as_str(), OPTIONS)?;
                while began.elapsed() < time {
                    lock.lock()?.release()?;
                    count.fetch_add(1, Ordering::Relaxed);
                }
                Ok(())
            };
            let threads = self.lockers.each_ref().map(|locker| scope.spawn(move || contend(locker)));
            for thread in threads {
                thread.join().map_err(|_| "a thread has panicked")??;
            }
            Ok(())
        })?;
        let (count, time) = (as_f64(count.into_inner()), began.elapsed());
        let commands = as_f64(server.commands()? - before);
        Ok(Sample { rate: count / time.as_secs_f64(), commands: commands / count })
    }
}

impl Drop for Contention {
    fn drop(&mut self) {
        self.lockers.iter().for_each(Locker::shut_down);
    }
}

pub(crate) fn run(run: &Run, candidates: &[&Candidate]) -> Result<Section, Failure> {
    let mut server = ServerUnderTest::start()?;
    // There is one candidate, in several states.
    let states = if candidates.is_empty() { &[][..] } else { &OTHERS };
    let contenders = states
        .iter()
        .map(|(name, others)| Contender::ready("W8", name, Contention::beside(*others, &server)));
    let contenders = contenders.collect();
    let time = run.plan.contention_time;
    let results = run.rounds("W8", run.plan.contention_rounds, contenders, |_, contention, _| {
        contention.measure(time, &mut server)
    })?;
    let mut table = Table::new(
        "",
        &["waited for by threads of one process", "acquisitions/s", "as a ratio to none", "commands each"],
    );
    for name in results.names() {
        table.row([
            name.to_owned(),
            cell(results.spread(name, |s| Some(s.rate))),
            plain(results.ratio(name, NONE, |s| Some(s.rate))),
            cell(results.spread(name, |s| Some(s.commands))),
        ]);
    }
    Ok(Section {
        title: "W8: notifications of a busy key, beside other keys that are waited for".to_owned(),
        notes: vec![format!("{} of {time:?} for each.", rounds(run.plan.contention_rounds))],
        tables: vec![table],
        panels: vec![Panel {
            title: "A busy key beside others".to_owned(),
            axis: "acquisitions a second".to_owned(),
            logarithmic: false,
            legend: ALONE,
            series: Vec::new(),
            rows: results.names().map(|name| (name, vec![results.spread(name, |s| Some(s.rate))])).collect(),
        }],
        failures: Vec::new(),
    })
}
