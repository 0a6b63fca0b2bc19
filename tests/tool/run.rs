//! `setnx-lock run`: the exit codes, the signals, the terminal, losses, and what becomes of the command.

mod child;
mod codes;
mod failover;
mod killed;
mod lead;
mod left;
mod loss;
mod others;
mod output;
pub(crate) mod running;
mod scarce;
mod several;
mod signals;
mod terminal;
mod time;
mod tokens;
mod wishes;

use libtest_mimic::Trial;

pub(crate) fn trials() -> Vec<Trial> {
    let parts = [
        codes::trials(),
        child::trials(),
        output::trials(),
        signals::trials(),
        lead::trials(),
        left::trials(),
        loss::trials(),
        killed::trials(),
        failover::trials(),
        time::trials(),
        others::trials(),
        scarce::trials(),
        terminal::trials(),
        several::trials(),
        tokens::trials(),
        wishes::trials(),
    ];
    parts.into_iter().flatten().collect()
}
