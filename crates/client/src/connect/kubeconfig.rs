//! Finds a cluster as kubectl does: a kubeconfig file, the files of `$KUBECONFIG` together, `~/.kube/config`, or the service account.

use std::fs::File;
use std::path::{Path, PathBuf};

use kube::Config;
use kube::config::{Kubeconfig, KubeconfigError};
use loadmaster_api::document::Document;
use loadmaster_stdx::ErrorChain;

use super::{ConnectError, config_of_context, in_cluster_config, kubeconfig_error, proxy_url};

/// Size of the largest kubeconfig that is read.
const BYTES_MAX: u64 = 16 << 20;

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
            Some(path) => read_file(path),
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
        None => match std::env::home_dir() {
            Some(home) => read_file(&home.join(".kube").join("config")),
            None => Err(kubeconfig_error(KubeconfigError::FindPath)),
        },
    }
}

/// Reads a kubeconfig: its documents together, with paths from its folder on. Errors do not show what stands in it.
///
/// kube-rs can do the same, but compiles each type for another decoder.
pub(super) fn read_file(path: &Path) -> Result<Kubeconfig, ConnectError> {
    let name = path.display().to_string();
    let unreadable = |why: String| ConnectError::Config {
        text: format!("failed to read kubeconfig {name}: {why}"),
    };
    let file = File::open(path).map_err(|error| unreadable(error.to_string()))?;
    let document = Document::from_reader(&name, file, Some(BYTES_MAX))
        .map_err(|error| unreadable(ErrorChain(&error).to_string()))?;
    let parts = document.decode_all::<Kubeconfig>().map_err(|mut error| {
        // What was found may be a token.
        error.text.truncate(error.text.find(", found ").unwrap_or(error.text.len()));
        ConnectError::Config { text: format!("failed to parse kubeconfig YAML of {error}") }
    })?;
    let mut merged = Kubeconfig::default();
    for mut part in parts {
        resolve_paths(&mut part, path.parent().unwrap_or(Path::new("")));
        merged = merged.merge(part).map_err(kubeconfig_error)?;
    }
    Ok(merged)
}

/// As client-go, makes relative paths in a kubeconfig relative to its folder; a command only if it is a path.
fn resolve_paths(file: &mut Kubeconfig, folder: &Path) {
    let resolve = |path: &mut Option<String>| {
        if let Some(given) = path.as_mut().filter(|given| !given.is_empty()) {
            *given = folder.join(&*given).to_string_lossy().into_owned();
        }
    };
    for cluster in file.clusters.iter_mut().filter_map(|named| named.cluster.as_mut()) {
        resolve(&mut cluster.certificate_authority);
    }
    for user in file.auth_infos.iter_mut().filter_map(|named| named.auth_info.as_mut()) {
        resolve(&mut user.client_certificate);
        resolve(&mut user.client_key);
        resolve(&mut user.token_file);
        let command = user.exec.as_mut().map(|exec| &mut exec.command);
        if let Some(command) = command
            && command.as_ref().is_some_and(|it| it.contains(std::path::MAIN_SEPARATOR))
        {
            resolve(command);
        }
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
        match read_file(path) {
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
            Err(error) if matches!(path.try_exists(), Ok(false)) => {
                missing = missing.or(Some(error));
            }
            Err(error) => return Some(Err(error)),
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

    #[test]
    fn paths_are_relative_to_the_folder_of_the_kubeconfig() {
        let mut file: Kubeconfig = serde_json::from_value(serde_json::json!({
            "clusters": [{"name": "c", "cluster": {"certificate-authority": "ca.crt"}}],
            "users": [
                {"name": "a", "user": {"client-certificate": "/etc/a.crt", "client-key": "keys/a.key", "tokenFile": ""}},
                {"name": "b", "user": {"exec": {"command": "bin/login"}}},
                {"name": "d", "user": {"exec": {"command": "aws"}}},
            ],
        }))
        .unwrap();
        resolve_paths(&mut file, Path::new("/home/me"));
        let cluster = file.clusters[0].cluster.as_ref().unwrap();
        assert_eq!(cluster.certificate_authority.as_deref(), Some("/home/me/ca.crt"));
        let users: Vec<_> =
            file.auth_infos.iter().filter_map(|named| named.auth_info.as_ref()).collect();
        assert_eq!(users[0].client_certificate.as_deref(), Some("/etc/a.crt"));
        assert_eq!(users[0].client_key.as_deref(), Some("/home/me/keys/a.key"));
        assert_eq!(users[0].token_file.as_deref(), Some(""));
        let command =
            |nth: usize| users[nth].exec.as_ref().and_then(|exec| exec.command.as_deref());
        assert_eq!((command(1), command(2)), (Some("/home/me/bin/login"), Some("aws")));
    }
}
