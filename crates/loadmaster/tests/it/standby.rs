//! Two schedulers and one lease, over the embedded API server.

#![expect(clippy::disallowed_methods, reason = "each process is read by a thread")]

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use crate::process::Folder;

/// A running command; ended with the test.
struct Running {
    child: Child,
    lines: Receiver<String>,
    said: Vec<String>,
}

impl Running {
    fn start(folder: &Folder, args: &[&str]) -> Running {
        let mut child = Command::new(env!("CARGO_BIN_EXE_loadmaster"))
            .args(args)
            .current_dir(folder.path())
            .env_remove("KUBECONFIG")
            .env("HOME", folder.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (lines_in, lines) = channel();
        let outputs: [Box<dyn Read + Send>; 2] =
            [Box::new(child.stdout.take().unwrap()), Box::new(child.stderr.take().unwrap())];
        for output in outputs {
            let lines_in = lines_in.clone();
            std::thread::spawn(move || {
                for line in BufReader::new(output).lines().map_while(Result::ok) {
                    let _ = lines_in.send(line);
                }
            });
        }
        Running { child, lines, said: Vec::new() }
    }

    fn scheduler(folder: &Folder, config: &str) -> Running {
        Running::start(folder, &["run", "--config", config, "--secure-port=0"])
    }

    /// Reads on until a line says this.
    #[track_caller]
    fn wait_for(&mut self, text: &str) {
        while !self.said.iter().any(|line| line.contains(text)) {
            match self.lines.recv_timeout(Duration::from_secs(60)) {
                Ok(line) => self.said.push(line),
                Err(error) => panic!("{error} before {text:?}: {:#?}", self.said),
            }
        }
    }

    /// Where a line says this among those read.
    fn at(&self, text: &str) -> Option<usize> {
        self.said.iter().position(|line| line.contains(text))
    }

    fn terminate(&mut self) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        self.child.wait().unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn config(delay: bool) -> String {
    format!(
        "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n\
         clientConnection: {{kubeconfig: kubeconfig}}\ndelayCacheUntilActive: {delay}\n"
    )
}

#[test]
fn a_standby_watches_at_once_or_when_it_leads() {
    let folder = Folder::new().with("at-once", &config(false)).with("delayed", &config(true));
    let mut server = Running::start(&folder, &["apiserver", "--kubeconfig", "kubeconfig"]);
    server.wait_for("kubeconfig:");
    let mut leader = Running::scheduler(&folder, "at-once");
    leader.wait_for("Successfully acquired lease");
    leader.wait_for("Caches are synced");
    let mut at_once = Running::scheduler(&folder, "at-once");
    at_once.wait_for("New leader elected");
    at_once.wait_for("Caches are synced");
    drop(at_once);
    let mut delayed = Running::scheduler(&folder, "delayed");
    delayed.wait_for("New leader elected");
    leader.terminate();
    delayed.wait_for("Caches are synced");
    let lines = ["Successfully acquired lease", "Starting watches", "Caches are synced"];
    let order = lines.map(|text| delayed.at(text));
    assert!(order.is_sorted() && order[0].is_some(), "{:#?}", delayed.said);
}
