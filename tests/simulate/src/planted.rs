//! Planted mistakes: each is made in a copy of the library, and a seed
//! must show it. A law that finds none of them would prove nothing.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};
use std::{fs, io};

use crate::scenes::SCENES;

/// How long fleets are searched for one.
const AT_MOST: Duration = Duration::from_secs(60);
/// With how many seeds each scene is run before fleets are searched.
const SEEDS_OF_SCENES: &str = "16";

/// A mistake: texts, each in one place of the library, and what stands there instead.
#[derive(Debug)]
struct Mistake {
    name: String,
    changes: Vec<Change>,
}

#[derive(Debug)]
struct Change {
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
    let lines = |body: &str, sign: char| -> String {
        body.lines().filter_map(|line| line.strip_prefix(sign)).collect::<Vec<_>>().join("\n")
    };
    let change = |body: &str| Change { right: lines(body, '-'), wrong: lines(body, '+') };
    let mistake = |part: &str| {
        let (name, body) = part.split_once('\n')?;
        Some(Mistake {
            name: name.trim().to_owned(),
            changes: body.trim_end().split("\n\n").map(change).collect(),
        })
    };
    Ok(text.split("\n## ").skip(1).filter_map(mistake).collect())
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() && !path.is_symlink() {
            sources(&path, found)?;
        } else {
            found.push(path);
        }
    }
    Ok(())
}

/// Returns the one file of the library in this project that has the text of a change.
fn place(project: &Path, name: &str, change: &Change) -> io::Result<PathBuf> {
    let mut files = Vec::new();
    sources(&project.join("src"), &mut files)?;
    sources(&project.join("proto/src"), &mut files)?;
    let count =
        |path: &PathBuf| fs::read_to_string(path).map_or(0, |text| text.matches(&change.right).count());
    let found: Vec<_> =
        files.into_iter().map(|path| (count(&path), path)).filter(|(count, _)| *count > 0).collect();
    match found.as_slice() {
        [(1, path)] => Ok(path.clone()),
        _ => {
            let places: usize = found.iter().map(|(count, _)| count).sum();
            Err(io::Error::other(format!(
                "\"{name}\": {:?} is in {places} places of the library",
                change.right
            )))
        }
    }
}

/// Fails if a text is not in one place.
pub(crate) fn look_for_places() -> io::Result<ExitCode> {
    for mistake in list()? {
        for change in &mistake.changes {
            place(&project(), &mistake.name, change)?;
        }
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
        let mut before = Vec::new();
        for change in &mistake.changes {
            let path = place(&copy, &mistake.name, change)?;
            let text = fs::read_to_string(&path)?;
            fs::write(&path, text.replace(&change.right, &change.wrong))?;
            before.push((path, text));
        }
        let found = found_by(&copy);
        for (path, text) in before.into_iter().rev() {
            fs::write(path, text)?;
        }
        match found? {
            Some((shown_by, law, took)) => println!("{}: {shown_by} after {took:.1?}: {law}", mistake.name),
            None => {
                missed += 1;
                println!("{}: NOT FOUND, by no scene, nor by fleets in {AT_MOST:?}", mistake.name);
            }
        }
    }
    Ok(if missed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Copies what git knows of, but leaves alone what is equal,
/// which cargo need not build again. What git knows no more goes.
fn copy_project(to: &Path) -> io::Result<()> {
    let listed = Command::new("git").current_dir(project()).arg("ls-files").output()?;
    let listed = String::from_utf8_lossy(&listed.stdout);
    let known: HashSet<PathBuf> = listed.lines().map(|name| to.join(name)).collect();
    let mut old = Vec::new();
    for folder in
        ["src", "proto", "tests"].map(|folder| to.join(folder)).into_iter().filter(|old| old.exists())
    {
        sources(&folder, &mut old)?;
    }
    for path in old.into_iter().filter(|path| path.is_symlink() || !known.contains(path)) {
        fs::remove_file(path)?;
    }
    for name in listed.lines() {
        let (from, to) = (project().join(name), to.join(name));
        if let Ok(bytes) = fs::read(&from)
            && fs::read(&to).ok().as_ref() != Some(&bytes)
        {
            fs::create_dir_all(to.parent().unwrap_or(&to))?;
            fs::write(&to, bytes)?;
        }
    }
    Ok(())
}

/// Builds the simulation of a copy and runs it: each scene, and then
/// fleets. Returns where a law was broken, the law, and how long that took.
fn found_by(copy: &Path) -> io::Result<Option<(String, String, Duration)>> {
    let built = Command::new("cargo")
        .current_dir(copy)
        .args(["build", "--quiet", "--package", "setnx-lock-simulate"])
        .env("CARGO_TARGET_DIR", copy.join("target"))
        .output()?;
    if !built.status.success() {
        let text = String::from_utf8_lossy(&built.stderr);
        return Err(io::Error::other(format!("a planted mistake does not compile:\n{text}")));
    }
    let began = Instant::now();
    let run = |searched: &[&str]| {
        let ran = Command::new(copy.join("target/debug/simulate")).arg("--whole").args(searched).output()?;
        let text = String::from_utf8_lossy(&ran.stdout);
        let line = |begin: &str| text.lines().find_map(|line| line.strip_prefix(begin)).map(str::to_owned);
        let seed = line("seed ").and_then(|rest| Some(rest.split_once(' ')?.0.to_owned()));
        // A run that ends in another way shows nothing.
        io::Result::Ok(seed.zip(line("broken law")))
    };
    for (scene, _) in SCENES {
        if let Some((seed, law)) = run(&["--scene", scene, "--seeds", SEEDS_OF_SCENES])? {
            return Ok(Some((format!("scene {scene}, seed {seed}"), law, began.elapsed())));
        }
    }
    let found = run(&["--for", &format!("{}s", AT_MOST.as_secs())])?;
    Ok(found.map(|(seed, law)| (format!("seed {seed}"), law, began.elapsed())))
}
