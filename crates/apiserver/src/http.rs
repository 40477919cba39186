//! The HTTP server: one port for HTTP/1.1 and HTTP/2, with TLS or without.

mod fault_injection;
mod limits;
mod tls;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, header};
use http_body_util::{BodyExt as _, Limited};
use loadmaster_serving::{CREDENTIAL_ID, CertificateSubject, Incoming, Peer};
use loadmaster_stdx::ErrorChain;
use loadmaster_stdx::catch_panic::catch_panic;
use tokio::net::TcpListener;

use crate::audit::{LongRunning, PeerAddress};
use crate::authentication::User;
use crate::server::{ApiResponse, ApiServer, BODY_BYTES_MAX, Body};
use crate::status::ApiError;

pub use fault_injection::FaultInjector;
pub use limits::HttpLimits;
use limits::LimitSemaphores;
pub use tls::{CERTIFICATE_RENEW_AFTER, CertificateAndKey, Pki, TlsError};

/// How often periodic work is done without requests.
const MAINTENANCE_INTERVAL: Duration = Duration::from_secs(5);

/// Serves connections for ever. Without `pki` connections are plain HTTP and every client is admin: for tests.
pub async fn serve(listener: TcpListener, server: ApiServer, pki: Option<Arc<Pki>>) {
    serve_with_options(listener, server, pki, HttpLimits::default(), FaultInjector::default()).await
}

/// [`serve`] with limits and fault injection.
pub async fn serve_with_options(
    listener: TcpListener,
    server: ApiServer,
    pki: Option<Arc<Pki>>,
    bounds: HttpLimits,
    faults: FaultInjector,
) {
    let service = Arc::new(Service {
        server: server.clone(),
        gates: LimitSemaphores::new(bounds),
        faults,
        is_plain_http: pki.is_none(),
    });
    let handler = move |peer: Arc<Peer>, request: Request<Incoming>| {
        let service = Arc::clone(&service);
        async move { fault_injection::respond_with_faults(&service, &peer, request).await }
    };
    let tls = || pki.as_ref().map(|pki| pki.server_config());
    let never = std::future::pending();
    tokio::select! {
        () = loadmaster_serving::serve(listener, tls, bounds.connections, handler, never) => {}
        never = run_maintenance(&server, pki.as_deref()) => match never {},
    }
}

/// Does periodic work.
async fn run_maintenance(server: &ApiServer, pki: Option<&Pki>) -> Infallible {
    let mut interval = tokio::time::interval(MAINTENANCE_INTERVAL);
    loop {
        interval.tick().await;
        let maintained = catch_panic(|| {
            server.run_maintenance();
            pki.map_or(Ok(()), |pki| pki.renew_if_due(server.now()))
        });
        match maintained {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::error!(err = %ErrorChain(&error), "renewing the certificate of the API server failed");
            }
            Err(panic) => tracing::error!(%panic, "periodic work of the API server panicked"),
        }
    }
}

/// What all requests need.
struct Service {
    server: ApiServer,
    gates: LimitSemaphores,
    faults: FaultInjector,
    is_plain_http: bool,
}

/// The user of a verified client certificate: its common name, with its organizations as groups.
fn user_of(subject: &CertificateSubject) -> Option<User> {
    if subject.common_name.is_empty() {
        return None;
    }
    let mut user = User::authenticated(&subject.common_name, subject.organizations.clone());
    user.uid.clone_from(&subject.uid);
    user.extra.insert(CREDENTIAL_ID.to_owned(), vec![subject.credential_id.clone()]);
    Some(user)
}

impl Service {
    /// The user of a request.
    ///
    /// # Errors
    ///
    /// 401.
    fn authenticate(&self, peer: &Peer, path: &str, headers: &HeaderMap) -> Result<User, ApiError> {
        if self.is_plain_http {
            return Ok(User::admin());
        }
        let subject = peer.subject().map_err(|_| ApiError::unauthorized())?;
        // The handshake has verified it, but a connection may last longer than a certificate.
        if subject.is_some_and(|subject| subject.not_after < self.server.now()) {
            return Err(ApiError::unauthorized());
        }
        self.server.authenticate(subject.and_then(user_of), path, headers)
    }
}

async fn respond(service: &Service, peer: &Peer, request: Request<Incoming>) -> Response<Body> {
    let Service { server, gates, .. } = service;
    let (mut parts, body) = request.into_parts();
    let user = service.authenticate(peer, parts.uri.path(), &parts.headers);
    let peer = PeerAddress(peer.address.ip());
    let user = match user {
        Ok(user) => user,
        Err(error) => {
            return server.refuse_unauthenticated(
                &parts.method,
                &parts.uri,
                &parts.headers,
                Some(peer),
                error,
            );
        }
    };
    let Some(permit) = gates.request() else { return busy() };
    let whole = Limited::new(body, BODY_BYTES_MAX).collect();
    let refuse = |error: &ApiError| ApiResponse::error(error).into_response();
    let body: Bytes = match tokio::time::timeout(gates.bounds.body_time, whole).await {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(_)) => return refuse(&ApiError::too_large(BODY_BYTES_MAX)),
        Err(_) => {
            return refuse(&ApiError::bad_request("the request body was not received in time"));
        }
    };
    // The token is not needed any more.
    parts.headers.remove(header::AUTHORIZATION);
    parts.extensions.insert(peer);
    let mut response = server.handle_durably(&user, &Request::from_parts(parts, body)).await;
    if response.extensions().get::<LongRunning>().is_some() {
        let Some(watch) = gates.watch() else { return busy() };
        response.body_mut().when_done(move || drop(watch));
    } else {
        // Held until all of it is sent, so that slow readers count against the limit.
        response.body_mut().when_done(move || drop(permit));
    }
    response
}

/// A 429 with upstream's message.
fn busy() -> Response<Body> {
    let answer = ApiResponse::text(429, "Too many requests, please try again later.\n");
    let mut response = answer.into_response();
    response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_names_its_user() {
        #[track_caller]
        fn check(common_name: &str, organizations: &[&str], want: Option<(&str, &str)>) {
            let subject = CertificateSubject {
                common_name: common_name.to_owned(),
                organizations: organizations.iter().map(|it| (*it).to_owned()).collect(),
                uid: "7".to_owned(),
                credential_id: "X509SHA256=ab".to_owned(),
                ..CertificateSubject::default()
            };
            let user = user_of(&subject);
            let shown = user.as_ref().map(|it| (it.name.clone(), it.groups.join(",")));
            let shown = shown.as_ref().map(|(name, groups)| (name.as_str(), groups.as_str()));
            assert_eq!(shown, want);
            if let Some(user) = user {
                assert_eq!(
                    (&*user.uid, &user.extra[CREDENTIAL_ID][..]),
                    ("7", &["X509SHA256=ab".to_owned()][..])
                );
            }
        }
        check("ann", &["a"], Some(("ann", "a,system:authenticated")));
        check("bob", &[], Some(("bob", "system:authenticated")));
        check("", &["system:masters"], None);
    }
}
