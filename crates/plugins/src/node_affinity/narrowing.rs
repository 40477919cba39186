//! Narrowing all nodes at once by label columns: what a pod requires of nodes, as far as columns can say it.

use loadmaster_api::selector::{CompiledNodeSelector, Requirement};
use loadmaster_api::{Labels, NodeSelector, Str};
use loadmaster_framework::label::{KeyId, LabelColumn, ValueId};
use loadmaster_framework::prepare::RowSet;
use loadmaster_framework::{NodeTable, Row, World};
use smallvec::SmallVec;

/// Columns stay for good once they are made. When there are so many, requirements on other keys are left to the nodes.
const COLUMNS_MAX: usize = 32;

/// Conditions that every node must meet.
pub(super) struct Narrowing {
    names: Option<Vec<Str>>,
    tests: Vec<Test>,
    /// No more is required than these conditions say.
    complete: bool,
}

/// The value of a label must be one of these, or (`inside` false) none of them.
struct Test {
    key: KeyId,
    values: Values,
    inside: bool,
}

enum Values {
    These(SmallVec<[Str; 2]>),
    /// Not having the label counts as its value.
    Missing,
}

impl Narrowing {
    /// What these require together. `names` are the only nodes that can fit, if that is known.
    pub(super) fn new(
        world: &mut World,
        node_selector: &Labels,
        selectors: [Option<&NodeSelector>; 2],
        names: Option<Vec<Str>>,
    ) -> Narrowing {
        let mut narrowing = Narrowing { names, tests: Vec::new(), complete: true };
        for (key, value) in node_selector.iter() {
            narrowing.add(world, key, Values::These(SmallVec::from_iter([value.clone()])), true);
        }
        for selector in selectors.into_iter().flatten() {
            narrowing.add_selector(world, selector);
        }
        narrowing
    }

    /// Whether nodes that [`Narrowing::narrow`] leaves need not be looked at again.
    pub(super) fn is_complete(&self) -> bool {
        self.complete
    }

    /// Takes out the nodes that do not meet the conditions.
    pub(super) fn narrow(&self, nodes: &NodeTable, set: &mut RowSet) {
        if let Some(names) = &self.names {
            keep_only(names, nodes, set);
        }
        for test in &self.tests {
            test.narrow(nodes.labels().column(test.key), set);
        }
    }

    /// Terms are alternatives: only the conditions of a lone one hold for every node.
    fn add_selector(&mut self, world: &mut World, selector: &NodeSelector) {
        self.complete &= CompiledNodeSelector::strict(selector).is_ok();
        let [term] = &*selector.node_selector_terms else {
            self.complete = false;
            return;
        };
        self.complete &= term.match_fields.is_empty() && !term.match_expressions.is_empty();
        for requirement in &term.match_expressions {
            match as_membership(requirement) {
                Some((values, inside)) => self.add(world, &requirement.key, values, inside),
                None => self.complete = false,
            }
        }
    }

    fn add(&mut self, world: &mut World, key: &Str, values: Values, inside: bool) {
        match column(world, key) {
            Some(key) => self.tests.push(Test { key, values, inside }),
            None => self.complete = false,
        }
    }
}

impl Test {
    fn narrow(&self, column: &LabelColumn, set: &mut RowSet) {
        // Ids of values come and go with the nodes that carry them, so they are looked up each time.
        let ids: SmallVec<[ValueId; 8]> = match &self.values {
            Values::These(values) => values.iter().filter_map(|value| column.id(value)).collect(),
            Values::Missing => [ValueId::MISSING].into_iter().collect(),
        };
        let rows = set.iter_mut().zip(column.rows());
        match ids.as_slice() {
            // By far the most frequent case, in a loop that compiles to vector instructions.
            [only] => {
                rows.for_each(|(member, value)| *member &= u8::from((value == only) == self.inside))
            }
            ids => rows.for_each(|(member, value)| {
                *member &= u8::from(ids.contains(value) == self.inside);
            }),
        }
    }
}

/// A requirement as membership in a set of values. Comparisons are none.
fn as_membership(requirement: &Requirement) -> Option<(Values, bool)> {
    let these = || Values::These(requirement.values.iter().cloned().collect());
    match requirement.operator.as_str() {
        "In" => Some((these(), true)),
        "NotIn" => Some((these(), false)),
        "Exists" => Some((Values::Missing, false)),
        "DoesNotExist" => Some((Values::Missing, true)),
        _ => None,
    }
}

fn column(world: &mut World, key: &Str) -> Option<KeyId> {
    let known = world.nodes().labels().id(key);
    let full = world.nodes().labels().iter().count() >= COLUMNS_MAX;
    known.or_else(|| (!full).then(|| world.ensure_key(key)))
}

fn keep_only(names: &[Str], nodes: &NodeTable, set: &mut RowSet) {
    let rows = names.iter().filter_map(|name| nodes.row(name));
    let kept: SmallVec<[(Row, u8); 4]> = rows.map(|row| (row, set[row.index()])).collect();
    set.fill(0);
    for (row, member) in kept {
        set[row.index()] = member;
    }
}
