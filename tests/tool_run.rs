//! `setnx-lock run`: the exit codes, the signals, the terminal, losses, and what becomes of the command.

mod child;
mod codes;
mod failover;
mod killed;
mod loss;
mod others;
mod output;
mod refused;
mod running;
mod signals;
mod terminal;
mod time;
mod waiting;

use libtest_mimic::Trial;

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = codes::trials();
    for part in [
        refused::trials(),
        child::trials(),
        output::trials(),
        signals::trials(),
        waiting::trials(),
        loss::trials(),
        killed::trials(),
        failover::trials(),
        time::trials(),
        others::trials(),
        terminal::trials(),
    ] {
        trials.extend(part);
    }
    trials
}
