//! What goes over a connection together, and the outcome of each command.

mod batch;

pub(super) use batch::{
    Encoded, Job, JobOutcome, Outcome, Outcomes, PackedNext, QueuedCommand, Replies, hung_up, lost_in_batch,
    report_abandoned, send,
};
