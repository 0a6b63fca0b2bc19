//! What tests, benches and tools start and watch. Each process that this crate starts ends with the value that owns it.
//!
//! | module | what it has |
//! |---|---|
//! | `redis_server` | a private `redis-server` |
//! | `cluster` | six nodes of a Redis Cluster |
//! | `failover` | a master, two replicas and three Sentinels |
//! | `relay` | a delay each way |
//! | `ruby` | a Ruby process that locks as the gem does |
//! | `sent`, `raw` | the commands that a server has received; a raw connection |
//! | `asleep` | threads that a test runs until they sleep |
//! | `worker_process`, `tail`, `shield` | worker processes of the tools, their logs, and their end |

#![allow(
    missing_docs,
    missing_debug_implementations,
    clippy::missing_errors_doc,
    clippy::missing_panics_doc,
    clippy::must_use_candidate,
    clippy::new_without_default,
    reason = "not published: its users are in the same repository"
)]

pub mod asleep;
pub mod cluster;
pub mod failover;
pub mod raw;
pub mod redis_server;
pub mod relay;
pub mod ruby;
pub mod sent;
pub mod shield;
pub mod tail;
pub mod worker_process;

use std::error::Error;
use std::time::Duration;

pub use redis_server::RedisServer;

/// Why something failed, for people to read.
pub type Failure = Box<dyn Error + Send + Sync>;

/// Much longer than anything takes: for waits that must not end by themselves.
pub const LONG: Duration = Duration::from_secs(180);
