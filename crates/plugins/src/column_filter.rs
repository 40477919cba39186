//! Filters all nodes at once over label columns, by those requirements of a pod, or of its volumes, that columns can express.

use loadmaster_api::selector::{CompiledNodeSelector, Requirement};
use loadmaster_api::{Labels, NodeSelector, Str};
use loadmaster_framework::incremental::RowMask;
use loadmaster_framework::label_columns::{LabelColumn, LabelKeyId, LabelValueId};
use loadmaster_framework::{NodeRow, NodeTable, PrepareCx};
use smallvec::SmallVec;

/// Conditions that every node must meet.
pub(crate) struct ColumnFilter {
    names: Option<Vec<Str>>,
    conditions: Vec<LabelCondition>,
    /// Whether these conditions are all that is required.
    complete: bool,
}

/// The value of a label must be one of these, or (`inside` false) none of them.
struct LabelCondition {
    key: LabelKeyId,
    values: Values,
    inside: bool,
}

enum Values {
    OneOf(SmallVec<[Str; 2]>),
    /// The missing label counts as a value.
    Missing,
}

impl ColumnFilter {
    /// The conditions of the node selector and of both selectors. `names` are the only nodes that can fit, if known.
    pub(crate) fn new(
        cx: &mut PrepareCx<'_>,
        node_selector: &Labels,
        selectors: [Option<&NodeSelector>; 2],
        names: Option<Vec<Str>>,
    ) -> ColumnFilter {
        let mut filter = ColumnFilter { names, conditions: Vec::new(), complete: true };
        for (key, value) in node_selector.iter() {
            filter.add(cx, key, Values::OneOf(SmallVec::from_iter([value.clone()])), true);
        }
        for selector in selectors.into_iter().flatten() {
            filter.add_selector(cx, selector);
        }
        filter
    }

    /// Whether the nodes that [`ColumnFilter::retain_matching`] keeps need no further check.
    pub(crate) fn is_complete(&self) -> bool {
        self.complete
    }

    /// Removes the nodes that do not meet the conditions from a set that begins with the row `first`.
    pub(crate) fn retain_matching(&self, nodes: &NodeTable, first: NodeRow, set: &mut RowMask) {
        if let Some(names) = &self.names {
            retain_named(names, nodes, first, set);
        }
        for condition in &self.conditions {
            condition.retain_matching(nodes.labels().column(condition.key), first, set);
        }
    }

    /// Terms are ORed: only the conditions of a single term hold for every node.
    fn add_selector(&mut self, cx: &mut PrepareCx<'_>, selector: &NodeSelector) {
        self.complete &= CompiledNodeSelector::strict(selector).is_ok();
        let [term] = &*selector.node_selector_terms else {
            self.complete = false;
            return;
        };
        self.complete &= term.match_fields.is_empty() && !term.match_expressions.is_empty();
        for requirement in &term.match_expressions {
            match as_membership(requirement) {
                Some((values, inside)) => self.add(cx, &requirement.key, values, inside),
                None => self.complete = false,
            }
        }
    }

    fn add(&mut self, cx: &mut PrepareCx<'_>, key: &Str, values: Values, inside: bool) {
        match cx.try_label_column(key) {
            Some(key) => self.conditions.push(LabelCondition { key, values, inside }),
            None => self.complete = false,
        }
    }
}

impl LabelCondition {
    fn retain_matching(&self, column: &LabelColumn, first: NodeRow, set: &mut RowMask) {
        // The ids of values change with the nodes that have them, so they are looked up each time.
        let ids: SmallVec<[LabelValueId; 8]> = match &self.values {
            Values::OneOf(values) => values.iter().filter_map(|value| column.id(value)).collect(),
            Values::Missing => [LabelValueId::MISSING].into_iter().collect(),
        };
        let rows = set.iter_mut().zip(&column.rows()[first.index()..]);
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

/// A requirement as membership in a set of values; `None` for comparisons (`Gt`, `Lt`).
fn as_membership(requirement: &Requirement) -> Option<(Values, bool)> {
    let one_of = || Values::OneOf(requirement.values.iter().cloned().collect());
    match requirement.operator.as_str() {
        "In" => Some((one_of(), true)),
        "NotIn" => Some((one_of(), false)),
        "Exists" => Some((Values::Missing, false)),
        "DoesNotExist" => Some((Values::Missing, true)),
        _ => None,
    }
}

/// Removes all but the nodes with these names from a set that begins with the row `first`.
pub(crate) fn retain_named(names: &[Str], nodes: &NodeTable, first: NodeRow, set: &mut RowMask) {
    let rows = names.iter().filter_map(|name| nodes.row(name));
    let positions = rows.filter_map(|row| row.index().checked_sub(first.index()));
    let members: SmallVec<[(usize, u8); 4]> =
        positions.filter_map(|at| Some((at, *set.get(at)?))).collect();
    set.fill(0);
    for (at, member) in members {
        set[at] = member;
    }
}
