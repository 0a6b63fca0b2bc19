//! What a user of the package gets: its files and its dependencies.

use std::collections::BTreeSet;
use std::process::Command;
use std::{env, fs};

use cargo_metadata::{DependencyKind, Metadata, MetadataCommand};
use libtest_mimic::Failed;

use crate::support::{Outcome, trials_of};

trials_of! {
    "package";
    the_library_depends_on_these_five_crates_and_no_others,
    the_readme_pins_what_the_lock_file_has,
    the_package_has_the_library_and_its_documents_only,
}

const MANIFEST: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.toml");

fn metadata() -> Result<Metadata, cargo_metadata::Error> {
    MetadataCommand::new().manifest_path(MANIFEST).other_options(vec!["--locked".into()]).exec()
}

fn the_library_depends_on_these_five_crates_and_no_others() -> Outcome {
    let metadata = metadata()?;
    let package = metadata.root_package().expect("this package");
    let normal = package.dependencies.iter().filter(|dependency| dependency.kind == DependencyKind::Normal);
    // The attribute comes with a feature only.
    let normal = normal.filter(|dependency| !dependency.optional);
    let names = normal.map(|dependency| dependency.name.as_str());
    let (ours, names): (BTreeSet<_>, BTreeSet<_>) = names.partition(|name| name.starts_with("setnx-lock"));
    assert_eq!(ours, BTreeSet::from(["setnx-lock-fork", "setnx-lock-proto"]));
    assert_eq!(names, BTreeSet::from(["chrono", "log", "r2d2", "redis", "thiserror"]));
    Ok(())
}

fn the_readme_pins_what_the_lock_file_has() -> Outcome {
    let readme = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../README.md"))?;
    let pins: Vec<(&str, &str)> = readme
        .lines()
        .filter_map(|line| line.strip_prefix("cargo update ")?.split_once(" --precise "))
        .map(|(name, version)| (name, version.split(' ').next().unwrap_or_default()))
        .collect();
    assert_eq!(pins.len(), 2, "{pins:?}");
    let metadata = metadata()?;
    for (name, version) in pins {
        let locked = metadata
            .packages
            .iter()
            .any(|package| package.name.as_str() == name && package.version.to_string() == version);
        assert!(locked, "{name} {version} is not in Cargo.lock");
    }
    Ok(())
}

/// The output of a command of cargo about the package.
fn cargo(command: &str, arguments: &[&str]) -> Result<String, Failed> {
    let output = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args([command, "--package", "setnx-lock", "--offline", "--manifest-path", MANIFEST])
        .args(arguments)
        .output()?;
    if !output.status.success() {
        return Err(Failed::from(String::from_utf8_lossy(&output.stderr).into_owned()));
    }
    Ok(String::from_utf8(output.stdout)?)
}

fn the_package_has_the_library_and_its_documents_only() -> Outcome {
    let list = cargo("package", &["--allow-dirty", "--list"])?;
    for file in
        ["src/lib.rs", "README.md", "examples/guard.rs", "docs/limits.md", "LICENSE-MIT", "LICENSE-APACHE"]
    {
        assert!(list.lines().any(|line| line == file), "{file} is missing: {list}");
    }
    let left_out = [
        "cli/",
        "tools/",
        "contrib/",
        "fork/",
        "macros/",
        "proto/",
        "tests/",
        "benches/",
        ".ci/",
        ".github/",
        "scripts/",
        "compat/ruby/",
    ];
    let stray: Vec<&str> =
        list.lines().filter(|file| left_out.iter().any(|folder| file.starts_with(folder))).collect();
    assert!(stray.is_empty(), "{stray:?}");
    Ok(())
}
