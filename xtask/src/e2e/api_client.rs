//! A client for the API server: JSON requests over kube-rs connections.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use http::{Method, Request};
use http_body_util::BodyExt as _;
use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::Value;

/// The timeout of a request; watches end earlier by themselves.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// The number of objects per page of a list.
const PAGE_LEN: u32 = 1_000;

/// A client with the credentials of one user.
#[derive(Clone)]
pub struct ApiClient {
    client: Client,
}

/// The response to a request.
pub struct ApiResponse {
    pub status: u16,
    pub body: Vec<u8>,
}

impl ApiClient {
    /// As the user of this kubeconfig file.
    pub async fn new(kubeconfig: &Path) -> Result<ApiClient> {
        ApiClient::from_kubeconfig(kubeconfig, true).await
    }

    /// The same, but without retries.
    pub async fn without_retries(kubeconfig: &Path) -> Result<ApiClient> {
        ApiClient::from_kubeconfig(kubeconfig, false).await
    }

    async fn from_kubeconfig(kubeconfig: &Path, retries: bool) -> Result<ApiClient> {
        let file = Kubeconfig::read_from(kubeconfig)
            .with_context(|| format!("reading {}", kubeconfig.display()))?;
        let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await;
        let mut config = config.with_context(|| format!("using {}", kubeconfig.display()))?;
        config.default_retry = retries;
        let client = Client::try_from(config).context("creating a client")?;
        Ok(ApiClient { client })
    }

    /// With a bearer token or anonymous, without TLS verification and without retries.
    pub fn insecure(url: &str, token: Option<&str>) -> Result<ApiClient> {
        let mut config = Config::new(url.parse().with_context(|| format!("reading {url}"))?);
        config.accept_invalid_certs = true;
        config.default_retry = false;
        config.auth_info.token = token.map(|token| token.to_owned().into());
        let client = Client::try_from(config).context("creating a client")?;
        Ok(ApiClient { client })
    }

    /// The object, list or text at `path`.
    pub async fn get(&self, path: &str) -> Result<Vec<u8>> {
        self.expect(Method::GET, path, Vec::new()).await
    }

    /// The object or list at `path`.
    pub async fn get_json(&self, path: &str) -> Result<Value> {
        parse(path, &self.get(path).await?)
    }

    /// All objects of the list at `path`, read page by page.
    pub async fn list(&self, path: &str) -> Result<Vec<Value>> {
        let (mut all, mut after) = (Vec::new(), String::new());
        loop {
            let page = format!("{path}?limit={PAGE_LEN}&continue={after}");
            let mut list = self.get_json(&page).await?;
            match list["items"].take() {
                Value::Array(items) => all.extend(items),
                _ => bail!("GET {page}: a list without items"),
            }
            match list["metadata"]["continue"].as_str() {
                Some(token) if !token.is_empty() => after = token.to_owned(),
                _ => return Ok(all),
            }
        }
    }

    /// Creates an object at the collection `path` and returns the created object.
    pub async fn create(&self, path: &str, object: &Value) -> Result<Value> {
        let body = object.to_string().into_bytes();
        parse(path, &self.expect(Method::POST, path, body).await?)
    }

    /// Sends any request and returns the response.
    pub async fn request(&self, method: Method, path: &str, body: Vec<u8>) -> Result<ApiResponse> {
        let json = "application/json";
        self.request_with_headers(method, path, body, &[("content-type", json), ("accept", json)])
            .await
    }

    /// The same, with headers.
    pub async fn request_with_headers(
        &self,
        method: Method,
        path: &str,
        body: Vec<u8>,
        headers: &[(&str, &str)],
    ) -> Result<ApiResponse> {
        let exchange = async {
            let response = self.send_with(&method, path, body, headers).await?;
            let status = response.status().as_u16();
            let body = response.into_body().collect().await;
            let body = body.map_err(|error| anyhow::anyhow!("{error}"))?.to_bytes().to_vec();
            Ok::<_, anyhow::Error>(ApiResponse { status, body })
        };
        let timely = tokio::time::timeout(REQUEST_TIMEOUT, exchange).await;
        timely
            .map_err(|_| anyhow::anyhow!("no response within {} s", REQUEST_TIMEOUT.as_secs()))
            .and_then(|response| response)
            .with_context(|| format!("{method} {path}"))
    }

    /// Sends a request and returns the response with a streaming body.
    pub async fn send(
        &self,
        method: &Method,
        path: &str,
        body: Vec<u8>,
        accept: &str,
    ) -> Result<http::Response<Body>> {
        let headers = [("content-type", "application/json"), ("accept", accept)];
        self.send_with(method, path, body, &headers).await
    }

    async fn send_with(
        &self,
        method: &Method,
        path: &str,
        body: Vec<u8>,
        headers: &[(&str, &str)],
    ) -> Result<http::Response<Body>> {
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Body::from(body)).context("building a request")?;
        self.client.send(request).await.context("sending a request to the API server")
    }

    async fn expect(&self, method: Method, path: &str, body: Vec<u8>) -> Result<Vec<u8>> {
        let response = self.request(method.clone(), path, body).await?;
        if !(200..300).contains(&response.status) {
            let text = String::from_utf8_lossy(&response.body).into_owned();
            bail!("{method} {path}: status {}: {}", response.status, text.trim());
        }
        Ok(response.body)
    }
}

fn parse(path: &str, body: &[u8]) -> Result<Value> {
    serde_json::from_slice(body).with_context(|| format!("decoding the response of {path}"))
}
