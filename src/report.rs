//! What callers and observers receive: errors and events.

pub(crate) mod error;
pub(crate) mod event;
pub(crate) mod state;
