//! Recomputes the selectable fields of a table.

use std::sync::Arc;

use super::object::Object;
use super::{Store, TableId};

impl Store {
    /// Takes the selectable fields of a table's objects anew, those of its history included. Revisions stay.
    pub fn reindex(&mut self, table: TableId, fields: impl Fn(&Object) -> Box<[Box<str>]>) {
        let table = &mut self.tables[table.0];
        let renew = |object: &mut Arc<Object>| {
            *object = Arc::new(object.with_facts(object.labels().clone(), fields(object)));
        };
        table.undone.get_mut().clear();
        table.objects.values_mut().for_each(renew);
        for change in &mut table.log {
            renew(&mut change.object);
            change.previous.as_mut().into_iter().for_each(renew);
        }
    }
}
