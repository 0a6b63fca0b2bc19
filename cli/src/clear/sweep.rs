//! `clear --expired`: removes all locks whose time has passed.

use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use indicatif::ProgressBar;
use setnx_lock::{Error, Lock, LockGuard, LockOptions, Protocol};

use super::confirm;
use crate::arguments::{Clear, Condition};
use crate::failure::Failure;
use crate::keys::{self, State};
use crate::server::Target;
use crate::status::write_report;
use crate::{list, output};

/// How many keys are shown before it asks.
const SHOWN: usize = 20;

/// For how long a lock is held at most that is taken over to be released.
const HELD: Duration = Duration::from_secs(5);

/// Takes over and releases each expired lock under the pattern. That is safe on every server, since others may take it
/// over at the same moment.
pub(super) fn sweep(arguments: &Clear, target: &Target, pattern: &[u8]) -> Result<ExitCode, Failure> {
    let mut servers = target.connect_for_keys(arguments.keys)?;
    let reports = list::found(&mut servers, pattern, arguments.keys, &ProgressBar::new_spinner())?;
    let now = keys::now();
    let expired: Vec<_> = reports.into_iter().filter(|report| report.state(now) == State::Expired).collect();
    let mut out = anstream::stdout().lock();
    if expired.is_empty() {
        writeln!(out, "no expired locks")?;
        return Ok(ExitCode::SUCCESS);
    }
    // What is to be removed does not depend on a reader of the output.
    for report in expired.iter().take(SHOWN) {
        let _ = write_report(&mut out, report);
    }
    if expired.len() > SHOWN {
        let _ = writeln!(out, "and {} more", expired.len() - SHOWN);
    }
    confirm(arguments, &format!("Remove {} expired locks?", expired.len()))?;
    let locker = target.locker().pool_size(1).build()?;
    let options = LockOptions::expiring_after(HELD).protocol(Protocol::Auto);
    let progress = ProgressBar::new(expired.len() as u64);
    let (mut removed, mut refused) = (0, 0);
    for report in progress.wrap_iter(expired.iter()) {
        match Lock::new(&locker, &report.key, options)?
            .try_lock()
            .and_then(|held| held.map(LockGuard::release).transpose())
        {
            Ok(Some(())) => removed += 1,
            // Another client was faster.
            Ok(None) => {}
            Err(error) if error.is_lost() => {}
            Err(Error::Refused { refusal, .. }) => {
                refused += 1;
                progress.suspend(|| output::warning(&format!("lock {} not removed: {refusal}", report.key)));
            }
            Err(error) => return Err(error.into()),
        }
    }
    progress.finish_and_clear();
    let _ = writeln!(out, "removed {removed} of {}", expired.len());
    match refused {
        0 => Ok(ExitCode::SUCCESS),
        _ => Err(Failure::of(Condition::Refused, format!("the server refused to remove {refused} of them"))),
    }
}
