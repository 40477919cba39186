//! Effects as text, each in one line.

use super::message::{Call, CycleResult, Effect, EffectBody, EventRecord, ExtenderCall, Named};

/// An effect as text.
pub(super) fn effect(effect: &Effect) -> String {
    match &effect.body {
        None => "an effect that is unknown to this version".to_owned(),
        Some(EffectBody::Call(call)) => of_call(call),
        Some(EffectBody::CallExtender(call)) => of_extender_call(call),
        Some(EffectBody::RecordEvent(event)) => of_event(event),
        Some(EffectBody::Attempt(attempt)) => {
            format!("an attempt of profile {} ended: {}", attempt.profile, attempt.outcome)
        }
        Some(EffectBody::ShadowCompared(text)) => format!("shadow comparison: {text}"),
        Some(EffectBody::Conflict(text)) => format!("conflict: {text}"),
        Some(EffectBody::InternalError(text)) => format!("internal error: {text}"),
    }
}

/// The result of a scheduling cycle as text.
pub(super) fn cycled(cycled: Option<i32>) -> String {
    match cycled.map(CycleResult::try_from) {
        None => "no cycle".to_owned(),
        Some(Ok(CycleResult::Ran)) => "a scheduling attempt ran".to_owned(),
        Some(Ok(CycleResult::Idle)) => "no pod was ready".to_owned(),
        Some(Ok(CycleResult::Waiting)) => {
            "the bind window was full or an attempt waited for an extender".to_owned()
        }
        Some(Err(_)) => "a cycle result that is unknown to this version".to_owned(),
    }
}

/// `namespace/name` of the pod or other object of an effect.
pub(super) fn subject(effect: &Effect) -> Option<String> {
    match effect.body.as_ref()? {
        EffectBody::Call(call) => Some(full_name(&call.namespace, &call.name)),
        EffectBody::CallExtender(call) => call.pod.as_ref().map(of_named),
        EffectBody::RecordEvent(event) => event.regarding.as_ref().map(of_named),
        EffectBody::Attempt(_)
        | EffectBody::ShadowCompared(_)
        | EffectBody::Conflict(_)
        | EffectBody::InternalError(_) => None,
    }
}

fn of_call(call: &Call) -> String {
    let Call { id, verb, group, resource, namespace, name, subresource, .. } = call;
    let dot = if group.is_empty() { "" } else { "." };
    let slash = if subresource.is_empty() { "" } else { "/" };
    let name = full_name(namespace, name);
    let body = call.body.as_deref().unwrap_or("without a body");
    format!("call {id}: {verb} {resource}{dot}{group}{slash}{subresource} {name} {body}")
}

fn of_extender_call(ExtenderCall { id, extender, pod, question }: &ExtenderCall) -> String {
    let pod = pod.as_ref().map(of_named).unwrap_or_default();
    format!("call {id} to extender {extender} for {pod}: {question}")
}

fn of_event(event: &EventRecord) -> String {
    let EventRecord { is_warning, reason, action, note, controller, .. } = event;
    let kind = if *is_warning { "Warning" } else { "Normal" };
    let regarding = event.regarding.as_ref().map(of_named).unwrap_or_default();
    let related = event.related.as_ref().map(of_named);
    let related = related.map(|name| format!(" with {name}")).unwrap_or_default();
    format!("event {kind} {reason} ({action}) on {regarding}{related} from {controller}: {note}")
}

fn of_named(named: &Named) -> String {
    full_name(&named.namespace, &named.name)
}

fn full_name(namespace: &str, name: &str) -> String {
    if namespace.is_empty() { name.to_owned() } else { format!("{namespace}/{name}") }
}
