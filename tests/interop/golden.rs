//! The files in `compat/golden` are the present output of Ruby, and this library builds the same keys.

use std::fs;
use std::path::Path;

use setnx_lock::{DeclaredLock, Key, LockOptions};

use crate::support::ruby::{CLASSIC, RealGem, explained};
use crate::support::{Outcome, trials_of};

trials_of! {
    "golden";
    the_files_are_the_output_of_ruby,
    a_gem_builds_the_keys_of_the_files,
    declared_keys_equal_the_gem_s,
    joined_keys_equal_the_gem_s,
}

fn folder() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../compat/golden")
}

fn the_files_are_the_output_of_ruby() -> Outcome {
    let made = tempfile::tempdir()?;
    let status = CLASSIC.port("golden.rb").arg(made.path()).status().map_err(explained)?;
    assert!(status.success(), "{status}");
    let names: Vec<_> = fs::read_dir(made.path())?.map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names.len(), fs::read_dir(folder())?.count());
    for name in names {
        let (made, kept) = (fs::read(made.path().join(&name))?, fs::read(folder().join(&name))?);
        assert!(
            made == kept,
            "{} differs; `make golden` writes it anew and shows the difference",
            name.display()
        );
    }
    Ok(())
}

/// Without a real gem in the environment this is the port's output again, as that of its own rules.
fn a_gem_builds_the_keys_of_the_files() -> Outcome {
    /// The keys that the earliest gems can build, nearly.
    const LEAST: usize = 60;
    let real = RealGem::of_the_environment()?;
    let gem = real.as_ref().map_or(CLASSIC, |real| real.family);
    let made = tempfile::tempdir()?;
    let status =
        gem.ruby("golden.rb", "redis://127.0.0.1:1/").arg(made.path()).status().map_err(explained)?;
    assert!(status.success(), "{status}");
    assert!(fs::read(made.path().join("floats.tsv"))? == fs::read(folder().join("floats.tsv"))?);
    let kept = rows_of(&folder().join("keys.tsv"))?;
    let keys = rows_of(&made.path().join("keys.tsv"))?;
    let version = real.map_or("the port".into(), |real| real.version);
    assert!(keys.len() > LEAST, "{version} has built {} keys", keys.len());
    for key in keys {
        assert!(kept.contains(&key), "{version} builds another key than the file has: {key:?}");
    }
    for joined in rows_of(&made.path().join("joined.tsv"))? {
        assert!(rows("joined.tsv")?.contains(&joined), "{version} joins another key: {joined:?}");
    }
    Ok(())
}

/// The rows of a golden file, each with its columns.
fn rows(name: &str) -> Result<Vec<Vec<String>>, std::io::Error> {
    rows_of(&folder().join(name))
}

fn rows_of(file: &Path) -> Result<Vec<Vec<String>>, std::io::Error> {
    let text = fs::read_to_string(file)?;
    let rows = text.lines().filter(|line| !line.starts_with('#'));
    Ok(rows.map(|line| line.split('\t').map(str::to_owned).collect()).collect())
}

fn declared_keys_equal_the_gem_s() -> Outcome {
    let options = LockOptions::without_expiration();
    let rows = rows("keys.tsv")?;
    assert!(rows.len() > 150);
    for row in rows {
        // A declaration needs `'static` texts.
        let [rule, class, prefix, lock, id, template, key] = &*row.leak() else {
            panic!("a row has seven columns")
        };
        let declared = match prefix.as_str() {
            "-" => DeclaredLock::in_class(class, lock, options),
            "EMPTY" => DeclaredLock::with_prefix("", lock, options),
            prefix => DeclaredLock::with_prefix(prefix, lock, options),
        };
        let declared = if rule == "modern" { declared.modern_prefix() } else { declared };
        let declared = if template == "-" { declared } else { declared.key_template(template) };
        let built = match id.parse::<f64>() {
            _ if id == "-" => declared.global_key(),
            Ok(float) if id.parse::<i64>().is_err() => declared.key(float)?,
            _ => declared.key(id)?,
        };
        assert_eq!(built.to_string(), *key, "{rule} {class} {lock} {id} {template}");
    }
    Ok(())
}

fn joined_keys_equal_the_gem_s() -> Outcome {
    for row in rows("joined.tsv")? {
        assert_eq!(Key::joined(row[0].split(' ')).to_string(), row[1]);
    }
    Ok(())
}
