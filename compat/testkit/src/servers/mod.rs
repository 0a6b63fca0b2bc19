//! A proxy in front of a real, current `redis-server`, for what a test needs of a server.
//!
//! It records commands (`proxy`, `asked`), injects faults into single commands (`faults`), and emulates an old version if told to:
//! the commands of that version (`versions`), what it did differently (`quirks`) and its INFO (`info`). Or it forwards as little as twemproxy
//! (`twemproxy`). Or it adds the commands of newer servers that compare and change a key (`comparing`). What the real
//! server does as well is left to it: keys, lists and transactions are its own work. `README.md` lists what is not emulated.

mod asked;
mod comparing;
mod faults;
mod info;
mod proxy;
mod quirks;
mod real;
mod resp;
mod twemproxy;
mod versions;

pub use asked::{Asked, Position};
pub use comparing::Comparing;
pub use faults::{Fault, Hold};
pub use proxy::Proxy;
pub use versions::Emulated;
