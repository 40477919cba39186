//! Who asks our endpoints, and may they: the reviews of the API server.

use std::sync::Arc;

use http::Method;
use loadmaster_client::lane::{Lane, Request};
use loadmaster_client::{Cluster, ClusterOptions, Lanes};

use super::RunError;
use crate::serve::{Api, ApiCall, ApiFuture, ApiReply};

/// The API server as the endpoints ask it.
#[derive(Clone)]
pub(super) struct Authority {
    lane: Lane,
}

impl Authority {
    /// Over this lane.
    pub fn new(lane: &Lane) -> Authority {
        Authority { lane: lane.clone() }
    }
}

/// With the credentials of a kubeconfig, or with our own when none is named.
pub(super) async fn of(kubeconfig: &str, own: &Authority) -> Result<Arc<dyn Api>, RunError> {
    if kubeconfig.is_empty() {
        return Ok(Arc::new(own.clone()));
    }
    let options = ClusterOptions {
        kubeconfig: Some(kubeconfig.into()),
        context: None,
        master: None,
        user_agent: super::user_agent(),
    };
    let cluster = Cluster::find(&options).await?;
    Ok(Arc::new(Authority::new(&Lanes::new(&cluster).other)))
}

impl Api for Authority {
    fn call(&self, call: ApiCall) -> ApiFuture<'_> {
        Box::pin(async move {
            let request = match &call.body {
                Some(body) => Request::with(Method::POST, call.path, body.to_string()),
                None => Request::get(call.path),
            };
            let reply = self.lane.call(&request).await.map_err(|error| error.to_string())?;
            let body = serde_json::from_slice(&reply.body).unwrap_or_default();
            Ok(ApiReply { status: reply.status, body })
        })
    }
}
