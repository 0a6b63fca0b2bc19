//! The targets of all links and images in the documents exist, in the pages of GitHub and of rustdoc.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use libtest_mimic::{Failed, Trial};

use crate::support::{Outcome, tests};

pub(crate) fn trials() -> Vec<Trial> {
    crate::support::trials(
        "links",
        tests![
            the_documents_link_to_files_and_headings_that_exist,
            rustdoc_links_to_pages_and_anchors_that_exist,
        ],
    )
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the folder above the tests")
}

/// The files below a folder with this extension, without build output.
fn files(folder: &Path, extension: &str) -> Result<Vec<PathBuf>, std::io::Error> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            found.extend(files(&path, extension)?);
        } else if path.extension().is_some_and(|found| found == extension) {
            found.push(path);
        }
    }
    Ok(found)
}

/// The text of a document without its code.
fn prose(text: &str) -> String {
    let mut code = false;
    let lines = text.lines().filter(|line| {
        let fence = line.trim_start().starts_with("```");
        code ^= fence;
        !code && !fence
    });
    let text = lines.collect::<Vec<_>>().join("\n");
    text.split('`').step_by(2).collect::<Vec<_>>().join("`code`")
}

/// The targets of `[text](target)` and `[label]: target`, and the labels of `[text][label]` without a definition.
fn links(text: &str) -> Vec<String> {
    let definitions: BTreeMap<&str, &str> =
        text.lines().filter_map(|line| line.strip_prefix('[')?.split_once("]: ")).collect();
    let inline = text.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next());
    let labels = text.split("][").skip(1).filter_map(|rest| rest.split(']').next());
    let labels = labels.map(|label| definitions.get(label).map_or(label, |target| *target));
    inline.chain(definitions.values().copied()).chain(labels).map(str::to_owned).collect()
}

/// The anchors that GitHub makes of a document's headings.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    let mut code = false;
    for line in text.lines() {
        code ^= line.starts_with("```");
        let Some((_, heading)) = line
            .split_once(' ')
            .filter(|(marks, _)| !code && marks.trim_matches('#').is_empty() && !marks.is_empty())
        else {
            continue;
        };
        let kept = heading
            .to_lowercase()
            .chars()
            .filter(|c| c.is_alphanumeric() || " -_".contains(*c))
            .collect::<String>();
        anchors.insert(kept.replace(' ', "-"));
    }
    anchors
}

fn the_documents_link_to_files_and_headings_that_exist() -> Outcome {
    let mut broken = Vec::new();
    let mut seen = 0;
    for file in files(root(), "md")? {
        let text = fs::read_to_string(&file)?;
        for link in links(&prose(&text)) {
            seen += 1;
            if link.starts_with("https://") {
                continue;
            }
            let (path, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let target =
                if path.is_empty() { file.clone() } else { file.parent().unwrap_or(root()).join(path) };
            let found = target.exists()
                && (anchor.is_empty() || anchors(&fs::read_to_string(&target)?).contains(anchor));
            if !found {
                broken.push(format!("{}: {link}", file.strip_prefix(root())?.display()));
            }
        }
    }
    assert!(seen > 40, "only {seen} links were found");
    assert!(broken.is_empty(), "{broken:#?}");
    Ok(())
}

/// The values of an attribute in a page.
fn attributes<'a>(page: &'a str, name: &str) -> Vec<&'a str> {
    let mark = format!("{name}=\"");
    page.split(mark.as_str()).skip(1).filter_map(|rest| rest.split('"').next()).collect()
}

fn rustdoc_links_to_pages_and_anchors_that_exist() -> Outcome {
    let built = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["doc", "--package", "setnx-lock", "--no-deps", "--quiet"])
        .args(["--features", "tls-rustls,macros", "--manifest-path"])
        .arg(root().join("Cargo.toml"))
        .env("RUSTDOCFLAGS", "-D warnings")
        .output()?;
    if !built.status.success() {
        return Err(Failed::from(String::from_utf8_lossy(&built.stderr).into_owned()));
    }
    let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
    let docs = target.join("doc/setnx_lock");
    let mut pages = BTreeMap::new();
    for page in files(&docs, "html")? {
        pages.insert(page.canonicalize()?, fs::read_to_string(&page)?);
    }
    let mut broken = Vec::new();
    for (file, page) in &pages {
        for link in attributes(page, "href").into_iter().chain(attributes(page, "src")) {
            let outside = link.contains("://") || link.starts_with("data:") || link.contains("static.files");
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            // Source views and the help page are rustdoc's own.
            if outside || path.contains("src/setnx_lock") || path.ends_with("help.html") {
                continue;
            }
            let folder = file.parent().unwrap_or(root());
            let target = if path.is_empty() { Ok(file.clone()) } else { folder.join(path).canonicalize() };
            let found = target.is_ok_and(|target| match pages.get(&target) {
                Some(page) => anchor.is_empty() || page.contains(&format!("id=\"{anchor}\"")),
                None => true,
            });
            if !found {
                broken.push(format!("{}: {link}", file.display()));
            }
        }
    }
    assert!(pages.len() > 40, "only {} pages were found in {}", pages.len(), docs.display());
    assert!(broken.is_empty(), "{broken:#?}");
    Ok(())
}
