//! Random Policies.

use serde_json::{Value, json};

use super::generate::Draw;

const PREDICATES: &[&str] = &[
    "CheckNodeUnschedulable",
    "GeneralPredicates",
    "NoDiskConflict",
    "PodToleratesNodeTaints",
    "MaxEBSVolumeCount",
    "MaxGCEPDVolumeCount",
    "MaxCSIVolumeCountPred",
    "MaxAzureDiskVolumeCount",
    "MaxCinderVolumeCount",
    "CheckVolumeBinding",
    "NoVolumeZoneConflict",
    "EvenPodsSpread",
    "MatchInterPodAffinity",
];

/// The parts of GeneralPredicates, which exclude it.
const GENERAL_PREDICATES: &[&str] =
    &["HostName", "PodFitsHostPorts", "PodFitsPorts", "MatchNodeSelector", "PodFitsResources"];

const PRIORITIES: &[&str] = &[
    "SelectorSpreadPriority",
    "ServiceSpreadingPriority",
    "EvenPodsSpreadPriority",
    "InterPodAffinityPriority",
    "LeastRequestedPriority",
    "MostRequestedPriority",
    "BalancedResourceAllocation",
    "NodePreferAvoidPodsPriority",
    "NodeAffinityPriority",
    "TaintTolerationPriority",
    "ImageLocalityPriority",
    "EqualPriority",
];

impl Draw<'_> {
    pub(super) fn policy(&mut self) -> Value {
        let mut file = self.version.empty_file();
        if !self.rng.one_in(5) {
            file["predicates"] = self.predicates();
        }
        if !self.rng.one_in(5) {
            file["priorities"] = self.priorities();
        }
        self.put(&mut file, 4, "extenders", Draw::extenders);
        self.put(&mut file, 3, "hardPodAffinitySymmetricWeight", |it| {
            it.number(&[0, 1, 10, 100], &[101, -1])
        });
        self.put(&mut file, 4, "alwaysCheckAllPredicates", |it| it.rng.one_in(2).into());
        if self.rarely() {
            file["predicate"] = json!([]);
        }
        if self.rarely() {
            file["apiVersion"] = "v2".into();
        }
        if self.rng.one_in(20) {
            let field = *self.rng.pick(&["predicates", "priorities", "extenders"]);
            file[field] = self.rng.pick(&[json!(null), json!([]), json!({}), json!("x")]).clone();
        }
        file
    }

    fn shuffled(&mut self, names: &[&'static str], n: u64) -> Vec<&'static str> {
        let mut rest = names.to_vec();
        let mut picked = Vec::new();
        for _ in 0..n.min(names.len() as u64) {
            let idx = self.rng.below(rest.len() as u64) as usize;
            picked.push(rest.swap_remove(idx));
        }
        picked
    }

    fn predicates(&mut self) -> Value {
        let n = self.rng.below(9);
        let mut predicates: Vec<Value> = Vec::new();
        let names = self.shuffled(PREDICATES, n);
        let has_general = names.contains(&"GeneralPredicates");
        predicates.extend(names.into_iter().map(|name| json!({"name": name})));
        if !has_general && self.rng.one_in(2) || self.rarely() {
            let n = 1 + self.rng.below(4);
            let parts = self.shuffled(GENERAL_PREDICATES, n);
            predicates.extend(parts.into_iter().map(|name| json!({"name": name})));
        }
        for idx in 0..[0, 0, 1, 2][self.rng.below(4) as usize] {
            let argument = self.predicate_argument();
            predicates.push(json!({"name": format!("Custom{idx}"), "argument": argument}));
        }
        if self.rarely() {
            predicates.push(json!({"name": "NoSuchPredicate"}));
        }
        if self.rarely() {
            predicates.push(json!({"name": "CheckServiceAffinity"}));
        }
        if self.rarely() {
            predicates.push(json!({"name": "CheckNodeLabelPresence"}));
        }
        predicates.into()
    }

    fn predicate_argument(&mut self) -> Value {
        let service = json!({"labels": self.policy_labels(&["region", "zone"])});
        let labels = json!({
            "labels": self.policy_labels(&["ssd", "retiring"]),
            "presence": self.rng.one_in(2),
        });
        if self.rarely() {
            json!({"serviceAffinity": service, "labelsPresence": labels})
        } else if self.rarely() {
            json!({})
        } else if self.rng.one_in(2) {
            json!({"serviceAffinity": service})
        } else {
            json!({"labelsPresence": labels})
        }
    }

    fn policy_labels(&mut self, labels: &[&str]) -> Value {
        let n = self.rng.below(labels.len() as u64 + 1) as usize;
        Value::from(&labels[..n])
    }

    fn priorities(&mut self) -> Value {
        let n = self.rng.below(8);
        let mut priorities: Vec<Value> = Vec::new();
        for name in self.shuffled(PRIORITIES, n) {
            let mut priority = json!({"name": name, "weight": self.weight()});
            if self.rarely() {
                priority = json!({"name": name});
            }
            priorities.push(priority);
        }
        let weight = self.weight();
        for idx in 0..[0, 0, 1, 2][self.rng.below(4) as usize] {
            let argument =
                json!({"label": *self.rng.pick(&["zone", "rack"]), "presence": self.rng.one_in(2)});
            let weight = if self.rarely() { self.weight() } else { weight.clone() };
            priorities.push(json!({
                "name": format!("Label{idx}"),
                "weight": weight,
                "argument": {"labelPreference": argument},
            }));
        }
        for idx in 0..[0, 0, 1, 2][self.rng.below(4) as usize] {
            let argument = json!({"label": *self.rng.pick(&["zone", "rack"])});
            priorities.push(json!({
                "name": format!("Spread{idx}"),
                "weight": weight,
                "argument": {"serviceAntiAffinity": argument},
            }));
        }
        if self.rng.one_in(4) {
            let mut argument = json!({"shape": self.shape()});
            self.put(&mut argument, 2, "resources", Draw::resources);
            let name = *self.rng.pick(&["Ratio", "RequestedToCapacityRatioPriority"]);
            priorities.push(json!({
                "name": name,
                "weight": weight,
                "argument": {"requestedToCapacityRatioArguments": argument},
            }));
        }
        if self.rarely() {
            priorities.push(json!({"name": "NoSuchPriority", "weight": 1}));
        }
        if self.rarely() {
            priorities.push(json!({"name": "WithoutArgument", "weight": 1, "argument": {}}));
        }
        priorities.into()
    }

    fn weight(&mut self) -> Value {
        self.number(&[1, 2, 5, 100, 10_000], &[0, -1])
    }
}
