//! Plots: a line for each candidate, with the median as a dot and a bar from the smallest figure to the largest.

use std::iter;

use svg::Document;
use svg::node::element::{Circle, Group};

use crate::drawing::{FAINT, colour, line, sheet, text, tick_distance};
use crate::format::figure;
use crate::stats::Spread;

const GRID: &str = "#dde1e6";
const MOST_TICKS: f64 = 6.0;

/// A panel's width, and where the figures begin and end in it: to the right there is room for the last number.
const WIDTH: f64 = 640.0;
const LEFT: f64 = 144.0;
const RIGHT: f64 = 560.0;
/// Heights: the title with the legend, a line of a series, between two candidates, the axis with its name.
const HEAD: f64 = 64.0;
const LINE: f64 = 16.0;
const GAP: f64 = 10.0;
const FOOT: f64 = 56.0;

/// The legend of a panel with one series.
pub(crate) const ALONE: &str = "median, smallest to largest";

/// Figures of several candidates on one axis.
#[derive(Debug)]
pub(crate) struct Panel {
    pub(crate) title: String,
    /// What is shown, with its unit.
    pub(crate) axis: String,
    pub(crate) logarithmic: bool,
    /// The text before the names of the series.
    pub(crate) legend: &'static str,
    /// Their names; none if there is only one.
    pub(crate) series: Vec<String>,
    /// Each candidate, with a figure for each series.
    pub(crate) rows: Vec<(&'static str, Vec<Option<Spread>>)>,
}

/// Draws panels, two side by side.
pub(crate) fn draw(panels: &[Panel]) -> Document {
    let columns = panels.len().clamp(1, 2);
    let height = panels.iter().map(Panel::height).fold(0.0, f64::max);
    let sheet = sheet(number(columns) * WIDTH, number(panels.len().div_ceil(columns)) * height);
    panels.iter().enumerate().fold(sheet, |sheet, (n, panel)| {
        let (x, y) = (number(n % columns) * WIDTH, number(n / columns) * height);
        sheet.add(panel.draw().set("transform", format!("translate({x} {y})")))
    })
}

impl Panel {
    fn row_height(&self) -> f64 {
        LINE * number(self.series.len().max(1)) + GAP
    }

    fn bottom(&self) -> f64 {
        HEAD + self.row_height() * number(self.rows.len())
    }

    fn height(&self) -> f64 {
        self.bottom() + FOOT
    }

    fn draw(&self) -> Group {
        let axis = Axis::of(self);
        let mut group = Group::new().add(text(&self.title, LEFT, 24.0, 15).set("font-weight", "bold"));
        group = group.add(text(self.legend, LEFT, 46.0, 12).set("fill", FAINT));
        for (n, name) in self.series.iter().enumerate() {
            let x = LEFT + 140.0 + 70.0 * number(n);
            group = group.add(dot(x + 5.0, 42.0, colour(n)));
            group = group.add(text(name, x + 14.0, 46.0, 12));
        }
        for tick in &axis.ticks {
            let x = axis.place(*tick);
            group = group.add(line((x, HEAD), (x, self.bottom()), GRID, 1.0));
            let label = text(short(*tick), x, self.bottom() + 18.0, 12).set("fill", FAINT);
            group = group.add(label.set("text-anchor", "middle"));
        }
        let scale = if self.logarithmic { ", logarithmic" } else { "" };
        let name = format!("{}{scale}", self.axis);
        let middle = f64::midpoint(LEFT, RIGHT);
        group = group.add(text(name, middle, self.bottom() + 38.0, 12).set("text-anchor", "middle"));
        for (n, (name, figures)) in self.rows.iter().enumerate() {
            let top = HEAD + self.row_height() * number(n);
            let middle = top + self.row_height() / 2.0;
            group = group.add(line((LEFT, top), (RIGHT, top), GRID, 1.0));
            group = group.add(text(*name, LEFT - 8.0, middle + 4.0, 13).set("text-anchor", "end"));
            for (series, spread) in figures.iter().enumerate() {
                let y = top + GAP / 2.0 + LINE * (number(series) + 0.5);
                group = group.add(axis.mark(*spread, y, colour(series)));
            }
        }
        group
    }
}

/// Where figures are on the x axis.
struct Axis {
    from: f64,
    to: f64,
    logarithmic: bool,
    ticks: Vec<f64>,
}

impl Axis {
    fn of(panel: &Panel) -> Self {
        let figures = || panel.rows.iter().flat_map(|(_, figures)| figures).flatten();
        let largest = figures().map(|spread| spread.max).fold(0.0, f64::max);
        if panel.logarithmic {
            let positive = figures().map(|spread| spread.min).filter(|figure| *figure > 0.0);
            let smallest = positive.fold(f64::INFINITY, f64::min);
            let (from, to) = if smallest.is_finite() {
                ((smallest * 0.9).log10().floor(), (largest.log10() + 1e-9).ceil())
            } else {
                (0.0, 1.0)
            };
            // Over a decade or two there is room for more.
            let parts: &[f64] = if to - from <= 2.0 { &[1.0, 2.0, 5.0] } else { &[1.0] };
            let decades = iter::successors(Some(from), |power| Some(power + 1.0));
            let decades = decades.take_while(|power| *power <= to).map(|power| 10_f64.powf(power));
            let ticks = decades.flat_map(|decade| parts.iter().map(move |part| decade * part));
            let ticks = ticks.filter(|tick| tick.log10() <= to + 1e-9).collect();
            Self { from, to, logarithmic: true, ticks }
        } else {
            let largest = if largest > 0.0 { largest } else { 1.0 };
            let step = tick_distance(largest / MOST_TICKS);
            let to = (largest / step).ceil() * step;
            let ticks = (0..=6).map(|n| f64::from(n) * step).take_while(|tick| *tick <= to * 1.001).collect();
            Self { from: 0.0, to, logarithmic: false, ticks }
        }
    }

    fn place(&self, figure: f64) -> f64 {
        // A figure too small for the axis is drawn at its beginning.
        let at = if self.logarithmic { figure.max(f64::MIN_POSITIVE).log10() } else { figure };
        let part = ((at - self.from) / (self.to - self.from)).clamp(0.0, 1.0);
        ((LEFT + part * (RIGHT - LEFT)) * 10.0).round() / 10.0
    }

    fn mark(&self, spread: Option<Spread>, y: f64, colour: &str) -> Group {
        let Some(Spread { median, min, max }) = spread else {
            return Group::new().add(text("–", LEFT + 6.0, y + 4.0, 11).set("fill", FAINT));
        };
        let [median_at, min_at, max_at] = [median, min, max].map(|figure| self.place(figure));
        Group::new()
            .add(line((min_at, y), (max_at, y), colour, 3.0).set("stroke-opacity", 0.45))
            .add(dot(median_at, y, colour))
            .add(text(figure(median), max_at.max(median_at) + 8.0, y + 4.0, 11))
    }
}

fn dot(x: f64, y: f64, colour: &str) -> Circle {
    Circle::new().set("cx", x).set("cy", y).set("r", 4.5).set("fill", colour)
}

/// A tick's number without trailing zeros.
fn short(tick: f64) -> String {
    if tick >= 1e6 {
        return format!("{} M", short(tick / 1e6));
    }
    let text = format!("{tick:.6}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// There are few panels, lines and series.
#[allow(clippy::cast_precision_loss, reason = "small numbers")]
fn number(count: usize) -> f64 {
    count as f64
}
