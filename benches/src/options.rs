//! What is typed, parsed once, and the plan that comes of it: how many rounds of each workload, and how long they last.

use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};

/// The parts that the program runs for itself.
#[derive(Debug, Subcommand)]
pub(crate) enum Part {
    #[command(hide = true)]
    Conduct(Options),
    #[command(hide = true)]
    Worker { candidate: String },
    #[command(hide = true)]
    Busy,
}

/// Measures locks beside raw commands and other libraries, on private servers on this machine.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Fewer and shorter rounds: about two minutes in all, and not ten to fifteen
    #[arg(long)]
    pub(crate) quick: bool,
    /// Only these workloads, with a comma between them
    #[arg(long, value_delimiter = ',', ignore_case = true, value_name = "WORKLOAD")]
    only: Vec<Workload>,
    /// Only these candidates, with a comma between them: see the table that the run begins with
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    pub(crate) candidates: Vec<String>,
    /// So many rounds of each workload
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Workload {
    /// Acquire and release, uncontended, one thread
    W1,
    /// The same with up to 256 threads, each on a key of its own
    W2,
    /// The same with up to 10,000 threads; a part of W2
    #[value(name = "W2-many")]
    W2Many,
    /// The same with up to 64 threads beside two busy loops; a part of W2
    #[value(name = "W2-busy")]
    W2Busy,
    /// Contention for one key
    W3,
    /// 64 waiters that wait
    W4,
    /// A holder that is killed
    W5,
    /// A server that is some way off
    W6,
    /// Pollers, and a key that is never idle
    W7,
    /// Notifications beside other keys that are waited for
    W8,
    /// Leases of many locks that are extended
    W9,
    /// A command under a lock, from the command line
    W10,
    /// Several keys that are acquired together
    W11,
    /// Permits, readers and writers
    W12,
}

impl Workload {
    /// Returns the name of its files.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Workload::W1 => "w1-pairs",
            Workload::W2 => "w2-threads",
            Workload::W2Many => "w2-many-threads",
            Workload::W2Busy => "w2-busy",
            Workload::W3 => "w3-contention",
            Workload::W4 => "w4-waiting",
            Workload::W5 => "w5-crash",
            Workload::W6 => "w6-relay",
            Workload::W7 => "w7-fairness",
            Workload::W8 => "w8-keys",
            Workload::W9 => "w9-kept",
            Workload::W10 => "w10-commands",
            Workload::W11 => "w11-several",
            Workload::W12 => "w12-permits",
        }
    }
}

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// Of W1 and W2, which are short.
    pub(crate) pair_rounds: u32,
    pub(crate) pair_time: Duration,
    /// Of pairs beside busy loops and over a relay, which take longer.
    pub(crate) slow_pair_rounds: u32,
    pub(crate) slow_pair_time: Duration,
    /// Of W2 with many threads.
    pub(crate) many_rounds: u32,
    pub(crate) many_time: Duration,
    /// Of the most threads.
    pub(crate) most_rounds: u32,
    pub(crate) most_time: Duration,
    pub(crate) contention_rounds: u32,
    pub(crate) contention_time: Duration,
    pub(crate) idle_rounds: u32,
    pub(crate) idle_time: Duration,
    pub(crate) crash_rounds: u32,
    pub(crate) fairness_time: Duration,
    pub(crate) command_rounds: u32,
    pub(crate) kept_rounds: u32,
    pub(crate) kept_expiration: Duration,
    /// Of each run of W11 and W12 that is not made of rounds.
    pub(crate) several_time: Duration,
}

impl Options {
    pub(crate) fn workloads(&self) -> Vec<Workload> {
        let all = Workload::value_variants().iter().copied();
        let part_of = |workload| match workload {
            Workload::W2Many | Workload::W2Busy => Workload::W2,
            other => other,
        };
        let asked = |workload: &Workload| {
            self.only.is_empty() || [*workload, part_of(*workload)].iter().any(|one| self.only.contains(one))
        };
        all.filter(asked).collect()
    }

    pub(crate) fn plan(&self) -> Plan {
        let plan = if self.quick {
            Plan {
                pair_rounds: 10,
                pair_time: Duration::from_millis(50),
                slow_pair_rounds: 3,
                slow_pair_time: Duration::from_millis(200),
                many_rounds: 2,
                many_time: Duration::from_millis(500),
                most_rounds: 1,
                most_time: Duration::from_secs(2),
                contention_rounds: 1,
                contention_time: Duration::from_millis(500),
                idle_rounds: 1,
                idle_time: Duration::from_secs(2),
                crash_rounds: 2,
                fairness_time: Duration::from_secs(6),
                command_rounds: 50,
                kept_rounds: 1,
                kept_expiration: Duration::from_secs(6),
                several_time: Duration::from_secs(2),
            }
        } else {
            Plan {
                pair_rounds: 50,
                pair_time: Duration::from_millis(50),
                slow_pair_rounds: 15,
                slow_pair_time: Duration::from_millis(300),
                many_rounds: 10,
                many_time: Duration::from_secs(1),
                most_rounds: 3,
                most_time: Duration::from_secs(3),
                contention_rounds: 3,
                contention_time: Duration::from_secs(2),
                idle_rounds: 2,
                idle_time: Duration::from_secs(10),
                crash_rounds: 10,
                fairness_time: Duration::from_secs(60),
                command_rounds: 200,
                kept_rounds: 2,
                kept_expiration: Duration::from_secs(30),
                several_time: Duration::from_secs(10),
            }
        };
        match self.rounds {
            None => plan,
            Some(rounds) => Plan {
                pair_rounds: rounds,
                slow_pair_rounds: rounds,
                many_rounds: rounds,
                most_rounds: rounds.min(plan.most_rounds),
                contention_rounds: rounds,
                idle_rounds: rounds,
                crash_rounds: rounds,
                ..plan
            },
        }
    }
}
