//! A server over a data folder: what it had is there again, and nothing is answered that could still be lost.

use std::path::Path;
use std::sync::{Arc, Weak};

use http::{Request, Response};
use loadmaster_stdx::caught::catch;

use super::body::Body;
use super::{Answer, ApiServer, Options, Setup, Shared};
use crate::auth::User;
use crate::journal::{Compaction, DataError, Journal, Opened, Source, Taken};
use crate::object::{parsed, selectable_fingerprint, selectable_values};
use crate::status::ApiError;
use crate::store::{Filter, Span, Store, TableId};

/// Why a server cannot go on from a folder.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    #[error(transparent)]
    Data(#[from] DataError),
    #[error("setting up the cluster")]
    Cluster(#[source] ApiError),
}

impl ApiServer {
    /// A server that keeps everything in a folder, and goes on from what is there. The journal has to be listened to: see
    /// [`Journal::failed`].
    ///
    /// # Errors
    ///
    /// When the folder cannot be used or its files are damaged.
    pub fn open(
        options: Options,
        setup: Setup,
        folder: &Path,
        compaction: Compaction,
    ) -> Result<(ApiServer, Journal), OpenError> {
        let opened = Opened::open(folder, options.limits, selectable_fingerprint())?;
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
        server.look_at_definitions();
        server.go_on_with_deletions().map_err(OpenError::Cluster)?;
        Ok((server, journal))
    }

    /// Answers a request. With a data folder the answer comes when all that it can tell of is on disk: a revision that was
    /// shown is never used for something else after a crash. A panic costs the request that met it, and no other.
    pub async fn respond(&self, user: &User, request: &Request<bytes::Bytes>) -> Response<Body> {
        let mut entry = None;
        let handled = catch(|| self.handle_noting(user, request, &mut entry));
        let response = handled.unwrap_or_else(|panic| self.panicked(entry, request, &panic));
        let Some(journal) = &self.shared.journal else { return response };
        let revision = self.state().store.revision();
        match journal.wait(revision).await {
            Ok(()) => response,
            Err(_) => {
                let why =
                    "the data folder cannot be written: whether this change is kept is not known";
                Answer::error(&ApiError::internal(why)).into_response()
            }
        }
    }

    /// Up to which revision changes may be shown to watchers.
    pub(super) fn visible(&self, store: &Store) -> u64 {
        match &self.shared.journal {
            Some(journal) => journal.durable().min(store.revision()),
            None => store.revision(),
        }
    }

    /// Labels and fields by today's rules; another version of this program may have had others.
    fn take_fields_anew(&self) -> Result<(), ApiError> {
        let mut state = self.state();
        let revision = state.store.revision();
        for kind in self.kinds().iter() {
            let Some(table) = kind.table else { continue };
            let page = state.store.list(table, &Span::default(), &Filter::everything());
            for object in page.map_err(|error| ApiError::internal(&error.to_string()))?.objects {
                let value = parsed(&object)?;
                let facts = (crate::object::labels(&value), selectable_values(kind, &value));
                state.store.restore(table, object.with_facts(facts.0, facts.1));
            }
            // Versions that are history have the old ones.
            state.store.compact(table, revision);
        }
        Ok(())
    }
}

/// A server as its journal sees it.
struct Changes {
    server: Weak<Shared>,
    names: Arc<[Box<str>]>,
}

impl Source for Changes {
    fn take(&mut self, whole: bool) -> Option<Taken> {
        let server = ApiServer { shared: self.server.upgrade()? };
        let mut state = server.state();
        let changes = state.store.take_outbox();
        let whole = whole.then(|| (state.store.revision(), state.store.all()));
        if state.store.tables().len() != self.names.len() {
            self.names = state.store.tables().map(|it| state.store.name(it).into()).collect();
        }
        Some(Taken { names: Arc::clone(&self.names), changes, whole })
    }

    fn publish(&self, table: TableId, revision: u64) {
        if let Some(shared) = self.server.upgrade() {
            ApiServer { shared }.publish(table, revision);
        }
    }
}
