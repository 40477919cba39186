//! Reads images of a layout back, as a container runtime does.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use flate2::read::GzDecoder;
use serde_json::Value;

use super::layout::{INDEX_TYPE, MANIFEST_TYPE, blob_path, digest_of};

/// An image that was read back: its configuration, and a folder with its files.
#[derive(Clone, Debug)]
pub struct Unpacked {
    pub folder: PathBuf,
    config: Value,
}

impl Unpacked {
    /// Finds an image by its reference, and unpacks its layers into a new folder.
    pub fn read(
        layout: &Path,
        reference: &str,
        architecture: &str,
        folder: PathBuf,
    ) -> Result<Unpacked> {
        let index = fs::read(layout.join("index.json")).context("reading index.json")?;
        let index: Value = serde_json::from_slice(&index).context("reading index.json")?;
        let named =
            |it: &&Value| it["annotations"]["org.opencontainers.image.ref.name"] == reference;
        let mut found = manifests(&index).find(named).cloned();
        if let Some(several) = found.as_ref().filter(|it| it["mediaType"] == INDEX_TYPE) {
            let index = json_blob(layout, several)?;
            found = manifests(&index)
                .find(|it| it["platform"]["architecture"] == architecture)
                .cloned();
        }
        let found = found.context("it is not in the index")?;
        ensure!(found["mediaType"] == MANIFEST_TYPE, "its media type is {}", found["mediaType"]);
        let manifest = json_blob(layout, &found)?;
        let config = json_blob(layout, &manifest["config"])?;
        ensure!(
            config["architecture"] == architecture,
            "its architecture is {}",
            config["architecture"]
        );
        unpack_layers(layout, &manifest, &config, &folder)?;
        Ok(Unpacked { folder, config })
    }

    /// What a container runtime reads: `User`, `Env`, `Entrypoint`, `Cmd`, `WorkingDir`.
    pub fn config(&self) -> &Value {
        &self.config["config"]
    }

    /// The user and the group, by number.
    pub fn user(&self) -> Result<(u32, u32)> {
        let user = self.config()["User"].as_str().and_then(|user| user.split_once(':'));
        let (user, group) = user.context("the user is UID:GID")?;
        let number = |text: &str| text.parse().with_context(|| format!("{text} is no number"));
        Ok((number(user)?, number(group)?))
    }

    /// The environment.
    pub fn environment(&self) -> BTreeMap<&str, &str> {
        let lines = self.config()["Env"].as_array().into_iter().flatten();
        lines.filter_map(|it| it.as_str()?.split_once('=')).collect()
    }

    /// The program and its first arguments.
    pub fn entry_point(&self) -> Vec<&str> {
        let words = self.config()["Entrypoint"].as_array().into_iter().flatten();
        words.filter_map(Value::as_str).collect()
    }

    /// The working directory.
    pub fn working_directory(&self) -> &str {
        self.config()["WorkingDir"].as_str().filter(|it| !it.is_empty()).unwrap_or("/")
    }
}

fn unpack_layers(layout: &Path, manifest: &Value, config: &Value, folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("removing {}", folder.display()))?;
    }
    let layers = manifest["layers"].as_array().context("a manifest has layers")?;
    let diff_ids =
        config["rootfs"]["diff_ids"].as_array().context("a configuration has diff_ids")?;
    ensure!(
        layers.len() == diff_ids.len(),
        "{} layers and {} diff_ids",
        layers.len(),
        diff_ids.len()
    );
    for (layer, diff_id) in layers.iter().zip(diff_ids) {
        let mut archive = Vec::new();
        let compressed = blob(layout, layer)?;
        GzDecoder::new(&compressed[..])
            .read_to_end(&mut archive)
            .context("decompressing a layer")?;
        ensure!(*diff_id == digest_of(&archive), "the diff_id of a layer is {diff_id}");
        fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
        let unpacked = tar::Archive::new(&archive[..]).unpack(folder);
        unpacked.with_context(|| format!("unpacking into {}", folder.display()))?;
    }
    Ok(())
}

/// The blob of a descriptor, if its size and digest are as the descriptor says.
fn blob(layout: &Path, descriptor: &Value) -> Result<Vec<u8>> {
    let digest = descriptor["digest"].as_str().context("a descriptor has a digest")?;
    let path = layout.join(blob_path(digest));
    let bytes = fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
    ensure!(descriptor["size"] == bytes.len(), "the size of {digest} is {}", bytes.len());
    ensure!(
        digest_of(&bytes) == digest,
        "the digest of {} is {}",
        path.display(),
        digest_of(&bytes)
    );
    Ok(bytes)
}

fn json_blob(layout: &Path, descriptor: &Value) -> Result<Value> {
    serde_json::from_slice(&blob(layout, descriptor)?).context("reading JSON")
}

fn manifests(index: &Value) -> impl Iterator<Item = &Value> {
    index["manifests"].as_array().into_iter().flatten()
}
