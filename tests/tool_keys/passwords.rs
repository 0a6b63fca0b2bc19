//! Where a password comes from, and that it is never printed.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt as _;
use std::path::Path;

use super::general::COMMANDS;
use super::program::{Ran, ran, to_the_end};
use crate::support::tool::tool;
use crate::support::{Outcome, RedisServer, Test, tests};

pub(super) const TESTS: &[(&str, Test)] = tests![
    a_password_comes_from_the_environment_a_file_or_the_address,
    a_file_goes_before_the_address_and_that_before_the_environment,
    a_file_that_has_no_password_exits_with_64,
    a_wrong_password_exits_with_77,
    a_user_has_a_password_as_well,
    a_user_that_may_not_ask_for_the_version_sees_keys,
    a_password_is_never_printed,
];

const RIGHT: &str = "correct-horse";
const WRONG: &str = "battery-staple";

/// The server with this password in its address.
fn with_password(server: &RedisServer, password: &str) -> String {
    format!("redis://:{password}@{}/", server.address())
}

fn protected() -> std::io::Result<RedisServer> {
    RedisServer::start_with(&format!("requirepass {RIGHT}"))
}

/// Runs a command with this address, and a password in the environment and in a file if there is one.
fn with(url: &str, environment: Option<&str>, file: Option<&Path>, arguments: &[&str]) -> Ran {
    let mut command = tool(url);
    command.args(arguments);
    if let Some(password) = environment {
        command.env("REDISCLI_AUTH", password);
    }
    if let Some(file) = file {
        command.arg("--password-file").arg(file);
    }
    to_the_end(command)
}

/// The commands that ask a server.
const ASKING: [&[&str]; 5] = [
    &["status", "k"],
    &["list"],
    &["clear", "--yes", "k"],
    &["clear", "--yes", "--expired", "*"],
    &["doctor"],
];

fn a_password_comes_from_the_environment_a_file_or_the_address() -> Outcome {
    let server = protected()?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("password");
    for arguments in ASKING {
        with(&server.url(), Some(RIGHT), None, arguments).exits(0);
        with(&with_password(&server, RIGHT), None, None, arguments).exits(0);
        for text in [RIGHT.to_owned(), format!("{RIGHT}\n"), format!("{RIGHT}\r\nmore\n")] {
            fs::write(&file, text)?;
            with(&server.url(), None, Some(&file), arguments).exits(0);
        }
    }
    with(&server.url(), Some(RIGHT), None, &["status", "k"]).exits(0).prints("k: free\n");
    Ok(())
}

fn a_file_goes_before_the_address_and_that_before_the_environment() -> Outcome {
    let server = protected()?;
    let folder = tempfile::tempdir()?;
    let [right, wrong] = [RIGHT, WRONG].map(|password| {
        let file = folder.path().join(password);
        fs::write(&file, password).unwrap();
        file
    });
    let doctor = &["doctor"];
    let [right_url, wrong_url] = [RIGHT, WRONG].map(|password| with_password(&server, password));
    with(&wrong_url, Some(WRONG), Some(&right), doctor).exits(0);
    with(&right_url, Some(RIGHT), Some(&wrong), doctor).exits(77);
    with(&right_url, Some(WRONG), None, doctor).exits(0);
    with(&wrong_url, Some(RIGHT), None, doctor).exits(77);
    with(&server.url(), Some(""), None, doctor).exits(77);
    with(&right_url, Some(""), None, doctor).exits(0);
    Ok(())
}

fn a_file_that_has_no_password_exits_with_64() -> Outcome {
    let server = protected()?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("password");
    let refused =
        |words| drop(with(&server.url(), None, Some(&file), &["status", "k"]).exits(64).says_only(&[words]));
    refused("No such file");
    for text in ["", "\n", "\r\n", "\nsecond line"] {
        fs::write(&file, text)?;
        refused("its first line is empty");
    }
    fs::write(&file, b"\xff\xfe")?;
    refused("cannot read the password");
    Ok(())
}

fn a_wrong_password_exits_with_77() -> Outcome {
    let server = protected()?;
    let commands = [&["watch", "k"][..], &["bench"], &["run", "k", "--", "true"]];
    for arguments in ASKING.into_iter().chain(commands) {
        for url in [server.url(), with_password(&server, WRONG)] {
            let refused = ran(&url, arguments).exits(77);
            assert!(refused.out.is_empty() && refused.err.starts_with("setnx-lock: error: "), "{refused}");
        }
    }
    Ok(())
}

fn a_user_has_a_password_as_well() -> Outcome {
    let server = RedisServer::start_with(&format!("user worker on >{RIGHT} ~* &* +@all\nuser default off"))?;
    let url = format!("redis://worker@{}/", server.address());
    with(&url, Some(RIGHT), None, &["status", "k"]).exits(0).prints("k: free\n");
    with(&url, Some(WRONG), None, &["doctor"]).exits(77);
    ran(&format!("redis://worker:{RIGHT}@{}/", server.address()), ["status", "k"]).exits(0);
    ran(&server.url(), ["doctor"]).exits(77);
    Ok(())
}

fn a_user_that_may_not_ask_for_the_version_sees_keys() -> Outcome {
    let server = RedisServer::start_with(&format!("user worker on >{RIGHT} ~* &* +@all -info"))?;
    let url = format!("redis://worker:{RIGHT}@{}/", server.address());
    super::values::set(&server, "k_lock", "1");
    let line = "k_lock: held without an expiration; if its holder has crashed, clear it\n";
    ran(&url, ["status", "k_lock"]).exits(0).prints(line);
    ran(&url, ["list"]).exits(0).shows(&["k_lock"]);
    ran(&url, ["clear", "--yes", "k_lock"]).exits(0).shows(&["removed"]);
    Ok(())
}

fn a_password_is_never_printed() -> Outcome {
    let server = protected()?;
    let other = RedisServer::start()?;
    let folder = tempfile::tempdir()?;
    let hides = |command: std::process::Command| {
        let ran = to_the_end(command);
        for password in [RIGHT, WRONG] {
            assert!(!ran.out.contains(password) && !ran.err.contains(password), "{ran}");
        }
    };
    let mut all: Vec<Vec<&str>> = ASKING.map(<[&str]>::to_vec).into();
    all.push(vec!["run", "--verbose", "k", "--", "true"]);
    all.push(vec!["doctor", "--json"]);
    all.push(vec!["bench", "--for", "10ms"]);
    for arguments in all {
        for (at, password) in [(&server, RIGHT), (&server, WRONG), (&other, WRONG)] {
            let file = folder.path().join("file");
            fs::write(&file, password)?;
            let mut by_address = tool(&with_password(at, password));
            by_address.args(&arguments);
            let mut by_environment = tool(&at.url());
            by_environment.env("REDISCLI_AUTH", password).args(&arguments);
            let mut by_file = tool(&at.url());
            by_file.arg(arguments[0]).arg("--password-file").arg(file).args(&arguments[1..]);
            for command in [by_address, by_environment, by_file] {
                hides(command);
            }
        }
    }
    for command in COMMANDS {
        for arguments in [&["help", command][..], &[command, "--help"], &[command], &[command, "--wrong"]] {
            let mut command = tool(&with_password(&server, RIGHT));
            command.env("REDISCLI_AUTH", WRONG).args(arguments);
            hides(command);
        }
    }
    let mut addresses: Vec<OsString> = [
        "redis://:P@host:port/",
        "redis://:P@/",
        "redis://:P@127.0.0.1:1/",
        "redis://:P@127.0.0.1/x",
        "redis://:P@[::1",
        "http://:P@127.0.0.1/",
        ":P@127.0.0.1",
        "rediss://:P@127.0.0.1:1/",
        "unix:///nowhere?pass=P",
    ]
    .map(|address| address.replace('P', RIGHT).into())
    .into();
    addresses.push(OsString::from_vec([b"redis://:", RIGHT.as_bytes(), b"\xff@127.0.0.1:1/"].concat()));
    for address in addresses {
        let mut command = tool("");
        command.env("REDIS_URL", &address).args(["status", "k"]);
        hides(command);
        let mut command = tool("");
        command.args(["status", "k", "--url"]).arg(&address);
        hides(command);
    }
    Ok(())
}
