//! The configuration that the simulated scheduler runs with.

use std::cmp::Ordering;
use std::sync::Arc;
use std::time::Duration;

use loadmaster_api::{Pod, Str};
use loadmaster_engine::Profile;
use loadmaster_engine::engine::{EngineConfiguration, EngineOptions};
use loadmaster_framework::QueuedPodInfo;

use super::reference_model::has_scheduler_name;
use crate::fake_api_server::WatchedKind;

/// The profiles and backoffs of the engine, and what its decisions are checked with.
#[derive(Default)]
pub(super) struct RunConfiguration {
    /// At least one.
    pub profiles: Vec<RunProfile>,
    pub initial_backoff: Duration,
    pub max_backoff: Duration,
    /// In runs whose configuration is replaced.
    pub reloaded: Option<ReloadedParts>,
}

pub(super) struct RunProfile {
    /// The profile of the engine.
    pub profile: Arc<Profile>,
    /// The same without extenders, and without plugins that panic or whose decisions have invariants of their own.
    pub checked: Arc<Profile>,
    /// The arguments of the plugin that counts: its state begins anew when they change.
    pub counter_args: u64,
}

/// What the invariants of reloads read of a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReloadedParts {
    pub order: QueueOrder,
    pub has_extenders: bool,
    /// An extender binds pods.
    pub has_binder: bool,
}

/// The order of QueueSort.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QueueOrder {
    /// PrioritySort.
    Priority,
    /// By name, the last first.
    Name,
    /// That of gangs, or of a plugin that panics: not checked.
    Other,
}

impl QueueOrder {
    /// `Less` if `a` is scheduled before `b`; `None` if that is not known.
    pub fn compare(self, a: &QueuedPodInfo, b: &QueuedPodInfo) -> Option<Ordering> {
        match self {
            QueueOrder::Priority => {
                let priority = |info: &QueuedPodInfo| info.pod.template.priority();
                Some(priority(b).cmp(&priority(a)).then(a.queued.cmp(&b.queued)))
            }
            QueueOrder::Name => Some(b.pod.name.cmp(&a.pod.name)),
            QueueOrder::Other => None,
        }
    }
}

impl RunConfiguration {
    /// The configuration of a run in which it is not replaced.
    pub fn of_profile(profile: Arc<Profile>, checked: Arc<Profile>) -> RunConfiguration {
        let EngineOptions { initial_backoff, max_backoff, .. } = EngineOptions::default();
        let profile = RunProfile { profile, checked, counter_args: 0 };
        RunConfiguration { profiles: vec![profile], initial_backoff, max_backoff, reloaded: None }
    }

    /// The profile that is responsible for a pod.
    pub fn profile_of(&self, pod: &Pod) -> Option<&RunProfile> {
        let mut profiles = self.profiles.iter();
        profiles.find(|it| has_scheduler_name(pod, &it.profile.scheduler_name))
    }

    /// Whether a profile has this plugin.
    pub fn has_plugin(&self, name: &str) -> bool {
        self.profiles.iter().any(|it| it.profile.plugins.iter().any(|it| it.name == name))
    }

    /// Whether an extender may reject pods.
    pub fn has_extenders(&self) -> bool {
        self.profiles.iter().any(|it| !it.profile.extenders.is_empty())
    }

    /// Whether both have the same profiles, with the same arguments of this plugin.
    pub fn has_same_plugin(&self, other: &RunConfiguration, plugin: &str) -> bool {
        let args = |configuration: &RunConfiguration| {
            let profiles = configuration.profiles.iter().map(|it| &it.profile);
            let args = profiles.map(|profile| {
                let plugin = profile.plugins.iter().find(|it| it.name == plugin);
                (profile.scheduler_name.clone(), plugin.map(|it| it.args.clone()))
            });
            args.collect::<Vec<_>>()
        };
        args(self) == args(other)
    }

    /// The kinds that every scheduler watches, and those that the test plugins of these profiles watch.
    pub fn test_kinds(&self) -> Vec<WatchedKind> {
        let is_watched = |kind: &WatchedKind| {
            let object = kind.object_ref(&Str::default());
            let mut watches = self.profiles.iter().flat_map(|it| &it.profile.watches);
            !kind.is_custom() || watches.any(|watch| watch.kind.matches(&object))
        };
        WatchedKind::ALL.into_iter().filter(is_watched).collect()
    }

    pub fn engine_profiles(&self) -> Vec<Arc<Profile>> {
        self.profiles.iter().map(|it| it.profile.clone()).collect()
    }

    pub fn engine_configuration(&self) -> EngineConfiguration {
        EngineConfiguration {
            profiles: self.engine_profiles(),
            initial_backoff: self.initial_backoff,
            max_backoff: self.max_backoff,
            yaml: String::new(),
        }
    }
}
