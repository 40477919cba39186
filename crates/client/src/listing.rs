//! A list of one kind, once, apart from the watches: what is there, to hold against what a watch has told.

use std::time::Duration;

use loadmaster_api::proto::Object;

use crate::answer::status_of;
use crate::kinds::Kind;
use crate::lane::{Lane, PROTOBUF, Request};
use crate::watch::{Keep, Page, list_path};

/// Objects a page, and time for one.
const PAGE_LEN: u32 = 500;
const PAGE: Duration = Duration::from_secs(60);
const PAGE_BYTES_MAX: usize = 256 << 20;

/// A list that expires while it is read is begun anew so often.
const N_RESTARTS: usize = 3;

/// Lists a kind, page by page, and keeps of each object what `keep` makes of it.
///
/// # Errors
///
/// What went wrong, for people.
pub async fn list<T>(
    lane: &Lane,
    kind: Kind,
    keep: impl Fn(Object) -> Option<T>,
) -> Result<Vec<T>, String> {
    for _ in 0..N_RESTARTS {
        if let Some(all) = try_list(lane, kind, &keep).await? {
            return Ok(all);
        }
    }
    Err(format!("the list of {} expired again and again", kind.resource().resource))
}

/// `None` when the list expired on the way.
async fn try_list<T>(
    lane: &Lane,
    kind: Kind,
    keep: &impl Fn(Object) -> Option<T>,
) -> Result<Option<Vec<T>>, String> {
    let what = kind.resource().resource;
    let (mut all, mut after) = (Vec::new(), String::new());
    loop {
        let request = Request {
            accept: PROTOBUF,
            timeout: PAGE,
            answer_bytes_max: PAGE_BYTES_MAX,
            ..Request::get(list_path(kind, "", &after, PAGE_LEN))
        };
        let reply = lane.call(&request).await.map_err(|error| error.to_string())?;
        if reply.status == 410 && !after.is_empty() {
            return Ok(None);
        }
        if !reply.is_success() {
            let status = status_of(reply.status, &reply.body);
            return Err(format!("listing {what}: {} {}", reply.status, status.message));
        }
        let page = Page::open(reply.is_protobuf, &reply.body)
            .map_err(|text| format!("listing {what}: {text}"))?;
        for item in page.items(kind, Keep::default()) {
            let item = item.map_err(|text| format!("listing {what}: {text}"))?;
            all.extend(keep(item.object.object));
        }
        after = page.continue_token().to_owned();
        if after.is_empty() {
            return Ok(Some(all));
        }
    }
}
