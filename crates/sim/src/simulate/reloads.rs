//! Reloads in a simulation: another configuration replaces that of the running engine at random moments, with pods in the queue, at Permit, in
//! PreBind and Bind, and while an attempt waits for an extender.
//!
//! | module | |
//! | --- | --- |
//! | `configurations` | random configurations: weights, arguments, plugins, QueueSort, extenders, profiles and backoffs |
//! | `counting_plugin` | a test plugin in every profile, which counts pods, nodes and reservations |
//! | `ordering_plugin` | a test plugin that orders the queue by name |
//! | `model` | what the engine must know and do under the configuration |

mod configurations;
mod counting_plugin;
mod model;
mod ordering_plugin;

use std::sync::Arc;

use loadmaster_engine::world_loader::DefaultProfileError;
use loadmaster_framework::Registry;
use loadmaster_stdx::Rng;
use serde_json::Value;

use super::InjectedBug;
use super::run_configuration::RunConfiguration;

pub(super) use configurations::ConfigurationParts;
use configurations::{ConfigurationSource, DrawnConfiguration, SCHEDULER_NAMES};
pub(super) use model::{CountingModel, check_counts, check_pending_pods, check_popped, first_pods};

/// The reloads of a run.
pub(super) struct Reloads {
    rng: Rng,
    source: ConfigurationSource,
    last: DrawnConfiguration,
}

/// A configuration for the engine.
pub(super) struct Reload {
    pub configuration: Arc<RunConfiguration>,
    /// What the engine receives; `None` if the injected bug drops it.
    pub given: Option<Arc<RunConfiguration>>,
}

impl Reloads {
    /// With the first configuration.
    pub fn new(
        rng: Rng,
        registry: &Registry,
        parts: ConfigurationParts,
    ) -> Result<(Reloads, Arc<RunConfiguration>), DefaultProfileError> {
        let source = ConfigurationSource::new(registry, parts);
        let mut reloads = Reloads { rng, source, last: DrawnConfiguration::default() };
        reloads.last = reloads.source.draw(&mut reloads.rng);
        let first = Arc::new(reloads.source.build(&reloads.last)?);
        Ok((reloads, first))
    }

    /// Whether the configuration is replaced now.
    pub fn is_due(&mut self) -> bool {
        self.rng.one_in(24)
    }

    /// Whether it is replaced once more when the faults have ended. From then on gangs are scheduled in their order: in another one they may
    /// take each other's place for ever.
    pub fn ends_with_reload(&mut self) -> bool {
        let needs_order = !self.source.has_order_of_gangs(&self.last);
        self.source.keep_order_of_gangs();
        self.rng.one_in(2) || needs_order
    }

    /// The next configuration; sometimes it is the same as before.
    pub fn next(&mut self, bug: Option<InjectedBug>) -> Result<Reload, DefaultProfileError> {
        let next = match self.rng.below(8) {
            0 => self.last.clone(),
            1 | 2 => self.source.draw(&mut self.rng),
            _ => self.source.change(&mut self.rng, &self.last),
        };
        let configuration = Arc::new(self.source.build(&next)?);
        let given = match bug {
            Some(InjectedBug::LostReload) => None,
            Some(
                bug @ (InjectedBug::MixedReload
                | InjectedBug::LostPluginState
                | InjectedBug::KeptOrder),
            ) => Some(Arc::new(self.source.build(&next.altered(bug, &self.last))?)),
            _ => Some(configuration.clone()),
        };
        self.last = next;
        Ok(Reload { configuration, given })
    }

    /// Gives the pods of a template to one of the profiles.
    pub fn set_scheduler_name(rng: &mut Rng, manifest: &mut Value) {
        manifest["spec"]["schedulerName"] = (*rng.pick(&SCHEDULER_NAMES)).into();
    }
}
