//! Pipelining the commands of several threads: who sends for whom, what goes over a connection together, and how a thread spends the
//! wait.

mod admission;
mod batch;
mod combiner;
mod spin_policy;
use crate::sync;

pub(super) use admission::{Admission, Bounds};
pub(super) use batch::{
    Encoded, Job, JobOutcome, Outcome, Outcomes, PackedNext, QueuedCommand, hung_up, lost_in_batch,
    report_abandoned, send,
};
pub(super) use combiner::{Batch, Combiner, Joined};
pub(super) use spin_policy::SpinPolicy;
