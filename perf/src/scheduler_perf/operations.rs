//! Runs the operations of a workload.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};

use super::cluster::{Cluster, PodState};
use super::test_case::{
    Barrier, Churn, ChurnMode, CreateNamespaces, CreateNodes, CreatePods, DeletePods, Operation,
    Stage, TestCase, UpdateAny, Workload, yaml,
};
use super::text_template::render;
use super::throughput::{Figures, Throughput};

/// Between two pods that are created, in simulated time: 1,000 pods per second.
const CREATE_INTERVAL: Duration = Duration::from_millis(1);
/// For this long in simulated time pods may stay pending that have to be scheduled.
const WAIT_MAX: Duration = Duration::from_secs(1_800);
/// Pods of a sample where it is not known how many will be counted.
const PODS_PER_SAMPLE: u32 = 10;

/// A workload that is being run.
pub struct Run<'a> {
    pub case: &'a TestCase,
    pub workload: &'a Workload,
    pub cluster: Cluster,
    /// Templates by their path.
    templates: BTreeMap<String, String>,
    namespaces: BTreeSet<String>,
    /// Namespaces of `createPods`, whose pods a barrier waits for.
    pod_namespaces: BTreeSet<String>,
    tasks: Vec<Task>,
    n_nodes: u32,
    figures: Vec<Figures>,
}

/// What happens beside the operations.
struct Task {
    due: Duration,
    interval: Duration,
    what: TaskKind,
}

enum TaskKind {
    /// The templates of the objects; and with `Recreate` the names of those that exist, in a ring for each template.
    Churn {
        templates: Vec<String>,
        namespace: String,
        mode: ChurnMode,
        left: usize,
        names: Vec<Vec<Option<String>>>,
        n_steps: usize,
    },
    /// Deletes one after the other, beginning with the last.
    Delete { uids: Vec<String> },
}

impl<'a> Run<'a> {
    /// In this cluster.
    pub fn new(case: &'a TestCase, workload: &'a Workload, cluster: Cluster) -> Run<'a> {
        Run {
            case,
            workload,
            cluster,
            templates: BTreeMap::new(),
            namespaces: BTreeSet::new(),
            pod_namespaces: BTreeSet::new(),
            tasks: Vec::new(),
            n_nodes: 0,
            figures: Vec::new(),
        }
    }

    /// All operations; returns what was measured.
    pub fn run(mut self, operations: &[Operation]) -> Result<Vec<Figures>> {
        for (nth, operation) in operations.iter().enumerate() {
            self.operate(nth, operation).with_context(|| format!("operation {nth}"))?;
        }
        Ok(self.figures)
    }

    fn operate(&mut self, nth: usize, operation: &Operation) -> Result<()> {
        let namespace =
            |given: &Option<String>| given.clone().unwrap_or_else(|| format!("namespace-{nth}"));
        match operation {
            Operation::CreateNodes(op) => self.create_nodes(op),
            Operation::CreateNamespaces(op) => self.create_namespaces(op),
            Operation::CreatePods(op) => self.create_pods(op, &namespace(&op.namespace)),
            Operation::CreatePodSets(op) => {
                (0..self.workload.count(&op.count)?).try_for_each(|at| {
                    self.create_pods(&op.create_pods_op, &format!("{}-{at}", op.namespace_prefix))
                })
            }
            Operation::CreateAny(op) => {
                if !op.namespace.is_empty() {
                    self.require_namespace(&op.namespace)?;
                }
                let count = self.workload.count(&op.count)?;
                (0..count).try_for_each(|index| {
                    let object = self.object(&op.template_path, index, count)?;
                    self.cluster.create(&op.namespace, object)?;
                    self.advance(Duration::ZERO)
                })
            }
            Operation::UpdateAny(op) => self.update_any(op),
            Operation::DeletePods(op) => self.delete_pods(op),
            Operation::Churn(op) => self.start_churn(op, &namespace(&op.namespace)),
            Operation::Barrier(op) => self.wait_at(op),
            Operation::Sleep(op) => self.advance(self.workload.duration(op)?),
            Operation::StartCollectingMetrics(op) => {
                let (namespaces, selector) = (op.namespaces.clone(), op.label_selector.clone());
                self.measure(op.name.clone(), namespaces, selector, PODS_PER_SAMPLE)
            }
            Operation::StopCollectingMetrics {} => self.stop_measuring(),
        }
    }

    /// A template, with index and count.
    fn object(&mut self, path: &str, index: u32, count: u32) -> Result<Value> {
        if !self.templates.contains_key(path) {
            let file = self.case.folder.join(path);
            let text = std::fs::read_to_string(&file)
                .with_context(|| format!("reading {}", file.display()))?;
            self.templates.insert(path.to_owned(), text);
        }
        let template = self.templates.get(path).context("the template was just read")?;
        yaml(&render(template, index, count)?).with_context(|| format!("the template {path}"))
    }

    fn require_namespace(&mut self, name: &str) -> Result<()> {
        if self.namespaces.insert(name.to_owned()) {
            let object =
                json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
            self.cluster.create("", object)?;
        }
        Ok(())
    }

    fn create_nodes(&mut self, op: &CreateNodes) -> Result<()> {
        let count = self.workload.count(&op.count)?;
        for index in 0..count {
            let mut node = match &op.node_template_path {
                Some(path) => self.object(path, index, count)?,
                None => {
                    let capacity = json!({"pods": "110", "cpu": "4", "memory": "32Gi"});
                    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"generateName": "scheduler-perf-"},
                        "status": {"capacity": capacity}})
                }
            };
            self.n_nodes += 1;
            let metadata = &mut node["metadata"];
            if metadata["name"].is_null() {
                let prefix = metadata["generateName"].as_str().unwrap_or_default();
                metadata["name"] = json!(format!("{prefix}{}", self.n_nodes));
            }
            metadata["labels"]["kubernetes.io/hostname"] = metadata["name"].clone();
            if let Some(strategy) = &op.label_node_prepare_strategy {
                let values = strategy.label_values.iter().cycle();
                let value = values.clone().nth(index as usize % strategy.label_values.len().max(1));
                node["metadata"]["labels"][&strategy.label_key] = json!(value);
            }
            let Some(strategy) = &op.node_allocatable_strategy else {
                self.cluster.create("", node)?;
                continue;
            };
            node["status"]["allocatable"] = node["status"]["capacity"].clone();
            for (resource, amount) in &strategy.node_allocatable {
                node["status"]["allocatable"][resource] = json!(amount);
            }
            let name = self.cluster.create("", node)?;
            let drivers = strategy.csi_node_allocatable.iter().map(|(driver, allocatable)| {
                json!({"name": driver, "nodeID": name, "allocatable": allocatable})
            });
            let migrated = json!({"storage.alpha.kubernetes.io/migrated-plugins": strategy.migrated_plugins.join(",")});
            let csi_node = json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSINode",
                "metadata": {"name": name, "annotations": migrated}, "spec": {"drivers": drivers.collect::<Vec<_>>()}});
            self.cluster.create("", csi_node)?;
        }
        self.advance(Duration::ZERO)
    }

    fn create_namespaces(&mut self, op: &CreateNamespaces) -> Result<()> {
        let count = self.workload.count(&op.count)?;
        for index in 0..count {
            let mut namespace = match &op.namespace_template_path {
                Some(path) => self.object(path, index, count)?,
                None => json!({"apiVersion": "v1", "kind": "Namespace"}),
            };
            let name = format!("{}-{index}", op.prefix);
            namespace["metadata"]["name"] = json!(name);
            if self.namespaces.insert(name) {
                self.cluster.create("", namespace)?;
            }
        }
        Ok(())
    }

    fn create_pods(&mut self, op: &CreatePods, namespace: &str) -> Result<()> {
        self.require_namespace(namespace)?;
        self.pod_namespaces.insert(namespace.to_owned());
        let count = self.workload.count(&op.count)?;
        if op.collect_metrics {
            let namespaces = vec![namespace.to_owned()];
            self.measure(namespace.to_owned(), namespaces, BTreeMap::new(), count / 100)?;
        }
        let template =
            op.pod_template_path.as_ref().or(self.case.default_pod_template_path.as_ref());
        let template = template.cloned();
        for index in 0..count {
            let mut pod = match &template {
                Some(path) => self.object(path, index, count)?,
                None => default_pod(),
            };
            if let (Some(volume), Some(claim)) =
                (&op.persistent_volume_template_path, &op.persistent_volume_claim_template_path)
            {
                self.create_volume(namespace, index, volume, claim)?;
                let claim = json!({"claimName": format!("pvc-{index}")});
                pod["spec"]["volumes"] = json!([{"name": "vol", "persistentVolumeClaim": claim}]);
            }
            self.cluster.create(namespace, pod)?;
            self.advance(CREATE_INTERVAL)?;
        }
        if !op.skip_wait_to_completion {
            let namespaces = BTreeSet::from([namespace.to_owned()]);
            self.wait_for(&namespaces, &BTreeMap::new(), Stage::Scheduled)?;
        }
        if op.collect_metrics { self.stop_measuring() } else { Ok(()) }
    }

    /// Creates the volume and the claim of a pod, bound to each other.
    fn create_volume(
        &mut self,
        namespace: &str,
        index: u32,
        volume: &str,
        claim: &str,
    ) -> Result<()> {
        let (mut volume, mut claim) =
            (self.object(volume, index, 1)?, self.object(claim, index, 1)?);
        let (volume_name, claim_name) =
            (format!("{namespace}-vol-{index}"), format!("pvc-{index}"));
        claim["metadata"]["name"] = json!(claim_name);
        claim["spec"]["volumeName"] = json!(volume_name);
        claim["status"] = json!({"phase": "Bound"});
        self.cluster.create(namespace, claim)?;
        volume["metadata"]["name"] = json!(volume_name);
        volume["spec"]["claimRef"] = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": namespace, "name": claim_name});
        for (source, id) in [("csi", "volumeHandle"), ("awsElasticBlockStore", "volumeID")] {
            if volume["spec"][source].is_object() {
                volume["spec"][source][id] = json!(volume_name);
            }
        }
        volume["status"] = json!({"phase": "Bound"});
        self.cluster.create("", volume).map(drop)
    }

    fn update_any(&mut self, op: &UpdateAny) -> Result<()> {
        let count = self.workload.count(&op.count)?;
        let interval = interval(op.update_per_second);
        for index in 0..count {
            self.advance(interval)?;
            let object = self.object(&op.template_path, index, count)?;
            self.cluster.update(&op.namespace, object, &op.subresources)?;
            self.advance(Duration::ZERO)?;
        }
        Ok(())
    }

    fn delete_pods(&mut self, op: &DeletePods) -> Result<()> {
        let chosen =
            self.cluster.pods.iter().filter(|(_, pod)| {
                pod.namespace == op.namespace && pod.has_labels(&op.label_selector)
            });
        let uids: Vec<String> = chosen.map(|(uid, _)| uid.clone()).rev().collect();
        let interval = interval(op.delete_pods_per_second);
        let n_intervals = u32::try_from(uids.len())?;
        self.tasks.push(Task {
            due: self.cluster.time() + interval,
            interval,
            what: TaskKind::Delete { uids },
        });
        let waits = !op.skip_wait_to_completion;
        self.advance(if waits { interval * n_intervals } else { Duration::ZERO })
    }

    fn start_churn(&mut self, op: &Churn, namespace: &str) -> Result<()> {
        self.require_namespace(namespace)?;
        let interval = Duration::from_millis(op.interval_milliseconds.max(1));
        let names = match op.mode {
            ChurnMode::Create => Vec::new(),
            ChurnMode::Recreate => vec![vec![None; op.number.max(1)]; op.template_paths.len()],
        };
        let left = match op.mode {
            ChurnMode::Create if op.number > 0 => op.number,
            _ => usize::MAX,
        };
        let (templates, namespace, mode) =
            (op.template_paths.clone(), namespace.to_owned(), op.mode);
        let what = TaskKind::Churn { templates, namespace, mode, left, names, n_steps: 0 };
        self.tasks.push(Task { due: self.cluster.time() + interval, interval, what });
        Ok(())
    }

    fn wait_at(&mut self, op: &Barrier) -> Result<()> {
        let namespaces = match op.namespaces.is_empty() {
            true => self.pod_namespaces.clone(),
            false => op.namespaces.iter().cloned().collect(),
        };
        self.wait_for(&namespaces, &op.label_selector, op.stage_requirement)
    }

    fn measure(
        &mut self,
        name: String,
        namespaces: Vec<String>,
        selector: BTreeMap<String, String>,
        n_per_sample: u32,
    ) -> Result<()> {
        ensure!(self.cluster.throughput.is_none(), "{name} is measured while something else is");
        let now = self.cluster.engine_time();
        self.cluster.throughput =
            Some(Throughput::new(name, namespaces, selector, n_per_sample, now));
        Ok(())
    }

    fn stop_measuring(&mut self) -> Result<()> {
        let throughput = self.cluster.throughput.take().context("nothing is measured")?;
        self.figures.extend(throughput.finish());
        Ok(())
    }

    /// Lets so much time go by, with everything that is due in it.
    fn advance(&mut self, by: Duration) -> Result<()> {
        let end = self.cluster.time() + by;
        while let Some(due) = self.next_due().filter(|due| *due <= end) {
            self.run_due(due)?;
        }
        self.cluster.advance_to(end)
    }

    /// When something happens by itself.
    fn next_due(&self) -> Option<Duration> {
        let tasks = self.tasks.iter().map(|task| task.due);
        tasks.chain(self.cluster.next_timeout()).min()
    }

    fn run_due(&mut self, due: Duration) -> Result<()> {
        self.cluster.advance_to(due)?;
        let (now, later): (Vec<Task>, Vec<Task>) =
            std::mem::take(&mut self.tasks).into_iter().partition(|task| task.due <= due);
        self.tasks = later;
        for mut task in now {
            task.due += task.interval;
            if self.run_task(&mut task.what)? {
                self.tasks.push(task);
            }
            self.cluster.advance_to(due)?;
        }
        Ok(())
    }

    /// Does a step of a task; returns whether there are more.
    fn run_task(&mut self, task: &mut TaskKind) -> Result<bool> {
        match task {
            TaskKind::Delete { uids } => {
                if let Some(uid) = uids.pop() {
                    self.cluster.delete_pod(&uid)?;
                }
                Ok(!uids.is_empty())
            }
            TaskKind::Churn { templates, namespace, mode, left, names, n_steps } => {
                for (nth, path) in templates.iter().enumerate() {
                    let object = self.object(path, 0, 1)?;
                    let kind = object["kind"].as_str().unwrap_or_default().to_owned();
                    let ring = names.get_mut(nth).filter(|_| *mode == ChurnMode::Recreate);
                    let n_slots = ring.as_ref().map_or(1, |ring| ring.len());
                    match ring.and_then(|ring| ring.get_mut(*n_steps % n_slots)) {
                        None => drop(self.cluster.create(namespace, object)?),
                        Some(slot) => match slot.take() {
                            Some(name) => self.cluster.delete(&kind, namespace, &name)?,
                            None => *slot = Some(self.cluster.create(namespace, object)?),
                        },
                    }
                }
                (*n_steps, *left) = (*n_steps + 1, *left - 1);
                Ok(*left > 0)
            }
        }
    }

    /// Lets time go by until the pods have reached a stage.
    fn wait_for(
        &mut self,
        namespaces: &BTreeSet<String>,
        selector: &BTreeMap<String, String>,
        stage: Stage,
    ) -> Result<()> {
        let has_reached = |pod: &PodState| match stage {
            Stage::Scheduled => pod.is_bound,
            Stage::Attempted => pod.is_attempted,
        };
        let started = self.cluster.time();
        loop {
            let pods = self.cluster.pods.values();
            let chosen =
                pods.filter(|pod| namespaces.contains(&pod.namespace) && pod.has_labels(selector));
            let left: Vec<&PodState> = chosen.filter(|pod| !has_reached(pod)).collect();
            let Some(first) = left.first() else { return Ok(()) };
            let next = self.next_due().filter(|due| *due <= started + WAIT_MAX);
            let Some(due) = next else {
                bail!("{} pods are not {stage:?}, such as {}", left.len(), first.summary())
            };
            self.run_due(due)?;
        }
    }
}

/// A pod without a template.
fn default_pod() -> Value {
    let amounts = json!({"cpu": "100m", "memory": "500Mi"});
    let resources = json!({"requests": amounts, "limits": amounts});
    let container = json!({"name": "pause", "image": "registry.k8s.io/pause:3.10.1", "resources": resources,
        "ports": [{"containerPort": 80}]});
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"generateName": "pod-"}, "spec": {"containers": [container]}})
}

/// Between two of so many per second; nothing for 0.
fn interval(per_second: u32) -> Duration {
    Duration::from_secs(1).checked_div(per_second).unwrap_or_default()
}
