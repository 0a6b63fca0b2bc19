//! What a user of the package gets: its files, its dependencies, and the oldest Rust that builds it.

use std::collections::BTreeSet;
use std::process::Command;
use std::{env, fs};

use cargo_metadata::{CargoOpt, DependencyKind, Metadata, MetadataCommand, Package};
use libtest_mimic::{Failed, Trial};

use crate::support::{Outcome, tests};

pub(crate) fn trials() -> Vec<Trial> {
    crate::support::trials(
        "package",
        tests![
            the_library_depends_on_these_five_crates_and_no_others,
            the_attribute_comes_with_its_feature_only,
            nothing_in_the_locked_tree_needs_a_newer_rust_than_declared,
            the_readme_pins_what_the_lock_file_has,
            the_package_has_the_library_and_its_documents_only,
            the_package_is_small,
        ],
    )
}

const MANIFEST: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.toml");

fn metadata(features: &[&str]) -> Result<Metadata, cargo_metadata::Error> {
    let features = CargoOpt::SomeFeatures(features.iter().map(ToString::to_string).collect());
    MetadataCommand::new()
        .manifest_path(MANIFEST)
        .features(features)
        .other_options(vec!["--locked".into()])
        .exec()
}

fn the_library_depends_on_these_five_crates_and_no_others() -> Outcome {
    let metadata = metadata(&[])?;
    let package = metadata.root_package().expect("this package");
    let normal = package.dependencies.iter().filter(|dependency| dependency.kind == DependencyKind::Normal);
    // The tool's, and nothing else, come with a feature only.
    let normal = normal.filter(|dependency| !dependency.optional);
    let names: BTreeSet<&str> = normal.map(|dependency| dependency.name.as_str()).collect();
    assert_eq!(names, BTreeSet::from(["chrono", "log", "r2d2", "redis", "thiserror"]));
    Ok(())
}

fn the_attribute_comes_with_its_feature_only() -> Outcome {
    let package = "setnx-lock-macros";
    // The suite uses the attribute, so the tree is that of the library alone.
    let tree = |features: &str| -> Result<bool, Failed> {
        let output = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
            .args([
                "tree",
                "--package",
                "setnx-lock",
                "--edges",
                "normal",
                "--prefix",
                "none",
                "--offline",
                "--locked",
            ])
            .args(["--features", features, "--manifest-path", MANIFEST])
            .output()?;
        let tree = String::from_utf8(output.stdout)?;
        assert!(tree.contains("redis v"), "{tree}");
        Ok(tree.contains(package))
    };
    assert!(!tree("")? && !tree("cli")? && tree("macros")?);
    Ok(())
}

fn nothing_in_the_locked_tree_needs_a_newer_rust_than_declared() -> Outcome {
    let metadata = metadata(&["cli", "macros"])?;
    let declared =
        metadata.root_package().expect("this package").rust_version.clone().expect("a rust-version");
    let newer: Vec<String> = in_the_library(&metadata)
        .filter_map(|package| {
            package.rust_version.as_ref().filter(|needed| **needed > declared).map(|needed| (package, needed))
        })
        .map(|(package, needed)| format!("{} {} needs Rust {needed}", package.name, package.version))
        .collect();
    assert!(newer.is_empty(), "with Rust {declared}: {newer:?}");
    Ok(())
}

fn the_readme_pins_what_the_lock_file_has() -> Outcome {
    let readme = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../README.md"))?;
    let pins: Vec<(&str, &str)> = readme
        .split("`cargo update ")
        .skip(1)
        .filter_map(|text| text.split('`').next()?.split_once(" --precise "))
        .collect();
    assert!(!pins.is_empty());
    let metadata = metadata(&[])?;
    for (name, version) in pins {
        let locked = metadata
            .packages
            .iter()
            .any(|package| package.name.as_str() == name && package.version.to_string() == version);
        assert!(locked, "{name} {version} is not in Cargo.lock");
    }
    Ok(())
}

/// The packages that a user of the library or the tool builds: those that normal dependencies lead to.
fn in_the_library(metadata: &Metadata) -> impl Iterator<Item = &Package> {
    let resolve = metadata.resolve.as_ref().expect("resolved");
    let mut found = BTreeSet::new();
    let mut open = vec![resolve.root.clone().expect("this package")];
    while let Some(id) = open.pop() {
        let node = resolve.nodes.iter().find(|node| node.id == id).expect("in the tree");
        let normal = node
            .deps
            .iter()
            .filter(|dep| dep.dep_kinds.iter().any(|kind| kind.kind == DependencyKind::Normal));
        if found.insert(id) {
            open.extend(normal.map(|dep| dep.pkg.clone()));
        }
    }
    metadata.packages.iter().filter(move |package| found.contains(&package.id))
}

/// The output of `cargo package` with these arguments.
fn cargo_package(arguments: &[&str]) -> Result<String, Failed> {
    let output = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["package", "--package", "setnx-lock", "--allow-dirty", "--offline"])
        .args(["--manifest-path", MANIFEST])
        .args(arguments)
        .output()?;
    if !output.status.success() {
        return Err(Failed::from(String::from_utf8_lossy(&output.stderr).into_owned()));
    }
    Ok(String::from_utf8(output.stdout)?)
}

fn the_package_has_the_library_and_its_documents_only() -> Outcome {
    let list = cargo_package(&["--list"])?;
    for file in ["src/lib.rs", "README.md", "docs/limits.md", "LICENSE-MIT", "LICENSE-APACHE"] {
        assert!(list.lines().any(|line| line == file), "{file} is missing: {list}");
    }
    let left_out = ["tests/", "benches/src/", ".ci/", ".github/", "scripts/", "compat/ruby/"];
    let stray: Vec<&str> =
        list.lines().filter(|file| left_out.iter().any(|folder| file.starts_with(folder))).collect();
    assert!(stray.is_empty(), "{stray:?}");
    Ok(())
}

fn the_package_is_small() -> Outcome {
    let folder = tempfile::tempdir()?;
    let target = folder.path().display().to_string();
    // The library names the package of its attribute by its version, which is in no registry before both are published.
    cargo_package(&["--package", "setnx-lock-macros", "--no-verify", "--quiet", "--target-dir", &target])?;
    let mut packages = Vec::new();
    for entry in fs::read_dir(folder.path().join("package"))? {
        let entry = entry?;
        if entry.path().extension().is_some_and(|extension| extension == "crate") {
            packages.push(entry.metadata()?.len());
        }
    }
    packages.sort_unstable();
    assert!(matches!(packages[..], [1..40_000, 1..450_000]), "{packages:?} bytes, compressed");
    Ok(())
}
