//! Where a password comes from, and that it is never printed.

use setnx_lock_testing::TestServer;

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt as _;
use std::path::Path;
use std::thread;
use std::time::Duration;

use super::general::COMMANDS;
use super::program::{Ran, ran, to_the_end};
use crate::support::tool::tool;
use crate::support::{AnyServer, Outcome, RedisServer, Test, tests};
use crate::tool::run::running::Running;

pub(super) const TESTS: &[(&str, Test)] = tests![
    a_password_comes_from_the_environment_a_file_or_the_address,
    a_file_goes_before_the_address_and_that_before_the_environment,
    a_file_that_has_no_password_exits_with_64,
    a_password_is_never_printed,
    sentinels_lead_to_the_master_whose_password_it_is,
    sentinels_have_a_password_of_their_own,
    a_password_that_changes_while_a_command_runs,
];

const RIGHT: &str = "correct-horse";
const WRONG: &str = "battery-staple";

/// The server with this password in its address.
fn with_password(server: &impl AnyServer, password: &str) -> String {
    format!("redis://:{password}@{}/", server.address())
}

fn protected() -> std::io::Result<RedisServer> {
    RedisServer::start_with(&format!("requirepass {RIGHT}"))
}

/// Runs a command with a password in the environment.
fn with_variable(url: &str, password: &str, arguments: &[&str]) -> Ran {
    let mut command = tool(url);
    command.env("REDISCLI_AUTH", password).args(arguments);
    to_the_end(command)
}

/// The commands that ask a server.
const ASKING: [&[&str]; 8] = [
    &["status", "k"],
    &["list"],
    &["clear", "--yes", "k"],
    &["clear", "--yes", "--expired", "*"],
    &["watch", "k"],
    &["fence", "--at-least", "7", "other"],
    &["doctor"],
    &["run", "--verbose", "k", "--", "true"],
];

/// Runs a command, with the password in a file before its other arguments.
fn by_file(url: &str, file: &Path, arguments: &[&str]) -> Ran {
    let mut command = tool(url);
    command.arg(arguments[0]).arg("--password-file").arg(file).args(&arguments[1..]);
    to_the_end(command)
}

fn a_password_comes_from_the_environment_a_file_or_the_address() -> Outcome {
    let server = protected()?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("password");
    // `watch` does not end.
    for arguments in ASKING.into_iter().filter(|arguments| arguments[0] != "watch") {
        with_variable(&server.url(), RIGHT, arguments).exits(0);
        ran(&with_password(&server, RIGHT), arguments).exits(0);
        fs::write(&file, format!("{RIGHT}\n"))?;
        by_file(&server.url(), &file, arguments).exits(0);
    }
    for text in [RIGHT.to_owned(), format!("{RIGHT}\r\nmore\n")] {
        fs::write(&file, text)?;
        by_file(&server.url(), &file, &["status", "k"]).exits(0).prints("k: free\n");
    }
    let other = TestServer::builder()
        .config(&format!("user worker on >{RIGHT} ~* &* +@all\nuser default off"))
        .start();
    let of_user = format!("redis://worker@{}/", other.address());
    with_variable(&of_user, RIGHT, &["status", "k"]).exits(0).prints("k: free\n");
    with_variable(&of_user, WRONG, &["status", "k"]).exits(77);
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
    let status = |url: &str, variable: &str, file: Option<&Path>| {
        let mut command = tool(url);
        command.env("REDISCLI_AUTH", variable).args(["status", "k"]);
        if let Some(file) = file {
            command.arg("--password-file").arg(file);
        }
        to_the_end(command)
    };
    let [right_url, wrong_url] = [RIGHT, WRONG].map(|password| with_password(&server, password));
    status(&wrong_url, WRONG, Some(&right)).exits(0);
    status(&right_url, RIGHT, Some(&wrong)).exits(77);
    status(&right_url, WRONG, None).exits(0);
    status(&wrong_url, RIGHT, None).exits(77);
    status(&server.url(), "", None).exits(77);
    status(&right_url, "", None).exits(0);
    Ok(())
}

fn a_file_that_has_no_password_exits_with_64() -> Outcome {
    let server = protected()?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("password");
    let refused = |words| drop(by_file(&server.url(), &file, &["status", "k"]).exits(64).says_only(&[words]));
    refused("No such file");
    for text in ["", "\n", "\r\n", "\nsecond line"] {
        fs::write(&file, text)?;
        refused("its first line is empty");
    }
    for text in [&b"\xef\xbb\xbfsecret\n"[..], b"\xff\xfes\0e\0", b"\xfe\xff\0s"] {
        fs::write(&file, text)?;
        refused("it begins with a byte order mark; save it as UTF-8 without one");
    }
    fs::write(&file, b"\xffsecret")?;
    refused("cannot read the password");
    Ok(())
}

/// A wrong one is refused, with 77.
fn a_password_is_never_printed() -> Outcome {
    let server = protected()?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("file");
    fs::write(&file, WRONG)?;
    let hides = |ran: Ran| {
        for password in [RIGHT, WRONG] {
            assert!(!ran.out.contains(password) && !ran.err.contains(password), "{ran}");
        }
        ran
    };
    for arguments in ASKING {
        for refused in [
            ran(&server.url(), arguments),
            ran(&with_password(&server, WRONG), arguments),
            with_variable(&server.url(), WRONG, arguments),
            by_file(&server.url(), &file, arguments),
        ] {
            let refused = hides(refused.exits(77));
            assert!(refused.out.is_empty() && refused.err.contains("setnx-lock: error: "), "{refused}");
        }
    }
    hides(ran(&with_password(&server, RIGHT), ["doctor", "--json"]).exits(0));
    for command in COMMANDS {
        for arguments in [[command, "--help"], [command, "--wrong"]] {
            hides(with_variable(&with_password(&server, RIGHT), WRONG, &arguments));
        }
    }
    let mut addresses: Vec<OsString> = [
        "redis://:P@host:port/",
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
        hides(to_the_end(command));
        let mut command = tool("");
        command.args(["status", "k", "--url"]).arg(&address);
        hides(to_the_end(command));
    }
    Ok(())
}

fn sentinels_lead_to_the_master_whose_password_it_is() -> Outcome {
    let server = protected()?;
    let config =
        format!("sentinel monitor main 127.0.0.1 {} 1\nsentinel auth-pass main {RIGHT}", server.port());
    let sentinel = RedisServer::start_sentinel(&config)?;
    let url = |name: &str| format!("redis+sentinel://{}/{name}", sentinel.address());
    let ran = |arguments: &[&str]| with_variable(&url("main"), RIGHT, arguments);
    ran(&["run", "k", "--", "true"]).exits(0);
    ran(&["status", "k"]).exits(0).shows(&["k: free"]);
    let port = server.port().to_string();
    let held = ran(&["run", "k", "--", "redis-cli", "-p", &port, "-a", RIGHT, "GET", "k"]).exits(0);
    assert!(!held.out.trim().is_empty(), "{held}");
    ran(&["list"]).exits(0);
    let unknown = with_variable(&url("other"), RIGHT, &["status", "k"]).exits(77);
    unknown.says_only(&["knows no master named \"other\""]);
    Ok(())
}

fn sentinels_have_a_password_of_their_own() -> Outcome {
    let server = RedisServer::start()?;
    let config = format!("requirepass {RIGHT}\nsentinel monitor main 127.0.0.1 {} 1", server.port());
    let sentinel = RedisServer::start_sentinel(&config)?;
    let url = format!("redis+sentinel://{}/main", sentinel.address());
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("password");
    fs::write(&file, RIGHT)?;
    let file = file.display().to_string();
    for arguments in [&["status", "k"][..], &["run", "k", "--", "true"], &["list"], &["doctor"]] {
        let by_file = [&arguments[..1], &["--sentinel-password-file", &file], &arguments[1..]].concat();
        ran(&url, &by_file).exits(0);
        ran(&url, arguments).exits(77).says_only(&["Sentinel 127.0.0.1", "sentinel_password"]);
        let wrong = format!("{url}?sentinel_password={WRONG}");
        let refused =
            ran(&wrong, arguments).exits(77).says_only(&["Sentinel 127.0.0.1", "sentinel_password"]);
        assert!(!refused.err.contains(WRONG), "{refused}");
    }
    let by_file = ["status", "--sentinel-password-file", &file, "k"];
    ran(&server.url(), by_file).exits(64).says_only(&["needs a redis+sentinel URL"]);
    Ok(())
}

/// The server gets another password and closes all connections. The file has the new one.
fn a_password_that_changes_while_a_command_runs() -> Outcome {
    let server = protected()?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("password");
    fs::write(&file, RIGHT)?;
    let mut command = tool(&server.url());
    command.args(["run", "--expiration", "3s", "--password-file"]).arg(&file);
    command.args(["k", "--", "sh", "-c", "echo started; read go; exit 5"]);
    let mut running = Running::started(&mut command)?;
    let mut connection = redis::Client::open(with_password(&server, RIGHT))?.get_connection()?;
    let _: () = redis::cmd("CONFIG").arg("SET").arg("requirepass").arg(WRONG).query(&mut connection)?;
    fs::write(&file, WRONG)?;
    let _: () = redis::cmd("CLIENT").arg("KILL").arg("TYPE").arg("normal").query(&mut connection)?;
    // Longer than the lease.
    thread::sleep(Duration::from_secs(5));
    running.say("go")?;
    running.ends()?.with_code(5);
    let held: bool = redis::cmd("EXISTS").arg("k").query(&mut connection)?;
    assert!(!held, "it was released");
    Ok(())
}
