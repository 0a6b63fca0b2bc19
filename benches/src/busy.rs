//! Other load: processes that compute and do nothing else.

use std::hint::black_box;
use std::io::{self, Read};
use std::process::{Child, Command, Stdio};
use std::{env, process, thread};

use crate::Failure;

/// So many processes, until it is dropped.
#[derive(Debug)]
pub(crate) struct BusyLoops(Vec<Child>);

impl BusyLoops {
    pub(crate) fn start(count: usize) -> Result<Self, Failure> {
        let mut all = Self(Vec::new());
        for _ in 0..count {
            let process = Command::new(env::current_exe()?).arg("busy").stdin(Stdio::piped()).spawn()?;
            all.0.push(process);
        }
        Ok(all)
    }
}

impl Drop for BusyLoops {
    fn drop(&mut self) {
        for process in &mut self.0 {
            // It may have ended already.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// Computes until the input is closed, which the end of the process that started this one does.
pub(crate) fn run() {
    thread::spawn(|| {
        let _ = io::stdin().read(&mut [0]);
        process::exit(0)
    });
    let mut number = 0_u64;
    loop {
        number = black_box(number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
    }
}
