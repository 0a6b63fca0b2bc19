//! A chart with logarithmic axes, as SVG.

use std::fmt::Write as _;
use std::path::Path;
use std::{fs, io};

/// A line of a chart.
#[derive(Clone, Debug)]
pub(super) struct Line {
    pub(super) name: &'static str,
    pub(super) points: Vec<(f64, f64)>,
}

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 360.0;
/// What is left around for the words.
const LEFT: f64 = 64.0;
const RIGHT: f64 = 84.0;
const TOP: f64 = 36.0;
const BOTTOM: f64 = 44.0;
/// Readable for people who do not see all colours.
const COLOURS: [&str; 4] = ["#d55e00", "#0072b2", "#009e73", "#cc79a7"];

/// Draws lines over the number of workers.
pub(super) fn draw(path: &Path, title: &str, lines: &[Line]) -> io::Result<()> {
    let all = || lines.iter().flat_map(|line| &line.points);
    let bounds = |of: fn(&(f64, f64)) -> f64| {
        let logs = || all().map(of).map(|value| value.max(1e-3).log10());
        let (least, most) = (logs().fold(f64::MAX, f64::min).floor(), logs().fold(f64::MIN, f64::max).ceil());
        (least, if most > least { most } else { least + 1.0 })
    };
    let (across, up) = (bounds(|point| point.0), bounds(|point| point.1));
    let place = |value: f64, (least, most): (f64, f64), length: f64| {
        (value.max(1e-3).log10() - least) / (most - least) * length
    };
    let x = |value: f64| LEFT + place(value, across, WIDTH - LEFT - RIGHT);
    let y = |value: f64| HEIGHT - BOTTOM - place(value, up, HEIGHT - TOP - BOTTOM);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"20\" font-size=\"14\">{title}</text>\n"
    );
    let mut add = |line: String| {
        let _infallible = writeln!(svg, "{line}");
    };
    for value in decades(up) {
        let at = y(value);
        add(format!("<path d=\"M{LEFT} {at:.1}H{}\" stroke=\"#ddd\"/>", WIDTH - RIGHT));
        add(format!("<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{value}</text>", LEFT - 6.0, at + 4.0));
    }
    for value in decades(across) {
        let at = x(value);
        add(format!("<path d=\"M{at:.1} {TOP}V{}\" stroke=\"#ddd\"/>", HEIGHT - BOTTOM));
        add(format!(
            "<text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{value}</text>",
            HEIGHT - BOTTOM + 16.0
        ));
    }
    add(format!("<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">workers</text>", WIDTH / 2.0, HEIGHT - 8.0));
    let mut labels: Vec<f64> = Vec::new();
    for (line, colour) in lines.iter().zip(COLOURS) {
        let points: Vec<String> =
            line.points.iter().map(|(at, value)| format!("{:.1} {:.1}", x(*at), y(*value))).collect();
        add(format!(
            "<path d=\"M{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
            points.join("L")
        ));
        let Some((_, last)) = line.points.last() else { continue };
        // Names do not cover each other.
        let mut at = y(*last) + 4.0;
        while labels.iter().any(|other| (other - at).abs() < 13.0) {
            at += 13.0;
        }
        labels.push(at);
        add(format!(
            "<text x=\"{}\" y=\"{at:.1}\" fill=\"{colour}\">{}</text>",
            WIDTH - RIGHT + 6.0,
            line.name
        ));
    }
    svg.push_str("</svg>\n");
    fs::write(path, svg)
}

/// Returns the powers of ten between two.
fn decades((least, most): (f64, f64)) -> Vec<f64> {
    let mut power = least;
    let mut all = Vec::new();
    while power <= most {
        all.push(10_f64.powf(power));
        power += 1.0;
    }
    all
}
