//! Colours and simple shapes.

use svg::node::element::{Line, Path, Rectangle, Text};

/// The picture's width, and where the strips begin and end in it.
pub(crate) const WIDTH: f64 = 1200.0;
pub(crate) const LEFT: f64 = 190.0;
pub(crate) const RIGHT: f64 = 1176.0;

pub(crate) const INK: &str = "#222";
pub(crate) const FAINT: &str = "#666";
pub(crate) const WAIT: &str = "#a3a9b3";
pub(crate) const LANE: &str = "#f3f4f6";
pub(crate) const WINDOW: &str = "#e9eef6";
pub(crate) const RED: &str = "#c5162e";
pub(crate) const HATCH: &str = "url(#dead)";

/// The workers' colours: Okabe and Ito's, which the colour-blind can tell apart, but for the reds, which are the kill's.
const COLOURS: [&str; 6] = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#7a6a00"];

/// Returns the colour of a worker, counted from zero.
pub(crate) fn colour(worker: u16) -> &'static str {
    COLOURS[usize::from(worker) % COLOURS.len()]
}

pub(crate) fn rect(x: f64, y: f64, width: f64, height: f64, fill: &str) -> Rectangle {
    Rectangle::new()
        .set("x", tenths(x))
        .set("y", tenths(y))
        .set("width", tenths(width))
        .set("height", tenths(height))
        .set("fill", fill)
}

pub(crate) fn line(x1: f64, y1: f64, x2: f64, y2: f64, stroke: &str) -> Line {
    Line::new()
        .set("x1", tenths(x1))
        .set("y1", tenths(y1))
        .set("x2", tenths(x2))
        .set("y2", tenths(y2))
        .set("stroke", stroke)
        .set("stroke-width", 1.5)
}

pub(crate) fn text(words: impl Into<String>, x: f64, y: f64, size: u16) -> Text {
    Text::new(words).set("x", tenths(x)).set("y", tenths(y)).set("font-size", size)
}

/// The mark of a kill, drawn and not written: not every font has it.
pub(crate) fn cross(x: f64, y: f64) -> Path {
    let (x, y) = (tenths(x), tenths(y));
    Path::new()
        .set("d", format!("M {x} {y} m -7 -7 l 14 14 m 0 -14 l -14 14"))
        .set("stroke", RED)
        .set("stroke-width", 4)
        .set("fill", "none")
}

/// A tenth of a pixel is as fine as anybody sees, and keeps the file short.
pub(crate) fn tenths(length: f64) -> f64 {
    (length * 10.0).round() / 10.0
}
