//! Plain values: keys, what a key holds, times, versions, terms. They know nothing of locks that are held, or of servers.

mod clock;
mod key;
mod named;
mod protocol;
mod side_key;
mod slot;
mod state;
mod terms;
mod token;
mod value;
mod version;

pub(crate) use clock::FIRST_PLAUSIBLE_SECOND;
pub use clock::{Now, Uptime, Wall};
pub use key::{Cut, CutAt, Key};
pub use named::{Named, is_name};
pub use protocol::Protocol;
pub use side_key::{SideKey, can_share_slot, hash_tag};
pub use slot::{SLOTS, slot_of};
pub use state::{LONGEST_READ, State, classic_time, looks_like};
pub use terms::Terms;
pub use token::Token;
pub(crate) use value::UNEXPIRING;
pub use value::{Nonce, Tag, ValueBytes};
pub use version::{InvalidVersion, Version};
