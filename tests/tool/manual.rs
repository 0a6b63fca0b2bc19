//! The tool's man pages and shell completions: they are printed, and work.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use libtest_mimic::Failed;

use crate::support::tool::tool;
use crate::support::{Outcome, trials_of};

trials_of! {
    "tool_manual";
    pages_are_printed,
    completions_work,
    the_help_fits_a_screen,
}

const COMMANDS: [&str; 13] = [
    "run",
    "acquire",
    "extend",
    "release",
    "status",
    "list",
    "clear",
    "watch",
    "fence",
    "doctor",
    "key",
    "man",
    "completions",
];

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

/// The headings of a page, in their order.
fn headings(page: &str) -> Vec<&str> {
    let headings = page.lines().filter_map(|line| line.strip_prefix(".SH "));
    headings.map(|heading| heading.trim_matches('"')).collect()
}

fn pages_are_printed() -> Outcome {
    let page = |command: Option<&str>| output(tool("").arg("man").args(command));
    let main = page(None)?;
    for command in COMMANDS {
        assert!(main.contains(&format!("setnx\\-lock\\-{command}(1)")), "{main}");
        let page = page(Some(command))?;
        let (headings, synopsis) = (headings(&page), format!("\\fBsetnx\\-lock {command}\\fR "));
        assert_eq!(headings[..2], ["NAME", "SYNOPSIS"], "{command}");
        assert!(headings.contains(&"EXIT STATUS") && !headings.contains(&"EXTRA"), "{command}: {headings:?}");
        let asks = !["key", "man", "completions"].contains(&command);
        for section in ["ENVIRONMENT", "FILES"] {
            assert_eq!(headings.contains(&section), asks, "{command}: {headings:?}");
        }
        assert!(page.contains(&synopsis) || !asks, "{page}");
    }
    let run = page(Some("run"))?;
    assert!(run.contains("\\fBsetnx\\-lock run\\fR [OPTIONS] <KEY>... \\-\\- <CMD>..."), "{run}");
    let last = ["EXIT STATUS", "ENVIRONMENT", "FILES", "EXAMPLES", "VERSION"];
    assert!(headings(&run).ends_with(&last), "{:?}", headings(&run));
    for (command, code) in [("extend", "70  lost"), ("acquire", "75  contended"), ("status", "75  with")] {
        assert!(page(Some(command))?.contains(code), "{command}");
    }
    assert!(run.contains("75  contended") && run.contains("SETNX_LOCK_FENCING_TOKEN"), "{run}");
    // `make manual` writes a page for each.
    let makefile = include_str!("../../Makefile");
    let listed = makefile.lines().find_map(|line| line.strip_prefix("COMMANDS = ")).expect("the list");
    assert_eq!(listed.split(' ').collect::<Vec<_>>(), COMMANDS);
    let unknown = tool("").args(["man", "guardian"]).output()?;
    assert_eq!(unknown.status.code(), Some(64), "{unknown:?}");
    Ok(())
}

fn completions_work() -> Outcome {
    let folder = tempfile::tempdir()?;
    let bash = folder.path().join("setnx-lock.bash");
    fs::write(&bash, output(tool("").args(["completions", "bash"]))?)?;
    let commands = completed(&bash, &["setnx-lock", ""])?;
    assert!(COMMANDS.iter().all(|command| commands.iter().any(|one| one == command)), "{commands:?}");
    assert_eq!(completed(&bash, &["setnx-lock", "run", "--on-loss", ""])?, ["term", "kill", "warn"]);
    assert_eq!(completed(&bash, &["setnx-lock", "list", "--w"])?, ["--watch"]);
    for other in ["zsh", "fish"] {
        let script = output(tool("").args(["completions", other]))?;
        assert!(script.contains("hold-at-least"), "{other}");
    }
    Ok(())
}

fn the_help_fits_a_screen() -> Outcome {
    for command in COMMANDS {
        let help = output(tool("").args([command, "--help"]).env("COLUMNS", "80"))?;
        assert!(help.lines().count() <= 46 && help.lines().all(|line| line.chars().count() <= 80), "{help}");
        let all = output(tool("").args([command, "--help=all"]))?;
        assert_eq!(all, output(tool("").args(["help", command]))?, "{command}");
        let page = output(tool("").args(["man", command]))?;
        let options = |text: &str| -> BTreeSet<String> {
            let lines = text.lines().filter(|line| line.trim_start().starts_with('-'));
            let first = lines.filter_map(|line| line.split_whitespace().find(|word| word.starts_with("--")));
            first.map(|word| word.split(['=', '[']).next().unwrap_or_default().to_owned()).collect()
        };
        assert!(options(&help).is_subset(&options(&all)), "{help}");
        for option in options(&all) {
            let name = option.replace('-', "\\-");
            // What each does is said, also of those that the summary leaves out.
            let described =
                page.split(".TP\n").any(|entry| entry.contains(&name) && entry.lines().count() > 1);
            assert!(described, "{command}: {option}: {page}");
        }
    }
    let run = output(tool("").args(["run", "--help"]).env("COLUMNS", "80"))?;
    let end = run.rsplit_once("Exit codes: ").expect("they are at its end").1;
    assert!(end.contains("75  contended") && end.ends_with("man setnx-lock-run\n"), "{run}");
    assert!(!run.contains("--settle-after-restart") && !run.contains("--ca "), "{run}");
    // Behind the hyphens it is the command's.
    let ended = output(tool("redis://127.0.0.1:1/").args([
        "run",
        "-n",
        "-E",
        "unreachable=0",
        "k",
        "--",
        "true",
        "--help=all",
    ]))?;
    assert_eq!(ended, "");
    Ok(())
}
