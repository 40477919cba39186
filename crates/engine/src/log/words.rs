//! Effects in words, each in one line.

use super::message::{Call, Cycled, Effect, Extend, Named, Tell, Wanted};

/// What is wanted.
pub(super) fn effect(effect: &Effect) -> String {
    match &effect.wanted {
        None => "an effect that this version does not know".to_owned(),
        Some(Wanted::Call(call)) => of_call(call),
        Some(Wanted::Extend(extend)) => of_extend(extend),
        Some(Wanted::Tell(tell)) => of_tell(tell),
        Some(Wanted::Attempt(attempt)) => {
            format!("an attempt of profile {} ends: {}", attempt.profile, attempt.outcome)
        }
        Some(Wanted::Judged(words)) => format!("judged: {words}"),
        Some(Wanted::LostRace(words)) => format!("lost race: {words}"),
        Some(Wanted::Trouble(words)) => format!("trouble: {words}"),
    }
}

/// What a cycle did.
pub(super) fn cycled(cycled: Option<i32>) -> String {
    match cycled.map(Cycled::try_from) {
        None => "no cycle".to_owned(),
        Some(Ok(Cycled::Ran)) => "a pod was tried".to_owned(),
        Some(Ok(Cycled::Idle)) => "no pod was ready".to_owned(),
        Some(Ok(Cycled::Waiting)) => "the bind window was full".to_owned(),
        Some(Err(_)) => "a cycle that this version does not know".to_owned(),
    }
}

/// `namespace/name` of the pod, or whatever it is about.
pub(super) fn subject(effect: &Effect) -> Option<String> {
    match effect.wanted.as_ref()? {
        Wanted::Call(call) => Some(full_name(&call.namespace, &call.name)),
        Wanted::Extend(extend) => extend.pod.as_ref().map(of_named),
        Wanted::Tell(tell) => tell.regarding.as_ref().map(of_named),
        Wanted::Attempt(_) | Wanted::Judged(_) | Wanted::LostRace(_) | Wanted::Trouble(_) => None,
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

fn of_extend(Extend { id, extender, pod, question }: &Extend) -> String {
    let pod = pod.as_ref().map(of_named).unwrap_or_default();
    format!("call {id} of extender {extender} about {pod}: {question}")
}

fn of_tell(tell: &Tell) -> String {
    let Tell { is_warning, reason, action, note, controller, .. } = tell;
    let kind = if *is_warning { "Warning" } else { "Normal" };
    let regarding = tell.regarding.as_ref().map(of_named).unwrap_or_default();
    let related = tell.related.as_ref().map(of_named);
    let related = related.map(|name| format!(" with {name}")).unwrap_or_default();
    format!("event {kind} {reason} ({action}) on {regarding}{related} from {controller}: {note}")
}

fn of_named(named: &Named) -> String {
    full_name(&named.namespace, &named.name)
}

fn full_name(namespace: &str, name: &str) -> String {
    if namespace.is_empty() { name.to_owned() } else { format!("{namespace}/{name}") }
}
