//! A machine without a descriptor or a thread left: that is named as the cause, and not the server.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use setnx_lock_testing::TestServer;

use super::running::{Ended, finished, run};
use super::wishes::copy;
use crate::support::tool::program;
use crate::support::{Outcome, trials_of};

trials_of! {
    "tool_run::scarce";
    a_descriptor_that_is_missing_is_named,
    a_thread_that_is_missing_is_named,
}

/// Each says so from another place on. Returns how many could not connect.
fn unconnected(ended: &[Ended]) -> usize {
    let named = |ended: &Ended| {
        assert!(!ended.errors.contains("address") && !ended.errors.contains("not known"), "{}", ended.errors);
        ended.errors.contains("no connection could be opened") && ended.errors.contains("not the server")
    };
    ended.iter().filter(|ended| named(ended)).count()
}

fn a_descriptor_that_is_missing_is_named() -> Outcome {
    let server = TestServer::start();
    let mut ended = Vec::new();
    for url in [server.url(), server.url().replace("127.0.0.1", "localhost")] {
        for limit in 3..9 {
            let tool = run(&url);
            let mut command = Command::new("sh");
            command.args(["-c", &format!("ulimit -n {limit}; exec \"$@\""), "sh"]).arg(program());
            command.envs(tool.get_envs().filter_map(|(name, value)| Some((name, value?))));
            ended.push(finished(command.args(["run", "-w", "300ms", "k", "--", "true"]))?);
        }
    }
    assert!(unconnected(&ended) >= 2);
    Ok(())
}

/// As a user of its own, whose threads are counted. Only root can set that up.
fn a_thread_that_is_missing_is_named() -> Outcome {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let server = TestServer::start();
    let folder = tempfile::tempdir()?;
    fs::set_permissions(folder.path(), Permissions::from_mode(0o755))?;
    let tool = folder.path().join("setnx-lock");
    copy(program(), &tool)?;
    let user = (3_000_000 + std::process::id()).to_string();
    let mut ended = Vec::new();
    for limit in 1..6 {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", &user, "--clear-groups", "prlimit", &format!("--nproc={limit}")]).arg(&tool);
        command.env("REDIS_URL", server.url());
        ended.push(finished(command.args(["run", "-w", "300ms", "k", "--", "true"]))?);
    }
    assert!(unconnected(&ended) >= 1);
    Ok(())
}
