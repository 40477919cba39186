//! A drain as a picture: pods bound over time, one line per run, as an SVG file for the documentation.

use std::fmt::Write as _;

/// The drawing's size and the margins around the axes, in pixels.
const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 320.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 150.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 42.0;

/// Points per line: more than this is not visible.
const N_POINTS_MAX: usize = 200;
const COLORS: [&str; 4] = ["#d9822b", "#2463b0", "#8a8a8a", "#3a8f4d"];

/// One line of the plot.
pub struct Curve {
    /// Shown at the end of the line.
    pub label: String,
    /// When each pod was bound, in seconds since the scheduler started, in order.
    pub seconds: Vec<f64>,
}

/// The plot as SVG; every label says how long its run took.
pub fn svg(title: &str, curves: &[Curve]) -> String {
    let seconds_max =
        curves.iter().filter_map(|it| it.seconds.last()).fold(1.0_f64, |a, b| a.max(*b));
    let pods_max = curves.iter().map(|it| it.seconds.len()).max().unwrap_or(0).max(1) as f64;
    let x = |seconds: f64| LEFT + seconds / seconds_max * (WIDTH - LEFT - RIGHT);
    let y = |pods: f64| HEIGHT - BOTTOM - pods / pods_max * (HEIGHT - TOP - BOTTOM);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"20\" font-size=\"14\">{title}</text>\n"
    );
    for step in 0..=4 {
        let (pods, seconds) =
            (pods_max * f64::from(step) / 4.0, seconds_max * f64::from(step) / 4.0);
        line(&mut svg, (x(0.0), y(pods)), (x(seconds_max), y(pods)));
        text(&mut svg, (LEFT - 8.0, y(pods) + 4.0), "end", "#444", &format!("{pods:.0}"));
        text(
            &mut svg,
            (x(seconds), HEIGHT - BOTTOM + 18.0),
            "middle",
            "#444",
            &format!("{seconds:.0} s"),
        );
    }
    text(
        &mut svg,
        (LEFT, HEIGHT - 6.0),
        "start",
        "#444",
        "pods bound, by time since the scheduler started",
    );
    for (curve, color) in curves.iter().zip(COLORS.iter().cycle()) {
        let n = curve.seconds.len();
        let every = n.div_ceil(N_POINTS_MAX).max(1);
        let last = n.checked_sub(1).filter(|last| last % every != 0);
        let mut points = String::new();
        for at in (0..n).step_by(every).chain(last) {
            let _ = write!(points, "{:.1},{:.1} ", x(curve.seconds[at]), y((at + 1) as f64));
        }
        let points = points.trim_end();
        let _ = writeln!(
            svg,
            "<polyline points=\"{points}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"2\"/>"
        );
        let Some(end) = curve.seconds.last() else { continue };
        let label = format!("{}, {end:.1} s", curve.label);
        text(&mut svg, (x(*end) + 6.0, y(n as f64) + 4.0), "start", color, &label);
    }
    svg.push_str("</svg>\n");
    svg
}

fn line(svg: &mut String, from: (f64, f64), to: (f64, f64)) {
    let _ = writeln!(
        svg,
        "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"#ddd\"/>",
        from.0, from.1, to.0, to.1
    );
}

fn text(svg: &mut String, at: (f64, f64), anchor: &str, color: &str, text: &str) {
    let _ = writeln!(
        svg,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\" fill=\"{color}\">{text}</text>",
        at.0, at.1
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_ends_where_its_last_pod_is_bound() {
        let curves = [
            Curve {
                label: "slow".to_owned(),
                seconds: (1..=1000).map(|at| f64::from(at) / 100.0).collect(),
            },
            Curve { label: "none".to_owned(), seconds: Vec::new() },
        ];
        let svg = svg("drain", &curves);
        assert!(svg.contains("slow, 10.0 s"), "{svg}");
        let points = svg.split("points=\"").nth(1).and_then(|it| it.split('"').next());
        let points: Vec<&str> = points.unwrap_or_default().split(' ').collect();
        assert_eq!(points.last(), Some(&"610.0,34.0"), "the upper right corner");
        assert!(points.len() <= N_POINTS_MAX + 1, "{}", points.len());
    }
}
