//! Keeps track of what an API server serves.

use std::sync::Arc;
use std::time::Duration;

use loadmaster_client::answer::status_of;
use loadmaster_client::{Lane, Request};
use tokio::sync::{Notify, mpsc};

use crate::served::Served;

/// What is served is asked for so often, as kube-controller-manager does.
const PERIOD: Duration = Duration::from_secs(30);

/// After a change of definitions it is asked for so soon, then later each time: a server needs a moment until it serves what is defined.
const SOON: Duration = Duration::from_millis(200);

/// With many groups the answer is large.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// Tells what is served at first and whenever it has changed, until nobody listens. `definitions` tells that it may have changed.
pub(super) async fn follow(lane: Lane, definitions: Arc<Notify>, out: mpsc::Sender<Served>) {
    let mut known = Served::default();
    let mut pause = PERIOD;
    loop {
        match ask(&lane, &known).await {
            Ok(served) if served == known => {}
            Ok(served) => {
                known = served.clone();
                if out.send(served).await.is_err() {
                    return;
                }
            }
            Err(error) => {
                tracing::warn!(error, "it is not known what the server serves");
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

async fn ask(lane: &Lane, known: &Served) -> Result<Served, String> {
    let mut documents = Vec::new();
    for path in Served::PATHS {
        let request = Request {
            accept: Served::ACCEPT,
            answer_bytes_max: ANSWER_BYTES_MAX,
            ..Request::get(path)
        };
        let reply = lane.call(&request).await.map_err(|error| error.to_string())?;
        if !reply.is_success() {
            let status = status_of(reply.status, &reply.body);
            return Err(format!("{path}: {} {}", reply.status, status.message));
        }
        documents.push(reply.body);
    }
    known.read(&documents).map_err(|error| format!("discovery: {error}"))
}
