//! Many threads, or tasks, that acquire and release, measured only while all of them run: from the moment at which each
//! has had its lock once. So neither their start nor their end counts.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::thread;
use std::time::Duration;

use crate::Failure;
use crate::moment::{self, Moment, nanos};
use crate::stats::Times;

/// The key of one thread.
pub(crate) fn key(keys: &str, thread: usize) -> String {
    format!("{keys}:{thread}")
}

/// When pairs count.
#[derive(Debug)]
pub(crate) struct Window {
    pub(crate) threads: usize,
    time: u64,
    /// How long an acquisition may take.
    longest: Duration,
    /// Threads that have neither had their lock nor failed.
    starting: AtomicUsize,
    /// Zero until all threads run.
    began: AtomicU64,
    /// The processor time of the process when it began, and when it was over.
    processor: [OnceLock<u64>; 2],
}

impl Window {
    pub(crate) fn of(threads: usize, time: Duration, longest: Duration) -> Arc<Self> {
        let starting = AtomicUsize::new(threads);
        let (began, processor) = (AtomicU64::new(0), [const { OnceLock::new() }; 2]);
        Arc::new(Self { threads, time: nanos(time), longest, starting, began, processor })
    }

    fn one_runs(&self) {
        if self.starting.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.processor[0].get_or_init(moment::processor_time);
            self.began.store(moment::now(), Ordering::Release);
        }
    }

    /// When it began, once all threads run.
    fn began(&self) -> Option<Moment> {
        let began = self.began.load(Ordering::Acquire);
        (began != 0).then_some(began)
    }

    fn end(&self) -> Option<Moment> {
        self.began().map(|began| began + self.time)
    }

    /// Whether it is over at `moment`, which is now.
    fn over(&self, moment: Moment) -> bool {
        let over = self.end().is_some_and(|end| moment >= end);
        if over {
            self.processor[1].get_or_init(moment::processor_time);
        }
        over
    }

    /// The processor time of the process within it.
    fn processor_time(&self) -> u64 {
        let [began, over] = self.processor.each_ref().map(|time| time.get().copied().unwrap_or_default());
        over.saturating_sub(began)
    }
}

/// What one thread did.
#[derive(Debug)]
pub(crate) struct Log {
    window: Arc<Window>,
    runs: bool,
    asked: Moment,
    entered: Moment,
    /// Pairs that ended within the window.
    ended: u64,
    /// Nanoseconds of the acquisition and of the release, of each pair that began within the window, also if it
    /// ends later: without it a thread that waits for long would not be seen.
    times: Vec<[u64; 2]>,
}

impl Log {
    pub(crate) fn new(window: &Arc<Window>) -> Self {
        Self { window: Arc::clone(window), runs: false, asked: 0, entered: 0, ended: 0, times: Vec::new() }
    }

    /// Begins a pair; false if the window is over.
    pub(crate) fn asks(&mut self) -> bool {
        self.asked = moment::now();
        !self.window.over(self.asked)
    }

    /// The lock is acquired.
    pub(crate) fn entered(&mut self) {
        self.entered = moment::now();
    }

    /// The lock is released. Fails if it was acquired too late: then an earlier release, or a failed try, left the key
    /// behind, which no other thread uses. Some libraries report neither.
    pub(crate) fn left(&mut self) -> Result<(), Failure> {
        let left = moment::now();
        let acquisition = self.entered - self.asked;
        let longest = self.window.longest;
        if acquisition > nanos(longest) {
            return Err(
                format!("a lock that no other thread uses took more than {longest:?} to acquire").into()
            );
        }
        if !self.runs {
            self.runs = true;
            self.window.one_runs();
        } else if let Some(began) = self.window.began() {
            self.ended += u64::from((began..=began + self.window.time).contains(&left));
            if self.asked >= began {
                self.times.push([acquisition, left - self.entered]);
            }
        }
        Ok(())
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        // A thread that failed is not waited for.
        if !self.runs {
            self.window.one_runs();
        }
    }
}

/// Runs each of `work` on a thread of its own. None begins before all threads are started.
pub(crate) fn run_threads<W>(work: Vec<W>, window: &Arc<Window>) -> Result<Vec<Result<Log, Failure>>, Failure>
where
    W: FnOnce(Log) -> Result<Log, Failure> + Send,
{
    let started = RwLock::new(false);
    thread::scope(|scope| {
        // If a thread cannot be started, this returns early and the others see false.
        let mut all_started = started.write().unwrap_or_else(PoisonError::into_inner);
        let started = &started;
        let mut threads = Vec::with_capacity(work.len());
        for (n, work) in work.into_iter().enumerate() {
            let log = Log::new(window);
            let run = move || {
                let go = *started.read().unwrap_or_else(PoisonError::into_inner);
                if go { work(log) } else { Ok(log) }
            };
            let thread = thread::Builder::new().spawn_scoped(scope, run);
            threads.push(thread.map_err(|error| format!("thread {n} cannot be started: {error}"))?);
        }
        *all_started = true;
        drop(all_started);
        threads.into_iter().map(|thread| thread.join().map_err(|_| "a thread panicked".into())).collect()
    })
}

/// Returns the answer of a worker: the pairs within the window, its length, the 99th percentiles of a release and of an
/// acquisition, and the processor time of the process within the window, all in nanoseconds. Fails if a call failed,
/// and counts those that did: a thread ends at its first failure.
pub(crate) fn answer(window: &Window, logs: Vec<Result<Log, Failure>>) -> Result<String, Failure> {
    let (mut pairs, mut times, mut reasons) = (0, Vec::new(), BTreeMap::<_, usize>::new());
    for log in logs {
        match log {
            Ok(mut log) => {
                pairs += log.ended;
                times.append(&mut log.times);
            }
            // In one line, as all answers.
            Err(failure) => *reasons.entry(failure.to_string().replace('\n', " ")).or_default() += 1,
        }
    }
    if let Some((reason, _)) = reasons.iter().max_by_key(|(_, count)| **count) {
        let errors: usize = reasons.values().sum();
        return Err(format!("{errors} errors in {} threads, such as: {reason}", window.threads).into());
    }
    let p99 = |part: usize| -> Result<u64, Failure> {
        let times = Times::of(times.iter().map(|pair| pair[part]))?.ok_or("there was no pair")?;
        Ok(times.nanos_at(0.99))
    };
    Ok(format!("steady {pairs} {} {} {} {}", window.time, p99(1)?, p99(0)?, window.processor_time()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONGEST: Duration = Duration::from_secs(3600);

    /// Runs threads that fail at the pair with that number, and end after two pairs within the window.
    fn run(fail_at: &[Option<usize>]) -> Result<String, Failure> {
        let window = Window::of(fail_at.len(), LONGEST, LONGEST);
        let work = fail_at.iter().map(|fails_at| {
            move |mut log: Log| {
                let mut pairs = 0;
                while log.asks() && log.ended < 2 {
                    pairs += 1;
                    if Some(pairs) == *fails_at {
                        return Err("no lock\nat all".into());
                    }
                    log.entered();
                    log.left()?;
                }
                Ok(log)
            }
        });
        answer(&window, run_threads(work.collect(), &window)?)
    }

    #[test]
    fn pairs_count_while_all_run() -> Result<(), Failure> {
        let answer = run(&[None; 3])?;
        assert!(answer.starts_with("steady 6 3600000000000 "), "{answer}");
        Ok(())
    }

    #[test]
    fn every_failure_is_counted_and_ends_its_thread() {
        let failure = run(&[None, Some(1), Some(1), Some(2)]).err().map(|failure| failure.to_string());
        assert_eq!(failure.as_deref(), Some("3 errors in 4 threads, such as: no lock at all"));
    }

    #[test]
    fn a_pair_counts_if_it_ends_within_the_window_and_its_times_if_it_begins_there() -> Result<(), Failure> {
        let window = Window::of(2, LONGEST, LONGEST);
        let [mut one, mut other] = [Log::new(&window), Log::new(&window)];
        let ask = |log: &mut Log| {
            let asks = log.asks();
            log.entered();
            asks
        };
        for _ in 0..3 {
            assert!(ask(&mut one));
            one.left()?;
        }
        assert_eq!((one.ended, one.times.len(), window.end()), (0, 0, None));
        // The pair of `one` begins before both run, and ends after.
        assert!(ask(&mut one) && ask(&mut other));
        other.left()?;
        one.left()?;
        assert_eq!((one.ended, one.times.len(), other.ended), (1, 0, 0));
        assert!(ask(&mut one));
        one.left()?;
        assert_eq!((one.ended, one.times.len()), (2, 1));
        // The next begins within the window, which is over when it ends.
        assert!(ask(&mut one));
        let began = AtomicU64::new(one.asked);
        let (starting, processor) = (AtomicUsize::new(0), [const { OnceLock::new() }; 2]);
        one.window = Arc::new(Window { time: 0, longest: LONGEST, began, starting, threads: 2, processor });
        one.left()?;
        assert_eq!((one.ended, one.times.len()), (2, 2));
        assert!(!one.asks());
        Ok(())
    }

    #[test]
    fn a_key_that_was_left_behind_is_a_failure() {
        let window = Window::of(1, LONGEST, LONGEST);
        let mut log = Log::new(&window);
        log.asked = 1;
        log.entered = nanos(LONGEST) + 2;
        assert!(log.left().is_err());
        drop(log);
        assert!(window.end().is_some());
    }
}
