//! Plain values: keys, what a key holds, times, versions, options. They know nothing of locks that are held, or of servers.

pub(crate) mod clock;
pub(crate) mod contained;
pub(crate) mod credentials;
pub(crate) mod key;
pub(crate) mod options;
pub(crate) mod side_key;
pub(crate) mod token;
pub(crate) mod value;
pub(crate) mod version;
