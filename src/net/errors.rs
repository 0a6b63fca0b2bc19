//! What can go wrong between a command and its reply, in the library's own types. Knows the redis crate's errors; nothing above does.

mod connect_error;
mod failure;
mod refusal;
mod refusal_kind;
mod transport_error;

pub(crate) use connect_error::ConnectError;
pub(crate) use failure::Failure;
pub(crate) use failure::NoConnection;
pub use refusal::Refusal;
pub(crate) use refusal::TooOld;
pub use refusal_kind::RefusalKind;
pub use transport_error::TransportError;
