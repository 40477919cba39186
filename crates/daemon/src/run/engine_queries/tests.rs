//! Replies of the `/explain` endpoint.

use serde_json::{Value, json};
use tokio::sync::mpsc::unbounded_channel;

use super::*;
use crate::run::testkit;

fn engine_queries() -> EngineQueries {
    let pods = [
        ("old", json!({"nodeName": "a"})),
        ("fits", json!({"schedulingGates": [{"name": "quota"}]})),
        ("large", json!({"nodeSelector": {"disk": "ssd"}})),
    ];
    let mut engine = testkit::engine(&["a", "b"], &pods);
    testkit::schedule_pods(&mut engine);
    EngineQueries::new(&testkit::spawn_engine_thread(engine))
}

async fn request_explain(queries: &EngineQueries, method: Method, path: &str) -> (u16, String) {
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    let request = RouteRequest { method, path: path.to_owned(), query: query.to_owned() };
    let reply = explain(queries, &request).await;
    (reply.status.as_u16(), String::from_utf8_lossy(&reply.body).into_owned())
}

#[tokio::test]
async fn explain_reports_pending_pods_and_rejects_bad_requests() {
    let queries = engine_queries();
    let get = |path: &'static str| request_explain(&queries, Method::GET, path);
    let (status, body) = get("/explain/shop/fits").await;
    let explained: Explanation = serde_json::from_str(&body).unwrap();
    assert_eq!((status, &*explained.pod, explained.best), (200, "shop/fits", vec!["b".to_owned()]));
    let (status, body) = get("/explain/shop/large").await;
    let explained: Explanation = serde_json::from_str(&body).unwrap();
    assert_eq!((status, explained.nodes.len(), explained.best), (200, 2, vec![]));
    let (status, body) = get("/explain/shop/large?last").await;
    let explained: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(status, 200);
    assert_eq!(explained["state"], "unschedulable");
    assert_eq!(explained["last"]["rejectedNodes"][0]["nodes"], 2);
    let (status, body) = get("/explain/shop/old?last").await;
    let explained: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(
        (status, &explained["state"], &explained["node"]),
        (200, &json!("assigned"), &json!("a"))
    );
    let text = "shop/old is already assigned to a: only unassigned pods can be explained\n";
    assert_eq!(get("/explain/shop/old").await, (409, text.to_owned()));
    let text = "pod shop/unknown is not pending in this scheduler\n";
    assert_eq!(get("/explain/shop/unknown").await, (404, text.to_owned()));
    assert_eq!(get("/explain/shop/unknown?last").await, (404, text.to_owned()));
    for path in ["/explain", "/explain/shop", "/explain/shop/a/b", "/explain/shop/fits?what=1"] {
        assert_eq!(get(path).await.0, 400, "{path}");
    }
    assert_eq!(request_explain(&queries, Method::POST, "/explain/shop/fits").await.0, 405);
}

#[tokio::test]
async fn a_stopped_engine_is_reported_as_unavailable() {
    let (commands, _) = unbounded_channel();
    let queries = EngineQueries::new(&commands);
    assert_eq!(request_explain(&queries, Method::GET, "/explain/a/b").await.0, 503);
}

#[tokio::test]
async fn a_panicking_query_does_not_stop_the_engine() {
    let queries = engine_queries();
    let result: Result<(), QueryError> = queries.query(|_| panic!("on purpose")).await;
    assert_eq!(result, Err(QueryError::Panicked));
    assert_eq!(QueryError::Panicked.reply().status, StatusCode::INTERNAL_SERVER_ERROR);
    // Capturing the backtrace may have taken long, and the pause after the query is proportional to that.
    *queries.next_query_at.lock().await = Instant::now();
    assert_eq!(request_explain(&queries, Method::GET, "/explain/shop/fits").await.0, 200);
}

#[tokio::test(start_paused = true)]
async fn queries_are_serialized_and_limited_to_a_share_of_the_engines_time() {
    let (commands, mut commands_received) = unbounded_channel();
    let queries = EngineQueries::new(&commands);
    let mut engine = testkit::engine(&["a"], &[]);
    let spawn_query = |queries: &EngineQueries| {
        let queries = queries.clone();
        tokio::spawn(async move { queries.query(|_| ()).await })
    };
    let (first, second) = (spawn_query(&queries), spawn_query(&queries));
    let Some(Command::Query(query)) = commands_received.recv().await else { panic!("no query") };
    tokio::task::yield_now().await;
    assert!(commands_received.try_recv().is_err(), "two concurrent queries");
    // The first requester has given up: its query is skipped and does not delay the second one.
    first.abort();
    assert!(first.await.is_err());
    query(&mut engine);
    let Some(Command::Query(query)) = commands_received.recv().await else { panic!("no query") };
    query(&mut engine);
    assert_eq!(second.await.unwrap(), Ok(()));
    // A query of one second is followed by a pause of 19 seconds, longer than any request waits.
    *queries.next_query_at.lock().await =
        Instant::now() + Duration::from_secs(QUERY_PAUSE_FACTOR.into());
    assert_eq!(spawn_query(&queries).await.unwrap(), Err(QueryError::Busy));
    assert_eq!(QueryError::Busy.reply().status, StatusCode::TOO_MANY_REQUESTS);
}
