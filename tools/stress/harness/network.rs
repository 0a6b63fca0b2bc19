//! The delays of the network.

use std::time::Duration;

use super::random::Random;

/// How long a command of this name takes to arrive. Most take no time or some milliseconds. Some that change a key
/// arrive only after others have taken over.
pub(crate) fn delay(random: &Random, command: &str) -> Duration {
    let stray = match command {
        "DEL" | "EXEC" | "GETSET" => 50,
        _ => 4,
    };
    if random.in_a_thousand(stray) {
        random.millis(&(1200..2000))
    } else if random.in_a_thousand(600) {
        Duration::ZERO
    } else {
        random.millis(&(0..5))
    }
}
