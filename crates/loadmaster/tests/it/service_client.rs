//! The client of services, against the embedded API server over HTTP/1.1.

use std::pin::pin;
use std::time::Duration;

use futures::StreamExt as _;
use loadmaster::k8s_openapi::api::core::v1::{ConfigMap, Node};
use loadmaster::kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch,
    PatchParams, PostParams, WatchEvent, WatchParams,
};
use loadmaster::kube::{Error, ResourceExt as _};
use loadmaster::serde_json::{Value, from_value, json};
use loadmaster::testkit::ServiceTestBench;

type TestResult = Result<(), Box<dyn std::error::Error + Send + Sync>>;

fn data(map: &ConfigMap) -> Value {
    json!(map.data)
}

#[tokio::test]
async fn typed_objects() -> TestResult {
    let bench = ServiceTestBench::start().await?;
    let maps = Api::<ConfigMap>::namespaced(bench.client(), "default");
    let map: ConfigMap = from_value(json!({"metadata": {"name": "state"}, "data": {"a": "1"}}))?;
    let post = PostParams::default();
    let mut created = maps.create(&post, &map).await?;
    let Err(Error::Api(conflict)) = maps.create(&post, &map).await else { panic!("created twice") };
    assert_eq!((conflict.code, conflict.reason.as_str()), (409, "AlreadyExists"));

    created.data.get_or_insert_default().insert("b".to_owned(), "2".to_owned());
    let updated = maps.replace("state", &post, &created).await?;
    assert_eq!(data(&updated), json!({"a": "1", "b": "2"}));

    let params = PatchParams::default();
    let merge = Patch::Merge(json!({"data": {"a": null}}));
    assert_eq!(data(&maps.patch("state", &params, &merge).await?), json!({"b": "2"}));
    let operations = json!([{"op": "replace", "path": "/data/b", "value": "3"}]);
    let operations = Patch::Json::<ConfigMap>(from_value(operations)?);
    assert_eq!(data(&maps.patch("state", &params, &operations).await?), json!({"b": "3"}));
    let applied = Patch::Apply(json!({
        "apiVersion": "v1", "kind": "ConfigMap", "data": {"c": "4"},
    }));
    let params = PatchParams::apply("controller");
    assert_eq!(data(&maps.patch("state", &params, &applied).await?), json!({"b": "3", "c": "4"}));

    assert_eq!(data(&maps.get("state").await?), json!({"b": "3", "c": "4"}));
    assert_eq!(maps.list(&ListParams::default()).await?.items.len(), 1);
    maps.delete("state", &DeleteParams::default()).await?;
    assert!(maps.get_opt("state").await?.is_none());
    Ok(())
}

#[tokio::test]
async fn the_status_is_patched_apart_from_the_spec() -> TestResult {
    let bench = ServiceTestBench::start().await?;
    let nodes = Api::<Node>::all(bench.client());
    let node: Node = from_value(json!({"metadata": {"name": "a"}}))?;
    nodes.create(&PostParams::default(), &node).await?;
    let patch = Patch::Merge(json!({
        "spec": {"unschedulable": true}, "status": {"capacity": {"example.com/gpu": "2"}},
    }));
    nodes.patch_status("a", &PatchParams::default(), &patch).await?;
    let node = nodes.get("a").await?;
    assert_eq!(json!(node.status)["capacity"], json!({"example.com/gpu": "2"}));
    assert_eq!(json!(node.spec)["unschedulable"], Value::Null);
    Ok(())
}

#[tokio::test]
async fn objects_without_types() -> TestResult {
    let bench = ServiceTestBench::start().await?;
    let kind = GroupVersionKind::gvk("apps", "v1", "Deployment");
    let kind = ApiResource::from_gvk_with_plural(&kind, "deployments");
    let deployments = Api::<DynamicObject>::namespaced_with(bench.client(), "default", &kind);
    let object = DynamicObject::new("web", &kind).data(json!({"spec": {
        "selector": {"matchLabels": {"app": "web"}},
        "template": {
            "metadata": {"labels": {"app": "web"}},
            "spec": {"containers": [{"name": "main", "image": "registry.example/main"}]},
        },
    }}));
    deployments.create(&PostParams::default(), &object).await?;
    let patch = Patch::Merge(json!({"spec": {"replicas": 3}}));
    let patched = deployments.patch("web", &PatchParams::default(), &patch).await?;
    assert_eq!(patched.data["spec"]["replicas"], 3);
    let missing = Api::<DynamicObject>::namespaced_with(
        bench.client(),
        "default",
        &ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("e.io", "v1", "Foo"), "foos"),
    );
    let Err(Error::Api(status)) = missing.list(&ListParams::default()).await else { panic!() };
    assert_eq!(status.code, 404);
    Ok(())
}

#[tokio::test]
async fn watches() -> TestResult {
    let bench = ServiceTestBench::start().await?;
    let maps = Api::<ConfigMap>::namespaced(bench.client(), "default");
    let create = async |name: &str| {
        let map = json!({"metadata": {"name": name, "labels": {"app": name}}});
        maps.create(&PostParams::default(), &from_value(map)?).await?;
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    };
    create("before").await?;
    let params = WatchParams::default().labels("app in (before, after)");
    let mut events = pin!(maps.watch(&params, "0").await?);
    create("other").await?;
    create("after").await?;
    maps.delete("before", &DeleteParams::default()).await?;
    let mut seen = Vec::new();
    while seen.len() < 3 {
        let event = tokio::time::timeout(Duration::from_secs(30), events.next()).await?;
        seen.push(match event.ok_or("the watch has ended")?? {
            WatchEvent::Added(map) => format!("added {}", map.name_any()),
            WatchEvent::Deleted(map) => format!("deleted {}", map.name_any()),
            other => format!("{other:?}"),
        });
    }
    assert_eq!(seen, ["added before", "added after", "deleted before"]);
    Ok(())
}
