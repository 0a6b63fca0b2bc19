//! What the public types do beside locking: errors, events, the log, the attribute, the package itself.
//!
//! | file | what it tests |
//! |---|---|
//! | `auto` | Auto where the version says more than the server permits |
//! | `cron` | a job of two machines that is to run once |
//! | `errors` | what errors say, their sources, how they are classified |
//! | `events` | the events that an observer receives |
//! | `examples` | what the programs in `examples/` print |
//! | `extremes` | options at their extremes, in any combination |
//! | `fencing` | a storage that checks tokens |
//! | `layers` | imports point downwards |
//! | `links` | the links of the documents lead somewhere |
//! | `locked` | functions with the attribute `#[locked]` |
//! | `observers` | how observers and the log work together |
//! | `package` | the dependencies of the package, and what it contains |
//! | `public_types` | what every public type implements |
//!
//! Add a test when a public item gets a promise of its own.

pub(crate) mod auto;
pub(crate) mod cron;
pub(crate) mod errors;
pub(crate) mod events;
pub(crate) mod examples;
pub(crate) mod extremes;
pub(crate) mod fencing;
pub(crate) mod layers;
pub(crate) mod links;
pub(crate) mod locked;
pub(crate) mod observers;
pub(crate) mod package;
pub(crate) mod public_types;

use libtest_mimic::Trial;

pub(crate) fn trials() -> Vec<Trial> {
    [
        auto::trials(),
        cron::trials(),
        errors::trials(),
        events::trials(),
        examples::trials(),
        extremes::trials(),
        fencing::trials(),
        layers::trials(),
        links::trials(),
        locked::trials(),
        observers::trials(),
        package::trials(),
        public_types::trials(),
    ]
    .into_iter()
    .flatten()
    .collect()
}
