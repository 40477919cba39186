//! Kinds that cannot be read: because the server does not have them, or does not let us. Said once in the log, shown in a metric for
//! as long as it is so, and told in an Event where nothing can be decided without the kind.
//!
//! The Event is about the Lease, as those of leader election are: the scheduler as such has no other object. Without leader election it
//! is about the definition of the kind that is missing.

use std::collections::BTreeMap;
use std::sync::Arc;

use loadmaster_client::Kind;
use loadmaster_client::kinds::Resource;
use loadmaster_client::lease::Standing;
use loadmaster_client::recorder::{Notice, Recorder, Reference};
use loadmaster_client::watch::Unavailable;
use tokio::sync::watch;

use crate::metrics::Metrics;

/// The lease that this replica holds or waits for.
pub(super) struct Lease {
    /// Without its uid.
    pub name: Reference,
    pub standing: watch::Receiver<Standing>,
}

/// What cannot be read now.
pub(super) struct Missing {
    metrics: Arc<Metrics>,
    recorder: Arc<Recorder>,
    lease: Option<Lease>,
    /// Why, in a word.
    known: BTreeMap<Kind, &'static str>,
}

impl Missing {
    pub fn new(metrics: Arc<Metrics>, recorder: Arc<Recorder>, lease: Option<Lease>) -> Missing {
        Missing { metrics, recorder, lease, known: BTreeMap::new() }
    }

    /// A kind cannot be read, and this is why, in words; `holds_up` when nothing is scheduled until it can.
    pub fn add(&mut self, kind: Kind, why: &Unavailable, holds_up: bool) -> String {
        let (word, text) = words(kind.resource(), why);
        self.remove(kind);
        self.known.insert(kind, word);
        self.show(kind, word, true);
        let resource = kind.resource();
        if !resource.required {
            tracing::warn!("{text}: {}", resource.without);
            return text;
        }
        tracing::error!("{text}");
        // Who cannot be asked cannot be told.
        if !matches!(why, Unavailable::Failing { .. }) {
            let lease = self.lease.as_ref().map(|lease| Reference {
                uid: lease.standing.borrow().uid.as_str().into(),
                ..lease.name.clone()
            });
            if let Some(notice) = notice(resource, &text, holds_up, lease) {
                self.recorder.record(notice);
            }
        }
        text
    }

    /// It can be read.
    pub fn remove(&mut self, kind: Kind) {
        if let Some(word) = self.known.remove(&kind) {
            self.show(kind, word, false);
        }
    }

    fn show(&self, kind: Kind, word: &str, is_missing: bool) {
        let Resource { group, resource, .. } = kind.resource();
        self.metrics.own.set_missing(group, resource, word, is_missing);
    }
}

/// Why, for metrics and for people.
fn words(resource: &Resource, why: &Unavailable) -> (&'static str, String) {
    let Resource { group, version, resource, .. } = resource;
    match why {
        Unavailable::Forbidden { rule } => ("forbidden", format!("not allowed to {rule}")),
        Unavailable::Absent => {
            let dot = if group.is_empty() { "" } else { "." };
            ("absent", format!("the server has no {resource}{dot}{group} in {version}"))
        }
        Unavailable::Failing { text } => ("failing", format!("reading {resource}: {text}")),
        other => ("failing", format!("reading {resource}: {other:?}")),
    }
}

/// Nothing for a kind of the core without a lease: there is no object that it could be about.
fn notice(
    resource: &Resource,
    text: &str,
    holds_up: bool,
    lease: Option<Reference>,
) -> Option<Notice> {
    let definition = || Reference {
        api_version: "apiextensions.k8s.io/v1".into(),
        kind: "CustomResourceDefinition".into(),
        name: format!("{}.{}", resource.resource, resource.group).into(),
        ..Reference::default()
    };
    let instead = if holds_up {
        "no pod is scheduled until it can be read"
    } else {
        "what was known of it stays as it was"
    };
    let definition = (!resource.group.is_empty()).then(definition);
    Some(Notice {
        regarding: lease.or(definition)?,
        related: None,
        is_warning: true,
        reason: "MissingKind".into(),
        action: "Watching".into(),
        note: format!("{text}: {instead}"),
        controller: "kube-scheduler".into(),
    })
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;

    fn gangs() -> Kind {
        Kind::other("example.com", "v1", "gangs", true)
    }

    #[test]
    fn why_is_said_in_words() {
        let check = |kind: Kind, why: &Unavailable, want: &str| {
            let (word, text) = words(kind.resource(), why);
            assert_eq!(format!("{word}: {text}"), want);
        };
        check(gangs(), &Unavailable::Absent, "absent: the server has no gangs.example.com in v1");
        check(Kind::Service, &Unavailable::Absent, "absent: the server has no services in v1");
        let rule = "list gangs in example.com at cluster scope".to_owned();
        check(
            gangs(),
            &Unavailable::Forbidden { rule },
            "forbidden: not allowed to list gangs in example.com at cluster scope",
        );
        let text = "connection refused".to_owned();
        check(
            Kind::Pod,
            &Unavailable::Failing { text },
            "failing: reading pods: connection refused",
        );
    }

    #[track_caller]
    fn check_notice(holds_up: bool, lease: Option<Reference>, want: &Expect) {
        let notice = notice(gangs().resource(), "there are no gangs", holds_up, lease).unwrap();
        let Reference { kind, namespace, name, uid, .. } = &notice.regarding;
        want.assert_eq(&format!("{kind} {namespace}/{name} {uid}: {}", notice.note));
    }

    #[test]
    fn a_kind_of_the_core_has_no_definition() {
        assert_eq!(notice(Kind::Pod.resource(), "forbidden", true, None), None);
    }

    #[test]
    fn the_event_is_about_the_lease_or_the_definition() {
        let lease = Reference {
            kind: "Lease".into(),
            namespace: "kube-system".into(),
            name: "kube-scheduler".into(),
            uid: "17".into(),
            ..Reference::default()
        };
        check_notice(
            true,
            Some(lease.clone()),
            &expect![
                "Lease kube-system/kube-scheduler 17: there are no gangs: no pod is scheduled until it can be read"
            ],
        );
        check_notice(
            false,
            Some(lease),
            &expect![
                "Lease kube-system/kube-scheduler 17: there are no gangs: what was known of it stays as it was"
            ],
        );
        check_notice(
            true,
            None,
            &expect![
                "CustomResourceDefinition /gangs.example.com : there are no gangs: no pod is scheduled until it can be read"
            ],
        );
    }
}
