//! How fleets of up to some thousand workers load a server that has one lock for all: the gem's algorithm, and ours.
//! Draws docs/images/scale-*.svg.

mod chart;

use std::io;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use setnx_lock::{Lock, LockOptions, Locker, Protocol};
use setnx_lock_testing::ServerVersion;
use world::network::{self, Faults, ServerId};
use world::process::{Clocks, Process};
use world::run::{self, Settings};
use world::thread;

use crate::calls::up_to;
use crate::laws::broken;
use crate::others::{self, Others};
use crate::servers::Servers;
use chart::Line;
use plotters::chart::SeriesLabelPosition::{LowerLeft, UpperLeft};

/// How many workers: each is a thread, and machines that run this let a program have some 5,000.
const WORKERS: [u64; 7] = [10, 30, 100, 300, 1000, 2000, 4000];

/// How many of them are threads of one process, where threads can share anything.
const THREADS: u64 = 50;

/// How long each has the lock.
const WORK: Duration = Duration::from_millis(1);

/// How long a server needs for a command, and how long a message takes: what was measured of one in the same room.
const PER_COMMAND: Duration = Duration::from_micros(10);
const LATENCY: (u64, u64) = (80, 160);

/// For how long the lock is held while the waiting is counted.
const HELD: Duration = Duration::from_secs(10);

/// What is measured: whose lock it is.
const ALGORITHMS: [(&str, Option<Protocol>); 4] = [
    ("gem", None),
    ("Classic", Some(Protocol::Classic)),
    ("Watched", Some(Protocol::Watched)),
    ("Auto", Some(Protocol::Auto)),
];

/// What came of one.
#[derive(Clone, Copy, Debug, Default)]
struct Measured {
    /// Commands a second while all wait.
    waiting: f64,
    /// Until each has had it once, and until half of them have, in seconds.
    all_served: f64,
    half_served: f64,
    /// Commands for each acquisition.
    commands: f64,
    /// How many percent of the pairs of workers were served in the order in which they came: 50 by chance.
    in_order: f64,
}

/// Measures all, prints a table, and draws the pictures.
pub(crate) fn measure_all() -> io::Result<ExitCode> {
    let mut lines: [Vec<Line>; 4] = Default::default();
    println!(
        "| workers | | commands a second while all wait | half of them served in | all served in | commands an acquisition | in order |"
    );
    println!("|--:|---|--:|--:|--:|--:|--:|");
    for (name, _) in ALGORITHMS {
        let mut points: [Vec<(f64, f64)>; 4] = Default::default();
        for workers in WORKERS {
            let one = format!("{name},{workers}");
            let ran = Command::new(std::env::current_exe()?).args(["--scale-of", &one]).output()?;
            let text = String::from_utf8_lossy(&ran.stdout);
            let numbers: Vec<f64> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
            let [waiting, half, all, commands, in_order] = numbers.as_slice() else {
                return Err(io::Error::other(format!("{one}: {text}")));
            };
            println!(
                "| {workers} | {name} | {waiting:.0} | {half:.2} s | {all:.2} s | {commands:.1} | {in_order:.0} % |"
            );
            #[expect(clippy::cast_precision_loss, reason = "few workers")]
            let at = workers as f64;
            for (points, value) in points.iter_mut().zip([waiting, all, commands, in_order]) {
                points.push((at, *value));
            }
        }
        for (lines, points) in lines.iter_mut().zip(points) {
            lines.push(Line { name, points });
        }
    }
    let images = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/images");
    let [waiting, served, commands, in_order] = lines;
    chart::draw(&images.join("scale-waiting.svg"), "commands a second while all wait", &waiting, UpperLeft)?;
    chart::draw(
        &images.join("scale-served.svg"),
        "seconds until each has had the lock once",
        &served,
        UpperLeft,
    )?;
    chart::draw(&images.join("scale-commands.svg"), "commands for each acquisition", &commands, UpperLeft)?;
    let title = "percent of pairs of workers that are served in the order of arrival";
    chart::draw(&images.join("scale-order.svg"), title, &in_order, LowerLeft)?;
    Ok(ExitCode::SUCCESS)
}

/// Measures one: `gem,1000`.
pub(crate) fn measure(one: &str) -> String {
    let given = one.split_once(',').and_then(|(name, workers)| {
        Some((ALGORITHMS.iter().find(|(known, _)| *known == name)?.1, workers.parse().ok()?))
    });
    let Some((protocol, workers)) = given else { broken(&format!("nothing is called {one}")) };
    let measured = Arc::new(Mutex::new(Measured::default()));
    let copy = Arc::clone(&measured);
    let settings = Settings { seed: 4, at_most: Duration::from_secs(36_000), printed_from: None };
    run::run(settings, move || {
        let result = herd(protocol, workers);
        *copy.lock().unwrap_or_else(PoisonError::into_inner) = result;
    });
    let Measured { waiting, all_served, half_served, commands, in_order } =
        *measured.lock().unwrap_or_else(PoisonError::into_inner);
    format!("{waiting} {half_served} {all_served} {commands} {in_order}")
}

/// When each worker came and when it was served, sorted by the second.
type Times = Arc<Mutex<Vec<(Duration, Duration)>>>;

fn had_it(times: &Times, came: Duration) {
    times.lock().unwrap_or_else(PoisonError::into_inner).push((came, run::now()));
}

/// They do not all come at the same moment.
fn comes() -> Duration {
    thread::sleep(up_to(Duration::from_secs(2)));
    run::now()
}

/// Returns how many percent of the pairs of workers were served in the order in which they came.
#[expect(clippy::cast_precision_loss, reason = "few workers")]
fn in_order(times: &[(Duration, Duration)]) -> f64 {
    let later = |(at, (came, _)): (usize, &(Duration, Duration))| {
        times[at + 1..].iter().filter(|(other, _)| came < other).count()
    };
    let pairs = times.len() * (times.len() - 1) / 2;
    100.0 * times.iter().enumerate().map(later).sum::<usize>() as f64 / pairs as f64
}

/// All workers want a lock that is held, and then each in turn has it for a moment.
#[expect(clippy::cast_precision_loss, reason = "they are small")]
fn herd(protocol: Option<Protocol>, workers: u64) -> Measured {
    let server = ServerId::start("server", ServerVersion::V7, &[]);
    network::set_faults(Faults { latency: LATENCY, ..Faults::NONE });
    server.set_speed(PER_COMMAND);
    let until = (run::wall_clock() + HELD + Duration::from_secs(2)).as_secs_f64();
    let _held = server.look(&["SET", "k", &format!("{until:.6}0123456789")]);
    let times = Times::default();
    match protocol {
        None => (0..workers).for_each(|_| start_gem(server, &times)),
        Some(protocol) => {
            for _ in 0..workers.div_ceil(THREADS) {
                start_process(server, protocol, THREADS.min(workers), &times);
            }
        }
    }
    thread::sleep(HELD / 2);
    let before = network::commands();
    thread::sleep(HELD / 2);
    let waiting = (network::commands() - before) as f64 / (HELD / 2).as_secs_f64();
    let before = network::commands();
    let freed = run::now();
    let _freed = server.look(&["DEL", "k"]);
    loop {
        thread::sleep(Duration::from_millis(10));
        let times = times.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if times.len() as u64 >= workers {
            let after = |at: usize| times[at].1.saturating_sub(freed).as_secs_f64();
            let commands = (network::commands() - before) as f64 / workers as f64;
            let (half_served, all_served) = (after(times.len() / 2), after(times.len() - 1));
            let in_order = in_order(&times);
            return Measured { waiting, all_served, half_served, commands, in_order };
        }
    }
}

/// A worker with the gem.
fn start_gem(server: ServerId, times: &Times) {
    let times = Arc::clone(times);
    Process::start("gem", Clocks::default(), move || {
        let came = comes();
        others::have_once(&Servers::one(server), Others::OldGems, "k", 30 * HELD, WORK);
        had_it(&times, came);
    });
}

/// A process of workers with this library.
fn start_process(server: ServerId, protocol: Protocol, threads: u64, times: &Times) {
    let times = Arc::clone(times);
    Process::start("process", Clocks::default(), move || {
        let locker = Locker::open(&server.url()).unwrap_or_else(|error| broken(&error.to_string()));
        let options = LockOptions::expiring_after(30 * HELD).protocol(protocol).wait_forever();
        let work = move |locker: &Locker| {
            let came = comes();
            Lock::new(locker, "k", options)?.with(|_| thread::sleep(WORK)).map(|()| came)
        };
        let all: Vec<_> = (0..threads)
            .map(|_| {
                let (locker, times) = (locker.clone(), Arc::clone(&times));
                thread::spawn(move || {
                    let came = work(&locker).unwrap_or_else(|error| broken(&error.to_string()));
                    had_it(&times, came);
                })
            })
            .collect();
        for thread in all {
            let _ended = thread.join();
        }
    });
}
