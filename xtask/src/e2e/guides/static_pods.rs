//! Static pods as processes: what the kubelet of a control-plane node does with the manifests in a folder.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use super::super::process::Process;

/// Where kubeadm tells the kubelet to look.
pub const MANIFESTS: &str = "/etc/kubernetes/manifests";
/// Where the kubelet links the logs of containers.
pub const LOGS: &str = "/var/log/containers";
/// Images with another user than root: below `/etc/kubernetes` only root can read kubeconfigs.
const NONROOT_IMAGES: &[&str] = &["loadmaster", "sample-extender"];
/// How often the manifests are read.
pub const SYNC_PERIOD: Duration = Duration::from_millis(200);
/// `terminationGracePeriodSeconds` by default.
const GRACE_PERIOD: Duration = Duration::from_secs(30);

/// Runs the containers of the manifests below `root`, which stands for the node's root folder.
pub struct StaticPods {
    root: PathBuf,
    /// Programs by the last part of the image's name, without its tag.
    images: BTreeMap<&'static str, PathBuf>,
    /// By file name: the manifest and the process of its container.
    running: BTreeMap<String, (String, Process)>,
    n_started: u32,
}

impl StaticPods {
    pub fn new(root: &Path, images: BTreeMap<&'static str, PathBuf>) -> Result<StaticPods> {
        for folder in [MANIFESTS, LOGS] {
            fs::create_dir_all(on_node(root, folder)).context("creating the folders of a node")?;
        }
        Ok(StaticPods { root: root.to_owned(), images, running: BTreeMap::new(), n_started: 0 })
    }

    /// Stops pods whose manifest is gone or has changed, and starts others. An error if a container has exited by itself.
    pub async fn sync(&mut self) -> Result<()> {
        let wanted = self.manifests()?;
        let names: Vec<String> = self.running.keys().cloned().collect();
        for name in names {
            let Some((text, process)) = self.running.get_mut(&name) else { continue };
            process.check_running()?;
            if wanted.get(&name) != Some(text) {
                process.terminate()?;
                process.wait(GRACE_PERIOD).await?;
                self.running.remove(&name);
            }
        }
        for (name, text) in wanted {
            if !self.running.contains_key(&name) {
                let started = self.start(&name, &text);
                let process = started.with_context(|| format!("static pod {name}"))?;
                self.running.insert(name, (text, process));
            }
        }
        Ok(())
    }

    fn manifests(&self) -> Result<BTreeMap<String, String>> {
        let mut manifests = BTreeMap::new();
        for entry in fs::read_dir(on_node(&self.root, MANIFESTS))? {
            let path = entry?.path();
            let text = fs::read_to_string(&path)?;
            // A file that is being written is empty for a moment.
            if let (Some(name), false) = (path.file_name(), text.is_empty()) {
                manifests.insert(name.to_string_lossy().into_owned(), text);
            }
        }
        Ok(manifests)
    }

    fn start(&mut self, name: &str, text: &str) -> Result<Process> {
        let pod: Value = serde_saphyr::from_str(text)?;
        let container = &pod["spec"]["containers"][0];
        let image = container["image"].as_str().context("a container without an image")?;
        let program = image.rsplit('/').next().and_then(|it| it.split([':', '@']).next());
        let Some(binary) = program.and_then(|it| self.images.get(it)) else {
            bail!("there is no image {image}");
        };
        ensure!(
            !program.is_some_and(|it| NONROOT_IMAGES.contains(&it))
                || container["volumeMounts"].is_null()
                || container["securityContext"]["runAsUser"] == 0,
            "{image} does not run as root by itself, and cannot read the files of the node"
        );
        let texts = |field: &str| -> Vec<String> {
            let texts = container[field].as_array().into_iter().flatten();
            texts.filter_map(|it| Some(self.with_mounts(&pod, it.as_str()?))).collect()
        };
        let mut words = texts("command").into_iter();
        let mut command = Command::new(binary);
        if let Some(program) = words.next() {
            command.arg0(program);
        }
        command.args(words).args(texts("args"));
        self.n_started += 1;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let log = format!(
            "{LOGS}/{}-node-0_{}_{}-{}.log",
            text(&pod["metadata"]["name"]),
            text(&pod["metadata"]["namespace"]),
            text(&container["name"]),
            self.n_started
        );
        Process::start(name, &mut command, &on_node(&self.root, &log))
    }

    /// A word of a command line: paths below a mount of a hostPath volume are replaced by those below our root.
    fn with_mounts(&self, pod: &Value, word: &str) -> String {
        let volumes = || pod["spec"]["volumes"].as_array().into_iter().flatten();
        let mounts = pod["spec"]["containers"][0]["volumeMounts"].as_array().into_iter().flatten();
        let mut word = word.to_owned();
        for mount in mounts {
            let volume = volumes().find(|volume| volume["name"] == mount["name"]);
            let paths = volume.and_then(|it| it["hostPath"]["path"].as_str());
            if let (Some(host), Some(inside)) = (paths, mount["mountPath"].as_str()) {
                let outside = on_node(&self.root, host).display().to_string();
                word = word.replace(&format!("={inside}"), &format!("={outside}"));
            }
        }
        word
    }
}

/// The place of a path of the node.
pub fn on_node(root: &Path, path: &str) -> PathBuf {
    root.join(path.trim_start_matches('/'))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn paths_are_those_of_mounts() {
        let pod = json!({"spec": {
            "containers": [{"volumeMounts": [{"name": "a", "mountPath": "/conf"}, {"name": "b", "mountPath": "/data"}]}],
            "volumes": [{"name": "a", "hostPath": {"path": "/etc/kubernetes"}}, {"name": "b", "emptyDir": {}}]}});
        let root = std::env::temp_dir().join(format!("static-pods-{}", std::process::id()));
        let pods = StaticPods::new(&root, BTreeMap::new()).unwrap();
        let check = |word: &str, want: &str| {
            let want = want.replace("ROOT", &root.display().to_string());
            assert_eq!(pods.with_mounts(&pod, word), want);
        };
        check("--config=/conf/a.yaml", "--config=ROOT/etc/kubernetes/a.yaml");
        check("--config=/data/a.yaml", "--config=/data/a.yaml");
        check("--config=/other/conf", "--config=/other/conf");
        fs::remove_dir_all(&root).unwrap();
    }
}
