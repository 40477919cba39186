//! Text output: numbers, bars, colored lines and aligned tables.

use std::io::{self, Write};

/// The style of a piece of text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Style {
    #[default]
    Plain,
    Bold,
    Dim,
    Good,
    #[cfg(feature = "cluster")]
    Warn,
    Bad,
}

impl Style {
    fn code(self) -> &'static str {
        match self {
            Style::Plain => "",
            Style::Bold => "\x1b[1m",
            Style::Dim => "\x1b[2m",
            Style::Good => "\x1b[32m",
            #[cfg(feature = "cluster")]
            Style::Warn => "\x1b[33m",
            Style::Bad => "\x1b[31m",
        }
    }
}

/// A line of styled pieces of text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Line(Vec<(Style, String)>);

impl Line {
    /// A line with one piece.
    pub fn new(look: Style, text: impl Into<String>) -> Line {
        Line(vec![(look, text.into())])
    }

    /// Adds a piece.
    #[must_use]
    pub fn with_text(mut self, look: Style, text: impl Into<String>) -> Line {
        self.0.push((look, text.into()));
        self
    }

    /// Renders the line, cut to a width, with or without color.
    pub fn render(&self, width: usize, color: bool) -> String {
        let mut line = String::new();
        let mut left = width;
        let n_chars: usize = self.0.iter().map(|(_, text)| text.chars().count()).sum();
        let is_cut = n_chars > width;
        left -= usize::from(is_cut && left > 0);
        for (look, text) in &self.0 {
            let piece: String = text.chars().take(left).collect();
            left -= piece.chars().count();
            let code = look.code();
            if color && !code.is_empty() && !piece.is_empty() {
                line.extend([code, &piece, "\x1b[0m"]);
            } else {
                line.push_str(&piece);
            }
        }
        if is_cut && width > 0 {
            line.push('…');
        }
        line
    }
}

/// The width for which text is wrapped.
const WRAP_WIDTH: usize = 80;

/// Text as lines of at most 80 columns, unless a word is longer. The first line is indented by `first`, the others by `rest`.
pub(crate) fn wrapped(text: &str, first: usize, rest: usize) -> Vec<Line> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= WRAP_WIDTH => {
                line.extend([" ", word]);
            }
            last => {
                let indent = if last.is_none() { first } else { rest };
                lines.push(" ".repeat(indent) + word);
            }
        }
    }
    lines.into_iter().map(|line| Line::new(Style::Plain, line)).collect()
}

/// Prints lines without cutting them.
pub(crate) fn print(out: &mut dyn Write, lines: &[Line], color: bool) -> io::Result<()> {
    lines.iter().try_for_each(|line| writeln!(out, "{}", line.render(usize::MAX, color).trim_end()))
}

/// The alignment of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Alignment {
    Left,
    Right,
}

/// A table with aligned columns.
pub(crate) struct Table {
    sides: Vec<Alignment>,
    rows: Vec<(Style, Vec<String>)>,
}

impl Table {
    /// A table with these columns.
    pub fn new(sides: &[Alignment]) -> Table {
        Table { sides: sides.to_vec(), rows: Vec::new() }
    }

    /// Adds a row; missing cells are empty.
    pub fn row(&mut self, look: Style, cells: impl IntoIterator<Item = impl Into<String>>) {
        self.rows.push((look, cells.into_iter().map(Into::into).collect()));
    }

    /// Renders the rows with an indent.
    pub fn lines(&self, indent: usize) -> Vec<Line> {
        let width_of = |column: usize| {
            let cells = self.rows.iter().filter_map(|(_, cells)| cells.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.sides.len()).map(width_of).collect();
        let line = |(look, cells): &(Style, Vec<String>)| {
            let mut text = " ".repeat(indent);
            for (column, (side, width)) in self.sides.iter().zip(&widths).enumerate() {
                let cell = cells.get(column).map_or("", String::as_str);
                let padding = " ".repeat(width - cell.chars().count());
                let gap = if column == 0 { "" } else { "  " };
                match side {
                    Alignment::Left => text.extend([gap, cell, &padding]),
                    Alignment::Right => text.extend([gap, &padding, cell]),
                }
            }
            Line::new(*look, text.trim_end())
        };
        self.rows.iter().map(line).collect()
    }
}

/// `12,345`.
pub(crate) fn grouped(n: impl TryInto<u64>) -> String {
    let digits = n.try_into().unwrap_or(u64::MAX).to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `1 pod`, `2 pods`.
pub(crate) fn counted(n: usize, what: &str) -> String {
    format!("{} {what}{}", grouped(n as u64), if n == 1 { "" } else { "s" })
}

/// `████░░░░`.
#[cfg(feature = "cluster")]
pub(crate) fn bar(fraction: f64, width: usize) -> String {
    let full = ((fraction.clamp(0.0, 1.0) * width as f64).round() as usize).min(width);
    "█".repeat(full) + &"░".repeat(width - full)
}

/// `71 %`.
#[cfg(feature = "cluster")]
pub(crate) fn percent(fraction: f64) -> String {
    format!("{:.0} %", fraction * 100.0)
}

/// `3.2 µs`, `14 ms`, `1.25 s`.
pub(crate) fn duration(ns: u64) -> String {
    let ns = ns as f64;
    match ns {
        ns if ns < 1e3 => format!("{ns:.0} ns"),
        ns if ns < 1e4 => format!("{:.1} µs", ns / 1e3),
        ns if ns < 1e6 => format!("{:.0} µs", ns / 1e3),
        ns if ns < 1e7 => format!("{:.1} ms", ns / 1e6),
        ns if ns < 1e9 => format!("{:.0} ms", ns / 1e6),
        ns => format!("{:.2} s", ns / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers() {
        assert_eq!([0_u64, 999, 1_000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
        let times = [12, 3_210, 45_000, 3_200_000, 14_000_000, 1_250_000_000];
        assert_eq!(times.map(duration), ["12 ns", "3.2 µs", "45 µs", "3.2 ms", "14 ms", "1.25 s"]);
        assert_eq!([counted(1, "pod"), counted(2_000, "pod")], ["1 pod", "2,000 pods"]);
        #[cfg(feature = "cluster")]
        assert_eq!([bar(0.5, 4), bar(7.0, 2), bar(-1.0, 2)], ["██░░", "██", "░░"]);
    }

    #[test]
    fn lines_are_cut_and_colored() {
        let line = Line::new(Style::Good, "green").with_text(Style::Plain, " and plain");
        assert_eq!(line.render(100, false), "green and plain");
        assert_eq!(line.render(100, true), "\x1b[32mgreen\x1b[0m and plain");
        assert_eq!(line.render(8, false), "green a…");
        assert_eq!(line.render(4, true), "\x1b[32mgre\x1b[0m…");
        assert_eq!(line.render(0, true), "");
    }

    #[test]
    fn text_is_wrapped_between_words() {
        #[track_caller]
        fn check(text: &str, want: &[&str]) {
            let lines: Vec<String> =
                wrapped(text, 2, 4).iter().map(|line| line.render(200, false)).collect();
            assert_eq!(lines, want);
        }
        let (long, short) = ("x".repeat(90), "y".repeat(37));
        check("a b", &["  a b"]);
        check(&format!("{short} {short} z"), &[&format!("  {short} {short} z")]);
        check(&format!("{short} {short} zzzz"), &[&format!("  {short} {short}"), "    zzzz"]);
        check(&format!("a {long} b"), &["  a", &format!("    {long}"), "    b"]);
        check("", &["  "]);
    }

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(&[Alignment::Left, Alignment::Right, Alignment::Left]);
        table.row(Style::Bold, ["NODE", "TOTAL", "WHY"]);
        table.row(Style::Plain, ["a", "7", "because"]);
        table.row(Style::Plain, ["bb", "1234567"]);
        let text: Vec<String> = table.lines(1).iter().map(|line| line.render(99, false)).collect();
        assert_eq!(text, [" NODE    TOTAL  WHY", " a           7  because", " bb    1234567"]);
    }
}
