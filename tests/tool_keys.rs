//! `setnx-lock status`, `list`, `clear`, `watch`, `doctor`, `key` and `bench`: what they print and how they exit.

use assert_cmd::assert::OutputAssertExt as _;
use libtest_mimic::Trial;

use crate::support::tool::tool;
use crate::support::{Outcome, RedisServer, tests};

pub(crate) fn trials() -> Vec<Trial> {
    crate::support::trials("tool_keys", tests![a_key_that_is_missing_is_free])
}

fn a_key_that_is_missing_is_free() -> Outcome {
    let server = RedisServer::start()?;
    tool(&server.url()).args(["status", "k"]).assert().code(0).stdout("k: free\n").stderr("");
    Ok(())
}
