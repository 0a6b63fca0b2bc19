//! A simulated system: threads, clocks, processes and a network, in one run that a seed determines.
//!
//! | module | what it stands for |
//! |---|---|
//! | [`thread`], [`sync`], [`time`], [`net`], [`hash`] | what the library uses of `std`, by the same names |
//! | [`process`] | processes, each with its threads and clocks: they start, are stopped, killed and started again |
//! | [`network`] | servers and the way to them, with what goes wrong on it |
//! | [`run`] | the run itself: its time, its random numbers, its trace |
//!
//! Each simulated thread is a thread of the system, and one of them runs at a time: at each call of this crate the seed
//! may choose another. So thread-locals, panics and deep stacks are real. The time stands still while threads can run,
//! but for a little at each step, and moves to the next deadline when none can. There is one run in a program: what is
//! killed in it is never freed.

pub mod hash;
pub mod net;
pub mod network;
pub mod process;
pub mod run;
mod scheduler;
mod server;
pub mod sync;
pub mod thread;
pub mod time;
mod trace;
