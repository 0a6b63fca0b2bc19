//! What the powers need of locks besides their public face.

pub(crate) use crate::api::lock::problem;
pub(crate) use crate::api::loss_signal::Losable;
pub(crate) use crate::net::Backend;
pub(crate) use crate::report::state::{date, in_words};
pub(crate) use crate::run::hold::Hold;
pub(crate) use crate::run::thread_holds::{self, HoldKind};
pub(crate) use crate::run::{Acquired, Call, Engine, Leaving, ReaderCount, Want};
