//! W9: what it costs a process to have the leases of many locks extended while it does nothing else.

use std::thread;
use std::time::{Duration, Instant};

use setnx_lock::{Lock, LockGuard, LockOptions, Locker, Protocol};

use crate::Failure;
use crate::candidates::Candidate;
use crate::format::{cell, rounds};
use crate::moment::{as_f64, processor_time};
use crate::plot::{ALONE, Panel};
use crate::report::{Section, Table};
use crate::rounds::{Contender, Run};
use crate::server_under_test::ServerUnderTest;

const PROTOCOLS: [(&str, Protocol); 3] =
    [("Classic", Protocol::Classic), ("Watched", Protocol::Watched), ("Ttl", Protocol::Ttl)];

/// How many locks are held for each second of their expiration: each is
/// extended at a third, so that there are 1,000 extensions a second.
const LOCKS_A_SECOND: u64 = 1000 / 3;

struct Sample {
    /// Processor time of the process, in percent of one processor.
    processor: f64,
    /// Extensions a second.
    extensions: f64,
    /// Commands for each.
    commands: f64,
    lost: usize,
}

fn measure(
    protocol: Protocol,
    expiration: Duration,
    time: Duration,
    server: &mut ServerUnderTest,
) -> Result<Sample, Failure> {
    let locker = Locker::open(&server.url())?;
    let options = LockOptions::expiring_after(expiration).protocol(protocol);
    let options = options.auto_extend(Duration::from_secs(3600));
    // Over a third of the expiration, so that extensions are due all the time.
    let (began, count) = (Instant::now(), expiration.as_secs() * LOCKS_A_SECOND);
    let pause = expiration / 3 / u32::try_from(count)?;
    let mut held = Vec::new();
    for n in 0..u32::try_from(count)? {
        held.push(Lock::new(&locker, format!("bench:kept:{protocol:?}:{n}"), options)?.lock()?);
        thread::sleep((pause * n).saturating_sub(began.elapsed()));
    }
    let ends = |held: &[LockGuard]| held.iter().map(LockGuard::expires_at).collect::<Vec<_>>();
    // Until those are extended that came first.
    thread::sleep(expiration / 10);
    let (before, first) = (ends(&held), server.commands()?);
    let (used, began) = (processor_time(), Instant::now());
    thread::sleep(time.min(expiration / 4));
    let (used, time) = (processor_time() - used, began.elapsed());
    let (after, commands) = (ends(&held), server.commands()? - first);
    let extended = before.iter().zip(&after).filter(|(before, after)| before != after).count();
    let lost = held.iter().filter(|held| held.ensure_held().is_err()).count();
    let extended = as_f64(u64::try_from(extended)?);
    for held in held {
        held.release()?;
    }
    Ok(Sample {
        processor: 100.0 * as_f64(used) / time.as_secs_f64() / 1e9,
        extensions: extended / time.as_secs_f64(),
        commands: as_f64(commands) / extended,
        lost,
    })
}

pub(crate) fn run(run: &Run, candidates: &[&Candidate]) -> Result<Section, Failure> {
    let mut server = ServerUnderTest::start()?;
    // There is one candidate, by several protocols.
    let protocols = if candidates.is_empty() { &[][..] } else { &PROTOCOLS };
    let contenders =
        protocols.iter().map(|(name, protocol)| Contender { name, state: Some(*protocol) }).collect();
    let (count, expiration) = (run.plan.kept_rounds, run.plan.kept_expiration);
    let results = run.rounds("W9", count, contenders, |_, protocol, _| {
        measure(*protocol, expiration, expiration, &mut server)
    })?;
    let mut table = Table::new(
        "",
        &["protocol", "processor time, % of one", "extensions/s", "commands each", "locks lost"],
    );
    for name in results.names() {
        table.row([
            name.to_owned(),
            cell(results.spread(name, |s| Some(s.processor))),
            cell(results.spread(name, |s| Some(s.extensions))),
            cell(results.spread(name, |s| Some(s.commands))),
            cell(results.spread(name, |s| Some(as_f64(s.lost as u64)))),
        ]);
    }
    let locks = expiration.as_secs() * LOCKS_A_SECOND;
    Ok(Section {
        title: format!("W9: {locks} held locks, whose leases of {expiration:?} are extended"),
        notes: vec![format!(
            "{}, {:?} for each after the locks were acquired.",
            rounds(count),
            expiration / 4
        )],
        tables: vec![table],
        panels: vec![Panel {
            title: "Processor time of a process that has leases extended".to_owned(),
            axis: "percent of one processor".to_owned(),
            logarithmic: false,
            legend: ALONE,
            series: Vec::new(),
            rows: results
                .names()
                .map(|name| (name, vec![results.spread(name, |s| Some(s.processor))]))
                .collect(),
        }],
        failures: Vec::new(),
    })
}
