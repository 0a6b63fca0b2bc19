//! Acquire and release, uncontended, against a raw loop of SETNX and DEL through the same crate.
//!
//! Both run on one private server, in turns of a few milliseconds, so that whatever else the machine is doing meets
//! both; what counts is the median of the ratios of neighbouring turns. The commands of a pair are counted by the server.

#[allow(unreachable_pub, dead_code, reason = "shared with the tests, which use other parts of it")]
#[path = "../tests/support/redis_server.rs"]
mod redis_server;

use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use comfy_table::{CellAlignment, Table, presets};
use indicatif::{ProgressBar, ProgressStyle};
use setnx_lock::{Lock, LockOptions, Locker};

use redis_server::RedisServer;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Pairs of acquire and release per second, against raw SETNX and DEL.
#[derive(Debug, Parser)]
struct Arguments {
    /// How many turns each side gets
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rounds: u32,
    /// How long a turn lasts
    #[arg(long, default_value = "20ms", value_parser = humantime::parse_duration)]
    turn: Duration,
    /// How many threads, each on a key of its own
    #[arg(long, value_delimiter = ',', default_value = "1,2,8", value_parser = clap::value_parser!(u32).range(1..=256))]
    threads: Vec<u32>,
    /// Given by `cargo bench`
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> Outcome<()> {
    let arguments = Arguments::parse();
    if !arguments.bench {
        println!("run me with `make bench` or `cargo bench`"); // and not as one of the tests
        return Ok(());
    }
    let server = RedisServer::start()?;
    let mut table = Table::new();
    table.load_preset(presets::ASCII_MARKDOWN);
    table.set_header([
        "threads",
        "raw pairs/s",
        "lock pairs/s",
        "ratio, median",
        "min",
        "max",
        "commands a pair",
    ]);
    for &threads in &arguments.threads {
        let result = compare(&server, threads, &arguments)?;
        table.add_row([
            threads.to_string(),
            format!("{:.0}", result.raw),
            format!("{:.0}", result.lock),
            format!("{:.3}", result.ratio.median),
            format!("{:.3}", result.ratio.min),
            format!("{:.3}", result.ratio.max),
            format!("{:.2}", result.commands),
        ]);
    }
    for column in table.column_iter_mut() {
        column.set_cell_alignment(CellAlignment::Right);
    }
    println!("{table}");
    println!("{} turns of {:?} for each side, interleaved; medians", arguments.rounds, arguments.turn);
    Ok(())
}

struct Comparison {
    raw: f64,
    lock: f64,
    ratio: Spread,
    commands: f64,
}

struct Spread {
    median: f64,
    min: f64,
    max: f64,
}

fn spread(mut values: Vec<f64>) -> Spread {
    values.sort_by(f64::total_cmp);
    Spread { median: values[values.len() / 2], min: values[0], max: values[values.len() - 1] }
}

fn compare(server: &RedisServer, threads: u32, arguments: &Arguments) -> Outcome<Comparison> {
    let progress = ProgressBar::new(arguments.rounds.into());
    progress.set_style(ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len}")?);
    progress.set_message(format!("{threads} threads"));
    let connections = (0..threads).map(|_| redis::Client::open(server.url())?.get_connection());
    let mut connections: Vec<redis::Connection> = connections.collect::<Result<_, _>>()?;
    let locker = Locker::at(&server.url())?.pool_size(threads).open()?;
    let options = LockOptions::expiring_after(Duration::from_secs(60));
    let locks = (0..threads).map(|n| Lock::new(&locker, key(n), options));
    let mut locks: Vec<Lock> = locks.collect::<Result<_, _>>()?;

    let (mut raw, mut lock, mut ratios, mut commands) = (vec![], vec![], vec![], vec![]);
    for round in 0..=arguments.rounds {
        let mut one_raw = || turn(&mut connections, arguments.turn, raw_pair);
        let mut one_lock = || -> Outcome<(f64, f64)> {
            let before = processed(server)?;
            let (pairs, rate) = turn(&mut locks, arguments.turn, lock_pair)?;
            // INFO itself counts as one.
            Ok((rate, (processed(server)? - before - 1.0) / pairs))
        };
        // Who begins changes with each round.
        let ((_, raw_rate), (lock_rate, per_pair)) = if round % 2 == 0 {
            let raw = one_raw()?;
            (raw, one_lock()?)
        } else {
            let lock = one_lock()?;
            (one_raw()?, lock)
        };
        if round == 0 {
            continue; // warming up
        }
        raw.push(raw_rate);
        lock.push(lock_rate);
        ratios.push(lock_rate / raw_rate);
        commands.push(per_pair);
        progress.inc(1);
    }
    progress.finish_and_clear();
    Ok(Comparison {
        raw: spread(raw).median,
        lock: spread(lock).median,
        ratio: spread(ratios),
        commands: spread(commands).median,
    })
}

fn key(thread: u32) -> String {
    format!("bench:{thread}:lock")
}

/// What a lock cannot do without: the same two commands, with a value of the same length.
fn raw_pair(thread: usize, connection: &mut redis::Connection) -> Outcome<()> {
    let key = format!("bench:{thread}:raw");
    let _: i64 = redis::cmd("SETNX").arg(&key).arg("1795157376.4923038374650192").query(connection)?;
    let _: i64 = redis::cmd("DEL").arg(&key).query(connection)?;
    Ok(())
}

fn lock_pair(_thread: usize, lock: &mut Lock) -> Outcome<()> {
    drop(lock.lock()?);
    Ok(())
}

/// Lets each worker do pairs on a thread of its own for a while; returns how many there were, and how many a second.
fn turn<W: Send>(
    workers: &mut [W],
    time: Duration,
    pair: impl Fn(usize, &mut W) -> Outcome<()> + Sync,
) -> Outcome<(f64, f64)> {
    let over = AtomicBool::new(false);
    let began = Instant::now();
    let pairs = thread::scope(|scope| -> Outcome<u32> {
        let threads: Vec<_> = workers
            .iter_mut()
            .enumerate()
            .map(|(n, worker)| {
                let (over, pair) = (&over, &pair);
                scope.spawn(move || -> Outcome<u32> {
                    let mut pairs = 0;
                    while !over.load(Ordering::Relaxed) {
                        pair(n, worker)?;
                        pairs += 1;
                    }
                    Ok(pairs)
                })
            })
            .collect();
        thread::sleep(time);
        over.store(true, Ordering::Relaxed);
        threads.into_iter().map(|thread| thread.join().expect("no worker panics")).sum()
    })?;
    let pairs = f64::from(pairs);
    Ok((pairs, pairs / began.elapsed().as_secs_f64()))
}

/// How many commands the server has carried out.
fn processed(server: &RedisServer) -> Outcome<f64> {
    let mut connection = redis::Client::open(
        redis::IntoConnectionInfo::into_connection_info(server.url())?
            .set_redis_settings(redis::RedisConnectionInfo::default().set_skip_set_lib_name()),
    )?
    .get_connection()?;
    let info: String = redis::cmd("INFO").arg("stats").query(&mut connection)?;
    let line = info.lines().find_map(|line| line.strip_prefix("total_commands_processed:"));
    Ok(line.ok_or("INFO says nothing of commands")?.trim().parse()?)
}
