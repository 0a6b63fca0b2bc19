//! The picture's measures, its colours, and the mark of a kill.

use svg::node::element::Path;

use crate::drawing::{self, tenths};

/// The picture's width, and where the strips begin and end in it.
pub(crate) const WIDTH: f64 = 1200.0;
pub(crate) const LEFT: f64 = 190.0;
pub(crate) const RIGHT: f64 = 1176.0;

pub(crate) const WAIT: &str = "#a3a9b3";
pub(crate) const LANE: &str = "#f3f4f6";
pub(crate) const WINDOW: &str = "#e9eef6";
pub(crate) const RED: &str = "#c5162e";
pub(crate) const HATCH: &str = "url(#crashed)";

/// Returns the colour of a worker, by its number.
pub(crate) fn colour(worker: u32) -> &'static str {
    drawing::colour(worker.saturating_sub(1) as usize)
}

/// The mark of a kill, drawn as a shape: not every font has the character.
pub(crate) fn cross(x: f64, y: f64) -> Path {
    let (x, y) = (tenths(x), tenths(y));
    Path::new()
        .set("d", format!("M {x} {y} m -7 -7 l 14 14 m 0 -14 l -14 14"))
        .set("stroke", RED)
        .set("stroke-width", 4)
        .set("fill", "none")
}
