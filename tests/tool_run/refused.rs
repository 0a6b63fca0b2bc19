//! Servers that refuse the lock: the exit code is 77, and no error shows a password.

use std::fs;

use libtest_mimic::Trial;

use super::running::{finished, run};
use crate::servers::{Emulated, Fault, Proxy};
use crate::support::{Outcome, RedisServer, tests};

pub(super) fn trials() -> Vec<Trial> {
    crate::support::trials(
        "tool_run::refused",
        tests![
            a_password_that_is_missing_or_wrong,
            a_password_of_the_environment_or_a_file,
            a_server_that_is_too_old_for_the_protocol,
            a_user_who_may_not,
            a_server_that_is_not_ready_is_as_one_that_is_not_reached,
        ],
    )
}

/// The arguments after the options.
const COMMAND: [&str; 4] = ["k", "--", "echo", "ran"];

fn a_password_that_is_missing_or_wrong() -> Outcome {
    let server = RedisServer::start_with("requirepass secret")?;
    let (folder, url) = (tempfile::tempdir()?, server.url());
    let file = folder.path().join("password");
    fs::write(&file, "not the secret\nsecret\n")?;
    let wrong_in_url = format!("redis://:hidden@{}/", server.address());

    let ended = finished(run(&url).args(COMMAND))?.with_code(77).prints("");
    let ended = ended.says_one_line(&["lock k: ", "NOAUTH", "by REDISCLI_AUTH or --password-file"]);
    assert!(!ended.errors.contains("redis://"), "an argument is for all to see: {}", ended.errors);
    let ended = finished(run(&url).arg("--password-file").arg(&file).args(COMMAND))?.with_code(77).prints("");
    let ended = ended.says_one_line(&["lock k: ", "WRONGPASS"]);
    assert!(!ended.errors.contains("not the secret"), "{}", ended.errors);
    let ended = finished(run(&url).env("REDISCLI_AUTH", "hidden").args(COMMAND))?.with_code(77).prints("");
    let ended = ended.says_one_line(&["lock k: ", "WRONGPASS", "else REDISCLI_AUTH"]);
    assert!(!ended.errors.contains("hidden"), "{}", ended.errors);
    let ended = finished(run(&wrong_in_url).args(["-v", "-E", "refused=9"]).args(COMMAND))?;
    let ended = ended.with_code(9).prints("").says(&["error: lock k: ", "WRONGPASS"]);
    assert!(!ended.errors.contains("hidden"), "{}", ended.errors);
    Ok(())
}

fn a_password_of_the_environment_or_a_file() -> Outcome {
    let server = RedisServer::start_with("requirepass secret")?;
    let (folder, url) = (tempfile::tempdir()?, server.url());
    let works = |command: &mut std::process::Command| -> Outcome {
        finished(command.args(COMMAND))?.with_code(0).prints("ran\n").says_nothing();
        Ok(())
    };
    for text in ["secret", "secret\n", "secret\r\nanother line\n"] {
        let file = folder.path().join("password");
        fs::write(&file, text)?;
        works(run(&url).arg("--password-file").arg(&file))?;
        // The file counts more than the environment.
        works(run(&url).arg("--password-file").arg(&file).env("REDISCLI_AUTH", "wrong"))?;
    }
    works(run(&url).env("REDISCLI_AUTH", "secret"))?;
    let with_password = format!("redis://:secret@{}/", server.address());
    works(run(&with_password).env("REDISCLI_AUTH", "wrong"))?;
    works(run("redis://127.0.0.1:1/").args(["--url", &with_password]))
}

fn a_server_that_is_too_old_for_the_protocol() -> Outcome {
    let server = RedisServer::start()?;
    for (protocol, emulated, needed) in
        [("ttl", Emulated::V2_4, "2.6.12"), ("watched", Emulated::V2_0, "2.2.0")]
    {
        let proxy = Proxy::emulating(emulated, server.address())?;
        let ended = finished(run(&proxy.url()).args(["--protocol", protocol]).args(COMMAND))?;
        ended.with_code(77).prints("").says_one_line(&[
            "lock k: ",
            "too old",
            &format!("needs Redis {needed}"),
        ]);
    }
    assert_eq!(server.say(&["EXISTS", "k"])?, ":0");
    Ok(())
}

fn a_user_who_may_not() -> Outcome {
    let server = RedisServer::start()?;
    server.say(&["ACL", "SETUSER", "default", "-setnx", "-set"])?;
    for protocol in ["classic", "watched", "ttl", "auto"] {
        let ended = finished(run(&server.url()).args(["--protocol", protocol]).args(COMMAND))?;
        ended.with_code(77).prints("").says_one_line(&["lock k: ", "NOPERM"]);
    }
    Ok(())
}

fn a_server_that_is_not_ready_is_as_one_that_is_not_reached() -> Outcome {
    let server = RedisServer::start()?;
    let proxy = Proxy::before(server.address())?;
    for (reply, words) in [
        ("-LOADING Redis is loading the dataset in memory\r\n", "loading its data"),
        ("-BUSY Redis is busy running a script.\r\n", "a script that takes long"),
    ] {
        proxy.next("SETNX", Fault::Say(reply));
        let ended = finished(run(&proxy.url()).arg("-n").args(COMMAND))?.with_code(69).prints("");
        ended.says_one_line(&["lock k: ", words]);
        assert_eq!(proxy.faults_left(), 0);
    }
    Ok(())
}
