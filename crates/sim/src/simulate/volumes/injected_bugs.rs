//! Bugs around claims and volumes.

use loadmaster_engine::engine::{ApiServerCall, EngineEvent};
use loadmaster_framework::api_calls::Verb;
use serde_json::Value;

use super::{
    BIND_COMPLETED, BOUND_BY_CONTROLLER, VolumeKind, annotate, claim_ref, is_bound, is_for, text,
};
use crate::simulate::InjectedBug;
use crate::simulate::watched_objects::WatchedObjects;

/// What the engine receives instead of this event; `None` if it is lost.
pub(in crate::simulate) fn altered_event(
    bug: Option<InjectedBug>,
    objects: &WatchedObjects,
    mut event: EngineEvent,
) -> Option<EngineEvent> {
    let EngineEvent::ObjectChanged { object, value: Some(value) } = &mut event else {
        return Some(event);
    };
    match (bug, VolumeKind::of(object)) {
        (Some(InjectedBug::LostVolumeUpdate), Some(VolumeKind::Volume)) => {
            if claim_ref(value).is_some() {
                return None;
            }
        }
        (Some(InjectedBug::LostClaimUpdate), Some(VolumeKind::Claim)) if is_bound(value) => {
            return None;
        }
        (Some(InjectedBug::LostCsiNode), Some(VolumeKind::CsiNode)) => return None,
        (Some(InjectedBug::WrongAccessMode), Some(VolumeKind::Claim)) => {
            value["spec"]["accessModes"] = ["ReadWriteOnce"].into();
        }
        (Some(InjectedBug::EarlyBinding), Some(VolumeKind::Claim)) if !is_bound(value) => {
            let mut volumes = objects.of_kind(VolumeKind::Volume.watched());
            if let Some(volume) = volumes.find(|volume| is_for(volume, value)) {
                value["spec"]["volumeName"] = text(volume, "/metadata/name").into();
                annotate(value, BIND_COMPLETED, "yes");
            }
        }
        _ => {}
    }
    Some(event)
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
