//! How figures are written in tables and plots.

use crate::stats::Spread;

/// A number of rounds, in words.
pub(crate) fn rounds(count: u32) -> String {
    if count == 1 { "One round".to_owned() } else { format!("{count} rounds") }
}

/// The median, and the smallest and largest figure.
pub(crate) fn cell(spread: Option<Spread>) -> String {
    let Some(Spread { median, min, max }) = spread else { return plain(None) };
    let [median, min, max] = [median, min, max].map(figure);
    // After one round all three are the same.
    if min == max { median } else { format!("{median} ({min} – {max})") }
}

/// The median alone.
pub(crate) fn plain(spread: Option<Spread>) -> String {
    spread.map_or("–".to_owned(), |spread| figure(spread.median))
}

/// Three or four significant digits.
pub(crate) fn figure(number: f64) -> String {
    match number.abs() {
        ..1e-9 => "0".to_owned(),
        100.0.. => format!("{number:.0}"),
        10.0.. => format!("{number:.1}"),
        0.1.. => format!("{number:.2}"),
        _ => format!("{number:.3}"),
    }
}
