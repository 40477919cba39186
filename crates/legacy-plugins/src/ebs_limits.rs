//! EBSLimits: a pod fits on nodes that can have its AWS EBS volumes besides those that are there.
//!
//! | | |
//! | --- | --- |
//! | extension points | Filter |
//! | woken by | node added or its limit changed, pod with volumes deleted, CSINode with the migration of these volumes |
//! | upstream | `plugins/nodevolumelimits/non_csi.go`, 1.25 |
//! | deviations | the limit for all nodes is an argument, upstream reads the environment; of two labels with the instance type, `node.kubernetes.io/instance-type` counts, upstream takes any |
//! | cost | O(volumes of the pods on the node) per node; nothing for pods without such volumes |
//!
//! [`crate::in_tree_volume_limits`] defines what counts.

use loadmaster_api::DiskSource;
use loadmaster_framework::plugin_args;
use loadmaster_framework::{ExtensionPoints, PluginDef, PluginError};
use serde_json::Value;

use crate::in_tree_volume_limits::{self, InTreeVolumePlugin, LimitArgs};

pub const NAME: &str = "EBSLimits";

pub const DEF: PluginDef = PluginDef {
    name: NAME,
    build,
    args: Some(plugin_args::default_and_validate_args::<LimitArgs>),
};

/// The default limit (upstream's `DefaultMaxEBSVolumes`).
const LIMIT: i64 = 39;
/// That of instance types of the Nitro system (upstream's `DefaultMaxEBSNitroVolumeLimit`).
const NITRO_LIMIT: i64 = 25;

const INSTANCE_TYPE_LABELS: [&str; 2] =
    ["node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type"];

static EBS: InTreeVolumePlugin = InTreeVolumePlugin {
    name: NAME,
    in_tree_name: "kubernetes.io/aws-ebs",
    limit_resource: "attachable-volumes-aws-ebs",
    disk_id: |disk| match disk {
        DiskSource::AwsElasticBlockStore(volume) => Some(&volume.volume_id),
        _ => None,
    },
    default_limit: |labels| {
        let instance_type = INSTANCE_TYPE_LABELS.iter().find_map(|label| labels.get(label));
        let is_nitro = instance_type.is_some_and(|instance_type| is_nitro(instance_type));
        if is_nitro { NITRO_LIMIT } else { LIMIT }
    },
};

fn build(points: &mut ExtensionPoints, args: &Value) -> Result<(), PluginError> {
    in_tree_volume_limits::build(&EBS, points, args)
}

/// Whether the instance type matches `^[cmr]5.*|t3|z1d`, of which only the first alternative is bound to the beginning (upstream's
/// `EBSNitroLimitRegex`).
fn is_nitro(instance_type: &str) -> bool {
    ["c5", "m5", "r5"].iter().any(|family| instance_type.starts_with(family))
        || instance_type.contains("t3")
        || instance_type.contains("z1d")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(instance_type: &str, want: bool) {
        assert_eq!(is_nitro(instance_type), want, "{instance_type}");
    }

    #[test]
    fn nitro_instance_types() {
        for nitro in ["c5.large", "m5", "r5ad.metal", "t3.micro", "z1d.large", "xt3", "a-z1d"] {
            check(nitro, true);
        }
        for other in ["", "m4.large", "m6i.large", "xm5.large", "t2.micro", "z1"] {
            check(other, false);
        }
    }
}
