//! A test plugin whose QueueSort orders pods by name, the last first. (QueueSort has the same arguments in all profiles.)

use std::cmp::Ordering;
use std::sync::Arc;

use loadmaster_framework::{Cx, ExtensionPoints, PluginDef, PluginError, QueueSort, QueuedPodInfo};
use serde_json::Value;

pub(super) const NAME: &str = "Ordering";
pub(super) const ORDERING: PluginDef = PluginDef { name: NAME, build, args: None };

struct OrderingPlugin;

fn build(points: &mut ExtensionPoints, _: &Value) -> Result<(), PluginError> {
    points.queue_sort = Some(Arc::new(OrderingPlugin));
    points.register_no_events();
    Ok(())
}

impl QueueSort for OrderingPlugin {
    fn compare(&self, _: Cx<'_>, a: &QueuedPodInfo, b: &QueuedPodInfo) -> Ordering {
        b.pod.name.cmp(&a.pod.name)
    }
}
