//! Kinds that cannot be listed or watched, because the API server does not serve them or does not allow it. Each is logged once, shown
//! in a metric until it can be read, and, if it is required for scheduling, reported in an Event.
//!
//! The Event regards the Lease, like those of leader election: the scheduler has no other object. Without leader election it regards the
//! CustomResourceDefinition of the missing kind.

use std::collections::BTreeMap;
use std::sync::Arc;

use loadmaster_client::Kind;
use loadmaster_client::event_recorder::{EventRecorder, NewEvent, ObjectReference};
use loadmaster_client::kinds::ApiResource;
use loadmaster_client::leader_election::LeadershipStatus;
use loadmaster_client::reflector::KindUnavailableReason;
use tokio::sync::watch;

use crate::metrics::Metrics;

/// The Lease that this replica holds or tries to acquire.
pub(super) struct Lease {
    /// Without its uid.
    pub name: ObjectReference,
    pub status: watch::Receiver<LeadershipStatus>,
}

/// The kinds that cannot be read now.
pub(super) struct MissingKinds {
    metrics: Arc<Metrics>,
    recorder: Arc<EventRecorder>,
    lease: Option<Lease>,
    /// The reason label of each kind.
    reasons: BTreeMap<Kind, &'static str>,
}

impl MissingKinds {
    pub fn new(
        metrics: Arc<Metrics>,
        recorder: Arc<EventRecorder>,
        lease: Option<Lease>,
    ) -> MissingKinds {
        MissingKinds { metrics, recorder, lease, reasons: BTreeMap::new() }
    }

    /// A kind cannot be read; returns the message. `blocks_scheduling` if no pod is scheduled until it can be read.
    pub fn add(
        &mut self,
        kind: Kind,
        why: &KindUnavailableReason,
        blocks_scheduling: bool,
    ) -> String {
        let (reason, text) = reason_and_message(kind.resource(), why);
        self.remove(kind);
        self.reasons.insert(kind, reason);
        self.set_metric(kind, reason, true);
        let resource = kind.resource();
        if !resource.required {
            tracing::warn!("{text}: {}", resource.effect_if_missing);
            return text;
        }
        tracing::error!("{text}");
        // If requests to the API server fail, an Event cannot be written either.
        if !matches!(why, KindUnavailableReason::Failing { .. }) {
            let lease = self.lease.as_ref().map(|lease| ObjectReference {
                uid: lease.status.borrow().uid.as_str().into(),
                ..lease.name.clone()
            });
            if let Some(event) = missing_kind_event(resource, &text, blocks_scheduling, lease) {
                self.recorder.record(event);
            }
        }
        text
    }

    /// The kind can be read.
    pub fn remove(&mut self, kind: Kind) {
        if let Some(reason) = self.reasons.remove(&kind) {
            self.set_metric(kind, reason, false);
        }
    }

    fn set_metric(&self, kind: Kind, reason: &str, is_missing: bool) {
        let ApiResource { group, resource, .. } = kind.resource();
        self.metrics.loadmaster.set_missing_kind(group, resource, reason, is_missing);
    }
}

/// The reason as a metric label, and as a message.
fn reason_and_message(
    resource: &ApiResource,
    why: &KindUnavailableReason,
) -> (&'static str, String) {
    let ApiResource { group, version, resource, .. } = resource;
    match why {
        KindUnavailableReason::Forbidden { rule } => {
            ("forbidden", format!("not allowed to {rule}"))
        }
        KindUnavailableReason::NotServed => {
            let dot = if group.is_empty() { "" } else { "." };
            ("absent", format!("the server has no {resource}{dot}{group} in {version}"))
        }
        KindUnavailableReason::Failing { text } => {
            ("failing", format!("reading {resource}: {text}"))
        }
        other => ("failing", format!("reading {resource}: {other:?}")),
    }
}

/// The Event. `None` for a core kind without a lease: there is no object that the Event could regard.
fn missing_kind_event(
    resource: &ApiResource,
    text: &str,
    blocks_scheduling: bool,
    lease: Option<ObjectReference>,
) -> Option<NewEvent> {
    let definition = || ObjectReference {
        api_version: "apiextensions.k8s.io/v1".into(),
        kind: "CustomResourceDefinition".into(),
        name: format!("{}.{}", resource.resource, resource.group).into(),
        ..ObjectReference::default()
    };
    let consequence = if blocks_scheduling {
        "no pod is scheduled until it can be read"
    } else {
        "scheduling continues with the last known objects"
    };
    let definition = (!resource.group.is_empty()).then(definition);
    Some(NewEvent {
        regarding: lease.or(definition)?,
        related: None,
        is_warning: true,
        reason: "MissingKind".into(),
        action: "Watching".into(),
        note: format!("{text}: {consequence}"),
        controller: "kube-scheduler".into(),
    })
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;

    fn gangs() -> Kind {
        Kind::dynamic("example.com", "v1", "gangs", true)
    }

    #[test]
    fn reasons_have_a_label_and_a_message() {
        let check = |kind: Kind, why: &KindUnavailableReason, want: &str| {
            let (reason, text) = reason_and_message(kind.resource(), why);
            assert_eq!(format!("{reason}: {text}"), want);
        };
        check(
            gangs(),
            &KindUnavailableReason::NotServed,
            "absent: the server has no gangs.example.com in v1",
        );
        check(
            Kind::Service,
            &KindUnavailableReason::NotServed,
            "absent: the server has no services in v1",
        );
        let rule = "list gangs in example.com at cluster scope".to_owned();
        check(
            gangs(),
            &KindUnavailableReason::Forbidden { rule },
            "forbidden: not allowed to list gangs in example.com at cluster scope",
        );
        let text = "connection refused".to_owned();
        check(
            Kind::Pod,
            &KindUnavailableReason::Failing { text },
            "failing: reading pods: connection refused",
        );
    }

    #[track_caller]
    fn check_event(blocks_scheduling: bool, lease: Option<ObjectReference>, want: &Expect) {
        let event =
            missing_kind_event(gangs().resource(), "there are no gangs", blocks_scheduling, lease)
                .unwrap();
        let ObjectReference { kind, namespace, name, uid, .. } = &event.regarding;
        want.assert_eq(&format!("{kind} {namespace}/{name} {uid}: {}", event.note));
    }

    #[test]
    fn a_core_kind_without_a_lease_has_no_event() {
        assert_eq!(missing_kind_event(Kind::Pod.resource(), "forbidden", true, None), None);
    }

    #[test]
    fn the_event_is_about_the_lease_or_the_definition() {
        let lease = ObjectReference {
            kind: "Lease".into(),
            namespace: "kube-system".into(),
            name: "kube-scheduler".into(),
            uid: "17".into(),
            ..ObjectReference::default()
        };
        check_event(
            true,
            Some(lease.clone()),
            &expect![
                "Lease kube-system/kube-scheduler 17: there are no gangs: no pod is scheduled until it can be read"
            ],
        );
        check_event(
            false,
            Some(lease),
            &expect![
                "Lease kube-system/kube-scheduler 17: there are no gangs: scheduling continues with the last known objects"
            ],
        );
        check_event(
            true,
            None,
            &expect![
                "CustomResourceDefinition /gangs.example.com : there are no gangs: no pod is scheduled until it can be read"
            ],
        );
    }
}
