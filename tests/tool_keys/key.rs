//! `key`: the keys that the gem uses.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::program::{ran, to_the_end};
use crate::support::tool::tool;
use crate::support::{Outcome, Test, tests};

pub(super) const TESTS: &[(&str, Test)] = tests![
    keys_are_those_of_the_golden_file,
    both_prefixes_are_printed,
    wrong_arguments,
    no_server_is_needed
];

/// No server listens there.
const NOWHERE: &str = "redis://127.0.0.1:1/";

/// A key of the golden file: the class, the lock and the id, or none for a global lock.
type Lock = (String, String, Option<String>);

fn keys_are_those_of_the_golden_file() -> Outcome {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../compat/golden/keys.tsv");
    let text = fs::read_to_string(file)?;
    let mut keys: BTreeMap<Lock, [Option<String>; 2]> = BTreeMap::new();
    for row in text.lines().filter(|line| !line.starts_with('#')) {
        let row: Vec<_> = row.split('\t').collect();
        let [rule, class, prefix, lock, id, template, key] = row[..] else {
            panic!("a row has seven columns")
        };
        // A prefix or a template by hand is no argument, and an id of the command line is no float.
        let is_float = id.parse::<f64>().is_ok() && id.parse::<i64>().is_err();
        if prefix == "-" && template == "-" && !is_float {
            let id = (id != "-").then(|| id.to_owned());
            let of_both_rules = keys.entry((class.to_owned(), lock.to_owned(), id)).or_default();
            of_both_rules[usize::from(rule == "modern")] = Some(key.to_owned());
        }
    }
    let different = keys.values().filter(|[older, newer]| newer.is_some() && older != newer).count();
    assert!(keys.len() >= 80 && different >= 10, "{} and {different} rows", keys.len());
    for ((class, lock, id), [older, newer]) in keys {
        let mut arguments = vec!["key", "--", class.as_str(), &lock];
        arguments.extend(id.as_deref());
        let ran = ran(NOWHERE, arguments).exits(0);
        let lines: Vec<_> = ran.out.lines().collect();
        for (key, line) in [(&older, lines.first()), (&newer, lines.last())] {
            if let Some(key) = key {
                assert_eq!(line, Some(&key.as_str()), "{ran}");
            }
        }
        let both = older.is_some() && newer.is_some();
        let count = if older == newer { 1 } else { 2 };
        assert!(!both || lines.len() == count, "{ran}");
    }
    Ok(())
}

fn both_prefixes_are_printed() -> Outcome {
    for (arguments, keys) in [
        (&["key", "Team", "reorder", "7"][..], "team:7:reorder_lock\n"),
        (&["key", "Team", "reorder"], "team::reorder_lock\n"),
        (&["key", "Billing::Invoice", "pay", "7"], "invoice:7:pay_lock\nbilling__invoice:7:pay_lock\n"),
        (&["key", "Billing::Invoice", "pay"], "invoice::pay_lock\nbilling__invoice::pay_lock\n"),
        (&["key", "Team", "reorder", "a b"], "team:a b:reorder_lock\n"),
    ] {
        ran(NOWHERE, arguments).exits(0).prints(keys);
    }
    Ok(())
}

fn wrong_arguments() -> Outcome {
    for (arguments, words) in [
        (&["key", "", "pay", "7"][..], "the class has no name"),
        (&["key", "Billing::", "pay", "7"], "the class has no name"),
        (&["key", "Team", "", "7"], "the lock has no name"),
        (&["key", "Team", "pay", ""], "the id is empty"),
    ] {
        ran(NOWHERE, arguments).exits(64).says_only(&[words]);
    }
    for arguments in [&["key"][..], &["key", "Team"], &["key", "Team", "pay", "7", "8"]] {
        let ran = ran(NOWHERE, arguments).exits(64).says(&["Usage: "]);
        assert_eq!(ran.out, "");
    }
    Ok(())
}

/// Nor a valid address of one.
fn no_server_is_needed() -> Outcome {
    let mut command = tool("no address");
    command.args(["key", "Team", "reorder", "7"]);
    to_the_end(command).exits(0).prints("team:7:reorder_lock\n");
    Ok(())
}
