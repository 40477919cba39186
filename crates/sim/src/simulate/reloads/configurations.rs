//! Random configurations.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use loadmaster_engine::world_loader::DefaultProfileError;
use loadmaster_framework::Registry;
use loadmaster_scheduler_plugins::{capacity_scheduling, coscheduling, with_scheduler_plugins};
use loadmaster_stdx::CollectByInsertion as _;
use loadmaster_stdx::Rng;
use serde_json::{Value, json};

use super::{counting_plugin, ordering_plugin};
use crate::simulate::InjectedBug;
use crate::simulate::run_configuration::{QueueOrder, ReloadedParts, RunConfiguration, RunProfile};
use crate::simulate::simulated_profiles::simulated_profiles;
use crate::simulate::{fake_extenders, holding_plugin, panicking_plugin, watching_plugin};

/// The first one has most of the pods.
pub(super) const SCHEDULER_NAMES: [&str; 4] =
    ["default-scheduler", "default-scheduler", "second", "third"];

/// Plugins that a configuration may disable, at Filter or everywhere.
const MAY_BE_DISABLED: [&str; 6] = [
    "NodeAffinity",
    "TaintToleration",
    "NodePorts",
    "InterPodAffinity",
    "PodTopologySpread",
    "NodeUnschedulable",
];

const SCORING: [&str; 6] = [
    "NodeResourcesFit",
    "NodeResourcesBalancedAllocation",
    "TaintToleration",
    "NodeAffinity",
    "PodTopologySpread",
    "InterPodAffinity",
];

/// What the configurations of a run may have.
#[derive(Clone, Copy, Default)]
pub(in crate::simulate) struct ConfigurationParts {
    /// The plugin that panics.
    pub panics: bool,
    pub extenders: bool,
    /// The test plugin that watches objects, and the one that holds pods.
    pub watching: bool,
    pub holding: bool,
    /// Coscheduling and CapacityScheduling, which every profile has then.
    pub gangs: bool,
    pub quotas: bool,
}

pub(super) struct ConfigurationSource {
    registry: Registry,
    parts: ConfigurationParts,
    /// From now on gangs have the order of Coscheduling.
    keeps_order: bool,
}

/// A configuration before it is built.
#[derive(Clone, Default)]
pub(super) struct DrawnConfiguration {
    profiles: BTreeMap<&'static str, DrawnProfile>,
    order: Option<&'static str>,
    /// A set of [`fake_extenders`].
    extenders: Option<usize>,
    initial_backoff: u64,
    max_backoff: u64,
}

/// A profile without the plugins that the checks leave out.
#[derive(Clone)]
struct DrawnProfile {
    counter_args: u64,
    /// Test plugins, in order.
    plugins: Vec<&'static str>,
    disabled: Vec<&'static str>,
    disabled_filters: Vec<&'static str>,
    preempts: bool,
    weights: BTreeMap<&'static str, i64>,
    args: BTreeMap<&'static str, Value>,
}

impl ConfigurationSource {
    pub fn new(registry: &Registry, parts: ConfigurationParts) -> ConfigurationSource {
        let has_them = registry.get(coscheduling::NAME).is_some();
        let registry =
            if has_them { registry.clone() } else { with_scheduler_plugins(registry.clone()) };
        let registry = registry
            .with(counting_plugin::COUNTING)
            .with(ordering_plugin::ORDERING)
            .with(panicking_plugin::PANICKING)
            .with(watching_plugin::WATCHING)
            .with(holding_plugin::HOLDING);
        ConfigurationSource { registry, parts, keeps_order: false }
    }

    /// Whether gangs, if there are any, have the order of Coscheduling.
    pub fn has_order_of_gangs(&self, drawn: &DrawnConfiguration) -> bool {
        !self.parts.gangs || drawn.order == Some(coscheduling::NAME)
    }

    /// All further configurations have the order of Coscheduling for gangs.
    pub fn keep_order_of_gangs(&mut self) {
        self.keeps_order = self.parts.gangs;
    }

    /// Draws all parts of a configuration.
    pub fn draw(&self, rng: &mut Rng) -> DrawnConfiguration {
        let mut drawn = DrawnConfiguration::default();
        self.draw_rest(rng, &mut drawn);
        for name in SCHEDULER_NAMES {
            // The first name is drawn twice.
            if rng.one_in(2) {
                drawn.profiles.insert(name, self.draw_profile(rng));
            }
        }
        if drawn.profiles.is_empty() {
            drawn.profiles.insert(*rng.pick(&SCHEDULER_NAMES), self.draw_profile(rng));
        }
        drawn
    }

    /// Draws some parts again.
    pub fn change(&self, rng: &mut Rng, before: &DrawnConfiguration) -> DrawnConfiguration {
        let mut drawn = before.clone();
        match rng.below(4) {
            0 => self.draw_rest(rng, &mut drawn),
            1 => {
                let name = *rng.pick(&SCHEDULER_NAMES);
                if drawn.profiles.remove(name).is_none() || drawn.profiles.is_empty() {
                    drawn.profiles.insert(name, self.draw_profile(rng));
                }
            }
            _ => {
                for profile in drawn.profiles.values_mut() {
                    self.change_profile(rng, profile);
                }
            }
        }
        drawn
    }

    fn draw_rest(&self, rng: &mut Rng, drawn: &mut DrawnConfiguration) {
        drawn.order = Some(match rng.below(3) {
            0 => ordering_plugin::NAME,
            _ if self.parts.gangs => coscheduling::NAME,
            _ => "PrioritySort",
        });
        drawn.extenders = (self.parts.extenders && !rng.one_in(3)).then(|| rng.below(2) as usize);
        drawn.initial_backoff = *rng.pick(&[1, 1, 2, 5]);
        drawn.max_backoff = drawn.initial_backoff * *rng.pick(&[1, 2, 10]);
    }

    fn draw_profile(&self, rng: &mut Rng) -> DrawnProfile {
        let mut drawn = DrawnProfile {
            counter_args: 0,
            plugins: Vec::new(),
            disabled: Vec::new(),
            disabled_filters: Vec::new(),
            preempts: true,
            weights: BTreeMap::new(),
            args: BTreeMap::new(),
        };
        (0..4).for_each(|_| self.change_profile(rng, &mut drawn));
        drawn
    }

    fn change_profile(&self, rng: &mut Rng, drawn: &mut DrawnProfile) {
        let subset = |rng: &mut Rng, one_in: u64| {
            MAY_BE_DISABLED.into_iter().filter(|_| rng.one_in(one_in)).collect()
        };
        match rng.below(7) {
            0 => drawn.counter_args = rng.below(3),
            1 => {
                let ConfigurationParts { panics, watching, holding, .. } = self.parts;
                let may_have = [
                    (panicking_plugin::NAME, panics),
                    (watching_plugin::NAME, watching),
                    (holding_plugin::NAME, holding),
                ];
                let has = may_have.into_iter().filter(|(_, may_be)| *may_be && !rng.one_in(3));
                drawn.plugins = has.map(|(name, _)| name).collect();
            }
            2 => drawn.disabled = subset(rng, 12),
            3 => drawn.disabled_filters = subset(rng, 6),
            4 => drawn.preempts = !rng.one_in(4),
            5 => {
                let weights = SCORING.into_iter().filter(|_| rng.one_in(2)).collect::<Vec<_>>();
                drawn.weights = weights
                    .into_iter()
                    .map(|name| (name, rng.range(1, 100)))
                    .collect_by_insertion();
            }
            _ => drawn.args = draw_args(rng),
        }
    }

    /// # Errors
    ///
    /// If the configuration is invalid.
    pub fn build(
        &self,
        drawn: &DrawnConfiguration,
    ) -> Result<RunConfiguration, DefaultProfileError> {
        let parts = self.parts;
        let order = match self.keeps_order {
            true => coscheduling::NAME,
            false => drawn.order.unwrap_or("PrioritySort"),
        };
        let extenders =
            drawn.extenders.map_or(json!([]), |set| fake_extenders::sets()[set].clone());
        let names = drawn.profiles.keys();
        let json = |is_checked: bool| {
            let profiles = drawn.profiles.iter();
            profiles.map(|(name, it)| it.to_json(name, order, parts, is_checked)).collect()
        };
        let profiles = simulated_profiles(&self.registry, json(false), extenders)?;
        let checked = simulated_profiles(&self.registry, json(true), json!([]))?;
        let profiles = profiles.into_iter().zip(checked).zip(names.zip(drawn.profiles.values()));
        let profiles = profiles.map(|((profile, checked), (_, drawn))| RunProfile {
            profile: Arc::new(profile),
            checked: Arc::new(checked),
            counter_args: drawn.counter_args,
        });
        let is_known = !parts.panics && !parts.gangs;
        let order = match order {
            "PrioritySort" if is_known => QueueOrder::Priority,
            ordering_plugin::NAME if is_known => QueueOrder::Name,
            _ => QueueOrder::Other,
        };
        Ok(RunConfiguration {
            profiles: profiles.collect(),
            initial_backoff: Duration::from_secs(drawn.initial_backoff),
            max_backoff: Duration::from_secs(drawn.max_backoff),
            reloaded: Some(ReloadedParts {
                order,
                has_extenders: drawn.extenders.is_some(),
                has_binder: drawn.extenders == Some(fake_extenders::SET_WITH_BINDER),
            }),
        })
    }
}

fn draw_args(rng: &mut Rng) -> BTreeMap<&'static str, Value> {
    let mut args = BTreeMap::new();
    let strategy = *rng.pick(&["LeastAllocated", "MostAllocated"]);
    let resources =
        json!([{"name": "cpu", "weight": rng.range(1, 10)}, {"name": "memory", "weight": 1}]);
    args.insert(
        "NodeResourcesFit",
        json!({"scoringStrategy": {"type": strategy, "resources": resources}}),
    );
    args.insert("InterPodAffinity", json!({"hardPodAffinityWeight": rng.range(0, 100)}));
    args.insert("DefaultPreemption", json!({"minCandidateNodesAbsolute": rng.range(1, 100)}));
    args.insert("VolumeBinding", json!({"bindTimeoutSeconds": *rng.pick(&[600, 600, 300])}));
    if rng.one_in(3) {
        let zones = json!([*rng.pick(&["z1", "z2", "z3"]), *rng.pick(&["z1", "z2", "z3"])]);
        let term = json!({"matchExpressions": [
            {"key": "topology.kubernetes.io/zone", "operator": "In", "values": zones},
        ]});
        let required = json!({"nodeSelectorTerms": [term]});
        let affinity = json!({"requiredDuringSchedulingIgnoredDuringExecution": required});
        args.insert("NodeAffinity", json!({"addedAffinity": affinity}));
    }
    args
}

impl DrawnProfile {
    /// The profile of a KubeSchedulerConfiguration. `is_checked`: without plugins that the checks leave out.
    fn to_json(
        &self,
        name: &str,
        order: &str,
        parts: ConfigurationParts,
        is_checked: bool,
    ) -> Value {
        let named = |name: &str| json!({"name": name});
        let all = |names: &[&str]| names.iter().map(|name| named(name)).collect::<Value>();
        let mut enabled = vec![counting_plugin::NAME];
        let is_left_out = |plugin: &str| is_checked && plugin == panicking_plugin::NAME;
        enabled.extend(self.plugins.iter().filter(|plugin| !is_left_out(plugin)));
        if !is_checked {
            enabled.extend(parts.quotas.then_some(capacity_scheduling::NAME));
            enabled.extend(parts.gangs.then_some(coscheduling::NAME));
        }
        let order = if is_checked { "PrioritySort" } else { order };
        let weights = self.weights.iter().filter(|(name, _)| !self.disabled.contains(*name));
        let weights = weights.map(|(name, weight)| json!({"name": name, "weight": weight}));
        let mut plugins = json!({
            "multiPoint": {"enabled": all(&enabled), "disabled": all(&self.disabled)},
            "queueSort": {"enabled": [named(order)], "disabled": [named("*")]},
            "filter": {"disabled": all(&self.disabled_filters)},
            "score": {"enabled": weights.collect::<Value>()},
        });
        if parts.quotas && !is_checked || !self.preempts {
            plugins["postFilter"]["disabled"] = all(&["DefaultPreemption"]);
        }
        let mut args = self.args.clone();
        args.insert(counting_plugin::NAME, json!({"version": self.counter_args}));
        let args = args.iter().map(|(name, args)| json!({"name": name, "args": args}));
        json!({
            "schedulerName": name,
            "plugins": plugins,
            "pluginConfig": args.collect::<Value>(),
        })
    }
}

impl DrawnConfiguration {
    /// What an engine with this bug would run with.
    pub fn altered(&self, bug: InjectedBug, before: &DrawnConfiguration) -> DrawnConfiguration {
        let mut altered = self.clone();
        match bug {
            InjectedBug::KeptOrder => altered.order = before.order,
            InjectedBug::MixedReload => {
                for (name, profile) in &mut altered.profiles {
                    if let Some(old) = before.profiles.get(name) {
                        profile.weights.clone_from(&old.weights);
                        profile.args.clone_from(&old.args);
                    }
                }
            }
            // Arguments that no configuration has.
            _ => altered.profiles.values_mut().for_each(|it| it.counter_args += 1_000),
        }
        altered
    }
}
