//! Lists one kind, page by page, as JSON documents.

use std::time::Duration;

use loadmaster_api::document::Document;
use serde::Deserialize;

use crate::api_client::{ApiClient, Request, SendError};
use crate::kinds::{ApiResource, UnreadCause};
use crate::read_cluster_error::ReadClusterError;
use crate::status::{percent_encode, status_message};

/// The time in which a page must arrive.
const PAGE_TIMEOUT: Duration = Duration::from_secs(60);

/// Objects per page, and size limits of a page and of a list.
const PAGE_LEN: usize = 500;
const PAGE_BYTES_MAX: usize = 256 << 20;
const LIST_BYTES_MAX: usize = 4 << 30;

/// How often a list that expires while it is read is restarted.
const N_RESTARTS: usize = 3;

/// A server and the kind to list.
pub(crate) struct ListRequest<'a> {
    pub client: &'a ApiClient,
    pub kind: &'a ApiResource,
}

/// A kind cannot be listed.
pub(crate) enum ListError {
    /// The kind is optional.
    Optional(UnreadCause),
    Fatal(Box<ReadClusterError>),
}

impl From<ReadClusterError> for ListError {
    fn from(error: ReadClusterError) -> ListError {
        ListError::Fatal(Box::new(error))
    }
}

enum PageReply {
    Page(String),
    /// The continue token has expired.
    Expired,
}

/// All pages as one document, so that every object has its own position in it.
pub(crate) async fn list_all_pages(request: &ListRequest<'_>) -> Result<Document, ListError> {
    for _ in 0..N_RESTARTS {
        if let Some(all) = try_list_all_pages(request).await? {
            return Ok(all);
        }
    }
    let text = format!("the list expired {N_RESTARTS} times while it was read");
    Err(request.unreachable(text).into())
}

/// `None` when the list expired before its last page.
async fn try_list_all_pages(request: &ListRequest<'_>) -> Result<Option<Document>, ListError> {
    let mut all = String::new();
    let mut after = String::new();
    loop {
        let text = match get(request, &after).await? {
            PageReply::Page(text) => text,
            PageReply::Expired => return Ok(None),
        };
        if all.len() + text.len() > LIST_BYTES_MAX {
            return Err(request.too_large(LIST_BYTES_MAX).into());
        }
        after = continue_token(&text);
        all.push_str(&text);
        all.push('\n');
        if after.is_empty() {
            break;
        }
    }
    let name = format!("{}{}", request.client.server(), request.kind.list_path());
    Ok(Some(Document::new(name, all)))
}

async fn get(request: &ListRequest<'_>, after: &str) -> Result<PageReply, ListError> {
    let get = Request {
        timeout: PAGE_TIMEOUT,
        response_bytes_max: PAGE_BYTES_MAX,
        ..Request::get(uri(request.kind, after))
    };
    let sent = request.client.call_with_retries(&get).await;
    let reply = sent.map_err(|error| request.not_read(&error))?;
    let text = String::from_utf8_lossy(&reply.body).into_owned();
    match reply.status {
        200 => Ok(PageReply::Page(text)),
        410 if !after.is_empty() => Ok(PageReply::Expired),
        status => Err(request.refused(status, &status_message(&text))),
    }
}

fn uri(kind: &ApiResource, after: &str) -> String {
    let mut uri = format!("{}?limit={PAGE_LEN}", kind.list_path());
    if let Some(selector) = kind.field_selector {
        uri.push_str("&fieldSelector=");
        percent_encode(selector, &mut uri);
    }
    if !after.is_empty() {
        uri.push_str("&continue=");
        percent_encode(after, &mut uri);
    }
    uri
}

impl ListRequest<'_> {
    fn unreachable(&self, text: String) -> ReadClusterError {
        let (server, resource) = (self.client.server().to_owned(), self.kind.resource);
        ReadClusterError::Unreachable { server, resource, text }
    }

    fn not_read(&self, error: &SendError) -> ReadClusterError {
        match error {
            SendError::TooLarge { bytes_max, .. } => self.too_large(*bytes_max),
            SendError::NotSent { text, .. } | SendError::Lost { text, .. } => {
                self.unreachable(text.to_string())
            }
            SendError::TimedOut { after, .. } => {
                self.unreachable(format!("no response in {} s", after.as_secs()))
            }
        }
    }

    fn too_large(&self, bytes_max: usize) -> ReadClusterError {
        let (server, resource) = (self.client.server().to_owned(), self.kind.resource);
        ReadClusterError::TooLarge { server, resource, bytes_max }
    }

    fn refused(&self, status: u16, message: &str) -> ListError {
        let ApiResource { resource, required, .. } = *self.kind;
        let (server, message) = (self.client.server().to_owned(), message.to_owned());
        let rule = self.kind.cluster_role_rule();
        match status {
            401 => ReadClusterError::Unauthorized { server, message }.into(),
            403 if required => ReadClusterError::Forbidden { resource, message, rule }.into(),
            403 => ListError::Optional(UnreadCause::Forbidden),
            404 if !required => ListError::Optional(UnreadCause::NotServed),
            _ => ReadClusterError::Unexpected { server, resource, status, message }.into(),
        }
    }
}

fn continue_token(text: &str) -> String {
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
    fn list_uris() {
        assert_eq!(
            uri(&RESOURCES[0], "a/b+c="),
            "/api/v1/pods?limit=500&fieldSelector=status.phase%21%3DSucceeded%2Cstatus.phase%21%3DFailed\
             &continue=a%2Fb%2Bc%3D"
        );
        assert_eq!(uri(&RESOURCES[5], ""), "/apis/apps/v1/replicasets?limit=500");
    }

    #[test]
    fn continue_tokens() {
        assert_eq!(continue_token(r#"{"metadata":{"continue":"x"},"items":[{"a":[1]}]}"#), "x");
        assert_eq!(continue_token(r#"{"metadata":{"resourceVersion":"7"}}"#), "");
    }
}
