//! What must hold of the claims and volumes in the API server, and of the engine when everything has settled.

use std::collections::BTreeMap;

use loadmaster_engine::Engine;
use serde_json::Value;

use super::{RESERVED_BY_USER, VolumeKind, claim_ref, is_bound, is_terminating, text, uid};
use crate::fake_api_server::FakeApiServer;
use crate::simulate::invariants::CheckResult;

/// No volume is bound to two claims, and no claim to two volumes.
pub(in crate::simulate) fn check_objects(api_server: &FakeApiServer) -> CheckResult {
    let mut claim_of: BTreeMap<&str, &str> = BTreeMap::new();
    for (name, claim) in api_server.custom_objects(VolumeKind::Claim.watched()) {
        if is_bound(claim) && text(claim, "/status/phase") != "Lost" {
            let volume = text(claim, "/spec/volumeName");
            if let Some(other) = claim_of.insert(volume, name) {
                return Err(format!("volume {volume} is bound to the claims {other} and {name}"));
            }
        }
    }
    let mut volume_of: BTreeMap<String, &str> = BTreeMap::new();
    for (name, volume) in api_server.custom_objects(VolumeKind::Volume.watched()) {
        if let Some((claim, _)) = claim_ref(volume)
            && claim_of.get(name.as_str()).is_some_and(|bound| *bound == claim)
            && let Some(other) = volume_of.insert(claim.clone(), name)
        {
            return Err(format!("claim {claim} is bound to the volumes {other} and {name}"));
        }
    }
    Ok(())
}

/// When everything has settled, each volume is free, bound to the claim that has it, or released because its claim was deleted; and the
/// engine assumes nothing of claims and volumes.
pub(in crate::simulate) fn check_settled(
    api_server: &FakeApiServer,
    engine: &Engine,
) -> CheckResult {
    for (name, volume) in api_server.custom_objects(VolumeKind::Volume.watched()) {
        check_volume(api_server, name, volume)?;
    }
    for (name, claim) in api_server.custom_objects(VolumeKind::Claim.watched()) {
        let volume = text(claim, "/spec/volumeName");
        let exists = api_server.custom_object(VolumeKind::Volume.watched(), volume);
        let phase = text(claim, "/status/phase");
        if (phase == "Bound") != (is_bound(claim) && exists.is_some()) && !is_terminating(claim) {
            return Err(format!("claim {name} of volume {volume:?} has the phase {phase}"));
        }
    }
    let n_assumed =
        engine.plugin_states(0).map_or(0, loadmaster_plugins::volume_binding::n_assumed);
    if n_assumed > 0 {
        return Err(format!(
            "after everything has settled {n_assumed} claims and volumes are assumed"
        ));
    }
    Ok(())
}

fn check_volume(api_server: &FakeApiServer, name: &str, volume: &Value) -> CheckResult {
    let Some((claim_name, claim_uid)) = claim_ref(volume) else { return Ok(()) };
    let is_reserved_by_user = volume["metadata"]["labels"].get(RESERVED_BY_USER).is_some();
    if claim_uid.is_empty() && is_reserved_by_user {
        return Ok(());
    }
    let claim = api_server.custom_object(VolumeKind::Claim.watched(), &claim_name);
    let claim = claim.filter(|claim| claim_uid.is_empty() || uid(claim) == claim_uid);
    match claim {
        None if text(volume, "/status/phase") == "Released" => Ok(()),
        None => Err(format!("volume {name} of the deleted claim {claim_name} is not released")),
        Some(claim) if text(claim, "/spec/volumeName") == name => Ok(()),
        Some(claim) => {
            let other = text(claim, "/spec/volumeName");
            Err(format!(
                "volume {name} is left reserved for claim {claim_name}, which has {other:?}"
            ))
        }
    }
}
