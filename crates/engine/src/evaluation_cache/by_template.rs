//! The combination of keys of each template.

use loadmaster_framework::template::TemplateId;
use loadmaster_framework::world::KeyVersion;

use crate::combination_id::CombinationId;

/// Number of templates that are remembered at most; others compute their keys again, which takes about a microsecond.
const TEMPLATES_MAX: usize = 1 << 16;

/// The combination of the keys of a template's pods. Where most pods have a template for themselves, each is looked up once and added once, so
/// this is a plain list by the template's index: a template takes the place of another one whose index differs by a multiple of its length.
#[derive(Default)]
pub(super) struct ByTemplate(Vec<Option<Known>>);

#[derive(Clone, Copy)]
struct Known {
    template: TemplateId,
    version: KeyVersion,
    combination: CombinationId,
}

impl ByTemplate {
    /// The combination of a template, and the version of the world in which its keys were computed.
    pub fn get(&self, template: TemplateId) -> Option<(KeyVersion, CombinationId)> {
        let known = self.0.get(template.index() % TEMPLATES_MAX)?.as_ref()?;
        (known.template == template).then_some((known.version, known.combination))
    }

    /// Remembers the combination of a template.
    pub fn insert(
        &mut self,
        template: TemplateId,
        version: KeyVersion,
        combination: CombinationId,
    ) {
        let at = template.index() % TEMPLATES_MAX;
        if self.0.len() <= at {
            self.0.resize(at + 1, None);
        }
        self.0[at] = Some(Known { template, version, combination });
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }
}
