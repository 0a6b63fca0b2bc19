//! Planted mistakes: each is made in a copy of the library, and a seed must show it. A law that finds none of them would prove nothing.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};
use std::{fs, io};

/// How long a search may take for one.
const AT_MOST: &str = "60s";

/// A mistake: a text that is in one place of the library, and what stands there instead.
#[derive(Debug)]
struct Mistake {
    name: String,
    right: String,
    wrong: String,
}

/// Returns the folder of the whole project.
fn project() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Reads the list.
fn list() -> io::Result<Vec<Mistake>> {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("planted.txt"))?;
    let of = |body: &str, sign: char| -> String {
        body.lines().filter_map(|line| line.strip_prefix(sign)).collect::<Vec<_>>().join("\n")
    };
    let one = |part: &str| {
        let (name, body) = part.split_once('\n')?;
        Some(Mistake { name: name.trim().to_owned(), right: of(body, '-'), wrong: of(body, '+') })
    };
    Ok(text.split("\n## ").skip(1).filter_map(one).collect())
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            sources(&path, found)?;
        } else {
            found.push(path);
        }
    }
    Ok(())
}

/// Returns the one file that has the text of a mistake.
fn place(source: &Path, mistake: &Mistake) -> Result<PathBuf, String> {
    let mut files = Vec::new();
    sources(source, &mut files).map_err(|error| error.to_string())?;
    let count =
        |path: &PathBuf| fs::read_to_string(path).map_or(0, |text| text.matches(&mistake.right).count());
    let found: Vec<_> =
        files.into_iter().map(|path| (count(&path), path)).filter(|(count, _)| *count > 0).collect();
    match found.as_slice() {
        [(1, path)] => Ok(path.clone()),
        _ => Err(format!(
            "\"{}\": its text is in {} places of the library, not in one",
            mistake.name,
            found.len()
        )),
    }
}

/// Fails if a text is not in one place.
pub(crate) fn look_for_places() -> io::Result<ExitCode> {
    for mistake in list()? {
        place(&project().join("src"), &mistake).map_err(io::Error::other)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Plants each that has one of these words in its name, or all.
pub(crate) fn search(only: &[String]) -> io::Result<ExitCode> {
    let copy = project().join("target/planted");
    copy_project(&copy)?;
    let mut missed = 0;
    for mistake in list()? {
        if !only.is_empty() && !only.iter().any(|name| mistake.name.contains(name.as_str())) {
            continue;
        }
        let path = place(&copy.join("src"), &mistake).map_err(io::Error::other)?;
        let text = fs::read_to_string(&path)?;
        fs::write(&path, text.replace(&mistake.right, &mistake.wrong))?;
        let found = found_by(&copy);
        fs::write(&path, text)?;
        match found? {
            Some((seed, law, took)) => println!("{}: seed {seed} after {took:.1?}: {law}", mistake.name),
            None => {
                missed += 1;
                println!("{}: NOT FOUND in {AT_MOST}", mistake.name);
            }
        }
    }
    Ok(if missed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Copies what git knows of, but leaves alone what is equal, which cargo need not build again.
fn copy_project(to: &Path) -> io::Result<()> {
    let listed = Command::new("git").current_dir(project()).arg("ls-files").output()?;
    for name in String::from_utf8_lossy(&listed.stdout).lines() {
        let (from, to) = (project().join(name), to.join(name));
        if from.is_symlink() {
            fs::create_dir_all(to.parent().unwrap_or(&to))?;
            if !to.is_symlink() {
                #[cfg(unix)]
                std::os::unix::fs::symlink(fs::read_link(&from)?, &to)?;
            }
        } else if let Ok(bytes) = fs::read(&from)
            && fs::read(&to).ok().as_ref() != Some(&bytes)
        {
            fs::create_dir_all(to.parent().unwrap_or(&to))?;
            fs::write(&to, bytes)?;
        }
    }
    Ok(())
}

/// Builds the simulation of a copy and runs it. Returns the seed that broke a law, the law, and how long that took.
fn found_by(copy: &Path) -> io::Result<Option<(String, String, Duration)>> {
    let built = Command::new("cargo")
        .current_dir(copy)
        .args(["build", "--quiet", "--package", "setnx-lock-simulate"])
        .env("CARGO_TARGET_DIR", copy.join("target"))
        .status()?;
    if !built.success() {
        return Err(io::Error::other("a planted mistake does not compile"));
    }
    let began = Instant::now();
    let ran = Command::new(copy.join("target/debug/simulate")).args(["--for", AT_MOST]).output()?;
    let text = String::from_utf8_lossy(&ran.stdout);
    let line = |begin: &str| text.lines().find_map(|line| line.strip_prefix(begin)).map(str::to_owned);
    let seed = line("seed ").and_then(|rest| Some(rest.split_once(' ')?.0.to_owned()));
    let law = line("broken law").unwrap_or_else(|| "it did not end".to_owned());
    Ok(seed.map(|seed| (seed, law, began.elapsed())))
}
