//! Taking in the objects of manifests.

use std::sync::Arc;

use loadmaster_api::Str;
use loadmaster_api::document::{Located, Path};
use loadmaster_api::snapshot::{Origin, Snapshot, Sourced};
use loadmaster_framework::cluster as objects;
use loadmaster_stdx::{Chain, Map};

use super::{Cluster, Error, Workload};

impl Cluster {
    /// Takes in everything: nodes first, then controllers, then pods, which their controllers adopt; last, controllers make the
    /// pods that are missing. The error is about the first object that cannot be taken in.
    pub fn load(&mut self, mut snapshot: Snapshot) -> Result<(), Located> {
        for class in std::mem::take(&mut snapshot.priority_classes) {
            self.set_priority_class(class.object);
        }
        self.change_objects(|cluster| take_objects(cluster, &mut snapshot));
        for node in std::mem::take(&mut snapshot.nodes) {
            self.set_node(node.object);
        }
        let mut owners = Vec::new();
        for Sourced { object, origin } in take_workloads(&mut snapshot) {
            let owner = self.add_workload(object);
            let owner =
                owner.map_err(|error| located(&snapshot, origin, "spec.template", &error))?;
            owners.extend(owner.map(|owner| (owner, origin)));
        }
        for Sourced { object, origin } in std::mem::take(&mut snapshot.pods) {
            self.create_pod(object).map_err(|error| located(&snapshot, origin, "", &error))?;
        }
        for (owner, origin) in owners {
            self.reconcile(owner)
                .map_err(|error| located(&snapshot, origin, "spec.template", &error))?;
        }
        Ok(())
    }
}

/// What plugins read beside nodes, pods and the controllers that are run here.
fn take_objects(cluster: &mut objects::Cluster, snapshot: &mut Snapshot) {
    for namespace in std::mem::take(&mut snapshot.namespaces) {
        cluster.namespaces.insert(Str::new(&namespace.metadata.name), Arc::new(namespace.object));
    }
    let services = std::mem::take(&mut snapshot.services);
    by_namespace(&mut cluster.services, services, |service| &service.metadata.namespace);
    let controllers = std::mem::take(&mut snapshot.replication_controllers);
    by_namespace(&mut cluster.replication_controllers, controllers, |it| &it.metadata.namespace);
    let budgets = std::mem::take(&mut snapshot.disruption_budgets);
    by_namespace(&mut cluster.disruption_budgets, budgets, |budget| &budget.metadata.namespace);
}

fn by_namespace<T>(
    known: &mut Map<Str, Vec<Arc<T>>>,
    all: Vec<Sourced<T>>,
    namespace: impl Fn(&T) -> &Str,
) {
    for Sourced { object, .. } in all {
        known.entry(namespace(&object).clone()).or_default().push(Arc::new(object));
    }
}

/// ReplicaSets come before Deployments, which then know theirs.
fn take_workloads(snapshot: &mut Snapshot) -> Vec<Sourced<Workload>> {
    fn take<T: Into<Workload>>(
        all: &mut Vec<Sourced<T>>,
    ) -> impl Iterator<Item = Sourced<Workload>> {
        let all = std::mem::take(all).into_iter();
        all.map(|Sourced { object, origin }| Sourced { object: object.into(), origin })
    }
    take(&mut snapshot.replica_sets)
        .chain(take(&mut snapshot.stateful_sets))
        .chain(take(&mut snapshot.deployments))
        .chain(take(&mut snapshot.jobs))
        .collect()
}

/// The error with the place of the field at fault; `pod` is where in the object the pod stands.
fn located(snapshot: &Snapshot, origin: Origin, pod: &str, error: &Error) -> Located {
    let (field, text) = match error {
        Error::Template { source, .. } => (source.path.as_str(), Chain(&source.source).to_string()),
        Error::Admission { source, .. } => ("spec.priorityClassName", source.to_string()),
        Error::NoNode { node, .. } => ("spec.nodeName", format!("no node is called {node:?}")),
    };
    let path = [pod, field].into_iter().filter_map(|part| part.parse::<Path>().ok());
    let path = path.fold(Path::ROOT, |whole, part| whole.join(&part));
    snapshot.error(origin, &path, text)
}
