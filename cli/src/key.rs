//! `key`: the keys that the gem uses.

use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;

use setnx_lock::{DeclaredLock, LockOptions};

use crate::arguments::GemKey;
use crate::failure::Failure;

pub(crate) fn key(arguments: &GemKey) -> Result<ExitCode, Failure> {
    let GemKey { class, name, id } = arguments;
    if class.is_empty() || class.ends_with(':') {
        return Err(Failure::usage(
            "the class name is missing; give it as in Ruby, for example Billing::Invoice",
        ));
    }
    if name.is_empty() {
        return Err(Failure::usage(
            "the lock name is missing; give the name of `lock :name` without the colon",
        ));
    }
    // A declaration lasts as long as the program; this one is short.
    let [class, name]: [&'static str; 2] = [class, name].map(|text| &*text.clone().leak());
    let declared = DeclaredLock::in_class(class, name, LockOptions::without_expiration());
    let key = |declared: DeclaredLock| match id {
        Some(id) => declared.key(id).map_err(Failure::from),
        None => Ok(declared.global_key()),
    };
    let (older, newer) = (key(declared)?, key(declared.modern_prefix())?);
    let explains = std::io::stdout().is_terminal() && older != newer;
    let mut out = anstream::stdout().lock();
    let mut write = |key: setnx_lock::Key, gems| {
        let gems = if explains { format!("    # redis-objects {gems}") } else { String::new() };
        out.write_all(key.as_bytes())?;
        writeln!(out, "{gems}")
    };
    if newer == older {
        write(older, "")?;
    } else {
        write(older, "before 2.0")?;
        write(newer, "from 2.0 on")?;
    }
    Ok(ExitCode::SUCCESS)
}
