//! One line.

use std::error::Error;
use std::fmt::{self, Write as _};

use jiff::Zoned;
use loadmaster_stdx::Chain;
use tracing::field::{Field, Visit};
use tracing::{Level, Metadata};

use super::Format;

/// Fields with these names are never written, whoever logs them.
const SECRETS: [&str; 4] = ["authorization", "bearer", "password", "token"];

/// The fields of an event or a span, printed.
pub(super) struct Fields {
    format: Format,
    pub message: String,
    /// The field `v`.
    pub verbosity: Option<u32>,
    /// ` key=value` or `,"key":value` each.
    pub pairs: String,
}

impl Fields {
    pub fn new(format: Format) -> Fields {
        Fields { format, message: String::new(), verbosity: None, pairs: String::new() }
    }

    /// A value that stands as it is printed: numbers and bools.
    fn plain(&mut self, field: &Field, value: &dyn fmt::Display) {
        // Writing to a string cannot fail.
        let _ = match self.format {
            Format::Text => write!(self.pairs, " {}={value}", field.name()),
            Format::Json => write!(self.pairs, ",{:?}:{value}", field.name()),
        };
    }

    fn text(&mut self, field: &Field, value: &str) {
        let name = field.name();
        if name == "message" {
            value.clone_into(&mut self.message);
            return;
        }
        let value = if SECRETS.contains(&name) { "<redacted>" } else { value };
        // Writing to a string cannot fail.
        let _ = match self.format {
            Format::Json => write!(self.pairs, ",{name:?}:{}", Json(value)),
            Format::Text if value.contains('\n') => {
                let lines = value.trim_end_matches('\n').replace('\n', "\n\t");
                write!(self.pairs, " {name}=<\n\t{lines}\n >")
            }
            Format::Text => write!(self.pairs, " {name}={value:?}"),
        };
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.text(field, &format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.text(field, value);
    }

    fn record_error(&mut self, field: &Field, value: &(dyn Error + 'static)) {
        self.text(field, &Chain(value).to_string());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        match (field.name(), u32::try_from(value)) {
            ("v", Ok(verbosity)) => self.verbosity = Some(verbosity),
            _ => self.plain(field, &value),
        }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        match (field.name(), u32::try_from(value)) {
            ("v", Ok(verbosity)) => self.verbosity = Some(verbosity),
            _ => self.plain(field, &value),
        }
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        if value.is_finite() {
            self.plain(field, &value);
        } else {
            self.text(field, &value.to_string());
        }
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.plain(field, &value);
    }
}

/// A string of JSON.
struct Json<'a>(&'a str);

impl fmt::Display for Json<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", serde_json::Value::from(self.0))
    }
}

/// An event before it is printed.
pub(super) struct Line<'a> {
    pub metadata: &'a Metadata<'a>,
    pub verbosity: u32,
    /// Pairs of the spans around it.
    pub of_spans: &'a str,
    pub fields: &'a Fields,
}

impl Line<'_> {
    /// The line with its end.
    pub fn print(&self, format: Format, now: &Zoned) -> String {
        let Fields { message, pairs, .. } = self.fields;
        let path = self.metadata.file().unwrap_or("unknown");
        let line = self.metadata.line().unwrap_or(0);
        let file = path.rsplit('/').next().unwrap_or(path);
        match format {
            Format::Text => {
                let severity = match *self.metadata.level() {
                    Level::ERROR => 'E',
                    Level::WARN => 'W',
                    _ => 'I',
                };
                let pid = std::process::id();
                format!(
                    "{severity}{:02}{:02} {:02}:{:02}:{:02}.{:06} {pid:>7} {file}:{line}] {message:?}{}{pairs}\n",
                    now.month(),
                    now.day(),
                    now.hour(),
                    now.minute(),
                    now.second(),
                    now.subsec_nanosecond() / 1000,
                    self.of_spans,
                )
            }
            Format::Json => {
                let micros = now.timestamp().as_microsecond();
                // The folder of the file, as in "app/server.go:178".
                let folder = path.rsplit('/').nth(1).map(|it| format!("{it}/")).unwrap_or_default();
                let verbosity = match *self.metadata.level() {
                    Level::ERROR => String::new(),
                    _ => format!(",\"v\":{}", self.verbosity),
                };
                format!(
                    "{{\"ts\":{}.{:03},\"caller\":\"{folder}{file}:{line}\",\"msg\":{}{verbosity}{}{pairs}}}\n",
                    micros / 1000,
                    micros % 1000,
                    Json(message),
                    self.of_spans,
                )
            }
        }
    }
}
