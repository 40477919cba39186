//! A registry of plugins without behavior, with the extension points of kube-scheduler's plugins, and
//! two helpers around `check`.

use std::cmp::Ordering;
use std::sync::Arc;

use expect_test::Expect;
use loadmaster_api::document::Document;
use loadmaster_config::{
    AllFeatureGates, CheckedConfiguration, ExpandedPlugins, ExtensionPoint, ExtensionPointSet,
    check_configuration, in_tree_extension_points,
};
use loadmaster_framework::api_calls::{PluginStep, PluginStepInput};
use loadmaster_framework::extension_points::{BindResult, PostFilterResult, PreBindPreFlight};
use loadmaster_framework::plugin_args::{FieldError, decode_given_args};
use loadmaster_framework::{
    Bind, Cx, ExtensionPoints, Failure, FeatureGates, Filter, FitError, IgnoredArgument, NodeInfo,
    Permit, PermitResult, PluginDef, PluginError, PodInfo, PostBind, PostFilter, PostFilterCx,
    PreBind, PreEnqueue, PreFilter, PreFilterResult, PreScore, PreScoreResult, QueueSort,
    QueuedPodInfo, Registry, Rejection, Reserve, Score, SerialCx,
};
use loadmaster_stdx::Rng;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// `apiVersion` and `kind`, for every configuration of a test.
pub const HEADER: &str =
    "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n";

/// Checks a configuration without its header.
pub fn try_check(yaml: &str) -> Result<CheckedConfiguration, String> {
    let document = Document::new("config.yaml", format!("{HEADER}{yaml}"));
    check_configuration(&document, &registry(), &AllFeatureGates::default()).map_err(|errors| {
        errors.into_iter().map(|error| error.to_string()).collect::<Vec<_>>().join("\n")
    })
}

/// The errors of a configuration without its header, one per line.
#[track_caller]
pub fn check_errors(yaml: &str, want: &Expect) {
    match try_check(yaml) {
        Ok(_) => want.assert_eq("ok"),
        Err(errors) => want.assert_eq(&errors),
    }
}

/// The plugins of every extension point, one line per extension point.
pub fn plugins_of(points: &ExpandedPlugins) -> String {
    let mut lines = String::new();
    for (point, plugins) in points.iter() {
        lines += point.field_name();
        lines += ":";
        for plugin in plugins {
            lines += &format!(" {}", plugin.name);
            if plugin.weight != 0 {
                lines += &format!("={}", plugin.weight);
            }
        }
        lines += "\n";
    }
    lines
}

/// kube-scheduler's plugins of 1.36 except two, and three that it does not have.
pub fn registry() -> Registry {
    registry_of(|name| !matches!(name, "DefaultBinder" | "NodeDeclaredFeatures"))
}

/// The plugins of kube-scheduler for which `keep` returns true, and three that it does not have.
pub fn registry_of(keep: impl Fn(&str) -> bool) -> Registry {
    let in_tree = [
        plugin::<0x001>("SchedulingGates"),
        plugin::<0x002>("PrioritySort"),
        plugin::<0x008>("NodeUnschedulable"),
        plugin::<0x008>("NodeName"),
        plugin::<0x068>("TaintToleration"),
        plugin::<0x06c>("NodeAffinity"),
        plugin::<0x00c>("NodePorts"),
        plugin::<0x06c>("NodeResourcesFit"),
        plugin::<0x00c>("VolumeRestrictions"),
        plugin::<0x00c>("NodeVolumeLimits"),
        plugin::<0x2ec>("VolumeBinding"),
        plugin::<0x00c>("VolumeZone"),
        plugin::<0x06c>("PodTopologySpread"),
        PluginDef { args: Some(affinity_args), ..plugin::<0x06c>("InterPodAffinity") },
        plugin::<0x2dd>("DynamicResources"),
        PluginDef { args: Some(preemption_args), ..plugin::<0x011>("DefaultPreemption") },
        plugin::<0x060>("NodeResourcesBalancedAllocation"),
        plugin::<0x040>("ImageLocality"),
        plugin::<0x400>("DefaultBinder"),
        plugin::<0x00c>("NodeDeclaredFeatures"),
    ];
    for plugin in &in_tree {
        let mut points = ExtensionPoints::default();
        assert!((plugin.build)(&mut points, &Value::Null).is_ok());
        let placement = ExtensionPointSet::from_points(&[
            ExtensionPoint::PlacementScore,
            ExtensionPoint::PlacementGenerate,
        ]);
        let entered = ExtensionPointSet::implemented_by(&points);
        let known = in_tree_extension_points(plugin.name).unwrap_or_default();
        for point in ExtensionPoint::ALL.into_iter().filter(|point| !placement.contains(*point)) {
            assert_eq!(
                entered.contains(point),
                known.contains(point),
                "{} at {point}",
                plugin.name
            );
        }
    }
    let own = [plugin::<0x048>("Mine"), plugin::<0x002>("MySort"), failing_plugin()];
    Registry::new(in_tree.into_iter().filter(|plugin| keep(plugin.name)).chain(own))
}

/// All plugins of kube-scheduler 1.36, those that only older versions had, and two of scheduler-plugins.
pub fn registry_with_old_plugins() -> Registry {
    let old = [
        plugin::<0x048>("NodeLabel"),
        plugin::<0x04c>("ServiceAffinity"),
        plugin::<0x040>("NodePreferAvoidPods"),
        plugin::<0x060>("SelectorSpread"),
        plugin::<0x040>("NodeResourcesLeastAllocated"),
        plugin::<0x040>("NodeResourcesMostAllocated"),
        plugin::<0x040>("RequestedToCapacityRatio"),
        plugin::<0x008>("EBSLimits"),
        plugin::<0x008>("GCEPDLimits"),
        plugin::<0x008>("AzureDiskLimits"),
        plugin::<0x008>("CinderLimits"),
        plugin::<0x002>("QOSSort"),
        plugin::<0x094>("CapacityScheduling"),
    ];
    let ignored = IgnoredArgument {
        plugin: "CapacityScheduling",
        argument: "kubeConfigPath",
        reason: "the plugin uses the connection of the scheduler",
    };
    old.into_iter().fold(registry_of(|_| true), Registry::with).with_ignored_arguments(&[ignored])
}

fn plugin<const AT: u16>(name: &'static str) -> PluginDef {
    PluginDef { name, build: build::<AT>, args: None }
}

/// A plugin that cannot be built.
fn failing_plugin() -> PluginDef {
    fn build(_: &mut ExtensionPoints, args: &Value) -> Result<(), PluginError> {
        Err(PluginError::Args {
            plugin: "Failing",
            error: FieldError::invalid("size", args, "too small"),
        })
    }
    PluginDef { name: "Failing", build, args: None }
}

#[derive(Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct AffinityArgs {
    hard_pod_affinity_weight: i32,
    ignore_preferred_terms_of_existing_pods: bool,
}

impl Default for AffinityArgs {
    fn default() -> Self {
        AffinityArgs { hard_pod_affinity_weight: 1, ignore_preferred_terms_of_existing_pods: false }
    }
}

fn affinity_args(value: &Value, _gates: &FeatureGates) -> Result<Value, Vec<FieldError>> {
    let args: AffinityArgs = decode_given_args(value)?;
    if !(0..=100).contains(&args.hard_pod_affinity_weight) {
        let weight = args.hard_pod_affinity_weight;
        return Err(vec![FieldError::invalid(
            "hardPodAffinityWeight",
            weight,
            "not in valid range [0-100]",
        )]);
    }
    Ok(serde_json::to_value(args).unwrap())
}

#[derive(Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct PreemptionArgs {
    min_candidate_nodes_percentage: i32,
    min_candidate_nodes_absolute: i32,
}

impl Default for PreemptionArgs {
    fn default() -> Self {
        PreemptionArgs { min_candidate_nodes_percentage: 10, min_candidate_nodes_absolute: 100 }
    }
}

fn preemption_args(value: &Value, _gates: &FeatureGates) -> Result<Value, Vec<FieldError>> {
    let args: PreemptionArgs = decode_given_args(value)?;
    Ok(serde_json::to_value(args).unwrap())
}

/// Registers for the extension points whose bits are set; bit 0 is the first extension point of a
/// configuration file.
fn build<const AT: u16>(points: &mut ExtensionPoints, _args: &Value) -> Result<(), PluginError> {
    let it = Arc::new(NoOpPlugin);
    let at = |point: ExtensionPoint| AT & 1 << point as u16 != 0;
    points.pre_enqueue = at(ExtensionPoint::PreEnqueue).then(|| it.clone() as _);
    points.queue_sort = at(ExtensionPoint::QueueSort).then(|| it.clone() as _);
    points.pre_filter = at(ExtensionPoint::PreFilter).then(|| it.clone() as _);
    points.filter = at(ExtensionPoint::Filter).then(|| it.clone() as _);
    points.post_filter = at(ExtensionPoint::PostFilter).then(|| it.clone() as _);
    points.pre_score = at(ExtensionPoint::PreScore).then(|| it.clone() as _);
    points.score = at(ExtensionPoint::Score).then(|| it.clone() as _);
    points.reserve = at(ExtensionPoint::Reserve).then(|| it.clone() as _);
    points.permit = at(ExtensionPoint::Permit).then(|| it.clone() as _);
    points.pre_bind = at(ExtensionPoint::PreBind).then(|| it.clone() as _);
    points.bind = at(ExtensionPoint::Bind).then(|| it.clone() as _);
    points.post_bind = at(ExtensionPoint::PostBind).then(|| it.clone() as _);
    Ok(())
}

/// A plugin without behavior that implements every extension point.
struct NoOpPlugin;

impl PreEnqueue for NoOpPlugin {
    fn pre_enqueue(&self, _: Cx<'_>, _: &PodInfo) -> Result<(), Rejection> {
        Ok(())
    }
}

impl QueueSort for NoOpPlugin {
    fn compare(&self, _: Cx<'_>, _: &QueuedPodInfo, _: &QueuedPodInfo) -> Ordering {
        Ordering::Equal
    }
}

impl PreFilter for NoOpPlugin {
    fn pre_filter(&self, _: SerialCx<'_>, _: &PodInfo) -> Result<PreFilterResult, Rejection> {
        unreachable!("no test runs a plugin")
    }
}

impl Filter for NoOpPlugin {
    fn filter(&self, _: Cx<'_>, _: &PodInfo, _: NodeInfo<'_>) -> Result<(), Rejection> {
        Ok(())
    }
}

impl PostFilter for NoOpPlugin {
    fn post_filter(
        &self,
        _: PostFilterCx<'_>,
        _: &Arc<PodInfo>,
        _: FitError<'_>,
        _: &mut Rng,
        _: PluginStepInput<'_>,
    ) -> PluginStep<PostFilterResult> {
        unreachable!("no test runs a plugin")
    }
}

impl PreScore for NoOpPlugin {
    fn pre_score(
        &self,
        _: SerialCx<'_>,
        _: &PodInfo,
        _: &[NodeInfo<'_>],
    ) -> Result<PreScoreResult, Failure> {
        unreachable!("no test runs a plugin")
    }
}

impl Score for NoOpPlugin {
    fn score(&self, _: Cx<'_>, _: &PodInfo, _: NodeInfo<'_>) -> Result<i64, Failure> {
        Ok(0)
    }
}

impl Reserve for NoOpPlugin {
    fn reserve(&self, _: SerialCx<'_>, _: &Arc<PodInfo>, _: NodeInfo<'_>) -> Result<(), Rejection> {
        Ok(())
    }

    fn unreserve(&self, _: SerialCx<'_>, _: &Arc<PodInfo>, _: &str) {}
}

impl Permit for NoOpPlugin {
    fn permit(
        &self,
        _: SerialCx<'_>,
        _: &Arc<PodInfo>,
        _: NodeInfo<'_>,
    ) -> Result<PermitResult, Rejection> {
        unreachable!("no test runs a plugin")
    }
}

impl PreBind for NoOpPlugin {
    fn pre_flight(&self, _: Cx<'_>, _: &PodInfo, _: &str) -> Result<PreBindPreFlight, Rejection> {
        Ok(PreBindPreFlight::Skip)
    }

    fn pre_bind(
        &self,
        _: SerialCx<'_>,
        _: &Arc<PodInfo>,
        _: &str,
        _: PluginStepInput<'_>,
    ) -> PluginStep<()> {
        unreachable!("no test runs a plugin")
    }
}

impl Bind for NoOpPlugin {
    fn bind(
        &self,
        _: SerialCx<'_>,
        _: &Arc<PodInfo>,
        _: &str,
        _: PluginStepInput<'_>,
    ) -> PluginStep<BindResult> {
        unreachable!("no test runs a plugin")
    }
}

impl PostBind for NoOpPlugin {
    fn post_bind(&self, _: SerialCx<'_>, _: &Arc<PodInfo>, _: &str) {}
}
