//! GCEPDLimits: a pod fits on nodes that can have its GCE persistent disks besides those that are there.
//!
//! | | |
//! | --- | --- |
//! | extension points | Filter |
//! | woken by | node added or its limit changed, pod with volumes deleted, CSINode with the migration of these volumes |
//! | upstream | `plugins/nodevolumelimits/non_csi.go`, 1.25 |
//! | deviations | the limit for all nodes is an argument, upstream reads the environment |
//! | cost | O(volumes of the pods on the node) per node; nothing for pods without such volumes |
//!
//! [`crate::in_tree_volume_limits`] defines what counts.

use loadmaster_api::DiskSource;
use loadmaster_framework::plugin_args;
use loadmaster_framework::{ExtensionPoints, PluginDef, PluginError};
use serde_json::Value;

use crate::in_tree_volume_limits::{self, InTreeVolumePlugin, LimitArgs};

pub const NAME: &str = "GCEPDLimits";

pub const DEF: PluginDef = PluginDef {
    name: NAME,
    build,
    args: Some(plugin_args::default_and_validate_args::<LimitArgs>),
};

/// The default limit (upstream's `defaultMaxGCEPDVolumes`).
const LIMIT: i64 = 16;

static GCE_PD: InTreeVolumePlugin = InTreeVolumePlugin {
    name: NAME,
    in_tree_name: "kubernetes.io/gce-pd",
    limit_resource: "attachable-volumes-gce-pd",
    disk_id: |disk| match disk {
        DiskSource::GcePersistentDisk(disk) => Some(&disk.pd_name),
        _ => None,
    },
    default_limit: |_| LIMIT,
};

fn build(points: &mut ExtensionPoints, args: &Value) -> Result<(), PluginError> {
    in_tree_volume_limits::build(&GCE_PD, points, args)
}
