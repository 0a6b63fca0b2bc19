//! W3: contention for one lock that is held for a millisecond at a time, by threads
//! of one process and over several processes. First each thread acquires it once,
//! after a release that all have waited for; then all acquire it again and again.

use std::collections::HashMap;
use std::time::Duration;

use crate::Failure;
use crate::candidates::{Candidate, OURS};
use crate::format::{cell, plain, rounds};
use crate::moment::{self, as_f64, nanos, now, sleep_until};
use crate::peer::{Acquisition, Peer};
use crate::plot::Panel;
use crate::report::{Section, Table};
use crate::rounds::{Contender, Run};
use crate::server_under_test::ServerUnderTest;
use crate::stats::{Results, Spread, Times};

/// Processes, and threads of each.
const SHAPES: [(usize, usize); 4] = [(1, 8), (8, 1), (1, 64), (8, 8)];
/// How long the lock is held.
const HOLD: Duration = Duration::from_millis(1);
/// Waiters begin one after another within this time, the poll
/// interval of most candidates, so that they do not poll in step.
const ARRIVAL: Duration = Duration::from_millis(100);
/// How long the last of them waits, at least, before the lock is released.
const QUEUED: Duration = Duration::from_millis(250);
/// From the instructions to the start: by then every worker has read them.
const NOTICE: Duration = Duration::from_millis(50);
/// How long the round trip is measured before each candidate.
const ECHO: Duration = Duration::from_millis(150);

/// The worker processes of a candidate.
struct Workers {
    peers: Vec<Peer>,
    /// Holds the lock at first; none where the only process does.
    holder: Option<Peer>,
}

struct Sample {
    /// From the release until the last thread has had the lock, in milliseconds.
    served: f64,
    looping: Looping,
    /// One round trip, in milliseconds: the median over the whole run.
    round_trip: f64,
}

struct Looping {
    /// A second.
    acquisitions: f64,
    /// Of an equal share.
    smallest: f64,
    largest: f64,
    /// For each acquisition.
    commands: f64,
    /// From the moment before a release to the next holder's entry, in milliseconds: median and p99.
    handoff: Option<[f64; 2]>,
    overlaps: usize,
}

/// Runs it in all shapes.
pub(crate) fn run(run: &Run, candidates: &[&Candidate]) -> Result<Section, Failure> {
    let mut shapes = Vec::new();
    for (processes, threads) in SHAPES {
        let shape = format!("{processes} × {threads}");
        shapes.push((shape, measure(run, candidates, processes, threads)?));
    }
    let overlaps = shapes.iter().flat_map(|(shape, results)| {
        results.candidates.iter().filter_map(move |(name, samples)| {
            let overlaps: usize = samples.iter().flatten().map(|sample| sample.looping.overlaps).sum();
            (overlaps > 0).then(|| {
                format!("{name}, {shape}: {overlaps} acquisitions began before another holder had left")
            })
        })
    });
    let mut notes = vec![
        format!(
            "{}. Shapes are processes × threads. The lock is held for {HOLD:?} at a time. Once each: waiters arrive within {ARRIVAL:?} and wait behind a held lock; in the shapes of one process the holder is a thread of it, otherwise a process of its own. Again and again: for {:?}, asking again at once.",
            rounds(run.plan.contention_rounds), run.plan.contention_time
        ),
        "A handoff is the time from the moment before a release to the next holder's entry. A share is relative to an equal share. A round trip is that of a PING on the same server at the pace of the lock: a lone thread sends PING in place of both commands, and waits between them as long as a lock is held. It is measured before each candidate in each round.".to_owned(),
    ];
    notes.extend(overlaps);
    Ok(Section {
        title: "W3: contention for one key".to_owned(),
        notes,
        tables: shapes.iter().map(|(shape, results)| table(results, shape)).collect(),
        panels: panels(&shapes, candidates),
        failures: Vec::new(),
    })
}

fn measure(
    run: &Run,
    candidates: &[&Candidate],
    processes: usize,
    threads: usize,
) -> Result<Results<Sample>, Failure> {
    let what = format!("W3, {processes} × {threads}");
    let mut server = ServerUnderTest::start()?;
    let mut echo = Workers::open(&Candidate::echo(), &server.url(), 1, 1)?;
    let contenders = candidates
        .iter()
        .map(|one| Contender::ready(&what, one.name, Workers::open(one, &server.url(), processes, threads)));
    let contenders = contenders.collect();
    let mut trips = Vec::new();
    let mut results = run.rounds(&what, run.plan.contention_rounds, contenders, |name, workers, round| {
        let key = |part| format!("bench:{name}:{round}:{part}");
        trips.extend(round_trip(&mut echo, &mut server)?);
        // The release comes at a different part of a poller's interval in each round.
        let phase = Duration::from_millis(u64::from(round) * 37 % 100);
        let once = workers.once(&key("once"), threads, phase)?;
        let looping = workers.again(&key("loop"), threads, run.plan.contention_time, &mut server)?;
        Ok(Sample { served: once, looping, round_trip: 0.0 })
    })?;
    let trip = Spread::of(trips).map_or(f64::NAN, |spread| spread.median);
    let samples = results.candidates.iter_mut().flat_map(|(_, samples)| samples).flatten();
    samples.for_each(|sample| sample.round_trip = trip);
    Ok(results)
}

/// Returns the time of a round trip at the pace of the lock, in milliseconds: a
/// lone thread sends a PING in place of the release and another in place of the
/// acquisition, and before them the server is idle for as long as a lock is held.
fn round_trip(echo: &mut Workers, server: &mut ServerUnderTest) -> Result<Option<f64>, Failure> {
    let looping = echo.again("none", 1, ECHO, server)?;
    Ok(looping.handoff.map(|[median, _]| median / 2.0))
}

impl Workers {
    fn open(candidate: &Candidate, url: &str, processes: usize, threads: usize) -> Result<Self, Failure> {
        let threads = u32::try_from(threads)?;
        let peers = (0..processes).map(|_| Peer::open(candidate, url, threads));
        let peers = peers.collect::<Result<_, _>>()?;
        let holder = (processes > 1).then(|| Peer::open(candidate, url, 1)).transpose()?;
        Ok(Self { peers, holder })
    }

    /// Reopens connections that were closed for being idle.
    fn warm(&mut self) -> Result<(), Failure> {
        self.holder.iter_mut().chain(&mut self.peers).try_for_each(Peer::warm)
    }

    fn holder(&mut self) -> &mut Peer {
        self.holder.as_mut().unwrap_or(&mut self.peers[0])
    }

    /// Each thread acquires the lock once, after a release. Returns the milliseconds from there until all have had it.
    fn once(&mut self, key: &str, threads: usize, phase: Duration) -> Result<f64, Failure> {
        self.warm()?;
        self.holder().acquire(key)?;
        let start = now() + nanos(NOTICE);
        let count = self.peers.len() as u64;
        let slot = nanos(ARRIVAL) / (count * threads as u64);
        for (n, peer) in self.peers.iter_mut().enumerate() {
            let (hold, start, step) = (HOLD.as_micros(), start + slot * n as u64, slot * count);
            peer.send(format_args!("once {key} {hold} {threads} {start} {step}"))?;
        }
        sleep_until(start + nanos(ARRIVAL + QUEUED + phase));
        let released = self.holder().release(key)?;
        let last = self.acquisitions()?.iter().map(|one| one.left).max().ok_or("there was no acquisition")?;
        Ok(moment::millis_between(as_f64(released), last))
    }

    /// Each thread acquires the lock again and again for a while.
    fn again(
        &mut self,
        key: &str,
        threads: usize,
        time: Duration,
        server: &mut ServerUnderTest,
    ) -> Result<Looping, Failure> {
        self.warm()?;
        let start = now() + nanos(NOTICE);
        for peer in &mut self.peers {
            let (hold, time) = (HOLD.as_micros(), time.as_millis());
            peer.send(format_args!("loop {key} {hold} {threads} {start} {time}"))?;
        }
        sleep_until(start);
        let before = server.commands()?;
        sleep_until(start + nanos(time));
        let commands = server.commands()? - before;
        Looping::of(&self.acquisitions()?, self.peers.len() * threads, time, commands)
    }

    /// Returns the acquisitions of all workers, in the order of entering.
    fn acquisitions(&mut self) -> Result<Vec<Acquisition>, Failure> {
        let mut all = Vec::new();
        for (n, peer) in self.peers.iter_mut().enumerate() {
            all.append(&mut peer.acquisitions(n)?.1);
        }
        all.sort_by_key(|acquisition| acquisition.entered);
        Ok(all)
    }
}

impl Looping {
    fn of(
        acquisitions: &[Acquisition],
        waiters: usize,
        time: Duration,
        commands: u64,
    ) -> Result<Self, Failure> {
        let mut counts = HashMap::<_, u64>::new();
        for acquisition in acquisitions {
            *counts.entry(acquisition.thread).or_default() += 1;
        }
        let all = as_f64(acquisitions.len() as u64);
        let share = |count: u64| as_f64(count) * as_f64(waiters as u64) / all;
        // A thread that never had the lock is not among the counts.
        let smallest = if counts.len() < waiters { 0 } else { counts.values().copied().min().unwrap_or(0) };
        let pairs = acquisitions.windows(2).map(|pair| (pair[0].left, pair[1].entered));
        let handoffs = Times::of(pairs.clone().map(|(left, entered)| entered.saturating_sub(left)))?;
        Ok(Self {
            acquisitions: all / time.as_secs_f64(),
            smallest: share(smallest),
            largest: share(counts.values().copied().max().unwrap_or(0)),
            commands: as_f64(commands) / all,
            handoff: handoffs.map(|times| [0.5, 0.99].map(|quantile| times.millis_at(quantile))),
            overlaps: pairs.filter(|(left, entered)| entered < left).count(),
        })
    }
}

type Figure = fn(&Sample) -> Option<f64>;

const SERVED: Figure = |sample| Some(sample.served);
const ACQUISITIONS: Figure = |sample| Some(sample.looping.acquisitions);
const SMALLEST: Figure = |sample| Some(sample.looping.smallest);
const LARGEST: Figure = |sample| Some(sample.looping.largest);
const COMMANDS: Figure = |sample| Some(sample.looping.commands);
const HANDOFF: Figure = |sample| Some(sample.looping.handoff?[0]);
const HANDOFF_P99: Figure = |sample| Some(sample.looping.handoff?[1]);
const HANDOFF_TRIPS: Figure = |sample| Some(sample.looping.handoff?[0] / sample.round_trip);

fn table(results: &Results<Sample>, shape: &str) -> Table {
    let mut table = Table::new(
        shape,
        &[
            "candidate",
            "once each: all served, ms",
            "as a ratio to ours",
            "again: acquisitions/s",
            "smallest share",
            "largest share",
            "commands each",
            "handoff, median ms",
            "p99 ms",
            "median in round trips",
        ],
    );
    for name in results.names() {
        let spread = |figure| results.spread(name, figure);
        table.row([
            name.to_owned(),
            cell(spread(SERVED)),
            plain(results.ratio(name, OURS, SERVED)),
            cell(spread(ACQUISITIONS)),
            plain(spread(SMALLEST)),
            plain(spread(LARGEST)),
            plain(spread(COMMANDS)),
            cell(spread(HANDOFF)),
            cell(spread(HANDOFF_P99)),
            plain(spread(HANDOFF_TRIPS)),
        ]);
    }
    table
}

fn panels(shapes: &[(String, Results<Sample>)], candidates: &[&Candidate]) -> Vec<Panel> {
    let panel = |title: &str, axis: &str, logarithmic, figure: Figure| {
        let of_all = |name| -> Vec<Option<Spread>> {
            shapes.iter().map(|(_, results)| results.spread(name, figure)).collect()
        };
        Panel {
            title: title.to_owned(),
            axis: axis.to_owned(),
            logarithmic,
            legend: "processes × threads",
            series: shapes.iter().map(|(shape, _)| shape.clone()).collect(),
            rows: candidates.iter().map(|one| (one.name, of_all(one.name))).collect(),
        }
    };
    vec![
        panel("Once each: until all are served", "milliseconds from the release", true, SERVED),
        panel("Again and again: acquisitions", "acquisitions a second", true, ACQUISITIONS),
        panel("Again and again: handoff, median", "milliseconds", true, HANDOFF),
        panel("Again and again: handoff, p99", "milliseconds", true, HANDOFF_P99),
        panel("Again and again: the smallest share", "of an equal share", false, SMALLEST),
        panel("Again and again: commands", "commands for each acquisition", true, COMMANDS),
    ]
}
