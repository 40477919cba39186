//! The files of scheduler_perf: test cases, their operations and their workloads.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use loadmaster_stdx::duration::parse_duration_nanos;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// The name of the files with test cases.
const FILE: &str = "performance-config.yaml";

/// A test case: operations, and workloads with their parameters.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TestCase {
    pub name: String,
    #[serde(default)]
    pub feature_gates: BTreeMap<String, bool>,
    pub scheduler_config_path: Option<String>,
    pub default_pod_template_path: Option<String>,
    workload_template: Vec<Value>,
    pub workloads: Vec<Workload>,
    /// The folder of its file, in which its paths begin.
    #[serde(skip)]
    pub folder: PathBuf,
}

/// A set of parameters of a test case.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Workload {
    pub name: String,
    #[serde(default)]
    pub labels: Vec<String>,
    #[serde(default)]
    pub feature_gates: BTreeMap<String, bool>,
    #[serde(default)]
    params: BTreeMap<String, Value>,
    /// What kube-scheduler must reach in Kubernetes' own runs, in one form or another.
    #[serde(default, rename = "threshold")]
    _threshold: Value,
}

/// The fields that operations with a [`Count`] know. Serde accepts any others beside flattened ones.
const FIELDS: [&str; 22] = [
    "opcode",
    "count",
    "countParam",
    "collectMetrics",
    "createPodsOp",
    "labelNodePrepareStrategy",
    "namespace",
    "namespacePrefix",
    "namespaceTemplatePath",
    "nodeAllocatableStrategy",
    "nodeTemplatePath",
    "persistentVolumeClaimTemplatePath",
    "persistentVolumeTemplatePath",
    "podTemplatePath",
    "prefix",
    "skipWaitToCompletion",
    "subresources",
    "templatePath",
    "updatePerSecond",
    "deletePodsPerSecond",
    "labelSelector",
    "name",
];

/// A number, or the name of a parameter.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Count {
    count: Option<u32>,
    count_param: Option<String>,
}

/// An operation.
#[derive(Debug, Deserialize)]
#[serde(tag = "opcode", rename_all = "camelCase")]
pub enum Operation {
    CreateNodes(CreateNodes),
    CreateNamespaces(CreateNamespaces),
    CreatePods(CreatePods),
    CreatePodSets(CreatePodSets),
    CreateAny(CreateAny),
    UpdateAny(UpdateAny),
    DeletePods(DeletePods),
    Churn(Churn),
    Barrier(Barrier),
    Sleep(Sleep),
    StartCollectingMetrics(StartCollectingMetrics),
    StopCollectingMetrics {},
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CreateNodes {
    #[serde(flatten)]
    pub count: Count,
    pub node_template_path: Option<String>,
    pub label_node_prepare_strategy: Option<LabelStrategy>,
    pub node_allocatable_strategy: Option<AllocatableStrategy>,
}

/// Labels the nodes with the values in turn.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LabelStrategy {
    pub label_key: String,
    pub label_values: Vec<String>,
}

/// Adds allocatable resources, and limits of volumes.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AllocatableStrategy {
    #[serde(default)]
    pub node_allocatable: BTreeMap<String, String>,
    #[serde(default)]
    pub csi_node_allocatable: BTreeMap<String, Value>,
    #[serde(default)]
    pub migrated_plugins: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CreateNamespaces {
    #[serde(flatten)]
    pub count: Count,
    pub prefix: String,
    pub namespace_template_path: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CreatePods {
    #[serde(flatten)]
    pub count: Count,
    pub namespace: Option<String>,
    pub pod_template_path: Option<String>,
    #[serde(default)]
    pub collect_metrics: bool,
    #[serde(default)]
    pub skip_wait_to_completion: bool,
    pub persistent_volume_template_path: Option<String>,
    pub persistent_volume_claim_template_path: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CreatePodSets {
    #[serde(flatten)]
    pub count: Count,
    pub namespace_prefix: String,
    pub create_pods_op: CreatePods,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CreateAny {
    #[serde(flatten)]
    pub count: Count,
    #[serde(default)]
    pub namespace: String,
    pub template_path: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UpdateAny {
    #[serde(flatten)]
    pub count: Count,
    #[serde(default)]
    pub namespace: String,
    pub template_path: String,
    /// 0: all at once.
    #[serde(default)]
    pub update_per_second: u32,
    #[serde(default)]
    pub subresources: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DeletePods {
    pub namespace: String,
    #[serde(default)]
    pub label_selector: BTreeMap<String, String>,
    #[serde(default)]
    pub skip_wait_to_completion: bool,
    /// 0: all at once.
    #[serde(default)]
    pub delete_pods_per_second: u32,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Churn {
    pub mode: ChurnMode,
    /// 0: without a limit.
    #[serde(default)]
    pub number: usize,
    #[serde(default = "Churn::interval_default")]
    pub interval_milliseconds: u64,
    pub namespace: Option<String>,
    pub template_paths: Vec<String>,
}

impl Churn {
    fn interval_default() -> u64 {
        500
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ChurnMode {
    Create,
    /// Objects are created, and then deleted, in turn.
    Recreate,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Barrier {
    #[serde(default)]
    pub namespaces: Vec<String>,
    #[serde(default)]
    pub label_selector: BTreeMap<String, String>,
    #[serde(default)]
    pub stage_requirement: Stage,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Sleep {
    duration: Option<String>,
    duration_param: Option<String>,
}

/// What pods have to be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum Stage {
    #[default]
    Scheduled,
    Attempted,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StartCollectingMetrics {
    #[serde(default)]
    pub name: String,
    pub namespaces: Vec<String>,
    #[serde(default)]
    pub label_selector: BTreeMap<String, String>,
}

/// A field of an operation, or of the one in it, that would be ignored.
fn unknown_field(operation: &Value) -> Option<&str> {
    let inner = operation.get("createPodsOp").and_then(Value::as_object);
    let fields = operation.as_object().into_iter().chain(inner).flat_map(|fields| fields.keys());
    fields.map(String::as_str).find(|field| !FIELDS.contains(field))
}

impl TestCase {
    /// Its operations, or the first one that cannot be run.
    pub fn operations(&self) -> Result<Vec<Operation>, String> {
        let read = |value: &Value| {
            let opcode = value["opcode"].as_str().unwrap_or_default();
            match opcode {
                "createResourceDriver" | "allocResourceClaims" => {
                    Err(format!("devices ({opcode})"))
                }
                "createNodes" | "createNamespaces" | "createPods" | "createPodSets"
                | "createAny" | "updateAny"
                    if let Some(field) = unknown_field(value) =>
                {
                    Err(format!("{opcode}: {field}"))
                }
                "createAny" if self.is_about_devices(value) => Err(format!("devices ({opcode})")),
                _ => Operation::deserialize(value).map_err(|error| format!("{opcode}: {error}")),
            }
        };
        self.workload_template.iter().map(read).collect()
    }

    /// Whether the template of an operation is of the API group of devices.
    fn is_about_devices(&self, operation: &Value) -> bool {
        let path = operation["templatePath"].as_str().unwrap_or_default();
        let text = std::fs::read_to_string(self.folder.join(path));
        text.is_ok_and(|text| text.contains("apiVersion: resource.k8s.io/"))
    }
}

impl Workload {
    /// The count of an operation.
    pub fn count(&self, of: &Count) -> Result<u32> {
        let Some(param) = &of.count_param else { return Ok(of.count.unwrap_or(1)) };
        let value = self.params.get(param.trim_start_matches('$'));
        let count = value.and_then(Value::as_u64).and_then(|it| u32::try_from(it).ok());
        count.with_context(|| format!("{}: no parameter {param}", self.name))
    }

    /// How long an operation sleeps.
    pub fn duration(&self, of: &Sleep) -> Result<Duration> {
        let text = match &of.duration_param {
            Some(param) => self.params.get(param.trim_start_matches('$')).and_then(Value::as_str),
            None => of.duration.as_deref(),
        };
        let text = text.with_context(|| format!("{}: no duration", self.name))?;
        let nanos = parse_duration_nanos(text)?;
        Ok(Duration::from_nanos(u64::try_from(nanos).unwrap_or(0)))
    }
}

/// All test cases below a folder, those of a file in its order.
pub fn load(folder: &Path) -> Result<Vec<TestCase>> {
    let mut entries = std::fs::read_dir(folder)
        .and_then(Iterator::collect::<std::io::Result<Vec<_>>>)
        .with_context(|| format!("reading {}", folder.display()))?;
    entries.sort_by_key(std::fs::DirEntry::file_name);
    let mut cases = Vec::new();
    for entry in entries {
        if entry.path().is_dir() {
            cases.extend(load(&entry.path())?);
        } else if entry.file_name() == FILE {
            let mut here: Vec<TestCase> = yaml(&std::fs::read_to_string(entry.path())?)
                .with_context(|| format!("reading {}", entry.path().display()))?;
            here.iter_mut().for_each(|case| case.folder = folder.to_owned());
            cases.extend(here);
        }
    }
    Ok(cases)
}

/// Decodes YAML.
pub fn yaml<T: DeserializeOwned>(text: &str) -> Result<T> {
    let value: Value = serde_saphyr::from_str(text)?;
    Ok(serde_json::from_value(value)?)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn case(operation: Value) -> TestCase {
        let case = json!({"name": "Case", "workloadTemplate": [operation],
            "workloads": [{"name": "5Nodes", "labels": ["short"], "params": {"pods": 7, "pause": "1m30s"}}]});
        serde_json::from_value(case).unwrap()
    }

    #[test]
    fn what_cannot_be_run_is_named() {
        for (operation, expected) in [
            (json!({"opcode": "createNodes", "count": 3}), ""),
            (json!({"opcode": "createResourceDriver"}), "devices (createResourceDriver)"),
            (json!({"opcode": "createPods", "steadyState": true}), "createPods: steadyState"),
            (
                json!({"opcode": "createPodSets", "namespacePrefix": "a", "createPodsOp": {"steadyState": true}}),
                "createPodSets: steadyState",
            ),
            (json!({"opcode": "barrier", "timeout": 3}), "barrier: unknown field `timeout`"),
            (json!({"opcode": "dance"}), "dance: unknown variant `dance`"),
        ] {
            let found = case(operation.clone()).operations().err().unwrap_or_default();
            let is_expected =
                found.starts_with(expected) && found.is_empty() == expected.is_empty();
            assert!(is_expected, "{operation}: {found}");
        }
    }

    #[test]
    fn parameters_are_those_of_the_workload() {
        let case = case(json!({"opcode": "sleep", "durationParam": "$pause"}));
        let workload = &case.workloads[0];
        let count = |value: Value| workload.count(&serde_json::from_value(value).unwrap());
        assert_eq!(count(json!({"count": 3})).unwrap(), 3);
        assert_eq!(count(json!({"count": 3, "countParam": "$pods"})).unwrap(), 7);
        assert_eq!(count(json!({})).unwrap(), 1);
        assert!(count(json!({"countParam": "$nodes"})).is_err());
        let Operation::Sleep(sleep) = &case.operations().unwrap()[0] else { panic!("no sleep") };
        assert_eq!(workload.duration(sleep).unwrap(), Duration::from_secs(90));
    }
}
