//! `cargo xtask first-cluster`: runs the sample cluster of the README until it has settled, and checks what `loadmaster up` shows.
//!
//! Which node a pod gets depends on timing, but how many pods are assigned, and which are not and why, does not.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use anyhow::{Context as _, Result};

use crate::root;

/// The README's command, so that it ends: `up` exits when it has settled.
const COMMAND: [&str; 7] =
    ["run", "--release", "--quiet", "--", "up", "--exit-when-settled", "--seed=1"];

/// 1: pods stay pending. The sample workload has pods that fit on no node.
const EXIT_CODE: i32 = 1;

const SETTLED: &str = "8 pods pending, all other pods are assigned (2,379 assigned)";

/// The pods in the summary, which lists those that have succeeded, too.
const PODS: [&str; 3] = ["2,379 running", "0 starting", "0 failed"];

/// Zones with their numbers of nodes.
const ZONES: [(&str, u32); 3] = [("zone-a", 43), ("zone-b", 29), ("zone-c", 28)];

/// Pods that stay pending.
struct PendingPods {
    /// Namespace and name, or those of their Deployment.
    of: &'static str,
    n_pods: u32,
    /// What the reason contains.
    reason: &'static str,
}

const PENDING: [PendingPods; 7] = [
    PendingPods {
        of: "puzzles/loners",
        n_pods: 2,
        reason: "node(s) didn't match pod anti-affinity rules",
    },
    PendingPods {
        of: "edge/ingress",
        n_pods: 1,
        reason: "5 node(s) didn't have free ports for the requested pod ports",
    },
    PendingPods {
        of: "puzzles/behind-a-gate",
        n_pods: 1,
        reason: "waiting for scheduling gates: [example.com/quota]",
    },
    PendingPods {
        of: "puzzles/gpu-without-toleration",
        n_pods: 1,
        reason: "94 Insufficient nvidia.com/gpu",
    },
    PendingPods {
        of: "puzzles/no-such-zone",
        n_pods: 1,
        reason: "94 node(s) didn't match Pod's node affinity/selector",
    },
    PendingPods { of: "puzzles/too-large", n_pods: 1, reason: "94 Insufficient cpu" },
    PendingPods {
        of: "puzzles/volume-in-another-zone",
        n_pods: 1,
        reason: "node(s) didn't match PersistentVolume's node affinity",
    },
];

/// Runs the cluster; returns whether it ended as it must.
pub fn run() -> Result<bool> {
    let mut cargo = crate::command("cargo");
    cargo.args(COMMAND).current_dir(root()?).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = cargo.spawn().context("running cargo")?;
    let stdout = child.stdout.take().context("no pipe from cargo")?;
    let mut text = String::new();
    for line in BufReader::new(stdout).lines() {
        let line = line.context("reading the output of up")?;
        println!("{line}");
        text += &line;
        text.push('\n');
    }
    let code = child.wait().context("waiting for cargo")?.code();
    let wrong = differences(&text, code);
    match wrong.as_slice() {
        [] => println!("first-cluster: the sample cluster ended as expected"),
        wrong => wrong.iter().for_each(|line| println!("first-cluster: {line}")),
    }
    Ok(wrong.is_empty())
}

/// How the end differs from the expected one.
fn differences(text: &str, exit_code: Option<i32>) -> Vec<String> {
    let mut wrong = Vec::new();
    if exit_code != Some(EXIT_CODE) {
        wrong.push(format!("expected exit code {EXIT_CODE}, found {exit_code:?}"));
    }
    let (_, summary) = text.split_once("\nsettled after ").unwrap_or_default();
    if !summary.lines().next().is_some_and(|line| line.ends_with(SETTLED)) {
        wrong.push(format!("expected a summary with {SETTLED:?}"));
    }
    let pods = summary.lines().find_map(|line| line.strip_prefix("  pods ")).unwrap_or_default();
    let pods: Vec<&str> = pods.split(", ").map(str::trim).collect();
    for want in PODS {
        if !pods.contains(&want) {
            wrong.push(format!("expected {want} pods, found {pods:?}"));
        }
    }
    for (zone, n_nodes) in ZONES {
        let is_shown = summary.lines().map(words).any(|line| {
            line.first() == Some(&zone) && line.get(1) == Some(&n_nodes.to_string().as_str())
        });
        if !is_shown {
            wrong.push(format!("expected {n_nodes} nodes in {zone}"));
        }
    }
    wrong.extend(pending_differences(summary));
    wrong
}

fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

/// The differences in the table of pending pods: its rows are number, example and reason.
fn pending_differences(summary: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut n_found = [0; PENDING.len()];
    let rows = summary.lines().skip_while(|line| words(line).first() != Some(&"PENDING")).skip(1);
    for row in rows.take_while(|line| !line.is_empty()) {
        let mut parts = row.trim_start().splitn(3, ' ');
        let n_pods = parts.next().and_then(|n| n.parse::<u32>().ok()).unwrap_or_default();
        let rest = parts.collect::<Vec<_>>().join(" ");
        let (example, reason) = rest.trim_start().split_once(' ').unwrap_or_default();
        match PENDING.iter().position(|pods| is_of(example, pods.of)) {
            Some(at) if reason.contains(PENDING[at].reason) => n_found[at] += n_pods,
            Some(at) => {
                let want = PENDING[at].reason;
                wrong.push(format!("{example}: expected a reason with {want:?}, found {reason:?}"));
            }
            None => {
                wrong.push(format!("{n_pods} pods like {example:?} should be assigned: {reason}"))
            }
        }
    }
    for (pods, n_found) in PENDING.iter().zip(n_found) {
        if n_found != pods.n_pods {
            let (of, n_pods, reason) = (pods.of, pods.n_pods, pods.reason);
            wrong.push(format!("{of}: expected {n_pods} pending for {reason:?}, found {n_found}"));
        }
    }
    wrong
}

/// Whether a pod has this name, or belongs to the Deployment of this name.
fn is_of(pod: &str, name: &str) -> bool {
    pod.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.split('-').count() == 3)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "\
API server on https://127.0.0.1:35863
   22.8 s    2,379 running       0 starting       8 pending      636 succeeded     4,360 decisions

settled after 22.8 s: 8 pods pending, all other pods are assigned (2,379 assigned)

  pods       2,379 running, 0 starting, 636 succeeded, 0 failed
  decisions  4,360; 27,483 per second, 36 µs each

  PENDING  FOR EXAMPLE                      REASON
        2  puzzles/loners-6c6bd567c9-5gmpj  0/100 nodes are available: 2 Too many pods, 81 node(s) didn't match pod anti-affinity rules.
        1  edge/ingress-75bdfc994d-vtmdg    0/100 nodes are available: 5 node(s) didn't have free ports for the requested pod ports.
        1  puzzles/behind-a-gate            waiting for scheduling gates: [example.com/quota]
        1  puzzles/gpu-without-toleration   0/100 nodes are available: 94 Insufficient nvidia.com/gpu. preemption: none.
        1  puzzles/no-such-zone             0/100 nodes are available: 94 node(s) didn't match Pod's node affinity/selector.
        1  puzzles/too-large                0/100 nodes are available: 94 Insufficient cpu. preemption: none.
        1  puzzles/volume-in-another-zone   0/100 nodes are available: 40 node(s) didn't match PersistentVolume's node affinity.

  ZONE    NODES  PODS  CPU                     MEMORY
  zone-a     43   817  ██████░░░░░░░░░░  40 %  ████░░░░░░░░░░░░  22 %
  zone-b     29   791  ████████░░░░░░░░  49 %  █████░░░░░░░░░░░  29 %
  zone-c     28   771  █████████░░░░░░░  57 %  ██████░░░░░░░░░░  34 %
";

    #[track_caller]
    fn check(from: &str, to: &str, want: &[&str]) {
        assert!(OUTPUT.contains(from), "{from}");
        let found = differences(&OUTPUT.replacen(from, to, 1), Some(1));
        assert_eq!(found.len(), want.len(), "{found:#?}");
        for (found, want) in found.iter().zip(want) {
            assert!(found.contains(want), "{found}\nwant {want}");
        }
    }

    #[test]
    fn the_expected_end_passes() {
        check("", "", &[]);
        // Pods of one Deployment may have different reasons, and be on other nodes.
        let row = "        2  puzzles/loners-6c6bd567c9-5gmpj  ";
        let two = "        1  puzzles/loners-6c6bd567c9-aaaaa  0/100 nodes are available: 9 node(s) didn't match pod anti-affinity rules.\n        1  puzzles/loners-6c6bd567c9-5gmpj  ";
        check(row, two, &[]);
        check("43   817", "43   816", &[]);
    }

    #[test]
    fn every_other_end_fails() {
        for code in [Some(0), Some(2), Some(70), None] {
            assert_eq!(differences(OUTPUT, code).len(), 1);
        }
        let n_checks = 1 + PODS.len() + ZONES.len() + PENDING.len();
        assert_eq!(differences("stopped\n", Some(1)).len(), n_checks);
        check("(2,379 assigned)", "(2,378 assigned)", &["(2,379 assigned)"]);
        check("2,379 running, 0", "12,379 running, 0", &["2,379 running"]);
        check("0 starting, 636", "10 starting, 636", &["0 starting"]);
        check(", 0 failed", ", 1 failed", &["0 failed"]);
        check("zone-b     29", "zone-b     28", &["29 nodes in zone-b"]);
        check("        2  puzzles/loners", "        1  puzzles/loners", &["loners: expected 2"]);
        check(
            "94 Insufficient cpu",
            "93 Insufficient cpu",
            &["expected a reason", "too-large: expected 1"],
        );
        let row = "        1  puzzles/behind-a-gate            waiting for scheduling gates: [example.com/quota]\n";
        check(row, "", &["behind-a-gate: expected 1"]);
        check(
            row,
            &format!("{row}        3  shop/web-1-2                   0/100 nodes are available\n"),
            &["3 pods like \"shop/web-1-2\""],
        );
    }
}
