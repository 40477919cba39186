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
    pods: Vec<PodsWithValues>,
    /// Indices in `pods`, by the values of the labels that are read.
    by_values: Map<Box<[Option<Str>]>, usize>,
    /// The index of those to which a pod was added last: pods of one controller most often have the same values.
    last: usize,
}

/// The pods with equal values of labels.
struct PodsWithValues {
    values: Box<[Option<Str>]>,
    last: KnownPod,
    /// Empty as long as all of them have the same spec.
    by_spec: Map<SpecId, CombinationId>,
}

/// A pod whose keys are known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct KnownPod {
    spec: SpecId,
    /// Of its keys.
    pub combination: CombinationId,
}

impl OfTemplates {
    /// The index in `pods` of those with these values.
    fn position(&self, values: &Values<'_>) -> Option<usize> {
        let last = self.pods.get(self.last)?;
        // Often no label is read, and then there is nothing to compare.
        if values.keys.is_empty() || values.equivalent(&last.values) {
            return Some(self.last);
        }
        self.by_values.get(values).copied()
    }
}

impl PodsWithValues {
    /// A pod with this spec, or the last one.
    fn get(&self, spec: SpecId) -> KnownPod {
        if self.last.spec == spec {
            return self.last;
        }
        let combination = self.by_spec.get(&spec).copied();
        combination.map_or(self.last, |combination| KnownPod { spec, combination })
    }

    /// Adds a pod as the last one; returns the number of entries that this takes.
    fn add(&mut self, pod: KnownPod) -> usize {
        let n_known = self.by_spec.len();
        let KnownPod { spec, combination } = std::mem::replace(&mut self.last, pod);
        if spec != pod.spec {
            self.by_spec.insert(spec, combination);
            self.by_spec.insert(pod.spec, pod.combination);
        }
        self.by_spec.len() - n_known
    }
}

impl KnownPod {
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
    /// A pod in this version of the world with the keys of this template, but for plugins that read requests or limits if its spec is another
    /// one.
    #[inline(never)]
    pub fn get(&self, template: &PodTemplate, version: KeyVersion) -> Option<KnownPod> {
        let known = self.known.get(&template.without_resources_id);
        let known = known.filter(|known| known.version == version)?;
        let LabelsRead::Keys(keys) = &known.reads else { return None };
        let values = Values { keys, labels: &template.labels };
        let pods = known.pods.get(known.position(&values)?)?;
        Some(pods.get(template.spec.id()))
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
            pods: Vec::new(),
            by_values: Map::default(),
            last: 0,
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
            let pod = KnownPod { spec: template.spec.id(), combination };
            match known.position(&values) {
                Some(at) => {
                    known.last = at;
                    n_new = known.pods[at].add(pod);
                }
                None => {
                    let values: Box<[_]> = values.iter().map(Option::<&Str>::cloned).collect();
                    known.last = known.pods.len();
                    known.by_values.insert(values.clone(), known.last);
                    known.pods.push(PodsWithValues { values, last: pod, by_spec: Map::default() });
                    n_new = 1;
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
    fn pods_with_other_requests_have_the_combination_of_their_spec_or_that_of_the_last_pod() {
        let (mut world, mut known) = (World::default(), ByLabels::default());
        let version = KeyVersion::default();
        let mut find_or_insert = |cpu: u64, app: &str, id: u64| {
            let requests = json!({"requests": {"cpu": cpu}});
            let pod = json!({"metadata": {"name": "pod", "namespace": "a",
                "labels": {"app": app, "id": id.to_string()}},
                "spec": {"containers": [{"name": "main", "resources": requests}]}});
            let pod = world.parse_pod(&serde_json::from_value(pod).unwrap()).unwrap();
            let found = known.get(&pod.template, version);
            if !found.is_some_and(|found| found.has_spec_of(&pod.template)) {
                let label_keys = || Ok::<_, ()>(Some(vec!["app".into()]));
                known.insert(&pod.template, version, CombinationId(id), label_keys).unwrap();
            }
            found.map(|found| (found.combination.0, found.has_spec_of(&pod.template)))
        };
        assert_eq!(find_or_insert(1, "web", 0), None);
        assert_eq!(find_or_insert(1, "web", 1), None, "the labels that are read were not known");
        assert_eq!(find_or_insert(2, "web", 2), Some((1, false)));
        assert_eq!(find_or_insert(3, "web", 3), Some((2, false)));
        assert_eq!(find_or_insert(1, "db", 4), None);
        for (cpu, app, combination) in [(1, "web", 1), (2, "web", 2), (3, "web", 3), (1, "db", 4)] {
            assert_eq!(find_or_insert(cpu, app, 5), Some((combination, true)), "{cpu} {app}");
        }
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
