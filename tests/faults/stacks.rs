//! How much stack the library needs: of the threads that call it, and of its own.

use std::hint::black_box;
use std::io::{BufRead as _, BufReader};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::{env, io, thread};

use setnx_lock::{Lock, LockOptions, Protocol};
use setnx_lock_testing::TestServer;

use crate::support::processes::{TASK, TaskOutcome};
use crate::support::scenario::opened;
use crate::support::{LONG, Outcome, millis, trials_of};

trials_of! {
    "stacks";
    a_call_needs_little,
    the_librarys_threads_have_their_own,
}

/// What docs/limits.md says that a call needs in a debug build, in KiB. With a part to spare: compilers differ.
const OF_A_CALL: usize = 128;

/// Calls the library on a thread with this much stack, in KiB, and lets its threads extend a lease and notice a
/// release.
pub(crate) fn as_worker(url: &str, kib: &str) -> TaskOutcome {
    let (url, kib): (String, usize) = (url.to_owned(), kib.parse()?);
    let calls = move || -> Result<(), setnx_lock::Error> {
        let locker = opened(&url)?;
        for protocol in [Protocol::Auto, Protocol::Classic, Protocol::Watched] {
            let options = LockOptions::expiring_after(millis(1500)).protocol(protocol).timeout(LONG);
            let held = Lock::new(&locker, "k", options.auto_extend(LONG).notify_waiters(true))?.lock()?;
            thread::sleep(millis(1000));
            held.verify()?;
            held.extend()?;
            held.fencing_token()?;
            held.release()?;
        }
        // What the program does at a loss needs some, too.
        let held = Lock::new(&locker, "k", LockOptions::expiring_after(millis(300)))?.lock()?;
        let (sender, needs) = mpsc::channel();
        #[expect(clippy::large_stack_arrays, reason = "it is to use that much")]
        held.on_loss(move |_| _ = sender.send(black_box([1_u8; OF_A_CALL * 1024]).len()));
        assert_eq!(needs.recv_timeout(LONG), Ok(OF_A_CALL * 1024));
        Ok(())
    };
    thread::Builder::new().stack_size(kib * 1024).spawn(calls)?.join().map_err(|_| "it panicked")??;
    println!("done");
    Ok(())
}

/// Runs the worker, with the standard library's default for stacks, in bytes.
fn ended(url: &str, kib: usize, default: Option<usize>) -> io::Result<(ExitStatus, bool)> {
    let mut command = Command::new(env::current_exe()?);
    command.env(TASK, format!("stack,{url},{kib}")).stdout(Stdio::piped()).stderr(Stdio::null());
    if let Some(default) = default {
        command.env("RUST_MIN_STACK", default.to_string());
    }
    let mut process = command.spawn()?;
    let lines = BufReader::new(process.stdout.take().expect("it is piped")).lines();
    let done = lines.map_while(Result::ok).any(|line| line == "done");
    Ok((process.wait()?, done))
}

fn a_call_needs_little() -> Outcome {
    let server = TestServer::start();
    let (status, done) = ended(&server.url(), OF_A_CALL, None)?;
    assert!(done, "{status}");
    Ok(())
}

/// Whatever a program has set for its threads.
fn the_librarys_threads_have_their_own() -> Outcome {
    let server = TestServer::start();
    let (status, done) = ended(&server.url(), OF_A_CALL, Some(16 * 1024))?;
    assert!(done, "{status}");
    Ok(())
}
