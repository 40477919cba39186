//! Audit log entries of requests.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, Uri, header};
use loadmaster_stdx::catch_panic::CaughtPanic;

use super::body::Body;
use super::{ApiResponse, ApiServer, uid};
use crate::audit::{AuditEntry, CreatedName, LongRunning, PeerAddress, Stage};
use crate::authentication::User;
use crate::authorization::{AuthorizationAttributes, RequestTarget};
use crate::status::ApiError;

/// The header that correlates the audit entries of several servers for one request.
const AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");

/// A longer id of a client is ignored.
const AUDIT_ID_MAX: usize = 64;

const PANICKED: &str = "This request caused apiserver to panic. Look in the logs for details.\n";

impl ApiServer {
    /// Begins the audit entry of a request, if the policy has one.
    pub(super) fn begin_entry(
        &self,
        attributes: &AuthorizationAttributes<'_>,
        version: &str,
        request: &Request<Bytes>,
    ) -> Option<AuditEntry> {
        let peer = request.extensions().get::<PeerAddress>().copied();
        self.entry(attributes, version, (request.uri(), request.headers(), peer))
    }

    fn entry(
        &self,
        attributes: &AuthorizationAttributes<'_>,
        version: &str,
        request: (&Uri, &HeaderMap, Option<PeerAddress>),
    ) -> Option<AuditEntry> {
        let audit = self.shared.setup.audit.as_ref()?;
        let given = request.1.get(AUDIT_ID).and_then(|it| it.to_str().ok());
        let id = match given.filter(|it| !it.is_empty() && it.len() <= AUDIT_ID_MAX) {
            Some(given) => given.to_owned(),
            None => uid(&mut self.state().rng),
        };
        audit.begin(&id, attributes, version, self.now(), request)
    }

    /// Writes the audit entry when the response has been sent; of a watch, also that the response has started.
    pub(super) fn end_entry(
        &self,
        entry: Option<AuditEntry>,
        answer: Result<Response<Body>, ApiError>,
    ) -> Response<Body> {
        let (mut response, error) = match answer {
            Ok(response) => (response, None),
            Err(error) => (ApiResponse::error(&error).into_response(), Some(error)),
        };
        let (Some(mut entry), Some(audit)) = (entry, self.shared.setup.audit.as_ref()) else {
            return response;
        };
        set_audit_id_header(&mut response, &entry);
        if let Some(CreatedName(name)) = response.extensions_mut().remove() {
            entry.set_object_name(&name);
        }
        let code = response.status().as_u16();
        if !response.body().is_stream() {
            audit.write(&entry, Stage::ResponseComplete, self.now(), (code, error.as_ref()));
            return response;
        }
        if response.extensions().get::<LongRunning>().is_some() {
            audit.write(&entry, Stage::ResponseStarted, self.now(), (code, None));
        }
        let server = self.clone();
        response.body_mut().when_done(move || {
            if let Some(audit) = server.shared.setup.audit.as_ref() {
                audit.write(&entry, Stage::ResponseComplete, server.now(), (code, None));
            }
        });
        response
    }

    /// The response to a request that panicked, which is a bug; with upstream's message.
    pub(super) fn panicked(
        &self,
        entry: Option<AuditEntry>,
        request: &Request<Bytes>,
        panic: &CaughtPanic,
    ) -> Response<Body> {
        let id = entry.as_ref().map_or("", AuditEntry::id);
        let (method, uri) = (request.method(), request.uri());
        tracing::error!(%method, URI = %uri, auditID = id, %panic, "apiserver panic'd");
        let answer = ApiResponse::text(500, PANICKED);
        let answer = answer.with_header(header::X_CONTENT_TYPE_OPTIONS, "nosniff");
        let mut response = answer.into_response();
        if let (Some(entry), Some(audit)) = (entry, self.shared.setup.audit.as_ref()) {
            set_audit_id_header(&mut response, &entry);
            let error = ApiError::panicked(&panic.message);
            audit.write(&entry, Stage::Panic, self.now(), (500, Some(&error)));
        }
        response
    }

    /// The response to a request with invalid credentials.
    pub fn refuse_unauthenticated(
        &self,
        method: &http::Method,
        uri: &Uri,
        headers: &HeaderMap,
        peer: Option<PeerAddress>,
        error: ApiError,
    ) -> Response<Body> {
        let verb = method.as_str().to_ascii_lowercase();
        let nobody = User::default();
        let attributes = AuthorizationAttributes {
            user: &nobody,
            verb: &verb,
            what: RequestTarget::Path(uri.path()),
        };
        let entry = self.entry(&attributes, "", (uri, headers, peer));
        self.end_entry(entry, Err(error))
    }
}

/// Sets the request's id as a response header.
fn set_audit_id_header(response: &mut Response<Body>, entry: &AuditEntry) {
    if let Ok(id) = HeaderValue::from_str(entry.id()) {
        response.headers_mut().insert(AUDIT_ID, id);
    }
}
