//! Logs in the formats of Kubernetes components: klog text or JSON, with a verbosity that can be changed
//! at runtime.
//!
//! Events come from `tracing`. `error!` and `warn!` are always written; `info!` is verbosity 0 unless
//! the event has a field `v`, `debug!` is 4, `trace!` is 6; events of HTTP and TLS libraries need a higher verbosity. Fields are
//! key/value pairs; the fields of open spans of these levels precede those of the event.
//!
//! ```
//! tracing::info!(v = 2, pod = "ns/web", node = "a", "Bound");
//! // I1121 12:17:30.491594   21575 cycle.rs:64] "Bound" pod="ns/web" node="a"
//! ```

mod klog_format;
mod level;
mod output;

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use jiff::tz::TimeZone;
use loadmaster_config::AllFeatureGates;
use loadmaster_framework::plugin_log::{LogSeverity, PluginLogLine};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::SetGlobalDefaultError;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt as _};
use tracing_subscriber::registry::LookupSpan;

use crate::flags::LogFlags;
use klog_format::{Fields, LogLine, Severity};
use level::Levels;
use output::Output;

/// The log format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// `I1121 12:17:30.491594   21575 cycle.rs:64] "Bound" pod="ns/web"`.
    Text,
    /// `{"ts":1795263450491.594,"caller":"engine/cycle.rs:64","msg":"Bound","v":0,"pod":"ns/web"}`.
    Json,
}

/// Settings of logging.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogSettings {
    /// The log format.
    pub format: LogFormat,
    /// The verbosity.
    pub verbosity: u32,
    /// Verbosity of single files: a pattern with `*` and `?` for the file name without `.rs`.
    pub vmodule: Vec<(String, u32)>,
    /// Whether info messages go to standard output; otherwise everything goes to standard error.
    pub has_split_stream: bool,
    /// Size of the buffer for info messages; 0 disables buffering. Only with split streams.
    pub info_buffer_bytes: usize,
    /// Maximum time between flushes.
    pub flush_frequency: Duration,
}

/// The feature gate of split streams and buffers.
const ALPHA: &str = "LoggingAlphaOptions";
/// The feature gate of the JSON format.
const BETA: &str = "LoggingBetaOptions";

impl LogSettings {
    /// From the flags; on an error, upstream's error messages.
    pub fn from_flags(
        flags: &LogFlags,
        gates: &AllFeatureGates,
    ) -> Result<LogSettings, Vec<String>> {
        let mut errors = Vec::new();
        let flush_frequency = flags.log_flush_frequency.to_std().filter(|it| !it.is_zero());
        if flush_frequency.is_none() {
            let frequency = flags.log_flush_frequency.to_string();
            errors.push(format!(
                "flushFrequency: Invalid value: {frequency:?}: Must be greater than zero"
            ));
        }
        let format = match flags.logging_format.as_str() {
            "text" => LogFormat::Text,
            "json" => {
                if !gates.enabled(BETA) {
                    errors.push(format!(
                        "format: Forbidden: Log format json is disabled, see {BETA} feature"
                    ));
                }
                LogFormat::Json
            }
            other => {
                errors.push(format!("format: Invalid value: {other:?}: Unsupported log format"));
                LogFormat::Text
            }
        };
        if format == LogFormat::Json && !flags.vmodule.is_empty() {
            errors.push("vmodule: Forbidden: Only supported for text log format".to_owned());
        }
        for (option, is_set) in [
            ("text.splitStream", flags.log_text_split_stream),
            ("text.infoBufferSize", flags.log_text_info_buffer_size != 0),
            ("json.splitStream", flags.log_json_split_stream),
            ("json.infoBufferSize", flags.log_json_info_buffer_size != 0),
        ] {
            if is_set && !gates.enabled(ALPHA) {
                errors.push(format!("options.{option}: Forbidden: Feature {ALPHA} is disabled"));
            }
        }
        let (has_split_stream, buffer) = match format {
            LogFormat::Text => (flags.log_text_split_stream, flags.log_text_info_buffer_size),
            LogFormat::Json => (flags.log_json_split_stream, flags.log_json_info_buffer_size),
        };
        match flush_frequency {
            Some(flush_frequency) if errors.is_empty() => Ok(LogSettings {
                format,
                verbosity: flags.verbosity,
                vmodule: flags.vmodule.clone(),
                has_split_stream,
                info_buffer_bytes: usize::try_from(buffer).unwrap_or(usize::MAX),
                flush_frequency,
            }),
            _ => Err(errors),
        }
    }
}

/// A handle to the logs of the process.
#[derive(Clone, Debug)]
pub struct Logs {
    format: LogFormat,
    zone: TimeZone,
    levels: Arc<Levels>,
    output: Arc<Output>,
}

impl Logs {
    /// Starts logging all events of the process.
    pub fn init(settings: &LogSettings) -> Result<Logs, SetGlobalDefaultError> {
        Logs::start(settings, Output::standard(settings))
    }

    /// The same, but writes to `sink`.
    pub fn init_to(
        settings: &LogSettings,
        sink: Box<dyn Write + Send>,
    ) -> Result<Logs, SetGlobalDefaultError> {
        Logs::start(settings, Output::new(sink, None))
    }

    fn start(settings: &LogSettings, output: Output) -> Result<Logs, SetGlobalDefaultError> {
        let (layer, logs) = layer(settings, output, TimeZone::system());
        let registry = tracing_subscriber::registry().with(layer);
        tracing::subscriber::set_global_default(registry)?;
        if settings.has_split_stream && settings.info_buffer_bytes > 0 {
            output::flush_every(settings.flush_frequency, &logs.output);
        }
        Ok(logs)
    }

    /// Changes the verbosity.
    pub fn set_verbosity(&self, verbosity: u32) {
        self.levels.set(verbosity);
        tracing::callsite::rebuild_interest_cache();
    }

    /// The highest verbosity of any source file: no line of a higher level is shown.
    pub fn highest_verbosity(&self) -> u32 {
        self.levels.highest()
    }

    /// Writes a plugin's log line, if its level is shown.
    pub fn write_plugin_line(&self, line: &PluginLogLine) {
        let severity = match line.severity {
            LogSeverity::Info => Severity::Info,
            LogSeverity::Warning => Severity::Warning,
            LogSeverity::Error => Severity::Error,
        };
        let path = line.location.file();
        if severity == Severity::Info && line.level > self.levels.verbosity_of_file(path) {
            return;
        }
        let mut fields = Fields::new(self.format);
        fields.text("plugin", line.plugin);
        if !line.pod.is_empty() {
            fields.text("pod", &line.pod);
        }
        self.write(&LogLine {
            severity,
            path,
            line: line.location.line(),
            verbosity: line.level,
            message: &line.message,
            span_pairs: "",
            pairs: &fields.pairs,
        });
    }

    fn write(&self, line: &LogLine<'_>) {
        let text = line.print(self.format, &jiff::Timestamp::now().to_zoned(self.zone.clone()));
        self.output.write(line.severity != Severity::Info, &text);
    }

    /// Flushes buffered messages.
    pub fn flush(&self) {
        self.output.flush();
    }
}

fn layer(settings: &LogSettings, output: Output, zone: TimeZone) -> (KlogLayer, Logs) {
    let logs = Logs {
        format: settings.format,
        zone,
        levels: Arc::new(Levels::new(settings.verbosity, settings.vmodule.clone())),
        output: Arc::new(output),
    };
    (KlogLayer { logs: logs.clone() }, logs)
}

struct KlogLayer {
    logs: Logs,
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for KlogLayer {
    /// Spans, too, are made only for the verbosity that shows events of their level: HTTP/2 has several for each frame.
    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        self.logs.levels.verbosity_at(metadata) >= level::default_verbosity(metadata)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        None
    }

    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        if let Some(span) = context.span(id) {
            let mut fields = Fields::new(self.logs.format);
            attributes.record(&mut fields);
            span.extensions_mut().insert(fields);
        }
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        if let Some(span) = context.span(id)
            && let Some(fields) = span.extensions_mut().get_mut::<Fields>()
        {
            values.record(fields);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let metadata = event.metadata();
        let mut fields = Fields::new(self.logs.format);
        event.record(&mut fields);
        let verbosity = fields.verbosity.unwrap_or_else(|| level::default_verbosity(metadata));
        if verbosity > self.logs.levels.verbosity_at(metadata)
            && !level::is_warning_or_error(metadata)
        {
            return;
        }
        let mut of_spans = String::new();
        for span in context.event_scope(event).into_iter().flat_map(|scope| scope.from_root()) {
            if let Some(fields) = span.extensions().get::<Fields>() {
                of_spans.push_str(&fields.pairs);
            }
        }
        let severity = match *metadata.level() {
            Level::ERROR => Severity::Error,
            Level::WARN => Severity::Warning,
            _ => Severity::Info,
        };
        self.logs.write(&LogLine {
            severity,
            path: metadata.file().unwrap_or("unknown"),
            line: metadata.line().unwrap_or(0),
            verbosity,
            message: &fields.message,
            span_pairs: &of_spans,
            pairs: &fields.pairs,
        });
    }
}

#[cfg(test)]
mod tests;
