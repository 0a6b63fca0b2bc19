//! Plain values beside those of the rules: options, logins, the program's own code.

pub(crate) mod contained;
pub(crate) mod credentials;
pub(crate) mod options;
