//! Writing requests down in the audit log.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, Uri, header};
use loadmaster_stdx::caught::Caught;

use super::body::Body;
use super::{Answer, ApiServer, uid};
use crate::audit::{Created, Entry, Lasting, Peer, Stage};
use crate::auth::User;
use crate::authorize::{Attributes, What};
use crate::status::ApiError;

/// Joins the lines of several servers on one request.
const AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");

/// A longer id of a client is not taken over.
const AUDIT_ID_MAX: usize = 64;

const PANICKED: &str = "This request caused apiserver to panic. Look in the logs for details.\n";

impl ApiServer {
    /// Begins the entry of a request, if there is to be one.
    pub(super) fn begin_entry(
        &self,
        attributes: &Attributes<'_>,
        version: &str,
        request: &Request<Bytes>,
    ) -> Option<Entry> {
        let peer = request.extensions().get::<Peer>().copied();
        self.entry(attributes, version, (request.uri(), request.headers(), peer))
    }

    fn entry(
        &self,
        attributes: &Attributes<'_>,
        version: &str,
        request: (&Uri, &HeaderMap, Option<Peer>),
    ) -> Option<Entry> {
        let audit = self.shared.setup.audit.as_ref()?;
        let given = request.1.get(AUDIT_ID).and_then(|it| it.to_str().ok());
        let id = match given.filter(|it| !it.is_empty() && it.len() <= AUDIT_ID_MAX) {
            Some(given) => given.to_owned(),
            None => uid(&mut self.state().rng),
        };
        audit.begin(&id, attributes, version, self.now(), request)
    }

    /// Writes the end of a request down, when all of it is sent; of a watch before that, that it has begun.
    pub(super) fn end_entry(
        &self,
        entry: Option<Entry>,
        answer: Result<Response<Body>, ApiError>,
    ) -> Response<Body> {
        let (mut response, error) = match answer {
            Ok(response) => (response, None),
            Err(error) => (Answer::error(&error).into_response(), Some(error)),
        };
        let (Some(mut entry), Some(audit)) = (entry, self.shared.setup.audit.as_ref()) else {
            return response;
        };
        tell_id(&mut response, &entry);
        if let Some(Created(name)) = response.extensions_mut().remove() {
            entry.named(&name);
        }
        let code = response.status().as_u16();
        if !response.body().is_stream() {
            audit.write(&entry, Stage::ResponseComplete, self.now(), (code, error.as_ref()));
            return response;
        }
        if response.extensions().get::<Lasting>().is_some() {
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

    /// Answers a request that panicked, which is a bug of ours, in upstream's words.
    pub(super) fn panicked(
        &self,
        entry: Option<Entry>,
        request: &Request<Bytes>,
        panic: &Caught,
    ) -> Response<Body> {
        let id = entry.as_ref().map_or("", Entry::id);
        let (method, uri) = (request.method(), request.uri());
        tracing::error!(%method, URI = %uri, auditID = id, %panic, "apiserver panic'd");
        let answer = Answer::text(500, PANICKED);
        let answer = answer.with_header(header::X_CONTENT_TYPE_OPTIONS, "nosniff");
        let mut response = answer.into_response();
        if let (Some(entry), Some(audit)) = (entry, self.shared.setup.audit.as_ref()) {
            tell_id(&mut response, &entry);
            let error = ApiError::panicked(&panic.message);
            audit.write(&entry, Stage::Panic, self.now(), (500, Some(&error)));
        }
        response
    }

    /// Answers a request whose sender is not who they say.
    pub fn refuse(
        &self,
        method: &http::Method,
        uri: &Uri,
        headers: &HeaderMap,
        peer: Option<Peer>,
        error: ApiError,
    ) -> Response<Body> {
        let verb = method.as_str().to_ascii_lowercase();
        let nobody = User::default();
        let attributes = Attributes { user: &nobody, verb: &verb, what: What::Path(uri.path()) };
        let entry = self.entry(&attributes, "", (uri, headers, peer));
        self.end_entry(entry, Err(error))
    }
}

/// Lets the client name its request.
fn tell_id(response: &mut Response<Body>, entry: &Entry) {
    if let Ok(id) = HeaderValue::from_str(entry.id()) {
        response.headers_mut().insert(AUDIT_ID, id);
    }
}
