//! The cells of a pod: the shown status is derived from the states of its containers.

use jiff::Timestamp;
use serde_json::Value;

use super::since;
use crate::object::list_entries;

/// The contents of the cells Ready, Status and Restarts.
pub(super) struct Summary {
    pub ready: String,
    pub status: String,
    pub restarts: String,
}

struct Count {
    n_ready: usize,
    n_restarts: i64,
    last_restart: String,
}

impl Count {
    fn restart(&mut self, status: &Value) {
        self.n_restarts += status["restartCount"].as_i64().unwrap_or(0);
        let finished = status["lastState"]["terminated"]["finishedAt"].as_str().unwrap_or_default();
        if finished > self.last_restart.as_str() {
            finished.clone_into(&mut self.last_restart);
        }
    }
}

pub(super) fn summary(pod: &Value, now: Timestamp) -> Summary {
    let (spec, status) = (&pod["spec"], &pod["status"]);
    let phase = status["phase"].as_str().unwrap_or_default();
    let mut reason = match status["reason"].as_str() {
        Some(reason) if !reason.is_empty() => reason.to_owned(),
        _ => phase.to_owned(),
    };
    let is_gated = |it: &Value| it["type"] == "PodScheduled" && it["reason"] == "SchedulingGated";
    if list_entries(&status["conditions"]).iter().any(is_gated) {
        "SchedulingGated".clone_into(&mut reason);
    }
    let is_sidecar = |it: &&Value| it["restartPolicy"] == "Always";
    let n_sidecars = list_entries(&spec["initContainers"]).iter().filter(is_sidecar).count();
    let n_containers = list_entries(&spec["containers"]).len() + n_sidecars;
    let mut all = Count { n_ready: 0, n_restarts: 0, last_restart: String::new() };
    let mut sidecars = Count { n_ready: 0, n_restarts: 0, last_restart: String::new() };
    let initializing = init_reason(pod, &mut all, &mut sidecars);
    let is_initialized = |it: &Value| it["type"] == "Initialized" && it["status"] == "True";
    match initializing {
        Some(why) if !list_entries(&status["conditions"]).iter().any(is_initialized) => {
            reason = why
        }
        _ => {
            let n_ready = all.n_ready;
            all = Count { n_ready, ..sidecars };
            reason = main_reason(status, reason, &mut all);
        }
    }
    if !pod["metadata"]["deletionTimestamp"].is_null() {
        if status["reason"] == "NodeLost" {
            "Unknown".clone_into(&mut reason);
        } else if !matches!(phase, "Succeeded" | "Failed") {
            "Terminating".clone_into(&mut reason);
        }
    }
    let restarts = match all.n_restarts {
        n if n != 0 && !all.last_restart.is_empty() => {
            format!("{n} ({} ago)", since(&all.last_restart.into(), now))
        }
        n => n.to_string(),
    };
    Summary { ready: format!("{}/{n_containers}", all.n_ready), status: reason, restarts }
}

/// Why the init containers are not done; none when they are.
fn init_reason(pod: &Value, all: &mut Count, sidecars: &mut Count) -> Option<String> {
    let inits = list_entries(&pod["spec"]["initContainers"]);
    for (at, status) in list_entries(&pod["status"]["initContainerStatuses"]).iter().enumerate() {
        all.restart(status);
        let is_sidecar =
            inits.iter().any(|it| it["name"] == status["name"] && it["restartPolicy"] == "Always");
        if is_sidecar {
            sidecars.restart(status);
        }
        let (terminated, waiting) = (&status["state"]["terminated"], &status["state"]["waiting"]);
        if !terminated.is_null() && terminated["exitCode"].as_i64().unwrap_or(0) == 0 {
            continue;
        }
        if is_sidecar && status["started"] == true {
            all.n_ready += usize::from(status["ready"] == true);
            continue;
        }
        if !terminated.is_null() {
            return Some(format!("Init:{}", ended(terminated)));
        }
        return Some(match waiting["reason"].as_str().unwrap_or_default() {
            "" | "PodInitializing" => format!("Init:{at}/{}", inits.len()),
            why => format!("Init:{why}"),
        });
    }
    None
}

/// Why a container ended.
fn ended(terminated: &Value) -> String {
    let number = |field: &str| terminated[field].as_i64().unwrap_or(0);
    match terminated["reason"].as_str().unwrap_or_default() {
        "" if number("signal") != 0 => format!("Signal:{}", number("signal")),
        "" => format!("ExitCode:{}", number("exitCode")),
        reason => reason.to_owned(),
    }
}

fn main_reason(status: &Value, mut reason: String, count: &mut Count) -> String {
    let (mut has_running, mut failure) = (false, String::new());
    for it in list_entries(&status["containerStatuses"]).iter().rev() {
        count.restart(it);
        let (waiting, terminated) = (&it["state"]["waiting"], &it["state"]["terminated"]);
        let waits_for = waiting["reason"].as_str().unwrap_or_default();
        if !waits_for.is_empty() {
            waits_for.clone_into(&mut reason);
        } else if !terminated.is_null() {
            reason = ended(terminated);
            if terminated["exitCode"].as_i64().unwrap_or(0) != 0 {
                failure.clone_from(&reason);
            }
        } else if it["ready"] == true && !it["state"]["running"].is_null() {
            has_running = true;
            count.n_ready += 1;
        }
    }
    let is_ready = |it: &Value| it["type"] == "Ready" && it["status"] == "True";
    if reason == "Completed" {
        if has_running && list_entries(&status["conditions"]).iter().any(is_ready) {
            "Running".clone_into(&mut reason);
        } else if !failure.is_empty() {
            reason = failure;
        } else if has_running {
            "NotReady".clone_into(&mut reason);
        }
    }
    reason
}
