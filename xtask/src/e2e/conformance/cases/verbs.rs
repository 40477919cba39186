//! Verbs, paths and request bodies.

use super::Table;

pub(super) const CASES: Table = &[
    ("a body of another kind", "
POST configmaps {kind: Secret, apiVersion: v1, metadata: {name: a}}
400 BadRequest"),
    ("a body of another version", "
POST configmaps {kind: ConfigMap, apiVersion: v2, metadata: {name: a}}
400 BadRequest"),
    ("a body of another namespace", "
POST configmaps {metadata: {name: a, namespace: default}}
400 BadRequest: the namespace of the provided object does not match the namespace sent on the request"),
    ("a body that is a list", "
POST configmaps [1, 2]
400 BadRequest"),
    ("no body", "
POST configmaps
400 BadRequest"),
    ("a field of another type", "
POST configmaps {metadata: {name: a}, data: {k: 1}}
400 {reason: BadRequest, message: '~cannot unmarshal number into Go struct field ConfigMap.data of type string'}"),
    ("a resource version in a create request", "
POST configmaps {metadata: {name: a, resourceVersion: '1'}}
500 {message: 'resourceVersion should not be set on objects to be created'}"),
    ("an invalid name", "
POST configmaps {metadata: {name: A_b}}
422 {reason: Invalid, details: {name: A_b, kind: ConfigMap, causes: [{field: metadata.name, reason: FieldValueInvalid}]}}"),
    ("an invalid label", "
POST configmaps {metadata: {name: a, labels: {'a b': c}}}
422 {reason: Invalid, details: {causes: [{field: metadata.labels, reason: FieldValueInvalid}]}}"),
    ("an invalid annotation", "
POST configmaps {metadata: {name: a, annotations: {'/x': c}}}
422 {reason: Invalid}"),
    ("an invalid data key", "
POST configmaps {metadata: {name: a}, data: {'a/b': c}}
422 {reason: Invalid, details: {causes: [{field: 'data[a/b]'}]}}"),
    ("a nonexistent namespace", "
POST /api/v1/namespaces/$ns-none/configmaps {metadata: {name: a}}
404 NotFound: namespaces \"$ns-none\" not found"),
    ("a nonexistent resource", "
GET /api/v1/namespaces/$ns/nothings
404 NotFound: the server could not find the requested resource"),
    ("a nonexistent version", "
GET /apis/apps/v9/namespaces/$ns/deployments
404"),
    ("a nonexistent path", "
GET /nowhere
404"),
    ("a nonexistent object", "
GET configmaps/none
404 {reason: NotFound, message: 'configmaps \"none\" not found', details: {name: none, kind: configmaps}, code: 404}"),
    ("a nonexistent object of a group", "
GET deployments/none
404 {reason: NotFound, message: 'deployments.apps \"none\" not found', details: {name: none, group: apps, kind: deployments}}"),
    ("a post to a name", "
POST configmaps/a {metadata: {name: a}}
405 MethodNotAllowed"),
    ("a put to a collection", "
PUT configmaps {metadata: {name: a}}
405 MethodNotAllowed"),
    ("a patch to a collection", "
PATCH-MERGE configmaps {metadata: {labels: {a: b}}}
405 MethodNotAllowed"),
    ("a put of a nonexistent object", "
PUT configmaps/a {metadata: {name: a, resourceVersion: '5'}}
404 NotFound"),
    ("a put creates objects of kinds that allow it", "
PUT leases/a {metadata: {name: a}, spec: {holderIdentity: h}}
201 {metadata: {uid: _, resourceVersion: $first}, spec: {holderIdentity: h}}
PUT leases/a {metadata: {name: a}, spec: {holderIdentity: i}}
422 Invalid
PUT leases/a {metadata: {name: a, resourceVersion: $first}, spec: {holderIdentity: i}}
200 {spec: {holderIdentity: i}}
PUT roles/a {metadata: {name: a}}
201"),
    ("a put without a name", "
POST configmaps {metadata: {name: a}, data: {k: v}}
201
PUT configmaps/a {data: {k: w}}
400 BadRequest
GET configmaps/a
200 {data: {k: v}}"),
    ("a negative limit is ignored", "
POST configmaps {metadata: {name: a}}
201
GET configmaps?limit=-1
200 [a]"),
    ("field selectors of services", "
POST services {metadata: {name: a}, spec: {ports: [{port: 1}]}}
201
POST services {metadata: {name: b}, spec: {clusterIP: None, ports: [{port: 1}]}}
201
GET services?fieldSelector=spec.clusterIP=None
200 [b]
GET services?fieldSelector=spec.type=ClusterIP
200 [a, b]"),
    ("a put without a resource version overwrites", "
POST configmaps {metadata: {name: a}, data: {k: v}}
201
PUT configmaps/a {metadata: {name: a}, data: {k: w}}
200 {data: {k: w}}"),
    ("a put keeps system fields", "
POST configmaps {metadata: {name: a}}
201 {metadata: {uid: $uid, creationTimestamp: $time}}
PUT configmaps/a {metadata: {name: a}, data: {k: w}}
200 {metadata: {uid: $uid, creationTimestamp: $time}}"),
    ("a put of another namespace", "
POST configmaps {metadata: {name: a}}
201
PUT configmaps/a {metadata: {name: a, namespace: default}}
400 BadRequest"),
    ("a dry run of a put", "
POST configmaps {metadata: {name: a}, data: {k: v}}
201
PUT configmaps/a?dryRun=All {metadata: {name: a}, data: {k: w}}
200 {data: {k: w}}
GET configmaps/a
200 {data: {k: v}}"),
    ("a dry run of a patch", "
POST configmaps {metadata: {name: a}, data: {k: v}}
201 {metadata: {resourceVersion: $rv}}
PATCH-MERGE configmaps/a?dryRun=All {data: {k: w}}
200 {data: {k: w}}
GET configmaps/a
200 {data: {k: v}, metadata: {resourceVersion: $rv}}"),
    ("a dry run of a deletion", "
POST configmaps {metadata: {name: a}}
201
DELETE configmaps/a?dryRun=All
200
GET configmaps/a
200"),
    ("an invalid dry run", "
POST configmaps?dryRun=Some {metadata: {name: a}}
422 Invalid"),
    ("an invalid field validation", "
POST configmaps?fieldValidation=Some {metadata: {name: a}}
422 Invalid"),
    ("status is not written with the object", "
POST pods {metadata: {name: a}, spec: {containers: [{name: c, image: i}]}, status: {phase: Running}}
201 {status: {phase: Pending}}"),
    ("a generation counts changes of the spec", "
POST deployments {metadata: {name: a}, spec: {replicas: 1, selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}]}}}}
201 {metadata: {generation: 1}}
PATCH-MERGE deployments/a {metadata: {labels: {x: y}}}
200 {metadata: {generation: 1}}
PATCH-MERGE deployments/a {spec: {replicas: 2}}
200 {metadata: {generation: 2}, spec: {replicas: 2}}"),
    ("pods have defaults", "
POST pods {metadata: {name: a}, spec: {containers: [{name: c, image: i}]}}
201 {spec: {restartPolicy: Always, dnsPolicy: ClusterFirst, schedulerName: default-scheduler, terminationGracePeriodSeconds: 30,
  enableServiceLinks: true, priority: 0, preemptionPolicy: PreemptLowerPriority, containers: [{name: c, image: i, imagePullPolicy: Always, terminationMessagePath: /dev/termination-log}]},
  status: {phase: Pending, qosClass: BestEffort}}"),
    ("deployments have defaults", "
POST deployments {metadata: {name: a}, spec: {selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}]}}}}
201 {spec: {replicas: 1, revisionHistoryLimit: 10, progressDeadlineSeconds: 600, strategy: {type: RollingUpdate, rollingUpdate: {maxSurge: 25%, maxUnavailable: 25%}}}}"),
    ("services have defaults", "
POST services {metadata: {name: a}, spec: {ports: [{port: 80}]}}
201 {spec: {type: ClusterIP, sessionAffinity: None, clusterIP: _, ports: [{port: 80, protocol: TCP, targetPort: 80}]}}"),
    ("jobs have defaults", "
POST jobs {metadata: {name: a}, spec: {template: {spec: {restartPolicy: Never, containers: [{name: c, image: i}]}}}}
201 {spec: {completions: 1, parallelism: 1, backoffLimit: 6, completionMode: NonIndexed, suspend: false, selector: {matchLabels: {batch.kubernetes.io/controller-uid: $uid}}}, metadata: {uid: $uid}}"),
    ("stringData of secrets is encoded", "
POST secrets {metadata: {name: a}, stringData: {k: hello}}
201 {data: {k: aGVsbG8=}, stringData: ABSENT, type: Opaque}"),
    ("quantities are canonicalized", "
POST pods {metadata: {name: a}, spec: {containers: [{name: c, image: i, resources: {requests: {cpu: '0.5', memory: 1024Mi}}}]}}
201 {spec: {containers: [{resources: {requests: {cpu: 500m, memory: 1Gi}}}]}, status: {qosClass: Burstable}}"),
    ("a pod without containers", "
POST pods {metadata: {name: a}, spec: {}}
422 {reason: Invalid, details: {kind: Pod, name: a, causes: [{field: spec.containers, reason: FieldValueRequired}]}}"),
    ("duplicate container names", "
POST pods {metadata: {name: a}, spec: {containers: [{name: c, image: i}, {name: c, image: i}]}}
422 {reason: Invalid, details: {causes: [{field: 'spec.containers[1].name', reason: FieldValueDuplicate}]}}"),
    ("a limit below its request", "
POST pods {metadata: {name: a}, spec: {containers: [{name: c, image: i, resources: {requests: {cpu: 2}, limits: {cpu: 1}}}]}}
422 {reason: Invalid, details: {causes: [{field: 'spec.containers[0].resources.requests', reason: FieldValueInvalid}]}}"),
    ("a nonexistent priority class", "
POST pods {metadata: {name: a}, spec: {priorityClassName: $ns-none, containers: [{name: c, image: i}]}}
403 Forbidden"),
    ("the priority is set from the priority class", "
POST priorityclasses {metadata: {name: $ns-high}, value: 77}
201
POST pods {metadata: {name: a}, spec: {priorityClassName: $ns-high, containers: [{name: c, image: i}]}}
201 {spec: {priority: 77}}"),
    ("a selector that does not select its template", "
POST deployments {metadata: {name: a}, spec: {selector: {matchLabels: {a: c}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}]}}}}
422 {reason: Invalid, details: {causes: [{field: spec.template.metadata.labels, reason: FieldValueInvalid}]}}"),
    ("a namespace has its phase and finalizer", "
POST namespaces {metadata: {name: $ns-b}}
201 {spec: {finalizers: [kubernetes]}, status: {phase: Active}, metadata: {labels: {kubernetes.io/metadata.name: $ns-b}}}"),
    ("health and version", "
GET /healthz
200
GET /readyz
200
GET /livez
200
GET /version
200 {major: '1', minor: '36', gitVersion: ~v1.36}"),
    ("discovery names the groups", "
GET /api
200 {kind: APIVersions, versions: [v1]}
GET /apis/apps
200 {kind: APIGroup, name: apps, preferredVersion: {groupVersion: apps/v1, version: v1}}
GET /apis/apps/v1
200 {kind: APIResourceList, groupVersion: apps/v1}
GET /apis/none.example.com
404"),
];
