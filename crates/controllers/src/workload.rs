//! Functions that the workload controllers share: counting pods, adopting and releasing them, creating them from a template.

use std::cmp::{Ordering, Reverse};
use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Pod, PodCondition, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta, Time};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde::Serialize;

use crate::cache::Cache;
use crate::controller::ObjectChange;
use crate::kind::{Key, Kind, Object, Typed};
use crate::meta::{controller_of, controller_reference, is_terminating, selector_matches};
use crate::request::{ControllerRequest, ControllerResponse};
use crate::result_builder::ReconcileResultBuilder;

/// A time in whole seconds, as in API objects.
pub(crate) fn stamp(now: Timestamp) -> Time {
    Time(Timestamp::from_second(now.as_second()).unwrap_or(now))
}

/// The phase of a pod; empty while it has none.
pub(crate) fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

/// Whether a pod has succeeded or failed.
pub(crate) fn is_terminal(pod: &Pod) -> bool {
    matches!(phase(pod), "Succeeded" | "Failed")
}

/// Whether a pod counts as a replica: neither terminated nor terminating.
pub(crate) fn is_active(pod: &Pod) -> bool {
    !is_terminal(pod) && !is_terminating(&pod.metadata)
}

/// A condition of a pod.
pub(crate) fn condition<'a>(pod: &'a Pod, kind: &str) -> Option<&'a PodCondition> {
    let conditions = pod.status.as_ref()?.conditions.as_deref()?;
    conditions.iter().find(|one| one.type_ == kind)
}

/// Whether a pod is ready.
pub(crate) fn is_ready(pod: &Pod) -> bool {
    condition(pod, "Ready").is_some_and(|one| one.status == "True")
}

fn ready_since(pod: &Pod) -> Option<Timestamp> {
    let ready = condition(pod, "Ready").filter(|one| one.status == "True")?;
    ready.last_transition_time.as_ref().map(|time| time.0)
}

/// Whether a pod has been ready for `min_ready` seconds.
pub(crate) fn is_available(pod: &Pod, min_ready: i32, now: Timestamp) -> bool {
    is_ready(pod)
        && (min_ready == 0 || available_in(pod, min_ready, now).is_some_and(|left| left.is_zero()))
}

/// How long a ready pod takes to be available.
fn available_in(pod: &Pod, min_ready: i32, now: Timestamp) -> Option<SignedDuration> {
    let since = now.duration_since(ready_since(pod)?);
    let left = SignedDuration::from_secs(min_ready.into()) - since;
    Some(left.max(SignedDuration::ZERO))
}

/// How long until the next of some pods becomes available, if one will.
pub(crate) fn next_available<'a>(
    pods: impl IntoIterator<Item = &'a Pod>,
    min_ready: i32,
    now: Timestamp,
) -> Option<std::time::Duration> {
    let waits = pods.into_iter().filter_map(|pod| available_in(pod, min_ready, now));
    waits.filter(|left| !left.is_zero()).min().map(|left| left.unsigned_abs())
}

/// Keys of the objects of type `O` that a change affects: itself, its old and new controllers, and those that may adopt it.
pub(crate) fn keys_for_change<O: Typed>(
    change: &ObjectChange<'_>,
    cache: &Cache,
    selector: fn(&O) -> Option<&LabelSelector>,
) -> Vec<Key> {
    if let Some(own) = change.new_or_old_typed::<O>() {
        return vec![Key::from_object(own)];
    }
    let mut keys = Vec::new();
    for object in change.old.into_iter().chain(change.new) {
        keys.extend(controller_key(object.metadata(), O::IS));
    }
    if let Some(new) = change.new.map(Object::metadata)
        && controller_of(new).is_none()
        && change.old.is_none_or(|old| is_reshuffled(old.metadata(), new))
    {
        let namespace = new.namespace.as_deref().unwrap_or_default();
        let labels = new.labels.as_ref();
        let takers = cache.store::<O>().in_namespace(namespace);
        let takers =
            takers.filter(|one| selector(one).is_some_and(|it| selector_matches(it, labels)));
        keys.extend(takers.map(|one| Key::from_object(&**one)));
    }
    keys.dedup();
    keys
}

fn is_reshuffled(old: &ObjectMeta, new: &ObjectMeta) -> bool {
    old.labels != new.labels || old.owner_references != new.owner_references
}

/// The key of an object's controller, if that is of a kind.
pub(crate) fn controller_key(meta: &ObjectMeta, kind: Kind) -> Option<Key> {
    let owner = controller_of(meta)?;
    let info = kind.info();
    let is_of_kind = owner.kind == info.kind && owner.api_version == info.api_version;
    let namespace = meta.namespace.as_deref().unwrap_or_default();
    is_of_kind.then(|| Key::new(kind, namespace, &*owner.name))
}

/// Objects that an owner controls, and orphans in its namespace.
pub(crate) fn candidates<'a, K: Typed>(owner: &ObjectMeta, cache: &'a Cache) -> Vec<&'a K> {
    let store = cache.store::<K>();
    let mine = store.owned_by(owner.uid.as_deref().unwrap_or_default());
    let orphans = store.orphans(owner.namespace.as_deref().unwrap_or_default());
    let mine = mine.filter(|one| controller_of(one.metadata()).is_some());
    mine.chain(orphans).map(|one| &**one).collect()
}

/// The objects that an owner controls, adopting and releasing others; None if some must be adopted or released first.
pub(crate) fn claim_objects<'a, O: Typed, K: Typed>(
    owner: &O,
    selector: Option<&LabelSelector>,
    objects: impl IntoIterator<Item = &'a K>,
    writes: &mut ReconcileResultBuilder,
) -> Option<Vec<&'a K>> {
    let before = writes.len();
    let mut mine = Vec::new();
    for object in objects {
        let selected =
            selector.is_some_and(|one| selector_matches(one, object.metadata().labels.as_ref()));
        match claim(owner.metadata(), object.metadata(), selected) {
            Claim::Keep => mine.push(object),
            Claim::Adopt => writes.adopt(owner, object),
            Claim::Release => writes.release(owner, object),
            Claim::Ignore => {}
        }
    }
    (writes.len() == before).then_some(mine)
}

/// Results of creating and deleting pods, until they are recorded as Events.
#[derive(Debug, Default)]
pub(crate) struct PodControlEvents {
    pending_events: BTreeMap<Key, Vec<(bool, &'static str, String)>>,
    failures: BTreeMap<Key, PodControlFailure>,
}

/// Why the last pod could not be created or deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PodControlFailure {
    pub reason: &'static str,
    pub message: String,
}

impl PodControlEvents {
    /// Adds an Event about an object.
    pub(crate) fn add_event(
        &mut self,
        key: &Key,
        is_good: bool,
        reason: &'static str,
        text: String,
    ) {
        self.pending_events.entry(key.clone()).or_default().push((is_good, reason, text));
    }

    /// Handles the response to a request of a key.
    pub(crate) fn handle_response(
        &mut self,
        key: &Key,
        request: &ControllerRequest,
        response: &ControllerResponse,
    ) {
        let is_create = match request {
            ControllerRequest::Create(Object::Pod(_)) => true,
            ControllerRequest::Delete { key: pod, .. } if pod.kind == Kind::Pod => false,
            _ => return,
        };
        match (is_create, response) {
            (true, ControllerResponse::Success(pod)) => {
                let name = pod.as_ref().map(|pod| pod.key().name.to_string());
                self.add_event(
                    key,
                    true,
                    "SuccessfulCreate",
                    format!("Created pod: {}", name.unwrap_or_default()),
                );
                self.failures.remove(key);
            }
            (false, ControllerResponse::Success(_)) => {
                let name = match request {
                    ControllerRequest::Delete { key, .. } => key.name.to_string(),
                    _ => String::new(),
                };
                self.add_event(key, true, "SuccessfulDelete", format!("Deleted pod: {name}"));
                self.failures.remove(key);
            }
            // The namespace is terminating: nothing can be created in it.
            (true, ControllerResponse::Rejected { message, .. })
                if message.contains("because it is being terminated") => {}
            (false, ControllerResponse::Rejected { status: 404, .. })
            | (_, ControllerResponse::Count(_) | ControllerResponse::NoResponse { .. }) => {}
            (_, ControllerResponse::Rejected { message, .. }) => {
                let (reason, what) = if is_create {
                    ("FailedCreate", "creating")
                } else {
                    ("FailedDelete", "deleting")
                };
                self.add_event(key, false, reason, format!("Error {what}: {message}"));
                self.failures
                    .insert(key.clone(), PodControlFailure { reason, message: message.clone() });
            }
        }
    }

    /// Records the pending Events of an object.
    pub(crate) fn record_events<K: Typed>(
        &mut self,
        about: &K,
        writes: &mut ReconcileResultBuilder,
    ) {
        for (is_good, reason, text) in
            self.pending_events.remove(&Key::from_object(about)).into_iter().flatten()
        {
            if is_good {
                writes.event(about, reason, text);
            } else {
                writes.warning(about, reason, text);
            }
        }
    }

    /// Why the last pod could not be created or deleted.
    pub(crate) fn last_failure(&self, key: &Key) -> Option<&PodControlFailure> {
        self.failures.get(key)
    }

    /// Forgets a deleted object.
    pub(crate) fn forget(&mut self, key: &Key) {
        self.pending_events.remove(key);
        self.failures.remove(key);
    }
}

/// Whether a controller keeps, adopts, releases or ignores an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// It is the owner's.
    Keep,
    /// An orphan that the selector matches: to be adopted.
    Adopt,
    /// The owner's, but no longer matched by the selector: to be released.
    Release,
    /// To be ignored.
    Ignore,
}

/// Whether an object belongs to an owner, given whether the owner's selector selects it.
pub(crate) fn claim(owner: &ObjectMeta, object: &ObjectMeta, selected: bool) -> Claim {
    match controller_of(object) {
        Some(controller) if Some(&controller.uid) != owner.uid.as_ref() => Claim::Ignore,
        Some(_) if selected => Claim::Keep,
        Some(_) if is_terminating(owner) => Claim::Ignore,
        Some(_) => Claim::Release,
        None if !selected || is_terminating(owner) || is_terminating(object) => Claim::Ignore,
        None if owner.namespace != object.namespace => Claim::Ignore,
        None => Claim::Adopt,
    }
}

/// A pod made from a template by its controller. The API server completes its name.
pub(crate) fn pod_from_template<K: Typed>(template: &PodTemplateSpec, controller: &K) -> Pod {
    let owner = controller.metadata();
    let meta = template.metadata.clone().unwrap_or_default();
    Pod {
        metadata: ObjectMeta {
            generate_name: Some(format!("{}-", owner.name.as_deref().unwrap_or_default())),
            namespace: owner.namespace.clone(),
            labels: meta.labels,
            annotations: meta.annotations,
            finalizers: meta.finalizers,
            owner_references: Some(vec![controller_reference(controller)]),
            ..ObjectMeta::default()
        },
        spec: template.spec.clone(),
        status: None,
    }
}

/// The letters that generated names are made of; no vowels, so that they make no words.
const LETTERS: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";

/// The hash of a pod template, in characters that are safe in names. Upstream hashes Go's own printed form of an object,
/// so that the same template has another hash there.
pub(crate) fn template_hash(template: &impl Serialize, collisions: Option<i32>) -> String {
    let mut text = serde_json::to_vec(template).unwrap_or_default();
    text.extend_from_slice(
        collisions.map(|count| count.to_string()).unwrap_or_default().as_bytes(),
    );
    let hash = text
        .iter()
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193));
    let letter = |digit: u8| char::from(LETTERS[usize::from(digit) % LETTERS.len()]);
    hash.to_string().bytes().map(letter).collect()
}

/// A number, or a percentage of a total.
pub(crate) fn scaled_value(value: Option<&IntOrString>, total: i32, round_up: bool) -> i32 {
    match value {
        None => 0,
        Some(IntOrString::Int(number)) => *number,
        Some(IntOrString::String(text)) => {
            let percent = text.strip_suffix('%').and_then(|digits| digits.parse::<i64>().ok());
            let hundredfold = percent.unwrap_or(0) * i64::from(total);
            let whole = hundredfold.div_euclid(100);
            let up = i64::from(round_up && hundredfold.rem_euclid(100) != 0);
            i32::try_from(whole + up).unwrap_or(i32::MAX)
        }
    }
}

/// Objects in the order in which they were made, names breaking ties.
pub(crate) fn by_age(a: &ObjectMeta, b: &ObjectMeta) -> Ordering {
    let key = |meta: &ObjectMeta| (meta.creation_timestamp.clone(), meta.name.clone());
    key(a).cmp(&key(b))
}

/// Sorts pods into their deletion order for scaling down. `related` are the pods of all ReplicaSets with the same owner: a pod that
/// shares its node with more of them is deleted earlier.
pub(crate) fn sort_for_deletion(pods: &mut [&Pod], related: &[&Pod], now: Timestamp) {
    let mut crowd: BTreeMap<&str, usize> = BTreeMap::new();
    for pod in related.iter().filter(|pod| is_active(pod)) {
        *crowd.entry(node_of(pod)).or_default() += 1;
    }
    let rank = |pod: &Pod| crowd.get(node_of(pod)).copied().unwrap_or(0);
    // Upstream compares uids as soon as two times differ, which is no order: three pods can each come before the next.
    pods.sort_by_cached_key(|pod| {
        let made = pod.metadata.creation_timestamp.as_ref().map(|time| time.0);
        (
            (!node_of(pod).is_empty(), phase_order(pod), is_ready(pod), deletion_cost(pod)),
            Reverse(rank(pod)),
            age_scale(ready_since(pod), now),
            Reverse(restarts(pod)),
            age_scale(made, now),
            pod.metadata.uid.clone(),
        )
    });
}

/// The node of a pod; empty while it has none.
pub(crate) fn node_of(pod: &Pod) -> &str {
    pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).unwrap_or_default()
}

fn phase_order(pod: &Pod) -> u8 {
    match phase(pod) {
        "Unknown" => 1,
        "Running" => 2,
        _ => 0,
    }
}

fn deletion_cost(pod: &Pod) -> i32 {
    let all = pod.metadata.annotations.as_ref();
    let text = all.and_then(|all| all.get("controller.kubernetes.io/pod-deletion-cost"));
    text.and_then(|text| text.parse().ok()).unwrap_or(0)
}

fn restarts(pod: &Pod) -> (i32, i32) {
    let Some(status) = &pod.status else { return (0, 0) };
    let init = pod.spec.as_ref().and_then(|spec| spec.init_containers.as_deref());
    let init = init.unwrap_or_default();
    let is_sidecar = |name: &str| {
        init.iter().any(|one| one.name == name && one.restart_policy.as_deref() == Some("Always"))
    };
    let regular = status.container_statuses.iter().flatten().map(|one| one.restart_count).max();
    let sidecars = status.init_container_statuses.iter().flatten();
    let sidecars = sidecars.filter(|one| is_sidecar(&one.name)).map(|one| one.restart_count).max();
    (regular.unwrap_or(0).max(0), sidecars.unwrap_or(0).max(0))
}

/// How long ago, on a logarithmic scale, so that pods of about one age go in no order that means anything: that of their uids. Never comes
/// before all else.
fn age_scale(time: Option<Timestamp>, now: Timestamp) -> Option<i64> {
    let age = now.duration_since(time?).as_nanos();
    Some(u128::try_from(age).ok().and_then(u128::checked_ilog2).map_or(-1, i64::from))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, from_value, json};

    fn pod(value: Value) -> Pod {
        from_value(value).unwrap()
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + seconds).unwrap()
    }

    fn time(seconds: i64) -> String {
        at(seconds).to_string()
    }

    #[test]
    fn the_deletion_order_of_pods_is_total() {
        let pods: Vec<Pod> = (0..200_i64)
            .map(|nth| {
                let (made, ready) = (nth * 7 % 20, nth * 11 % 13);
                let condition = json!({"type": "Ready", "status": "True", "lastTransitionTime": time(ready)});
                let restarts = json!({"name": "c", "restartCount": nth % 3, "ready": true, "image": "", "imageID": ""});
                pod(json!({
                    "metadata": {"uid": format!("{:03}", nth * 37 % 200), "creationTimestamp": time(made)},
                    "spec": {"nodeName": "n", "containers": []},
                    "status": {"phase": "Running", "conditions": [condition], "containerStatuses": [restarts]},
                }))
            })
            .collect();
        let order = |reversed: bool| {
            let mut all: Vec<&Pod> = pods.iter().collect();
            if reversed {
                all.reverse();
            }
            sort_for_deletion(&mut all, &[], at(21));
            all.into_iter().map(|pod| pod.metadata.uid.clone()).collect::<Vec<_>>()
        };
        assert_eq!(order(false), order(true));
    }

    #[test]
    fn percentages_round_up_or_down() {
        let check = |value: Value, total: i32, up: i32, down: i32| {
            let value: IntOrString = from_value(value).unwrap();
            assert_eq!(scaled_value(Some(&value), total, true), up, "{value:?} of {total}, up");
            assert_eq!(
                scaled_value(Some(&value), total, false),
                down,
                "{value:?} of {total}, down"
            );
        };
        check(json!(3), 10, 3, 3);
        check(json!("25%"), 10, 3, 2);
        check(json!("25%"), 4, 1, 1);
        check(json!("1%"), 1, 1, 0);
        check(json!("0%"), 9, 0, 0);
        check(json!("100%"), 7, 7, 7);
        check(json!("x"), 7, 0, 0);
        assert_eq!(scaled_value(None, 7, true), 0);
    }

    #[test]
    fn claiming_depends_on_owner_selector_and_deletion() {
        let meta = |value: Value| -> ObjectMeta { from_value(value).unwrap() };
        let owner = meta(json!({"name": "a", "namespace": "x", "uid": "1"}));
        let going =
            meta(json!({"name": "a", "namespace": "x", "uid": "1", "deletionTimestamp": time(0)}));
        let of = |uid: &str| {
            let owner = json!({"apiVersion": "v1", "kind": "K", "name": "a", "uid": uid, "controller": true});
            meta(json!({"namespace": "x", "ownerReferences": [owner]}))
        };
        let orphan = meta(json!({"namespace": "x"}));
        let dying = meta(json!({"namespace": "x", "deletionTimestamp": time(0)}));
        let elsewhere = meta(json!({"namespace": "y"}));
        for (owner, object, selected, want) in [
            (&owner, &of("1"), true, Claim::Keep),
            (&owner, &of("1"), false, Claim::Release),
            (&going, &of("1"), true, Claim::Keep),
            (&going, &of("1"), false, Claim::Ignore),
            (&owner, &of("2"), true, Claim::Ignore),
            (&owner, &orphan, true, Claim::Adopt),
            (&owner, &orphan, false, Claim::Ignore),
            (&going, &orphan, true, Claim::Ignore),
            (&owner, &dying, true, Claim::Ignore),
            (&owner, &elsewhere, true, Claim::Ignore),
        ] {
            assert_eq!(claim(owner, object, selected), want, "{object:?}");
        }
    }

    #[test]
    fn availability_takes_time() {
        let ready = |since: i64, status: &str| {
            pod(json!({"status": {"phase": "Running", "conditions": [
                {"type": "Ready", "status": status, "lastTransitionTime": time(since)}]}}))
        };
        assert!(is_available(&ready(0, "True"), 0, at(0)));
        assert!(!is_available(&ready(0, "False"), 0, at(100)));
        assert!(!is_available(&ready(0, "True"), 10, at(9)));
        assert!(is_available(&ready(0, "True"), 10, at(10)));
        let pods = [ready(0, "True"), ready(5, "True"), ready(0, "False")];
        let next = |now| next_available(&pods, 10, at(now)).map(|left| left.as_secs());
        assert_eq!([next(0), next(9), next(10), next(15)], [Some(10), Some(1), Some(5), None]);
    }

    /// Each pair: the first is deleted before the second.
    #[test]
    fn pods_are_deleted_in_upstreams_order() {
        let full = json!({"metadata": {"name": "p", "uid": "u", "creationTimestamp": time(0)},
            "spec": {"nodeName": "n", "containers": []},
            "status": {"phase": "Running",
                "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": time(10)}],
                "containerStatuses": [{"name": "c", "image": "", "imageID": "", "ready": true, "restartCount": 0}]}});
        let but = |pointer: &str, value: Value| {
            let mut changed = full.clone();
            *changed.pointer_mut(pointer).unwrap() = value;
            changed["metadata"]["uid"] = json!("v");
            pod(changed)
        };
        let base = pod(full.clone());
        let cost = |value: &str| {
            but(
                "/metadata",
                json!({"name": "c", "annotations":
                {"controller.kubernetes.io/pod-deletion-cost": value}, "creationTimestamp": time(0)}),
            )
        };
        let since = "/status/conditions/0/lastTransitionTime";
        let check = |first: &Pod, second: &Pod, related: &[&Pod]| {
            for mut pods in [[first, second], [second, first]] {
                sort_for_deletion(&mut pods, related, at(1000));
                assert!(std::ptr::eq(pods[0], first), "{first:?}");
            }
        };
        check(&but("/spec/nodeName", json!("")), &base, &[]);
        check(&but("/status/phase", json!("Pending")), &base, &[]);
        check(&but("/status/phase", json!("Unknown")), &base, &[]);
        check(&but("/status/conditions/0/status", json!("False")), &base, &[]);
        check(&cost("-5"), &base, &[]);
        check(&base, &cost("5"), &[]);
        let crowded = but("/spec/nodeName", json!("m"));
        check(&crowded, &base, &[&base, &crowded, &crowded]);
        check(&but(since, json!(time(900))), &base, &[]);
        // About the same age: uids decide.
        check(&base, &but(since, json!(time(20))), &[]);
        check(&but("/status/containerStatuses/0/restartCount", json!(2)), &base, &[]);
        check(&but("/metadata/creationTimestamp", json!(time(990))), &base, &[]);
    }

    #[test]
    fn hashes_are_safe_in_names_and_differ() {
        let template = PodTemplateSpec::default();
        let hash = template_hash(&template, None);
        assert!(hash.bytes().all(|byte| LETTERS.contains(&byte)), "{hash}");
        assert_ne!(hash, template_hash(&template, Some(1)));
    }
}
