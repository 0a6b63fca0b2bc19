//! The targets of all links and images in the documents exist. `make docs` checks the links of rustdoc.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use crate::support::{Outcome, trials_of};

trials_of! {
    "links";
    the_documents_link_to_files_and_headings_that_exist,
    a_page_in_the_crate_s_documentation_leads_to_modules,
    the_rules_link_to_pages_of_the_library,
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

/// The definitions of links at the end of a page lead to files, which the crate's documentation does not have.
fn a_page_in_the_crate_s_documentation_leads_to_modules() -> Outcome {
    let defined = |text: &str| -> BTreeSet<String> {
        text.lines()
            .filter_map(|line| Some(line.strip_prefix('[')?.split_once("]: ")?.0.to_owned()))
            .collect()
    };
    let modules = defined(&fs::read_to_string(root().join("src/documentation/links.txt"))?);
    let mut used = BTreeSet::new();
    let pages = fs::read_to_string(root().join("src/documentation.rs"))?;
    for page in pages.lines().filter_map(|line| line.trim().strip_suffix("\";")?.split_once(": \"")) {
        let text = fs::read_to_string(root().join("docs").join(page.1))?;
        let inline: Vec<_> = prose(&text).split("](").skip(1).map(str::to_owned).collect();
        let relative =
            inline.iter().find(|target| !target.starts_with("https://") && !target.starts_with('#'));
        assert_eq!(relative, None, "{}: write [text][page.md#heading], and define it at the end", page.1);
        used.extend(defined(&text));
    }
    assert_eq!(used, modules, "src/documentation/links.txt has exactly the labels that the pages define");
    Ok(())
}

/// The rules cannot name the library's items, so that rustdoc checks none of their links to its pages.
fn the_rules_link_to_pages_of_the_library() -> Outcome {
    let mut seen = 0;
    for file in files(&root().join("proto/src"), "rs")? {
        let text = fs::read_to_string(&file)?;
        for link in text.split("](https://docs.rs/setnx-lock/latest/setnx_lock/documentation/").skip(1) {
            let link = link.split(')').next().unwrap_or_default();
            let (page, anchor) = link.split_once("/index.html#").expect("a page and a heading");
            let page = fs::read_to_string(root().join(format!("docs/{}.md", page.replace('_', "-"))))?;
            assert!(anchors(&page).contains(anchor), "{}: {link}", file.display());
            seen += 1;
        }
    }
    assert!(seen > 1, "only {seen} links were found");
    Ok(())
}
