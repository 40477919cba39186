//! The profiles of an engine: those of the running configuration, and those of earlier ones that pods in flight finish under.
//!
//! Each profile has an index of its own that is never used again, so that a pod in flight, a reply to a call or a metric means the profile
//! under which it began. A replaced profile is dropped when nothing uses it any more.
//!
//! The state of a plugin that a new configuration leaves unchanged (same profile, name and arguments) moves to the new profile. The old
//! profile borrows it for the calls that its last pods need ([`Profiles::with_states`]), so that there is one such state at any time.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Index, IndexMut, Range};
use std::sync::Arc;

use loadmaster_framework::{PluginStates, World};
use loadmaster_stdx::Rng;

use crate::plugin_events::Receivers;
use crate::profile::{Profile, ProfilePlugin};
use crate::queue::ProfileIdx;
use crate::scheduler::Scheduler;

/// A profile with the scheduler that decides by it.
pub(crate) struct ProfileScheduler {
    pub profile: Arc<Profile>,
    pub scheduler: Scheduler,
    /// The number of its configuration.
    pub configuration: u64,
    /// It belongs to an earlier configuration: it only finishes pods in flight.
    pub is_replaced: bool,
    /// Plugins whose states are in another profile now.
    moved: Vec<MovedState>,
    moved_names: Vec<&'static str>,
    /// For each plugin, the number of the configuration with which its state began.
    since: Vec<(&'static str, u64)>,
}

/// The states of a plugin that moved to another profile.
struct MovedState {
    plugin: &'static str,
    own: Range<usize>,
    /// The profile that has them, and where.
    holder: usize,
    theirs: Range<usize>,
}

impl ProfileScheduler {
    /// The plugins that are told of changes, and their states.
    pub fn receivers(&mut self) -> (Receivers<'_>, &mut PluginStates) {
        let receivers = Receivers::all_except(&self.profile, &self.moved_names);
        (receivers, self.scheduler.plugin_states_mut())
    }

    /// The same, but only plugins whose states began with a later configuration than this one.
    pub fn receivers_since(
        &mut self,
        configuration: u64,
    ) -> (Vec<Receivers<'_>>, &mut PluginStates) {
        let later = self
            .since
            .iter()
            .filter(|(name, since)| *since > configuration && !self.moved_names.contains(name));
        let receivers = later.map(|(name, _)| Receivers::only(&self.profile, name)).collect();
        (receivers, self.scheduler.plugin_states_mut())
    }

    fn since_of(&self, plugin: &str) -> u64 {
        let known = self.since.iter().find(|(name, _)| *name == plugin);
        known.map_or(self.configuration, |(_, since)| *since)
    }

    /// Whether the state of this plugin is in another profile.
    pub fn has_moved(&self, plugin: &str) -> bool {
        self.moved_names.contains(&plugin)
    }
}

/// All profiles, by index.
#[derive(Default)]
pub(crate) struct Profiles {
    by_index: BTreeMap<usize, ProfileScheduler>,
    /// The names of all profiles that ever were, by index.
    names: Vec<String>,
    /// The number of the running configuration: 0 is the first.
    configuration: u64,
    /// What the schedulers of earlier configurations reported.
    past_mismatches: Vec<String>,
}

impl Profiles {
    /// The profiles of the running configuration.
    pub fn active(&self) -> impl Iterator<Item = &ProfileScheduler> {
        self.by_index.values().filter(|it| !it.is_replaced)
    }

    /// All profiles, also those that only finish pods in flight.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut ProfileScheduler> {
        self.by_index.values_mut()
    }

    /// The indices of all profiles.
    pub fn indices(&self) -> Vec<usize> {
        self.by_index.keys().copied().collect()
    }

    /// The profile of the running configuration with this schedulerName.
    pub fn active_index(&self, scheduler_name: &str) -> Option<ProfileIdx> {
        let mut all = self.by_index.iter().filter(|(_, it)| !it.is_replaced);
        let (at, _) = all.find(|(_, it)| it.profile.scheduler_name == scheduler_name)?;
        Some(ProfileIdx(*at as u32))
    }

    /// The schedulerName of a profile, even of one that was dropped.
    pub fn name(&self, index: ProfileIdx) -> &str {
        self.names.get(index.0 as usize).map_or("", String::as_str)
    }

    /// Whether a profile belongs to an earlier configuration.
    pub fn is_replaced(&self, index: ProfileIdx) -> bool {
        self.by_index.get(&(index.0 as usize)).is_none_or(|it| it.is_replaced)
    }

    /// Whether there are profiles of earlier configurations.
    pub fn has_replaced(&self) -> bool {
        self.by_index.values().any(|it| it.is_replaced)
    }

    /// The number of the running configuration.
    pub fn configuration(&self) -> u64 {
        self.configuration
    }

    /// The number of the earliest configuration that is still used.
    pub fn earliest_configuration(&self) -> u64 {
        let all = self.by_index.values().map(|it| it.configuration);
        all.min().unwrap_or(self.configuration)
    }

    /// What the schedulers of all configurations reported, in order.
    pub fn decision_mismatches(&self) -> impl Iterator<Item = &String> {
        let running = self.by_index.values().filter(|it| !it.is_replaced);
        self.past_mismatches.iter().chain(running.flat_map(|it| it.scheduler.decision_mismatches()))
    }

    /// The profile that has the state of a plugin of this profile.
    pub fn holder_of(&self, index: usize, plugin: &str) -> usize {
        let known = self.by_index.get(&index);
        let moved = known.and_then(|it| it.moved.iter().find(|moved| moved.plugin == plugin));
        moved.map_or(index, |moved| moved.holder)
    }

    /// Adds the profiles of the first configuration.
    pub fn start(&mut self, profiles: Vec<Arc<Profile>>, verify_every: u64, rng: &Rng) {
        for profile in profiles {
            let rng = rng.split(&profile.scheduler_name);
            self.push(Scheduler::new(profile.clone(), rng), profile, verify_every);
        }
    }

    /// Replaces the profiles by those of another configuration. States of unchanged plugins move. Returns the plugins whose states begin
    /// anew, by profile.
    pub fn replace(
        &mut self,
        profiles: Vec<Arc<Profile>>,
        verify_every: u64,
        rng: &Rng,
        world: &mut World,
    ) -> Vec<(usize, &'static str)> {
        self.configuration += 1;
        let before: Vec<usize> =
            self.by_index.iter().filter(|(_, it)| !it.is_replaced).map(|(at, _)| *at).collect();
        for at in &before {
            self[*at].is_replaced = true;
            let mismatches = self[*at].scheduler.retire(world);
            self.past_mismatches.extend(mismatches);
        }
        let mut fresh = Vec::new();
        for profile in profiles {
            // A profile that was removed and is added again while pods finish under it is not lost either.
            let old = self.newest_with_name(&profile.scheduler_name);
            let scheduler = match old {
                Some(old) => self[old].scheduler.successor(profile.clone()),
                None => Scheduler::new(profile.clone(), rng.split(&profile.scheduler_name)),
            };
            let new = self.push(scheduler, profile.clone(), verify_every);
            let moved = old.map(|old| self.move_states(old, new)).unwrap_or_default();
            let plugins = profile.plugins.iter().map(|plugin| plugin.name);
            fresh.extend(plugins.filter(|name| !moved.contains(name)).map(|name| (new, name)));
        }
        fresh
    }

    /// The newest profile with this schedulerName, replaced or not.
    fn newest_with_name(&self, scheduler_name: &str) -> Option<usize> {
        let mut all = self.by_index.iter().rev();
        all.find(|(_, it)| it.profile.scheduler_name == scheduler_name).map(|(at, _)| *at)
    }

    fn push(
        &mut self,
        mut scheduler: Scheduler,
        profile: Arc<Profile>,
        verify_every: u64,
    ) -> usize {
        scheduler.set_verification_interval(verify_every);
        let index = self.names.len();
        self.names.push(profile.scheduler_name.clone());
        let since =
            profile.plugins.iter().map(|plugin| (plugin.name, self.configuration)).collect();
        let added = ProfileScheduler {
            profile,
            scheduler,
            configuration: self.configuration,
            is_replaced: false,
            moved: Vec::new(),
            moved_names: Vec::new(),
            since,
        };
        self.by_index.insert(index, added);
        index
    }

    /// Moves the states of the plugins that are equal in both profiles. Returns their names.
    fn move_states(&mut self, old: usize, new: usize) -> Vec<&'static str> {
        let is_same = |a: &ProfilePlugin, b: &ProfilePlugin| {
            a.name == b.name && a.args == b.args && a.states.len() == b.states.len()
        };
        let (from, to) = (self[old].profile.clone(), self[new].profile.clone());
        let mut names = Vec::new();
        // The profile that has a moved state of a removed profile may be gone.
        let has_it = |plugin: &&ProfilePlugin| !self[old].has_moved(plugin.name);
        for plugin in from.plugins.iter().filter(has_it).collect::<Vec<_>>() {
            let Some(same) = to.plugins.iter().find(|it| is_same(it, plugin)) else { continue };
            let (own, theirs) = (plugin.states.clone(), same.states.clone());
            // Earlier profiles that borrow this state find it in the new one from now on.
            let borrowers = self.by_index.values_mut().flat_map(|it| &mut it.moved);
            for moved in borrowers.filter(|it| it.holder == old && it.plugin == plugin.name) {
                (moved.holder, moved.theirs) = (new, theirs.clone());
            }
            let moved = MovedState { plugin: plugin.name, own, holder: new, theirs };
            let since = self[old].since_of(plugin.name);
            self[new].since.iter_mut().filter(|it| it.0 == plugin.name).for_each(|it| it.1 = since);
            self[old].moved.push(moved);
            self[old].moved_names.push(plugin.name);
            names.push(plugin.name);
        }
        self.swap_moved(old, Some(new));
        names
    }

    /// Calls plugins of a profile that change their states, wherever these are.
    pub fn with_states<R>(
        &mut self,
        index: ProfileIdx,
        work: impl FnOnce(&Profile, &mut PluginStates) -> R,
    ) -> R {
        let at = index.0 as usize;
        self.swap_moved(at, None);
        let profile_scheduler = &mut self[at];
        let profile = profile_scheduler.profile.clone();
        let done = work(&profile, profile_scheduler.scheduler.plugin_states_mut());
        self.swap_moved(at, None);
        done
    }

    /// Swaps the states that moved (to this profile, or to any) with those in their place.
    fn swap_moved(&mut self, index: usize, to: Option<usize>) {
        if self[index].moved.is_empty() {
            return;
        }
        let moved = std::mem::take(&mut self[index].moved);
        let mut own = std::mem::take(self[index].scheduler.plugin_states_mut());
        for it in moved.iter().filter(|it| to.is_none_or(|to| to == it.holder)) {
            let theirs = self[it.holder].scheduler.plugin_states_mut();
            own.swap(it.own.clone(), theirs, it.theirs.clone());
        }
        *self[index].scheduler.plugin_states_mut() = own;
        self[index].moved = moved;
    }

    /// Drops the profiles of earlier configurations that nothing uses: neither one of these pods, nor another profile.
    pub fn drop_unused(&mut self, used: &BTreeSet<usize>, world: &mut World) {
        let is_used = |at: usize, it: &ProfileScheduler| !it.is_replaced || used.contains(&at);
        let kept = self.by_index.iter().filter(|(at, it)| is_used(**at, it));
        let mut kept: BTreeSet<usize> = kept.map(|(at, _)| *at).collect();
        let holders = kept.iter().flat_map(|at| &self[*at].moved).map(|moved| moved.holder);
        kept.extend(holders.collect::<Vec<_>>());
        let dropped: Vec<ProfileScheduler> =
            self.by_index.extract_if(.., |at, _| !kept.contains(at)).map(|(_, it)| it).collect();
        for sums in dropped.iter().flat_map(|it| &it.profile.pod_sums) {
            let mut others = self.by_index.values().flat_map(|it| &it.profile.pod_sums);
            if !others.any(|other| other.is_same(sums)) {
                world.forget_pod_sums(sums);
            }
        }
    }
}

impl Index<usize> for Profiles {
    type Output = ProfileScheduler;
    fn index(&self, at: usize) -> &ProfileScheduler {
        &self.by_index[&at]
    }
}

impl IndexMut<usize> for Profiles {
    fn index_mut(&mut self, at: usize) -> &mut ProfileScheduler {
        #[expect(clippy::expect_used, reason = "the same contract as Index")]
        self.by_index.get_mut(&at).expect("a profile that is used is not dropped")
    }
}
