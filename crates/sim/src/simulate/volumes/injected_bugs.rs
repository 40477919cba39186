//! Bugs around claims and volumes.

use loadmaster_engine::engine::{ApiServerCall, EngineEvent};
use loadmaster_framework::api_calls::Verb;
use serde_json::Value;

use super::{
    BIND_COMPLETED, BOUND_BY_CONTROLLER, VolumeKind, annotate, claim_ref, is_bound, is_for, text,
};
use crate::simulate::InjectedBug;
use crate::simulate::watched_objects::WatchedObjects;

/// Whether the API server does not send an event, so that the reference model does not see it either.
pub(in crate::simulate) fn is_not_sent(bug: Option<InjectedBug>, event: &EngineEvent) -> bool {
    bug == Some(InjectedBug::LostVolumeUpdate)
        && matches!(event, EngineEvent::ObjectChanged { object, value: Some(value) }
            if VolumeKind::of(object) == Some(VolumeKind::Volume) && claim_ref(value).is_some())
}

/// What the engine receives instead of an event; nothing if it is lost.
pub(in crate::simulate) fn altered_event(
    bug: Option<InjectedBug>,
    objects: &WatchedObjects,
    mut event: EngineEvent,
) -> Vec<EngineEvent> {
    let EngineEvent::ObjectChanged { object, value: Some(value) } = &mut event else {
        return vec![event];
    };
    match (bug, VolumeKind::of(object)) {
        (Some(InjectedBug::LostClaimUpdate), Some(VolumeKind::Claim))
            if is_bound(value)
                && ["now", "net"].contains(&text(value, "/spec/storageClassName")) =>
        {
            return Vec::new();
        }
        (Some(InjectedBug::LostCsiNode), Some(VolumeKind::CsiNode)) => return Vec::new(),
        (Some(InjectedBug::LostVolumeAffinity), Some(VolumeKind::Volume)) => {
            value["spec"].as_object_mut().map(|spec| spec.remove("nodeAffinity"));
        }
        (Some(InjectedBug::WrongAccessMode), Some(VolumeKind::Claim)) => {
            value["spec"]["accessModes"] = ["ReadWriteOnce"].into();
        }
        (Some(InjectedBug::EarlyBinding), Some(VolumeKind::Volume)) => {
            let claims = objects.of_kind(VolumeKind::Claim.watched());
            let early = claims.filter(|claim| is_for(value, claim) && !is_bound(claim));
            let early: Vec<EngineEvent> =
                early.map(|claim| bound_event(claim, text(value, "/metadata/name"))).collect();
            return [event].into_iter().chain(early).collect();
        }
        _ => {}
    }
    vec![event]
}

/// A claim that is bound to a volume, as the engine receives it.
fn bound_event(claim: &Value, volume: &str) -> EngineEvent {
    let mut claim = claim.clone();
    claim["spec"]["volumeName"] = volume.into();
    annotate(&mut claim, BIND_COMPLETED, "yes");
    let name = super::full_name(&claim).as_str().into();
    let object = VolumeKind::Claim.watched().object_ref(&name);
    EngineEvent::ObjectChanged { object, value: Some(claim) }
}

/// What PreBind writes without saying that no user did.
pub(in crate::simulate) fn alter_call(bug: Option<InjectedBug>, call: &mut ApiServerCall) {
    if bug == Some(InjectedBug::UnmarkedVolume) && call.request.verb == Verb::Update {
        let body = call.request.body.as_mut();
        let annotations = body.and_then(|it| it.pointer_mut("/metadata/annotations"));
        if let Some(annotations) = annotations.and_then(Value::as_object_mut) {
            annotations.remove(BOUND_BY_CONTROLLER);
        }
    }
}
