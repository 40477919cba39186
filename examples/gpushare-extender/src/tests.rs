//! Tests of the extender with an API server in this process, and requests as a scheduler sends them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use kube::api::{DeleteParams, PostParams};
use kube::{Api, ResourceExt as _};
use loadmaster_apiserver::store::StoreLimits;
use loadmaster_apiserver::{ApiServer, Options};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::time::{sleep, timeout};

use super::*;

/// Longer than anything here takes.
const LONG: Duration = Duration::from_secs(60);

struct Cluster {
    client: Client,
    cache: Cache,
    extender: SocketAddr,
}

impl Cluster {
    /// Starts a cluster of nodes with 5 devices of 7 units each.
    async fn start(n_nodes: u32) -> Cluster {
        let server = ApiServer::new(Options {
            clock: Arc::new(jiff::Timestamp::now),
            seed: 1,
            limits: StoreLimits::default(),
            also_serve: Vec::new(),
        })
        .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(loadmaster_apiserver::http::serve(listener, server, None));
        let client = Client::try_from(Config::new(url.parse().unwrap())).unwrap();
        let cache = Cache::default();
        let listening = extender(&cache, &client).listen("127.0.0.1:0").await.unwrap();
        let cluster = Cluster { client, cache, extender: listening.address() };
        tokio::spawn(listening.run(std::future::pending()));
        for i in 0..n_nodes {
            let amounts = json!({"aliyun.com/gpu-mem": "35", "aliyun.com/gpu-count": "5"});
            cluster.node(&format!("node-{i}"), amounts).await;
        }
        cluster
    }

    async fn start_cache(&self) {
        tokio::spawn(self.cache.clone().run(self.client.clone()));
        self.wait_until(|_| self.cache.is_synced()).await;
    }

    async fn node(&self, name: &str, amounts: Value) {
        let node = json!({"metadata": {"name": name},
            "status": {"capacity": amounts, "allocatable": amounts}});
        let api = Api::<k8s_openapi::api::core::v1::Node>::all(self.client.clone());
        api.create(&PostParams::default(), &serde_json::from_value(node).unwrap()).await.unwrap();
    }

    async fn pod(&self, name: &str, memory: u64) -> Pod {
        let limits = json!({"aliyun.com/gpu-mem": memory.to_string()});
        let pod = json!({"metadata": {"name": name}, "spec": {"containers": [
            {"name": "c", "image": "x", "resources": {"limits": limits}}]}});
        let pod = serde_json::from_value(pod).unwrap();
        self.pods().create(&PostParams::default(), &pod).await.unwrap()
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), "default")
    }

    /// Calls the extender; returns the HTTP status and the response.
    async fn call(&self, verb: &str, body: Value) -> (u16, Value) {
        let url = format!("http://{}", self.extender).parse().unwrap();
        let client = Client::try_from(Config::new(url)).unwrap();
        let request = http::Request::post(format!("/gpushare-scheduler/{verb}"));
        let request = request.body(body.to_string().into_bytes().into()).unwrap();
        let response = client.send(request).await.unwrap();
        let status = response.status().as_u16();
        let body = response.into_body().collect_bytes().await.unwrap();
        (status, serde_json::from_slice(&body).unwrap())
    }

    async fn filter(&self, pod: &Pod, nodes: &[String]) -> Value {
        let (status, answer) = self.call("filter", json!({"Pod": pod, "NodeNames": nodes})).await;
        assert_eq!((status, &answer["Error"]), (200, &json!("")));
        answer
    }

    /// Binds; returns the error, empty on success.
    async fn bind(&self, name: &str, uid: &str, node: &str) -> String {
        let args = json!({
            "PodName": name, "PodNamespace": "default", "PodUID": uid, "Node": node});
        let (status, answer) = self.call("bind", args).await;
        assert_eq!(status, 200);
        answer["Error"].as_str().unwrap().to_owned()
    }

    async fn inspect(&self, path: &str) -> (u16, Value) {
        let url = format!("http://{}", self.extender).parse().unwrap();
        let client = Client::try_from(Config::new(url)).unwrap();
        let request = http::Request::get(format!("/gpushare-scheduler/inspect{path}"));
        let response = client.send(request.body(Vec::new().into()).unwrap()).await.unwrap();
        let status = response.status().as_u16();
        let body = response.into_body().collect_bytes().await.unwrap();
        (status, serde_json::from_slice(&body).unwrap())
    }

    async fn wait_until(&self, is_so: impl Fn(&devices::Devices) -> bool) {
        let waiting = async {
            while !is_so(&self.cache.read()) {
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(LONG, waiting).await.expect("the condition was met");
    }
}

fn names(n: u32) -> Vec<String> {
    (0..n).map(|i| format!("node-{i}")).collect()
}

fn run(test: impl Future<Output = ()>) {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.worker_threads(2).enable_all().build().unwrap().block_on(test);
}

/// Each device has room for two pods and 1 unit is left: the next pod would fit on every node by the sum, but on no device.
#[test]
fn a_hundred_pods_share_fifty_devices_and_one_is_too_many() {
    run(async {
        let cluster = Cluster::start(10).await;
        cluster.start_cache().await;
        for i in 0..100 {
            let pod = cluster.pod(&format!("p-{i}"), 3).await;
            let answer = cluster.filter(&pod, &names(10)).await;
            let feasible = answer["NodeNames"].as_array().unwrap();
            let node = feasible[i % feasible.len()].as_str().unwrap();
            let error = cluster.bind(&pod.name_any(), &pod.uid().unwrap(), node).await;
            assert_eq!(error, "", "pod {i} on {node}");
        }

        let mut used = BTreeMap::new();
        for pod in cluster.pods().list(&Default::default()).await.unwrap() {
            let annotation = |name: &str| pod.annotations()[name].clone();
            assert_eq!(annotation("ALIYUN_COM_GPU_MEM_DEV"), "7");
            assert_eq!(annotation("ALIYUN_COM_GPU_MEM_POD"), "3");
            assert_eq!(annotation("ALIYUN_COM_GPU_MEM_ASSIGNED"), "false");
            assert!(annotation("ALIYUN_COM_GPU_MEM_ASSUME_TIME").parse::<u64>().is_ok());
            let device: u32 = annotation("ALIYUN_COM_GPU_MEM_IDX").parse().unwrap();
            let node = pod.spec.unwrap().node_name.expect("it is bound");
            *used.entry((node, device)).or_default() += 3;
        }
        assert_eq!(used.len(), 50);
        assert!(used.values().all(|used: &u32| *used == 6), "{used:?}");

        let pod = cluster.pod("one-too-many", 3).await;
        let answer = cluster.filter(&pod, &names(10)).await;
        assert_eq!(answer["NodeNames"], json!([]));
        let failed = answer["FailedNodes"].as_object().unwrap();
        assert_eq!(failed.len(), 10);
        assert!(failed.values().all(|it| it == "Insufficient GPU Memory in one device"));
        let error = cluster.bind("one-too-many", &pod.uid().unwrap(), "node-3").await;
        let want = "The node node-3 can't place the pod one-too-many in ns default: Insufficient GPU Memory in one device";
        assert_eq!(error, want);
        let after = cluster.pods().get("one-too-many").await.unwrap();
        assert_eq!((after.annotations().len(), after.spec.unwrap().node_name), (0, None));

        let (status, report) = cluster.inspect("").await;
        assert_eq!((status, report["nodes"].as_array().map(Vec::len)), (200, Some(10)));
        let (_, report) = cluster.inspect("/node-3").await;
        let node = &report["nodes"][0];
        assert_eq!((&node["totalGPU"], &node["usedGPU"]), (&json!(35), &json!(30)));
        assert_eq!(node["devs"][4]["usedGPU"], 6);
        assert_eq!(node["devs"][4]["pods"][0]["namespace"], "default");
        let (status, report) = cluster.inspect("/node-77").await;
        let want = json!({"nodes": [], "error": "the node node-77 does not share GPUs"});
        assert_eq!((status, report), (404, want));
    });
}

#[test]
fn a_failed_binding_leaves_no_claim() {
    run(async {
        let cluster = Cluster::start(1).await;
        let pod = cluster.pod("early", 7).await;
        let uid = pod.uid().unwrap();
        let error = cluster.bind("early", &uid, "node-0").await;
        assert_eq!(error, "pods, nodes and ConfigMaps are not listed yet");
        cluster.start_cache().await;

        let error = cluster.bind("early", "other", "node-0").await;
        let want = format!(
            "The pod early in ns default's uid is {uid}, and it's not equal with expected other"
        );
        assert_eq!(error, want);
        let error = cluster.bind("nobody", "u", "node-0").await;
        assert!(error.starts_with("reading the pod nobody in ns default: "), "{error}");
        let error = cluster.bind("early", &uid, "node-1").await;
        assert!(error.ends_with("The node node-1 is not for GPU share, need skip"), "{error}");

        // Gated pods cannot be bound: the API server rejects the Binding after the device was selected.
        let gated = json!({"metadata": {"name": "gated"}, "spec": {
            "schedulingGates": [{"name": "example.com/gate"}], "containers": [{"name": "c", "image": "x",
                "resources": {"limits": {"aliyun.com/gpu-mem": "7"}}}]}});
        let gated = serde_json::from_value(gated).unwrap();
        let gated = cluster.pods().create(&PostParams::default(), &gated).await.unwrap();
        let error = cluster.bind("gated", &gated.uid().unwrap(), "node-0").await;
        assert!(error.starts_with("binding the pod gated in ns default to node-0: "), "{error}");
        assert_eq!(cluster.cache.read().claims("node-0").count(), 0);
        assert!(cluster.pods().get("gated").await.unwrap().annotations().is_empty());

        assert_eq!(cluster.bind("early", &uid, "node-0").await, "");
        // A scheduler that did not receive the response tries again.
        assert_eq!(cluster.bind("early", &uid, "node-0").await, "");
        assert_eq!(cluster.cache.read().claims("node-0").count(), 1);
    });
}

/// Watch events are applied: deleted pods, unhealthy devices, changed nodes.
#[test]
fn watch_events_change_which_pods_fit() {
    run(async {
        let cluster = Cluster::start(0).await;
        cluster
            .node("node-0", json!({"aliyun.com/gpu-mem": "16", "aliyun.com/gpu-count": "2"}))
            .await;
        cluster.start_cache().await;
        let fits = |devices: &devices::Devices, memory| devices.fit("node-0", memory).is_ok();
        let pod = cluster.pod("p", 6).await;
        assert_eq!(cluster.bind("p", &pod.uid().unwrap(), "node-0").await, "");

        let maps = Api::<k8s_openapi::api::core::v1::ConfigMap>::namespaced(
            cluster.client.clone(),
            "kube-system",
        );
        let map = json!({"metadata": {"name": "unhealthy-gpu-node-0"}, "data": {"gpus": "1"}});
        let map = serde_json::from_value(map).unwrap();
        maps.create(&PostParams::default(), &map).await.unwrap();
        cluster.wait_until(|devices| !fits(devices, 3)).await;
        assert!(fits(&cluster.cache.read(), 2));
        maps.delete("unhealthy-gpu-node-0", &DeleteParams::default()).await.unwrap();
        cluster.wait_until(|devices| fits(devices, 8)).await;

        let nodes = Api::<k8s_openapi::api::core::v1::Node>::all(cluster.client.clone());
        let patch = json!({"status": {"capacity": {
            "aliyun.com/gpu-mem": "8", "aliyun.com/gpu-count": "1"}}});
        let patch = kube::api::Patch::Merge(&patch);
        nodes.patch_status("node-0", &Default::default(), &patch).await.unwrap();
        cluster.wait_until(|devices| !fits(devices, 3)).await;

        let now = DeleteParams::default().grace_period(0);
        cluster.pods().delete("p", &now).await.unwrap();
        cluster.wait_until(|devices| fits(devices, 8)).await;
        nodes.delete("node-0", &DeleteParams::default()).await.unwrap();
        cluster.wait_until(|devices| devices.nodes().next().is_none()).await;
    });
}

#[test]
fn pods_without_gpu_requests_fit_on_any_node() {
    run(async {
        let cluster = Cluster::start(1).await;
        cluster.start_cache().await;
        let pod = cluster.pod("plain", 0).await;
        let answer = cluster.filter(&pod, &["any".to_owned(), "node-0".to_owned()]).await;
        assert_eq!(answer["NodeNames"], json!(["any", "node-0"]));
        assert_eq!(cluster.bind("plain", &pod.uid().unwrap(), "node-0").await, "");
        assert!(cluster.pods().get("plain").await.unwrap().annotations().is_empty());
    });
}
