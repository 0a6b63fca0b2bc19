//! The gate: stands before a real, current `redis-server`, and makes of it what a test needs.
//!
//! It writes down what was asked (`proxy`), lets single commands come to harm (`harm`), and plays an old version if it is told
//! to: what that knew (`versions`), what it did otherwise (`quirks`, `lists`) and what it told of itself (`info`). Nothing is played
//! that the real server does as well, so what a test sees of keys, lists and transactions is the work of a real one. What is
//! not played is in `README.md`.

mod proxy;
mod faults;
mod info;
mod lists;
mod presence;
mod quirks;
mod real;
mod resp;
mod versions;

pub(crate) use proxy::{Asked, Proxy, Seat};
pub(crate) use faults::{Fault, Hold};
pub(crate) use versions::Played;
