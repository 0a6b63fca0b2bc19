//! The algorithm of [setnx-lock](../setnx_lock/index.html), distributed locks on Redis: what to send next, given a
//! reply and the time. No I/O, clock, sleep, thread or randomness: `#![no_std]` has the compiler say so. The library
//! performs what the rules ask for, and returns with the reply and a fresh [`Now`](values::clock::Now).
//!
//! # What a lock is
//!
//! A lock is one key: it is held while the key holds a time that has not passed, or a value that never does.
//! [`State::of_value`](values::state::State::of_value) reads such a value, [`ValueBytes`](values::value::ValueBytes)
//! writes it. A holder relies on its [`Lease`](lease::Lease), which ends earlier than others see it end.
//!
//! # Invariants
//!
//! Cited by number at the lines that rely on them.
//!
//! - **I1** Only an absent key or a timestamp in the past is acquired.
//! - **I2** An expiring value that we write names this holder and no other (not `1`).
//! - **I3** Nothing is granted later than its own lease.
//! - **I4** GETSET's reply is judged by the clock read before
//!   it was sent, and it is sent soon after that or not at all.
//! - **I5** We delete only while our own lease has not passed (Classic), or only our own bytes and, within our lease,
//!   what a classic loser wrote over them (Watched and Ttl). Where the server has no memory for a transaction, our own
//!   bytes that were just seen, one command timeout before our lease ends at the latest. On a server that has come back
//!   without WATCH, as Classic, after a look.
//! - **I6** A command with an unknown outcome is never sent again: that is resolved by reading, or reported as unknown.
//!   Except INCR of a token, since numbers may be skipped, EXPIRE of the counter, and a release of Watched or Ttl,
//!   whose later attempts change our own bytes only; none follows a deletion alone.
//! - **I7** The deadline of a wait is monotonic; the lease is over when either clock says so.
//! - **I8** A connection that saw an I/O or protocol error is never used again.
//! - **I9** A waiting thread and a thread in its critical section hold no connection.
//! - **I10** A panic releases; releasing never panics; a forked child releases nothing.
//!
//! I8 to I10 are kept by the library; the rest by the code here.
//!
//! # Who may write the key
//!
//! | who | when | by |
//! |---|---|---|
//! | a contender | the key is absent | SETNX |
//! | a contender | the time in the key has passed (I1) | GETSET (Classic), a transaction if nobody wrote since (Watched, Ttl) |
//! | the holder | within its lease, or over its own bytes (I5) | an extension or a hand-over, by the same commands |
//! | the holder | within its lease, or its own bytes (I5) | DEL |
//! | another process | with the [token](values::token::Token) of a hold, once | as an extension |
//! | the server | the key's time to live has ended (Ttl) | |
//!
//! # The rules
//!
//! In the order to read them. Each is an `async fn` without a runtime: a [`Task`](task::Task) runs it from one [`Trip`]
//! to the server to the next, and returns each as a [`Step`].
//!
//! 1. [`acquire`]: one lock, as the gem acquires it, and the loop of every call.
//! 2. [`lease`] and [`ownership`]: what a holder relies on, and whose the bytes in a key are.
//! 3. [`hold`]: what a holder does: extends, verifies, releases, hands over, counts.
//! 4. [`unresolved`]: commands without a reply (I6).
//! 5. [`keeping`]: when a held lock is extended and looked at; [`window`]: when a busy process leaves a key to others;
//!    [`waiting_list`]: which process is woken.
//! 6. Several locks: [`choose`] acquires any one of them, [`several`]
//!    all, [`quorum`] a majority; [`fencing`] has their numbers.
//!
//! Where the rules come from: the "Handling deadlocks" section of the Redis documentation of SETNX, the lock of the
//! Ruby gem redis-objects 0.2.3 to 1.4.1, and for Watched and Ttl the Redis documentation of WATCH.
#![cfg_attr(not(test), no_std)]
// What is pure is of no use unless its outcome is used.
#![allow(clippy::must_use_candidate, clippy::return_self_not_must_use)]

extern crate alloc;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}

pub mod acquire;
pub mod choose;
pub mod fencing;
pub mod hold;
pub mod keeping;
pub mod lease;
pub mod ownership;
pub mod quorum;
pub mod several;
mod step;
pub mod task;
mod trip;
pub mod unresolved;
pub mod values;
pub mod waiting_list;
pub mod window;

pub use step::{Cue, GiveUp, Note, Observation, Pause, Step};
pub use trip::{Command, Expected, NewValue, Replies, Reply, Trip, WhyRefused};
