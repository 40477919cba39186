//! Volumes of in-tree volume plugins that CSI drivers serve instead (upstream's `csi-translation-lib`, as far as scheduling needs it).

use std::collections::BTreeSet;

use loadmaster_api::disk_source::{AzureDisk, DiskSource, GcePersistentDisk, VolumeId};
use loadmaster_api::selector::Requirement;
use loadmaster_api::{Labels, NodeSelector, NodeSelectorTerm, PersistentVolume, Str};

const ZONE: &str = "topology.kubernetes.io/zone";
const REGION: &str = "topology.kubernetes.io/region";
const BETA_ZONE: &str = "failure-domain.beta.kubernetes.io/zone";
const BETA_REGION: &str = "failure-domain.beta.kubernetes.io/region";

/// Separates the zones in a label of a volume that is in several.
const ZONE_DELIMITER: &str = "__";

/// The name of the in-tree plugin of a disk if its CSI migration cannot be switched off (upstream's `isCSIMigrationOnForPlugin`).
pub(crate) fn migrated_plugin(disk: &DiskSource) -> Option<&'static str> {
    match disk {
        DiskSource::AwsElasticBlockStore(_) => Some("kubernetes.io/aws-ebs"),
        DiskSource::GcePersistentDisk(_) => Some("kubernetes.io/gce-pd"),
        DiskSource::AzureDisk(_) => Some("kubernetes.io/azure-disk"),
        DiskSource::Cinder(_) => Some("kubernetes.io/cinder"),
        DiskSource::PortworxVolume(_) => Some("kubernetes.io/portworx-volume"),
        DiskSource::AzureFile(_)
        | DiskSource::VsphereVolume(_)
        | DiskSource::Iscsi(_)
        | DiskSource::Rbd(_)
        | DiskSource::Csi(_) => None,
    }
}

/// Whether the CSI migration of an in-tree plugin cannot be switched off (upstream's `isCSIMigrationOn`).
pub(crate) fn is_migrated_plugin(name: &str) -> bool {
    const ALWAYS_MIGRATED: [&str; 5] = [
        "kubernetes.io/aws-ebs",
        "kubernetes.io/gce-pd",
        "kubernetes.io/azure-disk",
        "kubernetes.io/cinder",
        "kubernetes.io/portworx-volume",
    ];
    ALWAYS_MIGRATED.contains(&name)
}

/// The volume of a CSI driver that an in-tree volume is translated to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CsiVolume {
    pub driver: &'static str,
    pub handle: String,
}

/// The driver that serves the volumes of an in-tree plugin (upstream's `GetCSINameFromInTreeName`).
pub(crate) fn driver_of_in_tree_plugin(plugin: &str) -> Option<&'static str> {
    Some(match plugin {
        "kubernetes.io/aws-ebs" => "ebs.csi.aws.com",
        "kubernetes.io/gce-pd" => "pd.csi.storage.gke.io",
        "kubernetes.io/azure-disk" => "disk.csi.azure.com",
        "kubernetes.io/cinder" => "cinder.csi.openstack.org",
        "kubernetes.io/portworx-volume" => "pxd.portworx.com",
        "kubernetes.io/azure-file" => "file.csi.azure.com",
        "kubernetes.io/vsphere-volume" => "csi.vsphere.vmware.com",
        _ => return None,
    })
}

/// The in-tree plugin of a disk that can be translated, also if it need not be migrated (upstream's `GetInTreePluginNameFromSpec`).
pub(crate) fn in_tree_plugin(disk: &DiskSource) -> Option<&'static str> {
    match disk {
        DiskSource::AzureFile(_) => Some("kubernetes.io/azure-file"),
        DiskSource::VsphereVolume(_) => Some("kubernetes.io/vsphere-volume"),
        other => migrated_plugin(other),
    }
}

/// The CSI volume of a disk of a [`migrated_plugin`]. `labels` are those of its PersistentVolume, none for a disk that a pod names.
///
/// # Errors
///
/// Upstream's text for a disk that cannot be translated.
pub(crate) fn csi_volume(
    disk: &DiskSource,
    labels: Option<&Labels>,
) -> Result<Option<CsiVolume>, String> {
    let Some(driver) = migrated_plugin(disk).and_then(driver_of_in_tree_plugin) else {
        return Ok(None);
    };
    let handle = match disk {
        DiskSource::AwsElasticBlockStore(VolumeId { volume_id }) => {
            translate_ebs_volume_id(volume_id)?.to_owned()
        }
        DiskSource::GcePersistentDisk(GcePersistentDisk { pd_name, .. }) => {
            let location = labels.map_or(Ok(None), gce_location)?;
            let location = location.unwrap_or_else(|| "zones/UNSPECIFIED".to_owned());
            format!("projects/UNSPECIFIED/{location}/disks/{pd_name}")
        }
        DiskSource::AzureDisk(disk) => {
            check_managed(disk)?;
            disk.disk_uri.to_string()
        }
        DiskSource::Cinder(VolumeId { volume_id })
        | DiskSource::PortworxVolume(VolumeId { volume_id }) => volume_id.to_string(),
        _ => return Ok(None),
    };
    Ok(Some(CsiVolume { driver, handle }))
}

/// The required node affinity of a volume of a [`migrated_plugin`] after its translation to CSI: with the topology key of the driver
/// instead of the zone label.
///
/// # Errors
///
/// Upstream's text for a volume that cannot be translated.
pub(crate) fn translated_node_affinity(
    volume: &PersistentVolume,
) -> Result<Option<NodeSelector>, String> {
    let required = volume.spec.required_node_affinity.as_deref();
    let topology_key = match volume.spec.disk.as_deref() {
        Some(DiskSource::GcePersistentDisk(GcePersistentDisk { .. })) => {
            gce_location(&volume.metadata.labels)?;
            "topology.gke.io/zone"
        }
        Some(DiskSource::AwsElasticBlockStore(VolumeId { volume_id })) => {
            translate_ebs_volume_id(volume_id)?;
            "topology.ebs.csi.aws.com/zone"
        }
        Some(DiskSource::Cinder(_)) => "topology.cinder.csi.openstack.org/zone",
        Some(DiskSource::AzureDisk(disk)) => {
            check_managed(disk)?;
            return Ok(required.cloned());
        }
        _ => return Ok(required.cloned()),
    };
    Ok(translate_topology(required.cloned(), &volume.metadata.labels, topology_key))
}

/// The id of an EBS volume, which may be written `aws://zone/id` (upstream's `KubernetesVolumeIDToEBSVolumeID`).
///
/// # Errors
///
/// Upstream's text if such a URL has no volume id.
fn ebs_volume_id(written: &str) -> Result<&str, String> {
    let Some(rest) = written.strip_prefix("aws://") else { return Ok(written) };
    let path = rest.find('/').map_or("", |slash| &rest[slash..]);
    let end = path.find(['?', '#']).unwrap_or(path.len());
    let id = path[..end].trim_matches('/');
    if id.starts_with("vol-") && !id.contains('/') {
        return Ok(id);
    }
    Err(format!("Invalid format for AWS volume ({written})"))
}

/// [`ebs_volume_id`] with the error of a translation.
fn translate_ebs_volume_id(written: &str) -> Result<&str, String> {
    ebs_volume_id(written)
        .map_err(|why| format!("failed to translate Kubernetes ID to EBS Volume ID {why}"))
}

fn check_managed(disk: &AzureDisk) -> Result<(), String> {
    match disk.kind.as_deref() {
        Some(kind) if !kind.eq_ignore_ascii_case("managed") => {
            Err(format!("kind({kind}) is not supported in csi migration"))
        }
        _ => Ok(()),
    }
}

/// The zone or region in the handle of a disk, such as `zones/a`; `None` without a label. The zones of a regional disk must be in one
/// region.
fn gce_location(labels: &Labels) -> Result<Option<String>, String> {
    let label = |key: &str| labels.get(key).filter(|zones| !zones.is_empty());
    let Some(zones) = label(BETA_ZONE).or_else(|| label(ZONE)) else { return Ok(None) };
    let zones: Vec<&str> = zones.split(ZONE_DELIMITER).collect();
    if let [zone] = *zones {
        return Ok(Some(format!("zones/{zone}")));
    }
    let failed = |why: String| Err(format!("failed to get region from zones: {why}"));
    let mut regions = BTreeSet::new();
    for zone in zones {
        let parts: Vec<&str> = zone.split('-').collect();
        let [locale, region, _] = *parts else {
            return failed(format!(
                "zone in unexpected format, expected: {{locale}}-{{region}}-{{zone}}, got: {zone}"
            ));
        };
        regions.insert(format!("{locale}-{region}"));
    }
    if regions.len() != 1 {
        // As Go prints a set: a map with empty values.
        let texts: Vec<String> = regions.iter().map(|region| format!("{region}:{{}}")).collect();
        return failed(format!(
            "multiple or no regions gotten from zones, got: map[{}]",
            texts.join(" ")
        ));
    }
    Ok(regions.first().map(|region| format!("regions/{region}")))
}

fn translate_topology(
    mut required: Option<NodeSelector>,
    labels: &Labels,
    topology_key: &'static str,
) -> Option<NodeSelector> {
    let (zone, region) = topology_labels(required.as_ref(), labels);
    if has_values(required.as_ref(), zone) {
        replace_key(&mut required, zone, topology_key);
    } else if let Some(zones) = labels.get(zone) {
        add_zones(&mut required, topology_key, zones);
    }
    if region == BETA_REGION {
        replace_key(&mut required, BETA_REGION, REGION);
    }
    required
}

/// The zone and region label that the volume uses.
fn topology_labels(
    required: Option<&NodeSelector>,
    labels: &Labels,
) -> (&'static str, &'static str) {
    let has_key = |key: &str| requirements(required).any(|it| it.key == *key);
    let is_beta = if has_key(ZONE) {
        false
    } else if has_key(BETA_ZONE) {
        true
    } else {
        !labels.contains_key(ZONE) && labels.contains_key(BETA_ZONE)
    };
    if is_beta { (BETA_ZONE, BETA_REGION) } else { (ZONE, REGION) }
}

fn requirements(required: Option<&NodeSelector>) -> impl Iterator<Item = &Requirement> {
    let terms = required.into_iter().flat_map(|selector| &selector.node_selector_terms);
    terms.flat_map(|term| &term.match_expressions)
}

fn has_values(required: Option<&NodeSelector>, key: &str) -> bool {
    requirements(required).any(|it| it.key == *key && !it.values.is_empty())
}

fn replace_key(required: &mut Option<NodeSelector>, from: &str, to: &'static str) {
    if !has_values(required.as_ref(), from) {
        return;
    }
    let terms = required.iter_mut().flat_map(|selector| &mut selector.node_selector_terms);
    for requirement in terms.flat_map(|term| &mut term.match_expressions) {
        if requirement.key == *from {
            requirement.key = Str::new(to);
        }
    }
}

/// Requires one of the zones in every term.
fn add_zones(required: &mut Option<NodeSelector>, topology_key: &str, zones: &str) {
    let zones: BTreeSet<&str> =
        zones.split(ZONE_DELIMITER).map(str::trim).filter(|zone| !zone.is_empty()).collect();
    if zones.is_empty() {
        return;
    }
    let terms = &mut required.get_or_insert_default().node_selector_terms;
    if terms.is_empty() {
        terms.push(NodeSelectorTerm::default());
    }
    for term in terms {
        term.match_expressions.push(Requirement {
            key: Str::new(topology_key),
            operator: Str::new("In"),
            values: zones.iter().map(|zone| Str::new(zone)).collect(),
        });
    }
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};
    use serde_json::{Value, json};

    use super::*;

    /// The terms after the translation, or the error.
    #[track_caller]
    fn check(volume: Value, want: &Expect) {
        let volume: PersistentVolume = serde_json::from_value(volume).unwrap();
        let text = match translated_node_affinity(&volume) {
            Err(error) => error,
            Ok(None) => "none".to_owned(),
            Ok(Some(selector)) => {
                let term = |term: &NodeSelectorTerm| {
                    let all = term.match_expressions.iter();
                    let all = all.map(|it| format!("{} {} {:?}", it.key, it.operator, it.values));
                    all.collect::<Vec<_>>().join(" and ")
                };
                selector.node_selector_terms.iter().map(term).collect::<Vec<_>>().join(" or ")
            }
        };
        want.assert_eq(&text);
    }

    fn volume(source: Value, labels: Value, terms: &[Value]) -> Value {
        let mut spec = source;
        if !terms.is_empty() {
            let terms: Vec<Value> = terms
                .iter()
                .map(|requirements| json!({"matchExpressions": requirements}))
                .collect();
            spec["nodeAffinity"] = json!({"required": {"nodeSelectorTerms": terms}});
        }
        json!({"metadata": {"name": "pv", "labels": labels}, "spec": spec})
    }

    fn ebs() -> Value {
        json!({"awsElasticBlockStore": {"volumeID": "aws://us-east-1a/vol-1"}})
    }

    fn is_in(key: &str, values: &[&str]) -> Value {
        json!({"key": key, "operator": "In", "values": values})
    }

    #[test]
    fn the_zone_gets_the_key_of_the_driver() {
        check(volume(ebs(), json!({}), &[]), &expect!["none"]);
        check(
            volume(ebs(), json!({}), &[json!([is_in(ZONE, &["a"]), is_in("x", &["y"])])]),
            &expect![[r#"topology.ebs.csi.aws.com/zone In ["a"] and x In ["y"]"#]],
        );
        let beta = json!([is_in(BETA_ZONE, &["a"]), is_in(BETA_REGION, &["r"])]);
        check(
            volume(ebs(), json!({}), &[beta]),
            &expect![[
                r#"topology.ebs.csi.aws.com/zone In ["a"] and topology.kubernetes.io/region In ["r"]"#
            ]],
        );
        let cinder = json!({"cinder": {"volumeID": "v"}});
        check(
            volume(cinder, json!({ZONE: "b__a__ __a"}), &[json!([is_in("x", &["y"])]), json!([])]),
            &expect![[
                r#"x In ["y"] and topology.cinder.csi.openstack.org/zone In ["a", "b"] or topology.cinder.csi.openstack.org/zone In ["a", "b"]"#
            ]],
        );
        let azure = json!({"azureDisk": {"diskURI": "u", "kind": "managed"}});
        check(
            volume(azure, json!({ZONE: "a"}), &[json!([is_in(ZONE, &["a"])])]),
            &expect![[r#"topology.kubernetes.io/zone In ["a"]"#]],
        );
        let portworx = json!({"portworxVolume": {"volumeID": "v"}});
        check(volume(portworx, json!({ZONE: "a"}), &[]), &expect!["none"]);
        let gce = json!({"gcePersistentDisk": {"pdName": "d"}});
        check(
            volume(gce, json!({BETA_ZONE: "us-east1-a__us-east1-b"}), &[]),
            &expect![[r#"topology.gke.io/zone In ["us-east1-a", "us-east1-b"]"#]],
        );
    }

    #[test]
    fn volumes_that_cannot_be_translated() {
        let gce = || json!({"gcePersistentDisk": {"pdName": "d"}});
        check(
            volume(gce(), json!({ZONE: "a__b"}), &[]),
            &expect![
                "failed to get region from zones: zone in unexpected format, expected: {locale}-{region}-{zone}, got: a"
            ],
        );
        check(
            volume(gce(), json!({ZONE: "us-east1-a__us-west1-b"}), &[]),
            &expect![
                "failed to get region from zones: multiple or no regions gotten from zones, got: map[us-east1:{} us-west1:{}]"
            ],
        );
        check(
            volume(json!({"awsElasticBlockStore": {"volumeID": "aws:///x-1"}}), json!({}), &[]),
            &expect![
                "failed to translate Kubernetes ID to EBS Volume ID Invalid format for AWS volume (aws:///x-1)"
            ],
        );
        check(
            volume(json!({"azureDisk": {"diskURI": "u", "kind": "Shared"}}), json!({}), &[]),
            &expect!["kind(Shared) is not supported in csi migration"],
        );
    }

    #[test]
    fn ids_of_ebs_volumes() {
        for (written, id) in [
            ("vol-1", "vol-1"),
            ("anything", "anything"),
            ("aws:///vol-1", "vol-1"),
            ("aws://zone/vol-1/", "vol-1"),
        ] {
            assert_eq!(ebs_volume_id(written), Ok(id));
        }
        assert!(ebs_volume_id("aws://vol-1").is_err());
    }
}
