//! One list, page by page.

use http_body_util::{BodyExt, LengthLimitError, Limited};
use kube::Client;
use kube::client::Body;
use loadmaster_api::document::Document;
use serde::Deserialize;

use crate::answer::{causes, escape, message_of};
use crate::kinds::Resource;
use crate::read::{Error, PAGE, warning};

/// Objects a page, and how large a page and a list may be.
const PAGE_LEN: usize = 500;
const PAGE_BYTES_MAX: usize = 256 << 20;
const LIST_BYTES_MAX: usize = 4 << 30;

/// A list that changes so fast that it expires while it is read is begun anew so often.
const N_RESTARTS: usize = 3;

/// Who is asked for what.
pub(crate) struct Asked<'a> {
    pub client: &'a Client,
    pub server: &'a str,
    pub kind: &'a Resource,
}

/// Why there is no list.
pub(crate) enum Missing {
    /// One can do without.
    Optional(String),
    Fatal(Box<Error>),
}

impl From<Error> for Missing {
    fn from(error: Error) -> Missing {
        Missing::Fatal(Box::new(error))
    }
}

enum Answer {
    Page(String),
    /// The list that is being continued is too old.
    Expired,
}

/// All pages as one document, so that every object has a place of its own.
pub(crate) async fn pages(asked: &Asked<'_>) -> Result<Document, Missing> {
    for _ in 0..N_RESTARTS {
        if let Some(all) = try_pages(asked).await? {
            return Ok(all);
        }
    }
    let text = "the list expired again and again while it was read".to_owned();
    Err(asked.unreachable(text).into())
}

/// `None` when the list expired on the way.
async fn try_pages(asked: &Asked<'_>) -> Result<Option<Document>, Missing> {
    let mut all = String::new();
    let mut after = String::new();
    loop {
        let text = match get(asked, &after).await? {
            Answer::Page(text) => text,
            Answer::Expired => return Ok(None),
        };
        if all.len() + text.len() > LIST_BYTES_MAX {
            return Err(asked.too_large(LIST_BYTES_MAX).into());
        }
        after = continue_of(&text);
        all.push_str(&text);
        all.push('\n');
        if after.is_empty() {
            break;
        }
    }
    let name = format!("{}{}", asked.server, asked.kind.path());
    Ok(Some(Document::new(name, all)))
}

async fn get(asked: &Asked<'_>, after: &str) -> Result<Answer, Missing> {
    let request = http::Request::get(uri(asked.kind, after)).header("accept", "application/json");
    let request =
        request.body(Body::empty()).map_err(|error| asked.unreachable(error.to_string()))?;
    let exchange = async {
        let response =
            asked.client.send(request).await.map_err(|error| asked.unreachable(causes(&error)))?;
        let status = response.status().as_u16();
        let body = Limited::new(response.into_body(), PAGE_BYTES_MAX).collect().await;
        let bytes = body.map_err(|error| asked.broken(&*error))?.to_bytes();
        Ok::<_, Error>((status, String::from_utf8_lossy(&bytes).into_owned()))
    };
    let timely = tokio::time::timeout(PAGE, exchange).await;
    let (status, text) =
        timely.map_err(|_| asked.unreachable(format!("no answer in {} s", PAGE.as_secs())))??;
    match status {
        200 => Ok(Answer::Page(text)),
        410 if !after.is_empty() => Ok(Answer::Expired),
        status => Err(asked.refused(status, &message_of(&text))),
    }
}

fn uri(kind: &Resource, after: &str) -> String {
    let mut uri = format!("{}?limit={PAGE_LEN}", kind.path());
    if let Some(selector) = kind.field_selector {
        uri.push_str("&fieldSelector=");
        escape(selector, &mut uri);
    }
    if !after.is_empty() {
        uri.push_str("&continue=");
        escape(after, &mut uri);
    }
    uri
}

impl Asked<'_> {
    fn unreachable(&self, text: String) -> Error {
        Error::Unreachable { server: self.server.to_owned(), resource: self.kind.resource, text }
    }

    fn broken(&self, error: &(dyn std::error::Error + 'static)) -> Error {
        if error.is::<LengthLimitError>() {
            return self.too_large(PAGE_BYTES_MAX);
        }
        self.unreachable(causes(error))
    }

    fn too_large(&self, bytes_max: usize) -> Error {
        let (server, resource) = (self.server.to_owned(), self.kind.resource);
        Error::TooLarge { server, resource, bytes_max }
    }

    fn refused(&self, status: u16, message: &str) -> Missing {
        let Resource { resource, required, .. } = *self.kind;
        let (server, message) = (self.server.to_owned(), message.to_owned());
        let rule = self.kind.rule();
        match status {
            401 => Error::Unauthorized { server, message }.into(),
            403 if required => Error::Forbidden { resource, message, rule }.into(),
            403 => {
                let why = format!("not allowed to list {resource} (missing rule: {rule})");
                Missing::Optional(warning(self.kind, &why))
            }
            404 if !required => {
                let why = format!("this cluster has no {resource}");
                Missing::Optional(warning(self.kind, &why))
            }
            _ => Error::Unexpected { server, resource, status, message }.into(),
        }
    }
}

fn continue_of(text: &str) -> String {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Page {
        metadata: Metadata,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Metadata {
        r#continue: String,
    }
    serde_json::from_str::<Page>(text).unwrap_or_default().metadata.r#continue
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::RESOURCES;

    #[test]
    fn addresses() {
        assert_eq!(
            uri(&RESOURCES[0], "a/b+c="),
            "/api/v1/pods?limit=500&fieldSelector=status.phase%21%3DSucceeded%2Cstatus.phase%21%3DFailed\
             &continue=a%2Fb%2Bc%3D"
        );
        assert_eq!(uri(&RESOURCES[5], ""), "/apis/apps/v1/replicasets?limit=500");
    }

    #[test]
    fn tokens() {
        assert_eq!(continue_of(r#"{"metadata":{"continue":"x"},"items":[{"a":[1]}]}"#), "x");
        assert_eq!(continue_of(r#"{"metadata":{"resourceVersion":"7"}}"#), "");
    }
}
