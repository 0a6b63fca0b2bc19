//! `fence`: the counter of a lock's fencing tokens, which is shown and raised.

use std::io::Write as _;
use std::process::ExitCode;

use setnx_lock::Key;
use setnx_lock::redis;
use setnx_lock_proto::values::{SideKey, can_share_slot};

use crate::arguments::{Condition, Fence};
use crate::failure::Failure;
use crate::raw::Raw;
use crate::server::Target;

/// How often the counter is read at most until nothing has changed it meanwhile.
const LOOKS: usize = 16;

pub(crate) fn fence(arguments: &Fence) -> Result<ExitCode, Failure> {
    let target = Target::of(&arguments.server)?;
    let key = target.key(&arguments.key);
    if target.is_cluster() && !can_share_slot(key.as_bytes()) {
        return Err(Failure::usage(
            "the key has no fencing tokens: it has a brace and no hash tag, so in a cluster its counter may be on another node",
        ));
    }
    let raw = &mut target.connect_for(&key)?;
    let counter = SideKey::Fence.of(key.as_bytes());
    let number = match arguments.at_least {
        Some(least) => raise(raw, &key, &counter, least).map_err(|failure| failure.about(&key))?,
        None => look(raw, &counter).map_err(|failure| failure.about(&key))?.unwrap_or_default(),
    };
    // A reader that has seen enough is no reason to fail.
    let _ = writeln!(anstream::stdout().lock(), "{number}");
    Ok(ExitCode::SUCCESS)
}

/// Returns what the counter is at; `None` if there is none.
fn look(raw: &mut Raw, counter: &[u8]) -> Result<Option<i64>, Failure> {
    let found: Option<Vec<u8>> = raw.ask(redis::cmd("GET").arg(counter))?;
    let Some(found) = found else { return Ok(None) };
    let number = str::from_utf8(&found).ok().and_then(|text| text.parse().ok());
    number.map(Some).ok_or_else(|| {
        let counter = Key::from(counter);
        Failure::no_lock(format!(
            "its fencing counter {counter} holds no number; remove it by redis-cli DEL, then raise it"
        ))
    })
}

/// Raises the counter to this if it is lower. Returns what it is at then.
fn raise(raw: &mut Raw, key: &Key, counter: &[u8], least: i64) -> Result<i64, Failure> {
    if raw.is_replica() {
        return Err(Failure::of(
            Condition::Refused,
            "the server is a replica; raise the counter on its master",
        ));
    }
    let watches = raw.is_since(2, 2);
    for _ in 0..LOOKS {
        if watches {
            raw.ask::<()>(redis::cmd("WATCH").arg(counter))?;
        }
        let number = look(raw, counter)?;
        let by = match number {
            Some(number) if number >= least => {
                if watches {
                    raw.ask::<()>(&redis::cmd("UNWATCH"))?;
                }
                return Ok(number);
            }
            number => least.checked_sub(number.unwrap_or_default()).ok_or_else(|| {
                Failure::no_lock(
                    "its fencing counter is far below 0; remove it by redis-cli DEL, then raise it",
                )
            })?,
        };
        // Neither SET, which could lower it, nor without a transaction, so that two commands do not add up.
        let increase = redis::cmd("INCRBY").arg(counter).arg(by).to_owned();
        let raised = if watches { raw.transact(&increase) } else { raw.ask(&increase).map(Some) };
        if let Some(number) = raised.map_err(|failure| unknown(failure, key))? {
            return Ok(number);
        }
    }
    Err(Failure::of(
        Condition::Contended,
        format!("its fencing counter has changed {LOOKS} times meanwhile; try again"),
    ))
}

/// That no reply came to a command that may have raised the counter. It is only raised, so it can be repeated.
fn unknown(failure: Failure, key: &Key) -> Failure {
    if failure.is_refusal() {
        return failure;
    }
    let text = format!(
        "it is not known whether the fencing counter of {key} was raised; run it again: {}",
        failure.text()
    );
    Failure::of(Condition::Unknown, text)
}
