//! The program that emulates an old version ends with all that it has started.

#[path = "../../../tools/proxy/serve.rs"]
mod serve;

use std::io::{BufRead as _, BufReader};
use std::process::Child;
use std::thread;
use std::time::Instant;

use libtest_mimic::Trial;
use rustix::process::{Pid, Signal, kill_process, test_kill_process};

use super::field;
use crate::servers::Emulated;
use crate::support::processes::{TaskOutcome, worker};
use crate::support::raw::Wire;
use crate::support::{LONG, Outcome, RedisServer, millis, tests};

pub(crate) fn trials() -> Vec<Trial> {
    crate::support::trials("proxy_versions", tests![the_program_ends_with_its_server])
}

/// The program `proxy` in a process of its own.
pub(crate) fn as_worker() -> TaskOutcome {
    serve::serve(Emulated::V2_4, None)
}

fn the_program_ends_with_its_server() -> Outcome {
    ends(|program| {
        drop(program.stdin.take());
        Ok(())
    })?;
    ends(|program| kill_process(Pid::from_child(program), Signal::TERM))
}

/// Starts the program, ends it, and asserts that its server has ended as well.
fn ends(end: impl FnOnce(&mut Child) -> rustix::io::Result<()>) -> Outcome {
    let mut program = worker(&["proxy"])?;
    let mut line = String::new();
    BufReader::new(program.stdout.take().expect("it is piped")).read_line(&mut line)?;
    let url = line.split(' ').find(|word| word.starts_with("redis://")).ok_or(format!("printed: {line}"))?;
    let info = Wire::to(url).ask("INFO");
    let server =
        field(&info, "process_id").and_then(|id| Pid::from_raw(id.parse().ok()?)).ok_or(info.clone())?;
    assert_eq!(test_kill_process(server), Ok(()), "it runs");

    end(&mut program)?;
    let limit = Instant::now() + LONG;
    let status = loop {
        match program.try_wait()? {
            Some(status) => break status,
            None if Instant::now() < limit => thread::sleep(millis(5)),
            None => {
                // The end of the input ends it in any case.
                drop(program.stdin.take());
                panic!("it does not end")
            }
        }
    };
    let left = test_kill_process(server).is_ok();
    if left {
        kill_process(server, Signal::KILL)?;
    }
    assert!(!left, "redis-server still runs after {status}");
    assert!(status.success(), "{status}");
    Ok(())
}
