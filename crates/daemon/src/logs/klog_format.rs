//! Formats log lines like klog: text or JSON.

use std::error::Error;
use std::fmt::{self, Write as _};

use jiff::Zoned;
use loadmaster_stdx::ErrorChain;
use tracing::field::{Field, Visit};

use super::LogFormat;

/// Fields with these names are always redacted.
const SECRETS: [&str; 4] = ["authorization", "bearer", "password", "token"];

/// The formatted fields of an event or a span.
pub(super) struct Fields {
    format: LogFormat,
    pub message: String,
    /// The field `v`.
    pub verbosity: Option<u32>,
    /// ` key=value` or `,"key":value` each.
    pub pairs: String,
}

impl Fields {
    pub fn new(format: LogFormat) -> Fields {
        Fields { format, message: String::new(), verbosity: None, pairs: String::new() }
    }

    /// A value that is printed without quotes: numbers and bools.
    fn plain(&mut self, field: &Field, value: &dyn fmt::Display) {
        // Writing to a string cannot fail.
        let _ = match self.format {
            LogFormat::Text => write!(self.pairs, " {}={value}", field.name()),
            LogFormat::Json => write!(self.pairs, ",{:?}:{value}", field.name()),
        };
    }

    /// A value that is printed in quotes.
    pub fn text(&mut self, name: &str, value: &str) {
        if name == "message" {
            value.clone_into(&mut self.message);
            return;
        }
        let value = if SECRETS.contains(&name) { "<redacted>" } else { value };
        // Writing to a string cannot fail.
        let _ = match self.format {
            LogFormat::Json => write!(self.pairs, ",{name:?}:{}", Json(value)),
            LogFormat::Text if value.contains('\n') => {
                let lines = value.trim_end_matches('\n').replace('\n', "\n\t");
                write!(self.pairs, " {name}=<\n\t{lines}\n >")
            }
            LogFormat::Text => write!(self.pairs, " {name}={value:?}"),
        };
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.text(field.name(), &format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.text(field.name(), value);
    }

    fn record_error(&mut self, field: &Field, value: &(dyn Error + 'static)) {
        self.text(field.name(), &ErrorChain(value).to_string());
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
            self.text(field.name(), &value.to_string());
        }
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.plain(field, &value);
    }
}

/// Formats a string as JSON.
struct Json<'a>(&'a str);

impl fmt::Display for Json<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", serde_json::Value::from(self.0))
    }
}

/// The severity of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Severity {
    Info,
    Warning,
    Error,
}

/// A line to format.
pub(super) struct LogLine<'a> {
    pub severity: Severity,
    /// The path of the source file.
    pub path: &'a str,
    /// The line in the source file.
    pub line: u32,
    pub verbosity: u32,
    pub message: &'a str,
    /// The formatted fields of the spans around it.
    pub span_pairs: &'a str,
    /// The formatted fields.
    pub pairs: &'a str,
}

impl LogLine<'_> {
    /// The formatted line, with a newline.
    pub fn print(&self, format: LogFormat, now: &Zoned) -> String {
        let LogLine { message, pairs, path, line, .. } = self;
        let file = path.rsplit('/').next().unwrap_or(path);
        match format {
            LogFormat::Text => {
                let severity = match self.severity {
                    Severity::Error => 'E',
                    Severity::Warning => 'W',
                    Severity::Info => 'I',
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
                    self.span_pairs,
                )
            }
            LogFormat::Json => {
                let micros = now.timestamp().as_microsecond();
                // The directory of the file, as in "app/server.go:178".
                let folder = path.rsplit('/').nth(1).map(|it| format!("{it}/")).unwrap_or_default();
                let verbosity = match self.severity {
                    Severity::Error => String::new(),
                    _ => format!(",\"v\":{}", self.verbosity),
                };
                format!(
                    "{{\"ts\":{}.{:03},\"caller\":\"{folder}{file}:{line}\",\"msg\":{}{verbosity}{}{pairs}}}\n",
                    micros / 1000,
                    micros % 1000,
                    Json(message),
                    self.span_pairs,
                )
            }
        }
    }
}
