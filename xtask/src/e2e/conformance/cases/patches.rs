//! JSON patches, merge patches, strategic merge patches.

use super::Table;

pub(super) const CASES: Table = &[
    ("merge: null removes, lists are replaced", "
POST pods {metadata: {name: a, labels: {x: '1', y: '2'}}, spec: {containers: [{name: c, image: i}]}}
201
PATCH-MERGE pods/a {metadata: {labels: {x: null, z: '3'}}}
200 {metadata: {labels: {x: ABSENT, y: '2', z: '3'}}}"),
    ("merge: a list", "
POST services {metadata: {name: a}, spec: {ports: [{name: x, port: 80}, {name: y, port: 81}]}}
201
PATCH-MERGE services/a {spec: {ports: [{name: z, port: 82}]}}
200 {spec: {ports: [{name: z, port: 82, protocol: TCP}]}}"),
    ("merge: a value of another type", "
POST configmaps {metadata: {name: a}}
201
PATCH-MERGE configmaps/a {data: 1}
422 Invalid"),
    ("merge: an unknown field with strict validation", "
POST configmaps {metadata: {name: a}}
201
PATCH-MERGE configmaps/a?fieldValidation=Strict {surprise: 1}
422 Invalid
PATCH-MERGE configmaps/a {surprise: 1}
200 {surprise: ABSENT}"),
    ("merge: an invalid result", "
POST configmaps {metadata: {name: a}}
201
PATCH-MERGE configmaps/a {metadata: {labels: {'a b': c}}}
422 Invalid"),
    ("merge: another name", "
POST configmaps {metadata: {name: a}}
201
PATCH-MERGE configmaps/a {metadata: {name: b}}
400 BadRequest"),
    ("merge: a patch that is not an object", "
POST configmaps {metadata: {name: a}}
201
PATCH-MERGE configmaps/a [1]
400 BadRequest"),
    ("json: add, replace, remove, move, copy", "
POST configmaps {metadata: {name: a}, data: {k: v}}
201
PATCH-JSON configmaps/a [{op: add, path: /data/l, value: w}, {op: copy, from: /data/l, path: /data/m}, {op: move, from: /data/k, path: /data/n}]
200 {data: {k: ABSENT, l: w, m: w, n: v}}
PATCH-JSON configmaps/a [{op: remove, path: /data/l}, {op: replace, path: /data/m, value: x}]
200 {data: {l: ABSENT, m: x, n: v}}"),
    ("json: keys with slashes", "
POST configmaps {metadata: {name: a, annotations: {example.com/x: '1'}}}
201
PATCH-JSON configmaps/a [{op: replace, path: /metadata/annotations/example.com~1x, value: '2'}]
200 {metadata: {annotations: {example.com/x: '2'}}}"),
    ("json: list indices", "
POST services {metadata: {name: a}, spec: {ports: [{name: x, port: 80}]}}
201
PATCH-JSON services/a [{op: add, path: /spec/ports/-, value: {name: y, port: 81}}]
200 {spec: {ports: [{name: x}, {name: y}]}}
PATCH-JSON services/a [{op: remove, path: /spec/ports/0}]
200 {spec: {ports: [{name: y}]}}"),
    ("json: a path that does not exist", "
POST configmaps {metadata: {name: a}}
201
PATCH-JSON configmaps/a [{op: replace, path: /data/k, value: x}]
422 Invalid
PATCH-JSON configmaps/a [{op: remove, path: /data/k}]
422 Invalid"),
    ("json: an invalid patch", "
POST configmaps {metadata: {name: a}}
201
PATCH-JSON configmaps/a {data: {k: v}}
400 BadRequest"),
    ("strategic: containers by name", "
POST deployments {metadata: {name: a}, spec: {selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}, {name: d, image: i}]}}}}
201
PATCH-STRATEGIC deployments/a {spec: {template: {spec: {containers: [{name: d, image: j}]}}}}
200 {spec: {template: {spec: {containers: [{name: c, image: i}, {name: d, image: j}]}}}}"),
    ("strategic: a new container is prepended", "
POST deployments {metadata: {name: a}, spec: {selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}]}}}}
201
PATCH-STRATEGIC deployments/a {spec: {template: {spec: {containers: [{name: e, image: j}]}}}}
200 {spec: {template: {spec: {containers: [{name: e, image: j}, {name: c, image: i}]}}}}"),
    ("strategic: a container is removed", "
POST deployments {metadata: {name: a}, spec: {selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}, {name: d, image: i}]}}}}
201
PATCH-STRATEGIC deployments/a {spec: {template: {spec: {containers: [{name: c, $patch: delete}]}}}}
200 {spec: {template: {spec: {containers: [{name: d}]}}}}"),
    ("strategic: a list replaced", "
POST deployments {metadata: {name: a}, spec: {selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}, {name: d, image: i}]}}}}
201
PATCH-STRATEGIC deployments/a {spec: {template: {spec: {containers: [{$patch: replace}, {name: x, image: j}]}}}}
200 {spec: {template: {spec: {containers: [{name: x}]}}}}"),
    ("strategic: a plain list is replaced", "
POST deployments {metadata: {name: a}, spec: {selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i, args: [x, y]}]}}}}
201
PATCH-STRATEGIC deployments/a {spec: {template: {spec: {containers: [{name: c, args: [z]}]}}}}
200 {spec: {template: {spec: {containers: [{name: c, image: i, args: [z]}]}}}}"),
    ("strategic: finalizers are merged", "
POST configmaps {metadata: {name: a, finalizers: [example.com/a]}}
201
PATCH-STRATEGIC configmaps/a {metadata: {finalizers: [example.com/b]}}
200 {metadata: {finalizers: _}}
PATCH-STRATEGIC configmaps/a {metadata: {$deleteFromPrimitiveList/finalizers: [example.com/a]}}
200 {metadata: {finalizers: [example.com/b]}}"),
    ("strategic: taints by key and tolerations", "
POST nodes {metadata: {name: $ns-a}, spec: {taints: [{key: x, effect: NoSchedule}]}}
201
PATCH-STRATEGIC nodes/$ns-a {spec: {taints: [{key: y, effect: NoExecute}]}}
200
PATCH-STRATEGIC nodes/$ns-a {spec: {unschedulable: true}}
200 {spec: {unschedulable: true}}"),
    ("strategic: ports by port number", "
POST services {metadata: {name: a}, spec: {ports: [{name: x, port: 80}]}}
201
PATCH-STRATEGIC services/a {spec: {ports: [{name: y, port: 81}]}}
200 {spec: {ports: [{name: y, port: 81}, {name: x, port: 80}]}}"),
    ("strategic: null removes", "
POST configmaps {metadata: {name: a}, data: {k: v, l: w}}
201
PATCH-STRATEGIC configmaps/a {data: {k: null}}
200 {data: {k: ABSENT, l: w}}"),
    ("strategic: a value of another type", "
POST configmaps {metadata: {name: a}}
201
PATCH-STRATEGIC configmaps/a {metadata: {labels: 1}}
422 Invalid"),
    ("immutable metadata is not patched", "
POST configmaps {metadata: {name: a}}
201 {metadata: {creationTimestamp: $time, uid: $uid}}
PATCH-MERGE configmaps/a {metadata: {creationTimestamp: '2001-01-01T00:00:00Z', generateName: x}}
200 {metadata: {creationTimestamp: $time, uid: $uid}}"),
];
