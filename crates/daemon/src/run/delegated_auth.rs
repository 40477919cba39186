//! Delegated authentication and authorization for our endpoints: TokenReview and SubjectAccessReview requests to the API server.

use std::sync::Arc;

use http::Method;
use loadmaster_client::api_client::{ApiClient, Request};
use loadmaster_client::{ApiClients, Cluster, ClusterOptions};

use super::RunError;
use crate::serve::{ReviewClient, ReviewFuture, ReviewRequest, ReviewResponse};

/// Sends reviews to the API server.
#[derive(Clone)]
pub(super) struct DelegatedReviewClient {
    client: ApiClient,
}

impl DelegatedReviewClient {
    /// Uses this API client.
    pub fn new(client: &ApiClient) -> DelegatedReviewClient {
        DelegatedReviewClient { client: client.clone() }
    }
}

/// A client with the credentials of a kubeconfig file, or `own` if no file is given.
pub(super) async fn review_client(
    kubeconfig: &str,
    own: &DelegatedReviewClient,
) -> Result<Arc<dyn ReviewClient>, RunError> {
    if kubeconfig.is_empty() {
        return Ok(Arc::new(own.clone()));
    }
    let options = ClusterOptions {
        kubeconfig: Some(kubeconfig.into()),
        context: None,
        master: None,
        user_agent: super::user_agent(),
    };
    let cluster = Cluster::from_options(&options).await?;
    Ok(Arc::new(DelegatedReviewClient::new(&ApiClients::new(&cluster).other)))
}

impl ReviewClient for DelegatedReviewClient {
    fn call(&self, call: ReviewRequest) -> ReviewFuture<'_> {
        Box::pin(async move {
            let request = match &call.body {
                Some(body) => Request::with_body(Method::POST, call.path, body.to_string()),
                None => Request::get(call.path),
            };
            let reply = self.client.call(&request).await.map_err(|error| error.to_string())?;
            let body = loadmaster_stdx::json::from_slice(&reply.body).unwrap_or_default();
            Ok(ReviewResponse { status: reply.status, body })
        })
    }
}
