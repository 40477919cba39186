//! An OCI image layout in memory: blobs by digest, an index, and docker's list of images; written as a folder and as a tar archive.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, Result};
use flate2::Compression;
use ring::digest::{SHA256, digest};
use serde_json::{Value, json};

use super::contents::{ENVIRONMENT, Image, USER};
use super::layer::{self, Entries};

pub const INDEX_TYPE: &str = "application/vnd.oci.image.index.v1+json";
pub const MANIFEST_TYPE: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG_TYPE: &str = "application/vnd.oci.image.config.v1+json";
const LAYER_TYPE: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

/// What all images of a build have in common.
#[derive(Debug)]
pub struct Release {
    /// The tag of all images.
    pub tag: String,
    pub version: String,
    /// The commit, and whether there were changes.
    pub revision: String,
    /// The time of the commit, in seconds since 1970.
    pub seconds: u64,
}

/// Blobs and other files of the layout, by path.
#[derive(Debug)]
pub struct Layout {
    files: Entries,
    /// The manifests of each image, by reference: `loadmaster:0.1.0`.
    images: BTreeMap<String, Vec<Value>>,
    /// Docker's list of images.
    docker_images: Vec<Value>,
    compression: Compression,
}

/// `sha256:` and the digest in hexadecimal.
pub fn digest_of(bytes: &[u8]) -> String {
    format!("sha256:{}", crate::hex(digest(&SHA256, bytes).as_ref()))
}

/// The path of a blob in a layout.
pub fn blob_path(digest: &str) -> String {
    format!("blobs/{}", digest.replacen(':', "/", 1))
}

impl Layout {
    /// A layout without images, for layers that are compressed like this.
    pub fn new(compression: Compression) -> Layout {
        let (files, images) = (Entries::new(), BTreeMap::new());
        Layout { files, images, docker_images: Vec::new(), compression }
    }

    /// Adds an image for one architecture (as OCI names it); returns the size of its compressed layer.
    pub fn add_image(
        &mut self,
        image: &Image,
        architecture: &str,
        entries: &Entries,
        release: &Release,
    ) -> Result<usize> {
        let tar = layer::tar(entries, release.seconds)?;
        let compressed = layer::gzip(&tar, self.compression)?;
        let n_bytes = compressed.len();
        let config = config(image, architecture, &digest_of(&tar), release)?;
        let layer = self.add_blob(LAYER_TYPE, compressed);
        let config = self.add_blob(CONFIG_TYPE, json_bytes(&config)?);
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "config": config,
            "layers": [layer],
            "annotations": labels(image, release)?,
        });
        let mut descriptor = self.add_blob(MANIFEST_TYPE, json_bytes(&manifest)?);
        descriptor["platform"] = json!({"architecture": architecture, "os": "linux"});
        let reference = format!("{}:{}", image.name, release.tag);
        let path = |blob: &Value| blob_path(blob["digest"].as_str().unwrap_or_default());
        // Docker's list has no architectures: an image is in it once.
        if !self.images.contains_key(&reference) {
            let (config, layers) = (path(&config), [path(&layer)]);
            self.docker_images
                .push(json!({"Config": config, "RepoTags": [&reference], "Layers": layers}));
        }
        self.images.entry(reference).or_default().push(descriptor);
        Ok(n_bytes)
    }

    /// Adds bytes; returns their descriptor.
    fn add_blob(&mut self, media_type: &str, bytes: Vec<u8>) -> Value {
        let digest = digest_of(&bytes);
        let descriptor = json!({"mediaType": media_type, "digest": digest, "size": bytes.len()});
        layer::add_file(&mut self.files, &blob_path(&digest), 0o644, bytes);
        descriptor
    }

    /// Adds the index and the other files that list images; returns all files.
    pub fn finish(mut self) -> Result<Entries> {
        let mut manifests = Vec::new();
        for (reference, of_image) in std::mem::take(&mut self.images) {
            // Several architectures are an index of their own.
            let mut descriptor = match <[Value; 1]>::try_from(of_image) {
                Ok([only]) => only,
                Err(several) => {
                    let index =
                        json!({"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": several});
                    self.add_blob(INDEX_TYPE, json_bytes(&index)?)
                }
            };
            descriptor["annotations"] = json!({
                "org.opencontainers.image.ref.name": reference,
                // With it, `ctr image import` needs no name.
                "io.containerd.image.name": format!("docker.io/library/{reference}"),
            });
            manifests.push(descriptor);
        }
        let index = json!({"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": manifests});
        for (path, content) in [
            ("index.json", index),
            ("manifest.json", Value::Array(self.docker_images)),
            ("oci-layout", json!({"imageLayoutVersion": "1.0.0"})),
        ] {
            layer::add_file(&mut self.files, path, 0o644, json_bytes(&content)?);
        }
        Ok(self.files)
    }
}

/// The configuration of an image: what a container runtime reads.
fn config(image: &Image, architecture: &str, diff_id: &str, release: &Release) -> Result<Value> {
    let created = rfc3339(release.seconds)?;
    let environment: Vec<String> =
        ENVIRONMENT.iter().map(|(name, value)| format!("{name}={value}")).collect();
    Ok(json!({
        "created": created,
        "architecture": architecture,
        "os": "linux",
        "config": {
            "User": USER,
            "Env": environment,
            "Entrypoint": image.entry_point(),
            "WorkingDir": "/",
            "Labels": labels(image, release)?,
        },
        "rootfs": {"type": "layers", "diff_ids": [diff_id]},
        "history": [{"created": created, "created_by": "cargo xtask image"}],
    }))
}

fn labels(image: &Image, release: &Release) -> Result<Value> {
    Ok(json!({
        "org.opencontainers.image.title": image.name,
        "org.opencontainers.image.description": image.description,
        "org.opencontainers.image.version": release.version,
        "org.opencontainers.image.revision": release.revision,
        "org.opencontainers.image.created": rfc3339(release.seconds)?,
        "org.opencontainers.image.licenses": "Apache-2.0",
    }))
}

/// `2026-01-31T12:00:00Z`.
pub fn rfc3339(seconds: u64) -> Result<String> {
    let seconds = i64::try_from(seconds).context("the time of the commit")?;
    let time = jiff::Timestamp::from_second(seconds).context("the time of the commit")?;
    Ok(time.to_string())
}

fn json_bytes(value: &Value) -> Result<Vec<u8>> {
    serde_json::to_vec(value).context("writing JSON")
}

/// Writes files into a folder, in place of what is there.
pub fn write_folder(files: &Entries, folder: &Path) -> Result<()> {
    if folder.exists() {
        // Only a folder that this program has written.
        let marker = folder.join("oci-layout");
        anyhow::ensure!(
            marker.exists(),
            "{} exists and is not an OCI image layout",
            folder.display()
        );
        std::fs::remove_dir_all(folder)
            .with_context(|| format!("removing {}", folder.display()))?;
    }
    for (path, entry) in files {
        let path = folder.join(path);
        let writing = || format!("writing {}", path.display());
        match entry {
            layer::Entry::Folder { .. } => {
                std::fs::create_dir_all(&path).with_context(writing)?;
            }
            layer::Entry::File { content, .. } => {
                if let Some(parent) = path.parent() {
                    std::fs::create_dir_all(parent).with_context(writing)?;
                }
                std::fs::write(&path, content).with_context(writing)?;
            }
            layer::Entry::Link { .. } => anyhow::bail!("{} is a link", path.display()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::contents::IMAGES;
    use super::*;

    fn release() -> Release {
        Release {
            tag: "v1".to_owned(),
            version: "0.1.0".to_owned(),
            revision: "0123".to_owned(),
            seconds: 1_700_000_000,
        }
    }

    fn read(files: &Entries, path: &str) -> Value {
        let Some(layer::Entry::File { content, .. }) = files.get(path) else {
            panic!("{path} is not a file");
        };
        serde_json::from_slice(content).unwrap()
    }

    fn blob(files: &Entries, descriptor: &Value) -> Value {
        read(files, &blob_path(descriptor["digest"].as_str().unwrap()))
    }

    #[test]
    fn digests() {
        // The SHA-256 of nothing (FIPS 180-4).
        let empty = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(digest_of(b""), empty);
        assert_eq!(blob_path("sha256:ab"), "blobs/sha256/ab");
    }

    #[test]
    fn images_are_listed_by_reference() {
        let mut layout = Layout::new(Compression::best());
        let mut entries = Entries::new();
        layer::add_file(&mut entries, "/bin/loadmaster", 0o755, b"program".to_vec());
        layout.add_image(&IMAGES[0], "amd64", &entries, &release()).unwrap();
        layout.add_image(&IMAGES[1], "amd64", &entries, &release()).unwrap();
        layout.add_image(&IMAGES[1], "arm64", &entries, &release()).unwrap();
        let files = layout.finish().unwrap();

        let index = read(&files, "index.json");
        let names = index["manifests"].as_array().unwrap().iter();
        let names: Vec<_> = names
            .map(|it| it["annotations"]["org.opencontainers.image.ref.name"].clone())
            .collect();
        assert_eq!(names, ["loadmaster-controllers:v1", "loadmaster:v1"].map(Value::from));

        let manifest = blob(&files, &index["manifests"][1]);
        let config = blob(&files, &manifest["config"]);
        assert_eq!(config["config"]["User"], "65532:65532");
        assert_eq!(config["config"]["Entrypoint"], json!(["/bin/loadmaster"]));
        assert_eq!(config["created"], "2023-11-14T22:13:20Z");
        let tar = layer::tar(&entries, 1_700_000_000).unwrap();
        assert_eq!(config["rootfs"]["diff_ids"], json!([digest_of(&tar)]));

        let several = blob(&files, &index["manifests"][0]);
        let platforms = several["manifests"].as_array().unwrap().iter();
        let platforms: Vec<_> =
            platforms.map(|it| it["platform"]["architecture"].clone()).collect();
        assert_eq!(platforms, ["amd64", "arm64"].map(Value::from));

        let docker = read(&files, "manifest.json");
        let tags = docker.as_array().unwrap().iter().map(|it| it["RepoTags"].clone());
        let tags: Vec<_> = tags.collect();
        assert_eq!(tags, [json!(["loadmaster:v1"]), json!(["loadmaster-controllers:v1"])]);
    }
}
