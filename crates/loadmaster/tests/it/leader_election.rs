//! Leader election: schedulers that share one Lease.

use crate::process::{Folder, Running, wait_until};

fn config(delay: bool) -> String {
    format!(
        "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n\
         clientConnection: {{kubeconfig: kubeconfig}}\ndelayCacheUntilActive: {delay}\n"
    )
}

fn scheduler(folder: &Folder, config: &str, log: &str) -> Running {
    folder.start(&["run", "--config", config, "--secure-port=0"], log)
}

#[track_caller]
fn wait_for(folder: &Folder, log: &str, text: &str) {
    wait_until(&format!("{text:?} in {log}"), || folder.read(log).contains(text).then_some(()));
}

#[test]
fn a_standby_starts_watches_at_once_or_when_it_becomes_leader() {
    let folder = Folder::new().with("at-once", &config(false)).with("delayed", &config(true));
    let _server = folder.start(&["apiserver", "--kubeconfig", "kubeconfig"], "server.log");
    wait_for(&folder, "server.log", "kubeconfig:");
    let leader = scheduler(&folder, "at-once", "leader.log");
    wait_for(&folder, "leader.log", "Successfully acquired lease");
    wait_for(&folder, "leader.log", "Caches are synced");
    let at_once = scheduler(&folder, "at-once", "at-once.log");
    wait_for(&folder, "at-once.log", "New leader elected");
    wait_for(&folder, "at-once.log", "Caches are synced");
    drop(at_once);
    let _delayed = scheduler(&folder, "delayed", "delayed.log");
    wait_for(&folder, "delayed.log", "New leader elected");
    leader.terminate();
    wait_for(&folder, "delayed.log", "Caches are synced");
    let log = folder.read("delayed.log");
    let lines = ["\"Lease acquired\"", "Starting watches", "Caches are synced"];
    let order = lines.map(|text| log.find(text));
    assert!(order.is_sorted() && order[0].is_some(), "{log}");
}
