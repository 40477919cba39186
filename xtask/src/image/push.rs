//! Pushes the images of a layout to a registry, with the OCI distribution protocol. A registry on this machine is called over plain HTTP, others
//! over HTTPS. Credentials are those of Docker's configuration file.

mod authentication;
#[cfg(test)]
mod tests;

use anyhow::{Context as _, Result, bail, ensure};
use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, LOCATION, WWW_AUTHENTICATE};
use http::{Method, Request, StatusCode, Uri};
use http_body_util::BodyExt as _;
use kube::client::Body;
use kube::{Client, Config};
use serde_json::Value;

use super::layer::{Entries, Entry};
use super::layout::{INDEX_TYPE, MANIFEST_TYPE, blob_path};
use authentication::{Authenticator, Challenge, DockerConfig};

/// A registry, and the beginning of the names of its repositories.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registry {
    /// With the port, if there is one.
    host: String,
    /// Empty, or with a slash at the end.
    prefix: String,
}

impl Registry {
    /// Parses `registry.example.com/team`, where the path may be missing.
    pub fn parse(text: &str) -> Result<Registry, String> {
        let (host, path) = text.split_once('/').unwrap_or((text, ""));
        let is_host =
            |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | ':' | '[' | ']');
        let is_path = |c: char| {
            c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '.' | '-' | '_' | '/')
        };
        let is_valid = !host.is_empty()
            && host.chars().all(is_host)
            && host.parse::<http::uri::Authority>().is_ok()
            && path.chars().all(is_path)
            && !path.split('/').rev().skip(1).any(str::is_empty);
        if !is_valid {
            return Err("expected HOST[:PORT][/PATH] without a scheme, such as localhost:5000 or registry.example.com/team".to_owned());
        }
        let path = path.trim_end_matches('/');
        let prefix = if path.is_empty() { String::new() } else { format!("{path}/") };
        Ok(Registry { host: host.to_owned(), prefix })
    }

    fn url(&self) -> String {
        let is_local = ["localhost", "127.0.0.1", "[::1]"].iter().any(|local| {
            self.host
                .strip_prefix(local)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
        });
        format!("{}://{}", if is_local { "http" } else { "https" }, self.host)
    }
}

/// Pushes all images of a layout's files. `docker_config` is the text of Docker's configuration file, if there is one.
pub async fn push(files: &Entries, registry: &Registry, docker_config: Option<&str>) -> Result<()> {
    let config = DockerConfig::parse(docker_config)?;
    let index = json_file(files, "index.json")?;
    for descriptor in index["manifests"].as_array().into_iter().flatten() {
        let reference = descriptor["annotations"]["org.opencontainers.image.ref.name"].as_str();
        let (name, tag) =
            reference.and_then(|it| it.split_once(':')).context("an image has no name")?;
        let mut repository = Repository {
            files,
            connection: Connection::new(&registry.url(), config.authenticator(&registry.host))?,
            host: &registry.host,
            name: format!("{}{name}", registry.prefix),
        };
        repository
            .push(descriptor, tag)
            .await
            .with_context(|| format!("pushing {}/{}:{tag}", registry.host, repository.name))?;
        println!("pushed {}/{}:{tag}", registry.host, repository.name);
    }
    Ok(())
}

/// A repository of the registry, and the files of the layout.
struct Repository<'f> {
    files: &'f Entries,
    connection: Connection,
    host: &'f str,
    name: String,
}

impl Repository<'_> {
    /// Pushes an image, or an index of images for several architectures.
    async fn push(&mut self, descriptor: &Value, tag: &str) -> Result<()> {
        let content = blob(self.files, descriptor)?;
        let value: Value = serde_json::from_slice(&content).context("reading a manifest")?;
        if descriptor["mediaType"] == INDEX_TYPE {
            for of_architecture in value["manifests"].as_array().into_iter().flatten() {
                self.push_blobs(of_architecture).await?;
                let content = blob(self.files, of_architecture)?;
                self.put_manifest(&digest(of_architecture)?, MANIFEST_TYPE, content).await?;
            }
            return self.put_manifest(tag, INDEX_TYPE, content).await;
        }
        self.push_blobs(descriptor).await?;
        self.put_manifest(tag, MANIFEST_TYPE, content).await
    }

    /// Pushes the blobs that a manifest names.
    async fn push_blobs(&mut self, manifest: &Value) -> Result<()> {
        let manifest = blob(self.files, manifest)?;
        let manifest: Value = serde_json::from_slice(&manifest).context("reading a manifest")?;
        let layers = manifest["layers"].as_array().into_iter().flatten();
        for descriptor in layers.chain([&manifest["config"]]) {
            let digest = digest(descriptor)?;
            self.push_blob(&digest, blob(self.files, descriptor)?)
                .await
                .with_context(|| format!("blob {digest}"))?;
        }
        Ok(())
    }

    async fn push_blob(&mut self, digest: &str, content: Bytes) -> Result<()> {
        let known = format!("/v2/{}/blobs/{digest}", self.name);
        let known = self.connection.send(Method::HEAD, &known, None, Bytes::new()).await?;
        if known.status == StatusCode::OK {
            return Ok(());
        }
        let uploads = format!("/v2/{}/blobs/uploads/", self.name);
        let started = self.connection.send(Method::POST, &uploads, None, Bytes::new()).await?;
        started.expect(StatusCode::ACCEPTED, "starting an upload")?;
        let location = started.headers.get(LOCATION).and_then(|it| it.to_str().ok());
        let location = location.context("the registry names no location for the upload")?;
        let target = upload_target(location, digest, self.host)?;
        let kind = Some("application/octet-stream");
        let uploaded = self.connection.send(Method::PUT, &target, kind, content).await?;
        uploaded.expect(StatusCode::CREATED, "uploading")
    }

    async fn put_manifest(&mut self, reference: &str, kind: &str, content: Bytes) -> Result<()> {
        let path = format!("/v2/{}/manifests/{reference}", self.name);
        let put = self.connection.send(Method::PUT, &path, Some(kind), content).await?;
        put.expect(StatusCode::CREATED, "uploading the manifest")
    }
}

/// The path and query of an upload: the location that the registry named, and the digest.
fn upload_target(location: &str, digest: &str, host: &str) -> Result<String> {
    let uri: Uri = location.parse().with_context(|| format!("the location {location:?}"))?;
    if let Some(authority) = uri.authority() {
        ensure!(authority == host, "the registry wants the upload to be sent to {authority}");
    }
    let path = uri.path_and_query().context("the location of the upload has no path")?;
    let separator = if path.query().is_some() { '&' } else { '?' };
    Ok(format!("{path}{separator}digest={digest}"))
}

/// A response with its whole body.
struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

impl Answer {
    fn expect(&self, status: StatusCode, doing: &str) -> Result<()> {
        if self.status == status {
            return Ok(());
        }
        bail!("{doing}: {}: {}", self.status, String::from_utf8_lossy(&self.body).trim())
    }
}

/// A connection to one server, with what it asks for to know who we are.
struct Connection {
    client: Client,
    authenticator: Authenticator,
    /// The value of the header, after the server has asked for it.
    authorization: Option<String>,
}

impl Connection {
    fn new(url: &str, authenticator: Authenticator) -> Result<Connection> {
        Ok(Connection { client: client(url)?, authenticator, authorization: None })
    }

    /// Sends a request; if the server wants to know who we are, a second time.
    async fn send(
        &mut self,
        method: Method,
        path: &str,
        content_type: Option<&str>,
        body: Bytes,
    ) -> Result<Answer> {
        let first = self.send_once(&method, path, content_type, body.clone()).await?;
        if first.status != StatusCode::UNAUTHORIZED {
            return Ok(first);
        }
        let challenge = first.headers.get(WWW_AUTHENTICATE).and_then(|it| it.to_str().ok());
        let challenge =
            challenge.context("the registry refuses access and names no way to log in")?;
        let authorization = self.authorize(challenge).await?;
        self.authorization = Some(authorization);
        self.send_once(&method, path, content_type, body).await
    }

    async fn send_once(
        &self,
        method: &Method,
        path: &str,
        content_type: Option<&str>,
        body: Bytes,
    ) -> Result<Answer> {
        let mut request = Request::builder().method(method).uri(path);
        if let Some(content_type) = content_type {
            request = request.header(CONTENT_TYPE, content_type);
        }
        if let Some(authorization) = &self.authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        let request = request.body(Body::from(body.to_vec())).context("building a request")?;
        let response = self.client.send(request).await;
        let response = response.with_context(|| format!("{method} {path}"))?;
        let (parts, body) = response.into_parts();
        let body = body.collect().await.with_context(|| format!("{method} {path}"))?;
        Ok(Answer { status: parts.status, headers: parts.headers, body: body.to_bytes() })
    }

    /// What a challenge wants in the header `Authorization`.
    async fn authorize(&self, challenge: &str) -> Result<String> {
        match Challenge::parse(challenge)? {
            Challenge::Basic => self.authenticator.basic(),
            Challenge::Bearer { url, path } => {
                let server = Connection {
                    client: client(&url)?,
                    authenticator: Authenticator::none(),
                    authorization: self.authenticator.basic().ok(),
                };
                let kind = None;
                let answer = server.send_once(&Method::GET, &path, kind, Bytes::new()).await?;
                answer.expect(StatusCode::OK, "asking for a token")?;
                let answer: Value =
                    serde_json::from_slice(&answer.body).context("reading a token")?;
                let token = answer["token"].as_str().or(answer["access_token"].as_str());
                Ok(format!("Bearer {}", token.context("the answer has no token")?))
            }
        }
    }
}

fn client(url: &str) -> Result<Client> {
    let uri = url.parse().with_context(|| format!("the URL {url}"))?;
    Client::try_from(Config::new(uri)).with_context(|| format!("a client for {url}"))
}

fn digest(descriptor: &Value) -> Result<String> {
    Ok(descriptor["digest"].as_str().context("a descriptor has no digest")?.to_owned())
}

fn blob(files: &Entries, descriptor: &Value) -> Result<Bytes> {
    file(files, &blob_path(&digest(descriptor)?))
}

fn json_file(files: &Entries, path: &str) -> Result<Value> {
    serde_json::from_slice(&file(files, path)?).with_context(|| format!("reading {path}"))
}

fn file(files: &Entries, path: &str) -> Result<Bytes> {
    match files.get(path) {
        Some(Entry::File { content, .. }) => Ok(Bytes::from(content.clone())),
        _ => bail!("{path} is not in the layout"),
    }
}
