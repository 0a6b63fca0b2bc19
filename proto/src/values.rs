//! Plain values: keys, what a key holds, times, versions, terms.
//! They know nothing of locks that are held, or of servers.

pub mod clock;
pub mod key;
pub mod named;
pub mod protocol;
pub mod side_key;
pub mod state;
pub mod terms;
pub mod token;
pub mod value;
pub mod version;
