//! What the powers need of locks besides their public face. What is below knows of one lock only, or of any that go
//! together in one trip.
//!
//! | what | where |
//! |---|---|
//! | ask for many keys, hold what was granted, wait for what was not, give back what is not wanted | [`SeveralCall`], [`Asked`] |
//! | extend, verify, number, watch many locks | [`extend_all`], [`verify_all`], [`fencing_tokens`], [`loss_signal_of_all`] |
//! | look at many keys | [`look_at_all`] |
//! | which thread has a lock | [`HoldKind`], [`enclosing`] |
//! | a queue by a name | [`Line`] |
//! | a thread's work | `Locker::spawn` |
//! | a loss that is not one lock's | [`Losable`] |

mod calls;
mod guards;
mod line;
mod locker;
mod one_of;

pub(crate) use crate::api::lock::problem;
pub(crate) use crate::api::loss_signal::Losable;
pub(crate) use crate::net::Failure;
pub(crate) use crate::report::state::LockState;
pub(crate) use crate::report::state::{date, in_words};
pub(crate) use crate::run::thread_holds::HoldKind;
pub(crate) use crate::run::{Asked, Leaving, ReaderCount, Turn, parking};
pub(crate) use crate::wait::{Called, Hint, Ticket};
pub(crate) use calls::SeveralCall;
pub(crate) use guards::{enclosing, extend_all, fencing_tokens, give_back, loss_signal_of_all, verify_all};
pub(crate) use line::Line;
pub(crate) use locker::look_at_all;
