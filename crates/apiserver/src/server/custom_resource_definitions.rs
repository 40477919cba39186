//! CustomResourceDefinitions: upstream's naming, establishing and finalizing controllers in one, run in the request
//! that changed a definition.

use loadmaster_stdx::SortCompactly as _;
use serde_json::Value;

use super::delete::Deletion;
use super::field_manager::Write;
use super::{ApiServer, rfc3339_seconds};
use crate::custom_resource::definition;
use crate::object::{draft, parsed};
use crate::schema::Kind;
use crate::status::ApiError;
use crate::store::{Filter, ListOptions, Precondition, TableId};

impl ApiServer {
    fn definitions(&self) -> Option<(&Kind, TableId)> {
        let kind = self.own_kind("apiextensions.k8s.io", "customresourcedefinitions").ok()?;
        Some((kind, kind.table?))
    }

    /// Runs after a write: processes definitions if the table is theirs.
    pub(super) fn sync_definitions_on_write(&self, table: TableId) {
        let Some((_, definitions)) = self.definitions() else { return };
        if table == definitions {
            self.sync_definitions();
        } else if table > definitions
            && self.shared.built_in.iter().all(|it| it.table != Some(table))
        {
            self.release_definition(table);
        }
    }

    /// Decides the accepted names of all definitions, and serves the resources they define.
    pub(super) fn sync_definitions(&self) {
        let Some((kind, table)) = self.definitions() else { return };
        let registry = &self.shared.registry;
        let mut known = registry.lock();
        let page = self.state().store.list(table, &ListOptions::default(), &Filter::everything());
        let Ok(page) = page else { return };
        let mut objects = page.objects;
        objects.sort_compactly_by_key(|object| object.revision());
        let readable = objects.iter().filter_map(|it| Some((it.revision(), parsed(it).ok()?)));
        let mut all: Vec<(u64, Value)> = readable.collect();
        for at in 0..all.len() {
            let mut crd = all[at].1.clone();
            let others = all.iter().map(|(_, it)| it);
            let others: Vec<&Value> =
                others.filter(|it| definition::is_other_definition_in_group(it, &crd)).collect();
            definition::set_accepted_names(&mut crd, &others, &rfc3339_seconds(self.now()));
            if crd == all[at].1 {
                continue;
            }
            let write = Write { kind, subresource: "status", manager: Some("kube-apiserver") };
            self.enter(write, Some(&all[at].1), &mut crd);
            let Ok(draft) = draft(kind, &crd) else { continue };
            let expect = Precondition::Revision(all[at].0);
            // The other writer processes it next.
            if let Ok(object) = self.state().store.put(table, expect, draft) {
                self.notify_journal_or_watchers(table, object.revision());
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
            self.shared.change_notifier.end_watches_at(ended, revision);
            self.notify_journal_or_watchers(table, revision);
        }
        if ends_any && let Some(journal) = &self.shared.journal {
            // The journal wakes watchers for changes, and may have done so for all of these.
            self.shared.change_notifier.end_due_watches(journal.durable_revision());
        }
    }

    /// Resumes deletions of definitions that a crash interrupted.
    pub(super) fn resume_deletions(&self) -> Result<(), ApiError> {
        let (kind, table) = self.definitions().ok_or_else(ApiError::no_such_resource)?;
        let page = self.state().store.list(table, &ListOptions::default(), &Filter::everything());
        let page = page.map_err(|error| ApiError::internal(&error.to_string()))?;
        for object in &page.objects {
            // The condition alone proves nothing: anyone with the right to the status can write it.
            if !parsed(object)?["metadata"]["deletionTimestamp"].is_null() {
                self.delete_objects_of(kind, object.name())?;
            }
        }
        Ok(())
    }

    /// Deletes all objects of a definition that is being deleted.
    pub(super) fn delete_objects_of(&self, kind: &Kind, name: &str) -> Result<(), ApiError> {
        if !definition::is_custom_resource_definition(kind) {
            return Ok(());
        }
        let kinds = self.kinds();
        let Some(custom) =
            kinds.iter().find(|it| it.custom.is_some() && it.group_resource() == name)
        else {
            return self.release(kind, name);
        };
        let table = custom.table.ok_or_else(ApiError::no_such_resource)?;
        let page = self.state().store.list(table, &ListOptions::default(), &Filter::everything());
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

    /// Removes the finalizer of a definition that is being deleted and has no objects left.
    fn release_definition(&self, table: TableId) {
        if !self.state().store.is_empty(table) {
            return;
        }
        let Some(name) = self.shared.registry.definition_of(table) else { return };
        let Some((kind, _)) = self.definitions() else { return };
        // It may have been deleted already.
        let _ = self.release(kind, &name);
    }

    fn release(&self, kind: &Kind, name: &str) -> Result<(), ApiError> {
        let now = rfc3339_seconds(self.now());
        let released = self.retry_update(kind, ("", name), false, |old| {
            let mut new = old.clone();
            if definition::has_condition(old, "Terminating") {
                definition::remove_cleanup_finalizer(&mut new, &now);
            }
            Ok(new)
        });
        released.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use http::{Method, Request};
    use serde_json::json;

    use crate::authentication::User;
    use crate::journal::{Journal, SnapshotPolicy};
    use crate::store::StoreLimits;
    use crate::{ClusterOptions, Options};

    use super::*;

    const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    const GANGS: &str = "/apis/e.io/v1/gangs";

    fn open(folder: &std::path::Path) -> (ApiServer, Journal) {
        let options = Options {
            clock: Arc::new(|| jiff::Timestamp::UNIX_EPOCH),
            seed: 1,
            limits: StoreLimits::default(),
            also_serve: Vec::new(),
        };
        ApiServer::open(options, ClusterOptions::default(), folder, SnapshotPolicy::default())
            .expect("opens")
    }

    fn code(server: &ApiServer, method: Method, path: &str, body: &Value) -> u16 {
        let request = Request::builder().method(method).uri(path).body(body.to_string().into());
        server.handle(&User::admin(), &request.expect("a request")).status().as_u16()
    }

    #[test]
    fn an_interrupted_deletion_is_resumed() {
        let name = format!("loadmaster-definitions-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        let (server, journal) = open(&folder);
        for name in ["gangs", "bands"] {
            let crd = json!({"metadata": {"name": format!("{name}.e.io")}, "spec": {"group": "e.io",
                "scope": "Cluster", "names": {"plural": name, "kind": name}, "versions": [{"name": "v1",
                    "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}}]}});
            assert_eq!(code(&server, Method::POST, DEFINITIONS, &crd), 201);
            let object = json!({"apiVersion": "e.io/v1", "kind": name, "metadata": {"name": "a"}});
            assert_eq!(code(&server, Method::POST, &format!("/apis/e.io/v1/{name}"), &object), 201);
        }
        // A deletion that was interrupted after its mark, and a status that only looks like one.
        let (kind, _) = server.definitions().expect("built in");
        for (name, is_going) in [("gangs.e.io", true), ("bands.e.io", false)] {
            let marked = server.retry_update(kind, ("", name), false, |old| {
                let mut new = old.clone();
                definition::mark_terminating(&mut new, "2026-01-02T03:04:05Z");
                if !is_going {
                    crate::object::meta_mut(&mut new).remove("deletionTimestamp");
                }
                Ok(new)
            });
            marked.expect("marked");
        }
        assert_eq!(code(&server, Method::GET, &format!("{GANGS}/a"), &Value::Null), 200);
        journal.close().expect("all is written");
        drop(server);

        let (server, journal) = open(&folder);
        let codes = [&format!("{DEFINITIONS}/gangs.e.io"), GANGS, "/apis/e.io/v1/bands/a"]
            .map(|path| code(&server, Method::GET, path, &Value::Null));
        assert_eq!(codes, [404, 404, 200]);
        journal.close().expect("all is written");
        let _ = std::fs::remove_dir_all(&folder);
    }
}
