//! `acquire`, `extend` and `release`: a lock that goes from process to process by a token.

use std::io::{self, Write as _};
use std::process::ExitCode;

use setnx_lock::{Lock, LockGuard, LockOptions, Locker};

use crate::arguments::{Acquire, Extend, Release};
use crate::failure::Failure;
use crate::run::{Held, Session, Wanted};
use crate::server::Target;

pub(crate) fn acquire(arguments: &Acquire) -> Result<ExitCode, Failure> {
    let Acquire { key, acquisition } = arguments;
    let session = Session::open(acquisition, std::slice::from_ref(key), None, false)?;
    let lock = Lock::new(&session.locker, key, acquisition.options(None)?)?.cancelled_by(&session.cancel);
    let Held::Lock(guard) = session.acquire(&Wanted::Lock(lock))? else {
        unreachable!("one lock was wanted")
    };
    if acquisition.fence {
        guard.fencing_token()?;
    }
    print_token(&session.locker, guard)
}

pub(crate) fn extend(arguments: &Extend) -> Result<ExitCode, Failure> {
    let token = arguments.token.read()?;
    let locker = Target::of(&arguments.server)?.locker().pool_size(1).build()?;
    let expiration = arguments.expiration.unwrap_or(token.expiration());
    let options = LockOptions::expiring_after(expiration).protocol(arguments.protocol.into());
    let guard = Lock::new(&locker, token.key().clone(), options)?.resume(&token)?;
    print_token(&locker, guard)
}

pub(crate) fn release(arguments: &Release) -> Result<ExitCode, Failure> {
    let token = arguments.token.read()?;
    Target::of(&arguments.server)?.locker().pool_size(1).build()?.release_token(&token)?;
    Ok(ExitCode::SUCCESS)
}

/// Prints the token. A lock whose token nobody can have is released.
fn print_token(locker: &Locker, guard: LockGuard) -> Result<ExitCode, Failure> {
    let token = guard.into_token()?;
    let mut out = io::stdout().lock();
    match writeln!(out, "{token}").and_then(|()| out.flush()) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error) => {
            locker.release_token(&token)?;
            let what = format!("lock {}: released, because its token cannot be written", token.key());
            Err(Failure::system(what, error))
        }
    }
}
