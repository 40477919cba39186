//! `cargo xtask e2e demos`: runs the demo of each example plugin with `up`, and checks which pods are assigned, and why others are not.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context as _, Result, ensure};

use super::programs;
use crate::root;

struct Demo {
    example: &'static str,
    /// Its manifests, in the folder of the example.
    files: &'static [&'static str],
    /// 0 if all pods are assigned, 1 if some stay pending.
    exit_code: i32,
    /// What `up` shows.
    shows: &'static [&'static str],
}

const DEMOS: [Demo; 7] = [
    Demo {
        example: "gang",
        files: &["crd.yaml", "demo.yaml"],
        exit_code: 0,
        shows: &["all pods are assigned (7 assigned)", "no difference"],
    },
    Demo {
        example: "gang",
        files: &["crd.yaml", "demo.yaml", "demo-incomplete.yaml"],
        exit_code: 1,
        shows: &["1 pod pending", "(7 assigned)", "gang \"pair\" has only 1 pods"],
    },
    Demo {
        example: "namespace-quota",
        files: &["crd.yaml", "demo.yaml"],
        exit_code: 1,
        shows: &["1 pod pending", "(3 assigned)", "quota \"team\" is exceeded: cpu"],
    },
    Demo {
        example: "numa-nodes",
        files: &["crd.yaml", "demo.yaml"],
        exit_code: 0,
        shows: &["all pods are assigned (3 assigned)", "no difference"],
    },
    Demo {
        example: "numa-nodes",
        files: &["crd.yaml", "demo.yaml", "demo-too-large.yaml"],
        exit_code: 1,
        shows: &[
            "1 pod pending",
            "(3 assigned)",
            "1 node(s) had no NUMA zone with enough free CPUs",
        ],
    },
    Demo {
        example: "load-aware",
        files: &["demo.yaml"],
        exit_code: 0,
        shows: &["all pods are assigned (4 assigned)", "no difference"],
    },
    Demo {
        example: "pod-group-controller",
        files: &["crd.yaml", "demo.yaml"],
        exit_code: 1,
        shows: &["2 pods pending", "(4 assigned)", "PodGroup \"rendering\" has 2 of 3 pods"],
    },
];

/// Runs the demos of the example plugins with `up`.
pub fn run() -> Result<bool> {
    let mut names: Vec<&str> = DEMOS.iter().map(|demo| demo.example).collect();
    names.dedup();
    let folder = programs::examples(&names)?;
    let n_reports = Arc::new(AtomicU32::new(0));
    let address = serve_load_report(n_reports.clone())?;
    for demo in &DEMOS {
        check(demo, &folder, &address).with_context(|| format!("the demo of {}", demo.example))?;
    }
    ensure!(n_reports.load(Ordering::Relaxed) > 0, "load-aware did not poll the load of the nodes");
    println!("{} demos of example plugins ended as expected", DEMOS.len());
    Ok(true)
}

fn check(demo: &Demo, folder: &Path, address: &str) -> Result<()> {
    let example = root()?.join("examples").join(demo.example);
    let mut command = crate::command(&folder.join(demo.example).to_string_lossy());
    command.args(["up", "--exit-when-settled", "--check=1", "--config"]);
    command.arg(example.join("scheduler.yaml")).env("LOAD_ADDRESS", address);
    for file in demo.files {
        command.arg("-f").arg(example.join(file));
    }
    let output = command.output().context("running it")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let code = output.status.code();
    ensure!(
        code == Some(demo.exit_code),
        "exit code {code:?}, expected {}:\n{text}",
        demo.exit_code
    );
    for wanted in demo.shows {
        ensure!(text.contains(wanted), "the output does not contain {wanted:?}:\n{text}");
    }
    Ok(())
}

/// Answers every request with the report of load-aware, and counts them. Returns the address.
#[expect(clippy::disallowed_methods, reason = "the server answers while the demo runs")]
fn serve_load_report(n_reports: Arc<AtomicU32>) -> Result<String> {
    let report = std::fs::read_to_string(root()?.join("examples/load-aware/demo/load"))?;
    let listener = TcpListener::bind("127.0.0.1:0").context("listening on the loopback address")?;
    let address = listener.local_addr()?.to_string();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            // The request is small, and its content does not matter.
            let _ = stream.read(&mut [0; 1024]);
            let _ = write!(stream, "HTTP/1.0 200 OK\r\n\r\n{report}");
            n_reports.fetch_add(1, Ordering::Relaxed);
        }
    });
    Ok(address)
}
