//! What the package promises: which crates it brings along, and the oldest Rust it builds with.

use std::collections::BTreeSet;

use cargo_metadata::{DependencyKind, Metadata, MetadataCommand, Package};
use libtest_mimic::Trial;

use crate::support::{Outcome, tests};

pub(crate) fn trials() -> Vec<Trial> {
    crate::support::trials(
        "package",
        tests![
            the_library_depends_on_these_five_crates_and_no_others,
            nothing_in_the_locked_tree_needs_a_newer_rust_than_we_say,
        ],
    )
}

fn metadata() -> Result<Metadata, cargo_metadata::Error> {
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    MetadataCommand::new().manifest_path(manifest).other_options(vec!["--locked".into()]).exec()
}

fn the_library_depends_on_these_five_crates_and_no_others() -> Outcome {
    let metadata = metadata()?;
    let package = metadata.root_package().expect("this package");
    let normal = package.dependencies.iter().filter(|dependency| dependency.kind == DependencyKind::Normal);
    let names: BTreeSet<&str> = normal.map(|dependency| dependency.name.as_str()).collect();
    assert_eq!(names, BTreeSet::from(["chrono", "log", "r2d2", "redis", "thiserror"]));
    Ok(())
}

fn nothing_in_the_locked_tree_needs_a_newer_rust_than_we_say() -> Outcome {
    let metadata = metadata()?;
    let ours = metadata.root_package().expect("this package").rust_version.clone().expect("it is declared");
    let newer: Vec<String> = in_the_library(&metadata)
        .filter_map(|package| {
            package.rust_version.as_ref().filter(|needed| **needed > ours).map(|needed| (package, needed))
        })
        .map(|(package, needed)| format!("{} {} needs Rust {needed}", package.name, package.version))
        .collect();
    assert!(newer.is_empty(), "with Rust {ours}: {newer:?}");
    Ok(())
}

/// The packages that a user of the library builds: reached by normal dependencies alone.
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
