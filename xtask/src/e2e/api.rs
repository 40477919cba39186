//! The few requests that the harness makes, as JSON over kube-rs' connections.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use http::{Method, Request};
use http_body_util::BodyExt as _;
use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::Value;

/// For any one answer; watches end by themselves earlier.
const ANSWER: Duration = Duration::from_secs(60);

/// Objects a page of a long list.
const PAGE_LEN: u32 = 1_000;

/// A client of one identity.
#[derive(Clone)]
pub struct Api {
    client: Client,
}

/// What came back.
pub struct Answer {
    pub status: u16,
    pub body: Vec<u8>,
}

impl Api {
    /// As the user of this kubeconfig file.
    pub async fn new(kubeconfig: &Path) -> Result<Api> {
        Api::of_kubeconfig(kubeconfig, true).await
    }

    /// The same, and every request is made once, whatever becomes of it.
    pub async fn once(kubeconfig: &Path) -> Result<Api> {
        Api::of_kubeconfig(kubeconfig, false).await
    }

    async fn of_kubeconfig(kubeconfig: &Path, retries: bool) -> Result<Api> {
        let file = Kubeconfig::read_from(kubeconfig)
            .with_context(|| format!("reading {}", kubeconfig.display()))?;
        let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await;
        let mut config = config.with_context(|| format!("using {}", kubeconfig.display()))?;
        config.default_retry = retries;
        let client = Client::try_from(config).context("making a client")?;
        Ok(Api { client })
    }

    /// As the bearer of a token, or as nobody, at a server whose certificate nobody signed; every request is made once.
    pub fn unverified(url: &str, token: Option<&str>) -> Result<Api> {
        let mut config = Config::new(url.parse().with_context(|| format!("reading {url}"))?);
        config.accept_invalid_certs = true;
        config.default_retry = false;
        config.auth_info.token = token.map(|token| token.to_owned().into());
        let client = Client::try_from(config).context("making a client")?;
        Ok(Api { client })
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

    /// Creates an object below `path` and returns it as the API server has it.
    pub async fn create(&self, path: &str, object: &Value) -> Result<Value> {
        let body = object.to_string().into_bytes();
        parse(path, &self.expect(Method::POST, path, body).await?)
    }

    /// Any request with any answer.
    pub async fn ask(&self, method: Method, path: &str, body: Vec<u8>) -> Result<Answer> {
        let json = "application/json";
        self.ask_with(method, path, body, &[("content-type", json), ("accept", json)]).await
    }

    /// The same, with headers.
    pub async fn ask_with(
        &self,
        method: Method,
        path: &str,
        body: Vec<u8>,
        headers: &[(&str, &str)],
    ) -> Result<Answer> {
        let exchange = async {
            let response = self.send_with(&method, path, body, headers).await?;
            let status = response.status().as_u16();
            let body = response.into_body().collect().await;
            let body = body.map_err(|error| anyhow::anyhow!("{error}"))?.to_bytes().to_vec();
            Ok::<_, anyhow::Error>(Answer { status, body })
        };
        let timely = tokio::time::timeout(ANSWER, exchange).await;
        timely
            .map_err(|_| anyhow::anyhow!("no answer in {} s", ANSWER.as_secs()))
            .and_then(|answer| answer)
            .with_context(|| format!("{method} {path}"))
    }

    /// The head of an answer whose body is read as it comes.
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
        let request = request.body(Body::from(body)).context("making a request")?;
        self.client.send(request).await.context("talking to the API server")
    }

    async fn expect(&self, method: Method, path: &str, body: Vec<u8>) -> Result<Vec<u8>> {
        let answer = self.ask(method.clone(), path, body).await?;
        if !(200..300).contains(&answer.status) {
            let text = String::from_utf8_lossy(&answer.body).into_owned();
            bail!("{method} {path}: answer {}: {}", answer.status, text.trim());
        }
        Ok(answer.body)
    }
}

fn parse(path: &str, body: &[u8]) -> Result<Value> {
    serde_json::from_slice(body).with_context(|| format!("reading the answer to {path}"))
}
