//! The folders of the source are layers: imports point downwards.

use std::fs;
use std::path::{Path, PathBuf};

use libtest_mimic::Trial;

use crate::support::{Outcome, tests};

pub(crate) fn trials() -> Vec<Trial> {
    crate::support::trials("layers", tests![no_layer_imports_one_above_it])
}

/// Each with those that are not below it: what is above, and what stands beside it.
const LAYERS: [(&str, &[&str]); 7] = [
    ("values", &["api", "run", "report", "net", "wait", "rules"]),
    ("rules", &["api", "run", "report", "net", "wait"]),
    ("wait", &["api", "run", "report", "net"]),
    ("net", &["api", "run", "report", "wait"]),
    ("report", &["api", "run", "wait"]),
    ("run", &["api"]),
    ("api", &[]),
];

fn files(folder: &Path) -> Result<Vec<PathBuf>, std::io::Error> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(files(&path)?);
        } else {
            found.push(path);
        }
    }
    Ok(found)
}

fn no_layer_imports_one_above_it() -> Outcome {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the folder above").join("src");
    let mut imports = 0;
    for (layer, others) in LAYERS {
        let mut files = files(&source.join(layer))?;
        files.push(source.join(format!("{layer}.rs")));
        for file in files {
            let text = fs::read_to_string(&file)?;
            for line in text.lines().map(str::trim_start).filter(|line| !line.starts_with("//")) {
                imports += usize::from(line.starts_with("use crate::"));
                for other in others {
                    assert!(!line.contains(&format!("crate::{other}::")), "{}: {line}", file.display());
                }
            }
        }
    }
    assert!(imports > 500, "only {imports} imports were found");
    Ok(())
}
