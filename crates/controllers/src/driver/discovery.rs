//! Polls API discovery for the kinds that an API server serves.

use std::sync::Arc;
use std::time::Duration;

use loadmaster_client::status::decode_status;
use loadmaster_client::{ApiClient, Request};
use tokio::sync::{Notify, mpsc};

use crate::served_kinds::ServedKinds;

/// Discovery is polled at this interval, as by kube-controller-manager.
const PERIOD: Duration = Duration::from_secs(30);

/// Delay of the first poll after a CustomResourceDefinition or APIService changed, then doubled: a server needs some time to serve a new kind.
const SOON: Duration = Duration::from_millis(200);

/// With many groups the response is large.
const RESPONSE_BYTES_MAX: usize = 64 << 20;

/// Sends the served kinds at first and whenever they have changed, until the receiver is closed. `definitions` triggers a poll.
pub(super) async fn poll_served_kinds(
    client: ApiClient,
    definitions: Arc<Notify>,
    out: mpsc::Sender<ServedKinds>,
) {
    let mut known = ServedKinds::default();
    let mut pause = PERIOD;
    loop {
        match read_served_kinds(&client, &known).await {
            Ok(served) if served == known => {}
            Ok(served) => {
                known = served.clone();
                if out.send(served).await.is_err() {
                    return;
                }
            }
            Err(error) => {
                tracing::warn!(error, "API discovery failed");
                pause = pause.min(SOON * 5);
            }
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => pause = PERIOD.min(pause * 2),
            () = definitions.notified() => {
                tokio::time::sleep(SOON).await;
                pause = SOON;
            }
        }
    }
}

async fn read_served_kinds(client: &ApiClient, known: &ServedKinds) -> Result<ServedKinds, String> {
    let mut documents = Vec::new();
    for path in ServedKinds::DISCOVERY_PATHS {
        let request = Request {
            accept: ServedKinds::DISCOVERY_ACCEPT,
            response_bytes_max: RESPONSE_BYTES_MAX,
            ..Request::get(path)
        };
        let reply = client.call(&request).await.map_err(|error| error.to_string())?;
        if !reply.is_success() {
            let status = decode_status(reply.status, &reply.body);
            return Err(format!("{path}: {} {}", reply.status, status.message));
        }
        documents.push(reply.body);
    }
    known.read_discovery(&documents).map_err(|error| format!("discovery: {error}"))
}
