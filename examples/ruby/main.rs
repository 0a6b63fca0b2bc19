//! A class of Ruby beside its twin in Rust: the same three locks, declared in both, the same keys; and both contending for one
//! of them, live, around a number in a file. Fails if a key differs, if both were ever inside at once, or if a trade got lost.
//!
//! `make demo-ruby`. The Ruby side is `compat/ruby/team.rb`, with the real gem if `REDIS_OBJECTS_LIB` names its `lib`.

mod ruby;
mod team;

#[allow(dead_code, unreachable_pub, reason = "shared with the tests")]
#[path = "../../tests/support/redis_server.rs"]
mod redis_server;

use std::error::Error;
use std::fmt::Write as _;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, SystemTime};
use std::{env, fs, thread};

use clap::Parser;
use comfy_table::{CellAlignment, Table, presets};
use setnx_lock::Locker;

use redis_server::RedisServer;
use ruby::Ruby;

type Failure = Box<dyn Error + Send + Sync>;

/// The team that is traded for.
const TEAM: u32 = 7;

#[derive(Debug, Parser)]
#[command(name = "twin", about = "A class of Ruby and its twin in Rust, contending for one lock")]
struct Options {
    /// How long to contend
    #[arg(long = "for", value_name = "TIME", default_value = "5s", value_parser = humantime::parse_duration)]
    length: Duration,
}

/// One trade, in microseconds since 1970.
#[derive(Clone, Copy, Debug)]
struct Trade {
    language: Language,
    asked: u64,
    got: u64,
    gave: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Language {
    Ruby,
    Rust,
}

fn main() -> ExitCode {
    run(&Options::parse()).unwrap_or_else(|failure| {
        eprintln!("twin: {failure}");
        ExitCode::FAILURE
    })
}

fn run(options: &Options) -> Result<ExitCode, Failure> {
    let server = env::var("REDIS_URL").is_err().then(RedisServer::start).transpose()?;
    let url = server.as_ref().map_or_else(|| env::var("REDIS_URL").unwrap_or_default(), RedisServer::url);
    let locker = Locker::open(&url)?;
    let same = compare_keys(&url)?;
    println!(
        "both trade under the first lock for {}; a bar is one turn, 10 ms a block",
        humantime::format_duration(options.length)
    );

    let folder = tempfile::Builder::new().prefix("setnx-lock-twin-").tempdir()?;
    let file = folder.path().join("trades");
    fs::write(&file, "0")?;
    let trades = contend(&locker, &url, &file, options.length)?;
    let counted: usize = fs::read_to_string(&file)?.trim().parse()?;
    let overlaps = overlaps(&trades);
    let lost = trades.len().saturating_sub(counted);
    println!("{}", table(&trades));
    println!(
        "trades {}, of which the number in the file, read and written back under the lock, has {counted}: lost {lost}, overlaps {overlaps}",
        trades.len()
    );
    let both = [Language::Ruby, Language::Rust].map(|language| trades.iter().any(|t| t.language == language));
    Ok(if same && overlaps == 0 && trades.len() == counted && both == [true; 2] {
        ExitCode::SUCCESS
    } else {
        eprintln!("twin: FAILED");
        ExitCode::FAILURE
    })
}

/// Shows the keys of both classes side by side; returns whether they are the same.
fn compare_keys(url: &str) -> Result<bool, Failure> {
    let ((gem, ruby), rust) = (ruby::gem_and_keys(url, TEAM)?, team::keys(TEAM)?);
    println!("a class of Ruby ({gem}) and its twin in Rust (protocol Classic)");
    let mut table = Table::new();
    table.load_preset(presets::UTF8_BORDERS_ONLY);
    table.set_header(["lock", "key in Ruby", "key in Rust", ""]);
    for ((name, ruby), rust) in ["trade_players", "reorder", "draft"].iter().zip(&ruby).zip(&rust) {
        table.add_row([*name, ruby, rust, if ruby == rust { "same" } else { "DIFFERS" }]);
    }
    println!("{table}");
    Ok(ruby == rust)
}

/// Lets both contend for some time, and tells of each trade when it is done.
fn contend(
    locker: &Locker,
    url: &str,
    file: &std::path::Path,
    length: Duration,
) -> Result<Vec<Trade>, Failure> {
    let (sender, done) = mpsc::channel();
    let over = AtomicBool::new(false);
    let ruby = Ruby::ready(url, TEAM, file)?;
    let began = micros_now();
    thread::scope(|scope| {
        let over = &over;
        let rust = {
            let sender = sender.clone();
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    sender.send(team::trade(locker, TEAM, file)?)?;
                    team::rest();
                }
                Ok::<(), Failure>(())
            })
        };
        let ruby = scope.spawn(move || ruby.trade_until(over, &sender));
        scope.spawn(move || {
            thread::sleep(length);
            over.store(true, Ordering::Relaxed);
        });
        let mut trades: Vec<Trade> = Vec::new();
        for trade in done {
            println!("{}", line(&trade, began));
            trades.push(trade);
        }
        rust.join().expect("the thread does not panic")?;
        ruby.join().expect("the thread does not panic")?;
        trades.sort_by_key(|trade| trade.got);
        Ok(trades)
    })
}

fn line(trade: &Trade, began: u64) -> String {
    let column = match trade.language {
        Language::Ruby => "ruby ▇",
        Language::Rust => "           rust ▇",
    };
    let seconds = Duration::from_micros(trade.got.saturating_sub(began)).as_secs_f64();
    let mut line = format!("{seconds:7.3} s  {column}");
    for _ in 0..(trade.gave - trade.got) / 10_000 {
        line.push('▇');
    }
    let _ = write!(line, "  waited {} ms", (trade.got - trade.asked) / 1000);
    line
}

/// How often one got the lock before the other gave it back.
fn overlaps(trades: &[Trade]) -> usize {
    trades.windows(2).filter(|pair| pair[1].got < pair[0].gave).count()
}

fn table(trades: &[Trade]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_BORDERS_ONLY);
    table.set_header(["language", "trades", "share", "wait, median", "wait, longest"]);
    for language in [Language::Ruby, Language::Rust] {
        let mut waits: Vec<u64> = trades
            .iter()
            .filter(|trade| trade.language == language)
            .map(|trade| trade.got - trade.asked)
            .collect();
        waits.sort_unstable();
        let millis = |wait: Option<&u64>| wait.map_or("-".into(), |wait| format!("{} ms", wait / 1000));
        table.add_row([
            format!("{language:?}"),
            waits.len().to_string(),
            format!("{} %", (waits.len() * 200 / trades.len().max(1)).div_ceil(2)),
            millis(waits.get(waits.len() / 2)),
            millis(waits.last()),
        ]);
    }
    for column in 1..5 {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// Microseconds since 1970, by the clock that both languages read.
fn micros_now() -> u64 {
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_1970.as_micros()).unwrap_or(u64::MAX)
}
