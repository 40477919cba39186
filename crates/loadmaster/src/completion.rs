//! Shell completion. `completion SHELL` prints a script, which calls this program for each word that is completed, so that names of pods can
//! be completed, too.

use std::ffi::OsStr;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Command, ValueHint};
use clap_complete::engine::CompletionCandidate;
use clap_complete::env::Shells;
use clap_complete::{CompleteEnv, Shell};
use loadmaster_api::snapshot::Snapshot;
use loadmaster_client::{ApiClients, Cluster, KubeconfigSource, Request};
use loadmaster_daemon::flags;
use serde::Deserialize;

use crate::input;

/// The variable in which the script passes the name of the shell.
const VARIABLE: &str = "LOADMASTER_COMPLETE";

/// A user waits for the names.
const TIMEOUT: Duration = Duration::from_secs(2);

/// At most this number of pods are read.
const N_PODS_MAX: usize = 2_000;

/// Answers a call of the script and returns `true`; `false` if this process was started in another way.
pub(crate) fn complete(command: fn() -> Command) -> clap::error::Result<bool> {
    let current_dir = std::env::current_dir().ok();
    // `run` has kube-scheduler's flags, which it parses by itself.
    let run = || flags::command().name("run");
    let command = || with_file_hints(command().mut_subcommand("run", |_| run()));
    let complete = CompleteEnv::with_factory(command).var(VARIABLE);
    complete.try_complete(std::env::args_os(), current_dir.as_deref())
}

/// The script for a shell.
pub(crate) fn script(shell: Shell, program: &str) -> io::Result<Vec<u8>> {
    let shells = Shells::builtins();
    let Some(shell) = shells.completer(&shell.to_string()) else {
        return Err(io::Error::other(format!("there is no completion for {shell}")));
    };
    // A plugin of kubectl is called `kubectl loadmaster`, and its file `kubectl-loadmaster`.
    let name = program.replace(' ', "-");
    let path = std::env::current_exe()?;
    let mut script = Vec::new();
    shell.write_registration(VARIABLE, &name, &name, &path.to_string_lossy(), &mut script)?;
    Ok(script)
}

/// Paths complete arguments that are files.
fn with_file_hints(command: Command) -> Command {
    let command = command.mut_args(|arg| {
        let is_file =
            arg.get_value_names().is_some_and(|all| all.iter().any(|it| it.starts_with("FILE")));
        if is_file { arg.value_hint(ValueHint::AnyPath) } else { arg }
    });
    command.mut_subcommands(with_file_hints)
}

/// Names of pods that begin with `current`: of the files, or of the cluster and namespace, that the words of the command line select.
pub(crate) fn pods(current: &OsStr) -> Vec<CompletionCandidate> {
    let Some(current) = current.to_str() else { return Vec::new() };
    let words: Vec<String> =
        std::env::args_os().map(|it| it.to_string_lossy().into_owned()).collect();
    let names = PodSource::from_words(&words).names(current).unwrap_or_default();
    names.into_iter().filter(|it| it.starts_with(current)).map(CompletionCandidate::new).collect()
}

/// Where the pods are.
#[derive(Debug, Default, PartialEq, Eq)]
struct PodSource {
    files: Vec<String>,
    kubeconfig: Option<PathBuf>,
    context: Option<String>,
    namespace: Option<String>,
}

impl PodSource {
    /// Reads the flags of an incomplete command line.
    fn from_words(words: &[String]) -> PodSource {
        let mut source = PodSource::default();
        for (nth, word) in words.iter().enumerate() {
            let (flag, value) = match word.split_once('=') {
                Some((flag, value)) => (flag, Some(value.to_owned())),
                None => (word.as_str(), words.get(nth + 1).cloned()),
            };
            match flag {
                "--from" => source.files.extend(value),
                "--kubeconfig" => source.kubeconfig = value.map(PathBuf::from),
                "--context" => source.context = value,
                "--namespace" | "-n" => source.namespace = value,
                _ => {}
            }
        }
        source
    }

    /// The names of the pods; with their namespaces if `current` has one. `None` if they cannot be read: there is no place for an error.
    fn names(self, current: &str) -> Option<Vec<String>> {
        let wanted = current.split_once('/').map(|(namespace, _)| namespace.to_owned());
        let pods = match &*self.files {
            [] => self.cluster_pods(wanted.as_deref()),
            files => {
                let snapshot = Snapshot::read(&input::documents(files).ok()?).ok()?;
                let namespace = wanted.as_deref().or(self.namespace.as_deref());
                let namespace = namespace.unwrap_or("default");
                let here = snapshot.pods.iter().filter(|pod| *pod.metadata.namespace == *namespace);
                let names = here.map(|pod| pod.metadata.name.to_string());
                Some(names.collect())
            }
        };
        Some(match wanted {
            Some(namespace) => pods?.iter().map(|pod| format!("{namespace}/{pod}")).collect(),
            None => pods?,
        })
    }

    /// The names of the pods in a namespace of the cluster.
    fn cluster_pods(self, wanted: Option<&str>) -> Option<Vec<String>> {
        let PodSource { kubeconfig, context, namespace, .. } = self;
        let source = KubeconfigSource { kubeconfig, context };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
        runtime.block_on(async {
            let cluster = Cluster::from_kubeconfig(&source, "loadmaster completion").await.ok()?;
            let namespace = wanted.or(namespace.as_deref()).unwrap_or(cluster.default_namespace());
            let path = format!("/api/v1/namespaces/{namespace}/pods?limit={N_PODS_MAX}");
            let request = Request {
                accept: "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
                timeout: TIMEOUT,
                ..Request::get(path)
            };
            let reply = ApiClients::new(&cluster).other.call(&request).await.ok()?;
            let list: PodList = loadmaster_stdx::json::from_slice(&reply.body).ok()?;
            Some(list.items.into_iter().map(|pod| pod.metadata.name).collect())
        })
    }
}

/// The metadata of pods.
#[derive(Deserialize)]
struct PodList {
    items: Vec<PodMetadata>,
}

#[derive(Deserialize)]
struct PodMetadata {
    metadata: PodName,
}

#[derive(Deserialize)]
struct PodName {
    name: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_select_the_pods() {
        #[track_caller]
        fn check(line: &str, want: &PodSource) {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            assert_eq!(PodSource::from_words(&words), *want, "{line}");
        }
        check("loadmaster explain we", &PodSource::default());
        let namespace = Some("shop".to_owned());
        check(
            "explain -n shop ",
            &PodSource { namespace: namespace.clone(), ..PodSource::default() },
        );
        let files = vec!["a".to_owned(), "b".to_owned()];
        check("explain --from a --from=b we", &PodSource { files, ..PodSource::default() });
        let (kubeconfig, context) = (Some("f".into()), Some("c".to_owned()));
        let all = PodSource { kubeconfig, context, namespace, files: Vec::new() };
        check("explain --kubeconfig=f --context c --namespace shop --", &all);
    }
}
