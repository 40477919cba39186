//! VolumeBinding: selects nodes on which a pod's claims are or can be bound, and binds them before the pod.
//!
//! | upstream | 1.36 `volumebinding` |
//! |---|---|
//! | points | PreFilter, Filter, PreScore, Score, Reserve, PreBind, Sign |
//! | reasons | a claim that is not found, lost, being deleted, not made for the pod, or not bound although it must be; the node cannot reach a bound volume, no volume to bind, not enough free storage, a bound volume does not exist; all `UnschedulableAndUnresolvable` |
//! | args | `bindTimeoutSeconds`: 600; `shape` (gate StorageCapacityScoring): 0 -> 10, 100 -> 0 |
//! | events | StorageClass Add, Update; PersistentVolumeClaim Add, Update; PersistentVolume Add, Update; Node Add, UpdateNodeLabel; CSINode Add, Update; CSIDriver Update; CSIStorageCapacity Add, Update; hints except for volumes and nodes |
//! | key | the node affinities of bound volumes; of claims that are bound now: class, size, modes, selector, selected node, and volumes that are reserved for it |
//! | cost | per node: labels; per class of nodes with equal labels, or per node if there are many: the free volumes and capacities that require a value that it has |

mod args;
mod assume_cache;
mod bind_volumes;
mod claims;
mod evaluator;
mod hints;
mod node_volumes;
mod score;
mod unbound_object;
mod volume_details;

use std::sync::Arc;
use std::time::Duration;

use loadmaster_api::{
    CsiDriver, CsiNode, CsiStorageCapacity, PersistentVolume, PersistentVolumeClaim, SharedPodSpec,
    Str,
};
use loadmaster_framework::extension_points::{SignFragment, UnsignablePod};
use loadmaster_framework::label_columns::LabelValueId;
use loadmaster_framework::{
    Code, Cx, CycleStateSlot, EvaluatorCx, ExtensionPoints, Failure, Filter, Incremental, NodeInfo,
    NodeRow, NodeStateSlot, ObjectChange, ObjectEventHandler, ObjectSlot, PluginDef, PluginError,
    PluginStateSlot, PluginStates, PodInfo, PolicyRule, PreFilter, PreFilterResult, PreScore,
    PreScoreResult, PrepareCx, PrepareResult, Rejection, Score, SerialCx, Sign, World,
};
use serde_json::Value;
use smallvec::SmallVec;

use crate::DeclaredReasons;

use crate::volumes::{self, StorageKind, volumes_fragment};
use args::{Args, complete_args};
use assume_cache::{AssumeCache, Concerned};
use bind_volumes::PodVolumes;
use claims::{ClaimError, ClaimSlots, PodClaims, REASON_IMMEDIATE};
use evaluator::VolumeBindingEvaluator;
use node_volumes::{
    CompiledClaims, NodeCx, REASON_BIND_CONFLICT, REASON_NODE_CONFLICT, REASON_NOT_ENOUGH_SPACE,
    REASON_VOLUME_NOT_EXIST, compile,
};
use score::VolumeCapacityScorer;
use unbound_object::UnboundObject;
use volume_details::VolumeDetails;

/// The plugin's name in configurations.
pub const NAME: &str = "VolumeBinding";

/// The reasons with which it rejects pods and nodes.
pub const REASONS: DeclaredReasons = &[
    (Code::UnschedulableAndUnresolvable, REASON_IMMEDIATE),
    (Code::UnschedulableAndUnresolvable, REASON_NODE_CONFLICT),
    (Code::UnschedulableAndUnresolvable, REASON_BIND_CONFLICT),
    (Code::UnschedulableAndUnresolvable, REASON_NOT_ENOUGH_SPACE),
    (Code::UnschedulableAndUnresolvable, REASON_VOLUME_NOT_EXIST),
];

/// The plugin's entry in the registry.
pub const DEF: PluginDef = PluginDef { name: NAME, build, args: Some(complete_args) };

/// How many claims and volumes the plugin assumes to be other than the API server says: none while no pod is reserved and every event
/// has arrived.
pub fn n_assumed(states: &PluginStates) -> usize {
    states.find::<AssumeCache>().map_or(0, AssumeCache::n_assumed)
}

struct VolumeBinding {
    bind_timeout: Duration,
    /// `None` without the gate StorageCapacityScoring.
    scorer: Option<Arc<VolumeCapacityScorer>>,
    slots: Slots,
    cache: PluginStateSlot<AssumeCache>,
    pod: CycleStateSlot<PodState>,
    volumes: NodeStateSlot<PodVolumes>,
}

/// The kinds that are watched.
struct Slots {
    claims: ClaimSlots,
    csi_nodes: ObjectSlot<CsiNode>,
    unbound_claims: ObjectSlot<UnboundObject>,
    unbound_volumes: ObjectSlot<UnboundObject>,
}

/// What PreFilter found (upstream's `stateData`), and how far the binding is.
#[derive(Clone)]
struct PodState {
    claims: Arc<CompiledClaims>,
    /// The names of the claims that are bound now, in the order of [`PodClaims::delayed`].
    delayed: Arc<[Str]>,
    binding: bind_volumes::BindingState,
}

fn build(points: &mut ExtensionPoints, args: &Value) -> Result<(), PluginError> {
    let args = Args::decode(args).map_err(|error| PluginError::Args { plugin: NAME, error })?;
    let _: ObjectSlot<CsiStorageCapacity> = StorageKind::CsiStorageCapacity.watch_in_keys(points);
    points.require_permissions(PolicyRule::new(
        &[""],
        &["persistentvolumes", "persistentvolumeclaims"],
        &["update"],
    ))?;
    let slots = Slots {
        claims: ClaimSlots {
            claims: StorageKind::PersistentVolumeClaim.watch_in_keys(points),
            volumes: StorageKind::PersistentVolume.watch_in_keys(points),
            classes: StorageKind::StorageClass.watch_in_keys(points),
            drivers: StorageKind::CsiDriver.watch_in_keys::<CsiDriver>(points),
        },
        csi_nodes: volumes::watch_csi_nodes(points),
        unbound_claims: StorageKind::PersistentVolumeClaim.watch_in_keys(points),
        unbound_volumes: StorageKind::PersistentVolume.watch_in_keys(points),
    };
    let plugin = Arc::new(VolumeBinding {
        bind_timeout: args.bind_timeout(),
        scorer: args.scorer(&points.gates).map(Arc::new),
        slots,
        cache: points.plugin_state_slot(AssumeCache::default()),
        pod: points.cycle_state_slot(),
        volumes: points.node_state_slot(),
    });
    points.pre_filter = Some(plugin.clone());
    points.filter = Some(plugin.clone());
    points.pre_score = Some(plugin.clone());
    points.score = Some(plugin.clone());
    points.reserve = Some(plugin.clone());
    points.pre_bind = Some(plugin.clone());
    points.sign = Some(plugin.clone());
    points.incremental = Some(plugin.clone());
    points.object_event_handler = Some(plugin);
    points.explain = Some(Arc::new(VolumeDetails::new(points)));
    hints::register_events(points);
    Ok(())
}

impl VolumeBinding {
    fn cache<'a>(&self, cx: EvaluatorCx<'a>) -> Result<&'a AssumeCache, Failure> {
        cx.states
            .get(self.cache)
            .ok_or_else(|| Failure::new("the state of VolumeBinding is missing"))
    }

    fn node_cx<'a>(
        &self,
        cx: EvaluatorCx<'a>,
        node: &'a loadmaster_api::Node,
    ) -> Result<NodeCx<'a>, Failure> {
        Ok(NodeCx::new(self.cache(cx)?, node, &cx.objects(&self.slots.csi_nodes)))
    }

    fn find(
        &self,
        cx: Cx<'_>,
        claims: &CompiledClaims,
        node: NodeInfo<'_>,
    ) -> Result<node_volumes::NodeVolumes, Failure> {
        claims.find(self.node_cx(cx.evaluator_cx(), node.node())?)
    }

    /// Announces changes of free volumes or capacities to evaluators that compare claims with single nodes: for the nodes that they concern,
    /// or with a new version of the class.
    fn announce(&self, cx: &mut SerialCx<'_>, concerned: impl IntoIterator<Item = Concerned>) {
        for concerned in concerned {
            let (class, rows) = match concerned {
                Concerned::Nodes(class, (label, values)) => {
                    let rows = rows_with(cx.world, &label, &values);
                    (class, rows)
                }
                Concerned::All(class) => (class, None),
            };
            match rows {
                Some(rows) => {
                    for row in rows {
                        if let Some(node) = cx.world.nodes().node(row) {
                            cx.invalidate_node(node.name());
                        }
                    }
                }
                None => {
                    if let Some(cache) = cx.states.get_mut(self.cache) {
                        cache.change_version(&class);
                    }
                }
            }
        }
    }
}

/// More nodes than this are not announced one by one.
const ANNOUNCED_NODES_MAX: usize = 16;

/// The few nodes whose label has one of the values; `None` if there are many, or the label has no column.
fn rows_with(world: &World, label: &Str, values: &[Str]) -> Option<Vec<NodeRow>> {
    let labels = world.nodes().labels();
    let column = labels.column(labels.id(label)?);
    let ids: SmallVec<[LabelValueId; 2]> =
        values.iter().filter_map(|value| column.id(value)).collect();
    let n_nodes: usize = ids.iter().map(|id| column.n_nodes(*id)).sum();
    if n_nodes > ANNOUNCED_NODES_MAX {
        return None;
    }
    let rows = column.rows().iter().enumerate().filter(|(_, value)| ids.contains(value));
    Some(rows.map(|(at, _)| NodeRow(at as u32)).take(n_nodes).collect())
}

impl PreFilter for VolumeBinding {
    fn pre_filter(&self, cx: SerialCx<'_>, pod: &PodInfo) -> Result<PreFilterResult, Rejection> {
        let evaluator_cx = EvaluatorCx { world: cx.world, states: cx.states };
        let claims = self.slots.claims.claims_of_pod(evaluator_cx, pod)?;
        if claims.is_empty() {
            return Ok(PreFilterResult::Skip);
        }
        let cache = self.cache(evaluator_cx)?;
        let (resolved, delayed) = self.slots.claims.resolve(evaluator_cx, cache, &claims)?;
        let state = PodState {
            claims: Arc::new(compile(resolved, &delayed)),
            delayed: delayed.iter().map(|claim| claim.metadata.name.clone()).collect(),
            binding: bind_volumes::BindingState::default(),
        };
        cx.cycle.set(self.pod, state);
        Ok(PreFilterResult::All)
    }
}

impl Filter for VolumeBinding {
    fn filter(&self, cx: Cx<'_>, _: &PodInfo, node: NodeInfo<'_>) -> Result<(), Rejection> {
        let state = cx.cycle.get(self.pod);
        let state =
            state.ok_or_else(|| Failure::new("reading \"VolumeBinding\" from cycleState"))?;
        let found = self.find(cx, &state.claims, node)?;
        if let Some(rejection) = found.rejection() {
            return Err(rejection);
        }
        if state.claims.has_delayed() {
            cx.cycle.set_for_node(self.volumes, node.row(), PodVolumes::new(found));
        }
        Ok(())
    }
}

impl PreScore for VolumeBinding {
    fn pre_score(
        &self,
        _: SerialCx<'_>,
        _: &PodInfo,
        _: &[NodeInfo<'_>],
    ) -> Result<PreScoreResult, Failure> {
        Ok(if self.scorer.is_some() { PreScoreResult::Ready } else { PreScoreResult::Skip })
    }
}

impl Score for VolumeBinding {
    fn score(&self, cx: Cx<'_>, _: &PodInfo, node: NodeInfo<'_>) -> Result<i64, Failure> {
        let (Some(scorer), Some(state)) = (&self.scorer, cx.cycle.get(self.pod)) else {
            return Ok(0);
        };
        Ok(scorer.score(&state.claims, &self.find(cx, &state.claims, node)?))
    }
}

impl Sign for VolumeBinding {
    fn sign(&self, pod: &PodInfo) -> Result<Vec<SignFragment>, UnsignablePod> {
        Ok(vec![volumes_fragment(pod)])
    }
}

/// The pod's claims, or why PreFilter rejects it.
type Key = Result<PodClaims, ClaimError>;

impl Incremental for VolumeBinding {
    type Key = Key;

    fn key(&self, cx: EvaluatorCx<'_>, pod: &PodInfo) -> Option<Key> {
        let claims = match self.slots.claims.claims_of_pod(cx, pod) {
            Ok(claims) => claims,
            Err(error) => return Some(Err(error)),
        };
        let resolved = self.slots.claims.resolve(cx, self.cache(cx).ok()?, &claims);
        Some(resolved.map(|(resolved, _)| resolved))
    }

    fn key_is_of_spec(&self, spec: &SharedPodSpec) -> bool {
        spec.volumes.is_empty()
    }

    fn key_reads_resources(&self) -> bool {
        false
    }

    fn prepare(&self, cx: &mut PrepareCx<'_>, key: &Key) -> PrepareResult {
        match key {
            Err(error) => PrepareResult::Rejected(error.clone().into()),
            Ok(claims) => VolumeBindingEvaluator::prepare(self, cx, claims),
        }
    }
}

impl ObjectEventHandler for VolumeBinding {
    fn on_object_change(&self, mut cx: SerialCx<'_>, change: &ObjectChange) {
        fn both<T: 'static>(change: &ObjectChange) -> [Option<&T>; 2] {
            [&change.old, &change.new].map(|it| it.as_ref()?.decoded_as())
        }
        let Some(cache) = cx.states.get_mut(self.cache) else { return };
        let concerned = match change.kind.resource.as_str() {
            "persistentvolumeclaims" => {
                let [old, new] = both::<PersistentVolumeClaim>(change);
                cache.change_claim(old, new);
                return;
            }
            "persistentvolumes" => {
                let [old, new] = both::<PersistentVolume>(change);
                cache.change_volume(old, new)
            }
            "csistoragecapacities" => {
                let [old, new] = both::<CsiStorageCapacity>(change);
                cache.change_capacity(old, new)
            }
            _ => return,
        };
        self.announce(&mut cx, concerned.into_iter().flatten());
    }
}

#[cfg(test)]
mod tests;
