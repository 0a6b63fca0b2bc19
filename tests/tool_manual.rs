//! The tool's man pages and shell completions: they are made, and work.

use std::path::Path;
use std::process::Command;
use std::{env, fs};

use libtest_mimic::{Failed, Trial};

use crate::support::{Outcome, tests};

pub(crate) fn trials() -> Vec<Trial> {
    crate::support::trials("tool_manual", tests![pages_and_completions_are_made_and_work])
}

const COMMANDS: [&str; 8] = ["run", "status", "list", "clear", "watch", "doctor", "key", "bench"];

fn output(command: &mut Command) -> Result<String, Failed> {
    let output = command.output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// What bash would complete the last word to.
fn completed(script: &Path, words: &[&str]) -> Result<Vec<String>, Failed> {
    let quoted: Vec<_> = words.iter().map(|word| format!("'{word}'")).collect();
    let complete = format!(
        ". '{}'; COMP_WORDS=({}); COMP_CWORD={}; _setnx__lock setnx-lock '{}' '{}'; echo \"${{COMPREPLY[@]}}\"",
        script.display(),
        quoted.join(" "),
        words.len() - 1,
        words[words.len() - 1],
        words[words.len() - 2],
    );
    let replies = output(Command::new("bash").args(["--norc", "-c", &complete]))?;
    Ok(replies.split_whitespace().map(str::to_owned).collect())
}

fn pages_and_completions_are_made_and_work() -> Outcome {
    let folder = tempfile::tempdir()?;
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["run", "--quiet", "--locked", "--package", "setnx-lock-manual"]);
    cargo.args(["--manifest-path", concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.toml"), "--"]);
    output(cargo.arg(folder.path()))?;
    for command in COMMANDS {
        let page = fs::read_to_string(folder.path().join(format!("man/setnx-lock-{command}.1")))?;
        assert!(page.contains(&format!("setnx\\-lock\\-{command}")), "{page}");
        assert_eq!(page.contains("REDIS_URL"), command != "key", "{command}");
    }
    let run = fs::read_to_string(folder.path().join("man/setnx-lock-run.1"))?;
    assert!(run.contains("75  contended") && run.contains("SETNX_LOCK_FENCING_TOKEN"), "{run}");
    let bash = folder.path().join("completions/setnx-lock.bash");
    let commands = completed(&bash, &["setnx-lock", ""])?;
    assert!(COMMANDS.iter().all(|command| commands.iter().any(|one| one == command)), "{commands:?}");
    assert_eq!(completed(&bash, &["setnx-lock", "run", "--on-loss", ""])?, ["term", "kill", "warn"]);
    assert_eq!(completed(&bash, &["setnx-lock", "list", "--w"])?, ["--watch"]);
    for other in ["_setnx-lock", "setnx-lock.fish"] {
        let script = fs::read_to_string(folder.path().join("completions").join(other))?;
        assert!(script.contains("hold-at-least"), "{other}");
    }
    Ok(())
}
