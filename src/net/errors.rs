//! What can go wrong between a command and its reply, in the library's own types. Knows the redis crate's errors; nothing above does.

mod failure;
mod refusal;
mod refusal_kind;
mod transport_error;

pub(crate) use failure::Failure;
pub use refusal::Refusal;
pub(crate) use refusal::TooOld;
pub use refusal_kind::RefusalKind;
pub use transport_error::TransportError;
