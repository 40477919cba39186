//! The combination of keys of each template.

use loadmaster_framework::template::TemplateId;
use loadmaster_framework::world::KeyVersion;

use crate::combination_id::CombinationId;

/// Number of templates that are remembered at most. Others are looked up by their labels, or compute their keys again, which takes about a
/// microsecond.
const TEMPLATES_MAX: usize = 1 << 14;

/// The combination of the keys of a template's pods.
#[derive(Default)]
pub(super) struct ByTemplate {
    /// The one that was added last.
    last: Option<Known>,
    /// By the template's index: a template takes the place of another one whose index differs by a multiple of [`TEMPLATES_MAX`].
    known: Vec<Option<Known>>,
}

#[derive(Clone, Copy)]
struct Known {
    template: TemplateId,
    version: KeyVersion,
    combination: CombinationId,
}

impl ByTemplate {
    /// The combination of a template, and the version of the world in which its keys were computed.
    pub fn get(&self, template: TemplateId) -> Option<(KeyVersion, CombinationId)> {
        let is_it = |known: &&Known| known.template == template;
        let in_list = || self.known.get(template.index() % TEMPLATES_MAX)?.as_ref();
        let found = self.last.as_ref().filter(is_it).or_else(|| in_list().filter(is_it))?;
        Some((found.version, found.combination))
    }

    /// Remembers the combination of a template.
    pub fn insert(
        &mut self,
        template: TemplateId,
        version: KeyVersion,
        combination: CombinationId,
    ) {
        let at = template.index() % TEMPLATES_MAX;
        if self.known.len() <= at {
            self.known.resize(at + 1, None);
        }
        self.known[at] = Some(Known { template, version, combination });
        self.last = self.known[at];
    }

    /// Remembers the combination of a template until the next one is remembered.
    pub fn insert_as_last(
        &mut self,
        template: TemplateId,
        version: KeyVersion,
        combination: CombinationId,
    ) {
        self.last = Some(Known { template, version, combination });
    }

    pub fn clear(&mut self) {
        self.last = None;
        self.known.clear();
    }
}

#[cfg(test)]
mod tests {
    use loadmaster_framework::World;
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_inserted_as_last_is_found_until_the_next_one() {
        let mut world = World::default();
        let [a, b] = ["a", "b"].map(|app| {
            let pod =
                json!({"metadata": {"name": "pod", "namespace": "x", "labels": {"app": app}}});
            world.parse_pod(&serde_json::from_value(pod).unwrap()).unwrap().template.id
        });
        let version = KeyVersion::default();
        let mut known = ByTemplate::default();
        let found = |known: &ByTemplate| [a, b].map(|it| Some(known.get(it)?.1.0));
        assert_eq!(found(&known), [None, None]);
        known.insert_as_last(a, version, CombinationId(1));
        assert_eq!(found(&known), [Some(1), None]);
        known.insert_as_last(b, version, CombinationId(2));
        assert_eq!(found(&known), [None, Some(2)]);
        known.insert(a, version, CombinationId(3));
        assert_eq!(found(&known), [Some(3), None]);
        known.insert_as_last(b, version, CombinationId(4));
        assert_eq!(found(&known), [Some(3), Some(4)]);
        known.insert_as_last(a, version, CombinationId(5));
        assert_eq!(found(&known), [Some(5), None], "instead of the older one in the list");
        known.clear();
        assert_eq!(found(&known), [None, None]);
    }
}
