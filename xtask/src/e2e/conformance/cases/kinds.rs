//! Tests of every kind: verbs, patches, watches, finalizers, tables.

use crate::e2e::conformance::case::{Case, case, is_cluster_scoped};

/// Resource, kind, and the minimal fields of a valid object besides its name.
const KINDS: &[(&str, &str, &str)] = &[
    ("configmaps", "ConfigMap", "data: {k: v}"),
    ("secrets", "Secret", "stringData: {k: v}"),
    ("pods", "Pod", "spec: {containers: [{name: c, image: i}]}"),
    ("services", "Service", "spec: {ports: [{port: 80}]}"),
    ("serviceaccounts", "ServiceAccount", ""),
    ("endpoints", "Endpoints", ""),
    ("limitranges", "LimitRange", "spec: {limits: []}"),
    ("resourcequotas", "ResourceQuota", "spec: {hard: {pods: '5'}}"),
    (
        "persistentvolumeclaims",
        "PersistentVolumeClaim",
        "spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}",
    ),
    (
        "persistentvolumes",
        "PersistentVolume",
        "spec: {accessModes: [ReadWriteOnce], capacity: {storage: 1Gi}, hostPath: {path: /x}}",
    ),
    ("podtemplates", "PodTemplate", "template: {spec: {containers: [{name: c, image: i}]}}"),
    (
        "replicationcontrollers",
        "ReplicationController",
        "spec: {selector: {a: b}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}]}}}",
    ),
    ("nodes", "Node", ""),
    ("deployments", "Deployment", WORKLOAD),
    ("replicasets", "ReplicaSet", WORKLOAD),
    ("daemonsets", "DaemonSet", WORKLOAD),
    ("statefulsets", "StatefulSet", WORKLOAD),
    ("controllerrevisions", "ControllerRevision", "revision: 1, data: {a: b}"),
    (
        "jobs",
        "Job",
        "spec: {template: {spec: {restartPolicy: Never, containers: [{name: c, image: i}]}}}",
    ),
    (
        "cronjobs",
        "CronJob",
        "spec: {schedule: '* * * * *', jobTemplate: {spec: {template: {spec: {restartPolicy: Never, containers: [{name: c, image: i}]}}}}}",
    ),
    (
        "poddisruptionbudgets",
        "PodDisruptionBudget",
        "spec: {minAvailable: 1, selector: {matchLabels: {a: b}}}",
    ),
    ("priorityclasses", "PriorityClass", "value: 7"),
    ("storageclasses", "StorageClass", "provisioner: example.com/p"),
    ("csidrivers", "CSIDriver", ""),
    ("csinodes", "CSINode", "spec: {drivers: []}"),
    (
        "volumeattachments",
        "VolumeAttachment",
        "spec: {attacher: example.com, nodeName: n, source: {persistentVolumeName: p}}",
    ),
    ("csistoragecapacities", "CSIStorageCapacity", "storageClassName: s"),
    ("leases", "Lease", "spec: {holderIdentity: me}"),
    ("endpointslices", "EndpointSlice", "addressType: IPv4, endpoints: []"),
    ("runtimeclasses", "RuntimeClass", "handler: runc"),
    ("roles", "Role", "rules: [{apiGroups: [''], resources: [pods], verbs: [get]}]"),
    ("clusterroles", "ClusterRole", "rules: [{apiGroups: [''], resources: [pods], verbs: [get]}]"),
    (
        "rolebindings",
        "RoleBinding",
        "roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: view}",
    ),
    (
        "clusterrolebindings",
        "ClusterRoleBinding",
        "roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: view}",
    ),
    ("networkpolicies", "NetworkPolicy", "spec: {podSelector: {}}"),
    ("ingresses", "Ingress", "spec: {defaultBackend: {service: {name: s, port: {number: 80}}}}"),
    ("ingressclasses", "IngressClass", "spec: {controller: example.com/c}"),
    (
        "horizontalpodautoscalers",
        "HorizontalPodAutoscaler",
        "spec: {maxReplicas: 3, scaleTargetRef: {kind: Deployment, name: d, apiVersion: apps/v1}}",
    ),
    ("deviceclasses", "DeviceClass", "spec: {}"),
    ("resourceclaims", "ResourceClaim", "spec: {}"),
    ("resourceclaimtemplates", "ResourceClaimTemplate", "spec: {spec: {}}"),
];

const WORKLOAD: &str = "spec: {selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}]}}}";

/// Admission adds a protection finalizer to objects of these resources.
const PROTECTED: &[&str] = &["persistentvolumeclaims", "persistentvolumes"];

/// The scripts for each kind; `RES` is the resource, `KIND` the kind, `N` an object's name, `BODY(x)` a manifest of that name.
const SCRIPTS: &[(&str, &str)] = &[
    (
        "is created, read, listed and deleted",
        "
POST RES BODY(N)
201 {kind: KIND, apiVersion: _, metadata: {name: N, uid: $uid, resourceVersion: $rv, creationTimestamp: _}}
GET RES/N
200 {kind: KIND, metadata: {uid: $uid, resourceVersion: $rv}}
GET RES?labelSelector=case=$ns
200 {kind: KINDList, metadata: {resourceVersion: _}, items: [{metadata: {uid: $uid}}]}
DELETE RES/N?propagationPolicy=Background
200
GET RES/N
404 NotFound
DELETE RES/N
404 NotFound",
    ),
    (
        "cannot be created twice",
        "
POST RES BODY(N)
201
POST RES BODY(N)
409 AlreadyExists",
    ),
    (
        "is not created by a dry run",
        "
POST RES?dryRun=All BODY(N)
201 {metadata: {name: N, uid: _}}
GET RES/N
404 NotFound",
    ),
    (
        "gets a generated name",
        "
POST RES {metadata: {generateName: N-, labels: {case: $ns}}REST}
201 {metadata: {name: ~N-, generateName: N-}}",
    ),
    (
        "needs a name",
        "
POST RES {metadata: {labels: {case: $ns}}REST}
422 Invalid",
    ),
    (
        "rejects unknown fields with strict validation",
        "
POST RES?fieldValidation=Strict {metadata: {name: N}, surprise: 1REST}
400 {reason: BadRequest, message: '~unknown field \"surprise\"'}
POST RES?fieldValidation=Ignore {metadata: {name: N}, surprise: 1REST}
201 {surprise: ABSENT}",
    ),
    (
        "is updated only with the current resource version",
        "
POST RES BODY(N)
201 $first
PUT RES/N $first + {metadata: {labels: {new: label}}}
200 {metadata: {labels: {new: label, case: $ns}}}
PUT RES/N $first + {metadata: {labels: {other: label}}}
409 Conflict
PUT RES/N $first + {metadata: {resourceVersion: '1'}}
409 Conflict",
    ),
    (
        "is not written by a no-op update",
        "
POST RES BODY(N)
201 {metadata: {resourceVersion: $rv}}
GET RES/N
200 $same
PUT RES/N $same
200 {metadata: {resourceVersion: $rv}}
PATCH-MERGE RES/N {metadata: {labels: {case: $ns}}}
200 {metadata: {resourceVersion: $rv}}",
    ),
    (
        "is not renamed",
        "
POST RES BODY(N)
201 $first
PUT RES/N $first + {metadata: {name: N-other}}
400 BadRequest
PUT RES/N $first + {metadata: {uid: other}}
409 Conflict",
    ),
    (
        "is patched in three ways",
        "
POST RES BODY(N)
201 {metadata: {resourceVersion: $first}}
PATCH-MERGE RES/N {metadata: {labels: {one: a}, annotations: {note: x}}}
200 {metadata: {labels: {one: a, case: $ns}, annotations: {note: x}, resourceVersion: $second}}
PATCH-STRATEGIC RES/N {metadata: {labels: {two: b, one: null}}}
200 {metadata: {labels: {two: b, one: ABSENT}, resourceVersion: $third}}
PATCH-JSON RES/N [{op: test, path: /metadata/labels/two, value: b}, {op: replace, path: /metadata/labels/two, value: c}, {op: remove, path: /metadata/annotations/note}]
200 {metadata: {labels: {two: c}}}
ASSERT $first < $second
ASSERT $second < $third
PATCH-MERGE RES/N {metadata: {resourceVersion: $first, labels: {three: d}}}
409 Conflict
PATCH-MERGE RES/N-missing {metadata: {labels: {one: a}}}
404 NotFound",
    ),
    (
        "sends watch events",
        "
GET RES?labelSelector=case=$ns
200 {metadata: {resourceVersion: $rv}}
POST RES BODY(N)
201 {metadata: {uid: $uid}}
PATCH-MERGE RES/N {metadata: {labels: {one: a}}}
200 {metadata: {resourceVersion: $second}}
WATCH RES?labelSelector=case=$ns&resourceVersion=$rv
ADDED N {kind: KIND, metadata: {uid: $uid}}
MODIFIED N {metadata: {labels: {one: a}, resourceVersion: $second}}
WATCH RES?labelSelector=case=$ns&resourceVersion=$second
END",
    ),
    (
        "sends a watch event when it is deleted",
        "
POST RES BODY(N)
201 {metadata: {resourceVersion: $rv}}
DELETE RES/N?propagationPolicy=Background&gracePeriodSeconds=0
200
WATCH RES?labelSelector=case=$ns&resourceVersion=$rv
DELETION",
    ),
    (
        "is listed page by page",
        "
POST RES BODY(N-a)
201
POST RES BODY(N-b)
201
POST RES BODY(N-c)
201
GET RES?labelSelector=case=$ns&limit=2
200 {metadata: {continue: $more, resourceVersion: $rv}, items: [{metadata: {name: N-a}}, {metadata: {name: N-b}}]}
GET RES?labelSelector=case=$ns&limit=2&continue=$more
200 {metadata: {continue: ABSENT, resourceVersion: $rv}, items: [{metadata: {name: N-c}}]}",
    ),
    (
        "goes with its collection",
        "
POST RES BODY(N-a)
201
POST RES BODY(N-b)
201
DELETE RES?labelSelector=case=$ns&propagationPolicy=Background
200
GET RES?labelSelector=case=$ns
200 []",
    ),
    (
        "stays while a finalizer holds it",
        "
POST RES {metadata: {name: N, labels: {case: $ns}, finalizers: [example.com/hold]}REST}
201 {metadata: {deletionTimestamp: ABSENT}}
DELETE RES/N?propagationPolicy=Background
200
GET RES/N
200 {metadata: {deletionTimestamp: _, finalizers: _}}
PATCH-MERGE RES/N {metadata: {finalizers: null}}
200
GET RES/N
404 NotFound",
    ),
    (
        "is deleted only if preconditions match",
        "
POST RES BODY(N)
201 {metadata: {uid: $uid, resourceVersion: $rv}}
DELETE RES/N {preconditions: {uid: other}, propagationPolicy: Background}
409 Conflict
DELETE RES/N {preconditions: {resourceVersion: '1'}, propagationPolicy: Background}
409 Conflict
DELETE RES/N {preconditions: {uid: $uid, resourceVersion: $rv}, propagationPolicy: Background}
200
GET RES/N
404 NotFound",
    ),
    (
        "has a table and partial metadata",
        "
POST RES BODY(N)
201 {metadata: {uid: $uid}}
TABLE RES?labelSelector=case=$ns
200 {kind: Table, columnDefinitions: _, rows: [{cells: _, object: {kind: PartialObjectMetadata, metadata: {name: N, uid: $uid}}}]}
META RES/N
200 {kind: PartialObjectMetadata, apiVersion: meta.k8s.io/v1, metadata: {name: N, uid: $uid}, spec: ABSENT}
META-LIST RES?labelSelector=case=$ns
200 {kind: PartialObjectMetadataList, items: [{metadata: {uid: $uid}}]}",
    ),
];

/// The cases of all kinds.
pub fn cases() -> impl Iterator<Item = Case> {
    KINDS.iter().flat_map(|&(resource, kind, rest)| {
        SCRIPTS
            .iter()
            .filter(move |(what, _)| !(resource == "limitranges" && *what == "needs a name"))
            .filter(move |(_, script)| !(PROTECTED.contains(&resource) && expects_deletion(script)))
            .map(move |(what, script)| {
                case(&format!("{resource}: {what}"), &fill_template(script, resource, kind, rest))
            })
    })
}

/// Such scripts expect that the object is deleted, or not changed by admission.
fn expects_deletion(script: &str) -> bool {
    ["DELETE RES", "finalizers: null", "PUT RES/N $same"].iter().any(|it| script.contains(it))
}

fn fill_template(script: &str, resource: &str, kind: &str, rest: &str) -> String {
    let rest = if rest.is_empty() { String::new() } else { format!(", {rest}") };
    let name = if is_cluster_scoped(resource) { "$ns-o" } else { "o" };
    let mut text = String::new();
    let mut left = script;
    while let Some((before, after)) = left.split_once("BODY(") {
        let (body_name, after) = after.split_once(')').unwrap_or((after, ""));
        text.push_str(before);
        text.push_str(&format!("{{metadata: {{name: {body_name}, labels: {{case: $ns}}}}REST}}"));
        left = after;
    }
    text.push_str(left);
    let words = text.replace("REST}", &format!("{rest}}}")).replace("RES", resource);
    // Pods get a deletion timestamp before they are deleted.
    let deletion = if resource == "pods" { "MODIFIED N\nDELETED N" } else { "DELETED N" };
    let words = words.replace("KIND", kind).replace("DELETION", deletion);
    // `N` as a separate word, or as the prefix of a name.
    let mut named = String::with_capacity(words.len());
    let letters: Vec<char> = words.chars().collect();
    for (at, letter) in letters.iter().enumerate() {
        let before = at.checked_sub(1).map(|it| letters[it]);
        let after = letters.get(at + 1);
        let starts = before.is_none_or(|it| matches!(it, ' ' | '/' | '~'));
        let ends = after.is_none_or(|it| matches!(it, ' ' | ',' | '}' | '-' | '?' | '\n'));
        if *letter == 'N' && starts && ends { named.push_str(name) } else { named.push(*letter) }
    }
    named
}
