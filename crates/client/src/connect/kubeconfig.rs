//! Finds a cluster as kubectl does: a kubeconfig file, the files of `$KUBECONFIG` together, `~/.kube/config`, or the service account.

use std::io;
use std::path::{Path, PathBuf};

use kube::Config;
use kube::config::{Kubeconfig, KubeconfigError};

use super::{
    ConnectError, config_of_context, file_error, in_cluster_config, kubeconfig_error, proxy_url,
};

/// Selects a kubeconfig and a context.
#[derive(Clone, Debug, Default)]
pub struct KubeconfigSource {
    /// A kubeconfig file; without it the files of `$KUBECONFIG`, `~/.kube/config`, or the cluster in which this process runs.
    pub kubeconfig: Option<PathBuf>,
    /// A context of the kubeconfig; without it the current one.
    pub context: Option<String>,
}

impl KubeconfigSource {
    /// Reads the files of the kubeconfig or of the service account. Must be called in a thread of the runtime that may block.
    pub(super) fn load(&self) -> Result<Config, ConnectError> {
        let KubeconfigSource { kubeconfig, context } = self;
        let read = match kubeconfig {
            Some(path) => Kubeconfig::read_from(path).map_err(|error| file_error(error, path)),
            None => read_default(),
        };
        let (config, file) = match read {
            Ok(file) => (config_of_context(file.clone(), context.clone()), Some(file)),
            Err(error) => (Err(error), None),
        };
        let mut config = match config {
            Ok(config) => config,
            Err(error) if kubeconfig.is_none() && context.is_none() => {
                let no_kubeconfig = match &error {
                    ConnectError::Config { text } => text.clone(),
                    error => error.to_string(),
                };
                in_cluster_config(&no_kubeconfig, "--kubeconfig or $KUBECONFIG")?
            }
            Err(error) => return Err(error),
        };
        let file = file.as_ref().map(|file| (file, context.as_deref()));
        config.proxy_url = proxy_url(&config.cluster_url, file)?;
        Ok(config)
    }
}

/// The files of `$KUBECONFIG`, or `~/.kube/config`.
fn read_default() -> Result<Kubeconfig, ConnectError> {
    let variable = std::env::var_os("KUBECONFIG").unwrap_or_default();
    let paths = std::env::split_paths(&variable).filter(|path| !path.as_os_str().is_empty());
    match merge_files(paths) {
        Some(merged) => merged,
        None => Kubeconfig::read().map_err(kubeconfig_error),
    }
}

/// Merges kubeconfig files as kubectl does: the first file that sets a value wins, and files that do not exist are skipped. None without
/// paths.
///
/// # Errors
///
/// When a file cannot be read or decoded, or none exists.
fn merge_files(
    paths: impl Iterator<Item = impl AsRef<Path>>,
) -> Option<Result<Kubeconfig, ConnectError>> {
    let (mut merged, mut missing) = (None::<Kubeconfig>, None);
    for path in paths {
        let path = path.as_ref();
        match Kubeconfig::read_from(path) {
            Ok(mut file) => {
                // To kubectl an empty name is none, so that a later file may set it.
                file.current_context = file.current_context.filter(|name| !name.is_empty());
                merged = match merged.take() {
                    None => Some(file),
                    Some(before) => match before.merge(file) {
                        Ok(both) => Some(both),
                        Err(error) => return Some(Err(kubeconfig_error(error))),
                    },
                };
            }
            Err(KubeconfigError::ReadConfig(error, path))
                if error.kind() == io::ErrorKind::NotFound =>
            {
                let error = KubeconfigError::ReadConfig(error, path);
                missing = missing.or(Some(kubeconfig_error(error)));
            }
            Err(error) => return Some(Err(file_error(error, path))),
        }
    }
    merged.map(Ok).or(missing.map(Err))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_of_kubeconfig_are_merged_as_kubectl_does() {
        let name = format!("loadmaster-kubeconfig-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        let context = |name, cluster| {
            format!("contexts: [{{name: {name}, context: {{cluster: {cluster}, user: u}}}}]\n")
        };
        for (file, text) in [
            ("a", context("x", "first") + "current-context: \"\"\n"),
            ("b", context("x", "second") + "current-context: x\n"),
            ("c", context("y", "third") + "current-context: y\n"),
            ("bad", "contexts: 7\n".to_owned()),
        ] {
            std::fs::write(folder.join(file), text).unwrap();
        }
        let check = |files: &[&str], want: Option<&str>| {
            let found = merge_files(files.iter().map(|file| folder.join(file))).map(|merged| {
                let Ok(merged) = merged else { return "error".to_owned() };
                let clusters = merged.contexts.iter().map(|named| {
                    let cluster = named.context.as_ref().map(|it| it.cluster.as_str());
                    format!("{}={}", named.name, cluster.unwrap_or_default())
                });
                let current = merged.current_context.as_deref().unwrap_or_default();
                format!("{} current={current}", clusters.collect::<Vec<_>>().join(" "))
            });
            assert_eq!(found.as_deref(), want, "{files:?}");
        };
        check(&[], None);
        check(&["b"], Some("x=second current=x"));
        check(&["a", "b"], Some("x=first current=x"));
        check(&["b", "a"], Some("x=second current=x"));
        check(&["a", "c"], Some("x=first y=third current=y"));
        check(&["c", "b"], Some("y=third x=second current=y"));
        check(&["none", "c", "gone"], Some("y=third current=y"));
        check(&["none", "gone"], Some("error"));
        check(&["c", "bad"], Some("error"));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
