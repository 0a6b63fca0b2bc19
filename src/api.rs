//! The types that a program uses. They check what they are given, and leave the work to `run`.

pub(crate) mod guard;
pub(crate) mod lock;
pub(crate) mod locker;
pub(crate) mod loss_signal;
#[cfg(feature = "macros")]
pub(crate) mod scope;
