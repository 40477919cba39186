//! Status, scale, binding, eviction, token.

use super::Table;

pub(super) const CASES: Table = &[
    ("status is written separately", "
POST deployments {metadata: {name: a}, spec: {replicas: 2, selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}]}}}}
201 {metadata: {generation: 1}}
PATCH-MERGE deployments/a/status {status: {replicas: 2, observedGeneration: 1}, spec: {replicas: 9}}
200 {status: {replicas: 2}, spec: {replicas: 2}, metadata: {generation: 1}}
PATCH-MERGE deployments/a {status: {replicas: 7}, spec: {replicas: 3}}
200 {status: {replicas: 2}, spec: {replicas: 3}, metadata: {generation: 2}}
GET deployments/a/status
200 {kind: Deployment, status: {replicas: 2}}"),
    ("a status with an old resource version", "
POST pods {metadata: {name: a}, spec: {containers: [{name: c, image: i}]}}
201 $seen
PATCH-MERGE pods/a/status {status: {message: hello}}
200
PUT pods/a/status $seen + {status: {message: bye}}
409 Conflict"),
    ("conditions by type", "
POST pods {metadata: {name: a}, spec: {containers: [{name: c, image: i}]}}
201
PATCH-STRATEGIC pods/a/status {status: {conditions: [{type: PodScheduled, status: 'False', reason: Unschedulable}]}}
200 {status: {conditions: [{type: PodScheduled, reason: Unschedulable}]}}
PATCH-STRATEGIC pods/a/status {status: {conditions: [{type: PodScheduled, status: 'True', reason: null}]}}
200 {status: {conditions: [{type: PodScheduled, status: 'True', reason: ABSENT}]}}"),
    ("a kind without status", "
GET configmaps/a/status
404"),
    ("scale reads and writes replicas", "
POST deployments {metadata: {name: a}, spec: {replicas: 2, selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}]}}}}
201
GET deployments/a/scale
200 {kind: Scale, apiVersion: autoscaling/v1, spec: {replicas: 2}, status: {replicas: 0, selector: a=b}, metadata: {name: a, namespace: $ns}}
PATCH-MERGE deployments/a/scale {spec: {replicas: 5}}
200 {kind: Scale, spec: {replicas: 5}}
GET deployments/a
200 {spec: {replicas: 5}, metadata: {generation: 2}}"),
    ("scale with a put", "
POST replicasets {metadata: {name: a}, spec: {replicas: 2, selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}]}}}}
201
GET replicasets/a/scale
200 $scale
PUT replicasets/a/scale $scale + {spec: {replicas: 0}}
200 {spec: {replicas: ABSENT}}
PUT replicasets/a/scale $scale + {spec: {replicas: 3}}
409 Conflict"),
    ("a scale of another workload", "
POST deployments {metadata: {name: a}, spec: {selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}]}}}}
201
PUT deployments/a/scale {metadata: {name: a, namespace: $ns, uid: other}, spec: {replicas: 2}}
409 Conflict
PUT deployments/a/scale {metadata: {name: b, namespace: $ns}, spec: {replicas: 2}}
400 BadRequest
GET deployments/a/scale
200 {spec: {replicas: 1}}"),
    ("a negative scale", "
POST deployments {metadata: {name: a}, spec: {selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}]}}}}
201
PATCH-MERGE deployments/a/scale {spec: {replicas: -1}}
422 Invalid"),
    ("a binding assigns a pod to a node", "
POST pods {metadata: {name: a}, spec: {containers: [{name: c, image: i}]}}
201 {metadata: {uid: $uid}}
POST pods/a/binding {metadata: {name: a}, target: {kind: Node, name: n}}
201 {kind: Status, status: Success}
GET pods/a
200 {spec: {nodeName: n}, status: {conditions: [{type: PodScheduled, status: 'True'}]}}
POST pods/a/binding {metadata: {name: a}, target: {kind: Node, name: m}}
409 {reason: Conflict, message: '~is already assigned to node'}"),
    ("a binding through the collection", "
POST pods {metadata: {name: a}, spec: {containers: [{name: c, image: i}]}}
201
POST /api/v1/namespaces/$ns/bindings {metadata: {name: a}, target: {kind: Node, name: n}}
201
GET pods/a
200 {spec: {nodeName: n}}"),
    ("a binding for another uid", "
POST pods {metadata: {name: a}, spec: {containers: [{name: c, image: i}]}}
201
POST pods/a/binding {metadata: {name: a, uid: other}, target: {kind: Node, name: n}}
409 Conflict"),
    ("a binding of a nonexistent pod", "
POST pods/a/binding {metadata: {name: a}, target: {kind: Node, name: n}}
404 NotFound"),
    ("a binding without a target", "
POST pods {metadata: {name: a}, spec: {containers: [{name: c, image: i}]}}
201
POST pods/a/binding {metadata: {name: a}, target: {kind: Node, name: ''}}
500 {message: 'target.name: Required value'}"),
    ("a gated pod is not bound", "
POST pods {metadata: {name: a}, spec: {schedulingGates: [{name: example.com/x}], containers: [{name: c, image: i}]}}
201
POST pods/a/binding {metadata: {name: a}, target: {kind: Node, name: n}}
409 Conflict"),
    ("a binding in a dry run", "
POST pods {metadata: {name: a}, spec: {containers: [{name: c, image: i}]}}
201
POST pods/a/binding?dryRun=All {metadata: {name: a}, target: {kind: Node, name: n}}
201
GET pods/a
200 {spec: {nodeName: ABSENT}}"),
    ("an eviction without a disruption budget", "
POST pods {metadata: {name: a}, spec: {containers: [{name: c, image: i}]}}
201
POST pods/a/eviction {metadata: {name: a}}
201 {kind: Status, status: Success}
GET pods/a
404 NotFound"),
    ("an eviction with an invalid propagation policy", "
POST pods {metadata: {name: a}, spec: {containers: [{name: c, image: i}]}}
201
POST pods/a/eviction {metadata: {name: a}, deleteOptions: {propagationPolicy: Sideways}}
422 Invalid
GET pods/a
200"),
    ("an eviction that a disruption budget forbids", "
POST poddisruptionbudgets {metadata: {name: b}, spec: {minAvailable: 1, selector: {matchLabels: {x: y}}}}
201
POST pods {metadata: {name: a, labels: {x: y}}, spec: {nodeName: n, containers: [{name: c, image: i}]}}
201
PATCH-MERGE pods/a/status {status: {phase: Running, conditions: [{type: Ready, status: 'True'}]}}
200
PATCH-MERGE poddisruptionbudgets/b/status {status: {observedGeneration: 1, disruptionsAllowed: 0, currentHealthy: 1, desiredHealthy: 1, expectedPods: 1}}
200
POST pods/a/eviction {metadata: {name: a}}
429 {reason: TooManyRequests, details: {causes: [{reason: DisruptionBudget}]}}
PATCH-MERGE poddisruptionbudgets/b/status {status: {disruptionsAllowed: 1}}
200
POST pods/a/eviction {metadata: {name: a}}
201
GET poddisruptionbudgets/b
200 {status: {disruptionsAllowed: 0, disruptedPods: {a: _}}}"),
    ("an eviction of a nonexistent pod", "
POST pods/a/eviction {metadata: {name: a}}
404 NotFound"),
    ("a token for a service account", "
POST serviceaccounts {metadata: {name: a}}
201
POST serviceaccounts/a/token {spec: {audiences: []}}
201 {kind: TokenRequest, status: {token: _, expirationTimestamp: _}}
POST serviceaccounts/none/token {spec: {audiences: []}}
404 NotFound"),
    ("a self subject review", "
POST /apis/authentication.k8s.io/v1/selfsubjectreviews {}
201 {kind: SelfSubjectReview, status: {userInfo: {username: _, groups: _}}}"),
    ("a self subject access review", "
POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews {spec: {resourceAttributes: {verb: get, resource: pods, namespace: $ns}}}
201 {kind: SelfSubjectAccessReview, status: {allowed: true}}"),
    ("a node's status", "
POST nodes {metadata: {name: $ns-a}}
201
PATCH-STRATEGIC nodes/$ns-a/status {status: {allocatable: {cpu: '4'}, capacity: {cpu: 4000m}}}
200 {status: {allocatable: {cpu: '4'}, capacity: {cpu: '4'}}}
PATCH-STRATEGIC nodes/$ns-a/status {status: {conditions: [{type: Ready, status: 'True'}]}, spec: {unschedulable: true}}
200 {spec: {unschedulable: ABSENT}, status: {conditions: [{type: Ready}]}}"),
    ("ephemeral containers", "
POST pods {metadata: {name: a}, spec: {containers: [{name: c, image: i}]}}
201
PATCH-STRATEGIC pods/a/ephemeralcontainers {spec: {ephemeralContainers: [{name: d, image: i}]}}
200 {spec: {ephemeralContainers: [{name: d, image: i}], containers: [{name: c}]}}
PATCH-MERGE pods/a {spec: {ephemeralContainers: null}}
422 Invalid"),
];
