//! The command-line tool `setnx-lock`: runs commands under locks,
//! shows locks, and clears them. Uses the public library only.
//!
//! | file | what it does |
//! |---|---|
//! | `arguments` | the command line |
//! | `run` | runs a command under a lock |
//! | `tokens` | acquires locks that go from process to process |
//! | `status`, `list`, `watch` | show keys |
//! | `clear` | removes keys |
//! | `fence` | shows and raises the counter of fencing tokens |
//! | `doctor` | reports on a server |
//! | `key` | the gem's keys |
//! | `manual` | manual pages and shell completions |
//! | `keys` | what keys hold, in words and JSON |
//! | `server`, `failure`, `output` | the connection, errors and exit codes, what is said on the standard error |

mod arguments;
mod clear;
mod cluster;
mod doctor;
mod failure;
mod fence;
mod key;
mod keys;
mod list;
mod manual;
mod output;
mod raw;
mod run;
mod server;
mod status;
mod tokens;
mod watch;

use std::env;
use std::process::ExitCode;

use clap::Parser as _;
use clap::error::{ContextKind, ContextValue};
use log::LevelFilter;

use arguments::{Arguments, Command, ExitCodes, Guardian};
use failure::{Failure, USAGE};

fn main() -> ExitCode {
    let words: Vec<_> = env::args_os().skip(1).collect();
    if let Some(code) = run::start(&words) {
        return code;
    }
    if words.first().is_some_and(|word| word == run::GUARDIAN) {
        return Guardian::try_parse_from(words).map_or(USAGE.into(), |guardian| run::guardian(&guardian));
    }
    run::unblock_ending();
    let arguments = match Arguments::read(env::args_os()) {
        Ok(arguments) => arguments,
        Err(error) => {
            // A closed output is no reason to fail.
            let error = without_passwords(with_suggestion(error));
            let _ = error.print();
            return if error.use_stderr() { USAGE.into() } else { ExitCode::SUCCESS };
        }
    };
    let (mut codes, mut is_quiet) = (ExitCodes::default(), false);
    let acquiring = match &arguments.command {
        Command::Run(run) => Some((&run.acquisition, run.keys().first().cloned())),
        Command::Acquire(acquire) => Some((&acquire.acquisition, Some(acquire.key.clone()))),
        _ => None,
    };
    if let Some((acquisition, key)) = acquiring {
        (codes, is_quiet) = (acquisition.exit_codes(), acquisition.quiet);
        if acquisition.json {
            output::in_json(key.map(|key| acquisition.server.whole_key(&key)));
        }
        output::write_on_a_thread();
        output::log_from(match (acquisition.verbose, acquisition.quiet) {
            (true, _) => LevelFilter::Debug,
            (_, true) => LevelFilter::Off,
            _ => LevelFilter::Warn,
        });
    }
    let code = perform(&arguments.command).unwrap_or_else(|failure| failure.report(&codes, is_quiet));
    output::flush(None);
    code
}

/// The error with the option that was meant, where clap finds one that only looks similar.
fn with_suggestion(mut error: clap::Error) -> clap::Error {
    if error.get(ContextKind::InvalidArg) == Some(&ContextValue::String("--extend".into())) {
        error.insert(ContextKind::SuggestedArg, ContextValue::String("--auto-extend".into()));
    }
    error
}

/// The error without an address in it, which may contain a password: clap repeats what it does not expect.
fn without_passwords(error: clap::Error) -> clap::Error {
    let text = error.to_string();
    let is_repeated = |argument: &String| argument.contains("://") && text.contains(argument.as_str());
    if !env::args_os()
        .map(|argument| argument.to_string_lossy().into_owned())
        .any(|argument| is_repeated(&argument))
    {
        return error;
    }
    clap::Error::raw(
        error.kind(),
        "unexpected server address in the arguments; pass it with --url or REDIS_URL\n",
    )
}

fn perform(command: &Command) -> Result<ExitCode, Failure> {
    match command {
        Command::Run(run) => run::run(run),
        Command::Acquire(acquire) => tokens::acquire(acquire),
        Command::Extend(extend) => tokens::extend(extend),
        Command::Release(release) => tokens::release(release),
        Command::Status(status) => status::status(status),
        Command::List(list) => list::list(list),
        Command::Clear(clear) => clear::clear(clear),
        Command::Fence(fence) => fence::fence(fence),
        Command::Watch(watch) => watch::watch(watch),
        Command::Doctor(doctor) => doctor::doctor(doctor),
        Command::Key(key) => key::key(key),
        Command::Man(man) => manual::man(man),
        Command::Completions(completions) => manual::completions(completions),
    }
}
