//! The types that a program uses. They check what they are given, and leave the work to `run`.

pub(crate) mod declared;
pub(crate) mod guard;
mod lead;
pub(crate) mod lock;
pub(crate) mod locker;
pub(crate) mod loss_signal;
#[cfg(feature = "macros")]
pub(crate) mod scope;
pub(crate) mod several;
pub(crate) mod token;
