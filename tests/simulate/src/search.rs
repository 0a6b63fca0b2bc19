//! Runs seed after seed, each in a process of its own, and adds up what they were.

use std::fmt;
use std::io::{self, Write as _};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use crate::{Arguments, shorten};

/// How long a run may take by the clock of this machine. One that takes longer spins.
const LONG: Duration = Duration::from_secs(300);
/// How many lines of the trace of a seed that fails are printed.
const SHOWN: usize = 60;
const PROGRESS_EVERY: Duration = Duration::from_secs(5);

/// What a run was, as its process prints it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Account {
    pub(crate) trace: u64,
    pub(crate) lines: u64,
    pub(crate) switches: u64,
    pub(crate) millis: u64,
    pub(crate) clients: u64,
    pub(crate) commands: u64,
    pub(crate) faults: u64,
    pub(crate) holds: u64,
}

impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { trace, lines, switches, millis, clients, commands, faults, holds } = self;
        write!(f, "ran {trace:016x} {lines} {switches} {millis} {clients} {commands} {faults} {holds}")
    }
}

impl Account {
    fn read(text: &str) -> Option<Self> {
        let mut words = text.lines().last()?.strip_prefix("ran ")?.split(' ');
        let trace = u64::from_str_radix(words.next()?, 16).ok()?;
        let mut next = || words.next()?.parse().ok();
        let (lines, switches, millis) = (next()?, next()?, next()?);
        Some(Self {
            trace,
            lines,
            switches,
            millis,
            clients: next()?,
            commands: next()?,
            faults: next()?,
            holds: next()?,
        })
    }

    fn add(&mut self, other: &Self) {
        self.switches += other.switches;
        self.millis += other.millis;
        self.clients += other.clients;
        self.commands += other.commands;
        self.faults += other.faults;
        self.holds += other.holds;
    }
}

/// A run in progress.
struct Running {
    seed: u64,
    child: Child,
    processor: usize,
    began: Instant,
}

/// Searches as the arguments say. Fails at the first seed that breaks a law.
pub(crate) fn search(arguments: &Arguments) -> io::Result<ExitCode> {
    let began = Instant::now();
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    let (mut running, mut sum, mut done) = (Vec::<Running>::new(), Account::default(), 0_u64);
    let (mut next, mut shown) = (arguments.seed, began);
    let last = arguments.seeds.map_or(u64::MAX, |count| arguments.seed.saturating_add(count));
    loop {
        while running.len() < workers && next < last && began.elapsed() < arguments.time {
            let is_free = |processor: &usize| running.iter().all(|run| run.processor != *processor);
            let processor = (0..workers).find(is_free).unwrap_or_default();
            running.push(start(arguments, next, processor)?);
            next += 1;
        }
        if running.is_empty() {
            break;
        }
        let mut at = 0;
        while at < running.len() {
            let Running { child, began, .. } = &mut running[at];
            let is_stuck = began.elapsed() > LONG;
            if is_stuck {
                child.kill()?;
            }
            if child.try_wait()?.is_none() && !is_stuck {
                at += 1;
                continue;
            }
            let Running { seed, child, .. } = running.swap_remove(at);
            let output = child.wait_with_output()?;
            let text = String::from_utf8_lossy(&output.stdout);
            match Account::read(&text).filter(|_| output.status.success()) {
                Some(account) => {
                    sum.add(&account);
                    done += 1;
                }
                None => {
                    stop(&mut running);
                    let errors = String::from_utf8_lossy(&output.stderr);
                    println!("seed {seed} failed ({}):\n{text}{errors}", output.status);
                    if !is_stuck {
                        explain(arguments, seed, &text)?;
                    }
                    return Ok(ExitCode::FAILURE);
                }
            }
        }
        if shown.elapsed() > PROGRESS_EVERY {
            shown = Instant::now();
            println!("{}", summary(done, &sum, began));
            io::stdout().flush()?;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    println!("no law was broken: {}", summary(done, &sum, began));
    Ok(ExitCode::SUCCESS)
}

fn summary(done: u64, sum: &Account, began: Instant) -> String {
    let hours = Duration::from_millis(sum.millis).as_secs_f64() / 3600.0;
    format!(
        "{done} seeds, {hours:.2} h of fleets, {} clients, {} holds, {} commands, {} faults, in {:.0?}",
        sum.clients,
        sum.holds,
        sum.commands,
        sum.faults,
        began.elapsed()
    )
}

/// Prints the shortest run that breaks the law as this seed does.
fn explain(arguments: &Arguments, seed: u64, text: &str) -> io::Result<()> {
    let shortened = if arguments.whole { None } else { shorten::shorten(arguments, seed, text)? };
    match shortened {
        Some(shortest) => {
            println!("cut down to {}", as_given(&shortest.arguments, shortest.seed));
            print_trace(&shortest.arguments, shortest.seed)
        }
        None => print_trace(arguments, seed),
    }
}

/// Runs a seed again, and prints what happened last: when, who, what.
fn print_trace(arguments: &Arguments, seed: u64) -> io::Result<()> {
    let given = as_given(arguments, seed);
    let mut command = Command::new(std::env::current_exe()?);
    let traced = command.arg("--trace").args(given.split(' ')).stdin(Stdio::null()).output()?;
    let text = String::from_utf8_lossy(&traced.stdout);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(SHOWN)..].iter().for_each(|line| println!("{line}"));
    println!("all of it: make simulate ARGS=\"{given} --trace\"");
    Ok(())
}

/// What brings the same run again.
pub(crate) fn as_given(arguments: &Arguments, seed: u64) -> String {
    let numbers = [
        ("--seed", Some(seed)),
        ("--clients", arguments.clients),
        ("--processes", arguments.processes),
        ("--threads", arguments.threads),
    ];
    let given = numbers.into_iter().filter_map(|(name, number)| Some(format!("{name} {}", number?)));
    let length = arguments.length.map(|length| format!("--length {}ms", length.as_millis()));
    let scene = arguments.scene.iter().map(|name| format!("--scene {name}"));
    let without =
        (!arguments.without.is_empty()).then(|| format!("--without {}", arguments.without.join(",")));
    given.chain(length).chain(scene).chain(without).collect::<Vec<_>>().join(" ")
}

/// Starts a run on one processor: its threads take turns.
fn start(arguments: &Arguments, seed: u64, processor: usize) -> io::Result<Running> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("--one").args(as_given(arguments, seed).split(' '));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    on_processor(processor);
    let child = command.spawn()?;
    Ok(Running { seed, child, processor, began: Instant::now() })
}

/// Has what this program starts next run on one processor: the threads of a run take turns, and are woken sooner there.
#[cfg(target_os = "linux")]
fn on_processor(processor: usize) {
    use rustix::thread::{CpuSet, sched_setaffinity};

    let mut one = CpuSet::new();
    one.set(processor);
    // It is only quicker.
    let _may_be_forbidden = sched_setaffinity(None, &one);
}

#[cfg(not(target_os = "linux"))]
fn on_processor(_: usize) {}

fn stop(running: &mut Vec<Running>) {
    for mut run in running.drain(..) {
        let _may_have_ended = run.child.kill();
        let _status = run.child.wait();
    }
}
