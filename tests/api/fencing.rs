//! Fencing tokens in use: a storage refuses the write of a process that was stopped for longer than its lease.

use std::io;
use std::time::Duration;

use libtest_mimic::Trial;
use rustix::process::Signal;
use setnx_lock::{Lock, LockOptions};
use setnx_lock_testing::TestServer;

use crate::faults::keeping::Holder;
use crate::support::processes::{TaskOutcome, protocol_named};
use crate::support::scenario::opened;
use crate::support::target::PROTOCOLS;
use crate::support::{AnyServer, LONG, Outcome, expiring, tests};

pub(crate) fn trials() -> Vec<Trial> {
    crate::support::trials("fencing", tests![a_storage_refuses_the_write_of_a_process_that_was_stopped])
}

/// Remembers the greatest token that it has seen, and refuses writes with a smaller one.
#[derive(Debug, Default)]
struct Storage {
    greatest: u64,
    written: Vec<String>,
}

impl Storage {
    fn write(&mut self, token: u64, text: &str) -> bool {
        let accepted = token >= self.greatest;
        if accepted {
            self.greatest = token;
            self.written.push(text.to_owned());
        }
        accepted
    }
}

/// Acquires a lock, prints its token, and for each line prints a write with that token, as a program does that does not look whether its
/// lease has passed.
pub(crate) fn as_worker(url: &str, key: &str, protocol: &str) -> TaskOutcome {
    let options = LockOptions::expiring_after(Duration::from_millis(300)).timeout(LONG);
    let lock = Lock::new(&opened(url)?, key, options.protocol(protocol_named(protocol)?))?;
    // On a busy machine a lease may pass before its token is there.
    let (held, token) = loop {
        let held = lock.lock()?;
        if let Ok(token) = held.fencing_token() {
            break (held, token);
        }
    };
    println!("{token}");
    for line in io::stdin().lines() {
        println!("{token} {}", line?);
    }
    drop(held);
    Ok(())
}

fn a_storage_refuses_the_write_of_a_process_that_was_stopped() -> Outcome {
    for protocol in PROTOCOLS {
        let (server, mut storage) = (TestServer::start(), Storage::default());
        let name = format!("{protocol:?}").to_lowercase();
        let mut stopped = Holder::performing(&["fenced", &server.url(), "k", &name])?;
        let first: u64 = stopped.line()?.parse()?;
        stopped.say("before")?;
        let mut write = |line: &str| -> Result<bool, Box<dyn std::error::Error>> {
            let (token, text) = line.split_once(' ').ok_or("a token and a text")?;
            Ok(storage.write(token.parse()?, text))
        };
        assert!(write(&stopped.line()?)?);
        stopped.signal(Signal::STOP)?;
        let lock = Lock::new(&opened(&server.url())?, "k", expiring().protocol(protocol))?;
        let held = lock.lock()?;
        let second = held.fencing_token()?;
        assert!(second > first);
        assert!(write(&format!("{second} by the next holder"))?);
        stopped.signal(Signal::CONT)?;
        stopped.say("too late")?;
        assert!(!write(&stopped.line()?)?, "its token is smaller");
        assert!(stopped.ends_well()?);
        held.release()?;
        assert_eq!(storage.written, ["before", "by the next holder"]);
    }
    Ok(())
}
