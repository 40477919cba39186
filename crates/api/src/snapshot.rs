//! All objects of a cluster file, as `kubectl get nodes,pods,... -o json` (or `-o yaml`) prints it.
//!
//! A file holds a `v1` List, a list of one kind (NodeList, PodList and so on), a single object, or several of
//! these: YAML documents separated by `---`, or JSON values behind each other.
//!
//! What the API server would have filled in is filled in here, and nothing else:
//!
//! | | |
//! | --- | --- |
//! | `metadata.namespace` | `default` for kinds that live in a namespace |
//! | `status.allocatable` of a node | its `status.capacity`, if it has none |
//!
//! Pods that have ended (phase Succeeded or Failed) hold nothing and are left out. Kinds that scheduling does
//! not read, custom resources among them, are skipped and counted. Unknown fields are ignored. Everything
//! else that is not as it should be is an error with file, line, column and field.

mod kinds;
mod load;
mod split;

use std::collections::BTreeMap;
use std::ops::Deref;

use loadmaster_stdx::{Map, Set};
use serde::Deserialize;
use serde::de::DeserializeSeed;

use crate::document::{Document, DocumentFormat, FieldPath, JsonDecoder, LocatedError};
use crate::interned_str::Str;
use crate::meta::ObjectMeta;
use crate::node::Node;
use crate::pod::Pod;
use crate::workload::{
    Deployment, Job, Namespace, PodDisruptionBudget, PriorityClass, ReplicaSet,
    ReplicationController, Service, StatefulSet,
};
use load::{Loader, ObjectSeed, TypeMeta};

/// The objects of a cluster, in the order of the files.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Nodes.
    pub nodes: Vec<ObjectWithOrigin<Node>>,
    /// Pods that have not ended.
    pub pods: Vec<ObjectWithOrigin<Pod>>,
    /// Namespaces.
    pub namespaces: Vec<ObjectWithOrigin<Namespace>>,
    /// Services.
    pub services: Vec<ObjectWithOrigin<Service>>,
    /// ReplicationControllers.
    pub replication_controllers: Vec<ObjectWithOrigin<ReplicationController>>,
    /// ReplicaSets.
    pub replica_sets: Vec<ObjectWithOrigin<ReplicaSet>>,
    /// StatefulSets.
    pub stateful_sets: Vec<ObjectWithOrigin<StatefulSet>>,
    /// Deployments.
    pub deployments: Vec<ObjectWithOrigin<Deployment>>,
    /// Jobs.
    pub jobs: Vec<ObjectWithOrigin<Job>>,
    /// PodDisruptionBudgets.
    pub disruption_budgets: Vec<ObjectWithOrigin<PodDisruptionBudget>>,
    /// PriorityClasses.
    pub priority_classes: Vec<ObjectWithOrigin<PriorityClass>>,
    /// How many pods were left out because they have ended.
    pub n_finished_pods: usize,
    /// How many objects of each kind were skipped. Custom resources are called `Kind.group`.
    pub skipped: BTreeMap<String, usize>,
    documents: Vec<Document>,
}

/// An object and where it comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectWithOrigin<T> {
    /// The object.
    pub object: T,
    /// Where it was read.
    pub origin: ObjectOrigin,
}

impl<T> Deref for ObjectWithOrigin<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.object
    }
}

/// The place of an object in the files of a [`Snapshot`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ObjectOrigin {
    /// Which of the files.
    document: u32,
    /// Which value of the file.
    part: u32,
    /// Which item, if the value is a list; else `u32::MAX`.
    item: u32,
}

impl ObjectOrigin {
    const NO_ITEM: u32 = u32::MAX;

    fn new(document: usize, part: usize) -> ObjectOrigin {
        ObjectOrigin { document: document as u32, part: part as u32, item: ObjectOrigin::NO_ITEM }
    }

    fn at(self, item: u32) -> ObjectOrigin {
        ObjectOrigin { item, ..self }
    }

    /// Whether this is an earlier item of the same list.
    fn is_before(self, other: ObjectOrigin) -> bool {
        (self.document, self.part) == (other.document, other.part) && self.item < other.item
    }

    /// The path to the object from the root of its JSON value or YAML document, such as `items[17]`.
    pub fn path(self) -> FieldPath {
        match self.item {
            ObjectOrigin::NO_ITEM => FieldPath::ROOT,
            item => FieldPath::ROOT.field("items").index(item as usize),
        }
    }
}

/// Why files do not make a snapshot.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// There was no file at all.
    #[error("expected at least one file with Kubernetes objects, found none")]
    NoDocuments,
    /// A file is not well-formed, or an object is not what it should be.
    #[error(transparent)]
    Invalid(LocatedError),
    /// Two objects of one kind have the same name.
    #[error(transparent)]
    Duplicate(LocatedError),
    /// An object names another one that is not there.
    #[error(transparent)]
    Dangling(LocatedError),
}

impl SnapshotError {
    /// Where the error is.
    pub fn located_error(&self) -> Option<&LocatedError> {
        match self {
            SnapshotError::NoDocuments => None,
            SnapshotError::Invalid(located)
            | SnapshotError::Duplicate(located)
            | SnapshotError::Dangling(located) => Some(located),
        }
    }
}

impl Snapshot {
    /// Reads the objects of these files and checks that they fit together.
    ///
    /// # Errors
    ///
    /// See the description of this module, and [`Snapshot::check`].
    pub fn read(documents: &[Document]) -> Result<Snapshot, SnapshotError> {
        Snapshot::read_cut(documents, split::CHUNK_BYTES)
    }

    /// [`Snapshot::read`], with long lists cut into pieces of about `chunk_bytes`.
    fn read_cut(documents: &[Document], chunk_bytes: usize) -> Result<Snapshot, SnapshotError> {
        if documents.is_empty() {
            return Err(SnapshotError::NoDocuments);
        }
        let mut types = Types::default();
        let mut snapshot = loop {
            match read_all(documents, &types, chunk_bytes) {
                Ok(snapshot) => break snapshot,
                Err(Failure::Located(located)) => return Err(SnapshotError::Invalid(located)),
                Err(Failure::NeedsType(origin, found)) => types.insert(origin, found),
            };
        };
        snapshot.documents = documents.to_vec();
        snapshot.check()?;
        Ok(snapshot)
    }

    /// Checks that no two objects share kind, namespace and name, and that every pod with a `spec.nodeName` is
    /// on one of the nodes, unless there are no nodes at all.
    ///
    /// # Errors
    ///
    /// The first object that does not pass.
    pub fn check(&self) -> Result<(), SnapshotError> {
        self.check_names("node", &self.nodes, |x| &x.metadata)?;
        self.check_names("pod", &self.pods, |x| &x.metadata)?;
        self.check_names("namespace", &self.namespaces, |x| &x.metadata)?;
        self.check_names("service", &self.services, |x| &x.metadata)?;
        let controllers = &self.replication_controllers;
        self.check_names("replication controller", controllers, |x| &x.metadata)?;
        self.check_names("replica set", &self.replica_sets, |x| &x.metadata)?;
        self.check_names("stateful set", &self.stateful_sets, |x| &x.metadata)?;
        self.check_names("deployment", &self.deployments, |x| &x.metadata)?;
        self.check_names("job", &self.jobs, |x| &x.metadata)?;
        let budgets = &self.disruption_budgets;
        self.check_names("pod disruption budget", budgets, |x| &x.metadata)?;
        self.check_names("priority class", &self.priority_classes, |x| &x.metadata)?;
        self.check_node_names()
    }

    fn check_names<T>(
        &self,
        what: &str,
        all: &[ObjectWithOrigin<T>],
        metadata: impl Fn(&T) -> &ObjectMeta,
    ) -> Result<(), SnapshotError> {
        let mut seen: Set<(&str, &str)> = Set::default();
        seen.reserve(all.len());
        for sourced in all {
            let meta = metadata(&sourced.object);
            if seen.insert((&meta.namespace, &meta.name)) {
                continue;
            }
            let is_first = |other: &&ObjectWithOrigin<T>| {
                let other = metadata(&other.object);
                other.name == meta.name && other.namespace == meta.namespace
            };
            let first = all.iter().find(is_first).map_or(sourced.origin, |first| first.origin);
            let first = self.error_at(first, &FieldPath::ROOT, "");
            let name = match &*meta.namespace {
                "" => meta.name.to_string(),
                namespace => format!("{namespace}/{}", meta.name),
            };
            let text = format!(
                "expected one {what} {name:?}, found a second; the first is at {}:{}:{}",
                first.file, first.line, first.column
            );
            let path = FieldPath::ROOT.field("metadata").field("name");
            return Err(SnapshotError::Duplicate(self.error_at(sourced.origin, &path, text)));
        }
        Ok(())
    }

    fn check_node_names(&self) -> Result<(), SnapshotError> {
        if self.nodes.is_empty() {
            return Ok(());
        }
        let nodes: Set<&str> = self.nodes.iter().map(|node| &*node.metadata.name).collect();
        let is_dangling = |pod: &&ObjectWithOrigin<Pod>| {
            let node_name = &*pod.spec.node_name;
            !node_name.is_empty() && !nodes.contains(node_name)
        };
        let Some(pod) = self.pods.iter().find(is_dangling) else { return Ok(()) };
        let path = FieldPath::ROOT.field("spec").field("nodeName");
        let text =
            format!("expected one of the {} nodes, found {:?}", nodes.len(), &*pod.spec.node_name);
        Err(SnapshotError::Dangling(self.error_at(pod.origin, &path, text)))
    }

    /// Adds the objects of `other`, whose list begins at item `first` of ours.
    fn append(&mut self, other: Snapshot, first: u32) {
        fn join<T>(
            ours: &mut Vec<ObjectWithOrigin<T>>,
            theirs: Vec<ObjectWithOrigin<T>>,
            first: u32,
        ) {
            ours.extend(theirs.into_iter().map(|ObjectWithOrigin { object, origin }| {
                let origin = match origin.item {
                    ObjectOrigin::NO_ITEM => origin,
                    item => origin.at(first + item),
                };
                ObjectWithOrigin { object, origin }
            }));
        }
        join(&mut self.nodes, other.nodes, first);
        join(&mut self.pods, other.pods, first);
        join(&mut self.namespaces, other.namespaces, first);
        join(&mut self.services, other.services, first);
        join(&mut self.replication_controllers, other.replication_controllers, first);
        join(&mut self.replica_sets, other.replica_sets, first);
        join(&mut self.stateful_sets, other.stateful_sets, first);
        join(&mut self.deployments, other.deployments, first);
        join(&mut self.jobs, other.jobs, first);
        join(&mut self.disruption_budgets, other.disruption_budgets, first);
        join(&mut self.priority_classes, other.priority_classes, first);
        self.n_finished_pods += other.n_finished_pods;
        for (kind, n_skipped) in other.skipped {
            *self.skipped.entry(kind).or_default() += n_skipped;
        }
    }

    /// Line and column of a value of an object, or of its nearest ancestor that is written in the file. Walks
    /// the file up to there.
    pub fn locate(&self, origin: ObjectOrigin, path: &FieldPath) -> Option<(usize, usize)> {
        let document = self.documents.get(origin.document as usize)?;
        document.locate_in_part(origin.part as usize, &origin.path().join(path))
    }

    /// An error about a value of an object, with file, line and column.
    pub fn error_at(
        &self,
        origin: ObjectOrigin,
        path: &FieldPath,
        text: impl Into<String>,
    ) -> LocatedError {
        let path = origin.path().join(path);
        match self.documents.get(origin.document as usize) {
            Some(document) => document.error_in_part(origin.part as usize, path, text),
            None => {
                LocatedError { file: String::new(), line: 1, column: 1, path, text: text.into() }
            }
        }
    }
}

/// The types of values whose items cannot be read without.
type Types = Map<ObjectOrigin, TypeMeta>;

enum Failure {
    Located(LocatedError),
    /// The value is a list of this type, which was not known when its items were read.
    NeedsType(ObjectOrigin, TypeMeta),
}

fn read_all(
    documents: &[Document],
    types: &Types,
    chunk_bytes: usize,
) -> Result<Snapshot, Failure> {
    let mut loader = Loader::new();
    for (nth, document) in documents.iter().enumerate() {
        let result = match document.format() {
            _ if document.is_empty() => {
                let text = "expected Kubernetes objects, found nothing";
                Err(document.error_at(FieldPath::ROOT, text))
            }
            DocumentFormat::Json
                if types.is_empty() && split::read(&mut loader, nth, document, chunk_bytes) =>
            {
                Ok(())
            }
            DocumentFormat::Json => read_json(&mut loader, nth, document, types),
            DocumentFormat::Yaml => read_yaml(&mut loader, nth, document, types),
        };
        result.map_err(|located| failure(&mut loader, document, located))?;
    }
    Ok(loader.snapshot)
}

fn read_json(
    loader: &mut Loader,
    nth: usize,
    document: &Document,
    types: &Types,
) -> Result<(), LocatedError> {
    let Err(error) = each_json(loader, nth, document, types, quick) else { return Ok(()) };
    if loader.problem.is_some() || !error.is_data() {
        return Err(document.json_error(loader.origin.part as usize, FieldPath::ROOT, &error));
    }
    // Once more, to learn the path to the fault.
    let mut second = Loader::new();
    second.resume_at = (loader.origin.item != ObjectOrigin::NO_ITEM).then_some(loader.origin);
    let tracked =
        |part, decoder: &mut _, seed: ObjectSeed<'_>| document.json_seed(part, decoder, seed);
    each_json(&mut second, nth, document, types, tracked)?;
    Err(document.json_error(loader.origin.part as usize, FieldPath::ROOT, &error))
}

/// Decodes without watching the path.
fn quick(
    _part: usize,
    decoder: &mut JsonDecoder<'_>,
    seed: ObjectSeed<'_>,
) -> Result<(), serde_json::Error> {
    seed.deserialize(decoder)
}

fn each_json<'d, E>(
    loader: &mut Loader,
    nth: usize,
    document: &'d Document,
    types: &Types,
    take: impl Fn(usize, &mut JsonDecoder<'d>, ObjectSeed<'_>) -> Result<(), E>,
) -> Result<(), E> {
    let mut decoder = document.json_decoder();
    let mut part = 0;
    while decoder.end().is_err() {
        loader.origin = ObjectOrigin::new(nth, part);
        let implied = types.get(&loader.origin);
        take(part, &mut decoder, ObjectSeed { loader, implied, is_item: false })?;
        part += 1;
    }
    Ok(())
}

fn read_yaml(
    loader: &mut Loader,
    nth: usize,
    document: &Document,
    types: &Types,
) -> Result<(), LocatedError> {
    for (part, yaml) in document.yaml_parts().into_iter().enumerate() {
        loader.origin = ObjectOrigin::new(nth, part);
        let implied = types.get(&loader.origin);
        document.yaml_seed(part, yaml, ObjectSeed { loader, implied, is_item: false })?;
    }
    Ok(())
}

/// What to do about an error: the loader may know better than the decoder.
fn failure(loader: &mut Loader, document: &Document, located: LocatedError) -> Failure {
    let Some(problem) = loader.problem.take() else { return Failure::Located(located) };
    let origin = loader.origin;
    let part = origin.part as usize;
    if loader.needs_type
        && let Some((version, kind)) = type_of(document, part)
        && kind.len() > "List".len()
    {
        return Failure::NeedsType(origin.at(ObjectOrigin::NO_ITEM), (version, kind));
    }
    Failure::Located(document.error_in_part(part, origin.path().join(&problem.path), problem.text))
}

/// The type of a value, wherever in it that stands.
fn type_of(document: &Document, part: usize) -> Option<TypeMeta> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Typed {
        api_version: Str,
        kind: Str,
    }
    let typed: Typed = match document.format() {
        DocumentFormat::Json => {
            let text = document.json_part(part)?;
            Typed::deserialize(&mut serde_json::Deserializer::from_str(text)).ok()?
        }
        DocumentFormat::Yaml => {
            let yaml = *document.yaml_parts().get(part)?;
            document.yaml_seed(part, yaml, std::marker::PhantomData).ok()?
        }
    };
    Some((typed.api_version, typed.kind))
}

#[cfg(test)]
mod tests;
