//! A single list of one kind, to compare the objects on the API server with those that a reflector has delivered.

use std::time::Duration;

use loadmaster_api::proto::Object;

use crate::api_client::{ApiClient, PROTOBUF_MEDIA_TYPES, Request};
use crate::kinds::Kind;
use crate::reflector::{DecodeOptions, ListPage, list_path};
use crate::status::decode_status;

/// Objects per page, and timeout and size limit of a page.
const PAGE_LEN: u32 = 500;
const PAGE_TIMEOUT: Duration = Duration::from_secs(60);
const PAGE_BYTES_MAX: usize = 256 << 20;

/// How often a list that expires while it is read is restarted.
const N_RESTARTS: usize = 3;

/// Lists all objects of a kind, page by page, and collects what `keep` returns for them.
///
/// # Errors
///
/// A text when the list cannot be read.
pub async fn list_all<T>(
    client: &ApiClient,
    kind: Kind,
    keep: impl Fn(Object) -> Option<T>,
) -> Result<Vec<T>, String> {
    for _ in 0..N_RESTARTS {
        if let Some(all) = try_list(client, kind, &keep).await? {
            return Ok(all);
        }
    }
    Err(format!("the list of {} expired {N_RESTARTS} times", kind.resource().resource))
}

/// `None` when the list expired before its last page.
async fn try_list<T>(
    client: &ApiClient,
    kind: Kind,
    keep: &impl Fn(Object) -> Option<T>,
) -> Result<Option<Vec<T>>, String> {
    let resource = kind.resource().resource;
    let (mut all, mut after) = (Vec::new(), String::new());
    loop {
        let request = Request {
            accept: PROTOBUF_MEDIA_TYPES,
            timeout: PAGE_TIMEOUT,
            response_bytes_max: PAGE_BYTES_MAX,
            ..Request::get(list_path(kind, "", &after, PAGE_LEN))
        };
        let reply = client.call_with_retries(&request).await.map_err(|error| error.to_string())?;
        if reply.status == 410 && !after.is_empty() {
            return Ok(None);
        }
        if !reply.is_success() {
            let status = decode_status(reply.status, &reply.body);
            return Err(format!("listing {resource}: {} {}", reply.status, status.message));
        }
        let page = ListPage::parse(reply.is_protobuf, &reply.body)
            .map_err(|text| format!("listing {resource}: {text}"))?;
        for item in page.items(kind, DecodeOptions::default()) {
            let item = item.map_err(|text| format!("listing {resource}: {text}"))?;
            all.extend(keep(item.object.object));
        }
        after = page.continue_token().to_owned();
        if after.is_empty() {
            return Ok(Some(all));
        }
    }
}
