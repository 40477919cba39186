//! `/debug/pprof/profile`: what this process spends CPU time on, as a file for `go tool pprof`.
//!
//! A timer of the process interrupts whichever thread runs 100 times per second of CPU time, as in Go, and the crate `pprof` records its
//! stack. Release builds have no symbols: the profile has addresses, which pprof resolves with the same program before symbols were removed. A
//! program with symbols resolves them itself.

use std::ffi::c_void;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use http::StatusCode;
use http::header::{CONTENT_DISPOSITION, HeaderName, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use pprof::{ProfilerGuard, ProfilerGuardBuilder, UnresolvedReport};
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use super::pprof_format::{CpuProfile, Function, Mapping, Stack};
use super::reply::{HttpReply, text_line};

/// The path.
pub(super) const PATH: &str = "/debug/pprof/profile";

/// Samples per second of CPU time, as in Go.
const FREQUENCY: i32 = 100;
/// The duration without a valid `seconds`, as in Go.
const SECONDS_DEFAULT: u64 = 30;
/// The longest profile. Go has no limit.
const SECONDS_MAX: u64 = 300;
/// How long resolving symbols may take.
const ENCODING_TIME_MAX: Duration = Duration::from_secs(60);

/// Where samples are kept that do not fit into memory if the folder for temporary files is read-only, as in containers.
const SHARED_MEMORY: &str = "/dev/shm";

/// The timeout of a request for a profile with this query.
pub(super) fn request_time_max(query: &str) -> Duration {
    Duration::from_secs(seconds(query).min(SECONDS_MAX)) + ENCODING_TIME_MAX
}

/// Samples the process for the `seconds` of the query. Dropping the future ends that.
pub(super) async fn cpu_profile(query: &str) -> HttpReply {
    let seconds = seconds(query);
    if seconds > SECONDS_MAX {
        let why = format!("profile duration exceeds {SECONDS_MAX} seconds");
        return error(StatusCode::BAD_REQUEST, why);
    }
    let guard = match spawn_blocking(start).await {
        Ok(Ok(guard)) => guard,
        Ok(Err(why)) => {
            let why = format!("Could not enable CPU profiling: {why}");
            return error(StatusCode::INTERNAL_SERVER_ERROR, why);
        }
        Err(panic) => return error(StatusCode::INTERNAL_SERVER_ERROR, panic.to_string()),
    };
    sleep(Duration::from_secs(seconds)).await;
    match spawn_blocking(move || finish(&guard)).await {
        Ok(Ok(body)) => HttpReply::new(StatusCode::OK, "application/octet-stream", body)
            .with_header(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"))
            .with_header(
                CONTENT_DISPOSITION,
                HeaderValue::from_static("attachment; filename=\"profile\""),
            ),
        Ok(Err(why)) => error(StatusCode::INTERNAL_SERVER_ERROR, why),
        Err(panic) => error(StatusCode::INTERNAL_SERVER_ERROR, panic.to_string()),
    }
}

/// `seconds` of a query, as Go reads it.
fn seconds(query: &str) -> u64 {
    let value = form_urlencoded::parse(query.as_bytes()).find(|(key, _)| key == "seconds");
    let seconds = value.and_then(|(_, value)| value.parse::<i64>().ok());
    seconds.and_then(|it| u64::try_from(it).ok()).filter(|it| *it > 0).unwrap_or(SECONDS_DEFAULT)
}

/// An error as those of Go's handler.
fn error(status: StatusCode, why: String) -> HttpReply {
    let header = HeaderName::from_static("x-go-pprof");
    text_line(status, why).with_header(header, HeaderValue::from_static("1"))
}

fn start() -> Result<ProfilerGuard<'static>, String> {
    if tempfile::tempfile().is_err() {
        // Set already, or no such folder: then starting says why it fails.
        let _ = tempfile::env::override_temp_dir(Path::new(SHARED_MEMORY));
    }
    let builder = ProfilerGuardBuilder::default().frequency(FREQUENCY);
    builder.build().map_err(|error| match error {
        pprof::Error::Running => "cpu profiling already in use".to_owned(),
        other => other.to_string(),
    })
}

/// The samples until now, as the body of the response.
fn finish(guard: &ProfilerGuard<'static>) -> Result<Vec<u8>, String> {
    let report = guard.report().build_unresolved();
    let report = report.map_err(|error| format!("Could not read the samples: {error}"))?;
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    to_profile(&report, Mapping::executable(&maps)).to_gzip().map_err(|error| error.to_string())
}

fn to_profile(report: &UnresolvedReport, mappings: Vec<Mapping>) -> CpuProfile {
    let timing = &report.timing;
    let since_1970 = timing.start_time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut profile = CpuProfile {
        started_nanos: since_1970.as_nanos() as i64,
        duration_nanos: timing.duration.as_nanos() as i64,
        period_nanos: 1_000_000_000 / i64::from(FREQUENCY),
        mappings,
        ..CpuProfile::default()
    };
    for (frames, n_samples) in &report.data {
        // But for the first, they are where calls return to: the call is before that, as in profiles of Go.
        let address = |(nth, ip): (usize, usize)| if nth == 0 { ip } else { ip.saturating_sub(1) };
        let ips = frames.frames.iter().map(|frame| frame.ip).enumerate();
        let addresses: Vec<u64> = ips.map(|it| address(it) as u64).collect();
        for &address in &addresses {
            profile.functions.entry(address).or_insert_with(|| functions_at(address));
        }
        let thread = &frames.thread_name[..frames.thread_name_length];
        profile.stacks.push(Stack {
            addresses,
            thread: String::from_utf8_lossy(thread).into_owned(),
            n_samples: *n_samples as i64,
        });
    }
    profile
}

/// The functions at an address of this program and its libraries; none without symbols.
fn functions_at(address: u64) -> Vec<Function> {
    let mut functions = Vec::new();
    backtrace::resolve(address as usize as *mut c_void, |symbol| {
        let Some(name) = symbol.name() else { return };
        functions.push(Function {
            // Without the hash of the crate.
            name: format!("{name:#}"),
            file: symbol.filename().map(|it| it.display().to_string()).unwrap_or_default(),
            line: symbol.lineno().unwrap_or_default().into(),
        });
    });
    functions
}
