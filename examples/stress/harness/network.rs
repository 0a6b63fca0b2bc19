//! What the network does to commands.

use std::time::Duration;

use super::chance::Chance;

/// How long a command of this name is on its way. Most take no time or some milliseconds. What changes a key is now and then
/// overtaken by everything else: it arrives when others have taken over long since.
pub(crate) fn delay(chance: &Chance, command: &str) -> Duration {
    let stray = match command {
        "DEL" | "EXEC" | "GETSET" => 50,
        _ => 4,
    };
    if chance.in_a_thousand(stray) {
        chance.millis(&(1200..2000))
    } else if chance.in_a_thousand(600) {
        Duration::ZERO
    } else {
        chance.millis(&(0..5))
    }
}
