//! Filters of lists and watches: a label selector and field tests.

use loadmaster_api::Selector;

use super::object::Object;

/// Which field a test reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilterField {
    /// `metadata.name`
    Name,
    /// `metadata.namespace`
    Namespace,
    /// A place in [`Object::selectable_values`].
    Slot(usize),
}

/// A field must, or must not, have a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldRequirement {
    /// What is compared.
    pub field: FilterField,
    /// Equal, or different.
    pub equals: bool,
    /// With what. An absent field is the empty text.
    pub value: Box<str>,
}

/// The label selector and field tests that an object must pass.
#[derive(Clone, Debug)]
pub struct Filter {
    /// Over `metadata.labels`.
    pub labels: Selector,
    /// Over fields.
    pub fields: Vec<FieldRequirement>,
}

impl Filter {
    /// A filter that selects everything.
    pub fn everything() -> Filter {
        Filter { labels: Selector::everything(), fields: Vec::new() }
    }

    /// Whether nothing is tested.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    /// Whether the filter selects an object.
    pub fn matches(&self, object: &Object) -> bool {
        self.labels.matches(object.labels()) && self.fields.iter().all(|test| test.matches(object))
    }
}

impl FieldRequirement {
    fn matches(&self, object: &Object) -> bool {
        let value = match self.field {
            FilterField::Name => object.name(),
            FilterField::Namespace => object.namespace(),
            FilterField::Slot(at) => object.selectable_values().get(at).map_or("", |value| value),
        };
        (value == &*self.value) == self.equals
    }
}
