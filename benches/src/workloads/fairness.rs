//! W7: pollers beside a process whose threads never leave the key idle, and processes that all poll. Who gets the lock,
//! and how long others wait for it at most.

use std::time::Duration;

use crate::Failure;
use crate::candidates::{Candidate, GEM, OURS};
use crate::moment::{as_f64, millis_between, nanos, now};
use crate::peer::{Acquisition, Peer};
use crate::plot::{ALONE, Panel};
use crate::report::{Section, Table};
use crate::rounds::Run;
use crate::server_under_test::ServerUnderTest;
use crate::stats::Spread;

/// How long the lock is held.
const HOLD: Duration = Duration::from_millis(1);
/// From the instructions to the start: by then every worker has read them.
const NOTICE: Duration = Duration::from_millis(50);
/// Where several processes of this crate contend.
const SEVERAL: Duration = Duration::from_secs(15);

/// Processes that contend for one key.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Setting {
    /// Processes of the gem, with a thread each.
    gems: usize,
    /// Processes of this crate.
    ours: usize,
    /// Threads of each process of this crate.
    threads: usize,
}

impl Setting {
    /// One process with eight threads; up to four with four threads each; eight with eight.
    fn all() -> Vec<Self> {
        let one = [0, 1, 4].map(|gems| Self { gems, ours: 1, threads: 8 });
        let several = (1..=4).flat_map(|ours| (0..=4).map(move |gems| Self { gems, ours, threads: 4 }));
        one.into_iter().chain(several).chain([Self { gems: 0, ours: 8, threads: 8 }]).collect()
    }

    fn title(self) -> String {
        let Self { gems, ours, threads } = self;
        let ours = format!("{ours} of ours with {threads} threads");
        if gems == 0 { ours } else { format!("{gems} of the gem, {ours}") }
    }
}

/// What the processes of one kind got.
struct Kind {
    name: &'static str,
    /// Together, a second.
    acquisitions: f64,
    /// Of the thread that got least, in all.
    least: usize,
    /// Of the thread that waited longest, in milliseconds.
    longest: f64,
}

pub(crate) fn run(run: &Run, candidates: &[&Candidate]) -> Result<Section, Failure> {
    let find = |name| candidates.iter().find(|one| one.name == name);
    let Some(ours) = find(OURS) else {
        return Err("W7 is about this crate beside others: it needs the candidate ours".into());
    };
    let mut table = Table::new(
        "",
        &[
            "processes",
            "of",
            "seconds",
            "acquisitions/s",
            "least of a thread",
            "longest wait of a thread, ms",
            "relative to ours alone",
        ],
    );
    let mut rows = Vec::new();
    let mut alone = 0.0;
    for setting in Setting::all() {
        let time =
            if setting.threads == 4 { run.plan.fairness_time.min(SEVERAL) } else { run.plan.fairness_time };
        if setting.gems > 0 && find(GEM).is_none() {
            println!("W7: without the gem");
            continue;
        }
        let title = setting.title();
        println!("W7: {title}, {time:?}");
        for kind in measure(ours, setting, find(GEM).copied(), time)? {
            if setting.gems == 0 {
                alone = kind.acquisitions;
            }
            let ratio = if kind.name == OURS {
                format!("{:.2}", kind.acquisitions / alone)
            } else {
                "–".to_owned()
            };
            table.row([
                title.clone(),
                kind.name.to_owned(),
                time.as_secs().to_string(),
                format!("{:.0}", kind.acquisitions),
                kind.least.to_string(),
                format!("{:.0}", kind.longest),
                ratio,
            ]);
            rows.push((kind.name, vec![Spread::of([kind.longest])]));
        }
    }
    let panel = Panel {
        title: "Beside a process that never leaves the key idle: the longest wait".to_owned(),
        axis: "milliseconds".to_owned(),
        logarithmic: true,
        legend: ALONE,
        series: Vec::new(),
        rows,
    };
    Ok(Section {
        title: "W7: pollers and a key that is never idle".to_owned(),
        notes: vec![format!(
            "One run of each setting. A process of the gem has a single thread, which polls every 0.1 s. All acquire the lock again at once, and hold it for {HOLD:?}."
        )],
        tables: vec![table],
        panels: vec![panel],
        failures: Vec::new(),
    })
}

fn measure(
    ours: &Candidate,
    setting: Setting,
    gem: Option<&Candidate>,
    time: Duration,
) -> Result<Vec<Kind>, Failure> {
    let server = ServerUnderTest::start()?;
    let open = |candidate: &Candidate, threads: usize, count: usize| {
        let peers = (0..count).map(|_| Peer::open(candidate, &server.url(), u32::try_from(threads)?));
        peers.collect::<Result<Vec<_>, Failure>>()
    };
    let mut kinds = vec![(OURS, setting.threads, open(ours, setting.threads, setting.ours)?)];
    if let Some(gem) = gem.filter(|_| setting.gems > 0) {
        kinds.push((GEM, 1, open(gem, 1, setting.gems)?));
    }
    let start = now() + nanos(NOTICE);
    for (_, threads, peers) in &mut kinds {
        for peer in peers {
            let (hold, time) = (HOLD.as_micros(), time.as_millis());
            peer.send(format_args!("loop bench:fair {hold} {threads} {start} {time}"))?;
        }
    }
    let end = start + nanos(time);
    let mut found = Vec::new();
    for (name, threads, peers) in &mut kinds {
        let (mut count, mut least, mut longest) = (0, usize::MAX, 0.0_f64);
        for peer in peers {
            let all = peer.acquisitions_within(0, time)?.1;
            count += all.len();
            for thread in 0..*threads {
                let mine: Vec<_> = all.iter().filter(|one| one.thread.1 == thread).collect();
                least = least.min(mine.len());
                longest = longest.max(longest_wait(&mine, start, end));
            }
        }
        let acquisitions = as_f64(u64::try_from(count)?) / time.as_secs_f64();
        found.push(Kind { name, acquisitions, least, longest });
    }
    Ok(found)
}

/// From the start, or from leaving the lock, until the next acquisition, or the end.
fn longest_wait(mine: &[&Acquisition], start: u64, end: u64) -> f64 {
    let mut sorted = mine.to_vec();
    sorted.sort_by_key(|one| one.entered);
    let mut since = start;
    let mut longest = 0.0_f64;
    for one in sorted {
        longest = longest.max(millis_between(as_f64(since), one.entered));
        since = one.left;
    }
    longest.max(millis_between(as_f64(since), end.max(since)))
}
