//! The plot of microseconds per decision against nodes, with logarithmic axes, as an SVG file for the documentation.

use std::fmt::Write as _;

use crate::node_cost::log10;

/// The drawing's size and the margins around the axes, in pixels. The legend is in the right margin.
const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 380.0;
const LEFT: f64 = 56.0;
const RIGHT: f64 = 260.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 46.0;

const COLORS: [&str; 3] = ["#2463b0", "#d9822b", "#3a8f4d"];

/// A line of the plot.
pub struct Line {
    /// Its name in the legend.
    pub label: String,
    /// Number of nodes, and microseconds per decision; both above 0.
    pub points: Vec<(f64, f64)>,
    /// Whether it is dashed. A line has the color of the line before it if it is.
    pub is_dashed: bool,
}

/// The powers of ten around values: at least one decade.
fn decades(values: impl Iterator<Item = f64> + Clone) -> (i32, i32) {
    let low = log10(values.clone().fold(f64::INFINITY, f64::min)).floor();
    let high = log10(values.fold(0.0, f64::max)).ceil();
    let (low, high) = (low as i32, high as i32);
    (low, high.max(low + 1))
}

/// The plot as SVG; empty without points.
pub fn svg(title: &str, lines: &[Line]) -> String {
    let points = lines.iter().flat_map(|line| line.points.iter().copied());
    if points.clone().next().is_none() {
        return String::new();
    }
    let (x_low, x_high) = decades(points.clone().map(|it| it.0));
    let (y_low, y_high) = decades(points.map(|it| it.1));
    let along =
        |value: f64, low: i32, high: i32| (log10(value) - f64::from(low)) / f64::from(high - low);
    let x = |nodes: f64| LEFT + along(nodes, x_low, x_high) * (WIDTH - LEFT - RIGHT);
    let y = |micros: f64| HEIGHT - BOTTOM - along(micros, y_low, y_high) * (HEIGHT - TOP - BOTTOM);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n"
    );
    text(&mut svg, (LEFT, 20.0), "start", title);
    for exponent in x_low..=x_high {
        let value = 10_f64.powi(exponent);
        grid_line(&mut svg, (x(value), TOP), (x(value), HEIGHT - BOTTOM));
        text(&mut svg, (x(value), HEIGHT - BOTTOM + 18.0), "middle", &number(exponent));
    }
    for exponent in y_low..=y_high {
        let value = 10_f64.powi(exponent);
        grid_line(&mut svg, (LEFT, y(value)), (WIDTH - RIGHT, y(value)));
        text(&mut svg, (LEFT - 8.0, y(value) + 4.0), "end", &number(exponent));
    }
    text(&mut svg, (LEFT, HEIGHT - 8.0), "start", "µs per decision (vertical), by number of nodes");
    let mut color = 0;
    for (nth, line) in lines.iter().enumerate() {
        color += usize::from(nth > 0 && !line.is_dashed);
        let style = format!(
            "fill=\"none\" stroke=\"{}\" stroke-width=\"2\"{}",
            COLORS[color % COLORS.len()],
            if line.is_dashed { " stroke-dasharray=\"6 4\"" } else { "" }
        );
        let mut points = String::new();
        for (nodes, micros) in &line.points {
            let _ = write!(points, "{:.1},{:.1} ", x(*nodes), y(*micros));
        }
        let _ = writeln!(svg, "<polyline points=\"{}\" {style}/>", points.trim_end());
        let (left, top) = (WIDTH - RIGHT + 16.0, TOP + 14.0 + 22.0 * nth as f64);
        let _ = writeln!(svg, "<polyline points=\"{left},{top} {},{top}\" {style}/>", left + 28.0);
        text(&mut svg, (left + 36.0, top + 4.0), "start", &line.label);
    }
    svg.push_str("</svg>\n");
    svg
}

/// A power of ten with commas between thousands.
fn number(exponent: i32) -> String {
    if exponent < 0 {
        return format!("{:.*}", exponent.unsigned_abs() as usize, 10_f64.powi(exponent));
    }
    let mut text = String::new();
    for left in (0..=exponent).rev() {
        text.push(if left == exponent { '1' } else { '0' });
        if left > 0 && left % 3 == 0 {
            text.push(',');
        }
    }
    text
}

fn grid_line(svg: &mut String, from: (f64, f64), to: (f64, f64)) {
    let _ = writeln!(
        svg,
        "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"#ddd\"/>",
        from.0, from.1, to.0, to.1
    );
}

fn text(svg: &mut String, at: (f64, f64), anchor: &str, text: &str) {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    let _ = writeln!(
        svg,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\" fill=\"#444\">{text}</text>",
        at.0, at.1
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_of_ten_are_the_corners() {
        let points = vec![(100.0, 1.0), (1_000.0, 10.0), (10_000.0, 100.0)];
        let lines = [
            Line { label: "basic & <bare>".to_owned(), points: points.clone(), is_dashed: false },
            Line { label: "clustered".to_owned(), points, is_dashed: true },
        ];
        let svg = svg("cost", &lines);
        assert!(svg.contains("points=\"56.0,334.0 278.0,184.0 500.0,34.0\""), "{svg}");
        assert!(svg.contains("basic &amp; &lt;bare>"), "{svg}");
        assert_eq!(svg.matches(COLORS[0]).count(), 4, "both lines and their legends: {svg}");
        assert_eq!(svg.matches("stroke-dasharray").count(), 2, "{svg}");
        assert_eq!(super::svg("nothing", &[]), "");
    }

    #[test]
    fn numbers_are_readable() {
        let numbers = [-2, -1, 0, 1, 2, 3, 4, 5, 6].map(number);
        let expected = ["0.01", "0.1", "1", "10", "100", "1,000", "10,000", "100,000", "1,000,000"];
        assert_eq!(numbers, expected);
    }
}
