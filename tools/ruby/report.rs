//! What is printed: the keys, a line for each turn, the table of shares, and why they are as they are.

use std::time::Duration;

use comfy_table::{CellAlignment, Table, presets};

use crate::turn::{Language, Trade, Turn};

/// The keys of both classes side by side.
pub(crate) fn keys(ruby: &[String], rust: &[String]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_BORDERS_ONLY);
    table.set_header(["lock", "key in Ruby", "key in Rust", ""]);
    for ((name, ruby), rust) in ["trade_players", "reorder", "draft"].iter().zip(ruby).zip(rust) {
        table.add_row([*name, ruby, rust, if ruby == rust { "same" } else { "DIFFERS" }]);
    }
    table
}

/// A turn as a bar in its language's column.
pub(crate) fn line(turn: &Turn, began: u64) -> String {
    let column = match turn.language {
        Language::Ruby => "ruby ",
        Language::Rust => "           rust ",
    };
    let seconds = Duration::from_micros(turn.end_of_wait().saturating_sub(began)).as_secs_f64();
    match turn.trade {
        Some(Trade { acquired, released }) => {
            let blocks = 1 + (released - acquired) / 10_000;
            let bar = "▇".repeat(usize::try_from(blocks).unwrap_or(usize::MAX));
            format!("{seconds:7.3} s  {column}{bar}  waited {} ms", (acquired - turn.asked) / 1000)
        }
        None => format!("{seconds:7.3} s  {column}timeout"),
    }
}

/// The shares of both languages.
pub(crate) fn table(turns: &[Turn]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_BORDERS_ONLY);
    table.set_header(["language", "trades", "share", "timeouts", "wait, median", "wait, longest"]);
    let all = trades(turns).len();
    for language in [Language::Ruby, Language::Rust] {
        let own = || turns.iter().filter(|turn| turn.language == language);
        let mut waits: Vec<u64> =
            own().filter_map(|turn| turn.trade.map(|trade| trade.acquired - turn.asked)).collect();
        waits.sort_unstable();
        let millis = |wait: Option<&u64>| wait.map_or("-".into(), |wait| format!("{} ms", wait / 1000));
        table.add_row([
            format!("{language:?}"),
            waits.len().to_string(),
            format!("{} %", (waits.len() * 200 / all.max(1)).div_ceil(2)),
            (own().count() - waits.len()).to_string(),
            millis(waits.get(waits.len() / 2)),
            millis(waits.last()),
        ]);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// Why the shares are as they are: how each side waits, with the figures of this run.
pub(crate) fn explanation(turns: &[Turn], rust_threads: u32) -> Vec<String> {
    let (to_ruby, to_rust) = (followers(turns, Language::Ruby), followers(turns, Language::Rust));
    let releases = to_ruby.len() + to_rust.len();
    let next = |followers: &[u64]| format!("{} of {releases} times", followers.len());
    let median = to_rust.get(to_rust.len() / 2).copied().unwrap_or_default();
    let median = Duration::from_micros(median).as_secs_f64() * 1000.0;
    let (ruby, rust) = (next(&to_ruby), next(&to_rust));
    let mut lines = vec![
        "why these shares:".to_owned(),
        "  Ruby: a waiting gem asks every 100 ms, and no release wakes it.".to_owned(),
    ];
    lines.extend(if rust_threads == 1 {
        [
            "  Rust: one thread asks every 100 ms as well, and no release by a gem wakes it.".to_owned(),
            format!("  After a release by Rust, Ruby was next {ruby}, and Rust again {rust}."),
            "  So the side that released, which asks again within 50 ms, gets the key several times in a row. The shares are similar."
                .to_owned(),
        ]
    } else {
        [
            "  Rust: the threads of a process queue, and a release wakes the next one at once.".to_owned(),
            format!(
                "  After a release by Rust, Ruby was next {ruby}, and a Rust thread {rust}, after {median:.1} ms (median)."
            ),
            "  So the Rust threads pass the key on, and Ruby gets it when it asks while none of them waits. Try --threads 1 and 8."
                .to_owned(),
        ]
    });
    lines
}

/// The times in microseconds, in order of length, from a release
/// by Rust until this language was next to acquire the lock.
fn followers(turns: &[Turn], next: Language) -> Vec<u64> {
    let trades = trades(turns);
    let pairs = trades.windows(2).filter(|pair| pair[0].0 == Language::Rust && pair[1].0 == next);
    let mut gaps: Vec<u64> =
        pairs.map(|pair| pair[1].1.acquired.saturating_sub(pair[0].1.released)).collect();
    gaps.sort_unstable();
    gaps
}

/// How often the lock was acquired before its last holder released it.
pub(crate) fn overlaps(turns: &[Turn]) -> usize {
    trades(turns).windows(2).filter(|pair| pair[1].1.acquired < pair[0].1.released).count()
}

fn trades(turns: &[Turn]) -> Vec<(Language, Trade)> {
    turns.iter().filter_map(|turn| Some((turn.language, turn.trade?))).collect()
}
