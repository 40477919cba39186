//! Pods are decoded by their parts: specs, labels and owners once for all pods in which they are equal in what is read.
//!
//! The specs of the pods of one controller differ as bytes: the token volume of each has a random name, which every container mounts.
//! What is read of them is copied, which takes a fraction of the time that decoding takes, and looked up.

use std::cell::RefCell;

use loadmaster_stdx::Map;
use prost::Message;

use super::wire::{self, Field, Fields};
use super::{ProtoError, convert, messages};
use crate::interned_str::Str;
use crate::meta::{Labels, ObjectMeta, OwnerReference, Timestamp};
use crate::pod::{Pod, PodStatus};
use crate::pod_spec::{InternedPodSpec, PodSpec};

/// Decodes the message of a pod.
pub(super) fn decode(raw: &[u8]) -> Result<Pod, ProtoError> {
    if let Some(pod) = decode_parts(raw) {
        return Ok(pod);
    }
    // Unusual, or malformed: then the error says where.
    super::from_message(raw, convert::pod)
}

/// The pod; `None` if it is malformed, or a part occurs twice.
fn decode_parts(raw: &[u8]) -> Option<Pod> {
    let [mut metadata, mut spec, mut status] = [None; 3];
    let mut fields = Fields(raw);
    while let Some((number, field)) = fields.next().ok()? {
        let part = match number {
            1 => &mut metadata,
            2 => &mut spec,
            3 => &mut status,
            _ => continue,
        };
        let Field::Bytes(bytes) = field else { return None };
        if part.replace(bytes).is_some() {
            return None;
        }
    }
    let status = decode_status(status.unwrap_or_default())?;
    KNOWN.with_borrow_mut(|known| {
        Some(Pod {
            metadata: known.metadata(metadata.unwrap_or_default())?,
            spec: known.spec(spec.unwrap_or_default())?,
            status,
            extra: None,
        })
    })
}

/// The status, which of a pod that is not assigned most often has two texts and nothing else that is read.
fn decode_status(raw: &[u8]) -> Option<PodStatus> {
    let (mut phase, mut nominated_node_name) = ("", "");
    let mut fields = Fields(raw);
    while let Some((number, field)) = fields.next().ok()? {
        match (number, field) {
            (1, Field::Bytes(bytes)) => phase = wire::text(bytes).ok()?,
            (11, Field::Bytes(bytes)) => nominated_node_name = wire::text(bytes).ok()?,
            // What is not read but always written: message, reason, addresses, QoS class, state of a resize, and observed generation.
            (3..=6 | 9 | 14 | 17, _) => {}
            _ => {
                let message = messages::PodStatus::decode(raw).ok()?;
                return convert::pod_status(Some(message)).ok();
            }
        }
    }
    let [phase, nominated_node_name] = [phase, nominated_node_name].map(Str::new);
    Some(PodStatus { phase, nominated_node_name, ..PodStatus::default() })
}

/// The time in this message, if there is one.
fn decode_time(raw: Option<&[u8]>) -> Option<Option<Timestamp>> {
    let message = raw.map(messages::Time::decode).transpose().ok()?;
    convert::time(message).ok()
}

/// Number of bytes of the messages of one kind that a thread remembers before it starts over.
const KNOWN_BYTES_MAX: usize = 2 << 20;

/// What was decoded before, by what is read of the message.
struct Known<T> {
    by_message: Map<Box<[u8]>, T>,
    n_bytes: usize,
}

impl<T> Default for Known<T> {
    fn default() -> Self {
        Known { by_message: Map::default(), n_bytes: 0 }
    }
}

impl<T: Clone> Known<T> {
    /// What `decode` makes of this message; `None` if it is malformed.
    fn get(&mut self, message: &[u8], decode: impl Fn(&[u8]) -> Option<T>) -> Option<T> {
        if let Some(known) = self.by_message.get(message) {
            return Some(known.clone());
        }
        let decoded = decode(message)?;
        self.n_bytes += message.len();
        if self.n_bytes > KNOWN_BYTES_MAX {
            (self.n_bytes, self.by_message) = (message.len(), Map::default());
        }
        self.by_message.insert(message.into(), decoded.clone());
        Some(decoded)
    }
}

/// The parts of pods that were decoded before.
#[derive(Default)]
struct KnownParts {
    specs: Known<InternedPodSpec>,
    labels: Known<Labels>,
    owners: Known<Vec<OwnerReference>>,
    /// Scratch space: what is read of the message that is decoded now, in parts.
    read: [Vec<u8>; 2],
}

thread_local! {
    static KNOWN: RefCell<KnownParts> = RefCell::default();
}

impl KnownParts {
    /// The metadata; `None` if it is malformed.
    fn metadata(&mut self, raw: &[u8]) -> Option<ObjectMeta> {
        let KnownParts { labels: known_labels, owners: known_owners, read, .. } = self;
        read.iter_mut().for_each(Vec::clear);
        let [labels, owners] = read;
        let (mut name, mut namespace, mut uid) = ("", "", "");
        let (mut is_named_in_labels, mut generation) = (false, 0);
        let (mut created, mut deleted) = (None, None);
        let mut fields = Fields(raw);
        while let Some((number, field, bytes)) = fields.next_with_bytes().ok()? {
            // The fields of `messages::ObjectMeta`.
            match (number, field) {
                (1, Field::Bytes(bytes)) => name = wire::text(bytes).ok()?,
                (3, Field::Bytes(bytes)) => namespace = wire::text(bytes).ok()?,
                (5, Field::Bytes(bytes)) => uid = wire::text(bytes).ok()?,
                (7, Field::Number(number)) => generation = number as i64,
                (8, Field::Bytes(time)) if created.is_none() => created = Some(time),
                (9, Field::Bytes(time)) if deleted.is_none() => deleted = Some(time),
                (11, Field::Bytes(_)) => {
                    labels.extend_from_slice(bytes);
                    is_named_in_labels |= !name.is_empty() && bytes.ends_with(name.as_bytes());
                }
                (13, Field::Bytes(_)) => owners.extend_from_slice(bytes),
                // Malformed, or a time that occurs twice.
                (1 | 3 | 5 | 7 | 8 | 9 | 11 | 13, _) => return None,
                _ => {}
            }
        }
        let decode = |bytes: &[u8]| {
            let message = messages::ObjectMeta::decode(bytes).ok()?;
            convert::metadata(Some(message)).ok()
        };
        let decode_labels = |bytes: &[u8]| decode(bytes).map(|it| it.labels);
        Some(ObjectMeta {
            name: name.into(),
            namespace: Str::new(namespace),
            uid: uid.into(),
            // A label with the pod's name, such as those of a StatefulSet: no other pod has these labels.
            labels: match is_named_in_labels {
                true => decode_labels(labels)?,
                false => known_labels.get(labels, decode_labels)?,
            },
            owner_references: known_owners
                .get(owners, |bytes| decode(bytes).map(|it| it.owner_references))?,
            generation,
            creation_timestamp: decode_time(created)?,
            deletion_timestamp: decode_time(deleted)?,
        })
    }

    /// The spec; `None` if it is malformed.
    fn spec(&mut self, raw: &[u8]) -> Option<PodSpec> {
        let [read, read_of_container] = &mut self.read;
        read.clear();
        let node_name = copy_spec(raw, read, read_of_container)?;
        let shared = self.specs.get(read, |bytes| {
            let message = messages::PodSpec::decode(bytes).ok()?;
            convert::pod_spec(message).ok().map(|spec| spec.shared)
        })?;
        Some(PodSpec { node_name: Str::new(node_name), shared })
    }
}

/// Copies the message of a spec without `nodeName`, which it returns, and without fields that are not read and differ from pod to pod. `None`
/// if the message is malformed.
fn copy_spec<'a>(
    raw: &'a [u8],
    read: &mut Vec<u8>,
    read_of_container: &mut Vec<u8>,
) -> Option<&'a str> {
    let mut node_name = "";
    let mut fields = Fields(raw);
    while let Some((number, field, bytes)) = fields.next_with_bytes().ok()? {
        match (number, field) {
            (1, Field::Bytes(volume)) if !is_read_volume(volume)? => {}
            (2 | 20, Field::Bytes(container)) => {
                read_of_container.clear();
                copy_container(container, read_of_container)?;
                wire::put_message(number, read_of_container, read);
            }
            (10, Field::Bytes(name)) => node_name = wire::text(name).ok()?,
            (10, _) => return None,
            // The hostname and subdomain of a StatefulSet's pods.
            (16 | 17, _) => {}
            _ => read.extend_from_slice(bytes),
        }
    }
    Some(node_name)
}

/// Copies the message of a container without its environment and the mounts of its volumes.
fn copy_container(raw: &[u8], read: &mut Vec<u8>) -> Option<()> {
    let mut fields = Fields(raw);
    while let Some((number, _, bytes)) = fields.next_with_bytes().ok()? {
        if !matches!(number, 7 | 9) {
            read.extend_from_slice(bytes);
        }
    }
    Some(())
}

/// Whether a volume has a source that is read.
fn is_read_volume(raw: &[u8]) -> Option<bool> {
    let mut fields = Fields(raw);
    let mut is_read = false;
    while let Some(field) = fields.next().ok()? {
        match field {
            (1, Field::Bytes(name)) => _ = wire::text(name).ok()?,
            (2, Field::Bytes(source)) => {
                let mut sources = Fields(source);
                // The sources of `messages::VolumeSource`.
                while let Some((number, _)) = sources.next().ok()? {
                    is_read |=
                        matches!(number, 3 | 4 | 8 | 10 | 11 | 13 | 18 | 20 | 22 | 24 | 28..=30);
                }
            }
            (1 | 2, _) => return None,
            _ => {}
        }
    }
    Some(is_read)
}

#[cfg(test)]
mod tests {
    use super::super::tests::decode_changed;
    use super::*;

    /// A field that is a message or a text.
    fn field(number: u32, content: impl AsRef<[u8]>) -> Vec<u8> {
        let mut field = Vec::new();
        wire::put_message(number, content.as_ref(), &mut field);
        field
    }

    /// A pod of a StatefulSet as the API server sends it.
    fn pod(ordinal: u64, node_name: &str) -> Vec<u8> {
        let (name, token) = (format!("db-{ordinal}"), format!("kube-api-access-{ordinal}"));
        let mount = [field(1, &token), field(3, "/var/run/secrets")].concat();
        let variable = [field(1, "POD"), field(2, &name)].concat();
        let amount = [field(1, "cpu"), field(2, field(1, "100m"))].concat();
        let container = [
            field(1, "c"),
            field(2, "registry.example/db:1"),
            field(7, variable),
            field(8, field(2, amount)),
            field(9, mount),
            field(14, "IfNotPresent"),
        ];
        let projected = [field(1, &token), field(2, field(26, ""))].concat();
        let claim = [field(1, "data"), field(2, field(10, field(1, "data-db")))].concat();
        let spec = [
            field(1, projected),
            field(1, claim),
            field(2, container.concat()),
            field(10, node_name),
            field(16, &name),
            field(17, "db"),
            field(19, "default-scheduler"),
            // priority: 7
            vec![25 << 3 & 0x7f | 0x80, 1, 7],
        ];
        let label = |key: &str, value: &str| field(11, [field(1, key), field(2, value)].concat());
        let owner = [field(1, "StatefulSet"), field(3, "db"), field(4, "u"), field(5, "apps/v1")];
        let metadata = [
            field(1, &name),
            field(3, "shop"),
            field(5, format!("uid-{ordinal}")),
            // generation: 2
            vec![7 << 3, 2],
            field(8, [1 << 3, 17]),
            if ordinal == 1 { field(9, [1 << 3, 99]) } else { Vec::new() },
            label("app", "db"),
            label("statefulset.kubernetes.io/pod-name", if ordinal == 0 { "" } else { &name }),
            field(12, [field(1, "note"), field(2, &token)].concat()),
            field(13, owner.concat()),
            field(17, field(1, "kube-controller-manager")),
        ];
        let mut status = [
            field(1, "Pending"),
            [3, 4, 5, 6].map(|number| field(number, "")).concat(),
            field(9, "Burstable"),
            field(11, node_name),
            field(14, ""),
            // observedGeneration: 0
            vec![17 << 3 & 0x7f | 0x80, 1, 0],
        ]
        .concat();
        if ordinal == 1 {
            status.extend(field(2, [field(1, "PodScheduled"), field(2, "False")].concat()));
        }
        [field(1, metadata.concat()), field(2, spec.concat()), field(3, status)].concat()
    }

    /// Whether both ways decode these bytes, and then to the same pod; else both fail with the same error.
    #[track_caller]
    fn check(raw: &[u8]) -> bool {
        let wanted = super::super::from_message(raw, convert::pod);
        assert_eq!(decode(raw), wanted, "{raw:?}");
        wanted.is_ok()
    }

    #[test]
    fn pods_are_decoded_as_a_whole_message_is() {
        assert!(check(&[]));
        // The second is terminating, and has a condition.
        for raw in [pod(0, "node-1"), pod(1, "")] {
            assert!(check(&raw));
            // A part that occurs twice, of which the second has a field of its own.
            assert!(check(&[&raw[..], &field(2, field(24, "high"))].concat()));
            let n_decoded = decode_changed(&raw, 20_000, check);
            assert!((2_000..18_000).contains(&n_decoded), "{n_decoded}");
        }
    }

    #[test]
    fn fields_that_occur_twice() {
        let twice = |field: Vec<u8>| [&field[..], &field[..]].concat();
        let times = [field(8, [1 << 3, 17]), field(8, [])].concat();
        for metadata in [times, twice(field(9, [1 << 3, 17])), twice(field(1, "a"))] {
            assert!(check(&field(1, metadata)));
        }
        assert!(check(&field(3, [field(1, "Pending"), field(1, "Running")].concat())));
        assert!(check(&field(3, [field(11, "a"), field(11, "")].concat())));
    }

    #[test]
    fn labels_with_the_name_of_the_pod_are_not_remembered() {
        let n_known = || KNOWN.with_borrow(|known| known.labels.by_message.len());
        assert!(check(&pod(0, "")));
        assert_eq!(n_known(), 1);
        assert!((1..9).all(|ordinal| check(&pod(ordinal, ""))));
        assert_eq!(n_known(), 1);
    }

    #[test]
    fn pods_of_one_controller_share_their_spec() {
        let of = |ordinal, node_name| decode(&pod(ordinal, node_name)).unwrap();
        let (first, second) = (of(1, ""), of(2, "node-1"));
        assert_eq!(first.metadata.owner_references, second.metadata.owner_references);
        assert_eq!(first.metadata.labels.len(), 2);
        let (first, second) = (first.spec, second.spec);
        assert_eq!((first.node_name.as_str(), second.node_name.as_str()), ("", "node-1"));
        assert!(std::ptr::eq(&*first.shared, &*second.shared));
        assert_eq!(first.volumes.len(), 1, "the claim");
        assert_eq!(first.priority, Some(7));
        assert_eq!(first.containers[0].resources.requests.len(), 1);
    }

    #[test]
    fn more_specs_than_are_remembered() {
        let long = "i".repeat(KNOWN_BYTES_MAX / 8);
        let check = |nth: u32| {
            let image = format!("{long}:{nth}");
            let pod = decode(&field(2, field(2, field(2, &image)))).unwrap();
            assert_eq!(pod.spec.containers[0].image, image.as_str());
            KNOWN.with_borrow(|known| assert!(known.specs.n_bytes <= KNOWN_BYTES_MAX));
        };
        (0..20).chain([0]).for_each(check);
    }
}
