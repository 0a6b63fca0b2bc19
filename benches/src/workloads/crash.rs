//! W5: a process that holds locks is killed. Measured is the time from the expiry of each to its next acquisition.

use std::collections::HashMap;
use std::thread;
use std::time::Duration;

use crate::Failure;
use crate::candidates::{Candidate, OURS};
use crate::format::{cell, plain, rounds};
use crate::moment::{self, nanos, now};
use crate::peer::Peer;
use crate::plot::{ALONE, Panel};
use crate::report::{Section, Table};
use crate::rounds::{Contender, Run};
use crate::server_under_test::ServerUnderTest;
use crate::stats::Spread;

/// How many locks the process holds. One thread waits for each.
const KEYS: u64 = 4;
/// The lease that a key names.
const LEASE: Duration = Duration::from_millis(1500);
/// In milliseconds; pollers begin at different parts of it each time.
const INTERVAL: u64 = 100;
/// How long the last waiter waits, at least, before the holder is killed.
const QUEUED: Duration = Duration::from_millis(150);

/// Milliseconds from the expiry to the next acquisition, for each key.
struct Sample(Vec<f64>);

pub(crate) fn run(run: &Run, candidates: &[&Candidate]) -> Result<Section, Failure> {
    let mut server = ServerUnderTest::start()?;
    let url = server.url();
    let contenders = candidates.iter().map(|one| {
        let waiting = Peer::open_leasing(one, &url, u32::try_from(KEYS)?, LEASE);
        Ok(Contender::ready("W5", one.name, waiting.map(|waiting| (*one, waiting))))
    });
    let contenders = contenders.collect::<Result<_, Failure>>()?;
    let results =
        run.rounds("W5", run.plan.crash_rounds, contenders, |name, (candidate, waiting), round| {
            let keys: Vec<_> = (0..KEYS).map(|n| format!("bench:{name}:{round}:{n}")).collect();
            let mut holder = Peer::open_leasing(candidate, &url, 1, LEASE)?;
            waiting.warm()?;
            for key in &keys {
                holder.acquire(key)?;
            }
            for (n, key) in (0..KEYS).zip(&keys) {
                let phase = (n * INTERVAL / KEYS + u64::from(round) * 37) % INTERVAL;
                let start = now() + nanos(Duration::from_millis(phase));
                waiting.send(format_args!("once {key} 0 1 {start} 0"))?;
            }
            let expiries = keys.into_iter().map(|key| Ok((key.clone(), server.expiry(&key)?)));
            let mut expiries = expiries.collect::<Result<HashMap<_, _>, Failure>>()?;
            thread::sleep(Duration::from_millis(INTERVAL) + QUEUED);
            holder.kill()?;
            let mut late = Vec::new();
            while !expiries.is_empty() {
                let (key, acquisitions) = waiting.acquisitions(0)?;
                let expiry =
                    expiries.remove(&key).ok_or("a lock was acquired twice, or it is another lock")?;
                let next = acquisitions.first().ok_or("the lock was not acquired")?;
                late.push(moment::millis_between(expiry, next.entered));
            }
            Ok(Sample(late))
        })?;

    let median = |sample: &Sample| Spread::of(sample.0.iter().copied()).map(|spread| spread.median);
    let longest = |sample: &Sample| Spread::of(sample.0.iter().copied()).map(|spread| spread.max);
    let mut table = Table::new(
        "",
        &["candidate", "after the expiry, ms", "as a ratio to ours", "longest of a round, ms"],
    );
    for name in results.names() {
        table.row([
            name.to_owned(),
            cell(results.spread(name, median)),
            plain(results.ratio(name, OURS, median)),
            cell(results.spread(name, longest)),
        ]);
    }
    Ok(Section {
        title: "W5: a holder is killed".to_owned(),
        notes: vec![format!(
            "{}, {KEYS} locks in each, one waiter for a lock; the figure of a round is the median over its locks. The expiry is the one in the key: its time to live, which is known to a millisecond, or the time that the value names.",
            rounds(run.plan.crash_rounds)
        )],
        tables: vec![table],
        panels: vec![Panel {
            title: "A holder is killed: until the next acquisition".to_owned(),
            axis: "milliseconds from the expiry in the key".to_owned(),
            logarithmic: true,
            legend: ALONE,
            series: Vec::new(),
            rows: results.names().map(|name| (name, vec![results.spread(name, median)])).collect(),
        }],
        failures: Vec::new(),
    })
}
