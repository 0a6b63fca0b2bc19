//! Runs one acquisition or release: asks the rules what to do, performs it through the backend, the wait queue and the
//! clock, and returns the reply and the time to the rules, until they end. Knows no rule of its own.

mod acquire;
mod changes;
mod codec;
mod debts;
mod drive;
mod ending;
mod engine;
mod held;
pub(crate) mod hold;
mod holder;
pub(crate) mod identity;
mod keeper;
mod life;
mod once;
mod open_debts;
mod outbox;
mod readers;
mod release;
mod reports;
mod resume;
mod session;
pub(crate) mod sink;
pub(crate) mod thread_holds;
pub(crate) mod timer;
mod turns;

use std::sync::Arc;

use crate::net::Backend;
use crate::run::identity::Identity;
use crate::wait::Waiters;
pub(crate) use acquire::{Asked, Call, parking};
pub(crate) use debts::RELEASED_IF_ACQUIRED;
pub(crate) use ending::Leaving;
pub(crate) use engine::{Acquiring, Debt, Engine};
pub(crate) use held::{Acquired, Holder};
pub(crate) use open_debts::OpenDebt;
pub(crate) use readers::ReaderCount;
pub(crate) use reports::Reports;
pub(crate) use turns::Turn;

/// Returns what the locks of a new locker share.
pub(crate) fn engine_over(backend: Arc<dyn Backend>, identity: Identity, lines: Arc<dyn Waiters>) -> Engine {
    Engine::new(backend, identity, lines, keeper::work, debts::work)
}
