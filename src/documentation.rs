//! The long documents, here so that they can be read beside the code and their examples are compiled.

#[doc = include_str!("../docs/algorithm.md")]
pub mod algorithm {}

#[doc = include_str!("../docs/waiting.md")]
pub mod waiting {}

#[doc = include_str!("../docs/performance.md")]
pub mod performance {}

#[doc = include_str!("../docs/wire.md")]
pub mod wire {}

#[doc = include_str!("../docs/from-ruby.md")]
pub mod from_ruby {}

#[doc = include_str!("../docs/servers.md")]
pub mod servers {}

#[doc = include_str!("../docs/operations.md")]
pub mod operations {}

#[doc = include_str!("../docs/limits.md")]
pub mod limits {}

#[doc = include_str!("../docs/design.md")]
pub mod design {}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub mod readme {}
