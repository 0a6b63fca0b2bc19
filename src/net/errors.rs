//! What can go wrong between a command and its reply, in the library's
//! own types. Knows the redis crate's errors; nothing above does.

mod failure;
mod refusal;
mod refusal_kind;

pub(crate) use failure::Failure;
pub use failure::TransportError;
pub use refusal::Refusal;
pub(crate) use refusal::TooOld;
pub use refusal_kind::RefusalKind;
