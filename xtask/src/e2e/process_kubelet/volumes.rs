//! The volumes of a pod as folders: ConfigMaps, Secrets, projected volumes with a token of the pod, folders of the node, and empty ones.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::command::{Volume, field};
use crate::e2e::api_client::ApiClient;

/// `defaultMode`.
const MODE: u64 = 0o644;

/// The files of a volume: content and mode by path.
type Files = BTreeMap<String, (Vec<u8>, u64)>;

/// Writes the volumes of a pod below `folder`. `node` stands for the root folder of its node.
pub async fn prepare(
    api: &ApiClient,
    pod: &Value,
    folder: &Path,
    node: &Path,
) -> Result<BTreeMap<String, Volume>> {
    let mut volumes = BTreeMap::new();
    for volume in pod["spec"]["volumes"].as_array().into_iter().flatten() {
        let name = volume["name"].as_str().context("a volume without a name")?;
        let prepared = prepare_one(api, pod, volume, &folder.join(name), node).await;
        volumes.insert(name.to_owned(), prepared.with_context(|| format!("the volume {name}"))?);
    }
    Ok(volumes)
}

async fn prepare_one(
    api: &ApiClient,
    pod: &Value,
    volume: &Value,
    folder: &Path,
    node: &Path,
) -> Result<Volume> {
    let path = volume["hostPath"]["path"].as_str();
    if let Some(path) = path {
        let folder = node.join(path.trim_start_matches('/'));
        match volume["hostPath"]["type"].as_str().unwrap_or_default() {
            "" => {}
            "Directory" => ensure!(folder.is_dir(), "{path} is no folder of the node"),
            "DirectoryOrCreate" => fs::create_dir_all(&folder)?,
            other => bail!("hostPath of the type {other} is not implemented"),
        }
        return Ok(Volume { folder, is_read_only: false });
    }
    let files = if let Some(source) = volume.get("configMap") {
        config_map(api, pod, &source["name"], source).await?
    } else if let Some(source) = volume.get("secret") {
        secret(api, pod, &source["secretName"], source).await?
    } else if let Some(source) = volume.get("projected") {
        projected(api, pod, source).await?
    } else if let Some(source) = volume.get("downwardAPI") {
        downward(pod, source, mode(source))?
    } else if volume.get("emptyDir").is_some() {
        fs::create_dir_all(folder)?;
        fs::set_permissions(folder, Permissions::from_mode(0o777))?;
        return Ok(Volume { folder: folder.to_owned(), is_read_only: false });
    } else {
        bail!("it is of a kind that is not implemented: {volume}");
    };
    write(&files, folder).with_context(|| format!("writing {}", folder.display()))?;
    Ok(Volume { folder: folder.to_owned(), is_read_only: true })
}

fn mode(source: &Value) -> u64 {
    source["defaultMode"].as_u64().unwrap_or(MODE)
}

async fn projected(api: &ApiClient, pod: &Value, source: &Value) -> Result<Files> {
    let mut files = Files::new();
    let mode = mode(source);
    for source in source["sources"].as_array().into_iter().flatten() {
        if let Some(token) = source.get("serviceAccountToken") {
            let path = token["path"].as_str().context("a token without a path")?;
            files.insert(path.to_owned(), (self::token(api, pod, token).await?.into_bytes(), mode));
        } else if let Some(source) = source.get("configMap") {
            files.extend(config_map(api, pod, &source["name"], source).await?);
        } else if let Some(source) = source.get("secret") {
            files.extend(secret(api, pod, &source["name"], source).await?);
        } else if let Some(source) = source.get("downwardAPI") {
            files.extend(downward(pod, source, mode)?);
        } else {
            bail!("a source of a kind that is not implemented: {source}");
        }
    }
    Ok(files)
}

/// A token that is valid as long as the pod exists.
async fn token(api: &ApiClient, pod: &Value, source: &Value) -> Result<String> {
    let metadata = &pod["metadata"];
    let namespace = metadata["namespace"].as_str().context("a pod without a namespace")?;
    let account = pod["spec"]["serviceAccountName"].as_str().unwrap_or("default");
    let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token");
    let bound_to = json!({"apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": metadata["uid"]});
    let audiences: Vec<&str> = source["audience"].as_str().into_iter().collect();
    let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {
        "audiences": audiences, "expirationSeconds": source["expirationSeconds"].as_u64().unwrap_or(3600),
        "boundObjectRef": bound_to}});
    let response = api.create(&path, &request).await?;
    let token = response["status"]["token"].as_str();
    Ok(token.context("a token request without a token")?.to_owned())
}

async fn config_map(api: &ApiClient, pod: &Value, name: &Value, source: &Value) -> Result<Files> {
    let Some(object) = read(api, pod, "configmaps", name, source).await? else {
        return Ok(Files::new());
    };
    let mut contents = BTreeMap::new();
    for (key, text) in object["data"].as_object().into_iter().flatten() {
        contents.insert(key.clone(), text.as_str().unwrap_or_default().as_bytes().to_vec());
    }
    contents.extend(decoded(&object["binaryData"])?);
    chosen(contents, source)
}

async fn secret(api: &ApiClient, pod: &Value, name: &Value, source: &Value) -> Result<Files> {
    match read(api, pod, "secrets", name, source).await? {
        Some(object) => chosen(decoded(&object["data"])?, source),
        None => Ok(Files::new()),
    }
}

/// The object, unless it is missing and optional.
async fn read(
    api: &ApiClient,
    pod: &Value,
    kind: &str,
    name: &Value,
    source: &Value,
) -> Result<Option<Value>> {
    let namespace = pod["metadata"]["namespace"].as_str().unwrap_or_default();
    let name = name.as_str().context("a source without a name")?;
    let object = api.get_json(&format!("/api/v1/namespaces/{namespace}/{kind}/{name}")).await;
    if object.is_err() && source["optional"] == true {
        return Ok(None);
    }
    object.map(Some)
}

fn decoded(data: &Value) -> Result<BTreeMap<String, Vec<u8>>> {
    let entries = data.as_object().into_iter().flatten();
    let decode = |(key, text): (&String, &Value)| {
        let bytes = STANDARD.decode(text.as_str().unwrap_or_default());
        Ok((key.clone(), bytes.with_context(|| format!("decoding {key}"))?))
    };
    entries.map(decode).collect()
}

/// All files, or those of `items`, with their modes.
fn chosen(mut contents: BTreeMap<String, Vec<u8>>, source: &Value) -> Result<Files> {
    let mode = mode(source);
    let Some(items) = source["items"].as_array() else {
        return Ok(contents.into_iter().map(|(path, content)| (path, (content, mode))).collect());
    };
    let mut files = Files::new();
    for item in items {
        let key = item["key"].as_str().context("an item without a key")?;
        let path = item["path"].as_str().context("an item without a path")?;
        let content = contents.remove(key).with_context(|| format!("there is no key {key}"))?;
        files.insert(path.to_owned(), (content, item["mode"].as_u64().unwrap_or(mode)));
    }
    Ok(files)
}

fn downward(pod: &Value, source: &Value, mode: u64) -> Result<Files> {
    let mut files = Files::new();
    for item in source["items"].as_array().into_iter().flatten() {
        let path = item["path"].as_str().context("an item without a path")?;
        let text = field(pod, item["fieldRef"]["fieldPath"].as_str().unwrap_or_default())?;
        files.insert(path.to_owned(), (text.into_bytes(), mode));
    }
    Ok(files)
}

/// Files as the kubelet lays them out: in a folder with a time as its name, which `..data` links to, with a link for each file, so that all of
/// them can be replaced at once.
fn write(files: &Files, folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    let name = format!("..{}", jiff::Timestamp::now().strftime("%Y_%m_%d_%H_%M_%S.%f"));
    let data = folder.join(&name);
    fs::create_dir_all(&data)?;
    symlink(&name, folder.join("..data"))?;
    for (path, (content, mode)) in files {
        let file = data.join(path);
        if let Some(parent) = file.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::write(&file, content)?;
        fs::set_permissions(&file, Permissions::from_mode(u32::try_from(*mode)?))?;
        let first = path.split('/').next().unwrap_or(path);
        let link = folder.join(first);
        if !link.is_symlink() {
            symlink(Path::new("..data").join(first), link)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_choose_files() {
        let contents = || BTreeMap::from([("a".to_owned(), vec![1]), ("b".to_owned(), vec![2])]);
        let check = |source: Value, want: Option<Files>| {
            assert_eq!(chosen(contents(), &source).ok(), want, "{source}");
        };
        let file = |path: &str, content: u8, mode: u64| (path.to_owned(), (vec![content], mode));
        check(json!({}), Some([file("a", 1, 0o644), file("b", 2, 0o644)].into()));
        let items = json!({"defaultMode": 0o400, "items": [{"key": "b", "path": "c/d"}]});
        check(items, Some([file("c/d", 2, 0o400)].into()));
        check(json!({"items": [{"key": "x", "path": "x"}]}), None);
    }

    #[test]
    fn files_are_links_into_data() {
        let folder = std::env::temp_dir().join(format!("volumes-{}", std::process::id()));
        let files: Files =
            [("a".to_owned(), (b"1".to_vec(), 0o640)), ("d/b".to_owned(), (b"2".to_vec(), 0o644))]
                .into();
        write(&files, &folder).unwrap();
        assert_eq!(fs::read_link(folder.join("a")).unwrap(), Path::new("..data/a"));
        assert_eq!(fs::read_link(folder.join("d")).unwrap(), Path::new("..data/d"));
        assert_eq!(fs::read_to_string(folder.join("d/b")).unwrap(), "2");
        let mode = fs::metadata(folder.join("a")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o640);
        fs::remove_dir_all(&folder).unwrap();
    }
}
