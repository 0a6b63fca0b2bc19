//! The algorithm of [setnx-lock](https://docs.rs/setnx-lock), distributed locks on Redis: what to send next, given a
//! reply and the time. No I/O, clock, sleep, thread or randomness: `#![no_std]` enforces it.
//!
//! # What a lock is
//!
//! A lock is one key. It is held while the key holds a time in the future or a value that names no time.
//! [`State::of_value`](values::State::of_value) reads such a value, [`ValueBytes`](values::ValueBytes)
//! writes it. A contender in Ttl also leaves a key with a time to live to the server. A holder relies on its
//! [`Lease`](lease::Lease), which ends earlier than others see it end.
//!
//! # Invariants
//!
//! Cited by number at the lines that rely on them.
//!
//! - **I1** Only an absent key or a timestamp in the past is acquired.
//! - **I2** An expiring value that we write names this holder and no other (not `1`).
//! - **I3** Nothing is granted later than its own lease.
//! - **I4** A GETSET is sent soon after the look that allows it, or not at all. A takeover's reply is judged by the
//!   clock as read before sending.
//! - **I5** A release deletes
//!   - in Classic: only before its own lease has passed;
//!   - in Watched and Ttl: only its own bytes, or, within its lease, what a Classic loser wrote over them;
//!   - if the server has no memory for a transaction: only its own bytes, right after a look, and no later than one
//!     command timeout before the lease ends;
//!   - on a server that came back without WATCH: as in Classic, after a look.
//! - **I6** A command that may have changed the key is never sent again if its outcome is unknown:
//!   that is resolved by reading, or reported as unknown. Except INCR of a token, since numbers
//!   may be skipped, EXPIRE of the counter, and a release of Watched or Ttl, whose later attempts
//!   change its own bytes only. A DEL outside a transaction is never followed by another attempt.
//! - **I7** The deadline of a wait is monotonic; the lease is over when either clock says so.
//! - **I8** A connection that saw an I/O or protocol error is never used again.
//! - **I9** A waiting thread and a thread in its critical section hold no connection.
//! - **I10** A panic releases; releasing never panics; a forked child releases nothing.
//!
//! I8 to I10 are kept by the library, the rest by the rules and
//! the driver that runs them. For each [`Step::Send`] a driver
//!
//! - reads the clocks after its last wait, and sends nothing once [`Trip::before`] has passed (I4, I5);
//! - with [`Trip::if_holds`] sends WATCH and GET, and the command in MULTI and EXEC only if the key holds those bytes;
//! - never sends a command again whose reply was lost: it answers [`Reply::Lost`] (I6);
//! - reads both clocks anew after the reply.
//!
//! # Who may write the key
//!
//! | who | when | how |
//! |---|---|---|
//! | a contender | the key is absent | SETNX; in Ttl SET with NX and PX |
//! | a contender | the time in the key has passed (I1); in Ttl only if the key has no time to live | Classic: GETSET; Watched, Ttl: SET in a transaction that fails if the key was written since |
//! | a Classic contender that loses a takeover | it read the key before the winner's GETSET | its GETSET overwrites the winner's value; the winner keeps the lock |
//! | the holder | within its lease; in Watched and Ttl also later, over its own bytes | GETSET, or SET in a transaction: an extension, or a hand-over to the next thread |
//! | the holder | as I5 says | DEL, GETDEL |
//! | another process | with the [token](values::Token) of a hold, once | as an extension |
//! | the server | the key's time to live has ended (Ttl) | |
//! | an operator | any time: `Lock::clear` | DEL |
//!
//! # The rules
//!
//! [`acquire`](mod@acquire) and [`hold`] are `async fn`s without a runtime: a [`Task`](task::Task) stops
//! them at each [`Trip`], and returns it as a [`Step`]. The others are plain functions. In the order to read them:
//!
//! - [`acquire`](mod@acquire): one lock, as the gem acquires it, and the loop of every call;
//! - [`lease`], [`ownership`]: what a holder relies on; whose bytes the key holds;
//! - [`hold`]: extend, verify, release, hand over, resume by a
//!   token, take a fencing token, whose number [`fencing`] judges;
//! - [`unresolved`]: commands without a reply (I6);
//! - [`keeping`]: when to extend and verify;
//! - [`window`]: when a busy process leaves a key to pollers;
//! - [`waiting_list`]: which process is notified;
//! - several locks: [`permits`] finds one that is free, [`quorum`] a majority.
//!
//! Where the rules come from: the "Handling deadlocks" section of the Redis documentation of SETNX, the lock of the
//! Ruby gem redis-objects 0.2.3 to 1.4.1, and for Watched and Ttl the Redis documentation of WATCH.
#![cfg_attr(not(test), no_std)]
// Most functions are pure: the attribute on each would be noise.
#![allow(clippy::must_use_candidate, clippy::return_self_not_must_use)]

extern crate alloc;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}

pub mod acquire;
pub mod fencing;
pub mod hold;
pub mod keeping;
pub mod lease;
pub mod ownership;
pub mod permits;
pub mod quorum;
mod step;
pub mod task;
mod trip;
pub mod unresolved;
pub mod values;
pub mod waiting_list;
pub mod window;

pub use lease::NewValue;
pub use step::{Cue, GiveUp, Note, Observation, Pause, Step};
pub use trip::{Command, Expected, Replies, Reply, Trip, WhyRefused};
