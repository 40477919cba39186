//! Metrics of this process, read from `/proc`; on other systems there are none.

use std::collections::BTreeSet;
use std::fs;

use super::text_format::{Number, head};
use loadmaster_stdx::SortCompactly as _;

/// The lines of `process_*`, except disabled metrics.
pub(super) fn text(disabled: &BTreeSet<String>) -> String {
    let mut out = String::new();
    for (name, help, kind, value) in read().into_iter().flatten() {
        if !disabled.contains(name) {
            // Writing to a string cannot fail.
            let _ = head(&mut out, name, help, kind);
            out.push_str(&format!("{name} {}\n", Number(value)));
        }
    }
    out
}

type Row = (&'static str, &'static str, &'static str, f64);

fn read() -> Option<Vec<Row>> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    let stat = Stat::parse(&stat)?;
    let mut rows: Vec<Row> = vec![
        (
            "process_cpu_seconds_total",
            "Total user and system CPU time spent in seconds.",
            "counter",
            stat.cpu_ticks / ticks_per_second(),
        ),
        (
            "process_resident_memory_bytes",
            "Resident memory size in bytes.",
            "gauge",
            stat.resident_pages * rustix::param::page_size() as f64,
        ),
        (
            "process_virtual_memory_bytes",
            "Virtual memory size in bytes.",
            "gauge",
            stat.virtual_bytes,
        ),
    ];
    if let Ok(open) = fs::read_dir("/proc/self/fd") {
        rows.push((
            "process_open_fds",
            "Number of open file descriptors.",
            "gauge",
            open.count() as f64,
        ));
    }
    let limit = |resource| match rustix::process::getrlimit(resource).current {
        Some(limit) => limit as f64,
        None => u64::MAX as f64,
    };
    rows.push((
        "process_max_fds",
        "Maximum number of open file descriptors.",
        "gauge",
        limit(rustix::process::Resource::Nofile),
    ));
    rows.push((
        "process_virtual_memory_max_bytes",
        "Maximum amount of virtual memory available in bytes.",
        "gauge",
        limit(rustix::process::Resource::As),
    ));
    if let Some(start) = start_seconds() {
        rows.push((
            "process_start_time_seconds",
            "[ALPHA] Start time of the process since unix epoch in seconds.",
            "gauge",
            start,
        ));
    }
    if let Some((received, sent)) =
        fs::read_to_string("/proc/self/net/dev").ok().map(|text| network(&text))
    {
        rows.push((
            "process_network_receive_bytes_total",
            "Number of bytes received by the process over the network.",
            "counter",
            received,
        ));
        rows.push((
            "process_network_transmit_bytes_total",
            "Number of bytes sent by the process over the network.",
            "counter",
            sent,
        ));
    }
    rows.sort_compactly_by_key(|(name, ..)| *name);
    Some(rows)
}

fn ticks_per_second() -> f64 {
    rustix::param::clock_ticks_per_second() as f64
}

/// The start time of the process: boot time plus ticks.
pub(super) fn start_seconds() -> Option<f64> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    let system = fs::read_to_string("/proc/stat").ok()?;
    let boot = system.lines().find_map(|line| line.strip_prefix("btime "))?;
    Some(boot.trim().parse::<f64>().ok()? + Stat::parse(&stat)?.start_ticks / ticks_per_second())
}

/// The fields of `/proc/self/stat` that are used; see proc(5).
struct Stat {
    cpu_ticks: f64,
    start_ticks: f64,
    virtual_bytes: f64,
    resident_pages: f64,
}

impl Stat {
    fn parse(text: &str) -> Option<Stat> {
        // The name of the process stands in parentheses and may contain anything.
        let (_, rest) = text.rsplit_once(')')?;
        let fields: Vec<f64> =
            rest.split_whitespace().map(|field| field.parse().unwrap_or_default()).collect();
        // Field 3 is the first after the name.
        let field = |number: usize| fields.get(number - 3).copied();
        Some(Stat {
            cpu_ticks: field(14)? + field(15)?,
            start_ticks: field(22)?,
            virtual_bytes: field(23)?,
            resident_pages: field(24)?,
        })
    }
}

/// Bytes received and sent over all interfaces.
fn network(text: &str) -> (f64, f64) {
    let mut sums = (0.0, 0.0);
    for (_, counts) in text.lines().filter_map(|line| line.split_once(':')) {
        let counts: Vec<f64> =
            counts.split_whitespace().map(|count| count.parse().unwrap_or_default()).collect();
        if let [received, _, _, _, _, _, _, _, sent, ..] = counts[..] {
            sums = (sums.0 + received, sums.1 + sent);
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_of_a_process_with_an_odd_name() {
        let line = "42 (a) b (c)) S 1 42 42 0 -1 4194560 1 0 0 0 700 300 0 0 20 0 9 0 12345 1024000 25 18446744073709551615";
        let stat = Stat::parse(line).unwrap();
        assert_eq!((stat.cpu_ticks, stat.start_ticks), (1000.0, 12345.0));
        assert_eq!((stat.virtual_bytes, stat.resident_pages), (1_024_000.0, 25.0));
        assert!(Stat::parse("42 (x) S 1").is_none());
    }

    #[test]
    fn network_counts_all_interfaces() {
        let text = "Inter-| Receive | Transmit\n face |bytes packets\n    lo: 10 1 0 0 0 0 0 0 20 1 0 0 0 0 0 0\n  eth0: 100 1 0 0 0 0 0 0 200 1 0 0 0 0 0 0\n";
        assert_eq!(network(text), (110.0, 220.0));
    }
}
