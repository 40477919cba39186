//! What the queue asks the plugins of all profiles: PreEnqueue, QueueSort, and the cluster events that they registered.

use std::cmp::Ordering;

use loadmaster_framework::cluster_event::ClusterEventWithHint;
use loadmaster_framework::{
    ClusterEvent, Cx, CycleState, PluginStates, PodInfo, QueueSort, QueuedPodInfo, World,
};

use super::Profiles;
use crate::queue::{PluginIdx, PreEnqueueRejection, ProfileIdx, QueuePlugins};

/// Gives the queue access to the plugins of all profiles.
pub(crate) struct PluginHandle<'a> {
    profiles: &'a Profiles,
    registrations: &'a EventRegistrations,
    world: &'a World,
    /// The QueueSort plugin with its states.
    sort: Option<(&'a dyn QueueSort, &'a PluginStates)>,
}

impl<'a> PluginHandle<'a> {
    /// With the world that plugins see.
    pub fn new(
        profiles: &'a Profiles,
        registrations: &'a EventRegistrations,
        world: &'a World,
    ) -> Self {
        let sort = profiles.active().find_map(|it| {
            let member = it.profile.queue_sort.first()?;
            Some((&*member.point, it.scheduler.plugin_states()))
        });
        PluginHandle { profiles, registrations, world, sort }
    }
}

/// The cluster events that plugins of any profile registered.
#[derive(Default)]
pub(crate) struct EventRegistrations {
    /// Some plugin registered no events, which means all events.
    everything: bool,
    events: Vec<ClusterEvent>,
}

impl EventRegistrations {
    /// Those of these profiles.
    pub fn of(profiles: &Profiles) -> EventRegistrations {
        let mut registrations = EventRegistrations::default();
        for plugin in profiles.active().flat_map(|it| &it.profile.plugins) {
            let Some(events) = &plugin.events else {
                registrations.everything = true;
                continue;
            };
            for known in events {
                if !registrations.events.contains(&known.event) {
                    registrations.events.push(known.event.clone());
                }
            }
        }
        registrations
    }
}

impl QueuePlugins for PluginHandle<'_> {
    fn pre_enqueue(
        &self,
        profile_idx: ProfileIdx,
        pod: &PodInfo,
        first: Option<PluginIdx>,
    ) -> Result<(), PreEnqueueRejection> {
        let profile_scheduler = &self.profiles[profile_idx.0 as usize];
        let cycle = CycleState::default();
        let cx = Cx {
            world: self.world,
            cycle: &cycle,
            states: profile_scheduler.scheduler.plugin_states(),
        };
        let is_first = |plugin: usize| first == Some(PluginIdx(plugin as u32));
        let members = &profile_scheduler.profile.pre_enqueue;
        let ordered = members
            .iter()
            .filter(|member| is_first(member.plugin))
            .chain(members.iter().filter(|member| !is_first(member.plugin)));
        for member in ordered {
            member.point.pre_enqueue(cx, pod).map_err(|rejection| PreEnqueueRejection {
                plugin: PluginIdx(member.plugin as u32),
                rejection,
            })?;
        }
        Ok(())
    }

    fn events(
        &self,
        profile_idx: ProfileIdx,
        plugin: PluginIdx,
    ) -> Option<&[ClusterEventWithHint]> {
        let plugin =
            self.profiles[profile_idx.0 as usize].profile.plugins.get(plugin.0 as usize)?;
        plugin.events.as_deref()
    }

    fn is_event_of_interest(&self, event: &ClusterEvent) -> bool {
        self.registrations.everything
            || self.registrations.events.iter().any(|known| known.matches(event))
    }

    /// By arrival if no profile has a QueueSort plugin.
    fn compare(&self, a: &QueuedPodInfo, b: &QueuedPodInfo) -> Ordering {
        let Some((sort, states)) = self.sort else { return a.queued.cmp(&b.queued) };
        let cycle = CycleState::default();
        sort.compare(Cx { world: self.world, cycle: &cycle, states }, a, b)
    }

    fn sort_key(&self, pod: &QueuedPodInfo) -> Option<[i64; 2]> {
        self.sort?.0.sort_key(pod)
    }

    fn world(&self) -> &World {
        self.world
    }

    fn states(&self, profile_idx: ProfileIdx) -> &PluginStates {
        self.profiles[profile_idx.0 as usize].scheduler.plugin_states()
    }
}
