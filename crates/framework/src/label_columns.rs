//! Columns of node labels: for a label key in use, each row's value as a dense id.

use loadmaster_api::{Labels, Str};
use loadmaster_stdx::Map;

use crate::node_row::NodeRow;

/// A label key that has a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LabelKeyId(pub u32);

/// A value of one label key; dense, and reused when no node has the value. Meaningful only with its [`LabelKeyId`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LabelValueId(pub u32);

impl LabelValueId {
    /// The node does not have the label.
    pub const MISSING: LabelValueId = LabelValueId(u32::MAX);

    /// Whether the node has the label.
    pub fn is_present(self) -> bool {
        self != LabelValueId::MISSING
    }
}

/// The column of one label key.
#[derive(Clone, Debug)]
pub struct LabelColumn {
    key: Str,
    of_row: Vec<LabelValueId>,
    ids: Map<Str, LabelValueId>,
    /// Per value: its text and the number of nodes that have it.
    values: Vec<(Str, u32)>,
    free: Vec<LabelValueId>,
    /// Number of values that more than one node has.
    shared: u32,
}

impl LabelColumn {
    fn new(key: Str, rows: usize) -> Self {
        LabelColumn {
            key,
            of_row: vec![LabelValueId::MISSING; rows],
            ids: Map::default(),
            values: Vec::new(),
            free: Vec::new(),
            shared: 0,
        }
    }

    /// The label's key.
    pub fn key(&self) -> &Str {
        &self.key
    }

    /// The value of a node.
    pub fn value(&self, row: NodeRow) -> LabelValueId {
        self.of_row[row.index()]
    }

    /// The values by row.
    pub fn rows(&self) -> &[LabelValueId] {
        &self.of_row
    }

    /// The id of a value, if any node has it.
    pub fn id(&self, value: &str) -> Option<LabelValueId> {
        self.ids.get(value).copied()
    }

    /// The text of a value.
    pub fn value_text(&self, value: LabelValueId) -> &Str {
        &self.values[value.0 as usize].0
    }

    /// All ids are below this; the size of a table indexed by id.
    pub fn id_upper_bound(&self) -> usize {
        self.values.len()
    }

    /// Number of different values that nodes have.
    pub fn n_values(&self) -> usize {
        self.ids.len()
    }

    /// Number of nodes with this value.
    pub fn n_nodes(&self, value: LabelValueId) -> usize {
        self.values[value.0 as usize].1 as usize
    }

    /// Whether no two nodes have the same value, as with `kubernetes.io/hostname`.
    pub fn is_unique(&self) -> bool {
        self.shared == 0
    }

    fn set(&mut self, row: NodeRow, value: Option<&Str>) {
        let old = self.of_row[row.index()];
        let same = match value {
            Some(text) => old.is_present() && self.values[old.0 as usize].0 == *text,
            None => !old.is_present(),
        };
        if same {
            return;
        }
        if old.is_present() {
            self.release(old);
        }
        self.of_row[row.index()] = value.map_or(LabelValueId::MISSING, |text| self.acquire(text));
    }

    fn acquire(&mut self, text: &Str) -> LabelValueId {
        if let Some(id) = self.ids.get(text) {
            let carried = &mut self.values[id.0 as usize].1;
            *carried += 1;
            self.shared += u32::from(*carried == 2);
            return *id;
        }
        let id = match self.free.pop() {
            Some(id) => {
                self.values[id.0 as usize] = (text.clone(), 1);
                id
            }
            None => {
                self.values.push((text.clone(), 1));
                LabelValueId(self.values.len() as u32 - 1)
            }
        };
        self.ids.insert(text.clone(), id);
        id
    }

    fn release(&mut self, id: LabelValueId) {
        let (text, carried) = &mut self.values[id.0 as usize];
        *carried -= 1;
        self.shared -= u32::from(*carried == 1);
        if *carried == 0 {
            self.ids.remove(text.as_str());
            self.free.push(id);
        }
    }
}

/// The columns of all label keys in use.
#[derive(Clone, Debug, Default)]
pub struct LabelColumns {
    ids: Map<Str, LabelKeyId>,
    columns: Vec<LabelColumn>,
}

impl LabelColumns {
    /// The id of a key's column, if it has one.
    pub fn id(&self, key: &str) -> Option<LabelKeyId> {
        self.ids.get(key).copied()
    }

    /// A column.
    pub fn column(&self, key: LabelKeyId) -> &LabelColumn {
        &self.columns[key.0 as usize]
    }

    /// All columns, in the order of their ids.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (LabelKeyId, &LabelColumn)> {
        self.columns.iter().enumerate().map(|(at, column)| (LabelKeyId(at as u32), column))
    }

    /// The id of a key's column, which is filled from the labels of the nodes, by row, if it is new.
    pub(crate) fn ensure(&mut self, key: &Str, labels: &[Labels]) -> LabelKeyId {
        if let Some(id) = self.ids.get(key) {
            return *id;
        }
        let id = LabelKeyId(self.columns.len() as u32);
        let mut column = LabelColumn::new(key.clone(), labels.len());
        for (row, labels) in (0..).map(NodeRow).zip(labels) {
            column.set(row, labels.get(key));
        }
        self.ids.insert(key.clone(), id);
        self.columns.push(column);
        id
    }

    /// Sets a node's values in all columns; `None` when the node was deleted.
    pub(crate) fn set_row(&mut self, row: NodeRow, labels: Option<&Labels>) {
        for column in &mut self.columns {
            if column.of_row.len() <= row.index() {
                column.of_row.resize(row.index() + 1, LabelValueId::MISSING);
            }
            let value = labels.and_then(|labels| labels.get(&column.key));
            column.set(row, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use loadmaster_stdx::Rng;

    use super::*;

    fn labels(value: &str) -> Labels {
        [(Str::from("host"), Str::from(value))].into_iter().collect()
    }

    #[test]
    fn values_are_those_of_nodes() {
        for n_values in [3, 1_000] {
            let mut rng = Rng::new(n_values);
            let (mut columns, mut twin) = (LabelColumns::default(), vec![None; 20]);
            let key = columns.ensure(&Str::from("host"), &[]);
            for _ in 0..2_000 {
                let row = rng.below(20) as usize;
                twin[row] = (!rng.one_in(4)).then(|| rng.below(n_values).to_string());
                let new = twin[row].as_deref().map(labels);
                columns.set_row(NodeRow(row as u32), new.as_ref());
                let column = columns.column(key);
                let rows = 0..column.rows().len();
                let values = rows.map(|at| {
                    let value = column.value(NodeRow(at as u32));
                    value.is_present().then(|| column.value_text(value).to_string())
                });
                assert!(values.eq(twin[..column.rows().len()].iter().cloned()));
            }
        }
    }
}
