//! Inspection: what a server is and can do, and what may harm locks there. Locking uses none of it.

mod clock_difference;
mod inspector;
mod report;
#[cfg(test)]
mod tests;
mod text;
mod warning;

pub use clock_difference::ClockDifference;
pub(crate) use inspector::Inspect;
pub use report::{Persistence, ServerReport};
pub use warning::Warning;
