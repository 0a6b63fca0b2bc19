//! W4: the cost of idle waiting. The threads of one process wait for a lock that another process holds.

use std::thread;
use std::time::Duration;

use crate::Failure;
use crate::candidates::{Candidate, OURS};
use crate::format::{cell, plain, rounds};
use crate::moment::{as_f64, nanos, now};
use crate::peer::Peer;
use crate::plot::{ALONE, Panel};
use crate::report::{Section, Table};
use crate::rounds::{Contender, Run};
use crate::server_under_test::ServerUnderTest;

const WAITERS: u32 = 64;
/// Waiters begin one after another within this time.
const ARRIVAL: Duration = Duration::from_millis(100);
/// The time from the last arrival to the measurement.
const SETTLED: Duration = Duration::from_millis(500);

struct Sample {
    /// Commands a second.
    commands: f64,
    /// Milliseconds of processor time a second, of the process that waits.
    processor: f64,
}

pub(crate) fn run(run: &Run, candidates: &[&Candidate]) -> Result<Section, Failure> {
    let mut server = ServerUnderTest::start()?;
    let url = server.url();
    let time = run.plan.idle_time;
    let contenders = candidates.iter().map(|one| {
        let pair = Peer::open(one, &url, 1).and_then(|held| Ok((held, Peer::open(one, &url, WAITERS)?)));
        Contender::ready("W4", one.name, pair)
    });
    let contenders = contenders.collect();
    let results = run.rounds("W4", run.plan.idle_rounds, contenders, |name, (holder, waiting), round| {
        let key = format!("bench:{name}:{round}");
        holder.warm()?;
        waiting.warm()?;
        holder.acquire(&key)?;
        let (start, step) = (now(), nanos(ARRIVAL) / u64::from(WAITERS));
        waiting.send(format_args!("once {key} 0 {WAITERS} {start} {step}"))?;
        thread::sleep(ARRIVAL + SETTLED);
        let before = (server.commands()?, waiting.processor_time()?);
        thread::sleep(time);
        let after = (server.commands()?, waiting.processor_time()?);
        holder.release(&key)?;
        waiting.acquisitions(0)?;
        Ok(Sample {
            commands: as_f64(after.0 - before.0) / time.as_secs_f64(),
            processor: as_f64(after.1 - before.1) / 1e6 / time.as_secs_f64(),
        })
    })?;

    let mut table = Table::new(
        "",
        &["candidate", "commands/s", "as a ratio to ours", "processor ms/s", "as a ratio to ours"],
    );
    for name in results.names() {
        table.row([
            name.to_owned(),
            cell(results.spread(name, |s| Some(s.commands))),
            plain(results.ratio(name, OURS, |s| Some(s.commands))),
            cell(results.spread(name, |s| Some(s.processor))),
            plain(results.ratio(name, OURS, |s| Some(s.processor))),
        ]);
    }
    let panel = |title: &str, axis: &str, figure: fn(&Sample) -> f64| Panel {
        title: title.to_owned(),
        axis: axis.to_owned(),
        logarithmic: true,
        legend: ALONE,
        series: Vec::new(),
        rows: results.names().map(|name| (name, vec![results.spread(name, |s| Some(figure(s)))])).collect(),
    };
    let panels = vec![
        panel("64 idle waiters: commands", "commands a second", |s| s.commands),
        panel("64 idle waiters: processor time", "milliseconds of processor time a second", |s| s.processor),
    ];
    Ok(Section {
        title: "W4: idle waiting, 64 threads of one process".to_owned(),
        notes: vec![format!("{} of {time:?} for each.", rounds(run.plan.idle_rounds))],
        tables: vec![table],
        panels,
        failures: Vec::new(),
    })
}
