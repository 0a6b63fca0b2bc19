//! What is compared, at which workloads, and with which settings.

use std::env;
use std::path::PathBuf;
use std::process::Command;

use crate::locks::{VARIANTS, Variant};
use crate::options::Workload::{self, W1, W2, W2Busy, W2Many, W3, W4, W5, W6, W7};
use crate::{Failure, root};

/// The candidates that others are compared with.
pub(crate) const OURS: &str = "ours";
pub(crate) const RAW: &str = "raw";
pub(crate) const ECHO: &str = "echo";
pub(crate) const GEM: &str = "gem";
pub(crate) const RSLOCK: &str = "rslock";

#[derive(Clone, Debug)]
pub(crate) struct Candidate {
    pub(crate) name: &'static str,
    pub(crate) settings: &'static str,
    pub(crate) workloads: &'static [Workload],
    language: Language,
    /// What it reports of itself and of what it uses; empty until it has run.
    pub(crate) version: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Language {
    Rust,
    Ruby,
    Python,
}

const ALL: &[Workload] = &[W1, W2, W3, W4, W5];

impl Candidate {
    /// Returns all there are, the lower bounds first.
    pub(crate) fn all() -> Vec<Self> {
        let new = |name, language, workloads, settings| Self {
            name,
            settings,
            workloads,
            language,
            version: String::new(),
        };
        let ours = |variant: &Variant| new(variant.name, Language::Rust, variant.workloads, variant.settings);
        let bounds = [
            new(ECHO, Language::Rust, &[W1], "two PINGs for a pair, a connection for each thread"),
            new(RAW, Language::Rust, &[W1, W2, W2Busy, W6], "SETNX and DEL, a connection for each thread"),
        ];
        let peers = [
            new(
                GEM,
                Language::Ruby,
                &[W1, W2, W3, W4, W5, W7],
                "polls every 0.1 s (fixed); a connection for each thread",
            ),
            new(
                "redis-py",
                Language::Python,
                ALL,
                "sleep 0.1 s (default); one client with its pool; releases by a script",
            ),
            new(
                RSLOCK,
                Language::Rust,
                &[W1, W2, W2Many, W3, W4, W5],
                "retry delay up to 0.2 s (default), `acquire`; one connection for all, a runtime of several threads; releases by a script, also after each failed try",
            ),
            new(
                "redlock",
                Language::Rust,
                ALL,
                "retry delay up to 0.2 s (default), `acquire`, one server; opens a connection for each command; releases by a script, also after each failed try",
            ),
        ];
        bounds.into_iter().chain(VARIANTS.iter().map(ours)).chain(peers).collect()
    }

    /// Returns the echo, which workloads measure a round trip with, whether or not it was asked for.
    pub(crate) fn echo() -> Self {
        let mut all = Self::all();
        all.swap_remove(0)
    }

    /// Returns the command that starts a worker process of it.
    pub(crate) fn command(&self) -> Result<Command, Failure> {
        let peers = root().join("benches").join("peers");
        let (program, script) = match self.language {
            Language::Rust => (env::current_exe()?, None),
            Language::Ruby => (PathBuf::from("ruby"), Some(peers.join("worker.rb"))),
            Language::Python => (root().join("target/bench/venv/bin/python"), Some(peers.join("worker.py"))),
        };
        let mut command = Command::new(program);
        match script {
            Some(script) => command.arg(script),
            None => command.arg("worker").arg(self.name),
        };
        Ok(command)
    }
}
