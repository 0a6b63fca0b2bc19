//! A class in Ruby and the same class in Rust: the same three locks with the same keys,
//! and both programs contending for one of them, live, around a number in a file. Fails
//! if a key differs, if two ever held the lock at once, or if an update got lost.
//!
//! `make demo-ruby`. The Ruby side is `compat/ruby/team.rb`, with the real gem if `REDIS_OBJECTS_LIB` names its `lib`.

mod report;
mod ruby;
mod team;
mod turn;

use std::error::Error;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;
use std::{env, fs, thread};

use clap::Parser;
use setnx_lock::Locker;

use ruby::Ruby;
use testkit::RedisServer;
use turn::{Language, Turn, micros_now};

type Failure = Box<dyn Error + Send + Sync>;

/// The team whose lock is contended for.
const TEAM: u32 = 7;

#[derive(Debug, Parser)]
#[command(name = "demo-ruby", about = "A class in Ruby and the same in Rust, contending for one lock")]
struct Options {
    /// How long to contend
    #[arg(long = "for", value_name = "TIME", default_value = "5s", value_parser = humantime::parse_duration)]
    length: Duration,
    /// Threads of the Rust process, 1 to 8; the Ruby process has one
    #[arg(long, value_name = "COUNT", default_value = "2", value_parser = clap::value_parser!(u32).range(1..=8))]
    threads: u32,
}

fn main() -> ExitCode {
    run(&Options::parse()).unwrap_or_else(|failure| {
        eprintln!("demo-ruby: {failure}");
        ExitCode::FAILURE
    })
}

fn run(options: &Options) -> Result<ExitCode, Failure> {
    let server = env::var("REDIS_URL").is_err().then(RedisServer::start).transpose()?;
    let url = server.as_ref().map_or_else(|| env::var("REDIS_URL").unwrap_or_default(), RedisServer::url);
    let locker = Locker::open(&url)?;
    let ((gem, ruby_keys), rust_keys) = (ruby::gem_and_keys(&url, TEAM)?, team::keys(TEAM)?);
    println!("a class in Ruby ({gem}), and the same in Rust (protocol Classic)");
    println!("{}", report::keys(&ruby_keys, &rust_keys));
    println!(
        "one thread of Ruby and {} of Rust use the first lock for {}; a bar is one hold, 10 ms a block",
        options.threads,
        humantime::format_duration(options.length)
    );

    let folder = tempfile::Builder::new().prefix("setnx-lock-ruby-").tempdir()?;
    let file = folder.path().join("trades");
    fs::write(&file, "0")?;
    let turns = contend(&locker, &url, &file, options)?;
    let counted: usize = fs::read_to_string(&file)?.trim().parse()?;
    println!("{}", report::table(&turns));
    for line in report::explanation(&turns, options.threads) {
        println!("{line}");
    }
    let trades = turns.iter().filter(|turn| turn.trade.is_some()).count();
    let overlaps = report::overlaps(&turns);
    println!(
        "under the lock, the number in the file was increased {trades} times and is {counted}: {} lost; overlaps: {overlaps}",
        trades.saturating_sub(counted)
    );
    let both = [Language::Ruby, Language::Rust].map(|language| turns.iter().any(|t| t.language == language));
    Ok(if ruby_keys == rust_keys && overlaps == 0 && trades == counted && both == [true; 2] {
        ExitCode::SUCCESS
    } else {
        eprintln!("demo-ruby: FAILED");
        ExitCode::FAILURE
    })
}

/// Lets both programs contend for some time, and prints each turn when it is over. Returns the turns in their order.
fn contend(locker: &Locker, url: &str, file: &Path, options: &Options) -> Result<Vec<Turn>, Failure> {
    let (sender, finished) = mpsc::channel();
    let over = AtomicBool::new(false);
    let ruby = Ruby::ready(url, TEAM, file)?;
    let began = micros_now();
    thread::scope(|scope| {
        let over = &over;
        let mut threads = Vec::new();
        for _ in 0..options.threads {
            let sender = sender.clone();
            threads.push(scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    sender.send(team::trade(locker, TEAM, file)?)?;
                    team::rest();
                }
                Ok::<(), Failure>(())
            }));
        }
        threads.push(scope.spawn(move || ruby.trade_until(over, &sender)));
        scope.spawn(move || {
            thread::sleep(options.length);
            over.store(true, Ordering::Relaxed);
        });
        let mut turns: Vec<Turn> = Vec::new();
        for turn in finished {
            println!("{}", report::line(&turn, began));
            turns.push(turn);
        }
        for thread in threads {
            thread.join().expect("the thread does not panic")?;
        }
        turns.sort_by_key(Turn::end_of_wait);
        Ok(turns)
    })
}
