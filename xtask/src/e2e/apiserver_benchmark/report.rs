//! The measurements, compared with the targets.

/// The measurements of one server.
#[derive(Debug)]
pub struct Measurements {
    pub server: &'static str,
    /// The time from process start until ready, for each start.
    pub starts_ms: Vec<f64>,
    pub create: Rate,
    pub bind: Rate,
    pub watched: WatchedBindings,
    pub memory: Memory,
}

/// The throughput of one kind of request.
#[derive(Debug)]
pub struct Rate {
    pub n: usize,
    pub seconds: f64,
    pub server_cpu_seconds: f64,
    /// The CPU time of the client process, including watchers.
    pub client_cpu_seconds: f64,
}

/// Bindings with watchers.
#[derive(Debug)]
pub struct WatchedBindings {
    pub rate: Rate,
    pub n_watchers: usize,
    /// Events that are missing, duplicate, wrong or out of order.
    pub n_errors: usize,
    /// The time from a binding request until its event at a watcher, of all events, sorted.
    pub delays_ms: Vec<f64>,
    /// The time from the last binding response until the last event.
    pub last_after_ms: f64,
}

/// Memory usage for the stored objects.
#[derive(Debug)]
pub struct Memory {
    pub n_nodes: u32,
    pub n_pods: u32,
    /// The size of a pod as JSON.
    pub pod_bytes: usize,
    /// The same without `managedFields`.
    pub bare_pod_bytes: usize,
    pub rss_bytes: u64,
    pub rss_peak_bytes: u64,
}

impl Rate {
    fn per_second(&self) -> f64 {
        self.n as f64 / self.seconds
    }

    fn micros(&self, cpu_seconds: f64) -> f64 {
        cpu_seconds * 1e6 / self.n.max(1) as f64
    }
}

/// The targets for the embedded server.
const BINDS_TIMES_MIN: f64 = 5.0;
const READY_MS_MAX: f64 = 200.0;
const MEMORY_MIB_MAX: f64 = 600.0;
/// The maximum delay of the last event after the last binding.
const LAST_AFTER_MS_MAX: f64 = 1_000.0;

/// A percentile of a sorted list.
fn percentile(sorted: &[f64], share: f64) -> f64 {
    let at = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(at.saturating_sub(1)).copied().unwrap_or(f64::NAN)
}

fn median(values: &[f64]) -> f64 {
    super::super::median::median(values.to_vec()).unwrap_or(f64::NAN)
}

/// A row of the table: a value per server, its number of decimals, and a target for the last server.
struct Line {
    name: String,
    figure: Box<dyn Fn(&Measurements) -> f64>,
    n_decimals: usize,
    /// Whether it compares both servers.
    with_ratio: bool,
    target: Option<(String, bool)>,
}

/// Prints the table; returns whether all targets are met. Relative targets are checked only if both servers were measured.
pub fn print(all: &[Measurements]) -> bool {
    let lines = lines(all);
    let servers: Vec<&str> = all.iter().map(|it| it.server).collect();
    println!("| | {} | ratio | target |", servers.join(" | "));
    println!("|{}", " --- |".repeat(servers.len() + 3));
    for line in &lines {
        let values: Vec<f64> = all.iter().map(&line.figure).collect();
        let cells: Vec<String> = values.iter().map(|it| grouped(*it, line.n_decimals)).collect();
        let ratio = match values.as_slice() {
            [real, embedded] if line.with_ratio && *embedded > 0.0 && *real > 0.0 => {
                format!("{:.0} %", embedded / real * 100.0)
            }
            _ => String::new(),
        };
        let target = line.target.as_ref().map_or_else(String::new, |(what, is_met)| {
            format!("{what}: {}", if *is_met { "met" } else { "MISSED" })
        });
        println!("| {} | {} | {ratio} | {target} |", line.name, cells.join(" | "));
    }
    lines.iter().all(|line| line.target.as_ref().is_none_or(|(_, is_met)| *is_met))
}

fn lines(all: &[Measurements]) -> Vec<Line> {
    let own = all.iter().find(|it| it.server == "embedded");
    let target = |what: &str, is_met: &dyn Fn(&Measurements) -> bool| {
        own.map(|own| (what.to_owned(), is_met(own)))
    };
    let times = |rate: fn(&Measurements) -> &Rate| match all {
        [real, embedded] => {
            let times = rate(embedded).per_second() / rate(real).per_second();
            Some((format!("{BINDS_TIMES_MIN}x"), times >= BINDS_TIMES_MIN))
        }
        _ => None,
    };
    let n_watchers = all.first().map_or(0, |it| it.watched.n_watchers);
    let ready =
        target(&format!("under {READY_MS_MAX} ms"), &|it| median(&it.starts_ms) < READY_MS_MAX);
    let in_order = target("none", &|it| it.watched.n_errors == 0);
    let last = target(&format!("under {LAST_AFTER_MS_MAX} ms"), &|it| {
        it.watched.last_after_ms < LAST_AFTER_MS_MAX
    });
    let memory = target(&format!("under {MEMORY_MIB_MAX} MiB"), &|it| {
        mib(it.memory.rss_bytes) < MEMORY_MIB_MAX
    });
    let mut lines = vec![line("ready after, ms", 0, true, ready, |it| median(&it.starts_ms))];
    lines.extend(rate_lines("creates", None, |it| &it.create));
    lines.extend(rate_lines("binds", times(|it| &it.bind), |it| &it.bind));
    let name = format!("binds with {n_watchers} watchers");
    lines.extend(rate_lines(&name, times(|it| &it.watched.rate), |it| &it.watched.rate));
    lines.extend([
        line("events received", 0, false, None, |it| it.watched.delays_ms.len() as f64),
        line("wrong, missing or out-of-order events", 0, false, in_order, |it| {
            it.watched.n_errors as f64
        }),
        line("bind to event, ms: p50", 1, true, None, |it| percentile(&it.watched.delays_ms, 0.5)),
        line("p99", 1, true, None, |it| percentile(&it.watched.delays_ms, 0.99)),
        line("last bind to last event, ms", 1, false, last, |it| it.watched.last_after_ms),
        line("nodes held", 0, false, None, |it| f64::from(it.memory.n_nodes)),
        line("bound pods stored", 0, false, None, |it| f64::from(it.memory.n_pods)),
        line("bytes of JSON per pod", 0, false, None, |it| it.memory.pod_bytes as f64),
        line("of these without managedFields", 0, false, None, |it| {
            it.memory.bare_pod_bytes as f64
        }),
        line("resident MiB", 0, false, memory, |it| mib(it.memory.rss_bytes)),
        line("peak", 0, false, None, |it| mib(it.memory.rss_peak_bytes)),
    ]);
    lines
}

/// Rows of throughput and cost per request.
fn rate_lines(
    name: &str,
    target: Option<(String, bool)>,
    rate: fn(&Measurements) -> &Rate,
) -> [Line; 3] {
    [
        line(&format!("{name}/s"), 0, true, target, move |it| rate(it).per_second()),
        line("CPU µs each, server", 0, true, None, move |it| {
            rate(it).micros(rate(it).server_cpu_seconds)
        }),
        line("client", 0, false, None, move |it| rate(it).micros(rate(it).client_cpu_seconds)),
    ]
}

fn line(
    name: &str,
    n_decimals: usize,
    with_ratio: bool,
    target: Option<(String, bool)>,
    figure: impl Fn(&Measurements) -> f64 + 'static,
) -> Line {
    Line { name: name.to_owned(), figure: Box::new(figure), n_decimals, with_ratio, target }
}

/// `12,345.6`
fn grouped(value: f64, n_decimals: usize) -> String {
    let text = format!("{value:.n_decimals$}");
    let (whole, rest) = text.split_at(text.find('.').unwrap_or(text.len()));
    let mut out = String::new();
    for (i, digit) in whole.chars().enumerate() {
        if i > 0 && (whole.len() - i).is_multiple_of(3) && digit.is_ascii_digit() {
            out.push(',');
        }
        out.push(digit);
    }
    out + rest
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(server: &'static str, binds_per_second: f64, rss_mib: u64) -> Measurements {
        let rate = || Rate {
            n: 100,
            seconds: 100.0 / binds_per_second,
            server_cpu_seconds: 0.01,
            client_cpu_seconds: 0.005,
        };
        Measurements {
            server,
            starts_ms: vec![300.0, 90.0, 100.0],
            create: rate(),
            bind: rate(),
            watched: WatchedBindings {
                rate: rate(),
                n_watchers: 3,
                n_errors: 0,
                delays_ms: vec![1.0, 2.0, 9.0],
                last_after_ms: 2.0,
            },
            memory: Memory {
                n_nodes: 1,
                n_pods: 1,
                pod_bytes: 2_000,
                bare_pod_bytes: 1_000,
                rss_bytes: rss_mib << 20,
                rss_peak_bytes: rss_mib << 20,
            },
        }
    }

    #[test]
    fn targets_are_checked_against_measurements() {
        let real = || figures("real", 1_000.0, 900);
        assert!(print(&[real(), figures("embedded", 5_000.0, 599)]));
        assert!(!print(&[real(), figures("embedded", 4_999.0, 599)]));
        assert!(!print(&[real(), figures("embedded", 5_000.0, 600)]));
        assert!(print(&[figures("embedded", 10.0, 599)]));
        let slow =
            Measurements { starts_ms: vec![300.0, 90.0, 210.0], ..figures("embedded", 9e3, 1) };
        assert!(!print(&[slow]));
        let mut wrong = figures("embedded", 9e3, 1);
        wrong.watched.n_errors = 1;
        assert!(!print(&[wrong]));
        let mut late = figures("embedded", 9e3, 1);
        late.watched.last_after_ms = 1_000.0;
        assert!(!print(&[late]));
    }

    #[test]
    fn percentiles_of_a_list() {
        let check = |values: &[f64], share: f64, want: f64| {
            assert_eq!(percentile(values, share), want, "{values:?} {share}");
        };
        check(&[1.0, 2.0, 3.0], 0.5, 2.0);
        check(&[1.0, 2.0, 3.0], 0.99, 3.0);
        check(&[7.0], 0.5, 7.0);
        assert!(percentile(&[], 0.5).is_nan());
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
    }

    #[test]
    fn numbers_are_grouped() {
        let check = |value: f64, n_decimals: usize, want: &str| {
            assert_eq!(grouped(value, n_decimals), want);
        };
        check(0.0, 0, "0");
        check(999.0, 0, "999");
        check(1_000.0, 0, "1,000");
        check(1_234_567.25, 1, "1,234,567.2");
    }
}
