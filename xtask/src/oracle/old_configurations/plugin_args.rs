//! Random plugin arguments of old versions.

use serde_json::{Value, json};

use super::generate::Draw;
use super::version::{OldRelease, OldVersion};

/// Plugins that have arguments in each version, and arguments for plugins that have none.
fn plugins_with_args(version: OldVersion) -> &'static [&'static str] {
    match version {
        OldVersion::V1Alpha1 | OldVersion::V1Alpha2 => &[
            "InterPodAffinity",
            "NodeLabel",
            "NodeResourcesFit",
            "PodTopologySpread",
            "RequestedToCapacityRatio",
            "ServiceAffinity",
        ],
        OldVersion::V1Beta1 => &[
            "DefaultPreemption",
            "InterPodAffinity",
            "NodeAffinity",
            "NodeLabel",
            "NodeResourcesBalancedAllocation",
            "NodeResourcesFit",
            "NodeResourcesLeastAllocated",
            "NodeResourcesMostAllocated",
            "PodTopologySpread",
            "RequestedToCapacityRatio",
            "ServiceAffinity",
            "VolumeBinding",
        ],
        OldVersion::V1Beta2 | OldVersion::V1Beta3 => &[
            "DefaultPreemption",
            "InterPodAffinity",
            "NodeAffinity",
            "NodeResourcesBalancedAllocation",
            "NodeResourcesFit",
            "PodTopologySpread",
            "VolumeBinding",
        ],
        OldVersion::Policy => &[],
    }
}

const LABELS: &[&str] = &["zone", "rack", "region", "example.com/pool"];

impl Draw<'_> {
    /// `pluginConfig`. A plugin that cannot do without arguments mostly has them if it is among `enabled`. NodeResourcesFit has valid
    /// arguments unless `is_fit_certain` to be enabled.
    pub(super) fn plugin_config(&mut self, enabled: &[String], is_fit_certain: bool) -> Vec<Value> {
        let mut configs = Vec::new();
        for name in plugins_with_args(self.version) {
            let is_enabled = enabled.iter().any(|it| it == name);
            let is_needed = *name == "RequestedToCapacityRatio" && is_enabled;
            let n = match (is_needed, is_enabled) {
                (true, _) => 1,
                (false, true) => 3,
                (false, false) => 8,
            };
            if is_needed && self.rarely() || !self.rng.one_in(n) {
                continue;
            }
            let mut config = json!({"name": name});
            if is_needed || !self.rng.one_in(20) {
                self.is_valid_only = *name == "NodeResourcesFit" && !is_fit_certain;
                config["args"] = self.args(name);
                self.is_valid_only = false;
            }
            configs.push(config);
        }
        if self.rarely() {
            configs.push(json!({"name": "NoSuchPlugin", "args": {"a": 1}}));
        }
        if !configs.is_empty() && self.rarely() {
            configs.push(configs[0].clone());
        }
        if self.version.is_alpha() && configs.len() > 1 && self.rarely() {
            configs.swap_remove(0);
        }
        configs
    }

    fn args(&mut self, plugin: &str) -> Value {
        let mut args = match plugin {
            "DefaultPreemption" => self.default_preemption(),
            "InterPodAffinity" => {
                let mut args = json!({});
                self.put(&mut args, 2, "hardPodAffinityWeight", |it| {
                    it.number(&[0, 1, 10, 100], &[101, -1])
                });
                args
            }
            "NodeAffinity" => self.node_affinity(),
            "NodeLabel" => self.node_label(),
            "NodeResourcesFit" => self.fit(),
            "PodTopologySpread" => self.spread(),
            "RequestedToCapacityRatio" => {
                let mut args = json!({"shape": self.shape()});
                self.put(&mut args, 2, "resources", Draw::resources);
                args
            }
            "ServiceAffinity" => {
                let mut args = json!({});
                self.put(&mut args, 2, "affinityLabels", Draw::labels);
                self.put(&mut args, 2, "antiAffinityLabelsPreference", Draw::labels);
                args
            }
            "VolumeBinding" => {
                let mut args = json!({});
                self.put(&mut args, 2, "bindTimeoutSeconds", |it| it.number(&[0, 1, 300], &[-1]));
                args
            }
            _ => {
                let mut args = json!({});
                self.put(&mut args, 2, "resources", Draw::resources);
                args
            }
        };
        if self.version.is_alpha() {
            if self.rarely() {
                args["unknownArgument"] = 1.into();
            }
            return args;
        }
        if self.rng.one_in(3) {
            args["apiVersion"] = self.version.empty_file()["apiVersion"].clone();
            let kind = if self.rarely() { "NodeAffinity" } else { plugin };
            args["kind"] = format!("{kind}Args").into();
        }
        if self.rarely() {
            args["unknownArgument"] = 1.into();
        }
        args
    }

    fn default_preemption(&mut self) -> Value {
        let mut args = json!({});
        self.put(&mut args, 2, "minCandidateNodesPercentage", |it| {
            it.number(&[5, 10, 100], &[-1, 0, 101])
        });
        self.put(&mut args, 2, "minCandidateNodesAbsolute", |it| {
            it.number(&[1, 50, 100], &[-1, 0])
        });
        args
    }

    fn labels(&mut self) -> Value {
        let n = self.rng.below(4) as usize;
        Value::from(&LABELS[..n])
    }

    fn node_label(&mut self) -> Value {
        let mut args = json!({});
        self.put(&mut args, 2, "presentLabels", |it| it.text_list(&["zone", "rack"]));
        self.put(&mut args, 2, "absentLabels", |it| it.text_list(&["retiring", "broken"]));
        self.put(&mut args, 2, "presentLabelsPreference", |it| it.text_list(&["ssd"]));
        self.put(&mut args, 2, "absentLabelsPreference", |it| it.text_list(&["slow", "old"]));
        if self.rarely() {
            args["absentLabels"] = json!(["zone"]);
        }
        args
    }

    fn text_list(&mut self, texts: &[&str]) -> Value {
        let n = self.rng.below(texts.len() as u64 + 1) as usize;
        Value::from(&texts[..n])
    }

    fn node_affinity(&mut self) -> Value {
        let key = if self.rarely() { "not a key!" } else { "pool" };
        let expressions = json!([{"key": key, "operator": "In", "values": ["a", "b"]}]);
        match self.rng.below(4) {
            0 => json!({}),
            1 => json!({"addedAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {"weight": 10, "preference": {"matchExpressions": expressions}}
                ]
            }}),
            _ => json!({"addedAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchExpressions": expressions}]
                }
            }}),
        }
    }

    fn fit(&mut self) -> Value {
        let mut args = json!({});
        self.put(&mut args, 2, "ignoredResources", |it| {
            it.text_list(&["example.com/foo", "example.com/bar"])
        });
        if self.version.is_alpha() {
            return args;
        }
        self.put(&mut args, 3, "ignoredResourceGroups", |it| {
            if it.rarely() { json!(["a/b"]) } else { json!(["example.com"]) }
        });
        self.put(&mut args, 2, "scoringStrategy", |it| {
            let mut strategy = match it.rng.below(3) {
                0 => json!({"type": "LeastAllocated"}),
                1 => json!({"type": "MostAllocated"}),
                _ => json!({
                    "type": "RequestedToCapacityRatio",
                    "requestedToCapacityRatio": {"shape": it.shape_of_fit()},
                }),
            };
            it.put(&mut strategy, 2, "resources", Draw::resources);
            if it.rarely() {
                strategy["type"] = "NoSuchStrategy".into();
            }
            strategy
        });
        args
    }

    pub(super) fn resources(&mut self) -> Value {
        let names = ["cpu", "memory", "example.com/gpu", "ephemeral-storage"];
        let n = self.rng.below(4) as usize;
        let resources = names[..n].iter().map(|name| {
            let mut resource = json!({"name": name});
            self.put(&mut resource, 2, "weight", |it| it.number(&[1, 3, 100], &[0, -1, 101]));
            resource
        });
        resources.collect()
    }

    pub(super) fn shape(&mut self) -> Value {
        if self.rarely() {
            return json!([]);
        }
        let n_points = 1 + self.rng.below(3);
        let points = (0..n_points).map(|idx| {
            let utilization = self.number(&[50 * idx as i64], &[-1, 0, 101]);
            json!({"utilization": utilization, "score": self.number(&[0, 5, 10], &[11, -1])})
        });
        points.collect()
    }

    /// 1.22 does not check that the shape has points.
    fn shape_of_fit(&mut self) -> Value {
        let shape = self.shape();
        let is_unchecked = self.table.release == Some(OldRelease::V1_22) && shape == json!([]);
        if is_unchecked { json!([{"utilization": 0, "score": 1}]) } else { shape }
    }

    fn spread(&mut self) -> Value {
        let mut args = json!({});
        self.put(&mut args, 2, "defaultConstraints", |it| {
            let n = it.rng.below(3) as usize;
            let constraints = ["topology.kubernetes.io/zone", "kubernetes.io/hostname"][..n].iter();
            let constraints = constraints.map(|key| {
                let when = *it.rng.pick(&["DoNotSchedule", "ScheduleAnyway"]);
                json!({
                    "maxSkew": it.number(&[1, 2, 5], &[0]),
                    "topologyKey": key,
                    "whenUnsatisfiable": if it.rarely() { "Never" } else { when },
                })
            });
            constraints.collect()
        });
        if !self.version.is_alpha() {
            let has_constraints =
                args["defaultConstraints"].as_array().is_some_and(|it| !it.is_empty());
            // In v1beta1 the default depends on the constraints; later it is System, with which there must be none.
            let must_be_list = has_constraints && self.version != OldVersion::V1Beta1;
            if must_be_list && !self.rng.one_in(10) {
                args["defaultingType"] = "List".into();
            } else {
                self.put(&mut args, 3, "defaultingType", |it| it.text(&["System", "List"]));
            }
        }
        args
    }
}
