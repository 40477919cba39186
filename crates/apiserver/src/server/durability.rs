//! A server with a data directory: it restores the objects at start, and answers requests only when their changes are
//! on disk.

use std::path::Path;
use std::sync::{Arc, Weak};

use http::{Request, Response};
use loadmaster_stdx::catch_panic::catch_panic;

use super::body::Body;
use super::{ApiResponse, ApiServer, ClusterOptions, Options, Shared};
use crate::authentication::User;
use crate::journal::{
    ChangeSource, DataError, Journal, OpenJournal, PendingChanges, SnapshotPolicy,
};
use crate::object::{parsed, selectable_fingerprint, selectable_values};
use crate::status::ApiError;
use crate::store::{Filter, ListOptions, Store, TableId};

/// Why a server cannot use a data directory.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    #[error(transparent)]
    Data(#[from] DataError),
    #[error("setting up the cluster")]
    Cluster(#[source] ApiError),
}

impl ApiServer {
    /// A server that stores its objects in a data directory, with those that are there already. The caller must wait
    /// on [`Journal::failed`].
    ///
    /// # Errors
    ///
    /// When the directory cannot be used or its files are damaged.
    pub fn open(
        options: Options,
        setup: ClusterOptions,
        folder: &Path,
        compaction: SnapshotPolicy,
    ) -> Result<(ApiServer, Journal), OpenError> {
        let opened = OpenJournal::open(folder, options.limits, selectable_fingerprint())?;
        let is_outdated = opened.is_outdated;
        let (store, pending) = opened.into_parts();
        let server = ApiServer::over(store, Some(pending.handle()), options, setup);
        let server = server.map_err(OpenError::Cluster)?;
        if is_outdated {
            server.take_fields_anew().map_err(OpenError::Cluster)?;
        }
        let source = Changes { server: Arc::downgrade(&server.shared), names: Arc::default() };
        let journal = pending.start(source, compaction);
        server.bootstrap().map_err(OpenError::Cluster)?;
        server.sync_definitions();
        server.resume_deletions().map_err(OpenError::Cluster)?;
        Ok((server, journal))
    }

    /// Handles a request. With a data directory, it responds when everything the response can show is on disk: a
    /// revision that was shown is never reused after a crash. A panic fails its own request and no other.
    pub async fn handle_durably(
        &self,
        user: &User,
        request: &Request<bytes::Bytes>,
    ) -> Response<Body> {
        let mut entry = None;
        let handled = catch_panic(|| self.handle_with_audit(user, request, &mut entry));
        let response = handled.unwrap_or_else(|panic| self.panicked(entry, request, &panic));
        let Some(journal) = &self.shared.journal else { return response };
        let revision = self.state().store.revision();
        match journal.wait(revision).await {
            Ok(()) => response,
            Err(_) => {
                let why = "the data directory cannot be written: it is not known whether this change is durable";
                ApiResponse::error(&ApiError::internal(why)).into_response()
            }
        }
    }

    /// Up to which revision changes may be shown to watchers.
    pub(super) fn visible(&self, store: &Store) -> u64 {
        match &self.shared.journal {
            Some(journal) => journal.durable_revision().min(store.revision()),
            None => store.revision(),
        }
    }

    /// Recomputes labels and selectable fields, whose rules another version of the program may have had differently.
    fn take_fields_anew(&self) -> Result<(), ApiError> {
        let mut state = self.state();
        let revision = state.store.revision();
        for kind in self.kinds().iter() {
            let Some(table) = kind.table else { continue };
            let page = state.store.list(table, &ListOptions::default(), &Filter::everything());
            for object in page.map_err(|error| ApiError::internal(&error.to_string()))?.objects {
                let value = parsed(&object)?;
                let facts = (crate::object::labels(&value), selectable_values(kind, &value));
                state.store.restore(table, object.with_facts(facts.0, facts.1));
            }
            // Versions in the history have the old ones.
            state.store.compact(table, revision);
        }
        Ok(())
    }
}

/// The source of changes for the journal.
struct Changes {
    server: Weak<Shared>,
    names: Arc<[Box<str>]>,
}

impl ChangeSource for Changes {
    fn take(&mut self, whole: bool) -> Option<PendingChanges> {
        let server = ApiServer { shared: self.server.upgrade()? };
        let mut state = server.state();
        let changes = state.store.take_outbox();
        let whole = whole.then(|| (state.store.revision(), state.store.all()));
        if state.store.tables().len() != self.names.len() {
            self.names = state.store.tables().map(|it| state.store.table_name(it).into()).collect();
        }
        Some(PendingChanges { names: Arc::clone(&self.names), changes, whole })
    }

    fn publish(&self, table: TableId, revision: u64) {
        if let Some(shared) = self.server.upgrade() {
            ApiServer { shared }.publish(table, revision);
        }
    }
}
