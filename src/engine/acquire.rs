//! Acquiring: waits for the lock, and begins what its holder has.

use std::sync::Arc;
use std::time::Duration;

use super::wait::{Granted, Wait};
use super::{Answer, Engine};
use crate::clock;
use crate::error::Error;
use crate::event::Event;
use crate::hold::Hold;
use crate::key::Key;
use crate::options::LockOptions;
use crate::queue::{CancelToken, HolderTicket};
use crate::thread_holds::{self, HoldKind};

/// A lock that was acquired, and what it took.
#[derive(Debug)]
pub(crate) struct Acquired {
    pub(crate) hold: Arc<Hold>,
    pub(crate) holder: HolderTicket<Answer>,
    pub(crate) attempts: u32,
    pub(crate) waited: Duration,
}

impl Engine {
    /// Waits until the lock is held, or there is an error.
    pub(crate) fn acquire(
        self: &Arc<Self>,
        key: &Key,
        options: &LockOptions,
        cancel_token: Option<&CancelToken>,
        kind: HoldKind,
    ) -> Result<Acquired, Error> {
        let began = clock::now();
        let wait = Wait::new(self, key, options, cancel_token, began);
        let granted = wait.acquire();
        let (attempts, outcome) = match &granted {
            Ok(granted) => (granted.attempts, Ok(())),
            Err(error) => (wait.attempts(), Err(error)),
        };
        let waited = clock::uptime().since(began.uptime);
        self.observer.notify(&Event::AcquireFinished { key, waited, attempts, outcome });
        let Granted { lease, protocol, holder, at, attempts, waited, token } = granted?;
        let observer = self.observer.clone();
        let hold = Arc::new(Hold::new(key.clone(), *options, protocol, at, lease, token, observer));
        if options.holder_name.is_some() {
            let unnamed = {
                let own = hold.own();
                self.write_name(&hold, &own.lease.value, options.expiration, at)
            };
            self.report_unnamed(&hold, unnamed.as_ref());
        }
        self.keep_by_options(&hold);
        thread_holds::note(&self.identity, &hold, kind);
        Ok(Acquired { hold, holder, attempts, waited })
    }
}
