//! Which pods are explained: one by its name, or several by the objects that control them, their labels or their state.

use loadmaster_api::snapshot::Snapshot;
use loadmaster_api::{OwnerReference, Pod, Selector};
use loadmaster_stdx::ErrorChain;
use loadmaster_stdx::SortCompactly as _;

use super::Args;
use crate::exit::{CommandResult, Failure};

/// What is explained.
pub(super) enum Selection {
    /// One pod, `namespace/name`.
    Pod(String),
    Pods(Criteria),
}

/// All pods that meet these.
pub(super) struct Criteria {
    /// `None` for all namespaces.
    namespace: Option<String>,
    /// One of these; none for any pod.
    names: Vec<Name>,
    selector: Selector,
    is_pending: bool,
}

/// Pods by name, or by the object that controls them.
#[derive(Debug, PartialEq, Eq)]
enum Name {
    Pod { namespace: Option<String>, name: String },
    Controlled { kind: &'static str, name: String },
}

/// Names of kinds as kubectl knows them.
const KINDS: [(&str, &[&str]); 6] = [
    ("Pod", &["pod", "pods", "po"]),
    ("Deployment", &["deploy", "deployment", "deployments"]),
    ("ReplicaSet", &["rs", "replicaset", "replicasets"]),
    ("StatefulSet", &["sts", "statefulset", "statefulsets"]),
    ("DaemonSet", &["ds", "daemonset", "daemonsets"]),
    ("Job", &["job", "jobs"]),
];

impl Name {
    fn new(text: &str) -> Name {
        let Some((first, name)) = text.split_once('/') else {
            return Name::Pod { namespace: None, name: text.to_owned() };
        };
        let (first, name) = (first.to_lowercase(), name.to_owned());
        match KINDS.iter().find(|(_, words)| words.contains(&&*first)) {
            Some(("Pod", _)) => Name::Pod { namespace: None, name },
            Some((kind, _)) => Name::Controlled { kind, name },
            None => Name::Pod { namespace: text.split_once('/').map(|it| it.0.to_owned()), name },
        }
    }
}

impl Selection {
    /// The selection of a command line; `namespace` is the default.
    pub fn new(args: &Args, namespace: &str) -> CommandResult<Selection> {
        let names: Vec<Name> = args.names.iter().map(|name| Name::new(name)).collect();
        for (name, text) in names.iter().zip(&args.names) {
            if let (Name::Pod { namespace: Some(given), .. }, Some(wanted)) =
                (name, &args.namespace)
                && given != wanted
            {
                return Err(Failure::invalid_input(format_args!(
                    "pod {text}: does not match --namespace {wanted:?}"
                )));
            }
        }
        let is_any = args.all_namespaces || args.selector.is_some() || args.pending;
        let namespace = args.namespace.as_deref().unwrap_or(namespace);
        if let ([Name::Pod { namespace: given, name }], false) = (&*names, is_any) {
            let namespace = given.as_deref().unwrap_or(namespace);
            return Ok(Selection::Pod(format!("{namespace}/{name}")));
        }
        let is_everywhere =
            args.all_namespaces || args.pending && args.namespace.is_none() && names.is_empty();
        let selector = match &args.selector {
            Some(selector) => Selector::new(Some(selector))
                .map_err(|error| Failure::invalid_input(ErrorChain(&error)))?,
            None => Selector::everything(),
        };
        Ok(Selection::Pods(Criteria {
            namespace: (!is_everywhere).then(|| namespace.to_owned()),
            names,
            selector,
            is_pending: args.pending,
        }))
    }
}

impl Criteria {
    /// The pods, sorted by name.
    ///
    /// # Errors
    ///
    /// When a name selects no pod.
    pub fn select<'s>(&self, snapshot: &'s Snapshot) -> CommandResult<Vec<&'s Pod>> {
        let all = || snapshot.pods.iter().map(|pod| &pod.object);
        for name in &self.names {
            if !all().any(|pod| self.is_named(name, pod, snapshot)) {
                return Err(Failure::invalid_input(match name {
                    Name::Pod { name, .. } => {
                        format!("pod {name:?} is not among the {} pods", snapshot.pods.len())
                    }
                    Name::Controlled { kind, name } => format!("{kind} {name:?} has no pods here"),
                }));
            }
        }
        let is_selected = |pod: &&Pod| {
            let is_here = self.namespace.as_deref().is_none_or(|it| pod.metadata.namespace == *it);
            let is_named = self.names.iter().any(|name| self.is_named(name, pod, snapshot));
            (is_named || self.names.is_empty() && is_here)
                && self.selector.matches(&pod.metadata.labels)
                && (!self.is_pending || pod.spec.node_name.is_empty())
        };
        let mut pods: Vec<&Pod> = all().filter(is_selected).collect();
        pods.sort_compactly_by_key(|pod| pod.full_name());
        Ok(pods)
    }

    fn is_named(&self, name: &Name, pod: &Pod, snapshot: &Snapshot) -> bool {
        let is_in = |namespace: Option<&str>| {
            namespace.is_none_or(|namespace| pod.metadata.namespace == *namespace)
        };
        match name {
            Name::Pod { namespace, name } => {
                *pod.metadata.name == **name
                    && is_in(namespace.as_deref().or(self.namespace.as_deref()))
            }
            Name::Controlled { kind, name } => {
                let controller =
                    pod.metadata.owner_references.iter().find(|it| it.controller == Some(true));
                is_in(self.namespace.as_deref())
                    && controller.is_some_and(|it| is_controlled(kind, name, pod, it, snapshot))
            }
        }
    }
}

/// Whether an object of this kind and name is a pod's controller, or the Deployment of its ReplicaSet.
fn is_controlled(
    kind: &str,
    name: &str,
    pod: &Pod,
    controller: &OwnerReference,
    snapshot: &Snapshot,
) -> bool {
    if kind != "Deployment" {
        return controller.kind == kind && controller.name == *name;
    }
    let known = snapshot.replica_sets.iter().find(|set| {
        *set.metadata.name == *controller.name && set.metadata.namespace == pod.metadata.namespace
    });
    controller.kind == "ReplicaSet"
        && match known {
            Some(set) => set.metadata.owner_references.iter().any(|owner| {
                owner.controller == Some(true) && owner.kind == kind && owner.name == *name
            }),
            // ReplicaSets were not saved: a Deployment names them after itself and a hash.
            None => controller.name.rsplit_once('-').is_some_and(|(of, _)| of == name),
        }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_pods_and_of_their_controllers() {
        #[track_caller]
        fn check(text: &str, want: &Name) {
            assert_eq!(Name::new(text), *want);
        }
        let pod = |namespace: Option<&str>, name: &str| Name::Pod {
            namespace: namespace.map(str::to_owned),
            name: name.to_owned(),
        };
        let of = |kind, name: &str| Name::Controlled { kind, name: name.to_owned() };
        check("web", &pod(None, "web"));
        check("shop/web", &pod(Some("shop"), "web"));
        check("pod/web", &pod(None, "web"));
        check("po/web", &pod(None, "web"));
        check("deploy/web", &of("Deployment", "web"));
        check("Deployments/web", &of("Deployment", "web"));
        check("rs/web", &of("ReplicaSet", "web"));
        check("sts/db", &of("StatefulSet", "db"));
        check("ds/log", &of("DaemonSet", "log"));
        check("job/once", &of("Job", "once"));
    }
}
