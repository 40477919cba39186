//! The keys of pods that differ in labels that no key reads, or in requests and limits.

use std::collections::BTreeSet;
use std::hash::{Hash, Hasher};

use hashbrown::Equivalent;
use loadmaster_api::{Labels, Str};
use loadmaster_framework::template::{SpecId, TemplateId, WithoutResourcesId};
use loadmaster_framework::world::KeyVersion;
use loadmaster_framework::{EvaluatorCx, Failure, PodInfo, PodTemplate};
use loadmaster_stdx::Map;
use smallvec::SmallVec;

use crate::combination_id::CombinationId;
use crate::evaluate::evaluator_part::PluginUsage;
use crate::guard::{self, ExtensionPoint};
use crate::profile::Profile;

/// Number of entries that are remembered at most.
const ENTRIES_MAX: usize = 1 << 16;

/// The combinations of the keys of pods by what they share but for requests and limits
/// ([`loadmaster_framework::template::SharedTemplate::without_resources_id`]), and by the labels that keys read. Pods with labels of their own
/// have a template each, but the labels that distinguish them are in few selectors; of pods with requests of their own, most keys are equal.
#[derive(Default)]
pub(super) struct ByLabels {
    known: Map<WithoutResourcesId, OfTemplates>,
    n_entries: usize,
}

struct OfTemplates {
    /// That of the world in which all of this was computed.
    version: KeyVersion,
    /// The first of these templates.
    first: TemplateId,
    reads: LabelsRead,
    /// By the values of the labels that are read.
    pods: Map<Box<[Option<Str>]>, LastPod>,
    /// The one that was added last: pods of one controller most often have the same values.
    last: Option<(Box<[Option<Str>]>, LastPod)>,
}

/// The last of the pods with equal values of labels.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct LastPod {
    spec: SpecId,
    /// Of its keys.
    pub combination: CombinationId,
}

impl LastPod {
    /// Whether it has the spec of this template, also the requests and limits.
    pub fn has_spec_of(self, template: &PodTemplate) -> bool {
        self.spec == template.spec.id()
    }
}

/// The labels that the keys of pods read.
enum LabelsRead {
    /// There was no second template yet.
    Unknown,
    Any,
    Keys(Box<[Str]>),
}

/// The values that labels have for the keys that are read.
struct Values<'a> {
    keys: &'a [Str],
    labels: &'a Labels,
}

impl<'a> Values<'a> {
    fn iter(&self) -> impl Iterator<Item = Option<&'a Str>> {
        let labels = self.labels;
        self.keys.iter().map(move |key| labels.get(key))
    }
}

/// As the list of them.
impl Hash for Values<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.iter().collect::<SmallVec<[Option<&Str>; 4]>>().hash(state);
    }
}

impl Equivalent<Box<[Option<Str>]>> for Values<'_> {
    fn equivalent(&self, key: &Box<[Option<Str>]>) -> bool {
        self.iter().eq(key.iter().map(Option::as_ref))
    }
}

impl ByLabels {
    /// The last pod in this version of the world with the keys of this template, but for plugins that read requests or limits if its spec
    /// is another one.
    #[inline(never)]
    pub fn get(&self, template: &PodTemplate, version: KeyVersion) -> Option<LastPod> {
        let known = self.known.get(&template.without_resources_id);
        let known = known.filter(|known| known.version == version)?;
        let LabelsRead::Keys(keys) = &known.reads else { return None };
        let values = Values { keys, labels: &template.labels };
        match &known.last {
            Some((last, pod)) if values.equivalent(last) => Some(*pod),
            _ => known.pods.get(&values).copied(),
        }
    }

    /// Remembers the combination of a template. What its keys read is asked only when there is a second template: most pods of a cluster
    /// have one that others have, too.
    pub fn insert<E>(
        &mut self,
        template: &PodTemplate,
        version: KeyVersion,
        combination: CombinationId,
        label_keys: impl FnOnce() -> Result<Option<Vec<Str>>, E>,
    ) -> Result<(), E> {
        if self.n_entries >= ENTRIES_MAX {
            self.clear();
        }
        let new = || OfTemplates {
            version,
            first: template.id,
            reads: LabelsRead::Unknown,
            pods: Map::default(),
            last: None,
        };
        let n_known = self.known.len();
        let known = self.known.entry(template.without_resources_id).or_insert_with(new);
        let mut are_several = known.first != template.id;
        if known.version != version {
            // If there were several templates before, the next pod most often has another one than this one, too.
            are_several = !matches!(known.reads, LabelsRead::Unknown);
            *known = new();
        }
        if are_several && matches!(known.reads, LabelsRead::Unknown) {
            known.reads = match label_keys()? {
                Some(keys) => LabelsRead::Keys(keys.into()),
                None => LabelsRead::Any,
            };
        }
        let mut n_new = 0;
        if let LabelsRead::Keys(keys) = &known.reads {
            let values = Values { keys, labels: &template.labels };
            let pod = LastPod { spec: template.spec.id(), combination };
            match &mut known.last {
                Some((last, known)) if values.equivalent(last) => *known = pod,
                _ => {
                    let values: Box<[_]> = values.iter().map(Option::<&Str>::cloned).collect();
                    known.last = Some((values.clone(), pod));
                    n_new = usize::from(known.pods.insert(values, pod).is_none());
                }
            }
        }
        self.n_entries += self.known.len() - n_known + n_new;
        Ok(())
    }

    pub fn clear(&mut self) {
        self.known.clear();
        self.n_entries = 0;
    }
}

/// The keys of the labels that the keys of pods that differ from this one only in labels depend on; `None` if on any label.
pub(super) fn label_keys(
    usages: &[PluginUsage],
    profile: &Profile,
    cx: EvaluatorCx<'_>,
    pod: &PodInfo,
) -> Result<Option<Vec<Str>>, Failure> {
    let of_plugins = guard::catch_plugin_panic(|| {
        let mut all = BTreeSet::new();
        for PluginUsage { plugin, .. } in usages.iter().filter(|usage| usage.whole) {
            let Some(incremental) = profile.plugins[*plugin].incremental.as_ref() else { continue };
            guard::set_current_plugin(*plugin, ExtensionPoint::Prepare);
            all.extend(incremental.any_label_keys(cx, pod)?);
        }
        Some(all.into_iter().collect())
    });
    of_plugins.map_err(|caught| caught.record(profile).1)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use loadmaster_framework::World;
    use loadmaster_framework::world::KeyVersion;
    use serde_json::{Value, json};

    use super::*;

    fn pod(world: &mut World, labels: Value) -> PodInfo {
        let pod = json!({"metadata": {"name": "pod", "namespace": "a", "labels": labels}});
        world.parse_pod(&serde_json::from_value(pod).unwrap()).unwrap()
    }

    /// Looks up pods in turn, and computes the combination where none is known: one for each value of the label `app`.
    struct Lookups {
        world: World,
        known: ByLabels,
        label_keys: Option<Vec<Str>>,
        n_asked: Cell<u32>,
    }

    impl Lookups {
        fn new(label_keys: Option<Vec<Str>>) -> Lookups {
            let (world, known) = (World::default(), ByLabels::default());
            Lookups { world, known, label_keys, n_asked: Cell::new(0) }
        }

        /// Whether the combination was known.
        fn find(&mut self, app: u64, id: &str) -> bool {
            let labels = json!({"app": app.to_string(), "id": id});
            let template = pod(&mut self.world, labels).template;
            let version = self.world.key_version(&template);
            if let Some(found) = self.known.get(&template, version) {
                assert_eq!(found.combination, CombinationId(app));
                assert!(found.has_spec_of(&template));
                return true;
            }
            let label_keys = || {
                self.n_asked.set(self.n_asked.get() + 1);
                Ok::<_, ()>(self.label_keys.clone())
            };
            self.known.insert(&template, version, CombinationId(app), label_keys).unwrap();
            false
        }
    }

    #[test]
    fn pods_with_equal_values_of_labels_that_are_read_share_a_combination() {
        let mut lookups = Lookups::new(Some(vec!["app".into()]));
        assert!(!lookups.find(1, "a"));
        assert_eq!(lookups.n_asked.get(), 0, "a template alone");
        assert!(!lookups.find(1, "b"));
        assert!(lookups.find(1, "c"));
        assert!(lookups.find(1, "a"));
        assert!(!lookups.find(2, "d"));
        assert!(lookups.find(2, "e"));
        assert!(lookups.find(1, "f"));
        assert_eq!(lookups.n_asked.get(), 1);
    }

    #[test]
    fn all_is_computed_again_when_an_object_changes() {
        let mut lookups = Lookups::new(Some(vec!["app".into()]));
        for id in ["a", "b"] {
            lookups.find(1, id);
        }
        assert!(lookups.find(1, "c"));
        lookups.world.invalidate_keys(&"a".into());
        assert!(!lookups.find(1, "d"));
        assert_eq!(lookups.n_asked.get(), 2, "there were several templates before");
        assert!(lookups.find(1, "e"));
        assert!(!lookups.find(2, "f"));
        assert!(lookups.find(2, "g"));
        assert_eq!(lookups.n_asked.get(), 2);
    }

    #[test]
    fn nothing_is_shared_if_any_label_may_be_read() {
        let mut lookups = Lookups::new(None);
        assert!(["a", "b", "c", "d"].iter().all(|id| !lookups.find(1, id)));
        assert_eq!(lookups.n_asked.get(), 1);
    }

    #[test]
    fn a_failure_is_returned() {
        let mut lookups = Lookups::new(None);
        lookups.find(1, "a");
        let template = pod(&mut lookups.world, json!({})).template;
        let version = KeyVersion::default();
        let inserted = lookups.known.insert(&template, version, CombinationId(1), || Err("no"));
        assert_eq!(inserted, Err("no"));
    }
}
