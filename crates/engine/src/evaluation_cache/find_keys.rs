//! The keys of a pod: those of a pod that differs from it in nothing that they read, or computed.

use loadmaster_framework::incremental::PrepareCx;
use loadmaster_framework::world::KeyVersion;
use loadmaster_framework::{EvaluatorCx, Failure, PluginStates, PodInfo, PodTemplate, World};
use smallvec::SmallVec;

use super::prepared_key::PreparedKey;
use super::{EvaluationCache, KeyId, SPECS_MAX};
use crate::combination_id::CombinationId;
use crate::evaluate::evaluator_part::PluginUsage;
use crate::guard::{self, ExtensionPoint};
use crate::profile::Profile;

impl EvaluationCache {
    /// The keys of a pod that differs from those with this template at most in requests, limits and labels that no key reads.
    pub(super) fn keys_of_similar_pod(
        &mut self,
        cx: EvaluatorCx<'_>,
        template: &PodTemplate,
        version: KeyVersion,
    ) -> Option<Vec<KeyId>> {
        let pod = self.by_labels.get(template, version)?;
        let cached = self.cached.get_mut(pod.combination.0)?;
        cached.is_valid(cx).then(|| cached.keys.to_vec())
    }

    /// Finds or prepares the evaluation of a pod's keys, of which those that do not depend on requests and limits are these, if they are
    /// known.
    pub(super) fn find_by_keys(
        &mut self,
        profile: &Profile,
        world: &mut World,
        states: &PluginStates,
        pod: &PodInfo,
        known: Option<Vec<KeyId>>,
    ) -> Result<(CombinationId, bool), Failure> {
        let (keys, found) = match known {
            None => self.find_all_keys(profile, world, states, pod)?,
            Some(mut keys) => {
                for (at, key) in keys.iter_mut().enumerate() {
                    if self.usages[at].key_reads_resources {
                        (*key, _) = self.key_of(profile, world, states, pod, at)?;
                    }
                }
                let found = self.valid_combination(EvaluatorCx { world, states }, &keys);
                (keys, found)
            }
        };
        Ok(match found {
            Some(id) => (id, false),
            None => (self.prepare_combination(profile, world, keys), true),
        })
    }

    /// All keys of a pod, of which those that depend on the spec alone may be known, and their cached combination, if it is up to date.
    fn find_all_keys(
        &mut self,
        profile: &Profile,
        world: &mut World,
        states: &PluginStates,
        pod: &PodInfo,
    ) -> Result<(Vec<KeyId>, Option<CombinationId>), Failure> {
        let spec = pod.template.spec.id();
        let known = self.by_spec.get(&spec).cloned().unwrap_or_default();
        let mut keys = Vec::with_capacity(self.usages.len());
        let mut of_spec = SmallVec::<[Option<KeyId>; 16]>::new();
        for at in 0..self.usages.len() {
            let (key, is_of_spec) = match known.get(at) {
                Some(Some(key)) => (*key, true),
                _ => self.key_of(profile, world, states, pod, at)?,
            };
            keys.push(key);
            of_spec.push(is_of_spec.then_some(key));
        }
        let mut found = self.valid_combination(EvaluatorCx { world, states }, &keys);
        if found.is_none() && !known.is_empty() {
            // The keys that were taken over may not be valid any more.
            for (at, of_spec) in of_spec.iter_mut().enumerate() {
                if let Some(key) = of_spec {
                    (*key, _) = self.key_of(profile, world, states, pod, at)?;
                    keys[at] = *key;
                }
            }
            found = self.valid_combination(EvaluatorCx { world, states }, &keys);
        }
        if *known != *of_spec {
            if self.by_spec.len() >= SPECS_MAX {
                self.by_spec.clear();
            }
            self.by_spec.insert(spec, of_spec.as_slice().into());
        }
        Ok((keys, found))
    }

    /// The id of a pod's key for the plugin at this position in `usages`, and whether it depends on the spec alone. The plugin prepares an
    /// evaluator if the key is new or its evaluator is not valid any more.
    fn key_of(
        &mut self,
        profile: &Profile,
        world: &mut World,
        states: &PluginStates,
        pod: &PodInfo,
        at: usize,
    ) -> Result<(KeyId, bool), Failure> {
        let PluginUsage { plugin, whole, .. } = self.usages[at];
        let Some(incremental) = profile.plugins[plugin].incremental.as_ref().filter(|_| whole)
        else {
            return Ok((KeyId::PER_NODE, true));
        };
        let last = self.last_keys[at].as_ref();
        let key = guard::catch_plugin_panic(|| {
            guard::set_current_plugin(plugin, ExtensionPoint::Prepare);
            let is_of_spec = incremental.any_key_is_of_spec(&pod.template.spec);
            let last = last.map(|(key, _)| key);
            (incremental.any_key(EvaluatorCx { world, states }, pod, last), is_of_spec)
        });
        let (key, is_of_spec) = key.map_err(|caught| caught.record(profile).1)?;
        let Some(key) = key else { return Ok((KeyId::PER_NODE, is_of_spec)) };
        let last = last.filter(|(last, _)| last.is_clone_of(&key)).map(|(_, id)| *id);
        if let Some(id) = last.or_else(|| self.key_ids[plugin].get(&key).copied())
            && let Some(known) = self.prepared.get(id.0)
            && known.is_valid(EvaluatorCx { world, states })
        {
            self.last_keys[at] = Some((key, id));
            return Ok((id, is_of_spec));
        }
        let mut counters = Vec::new();
        let result = guard::catch_plugin_panic(|| {
            guard::set_current_plugin(plugin, ExtensionPoint::Prepare);
            let mut cx = PrepareCx::new(world, states);
            let result = incremental.prepare_any(&mut cx, &key);
            counters = cx.into_counters();
            result
        });
        let result = result.map_err(|caught| caught.record(profile).1)?.into();
        let prepared_at = world.next_change_seq();
        let prepared =
            PreparedKey { plugin, key: key.clone(), result, counters, prepared_at, users: 0 };
        let serial = self.next_serial();
        let id = KeyId(self.prepared.insert(serial, prepared));
        // Combinations with an evaluator that is not valid any more keep the old id until they are looked up.
        self.key_ids[plugin].insert(key.clone(), id);
        self.last_keys[at] = Some((key, id));
        Ok((id, is_of_spec))
    }
}
