//! `cargo xtask e2e old-configurations`: starts Loadmaster as users of older versions do, with their command lines, configurations and
//! Policies, on a real kube-apiserver, and checks what it decides.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use clap::Parser;
use serde_json::{Value, json};

use super::api_client::ApiClient;
use super::control_plane::{ControlPlane, ControlPlaneOptions, free_port};
use super::process::Process;
use super::{gangs, gpushare, load_objects, programs, special_pods, workload};

const SAMPLE_EXTENDER: &str = "sample-extender";

/// Start Loadmaster with command lines, configurations and Policies of older versions.
#[derive(Parser)]
pub struct Args {
    /// The loadmaster binary; by default that of the release profile.
    #[arg(long, value_name = "FILE")]
    loadmaster: Option<PathBuf>,
}

/// Runs all cases; a failed check is an error.
pub async fn run(args: &Args) -> Result<bool> {
    let examples = programs::examples(&[SAMPLE_EXTENDER, "sample-plugin"])?;
    let plane = ControlPlane::start(&ControlPlaneOptions::default()).await?;
    let api = ApiClient::new(&plane.admin_kubeconfig()).await?;
    let loadmaster = programs::loadmaster(args.loadmaster.as_deref())?;
    load_objects::service_account(&api, "default").await?;
    gangs::objects::install_definitions(&api, &loadmaster).await?;
    for i in 0..2 {
        let mut node = workload::node(i);
        if i == 0 {
            node["metadata"]["labels"]["example.com/tier"] = "1".into();
        }
        api.create("/api/v1/nodes", &node).await.context("a node")?;
    }
    let cases = Cases {
        plane: &plane,
        api: &api,
        loadmaster,
        sample_plugin: examples.join("sample-plugin"),
    };
    cases.policy_of_v1alpha1().await.context("v1alpha1 with a Policy")?;
    cases.policy_by_flags().await.context("a Policy by flags")?;
    cases.queue_of_v1beta1().await.context("v1beta1 with QOSSort")?;
    cases.quotas_of_v1beta1().await.context("v1beta1 with CapacityScheduling")?;
    cases.sample_plugin().await.context("v1beta1 for a scheduler with a plugin")?;
    println!("command lines, configurations and Policies of older versions work");
    plane.finish();
    Ok(true)
}

struct Cases<'a> {
    plane: &'a ControlPlane,
    api: &'a ApiClient,
    loadmaster: PathBuf,
    sample_plugin: PathBuf,
}

impl Cases<'_> {
    /// The files of one ConfigMap, mounted: a configuration that names its Policy by path. With one feasible node prioritize is not
    /// called.
    async fn policy_of_v1alpha1(&self) -> Result<()> {
        let folder = self.folder("v1alpha1")?;
        let extender = gpushare::Extender::start(SAMPLE_EXTENDER, &folder, None).await?;
        let policy = folder.join("policy.json");
        std::fs::write(&policy, self.extender_policy(extender.url()).to_string())?;
        let config = format!(
            "apiVersion: kubescheduler.config.k8s.io/v1alpha1\nkind: KubeSchedulerConfiguration\nschedulerName: my-scheduler\n\
             algorithmSource:\n  policy:\n    file:\n      path: {}\nclientConnection:\n  kubeconfig: {}\n\
             leaderElection:\n  leaderElect: true\n  lockObjectName: my-scheduler\n  lockObjectNamespace: kube-system\n",
            policy.display(),
            self.plane.admin_kubeconfig().display(),
        );
        let config = write(&folder, "config.yaml", &config)?;
        let certificates = self.plane.folder().display();
        let flags = format!(
            "--config {} --bind-address=127.0.0.1 --port=0 --tls-cert-file={certificates}/apiserver.crt \
             --tls-private-key-file={certificates}/apiserver.key --client-ca-file={certificates}/ca.crt \
             --requestheader-client-ca-file={certificates}/ca.crt --requestheader-extra-headers-prefix=X-Remote-Extra- \
             --requestheader-group-headers=X-Remote-Group --requestheader-username-headers=X-Remote-User --logtostderr=true --v=9",
            config.display(),
        );
        let scheduler = self.start(&folder, "kube-scheduler", &flags)?;
        self.pod("v1alpha1", "my-scheduler", &json!({})).await?;
        self.wait_for_node("v1alpha1", "node-0").await?;
        let lease = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/my-scheduler";
        self.api.get_json(lease).await.context("the lease")?;
        let calls = |verb: &str| format!(r#"extender_requests_total{{code="200",verb="{verb}"}}"#);
        ensure!(extender.count(&calls("filter")).await? > 0, "filter was not called");
        let prioritized = extender.count(&calls("prioritize")).await;
        ensure!(prioritized.is_err(), "prioritize was called for one feasible node");
        stop(scheduler).await?;
        extender.stop().await
    }

    /// The same Policy in a file and in a ConfigMap.
    async fn policy_by_flags(&self) -> Result<()> {
        let folder = self.folder("policy")?;
        let extender = gpushare::Extender::start(SAMPLE_EXTENDER, &folder, None).await?;
        let policy = self.extender_policy(extender.url()).to_string();
        let file = write(&folder, "policy.json", &policy)?;
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "scheduler-extender"},
            "data": {"policy.cfg": policy}});
        self.api.create("/api/v1/namespaces/kube-system/configmaps", &map).await?;
        let kubeconfig = self.plane.admin_kubeconfig();
        let by_file = format!(
            "--kubeconfig={} --policy-config-file={} --use-legacy-policy-config=true --leader-elect=true \
             --scheduler-name=my-scheduler --address=127.0.0.1 --port=10251",
            kubeconfig.display(),
            file.display()
        );
        let by_map = format!(
            "--kubeconfig={} --policy-configmap=scheduler-extender --policy-configmap-namespace=kube-system \
             --algorithm-provider=DefaultProvider --leader-elect=false",
            kubeconfig.display()
        );
        for (name, scheduler_name, flags) in
            [("by-file", "my-scheduler", by_file), ("by-map", "default-scheduler", by_map)]
        {
            let scheduler = self.start(&folder, "kube-scheduler", &flags)?;
            self.pod(name, scheduler_name, &json!({})).await?;
            self.wait_for_node(name, "node-0").await?;
            stop(scheduler).await?;
        }
        extender.stop().await
    }

    /// QOSSort orders the queue: priority, then QoS class. A node with room for one pod gets the one that is tried first.
    async fn queue_of_v1beta1(&self) -> Result<()> {
        let folder = self.folder("qos")?;
        let config = self
            .v1beta1("    queueSort: {enabled: [{name: QOSSort}], disabled: [{name: '*'}]}\n", "");
        let config = write(&folder, "config.yaml", &config)?;
        let mut node = workload::node(2);
        node["metadata"]["labels"]["example.com/room"] = "one".into();
        node["status"]["allocatable"]["pods"] = "1".into();
        self.api.create("/api/v1/nodes", &node).await?;
        let guaranteed = json!({"cpu": "10m", "memory": "1Mi"});
        // The last one is the first in the queue.
        for (name, resources) in [
            ("best-effort", json!({})),
            ("burstable", json!({"requests": {"cpu": "10m"}})),
            ("guaranteed", json!({"limits": guaranteed, "requests": guaranteed})),
        ] {
            let mut pod = pod(name, "default-scheduler", &resources);
            pod["spec"]["nodeSelector"] = json!({"example.com/room": "one"});
            self.api.create("/api/v1/namespaces/default/pods", &pod).await?;
        }
        let flags = format!(
            "scheduler --v=3 --leader-elect=false --config {} --feature-gates=AllAlpha=false --master={}",
            config.display(),
            self.plane.url()
        );
        let scheduler = self.start(&folder, "hyperkube", &flags)?;
        self.wait_for_node("guaranteed", "node-2").await?;
        stop(scheduler).await
    }

    /// CapacityScheduling replaces preemption, and its argument kubeConfigPath is noted.
    async fn quotas_of_v1beta1(&self) -> Result<()> {
        let folder = self.folder("quotas")?;
        let plugins = "    preFilter: {enabled: [{name: CapacityScheduling}]}\n    postFilter: {enabled: [{name: CapacityScheduling}], disabled: [{name: '*'}]}\n    reserve: {enabled: [{name: CapacityScheduling}]}\n";
        let arguments = format!(
            "  pluginConfig:\n  - name: CapacityScheduling\n    args: {{kubeConfigPath: {}}}\n",
            self.plane.admin_kubeconfig().display()
        );
        let config = write(&folder, "scheduler-config.yaml", &self.v1beta1(plugins, &arguments))?;
        load_objects::namespace(self.api, "team").await?;
        let quota = json!({"apiVersion": "scheduling.x-k8s.io/v1alpha1", "kind": "ElasticQuota",
            "metadata": {"name": "team"}, "spec": {"min": {"cpu": "100m"}, "max": {"cpu": "100m"}}});
        let quotas = "/apis/scheduling.x-k8s.io/v1alpha1/namespaces/team/elasticquotas";
        self.api.create(quotas, &quota).await?;
        let kubeconfig = self.plane.admin_kubeconfig();
        let flags = format!(
            "--authentication-kubeconfig={0} --authorization-kubeconfig={0} --config={1} -v=9",
            kubeconfig.display(),
            config.display()
        );
        let scheduler = self.start(&folder, "kube-scheduler", &flags)?;
        for name in ["within", "beyond"] {
            let pod = pod(name, "default-scheduler", &json!({"requests": {"cpu": "80m"}}));
            self.api.create("/api/v1/namespaces/team/pods", &pod).await?;
            let is_done = |pod: &Value| {
                pod["spec"]["nodeName"].is_string() || pod["status"]["conditions"].is_array()
            };
            special_pods::wait_for_pod(self.api, "team", name, "a decision", is_done).await?;
        }
        let pod = self.api.get_json("/api/v1/namespaces/team/pods/beyond").await?;
        let message = pod["status"]["conditions"][0]["message"].as_str().unwrap_or_default();
        ensure!(message.contains("ElasticQuota"), "the message is {message:?}");
        let log = scheduler.log();
        ensure!(
            log.matches("kubeConfigPath of CapacityScheduling has no effect").count() == 1,
            "the argument is not noted once"
        );
        stop(scheduler).await
    }

    /// A scheduler with a plugin of its own, by its name and with bare flags.
    async fn sample_plugin(&self) -> Result<()> {
        let folder = self.folder("sample")?;
        let plugins = "    preFilter: {enabled: [{name: sample-plugin}]}\n    filter: {enabled: [{name: sample-plugin}]}\n    preBind: {enabled: [{name: sample-plugin}]}\n";
        let arguments = "  pluginConfig:\n  - name: sample-plugin\n    args: {node_label: example.com/tier/1, workload_name: nginx}\n";
        let config = write(&folder, "scheduler-config.yaml", &self.v1beta1(plugins, arguments))?;
        let flags = format!("--config={} --v=3", config.display());
        let scheduler = self.start(&folder, "sample-scheduler-framework", &flags)?;
        self.pod("nginx-0", "default-scheduler", &json!({})).await?;
        self.wait_for_node("nginx-0", "node-0").await?;
        stop(scheduler).await
    }

    fn folder(&self, name: &str) -> Result<PathBuf> {
        let folder = self.plane.folder().join(name);
        std::fs::create_dir(&folder).with_context(|| format!("creating {}", folder.display()))?;
        Ok(folder)
    }

    /// A configuration without leader election; `plugins` and `arguments` are indented lines of the profile.
    fn v1beta1(&self, plugins: &str, arguments: &str) -> String {
        format!(
            "apiVersion: kubescheduler.config.k8s.io/v1beta1\nkind: KubeSchedulerConfiguration\nleaderElection:\n  leaderElect: false\n\
             clientConnection:\n  kubeconfig: {}\nprofiles:\n- schedulerName: default-scheduler\n  plugins:\n{plugins}{arguments}",
            self.plane.admin_kubeconfig().display()
        )
    }

    /// A Policy with the defaults and the sample extender, which rejects nodes without a tier.
    fn extender_policy(&self, url: &str) -> Value {
        json!({"kind": "Policy", "apiVersion": "v1", "extenders": [{
            "urlPrefix": format!("{url}/"), "filterVerb": "filter", "prioritizeVerb": "prioritize", "weight": 1, "enableHttps": false}]})
    }

    /// Starts a program under this name, with these flags and a port of its own.
    fn start(&self, folder: &Path, name: &str, flags: &str) -> Result<Process> {
        let target = if name == "sample-scheduler-framework" {
            &self.sample_plugin
        } else {
            &self.loadmaster
        };
        let link = folder.join(name);
        if !link.exists() {
            symlink(target, &link).with_context(|| format!("linking {}", link.display()))?;
        }
        let mut command = Command::new(&link);
        command.args(flags.split_whitespace());
        command.arg(format!("--secure-port={}", free_port()?));
        if !flags.contains("--bind-address") {
            command.arg("--bind-address=127.0.0.1");
        }
        Process::start(name, &mut command, &folder.join(format!("{name}.log")))
    }

    async fn pod(&self, name: &str, scheduler: &str, resources: &Value) -> Result<()> {
        let pod = pod(name, scheduler, resources);
        self.api.create("/api/v1/namespaces/default/pods", &pod).await.map(drop)
    }

    async fn wait_for_node(&self, name: &str, node: &str) -> Result<()> {
        let is_there = |pod: &Value| pod["spec"]["nodeName"] == node;
        special_pods::wait_for_pod(self.api, "default", name, node, is_there).await
    }
}

fn pod(name: &str, scheduler: &str, resources: &Value) -> Value {
    let container =
        json!({"name": "main", "image": "registry.example/app", "resources": resources});
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"schedulerName": scheduler, "containers": [container], "terminationGracePeriodSeconds": 0}})
}

fn write(folder: &Path, name: &str, text: &str) -> Result<PathBuf> {
    let path = folder.join(name);
    std::fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
    Ok(path)
}

/// Stops a scheduler as a kubelet does, with SIGTERM.
async fn stop(mut scheduler: Process) -> Result<()> {
    scheduler.check_running()?;
    scheduler.terminate()?;
    let status = scheduler.wait(Duration::from_secs(60)).await?;
    ensure!(status.success(), "it ended with {status} after SIGTERM");
    Ok(())
}
