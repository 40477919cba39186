//! Acting on definitions of custom resources, at once and in the request that changed them: upstream's naming,
//! establishing and finalizing controllers in one.

use serde_json::Value;

use super::delete::Deletion;
use super::managed::Write;
use super::{ApiServer, spelled};
use crate::custom::definition;
use crate::object::{draft, parsed};
use crate::schema::Kind;
use crate::status::ApiError;
use crate::store::{Expect, Filter, Span, TableId};

impl ApiServer {
    fn definitions(&self) -> Option<(&Kind, TableId)> {
        let kind = self.own_kind("apiextensions.k8s.io", "customresourcedefinitions").ok()?;
        Some((kind, kind.table?))
    }

    /// Does what a write to a table leads to.
    pub(super) fn act_on_definitions(&self, table: TableId) {
        let Some((_, definitions)) = self.definitions() else { return };
        if table == definitions {
            self.look_at_definitions();
        } else if table > definitions
            && self.shared.built_in.iter().all(|it| it.table != Some(table))
        {
            self.release_definition(table);
        }
    }

    /// Settles the names of all definitions, and serves what they define.
    pub(super) fn look_at_definitions(&self) {
        let Some((kind, table)) = self.definitions() else { return };
        let registry = &self.shared.registry;
        let mut known = registry.lock();
        let page = self.state().store.list(table, &Span::default(), &Filter::everything());
        let Ok(page) = page else { return };
        let mut objects = page.objects;
        objects.sort_by_key(|object| object.revision());
        let readable = objects.iter().filter_map(|it| Some((it.revision(), parsed(it).ok()?)));
        let mut all: Vec<(u64, Value)> = readable.collect();
        for at in 0..all.len() {
            let mut crd = all[at].1.clone();
            let others = all.iter().map(|(_, it)| it);
            let others: Vec<&Value> =
                others.filter(|it| definition::is_same_group(it, &crd)).collect();
            definition::settle(&mut crd, &others, &spelled(self.now()));
            if crd == all[at].1 {
                continue;
            }
            let write = Write { kind, subresource: "status", manager: Some("kube-apiserver") };
            self.enter(write, Some(&all[at].1), &mut crd);
            let Ok(draft) = draft(kind, &crd) else { continue };
            let expect = Expect::Revision(all[at].0);
            // Who was faster comes here next.
            if let Ok(object) = self.state().store.put(table, expect, draft) {
                self.tell(table, object.revision());
                all[at] = (object.revision(), parsed(&object).unwrap_or(crd));
            }
        }
        let mut state = self.state();
        let changes = registry.serve(&mut known, &all, &mut state.store);
        for (table, slots) in changes.reindexed {
            state.store.reindex(table, |object| {
                let value = parsed(object).unwrap_or_default();
                slots.iter().map(|it| it.text(&value).into()).collect()
            });
        }
        let revision = state.store.revision();
        drop(state);
        let ends_any = !changes.ended.is_empty();
        for ended in changes.ended {
            self.shared.news.end(ended, revision);
            self.tell(table, revision);
        }
        if ends_any && let Some(journal) = &self.shared.journal {
            // The journal tells of changes, and all of these may have been told already.
            self.shared.news.end_shown(journal.durable());
        }
    }

    /// Goes on with the deletions of definitions that a crash broke off.
    pub(super) fn go_on_with_deletions(&self) -> Result<(), ApiError> {
        let (kind, table) = self.definitions().ok_or_else(ApiError::no_such_resource)?;
        let page = self.state().store.list(table, &Span::default(), &Filter::everything());
        let page = page.map_err(|error| ApiError::internal(&error.to_string()))?;
        for object in &page.objects {
            if definition::has_condition(&parsed(object)?, "Terminating") {
                self.delete_objects_of(kind, object.name())?;
            }
        }
        Ok(())
    }

    /// Deletes all objects of a definition that is going.
    pub(super) fn delete_objects_of(&self, kind: &Kind, name: &str) -> Result<(), ApiError> {
        if !definition::is(kind) {
            return Ok(());
        }
        let kinds = self.kinds();
        let Some(custom) = kinds.iter().find(|it| it.custom.is_some() && it.qualified() == name)
        else {
            return self.release(kind, name);
        };
        let table = custom.table.ok_or_else(ApiError::no_such_resource)?;
        let page = self.state().store.list(table, &Span::default(), &Filter::everything());
        let page = page.map_err(|error| ApiError::internal(&error.to_string()))?;
        for object in &page.objects {
            let deletion = Deletion::default();
            match self.delete_object(custom, object.namespace(), object.name(), &deletion) {
                Err(error) if error.code != 404 => return Err(error),
                _ => {}
            }
        }
        self.release_definition(table);
        Ok(())
    }

    /// Lets go of the definition of a table's objects, if it is going and they are gone.
    fn release_definition(&self, table: TableId) {
        if !self.state().store.is_empty(table) {
            return;
        }
        let Some(name) = self.shared.registry.definition_of(table) else { return };
        let Some((kind, _)) = self.definitions() else { return };
        // It may be gone already.
        let _ = self.release(kind, &name);
    }

    fn release(&self, kind: &Kind, name: &str) -> Result<(), ApiError> {
        let now = spelled(self.now());
        let released = self.rewrite(kind, ("", name), false, |old| {
            let mut new = old.clone();
            if definition::has_condition(old, "Terminating") {
                definition::release(&mut new, &now);
            }
            Ok(new)
        });
        released.map(drop)
    }
}
