//! Columns of node labels: for a key that somebody asks about, each row's value as a dense id.

use loadmaster_api::{Labels, Str};
use loadmaster_stdx::Map;

use crate::table::Row;

/// A label key that has a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeyId(pub u32);

/// A value of one key; dense, and reused once no node carries it. Meaningful only together with its [`KeyId`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueId(pub u32);

impl ValueId {
    /// The node does not carry the label.
    pub const MISSING: ValueId = ValueId(u32::MAX);

    /// Whether the node carries the label.
    pub fn is_present(self) -> bool {
        self != ValueId::MISSING
    }
}

/// The values of one key.
#[derive(Clone, Debug)]
pub struct LabelColumn {
    key: Str,
    of_row: Vec<ValueId>,
    ids: Map<Str, ValueId>,
    /// Per value: its text and how many nodes carry it.
    values: Vec<(Str, u32)>,
    free: Vec<ValueId>,
    /// How many values are carried by more than one node.
    shared: u32,
}

impl LabelColumn {
    fn new(key: Str, rows: usize) -> Self {
        LabelColumn {
            key,
            of_row: vec![ValueId::MISSING; rows],
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

    /// The value that a node carries.
    pub fn value(&self, row: Row) -> ValueId {
        self.of_row[row.index()]
    }

    /// The values by row.
    pub fn rows(&self) -> &[ValueId] {
        &self.of_row
    }

    /// The id of a value, if any node carries it.
    pub fn id(&self, value: &str) -> Option<ValueId> {
        self.ids.get(value).copied()
    }

    /// The text of a value.
    pub fn text(&self, value: ValueId) -> &Str {
        &self.values[value.0 as usize].0
    }

    /// An upper bound of the ids in use, for tables indexed by value.
    pub fn ids_max(&self) -> usize {
        self.values.len()
    }

    /// Whether no two nodes carry the same value, as with `kubernetes.io/hostname`.
    pub fn is_unique(&self) -> bool {
        self.shared == 0
    }

    fn set(&mut self, row: Row, value: Option<&Str>) {
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
        self.of_row[row.index()] = value.map_or(ValueId::MISSING, |text| self.acquire(text));
    }

    fn acquire(&mut self, text: &Str) -> ValueId {
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
                ValueId(self.values.len() as u32 - 1)
            }
        };
        self.ids.insert(text.clone(), id);
        id
    }

    fn release(&mut self, id: ValueId) {
        let (text, carried) = &mut self.values[id.0 as usize];
        *carried -= 1;
        self.shared -= u32::from(*carried == 1);
        if *carried == 0 {
            self.ids.remove(text.as_str());
            self.free.push(id);
        }
    }
}

/// The columns of all keys that were asked for.
#[derive(Clone, Debug, Default)]
pub struct LabelColumns {
    ids: Map<Str, KeyId>,
    columns: Vec<LabelColumn>,
}

impl LabelColumns {
    /// The column of a key, if it has one.
    pub fn id(&self, key: &str) -> Option<KeyId> {
        self.ids.get(key).copied()
    }

    /// A column.
    pub fn column(&self, key: KeyId) -> &LabelColumn {
        &self.columns[key.0 as usize]
    }

    /// All columns, in the order of their ids.
    pub fn iter(&self) -> impl Iterator<Item = (KeyId, &LabelColumn)> {
        self.columns.iter().enumerate().map(|(at, column)| (KeyId(at as u32), column))
    }

    /// The column of a key, made from the nodes' labels if it is new.
    pub(crate) fn ensure<'a>(
        &mut self,
        key: &Str,
        rows: usize,
        labels: impl Iterator<Item = (Row, &'a Labels)>,
    ) -> KeyId {
        if let Some(id) = self.ids.get(key) {
            return *id;
        }
        let id = KeyId(self.columns.len() as u32);
        let mut column = LabelColumn::new(key.clone(), rows);
        for (row, labels) in labels {
            column.set(row, labels.get(key));
        }
        self.ids.insert(key.clone(), id);
        self.columns.push(column);
        id
    }

    /// Takes over a node's labels; `None` when the node is gone.
    pub(crate) fn set_row(&mut self, row: Row, labels: Option<&Labels>) {
        for column in &mut self.columns {
            if column.of_row.len() <= row.index() {
                column.of_row.resize(row.index() + 1, ValueId::MISSING);
            }
            let value = labels.and_then(|labels| labels.get(&column.key));
            column.set(row, value);
        }
    }
}
