//! A chart over the number of workers, as SVG.

use std::error::Error;
use std::io;
use std::path::Path;

use plotters::prelude::*;

/// A line of a chart.
#[derive(Clone, Debug)]
pub(super) struct Line {
    pub(super) name: &'static str,
    pub(super) points: Vec<(f64, f64)>,
}

/// Readable for people who do not see all colours.
const COLOURS: [RGBColor; 4] =
    [RGBColor(213, 94, 0), RGBColor(0, 114, 178), RGBColor(0, 158, 115), RGBColor(204, 121, 167)];

/// Draws lines, and their names where there is room; both axes are logarithmic, between whole powers of ten.
pub(super) fn draw(path: &Path, title: &str, lines: &[Line], names: SeriesLabelPosition) -> io::Result<()> {
    try_draw(path, title, lines, names).map_err(|error| io::Error::other(error.to_string()))
}

fn try_draw(
    path: &Path,
    title: &str,
    lines: &[Line],
    names: SeriesLabelPosition,
) -> Result<(), Box<dyn Error>> {
    let bounds = |of: fn(&(f64, f64)) -> f64| {
        let logs = || lines.iter().flat_map(|line| &line.points).map(of).map(f64::log10);
        let (least, most) = (logs().fold(f64::MAX, f64::min).floor(), logs().fold(f64::MIN, f64::max).ceil());
        (10_f64.powf(least)..10_f64.powf(most.max(least + 1.0))).log_scale()
    };
    let area = SVGBackend::new(path, (640, 360)).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 15))
        .margin(10)
        .margin_right(24)
        .x_label_area_size(36)
        .y_label_area_size(56)
        .build_cartesian_2d(bounds(|point| point.0), bounds(|point| point.1))?;
    let mesh = RGBColor(221, 221, 221);
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(mesh)
        .x_desc("workers")
        .x_label_formatter(&ToString::to_string)
        .y_label_formatter(&ToString::to_string)
        .draw()?;
    for (line, colour) in lines.iter().zip(COLOURS) {
        let drawn = LineSeries::new(line.points.iter().copied(), colour.stroke_width(2)).point_size(3);
        chart
            .draw_series(drawn)?
            .label(line.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(names)
        .background_style(WHITE.mix(0.8))
        .border_style(mesh)
        .draw()?;
    area.present()?;
    Ok(())
}
