//! `/explain`, as the endpoint answers it.

use serde_json::{Value, json};
use tokio::sync::mpsc::unbounded_channel;

use super::*;
use crate::run::testkit;

fn asking() -> Asking {
    let pods = [
        ("old", json!({"nodeName": "a"})),
        ("fits", json!({"schedulingGates": [{"name": "quota"}]})),
        ("large", json!({"nodeSelector": {"disk": "ssd"}})),
    ];
    let mut engine = testkit::engine(&["a", "b"], &pods);
    testkit::try_pods(&mut engine);
    Asking::new(&testkit::on_thread(engine))
}

async fn ask(asking: &Asking, method: Method, path: &str) -> (u16, String) {
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    let request = RouteRequest { method, path: path.to_owned(), query: query.to_owned() };
    let reply = explain(asking, &request).await;
    (reply.status.as_u16(), String::from_utf8_lossy(&reply.body).into_owned())
}

#[tokio::test]
async fn what_is_asked_and_what_is_answered() {
    let asking = asking();
    let get = |path: &'static str| ask(&asking, Method::GET, path);
    let (status, body) = get("/explain/shop/fits").await;
    let told: Explanation = serde_json::from_str(&body).unwrap();
    assert_eq!((status, &*told.pod, told.best), (200, "shop/fits", vec!["b".to_owned()]));
    let (status, body) = get("/explain/shop/large").await;
    let told: Explanation = serde_json::from_str(&body).unwrap();
    assert_eq!((status, told.nodes.len(), told.best), (200, 2, vec![]));
    let (status, body) = get("/explain/shop/large?last").await;
    let told: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(status, 200);
    assert_eq!(told["state"], "unschedulable");
    assert_eq!(told["last"]["turnedDown"][0]["nodes"], 2);
    let (status, body) = get("/explain/shop/old?last").await;
    let told: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((status, &told["state"], &told["node"]), (200, &json!("assigned"), &json!("a")));
    let text = "shop/old is on a: only pods without a node are explained here\n";
    assert_eq!(get("/explain/shop/old").await, (409, text.to_owned()));
    let text = "no such pod waits here: shop/nobody\n";
    assert_eq!(get("/explain/shop/nobody").await, (404, text.to_owned()));
    assert_eq!(get("/explain/shop/nobody?last").await, (404, text.to_owned()));
    for path in ["/explain", "/explain/shop", "/explain/shop/a/b", "/explain/shop/fits?what=1"] {
        assert_eq!(get(path).await.0, 400, "{path}");
    }
    assert_eq!(ask(&asking, Method::POST, "/explain/shop/fits").await.0, 405);
}

#[tokio::test]
async fn an_engine_that_has_ended_is_said_to_be_gone() {
    let (commands, _) = unbounded_channel();
    let asking = Asking::new(&commands);
    assert_eq!(ask(&asking, Method::GET, "/explain/a/b").await.0, 503);
}

#[tokio::test]
async fn a_question_that_panics_leaves_the_engine_alive() {
    let asking = asking();
    let answer: Result<(), Unanswered> = asking.ask(|_| panic!("on purpose")).await;
    assert_eq!(answer, Err(Unanswered::Panicked));
    assert_eq!(Unanswered::Panicked.reply().status, StatusCode::INTERNAL_SERVER_ERROR);
    // Writing down where it panicked may have taken long, and the rest after it is in proportion.
    *asking.free_from.lock().await = Instant::now();
    assert_eq!(ask(&asking, Method::GET, "/explain/shop/fits").await.0, 200);
}

#[tokio::test(start_paused = true)]
async fn questions_come_one_at_a_time_and_leave_the_engine_alone_in_between() {
    let (commands, mut questions) = unbounded_channel();
    let asking = Asking::new(&commands);
    let engine = testkit::engine(&["a"], &[]);
    let ask = |asking: &Asking| {
        let asking = asking.clone();
        tokio::spawn(async move { asking.ask(|_| ()).await })
    };
    let (first, second) = (ask(&asking), ask(&asking));
    let Some(Command::Ask(question)) = questions.recv().await else { panic!("no question") };
    tokio::task::yield_now().await;
    assert!(questions.try_recv().is_err(), "two questions at once");
    // The first asker has gone: its question is not answered, and holds up nobody.
    first.abort();
    assert!(first.await.is_err());
    question(&engine);
    let Some(Command::Ask(question)) = questions.recv().await else { panic!("no question") };
    question(&engine);
    assert_eq!(second.await.unwrap(), Ok(()));
    // An answer that takes a second is followed by nineteen of rest, and nobody waits so long.
    *asking.free_from.lock().await = Instant::now() + Duration::from_secs(REST_FACTOR.into());
    assert_eq!(ask(&asking).await.unwrap(), Err(Unanswered::Busy));
    assert_eq!(Unanswered::Busy.reply().status, StatusCode::TOO_MANY_REQUESTS);
}
