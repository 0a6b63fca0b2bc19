//! The folders of the source are layers: imports point downwards.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use crate::support::{Outcome, trials_of};

trials_of! {
    "layers";
    no_layer_imports_one_above_it,
    powers_import_the_public_face_and_what_extends_it,
    turns_know_of_no_lease,
    what_the_rest_knows_of_the_network_is_on_its_page,
    no_files_import_each_other,
    no_two_types_have_one_name,
    the_order_to_read_in_is_of_files_and_the_same_in_both_places,
}

/// Each with those that are not below it: what is above, and what stands beside it.
const LAYERS: [(&str, &[&str]); 8] = [
    ("values", &["powers", "extend", "api", "run", "report", "net", "wait", "system"]),
    ("system", &["powers", "extend", "api", "run", "report", "net", "wait"]),
    ("wait", &["powers", "extend", "api", "run", "report", "net"]),
    ("net", &["powers", "extend", "api", "run", "report", "wait"]),
    ("report", &["powers", "extend", "api", "run", "wait"]),
    ("run", &["powers", "extend", "api"]),
    ("api", &["powers", "extend"]),
    ("extend", &["powers"]),
];

/// The modules that what is made of locks may use besides the public face.
const OF_POWERS: [&str; 3] = ["extend", "powers", "system"];

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

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the folder above")
}

fn source() -> PathBuf {
    root().join("src")
}

/// The rules: a crate, which the compiler keeps below the library.
fn rules() -> PathBuf {
    root().join("proto/src")
}

fn no_layer_imports_one_above_it() -> Outcome {
    let source = source();
    let mut imports = 0;
    for (layer, others) in LAYERS {
        let folder = source.join(layer);
        let mut files = if folder.exists() { files(&folder)? } else { Vec::new() };
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
    assert!(imports > 300, "only {imports} imports were found");
    for file in files(&rules().join("values"))? {
        let text = fs::read_to_string(&file)?;
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        let above = code.lines().find(|line| line.contains("crate::") && !line.contains("crate::values::"));
        assert_eq!(above.filter(|line| !line.trim_start().starts_with("//")), None, "{}", file.display());
    }
    Ok(())
}

fn powers_import_the_public_face_and_what_extends_it() -> Outcome {
    let is_of_powers = |module: &str| module.starts_with("crate::powers") && !module.ends_with("::tests");
    let Modules(modules) = Modules::of(&source())?;
    let powers = modules.iter().filter(|(module, _)| is_of_powers(module));
    let mut imports = BTreeSet::new();
    for (module, own) in powers {
        for path in own.iter().filter_map(|(path, _)| path.strip_prefix("crate::")) {
            // What is public is named at the root.
            let of = path.split_once("::").map_or("the root", |(of, _)| of);
            assert!(of == "the root" || OF_POWERS.contains(&of), "{module}: crate::{path}");
            imports.insert(of);
        }
        let file = source().join(module.replace("::", "/").replacen("crate/", "", 1)).with_extension("rs");
        let text = fs::read_to_string(file)?;
        let code = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
        let lines = || code.lines().filter(|line| !line.trim_start().starts_with("//"));
        let is_path = |line: &&str| line.contains("crate::") && !line.starts_with("use ");
        assert_eq!(lines().find(is_path), None, "{module}: import it");
        let is_below = |line: &&str| line.contains(".engine()") || line.contains(".hold()");
        assert_eq!(lines().find(is_below), None, "{module}: that is below the face");
    }
    assert_eq!(imports.into_iter().collect::<Vec<_>>(), ["extend", "powers", "system", "the root"]);
    Ok(())
}

/// Turns may be wrong without harm: they have nothing by which a lock is acquired or released.
fn turns_know_of_no_lease() -> Outcome {
    const RULES: [&str; 6] = ["values", "waiting_list", "window", "Command", "Reply", "Trip"];
    const RUN: [&str; 3] = ["held::Holder", "held::Queue", "sink"];
    let Modules(modules) = Modules::of(&source())?;
    let turns = modules.iter().filter(|(module, _)| module.starts_with("crate::run::turns"));
    let mut found = 0;
    for (path, _) in turns.flat_map(|(_, imports)| imports) {
        let is_one_of = |path: &str, of: &[&str]| of.iter().any(|one| path.starts_with(one));
        let is_allowed = match path.split_once("::") {
            Some(("proto", path)) => is_one_of(path, &RULES),
            Some(("crate", path)) => match path.strip_prefix("run::") {
                Some(path) => path.starts_with("turns") || is_one_of(path, &RUN),
                None => true,
            },
            _ => true,
        };
        assert!(is_allowed, "{path}");
        found += usize::from(path.starts_with("proto::"));
    }
    assert!(found > 5, "only {found} imports of rules were found");
    Ok(())
}

/// The page says what holds for each name.
fn what_the_rest_knows_of_the_network_is_on_its_page() -> Outcome {
    const RULES: [&str; 5] = ["values::", "Expected", "Reply", "fencing::Epoch", "lease::End"];
    let Modules(modules) = Modules::of(&source())?;
    let (mut known, mut of_rules) = (BTreeSet::new(), BTreeSet::new());
    for (module, imports) in &modules {
        let is_of_net = module == "crate::net" || module.starts_with("crate::net::");
        for (path, _) in imports {
            match (is_of_net, path.strip_prefix("proto::"), path.strip_prefix("crate::net::")) {
                (true, Some(rule), _) => drop(of_rules.insert(rule.to_owned())),
                (false, _, Some(name)) if !module.contains("tests") => drop(known.insert(name.to_owned())),
                _ => {}
            }
        }
    }
    let unknown = of_rules.iter().find(|rule| !RULES.iter().any(|known| rule.starts_with(known)));
    assert_eq!(unknown, None, "the network carries what the rules decide");
    let page = fs::read_to_string(source().join("net.rs"))?;
    let is_on_the_page = |name: &&String| page.contains(&format!("//! | [`{name}`] | "));
    let seen_by_users = ["Refusal", "RefusalKind", "TransportError"];
    let (on_it, others): (Vec<_>, Vec<_>) = known.iter().partition(is_on_the_page);
    assert_eq!(others, seen_by_users, "names that are not on its page");
    assert_eq!(on_it.len(), 12, "{on_it:?}");
    Ok(())
}

/// What each module imports, by whole paths: names with their modules, and whether they are exported from there.
struct Modules(BTreeMap<String, Vec<(String, bool)>>);

impl Modules {
    fn of(source: &Path) -> Result<Self, std::io::Error> {
        let mut modules = BTreeMap::new();
        for file in files(source)? {
            let text = fs::read_to_string(&file)?;
            let module = file.strip_prefix(source).expect("it is below").with_extension("");
            let module = format!("crate::{}", module.display()).replace('/', "::");
            let module = if module == "crate::lib" { "crate".to_owned() } else { module };
            let code = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
            let mut imports = Vec::new();
            for statement in
                code.split(";\n").map(|statement| statement.rsplit("\n\n").next().unwrap_or_default())
            {
                // A comment, or the feature that has it.
                let is_beside = |line: &&str| line.starts_with("//") || line.starts_with("#[cfg(feature");
                let statement = statement.lines().filter(|line| !is_beside(line)).collect::<String>();
                let Some((exported, tree)) = statement.split_once("use ") else { continue };
                if exported.is_empty() || exported.starts_with("pub") && exported.ends_with(' ') {
                    leaves("", tree, &mut |leaf| imports.push((whole(&module, leaf), !exported.is_empty())));
                }
            }
            modules.insert(module, imports);
        }
        Ok(Self(modules))
    }

    /// Returns the module that has what is imported by this path.
    fn home(&self, path: &str) -> Option<&str> {
        let (module, name) = path.rsplit_once("::")?;
        if let Some((module, _)) = self.0.get_key_value(path) {
            return Some(module);
        }
        let Some((module, imports)) = self.0.get_key_value(module) else { return self.home(module) };
        let exported =
            imports.iter().find(|(import, exported)| *exported && import.ends_with(&format!("::{name}")));
        exported.map_or(Some(module), |(import, _)| self.home(import))
    }
}

/// Calls `each` for what a tree of imports names.
fn leaves(prefix: &str, tree: &str, each: &mut dyn FnMut(&str)) {
    let tree = tree.trim();
    let Some((head, rest)) = tree.split_once('{') else {
        return each(format!("{prefix}{tree}").trim_end_matches("::self"));
    };
    let (mut depth, prefix) = (0, format!("{prefix}{head}"));
    let parts = rest.trim_end_matches('}').split(|c| {
        depth += i32::from(c == '{') - i32::from(c == '}');
        c == ',' && depth == 0
    });
    parts.filter(|part| !part.trim().is_empty()).for_each(|part| leaves(&prefix, part, each));
}

/// Returns the whole path of what a module imports.
fn whole(module: &str, leaf: &str) -> String {
    let (mut base, mut leaf) = (module, leaf.split(" as ").next().unwrap_or_default());
    while let Some(rest) = leaf.strip_prefix("super::") {
        (base, leaf) = (base.rsplit_once("::").map_or("crate", |(above, _)| above), rest);
    }
    let is_whole = ["crate::", "proto::"].iter().any(|root| leaf.starts_with(root));
    if is_whole { leaf.to_owned() } else { format!("{base}::{leaf}") }
}

fn no_files_import_each_other() -> Outcome {
    look_for_circles(&source(), 300)?;
    look_for_circles(&rules(), 100)
}

/// Fails if files of a crate import each other. At least so many imports have to be found.
fn look_for_circles(source: &Path, least: usize) -> Outcome {
    let modules = Modules::of(source)?;
    let mut imported: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (module, imports) in &modules.0 {
        let homes =
            imports.iter().filter(|(_, exported)| !exported).filter_map(|(import, _)| modules.home(import));
        // A file in the folder of another is a part of it.
        let is_part = |home: &&str| module.starts_with(&format!("{home}::"));
        imported.insert(module, homes.filter(|home| home != module && !is_part(home)).collect());
    }
    assert!(imported.values().map(BTreeSet::len).sum::<usize>() > least, "{imported:?}");
    // What imports nothing that is left, or is imported by nothing, is in no circle.
    let is_in_none = |(module, own): (&&str, &BTreeSet<&str>), all: &BTreeMap<&str, BTreeSet<&str>>| {
        own.is_empty() || !all.values().any(|imports| imports.contains(*module))
    };
    while let Some(module) =
        imported.iter().find(|one| is_in_none(*one, &imported)).map(|(module, _)| *module)
    {
        imported.remove(module);
        for imports in imported.values_mut() {
            imports.retain(|import| *import != module);
        }
    }
    assert!(imported.is_empty(), "these import each other: {imported:#?}");
    Ok(())
}

fn the_order_to_read_in_is_of_files_and_the_same_in_both_places() -> Outcome {
    let source = source();
    let begins = ["1 without", "2 with", "3 the"];
    let lines = |text: &str| -> Vec<String> {
        let plain = text.replace(".rs", "").replace("// ", "").replace(['`', ';', '.'], "");
        plain
            .lines()
            .filter(|line| begins.iter().any(|begin| line.starts_with(begin)))
            .map(str::to_owned)
            .collect()
    };
    let code = lines(&fs::read_to_string(source.join("lib.rs"))?);
    assert_eq!(lines(&fs::read_to_string(source.join("../CONTRIBUTING.md"))?), code);
    assert_eq!(code.len(), 3);
    for file in code.iter().flat_map(|line| line.split_once(": ").expect("files").1.split(", ")) {
        let path = match file.strip_prefix("proto/") {
            Some(file) => rules().join(file),
            None => source.join(file),
        };
        assert!(path.with_extension("rs").exists(), "{file}");
    }
    Ok(())
}

/// Apart from tests, and what stands for a server in them. Aliases are not looked at.
fn no_two_types_have_one_name() -> Outcome {
    let mut named = BTreeMap::<String, Vec<PathBuf>>::new();
    let is_of_tests = |file: &PathBuf| {
        let path = file.strip_prefix(root()).unwrap_or(file).to_string_lossy();
        ["tests", "scripted", "fake"].iter().any(|part| path.contains(part))
    };
    for file in files(&source())?.into_iter().chain(files(&rules())?).filter(|file| !is_of_tests(file)) {
        for line in fs::read_to_string(&file)?.lines().filter(|line| !line.starts_with([' ', '/'])) {
            let is_type = |word: &&str| ["struct", "enum", "trait"].contains(word);
            if let Some(name) = line.split(' ').skip_while(|word| !is_type(word)).nth(1) {
                let name = name.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
                named.entry(name.to_owned()).or_default().push(file.clone());
            }
        }
    }
    assert!(named.len() > 200, "only {} types were found", named.len());
    let twice: Vec<_> = named.into_iter().filter(|(_, files)| files.len() > 1).collect();
    assert!(twice.is_empty(), "{twice:#?}");
    Ok(())
}
