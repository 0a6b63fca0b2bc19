//! What all commands have in common: help, errors of usage, outputs that are closed or full, colours. And `key`.

use setnx_lock_testing::TestServer;

use std::fs::OpenOptions;
use std::io;
use std::process::Stdio;

use super::program::{Running, ran, to_the_end};
use super::values::set;
use crate::support::scenario::closed_port;
use crate::support::tool::tool;
use crate::support::{Outcome, RedisServer, Test, tests};

pub(super) const TESTS: &[(&str, Test)] = tests![
    each_command_has_help_and_a_version,
    wrong_arguments_exit_with_64,
    without_a_server_each_command_exits_with_69,
    a_closed_output_is_no_error_and_a_full_one_exits_with_71,
    a_pipe_gets_no_colours,
    key_prints_the_keys_of_both_gems,
    wrong_arguments_of_key_exit_with_64,
    a_variable_that_is_empty_is_not_set,
];

pub(super) const COMMANDS: [&str; 7] = ["run", "status", "list", "clear", "watch", "doctor", "key"];

/// An address that no server has.
const NOWHERE: &str = "redis://127.0.0.1:1/";

fn each_command_has_help_and_a_version() -> Outcome {
    for help in [&["--help"][..], &["-h"], &["help"]] {
        let help = ran(NOWHERE, help).exits(0);
        assert_eq!(help.err, "");
        for command in COMMANDS {
            assert!(help.out.contains(&format!("\n  {command} ")), "{command} in {help}");
        }
        assert!(!help.out.contains("guardian"), "{help}");
    }
    for command in COMMANDS {
        let usage = format!("Usage: setnx-lock {command} ");
        let long = ran(NOWHERE, ["help", command]).exits(0).shows(&[&usage]);
        for help in ["-h", "--help"] {
            let short = ran(NOWHERE, [command, help]).exits(0).shows(&[&usage]);
            assert!(short.out.len() < long.out.len(), "{short}{long}");
            assert_eq!(short.err, "");
        }
        assert_eq!(long.err, "");
    }
    let manifest = include_str!("../../../Cargo.toml");
    let version = manifest.lines().find_map(|line| line.strip_prefix("version = \"")?.strip_suffix('"'));
    let version = version.expect("the workspace has a version");
    ran(NOWHERE, ["--version"]).exits(0).prints(&format!("setnx-lock {version}\n"));
    Ok(())
}

fn wrong_arguments_exit_with_64() -> Outcome {
    for (arguments, words) in [
        (&["frobnicate"][..], "frobnicate"),
        (&[""], "unrecognized subcommand"),
        (&[], "Usage: setnx-lock <COMMAND>"),
        (&["--json"], "--json"),
        (&["status"], "<KEY>"),
        (&["status", "k", "--frobnicate"], "--frobnicate"),
        (&["list", "a", "b"], "'b'"),
        (&["doctor", "--json=yes"], "--json"),
        (&["run", "--extend", "5m", "k", "--", "true"], "'--auto-extend'"),
        (&["run"], "Usage: setnx-lock run [OPTIONS] <KEY>... -- <CMD>..."),
        (&["clear"], "Usage: setnx-lock clear [OPTIONS] <KEY>"),
        (&["list", "--watch=0"], "at least one millisecond"),
        (&["watch"], "<KEY>"),
        (&["watch", "k", "--interval", "0"], "at least one millisecond"),
    ] {
        let ran = ran(NOWHERE, arguments).exits(64).says(&[words]);
        assert_eq!(ran.out, "", "{ran}");
        assert!(!ran.err.contains("--url"), "REDIS_URL is set: {ran}");
    }
    for arguments in ASKING {
        for wrong in ["127.0.0.1", "http://127.0.0.1/", "redis://127.0.0.1:99999/"] {
            ran(wrong, arguments).exits(64).says_only(&["invalid Redis URL in --url or REDIS_URL"]);
        }
    }
    Ok(())
}

/// The commands that need a server.
const ASKING: [&[&str]; 6] = [
    &["status", "k"],
    &["list"],
    &["clear", "--yes", "k"],
    &["clear", "--yes", "--expired", "*"],
    &["watch", "k"],
    &["doctor"],
];

fn without_a_server_each_command_exits_with_69() -> Outcome {
    let port = closed_port()?;
    let nowhere = format!("redis://127.0.0.1:{port}/");
    // At the same time: some of them try again for seconds.
    let running = ASKING.map(|arguments| Running::start(&nowhere, arguments));
    for running in running {
        running?.ends().exits(69).says_only(&[&port.to_string(), "check that"]);
    }
    Ok(())
}

/// Commands that print something, for a server with the key `k`.
const PRINTING: [&[&str]; 9] = [
    &["--help"],
    &["--version"],
    &["key", "Team", "reorder"],
    &["status", "k"],
    &["status", "k", "--json"],
    &["list"],
    &["list", "--json"],
    &["watch", "k"],
    &["doctor"],
];

fn a_closed_output_is_no_error_and_a_full_one_exits_with_71() -> Outcome {
    let server = TestServer::start();
    set(&server, "k", "1895000000.5");
    for arguments in PRINTING {
        let (reader, writer) = io::pipe()?;
        drop(reader);
        let mut command = tool(&server.url());
        command.args(arguments).stdout(writer);
        let output = command.stderr(Stdio::piped()).spawn()?.wait_with_output()?;
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {output:?}");
        assert!(!String::from_utf8_lossy(&output.stderr).contains("error"), "{arguments:?}: {output:?}");
    }
    // Nor is it one if the errors cannot be printed.
    let (reader, writer) = io::pipe()?;
    drop(reader);
    assert_eq!(tool("nowhere").args(["status", "k"]).stderr(writer).status()?.code(), Some(64));
    for arguments in &PRINTING[2..] {
        let mut command = tool(&server.url());
        command.args(*arguments).stdout(OpenOptions::new().write(true).open("/dev/full")?);
        let output = command.stderr(Stdio::piped()).spawn()?.wait_with_output()?;
        assert_eq!(output.status.code(), Some(71), "{arguments:?}: {output:?}");
        let text = String::from_utf8(output.stderr)?;
        assert!(text.contains("error: cannot write the output: No space left"), "{arguments:?}: {text}");
    }
    Ok(())
}

/// The commands that have colours where they are printed on a terminal.
const COLOURED: [&[&str]; 5] = [&["status", "k"], &["list"], &["doctor"], &["--help"], &["clear", "k"]];

fn a_pipe_gets_no_colours() -> Outcome {
    let server = RedisServer::start_with("timeout 5")?;
    set(&server, "k", "1895000000.5");
    let printed = |arguments: &[&str], variables: &[(&str, &str)]| {
        let mut command = tool(&server.url());
        command.args(arguments).envs(variables.iter().copied());
        let ran = to_the_end(command);
        ran.out + &ran.err
    };
    for arguments in COLOURED {
        let plain = printed(arguments, &[]);
        assert!(!plain.is_empty() && !plain.contains('\u{1b}'), "{plain}");
        let coloured = printed(arguments, &[("CLICOLOR_FORCE", "1")]);
        assert!(coloured.contains("\u{1b}["), "{coloured:?}");
        let refused = printed(arguments, &[("CLICOLOR_FORCE", "1"), ("NO_COLOR", "1")]);
        assert!(!refused.contains('\u{1b}'), "{refused:?}");
    }
    Ok(())
}

/// It needs no server. The part `golden` compares the keys of the library with the gem's.
fn key_prints_the_keys_of_both_gems() -> Outcome {
    for (arguments, keys) in [
        (&["key", "Team", "reorder", "7"][..], "team:7:reorder_lock\n"),
        (&["key", "Team", "reorder"], "team::reorder_lock\n"),
        (&["key", "Billing::Invoice", "pay", "7"], "invoice:7:pay_lock\nbilling__invoice:7:pay_lock\n"),
        (&["key", "Billing::Invoice", "pay"], "invoice::pay_lock\nbilling__invoice::pay_lock\n"),
        (&["key", "Team", "reorder", "a b"], "team:a b:reorder_lock\n"),
    ] {
        ran("no address", arguments).exits(0).prints(keys);
    }
    Ok(())
}

fn wrong_arguments_of_key_exit_with_64() -> Outcome {
    for (arguments, words) in [
        (&["key", "", "pay", "7"][..], "the class name is missing"),
        (&["key", "Billing::", "pay", "7"], "the class name is missing"),
        (&["key", "Team", "", "7"], "the lock name is missing"),
        (&["key", "Team", "pay", ""], "the id is empty"),
    ] {
        ran("no address", arguments).exits(64).says_only(&[words]);
    }
    for arguments in [&["key"][..], &["key", "Team"], &["key", "Team", "pay", "7", "8"]] {
        let ran = ran("no address", arguments).exits(64).says(&["Usage: "]);
        assert_eq!(ran.out, "");
    }
    Ok(())
}

/// As scripts and units set those that they have no value for.
fn a_variable_that_is_empty_is_not_set() -> Outcome {
    let server = TestServer::start();
    let mut command = tool("");
    command.args(["status", "--url", &server.url(), "k"]);
    for variable in
        ["SETNX_LOCK_PREFIX", "SETNX_LOCK_CONNECT_TIMEOUT", "SETNX_LOCK_COMMAND_TIMEOUT", "REDISCLI_AUTH"]
    {
        command.env(variable, "");
    }
    to_the_end(command).exits(0).shows(&["k: free"]);
    // The address that counts if none is given.
    let without = to_the_end({
        let mut command = tool("");
        command.args(["status", "--connect-timeout", "200ms", "k"]);
        command
    });
    assert!(!without.err.contains("invalid Redis URL"), "{without}");
    Ok(())
}
