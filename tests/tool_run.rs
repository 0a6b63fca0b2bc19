//! `setnx-lock run`: the exit codes, the signals, the terminal, losses, and what becomes of the command.

use assert_cmd::assert::OutputAssertExt as _;
use libtest_mimic::Trial;

use crate::support::tool::tool;
use crate::support::{Outcome, RedisServer, tests};

pub(crate) fn trials() -> Vec<Trial> {
    crate::support::trials("tool_run", tests![the_exit_code_is_that_of_the_command])
}

fn the_exit_code_is_that_of_the_command() -> Outcome {
    let server = RedisServer::start()?;
    for code in [0, 1, 3, 255] {
        tool(&server.url())
            .args(["run", "k", "--", "sh", "-c", &format!("exit {code}")])
            .assert()
            .code(code)
            .stdout("")
            .stderr("");
        assert_eq!(server.say(&["EXISTS", "k"])?, ":0", "released");
    }
    tool(&server.url()).args(["run", "k", "--", "sh", "-c", "kill -KILL $$"]).assert().code(128 + 9);
    Ok(())
}
