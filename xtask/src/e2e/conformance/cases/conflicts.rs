//! Conflicts of concurrent writers.

use super::Table;

pub(super) const CASES: Table = &[
    ("the second of two writers gets a conflict", "
POST configmaps {metadata: {name: a}, data: {k: v}}
201 $seen
PUT configmaps/a $seen + {data: {k: first}}
200 {metadata: {resourceVersion: $new}}
PUT configmaps/a $seen + {data: {k: second}}
409 Conflict: Operation cannot be fulfilled on configmaps \"a\": the object has been modified; please apply your changes to the latest version and try again
GET configmaps/a
200 {data: {k: first}, metadata: {resourceVersion: $new}}"),
    ("a conflict names the group", "
POST leases {metadata: {name: a}, spec: {holderIdentity: me}}
201 $seen
PUT leases/a $seen + {spec: {holderIdentity: you}}
200
PUT leases/a $seen + {spec: {holderIdentity: they}}
409 {reason: Conflict, details: {name: a, group: coordination.k8s.io, kind: leases}}"),
    ("the resource version of another object", "
POST configmaps {metadata: {name: a}}
201 {metadata: {resourceVersion: $a}}
POST configmaps {metadata: {name: b}}
201 {metadata: {resourceVersion: $b}}
PUT configmaps/a {metadata: {name: a, resourceVersion: $b}}
409 Conflict
ASSERT $a < $b"),
    ("a recreated object has another uid", "
POST configmaps {metadata: {name: a}}
201 $seen
DELETE configmaps/a
200
POST configmaps {metadata: {name: a}}
201 {metadata: {uid: $second}}
PUT configmaps/a $seen + {data: {k: v}}
409 Conflict
PUT configmaps/a $seen + {metadata: {resourceVersion: null}}
409 Conflict
GET configmaps/a
200 {metadata: {uid: $second}}"),
    ("a patch with a resource version", "
POST configmaps {metadata: {name: a}}
201 {metadata: {resourceVersion: $old}}
PATCH-MERGE configmaps/a {data: {k: v}}
200 {metadata: {resourceVersion: $new}}
PATCH-MERGE configmaps/a {metadata: {resourceVersion: $old}, data: {k: w}}
409 Conflict
PATCH-MERGE configmaps/a {metadata: {resourceVersion: $new}, data: {k: w}}
200 {data: {k: w}}"),
    ("a patch without a resource version never conflicts", "
POST configmaps {metadata: {name: a}}
201
PATCH-MERGE configmaps/a {data: {k: v}}
200
PATCH-STRATEGIC configmaps/a {data: {l: w}}
200 {data: {k: v, l: w}}"),
    ("a test in a JSON patch", "
POST configmaps {metadata: {name: a}, data: {k: v}}
201
PATCH-JSON configmaps/a [{op: test, path: /data/k, value: w}, {op: replace, path: /data/k, value: x}]
422 Invalid
GET configmaps/a
200 {data: {k: v}}"),
    ("an invalid resource version", "
POST configmaps {metadata: {name: a}}
201
PUT configmaps/a {metadata: {name: a, resourceVersion: x}}
500 {message: '~invalid syntax'}"),
    ("resource versions grow across all kinds", "
POST configmaps {metadata: {name: a}}
201 {metadata: {resourceVersion: $a}}
POST secrets {metadata: {name: a}}
201 {metadata: {resourceVersion: $b}}
POST leases {metadata: {name: a}}
201 {metadata: {resourceVersion: $c}}
ASSERT $a < $b
ASSERT $b < $c"),
    ("immutable ConfigMaps cannot be changed", "
POST configmaps {metadata: {name: a}, data: {k: v}, immutable: true}
201
PATCH-MERGE configmaps/a {data: {k: w}}
422 {reason: Invalid, details: {causes: [{field: data, reason: FieldValueForbidden}]}}
PATCH-MERGE configmaps/a {metadata: {labels: {a: b}}}
200"),
    ("most of a pod's spec is immutable", "
POST pods {metadata: {name: a}, spec: {containers: [{name: c, image: i}]}}
201
PATCH-MERGE pods/a {spec: {nodeSelector: {x: y}}}
422 Invalid
PATCH-STRATEGIC pods/a {spec: {containers: [{name: c, image: j}]}}
200 {spec: {containers: [{image: j}]}}"),
    ("a deployment's selector is immutable", "
POST deployments {metadata: {name: a}, spec: {selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}]}}}}
201
PATCH-JSON deployments/a [{op: replace, path: /spec/selector/matchLabels, value: {x: y}}, {op: replace, path: /spec/template/metadata/labels, value: {x: y}}]
422 Invalid"),
];
