//! The variants of `deploy/`, and how they are rendered and recorded.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::e2e::programs::Program;

/// The chart, below the root of the repository.
pub const CHART: &str = "deploy/helm/loadmaster";
/// The release and the namespace of the recorded manifests.
pub const RELEASE: &str = "loadmaster";
pub const NAMESPACE: &str = "kube-system";
/// Helm assumes this version when it renders without a server.
const KUBE_VERSION: &str = "1.36.0";

/// How a variant is rendered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// An overlay.
    Kustomize(PathBuf),
    /// Files with values for the chart.
    Helm(Vec<PathBuf>),
}

/// One way to deploy a scheduler.
#[derive(Clone, Debug)]
pub struct Variant {
    /// The stem of its file in `deploy/rendered`.
    pub name: String,
    pub source: Source,
}

fn deploy() -> Result<PathBuf> {
    Ok(crate::root()?.join("deploy"))
}

/// All variants: every overlay, and every file of values in the chart's folder `ci`.
pub fn variants() -> Result<Vec<Variant>> {
    let mut variants = Vec::new();
    for overlay in entries(&deploy()?.join("kustomize/overlays"))? {
        let name = format!("kustomize-{}", stem(&overlay));
        variants.push(Variant { name, source: Source::Kustomize(overlay) });
    }
    let chart = crate::root()?.join(CHART);
    for values in entries(&chart.join("ci"))? {
        let name = format!("helm-{}", stem(&values));
        variants.push(Variant { name, source: Source::Helm(vec![values]) });
    }
    let source = Source::Helm(vec![chart.join("scheduler-plugins-values.yaml")]);
    variants.push(Variant { name: "helm-scheduler-plugins-defaults".to_owned(), source });
    Ok(variants)
}

fn stem(path: &Path) -> String {
    path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

/// The files and folders in a folder, sorted.
fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let read =
        std::fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))?;
    let mut paths = read.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    paths.sort();
    Ok(paths)
}

impl Variant {
    /// The objects as kustomize or helm print them.
    pub fn render(&self) -> Result<String> {
        let output = match &self.source {
            Source::Kustomize(folder) => {
                Command::new(Program::Kustomize.path()?).arg("build").arg(folder).output()
            }
            Source::Helm(files) => helm_template(files, &[])?.output(),
        };
        let output = output.context("running helm or kustomize")?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
        String::from_utf8(output.stdout).context("reading the output")
    }

    fn path(&self) -> Result<PathBuf> {
        Ok(deploy()?.join(format!("rendered/{}.yaml", self.name)))
    }

    /// The recorded file; empty if there is none.
    pub fn recorded(&self) -> Result<String> {
        let path = self.path()?;
        if !path.exists() {
            return Ok(String::new());
        }
        std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))
    }

    /// Writes the recorded file.
    pub fn record(&self, text: &str) -> Result<()> {
        let path = self.path()?;
        std::fs::create_dir_all(deploy()?.join("rendered")).context("making deploy/rendered")?;
        std::fs::write(&path, with_header(text)?)
            .with_context(|| format!("writing {}", path.display()))
    }
}

/// `helm template` with these files of values and other arguments.
pub fn helm_template(values: &[PathBuf], more: &[&str]) -> Result<Command> {
    let mut helm = Command::new(Program::Helm.path()?);
    helm.args(["template", RELEASE]).arg(crate::root()?.join(CHART));
    helm.args(["--namespace", NAMESPACE, "--kube-version", KUBE_VERSION]);
    for file in values {
        helm.arg("--values").arg(file);
    }
    helm.args(more);
    Ok(helm)
}

/// The recorded form: which sources it was rendered from, then the objects, a line of JSON each.
pub fn with_header(text: &str) -> Result<String> {
    let lines: Vec<String> = documents(text)?.iter().map(ToString::to_string).collect();
    Ok(format!("{}\n{}\n", header()?, lines.join("\n---\n")))
}

fn header() -> Result<String> {
    Ok(format!(
        "# Written by `cargo xtask e2e manifests --write`; SHA-256 of deploy/kustomize, deploy/helm and deploy/monitoring: {}",
        hash_of_sources()?
    ))
}

/// A hash of the names and contents of all files that are rendered.
fn hash_of_sources() -> Result<String> {
    let deploy = deploy()?;
    let mut context = ring::digest::Context::new(&ring::digest::SHA256);
    let mut folders =
        vec![deploy.join("helm"), deploy.join("kustomize"), deploy.join("monitoring")];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for path in entries(&folder)? {
            if path.is_dir() { folders.push(path) } else { files.push(path) }
        }
    }
    files.sort();
    for path in files {
        let name = path.strip_prefix(&deploy).unwrap_or(&path).to_string_lossy().into_owned();
        let content =
            std::fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
        context.update(format!("{name}\n{}\n", content.len()).as_bytes());
        context.update(&content);
    }
    let digest = context.finish();
    Ok(crate::hex(digest.as_ref()))
}

/// The documents of rendered manifests, without empty ones.
pub fn documents(text: &str) -> Result<Vec<serde_json::Value>> {
    let mut objects = Vec::new();
    for document in format!("\n{text}").split("\n---\n") {
        let is_content = |line: &str| !line.is_empty() && !line.starts_with('#');
        if document.lines().any(is_content) {
            objects.push(
                serde_saphyr::from_str(document)
                    .with_context(|| format!("parsing this document:\n{document}"))?,
            );
        }
    }
    Ok(objects)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;
    use http::{Method, Request};
    use http_body_util::BodyExt as _;
    use loadmaster_apiserver::authentication::User;
    use loadmaster_apiserver::{ApiServer, Options};
    use serde_json::{Value, json};

    use super::*;
    use crate::e2e::manifest;

    #[test]
    fn the_recorded_manifests_were_rendered_from_these_sources() {
        let variants = variants().unwrap();
        let header = header().unwrap();
        for variant in &variants {
            let recorded = variant.recorded().unwrap();
            assert_eq!(
                recorded.lines().next(),
                Some(header.as_str()),
                "{}: run `cargo xtask e2e manifests --write`",
                variant.name
            );
        }
        // None of a variant that was removed.
        let files = entries(&deploy().unwrap().join("rendered")).unwrap();
        let mut recorded: Vec<String> = files.iter().map(|path| stem(path)).collect();
        recorded.sort_unstable();
        let mut names: Vec<&str> = variants.iter().map(|variant| variant.name.as_str()).collect();
        names.sort_unstable();
        assert_eq!(recorded, names);
    }

    fn server() -> ApiServer {
        ApiServer::new(Options {
            clock: Arc::new(|| jiff::Timestamp::UNIX_EPOCH),
            seed: 1,
            limits: Default::default(),
            also_serve: Vec::new(),
        })
        .unwrap()
    }

    /// Creates an object with strict validation; returns the error.
    fn create(server: &ApiServer, object: &Value) -> Result<(), String> {
        let path = manifest::collection_path(object).unwrap();
        let request = Request::builder()
            .method(Method::POST)
            .uri(format!("{path}?fieldValidation=Strict"))
            .header("content-type", "application/json")
            .body(Bytes::from(object.to_string()))
            .unwrap();
        let response = server.handle(&User::admin(), &request);
        if response.status().is_success() {
            return Ok(());
        }
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let body = runtime.block_on(response.into_body().collect()).unwrap().to_bytes();
        Err(format!("{path}: {}", String::from_utf8_lossy(&body)))
    }

    #[test]
    fn the_recorded_objects_are_valid() {
        let mut n_objects = 0;
        for variant in variants().unwrap() {
            let server = server();
            for namespace in ["kube-system", "default"] {
                let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
                // Some are created by the server.
                let _ = create(&server, &object);
            }
            for definition in super::super::apply::operator_definitions() {
                create(&server, &definition).unwrap();
            }
            for object in documents(&variant.recorded().unwrap()).unwrap() {
                assert_eq!(create(&server, &object), Ok(()), "{}", variant.name);
                n_objects += 1;
            }
        }
        assert!(n_objects > 100, "{n_objects}");
    }

    #[test]
    fn invalid_objects_are_rejected() {
        let server = server();
        let mut object = json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
            "metadata": {"name": "a", "namespace": "default"}, "spec": {"maxUnavailable": 1}});
        assert_eq!(create(&server, &object), Ok(()));
        object["metadata"]["name"] = json!("b");
        object["spec"]["maxUnavailabel"] = json!(1);
        let error = create(&server, &object).unwrap_err();
        assert!(error.contains("maxUnavailabel"), "{error}");
    }

    #[test]
    fn documents_are_separated() {
        let text = "# a\nkind: A\n---\n# nothing\n\n---\nkind: B\n";
        assert_eq!(documents(text).unwrap(), [json!({"kind": "A"}), json!({"kind": "B"})]);
    }
}
