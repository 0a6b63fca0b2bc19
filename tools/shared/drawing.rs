//! Colours, simple shapes and round numbers for pictures.

use svg::Document;
use svg::node::element::{Line, Rectangle, Style, Text};

pub(crate) const INK: &str = "#222";
pub(crate) const FAINT: &str = "#666";

/// The first six are of Okabe and Ito, which the colour-blind can tell apart, without the reds, which mark a kill or a
/// failure. Darker shades follow.
const COLOURS: [&str; 12] = [
    "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#7a6a00", "#003f63", "#8f6200", "#00563f",
    "#7d3a5e", "#6b4fa0", "#3f3700",
];

/// Returns the colour of one of several, counted from zero. After a dozen they begin again.
pub(crate) fn colour(number: usize) -> &'static str {
    COLOURS[number % COLOURS.len()]
}

/// The neutral colours, and those that are too dark, on a screen that shows dark pages.
const DARK: &str = r##"@media (prefers-color-scheme: dark) {
  [fill="white"] { fill: #0d1117 } [fill="#222"] { fill: #e6e8eb } [fill="#666"] { fill: #9aa4b2 }
  [stroke="#222"] { stroke: #e6e8eb } [stroke="#666"] { stroke: #9aa4b2 } [stroke="#a3a9b3"] { stroke: #5b6472 }
  [fill="#f3f4f6"] { fill: #1b212b } [fill="#e9eef6"] { fill: #1d2735 } [fill="#fdf0f0"] { fill: #3a1d22 }
  [stroke="#efb5b5"] { stroke: #7d3b45 } [fill="#c5162e"] { fill: #f0616d } [stroke="#c5162e"] { stroke: #f0616d }
  [fill="#0072b2"] { fill: #4aa3df } [stroke="#0072b2"] { stroke: #4aa3df }
}"##;

/// A white sheet, on which shapes without a colour of their own are drawn in ink. Dark where the reader's pages are.
pub(crate) fn sheet(width: f64, height: f64) -> Document {
    Document::new()
        .set("viewBox", (0, 0, width, height))
        .set("width", width)
        .set("height", height)
        .set("font-family", "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif")
        .set("fill", INK)
        .add(Style::new(DARK))
        .add(rect(0.0, 0.0, width, height, "white"))
}

pub(crate) fn rect(x: f64, y: f64, width: f64, height: f64, fill: &str) -> Rectangle {
    Rectangle::new()
        .set("x", tenths(x))
        .set("y", tenths(y))
        .set("width", tenths(width))
        .set("height", tenths(height))
        .set("fill", fill)
}

pub(crate) fn line(from: (f64, f64), to: (f64, f64), stroke: &str, width: f64) -> Line {
    Line::new()
        .set("x1", tenths(from.0))
        .set("y1", tenths(from.1))
        .set("x2", tenths(to.0))
        .set("y2", tenths(to.1))
        .set("stroke", stroke)
        .set("stroke-width", width)
}

pub(crate) fn text(words: impl Into<String>, x: f64, y: f64, size: u16) -> Text {
    Text::new(words).set("x", tenths(x)).set("y", tenths(y)).set("font-size", size)
}

/// A tenth of a pixel is as fine as an eye sees, and keeps the file short.
pub(crate) fn tenths(length: f64) -> f64 {
    (length * 10.0).round() / 10.0
}

/// Returns the distance of an axis's ticks: 1, 2 or 5 times a power of ten, and no less than `least`, which is
/// positive.
pub(crate) fn tick_distance(least: f64) -> f64 {
    let decade = 10_f64.powf(least.log10().floor());
    let steps = [1.0, 2.0, 5.0].map(|factor| factor * decade);
    // A decade is computed, and may be a bit off.
    steps.into_iter().find(|step| *step >= least * (1.0 - 1e-9)).unwrap_or(10.0 * decade)
}
