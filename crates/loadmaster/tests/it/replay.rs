//! `loadmaster run --record` with the embedded API server, and `loadmaster replay` of the recording.

#![expect(clippy::disallowed_methods, reason = "processes are waited for")]

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use loadmaster_engine::recording::{
    RecordingHeader, RecordingItem, RecordingReader, encode_preamble,
};
use serde_json::{Value, json};

use crate::process::{Client, Folder, Running, wait_until};

const N_NODES: usize = 6;
const N_PODS: usize = 40;
const PODS: &str = "/api/v1/namespaces/default/pods";

/// A cluster without kubelets.
struct Api {
    client: Client,
    _server: Running,
}

impl Api {
    fn start(folder: &Folder) -> Api {
        let server = folder.start(&["apiserver", "--kubeconfig", "kubeconfig"], "server.out");
        let is_ready = |text: &str| text.starts_with("API server on https://127.0.0.1:");
        wait_until("the API server", || is_ready(&folder.read("server.out")).then_some(()));
        Api { client: Client::new(folder.path("kubeconfig")), _server: server }
    }

    fn nodes(&self) {
        for nth in 0..N_NODES {
            let node = json!({
                "apiVersion": "v1", "kind": "Node",
                "metadata": {"name": format!("node-{nth}"), "labels": {"zone": format!("z{}", nth % 2)}},
                "status": {"allocatable": {"cpu": "8", "memory": "16Gi", "pods": "20"}},
            });
            self.client.create("/api/v1/nodes", &node);
        }
    }

    fn pods(&self, which: std::ops::Range<usize>) {
        for nth in which {
            let pod = json!({
                "apiVersion": "v1", "kind": "Pod",
                "metadata": {"name": format!("pod-{nth}"), "labels": {"app": "a"}},
                "spec": {
                    "containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": format!("{}m", 100 + nth * 10)}}}],
                    "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule",
                        "labelSelector": {"matchLabels": {"app": "a"}}}],
                },
            });
            self.client.create(PODS, &pod);
        }
    }

    /// Waits until this many pods are bound; returns the nodes of the bound pods.
    fn bound(&self, n_bound: usize) -> BTreeMap<String, String> {
        for _ in 0..600 {
            let (_, list) = self.client.get(PODS);
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let pods = list["items"].as_array().unwrap().iter();
            let pods = pods.map(|pod| {
                let name = format!("default/{}", text(&pod["metadata"]["name"]));
                (name, text(&pod["spec"]["nodeName"]))
            });
            let bound: BTreeMap<_, _> = pods.filter(|(_, node)| !node.is_empty()).collect();
            if bound.len() >= n_bound {
                return bound;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        panic!("{n_bound} pods were not bound in a minute");
    }
}

fn recorder(folder: &Folder, file: &str, more: &[&str]) -> Running {
    let record = format!("--record={file}");
    let usual = ["run", "--kubeconfig=kubeconfig", "--leader-elect=false", "--secure-port=0"];
    folder.start(&[&usual[..], &[&record], more].concat(), &format!("{file}.out"))
}

/// The last bind of each pod that a replay lists.
fn binds(text: &str) -> BTreeMap<String, String> {
    let lines = text.lines().filter(|line| line.contains("  default/pod-"));
    let fields = lines.map(|line| {
        let mut fields = line.split("  ").skip(1).map(str::to_owned);
        (fields.next().unwrap(), fields.next().unwrap())
    });
    fields.collect()
}

/// The same recording with a different seed in its header.
fn with_another_seed(bytes: &[u8]) -> Vec<u8> {
    let mut reader = RecordingReader::new();
    reader.push_bytes(bytes);
    let Some(RecordingItem::Header(header)) = reader.read_item().unwrap() else {
        panic!("no header")
    };
    let other = encode_preamble(&RecordingHeader { seed: header.seed + 1, ..(*header).clone() });
    [&other, &bytes[encode_preamble(&header).len()..]].concat()
}

/// A file with one byte changed.
fn damage(path: &Path, at: usize) {
    let mut bytes = std::fs::read(path).unwrap();
    bytes[at] ^= 1;
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn a_recorded_run_is_replayed_to_the_same_decisions() {
    let folder = Folder::new();
    let api = Api::start(&folder);
    api.nodes();
    api.pods(0..N_PODS / 2);
    let scheduler = recorder(&folder, "run.log", &[]);
    api.bound(N_PODS / 2);
    api.pods(N_PODS / 2..N_PODS);
    let nodes = api.bound(N_PODS);
    assert_eq!(scheduler.terminate(), Some(0));

    let text = folder.run(&["replay", "run.log", "--decisions"]);
    assert_eq!(binds(&text), nodes, "{text}");
    for want in [
        "\nthe recording is complete\n",
        "\nall decisions are identical\n",
        "recorded by Loadmaster",
        &format!(" {N_PODS} scheduling attempts, {N_PODS} binds, "),
    ] {
        assert!(text.contains(want), "{text}");
    }
    assert!(text.ends_with("exit 0\n"), "{text}");
    let report = folder.run(&["replay", "run.log", "-o", "json"]);
    let report: Value = serde_json::from_str(report.strip_suffix("exit 0\n").unwrap()).unwrap();
    assert_eq!((&report["binds"], &report["isIdentical"]), (&json!(N_PODS), &json!(true)));

    let path = folder.path("run.log");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }
    let bytes = std::fs::read(&path).unwrap();
    println!("{} bytes per pod", bytes.len() / N_PODS);
    // Truncated as after a kill: accepted. Corrupted: rejected.
    std::fs::write(folder.path("truncated.log"), &bytes[..bytes.len() - 30]).unwrap();
    let text = folder.run(&["replay", "truncated.log"]);
    assert!(text.contains("the scheduler was killed while writing a block"), "{text}");
    assert!(text.ends_with("all decisions are identical\nexit 0\n"), "{text}");
    std::fs::write(folder.path("other.log"), with_another_seed(&bytes)).unwrap();
    let text = folder.run(&["replay", "other.log"]);
    assert!(text.contains("\nentry ") && text.contains(": default/pod-"), "{text}");
    assert!(text.contains("\n  recorded: call ") && text.ends_with("exit 1\n"), "{text}");
    damage(&path, bytes.len() / 2);
    let text = folder.run(&["replay", "run.log"]);
    assert!(text.contains("2> error: run.log: at byte "), "{text}");
    assert!(text.ends_with(": the file is corrupted\nexit 2\n"), "{text}");
}

#[test]
fn a_truncated_recording_is_replayed_up_to_its_end() {
    let folder = Folder::new();
    let api = Api::start(&folder);
    api.nodes();
    let json = "--kube-api-content-type=application/json";
    let scheduler = recorder(&folder, "run.log", &[json]);
    api.pods(0..N_PODS);
    let nodes = api.bound(N_PODS);
    // Items older than this are on disk.
    std::thread::sleep(Duration::from_millis(3_500));
    // The same as `kill -9`.
    drop(scheduler);
    let text = folder.run(&["replay", "run.log", "--decisions"]);
    assert_eq!(binds(&text), nodes, "{text}");
    assert!(text.contains("the recording is truncated: the scheduler was killed"), "{text}");
    assert!(text.ends_with("all decisions are identical\nexit 0\n"), "{text}");

    // An existing file is never overwritten, and the maximum size is respected while scheduling continues.
    let before = std::fs::read(folder.path("run.log")).unwrap();
    let again = folder.run(&["run", "--kubeconfig=kubeconfig", "--record=run.log"]);
    assert!(again.contains("run.log: the file already exists"), "{again}");
    assert!(again.ends_with("exit 1\n"), "{again}");
    assert_eq!(before, std::fs::read(folder.path("run.log")).unwrap());
    let size_max = before.len() / 3;
    let flag = format!("--record-max-size={size_max}");
    let scheduler = recorder(&folder, "short.log", &[json, &flag]);
    api.pods(N_PODS..2 * N_PODS);
    api.bound(2 * N_PODS);
    assert_eq!(scheduler.terminate(), Some(0));
    let len = std::fs::metadata(folder.path("short.log")).unwrap().len();
    assert!(len <= size_max as u64, "{len} bytes, {size_max} allowed");
    let text = folder.run(&["replay", "short.log"]);
    assert!(text.contains("the recording ended at --record-max-size"), "{text}");
}

#[test]
fn a_file_that_is_not_a_recording_is_rejected() {
    let folder = Folder::new().with("text", "apiVersion: v1\n");
    for (args, want) in [
        (["replay", "text"], "text: at byte 0: expected a recording, which begins with"),
        (["replay", "none"], "reading none: No such file"),
    ] {
        let text = folder.run(&args);
        assert!(text.contains(want) && text.ends_with("exit 2\n"), "{text}");
    }
    let text = folder.run(&["run", "--record-max-size=1Mi"]);
    assert!(text.contains("--record-max-size requires --record"), "{text}");
}
