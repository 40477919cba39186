//! What a run begins with.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use loadmaster_api::Timestamp;
use loadmaster_engine::engine::EngineOptions;
use loadmaster_engine::world_loader::DefaultProfileError;
use loadmaster_engine::{Engine, Now};
use loadmaster_stdx::{ErrorChain, HashSeed, Rng};

use super::{NEVER, Runner, START, START_WALL};
use crate::fake_api_server::{FakeApiServer, WatchedKind};
use crate::simulate::fake_extenders::FakeExtenders;
use crate::simulate::faulty_network::FaultyNetwork;
use crate::simulate::gangs::{self, GangModel, GangWorkload};
use crate::simulate::out_of_tree::{self, OutOfTreeRun, PodTemplateChange};
use crate::simulate::plugin_workload::{self, PluginWorkload};
use crate::simulate::quotas::{self, QuotaWorkload};
use crate::simulate::reference_model::ReferenceModel;
use crate::simulate::reloads::{ConfigurationParts, Reloads};
use crate::simulate::run_configuration::RunConfiguration;
use crate::simulate::trace::{Trace, TraceLog};
use crate::simulate::volumes::{VolumeKind, VolumeModel, VolumeWorkload};
use crate::simulate::workload::{OptionalWorkloads, Workload};
use crate::simulate::{
    SimulatedSchedulerConfig, SimulationOptions, SimulationReport, holding_plugin,
    panicking_plugin, plugin_calls, watching_plugin,
};

impl<'a> Runner<'a> {
    /// A run before its first step: what it has is drawn from the seed.
    pub(super) fn new(
        setup: &'a SimulatedSchedulerConfig,
        options: SimulationOptions,
        log: TraceLog<'a>,
    ) -> Result<Runner<'a>, String> {
        let rng = Rng::new(options.seed);
        let mut api_server = FakeApiServer::default();
        let change = setup.out_of_tree.as_ref().and_then(|it| it.pod_template.as_deref());
        let (volume_rng, has_volumes) = draw(&rng, "volumes", setup.volume_runs);
        let (gang_rng, has_gangs) = draw(&rng, "gangs", setup.gang_runs);
        let (quota_rng, has_quotas) = draw(&rng, "quotas", setup.quota_runs);
        let (reload_rng, has_reloads) = draw(&rng, "reloads", setup.reload_runs);
        // Plugins of several profiles do not know what the others have assumed.
        let may_have_profiles = !has_volumes && !has_gangs && !has_quotas;
        let change: Option<&PodTemplateChange> = match has_reloads && may_have_profiles {
            true => Some(&Reloads::set_scheduler_name),
            false => change,
        };
        let optional = OptionalWorkloads {
            volumes: has_volumes.then(|| VolumeWorkload::new(volume_rng, &mut api_server)),
            gangs: has_gangs.then(|| GangWorkload::new(gang_rng)),
            quotas: has_quotas.then(|| QuotaWorkload::new(quota_rng, &mut api_server)),
        };
        let workload = Workload::new(rng.split("users"), change, optional, &mut api_server);
        let scheduler_plugins = setup.with_scheduler_plugins.as_ref();
        let scheduler_plugins = scheduler_plugins.and_then(|it| it.profile(has_gangs, has_quotas));
        let mut panic_rng = rng.split("panics");
        let panicking = setup.panicking.as_ref().filter(|_| panic_rng.one_in(3));
        let panicking = panicking.filter(|_| scheduler_plugins.is_none());
        let mut extender_rng = rng.split("extenders");
        let may_have_extenders = panicking.is_none() && scheduler_plugins.is_none();
        let with_extenders = (may_have_extenders && !setup.with_extenders.is_empty())
            .then(|| extender_rng.pick(&setup.with_extenders).clone())
            .filter(|_| extender_rng.one_in(3));
        let mut plugin_rng = rng.split("test plugins");
        let is_plain = may_have_extenders && with_extenders.is_none();
        let with_plugins = (is_plain && !setup.with_test_plugins.is_empty())
            .then(|| plugin_rng.pick(&setup.with_test_plugins).clone())
            .filter(|_| plugin_rng.one_in(2));
        let holds_pods = with_plugins.as_deref().is_some_and(plugin_workload::has_holding_plugin);
        // A pod whose PreEnqueue panicked, or that an extender or Permit rejected at random, is requeued by the flush only.
        let is_odd = panicking.is_some() || with_extenders.is_some() || holds_pods;
        let flushes = is_odd || rng.split("flushes").one_in(2);
        let checked = with_plugins.clone().unwrap_or_else(|| setup.profile.clone());
        let profile = scheduler_plugins.cloned().or(with_extenders).or(panicking.cloned());
        let profile = profile.unwrap_or_else(|| checked.clone());
        let has_plugin = |name: &str| {
            with_plugins.as_deref().is_some_and(|it| it.plugins.iter().any(|it| it.name == name))
        };
        let configured = ConfigurationParts {
            panics: panicking.is_some(),
            extenders: !profile.extenders.is_empty(),
            watching: has_plugin(watching_plugin::NAME),
            holding: holds_pods,
            gangs: has_gangs,
            quotas: has_quotas,
        };
        let reloads = has_reloads.then(|| Reloads::new(reload_rng, &setup.registry, configured));
        let (reloads, configuration) = match reloads.transpose().map_err(invalid)? {
            Some((reloads, first)) => (Some(reloads), first),
            None => (None, Arc::new(RunConfiguration::of_profile(profile, checked))),
        };
        panicking_plugin::set_panic_rng(panicking.is_some().then_some(panic_rng));
        holding_plugin::set_hold_rng(holds_pods.then(|| plugin_rng.split("holds")));
        plugin_calls::take_recorded();
        let parts = OptionalParts { volumes: has_volumes, gangs: has_gangs, quotas: has_quotas };
        let mut kinds = match with_plugins {
            _ if has_reloads => configuration.test_kinds(),
            Some(_) => WatchedKind::ALL.to_vec(),
            None if setup.out_of_tree.is_some() => out_of_tree::watched_kinds(&setup.profile),
            None => WatchedKind::BUILT_IN.to_vec(),
        };
        for kind in &kinds {
            if let WatchedKind::Other(kind) = kind {
                api_server.serve_kind(kind.clone());
            }
        }
        kinds.extend(parts.kinds());
        kinds.sort();
        kinds.dedup();
        let out_of_tree = setup.out_of_tree.clone();
        let out_of_tree =
            out_of_tree.map(|it| OutOfTreeRun::new(it, rng.split("out of tree"), &mut api_server));
        let mut run = Runner {
            engine: new_engine(
                &configuration,
                setup,
                flushes,
                options.hash_seed,
                &mut rng.split("engine 0"),
            ),
            flushes,
            plugin_workload: PluginWorkload::new(plugin_rng, with_plugins.is_some()),
            out_of_tree,
            reloads,
            model: parts.new_model(&configuration),
            configurations: vec![configuration],
            reserved_under: BTreeMap::new(),
            setup,
            options,
            rng: rng.split("steps"),
            step: 0,
            now: Now { mono: START, wall: Timestamp(START_WALL) },
            api_server,
            workload,
            network: FaultyNetwork::new(rng.split("network"), kinds),
            extenders: FakeExtenders::new(extender_rng),
            parts,
            gangs: GangModel::default(),
            term: 0,
            trace: Trace::new(log),
            report: SimulationReport::default(),
            affected_pods: BTreeSet::new(),
        };
        run.network.relist_all(START);
        Ok(run)
    }
}

/// A configuration that the simulation drew is invalid.
pub(super) fn invalid(error: DefaultProfileError) -> String {
    format!("invalid configuration: {}", ErrorChain(&error))
}

/// Whether one in so many runs has something, with the random stream of that; 0: none has.
fn draw(rng: &Rng, what: &str, one_in: u64) -> (Rng, bool) {
    let mut rng = rng.split(what);
    let is_drawn = one_in > 0 && rng.one_in(one_in);
    (rng, is_drawn)
}

/// What only some runs have.
#[derive(Clone, Copy)]
pub(super) struct OptionalParts {
    pub volumes: bool,
    pub gangs: bool,
    pub quotas: bool,
}

impl OptionalParts {
    /// The kinds of their objects.
    pub(super) fn kinds(self) -> impl Iterator<Item = WatchedKind> {
        let volumes = self.volumes.then(|| VolumeKind::ALL.map(|kind| kind.watched().clone()));
        let gangs = self.gangs.then(|| gangs::kinds().clone());
        let quotas = self.quotas.then(|| quotas::kind().clone());
        volumes.into_iter().flatten().chain(gangs.into_iter().flatten()).chain(quotas)
    }

    pub(super) fn new_model(self, configuration: &Arc<RunConfiguration>) -> ReferenceModel {
        let mut model = ReferenceModel::default();
        model.handle_configuration(configuration.clone());
        let plugins = &mut model.plugins;
        plugins.volumes = self.volumes.then(VolumeModel::default);
        plugins.has_gangs = self.gangs;
        plugins.has_quotas = self.quotas;
        let name = |kind: WatchedKind| {
            let (group, resource) = kind.group_resource();
            (group.into(), resource.into())
        };
        plugins.awaited_kinds = self.kinds().map(name).collect();
        model
    }
}

pub(super) fn new_engine(
    configuration: &RunConfiguration,
    setup: &SimulatedSchedulerConfig,
    flushes: bool,
    hash_seed: HashSeed,
    engine_rng: &mut Rng,
) -> Engine {
    let options = EngineOptions {
        seed: engine_rng.next_u64(),
        hash_seed,
        initial_backoff: configuration.initial_backoff,
        max_backoff: configuration.max_backoff,
        bind_window: *engine_rng.pick(&[1, 3, 20, 500]),
        max_in_unschedulable: if flushes { Duration::from_secs(300) } else { NEVER },
        verify_every: 1,
        ..EngineOptions::default()
    };
    Engine::new(configuration.engine_profiles(), setup.gates.clone(), options)
}
