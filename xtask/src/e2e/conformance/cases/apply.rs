//! Server-side apply: field ownership.

use super::Table;

pub(super) const CASES: Table = &[
    ("creates a nonexistent object", "
PATCH-APPLY configmaps/a?fieldManager=one {apiVersion: v1, kind: ConfigMap, metadata: {name: a}, data: {k: v}}
201 {data: {k: v}, metadata: {managedFields: [{manager: one, operation: Apply, apiVersion: v1, fieldsType: FieldsV1, fieldsV1: {'f:data': {'f:k': _}}, subresource: ABSENT}]}}"),
    ("applying the same configuration again changes nothing", "
PATCH-APPLY configmaps/a?fieldManager=one {apiVersion: v1, kind: ConfigMap, metadata: {name: a}, data: {k: v}}
201 {metadata: {resourceVersion: $first}}
PATCH-APPLY configmaps/a?fieldManager=one {apiVersion: v1, kind: ConfigMap, metadata: {name: a}, data: {k: v}}
200 {metadata: {resourceVersion: $first}}"),
    ("a conflict names the field manager", "
PATCH-APPLY configmaps/a?fieldManager=one {apiVersion: v1, kind: ConfigMap, metadata: {name: a}, data: {k: v}}
201
PATCH-APPLY configmaps/a?fieldManager=two {apiVersion: v1, kind: ConfigMap, metadata: {name: a}, data: {k: w}}
409 {reason: Conflict, message: 'Apply failed with 1 conflict: conflict with \"one\": .data.k', details: {causes: [{reason: FieldManagerConflict, field: .data.k, message: 'conflict with \"one\"'}]}}
GET configmaps/a
200 {data: {k: v}, metadata: {managedFields: [{manager: one}]}}"),
    ("conflicts with two managers", "
PATCH-APPLY configmaps/a?fieldManager=one {apiVersion: v1, kind: ConfigMap, metadata: {name: a}, data: {k: v}}
201
PATCH-APPLY configmaps/a?fieldManager=two {apiVersion: v1, kind: ConfigMap, metadata: {name: a}, data: {l: v}}
200
PATCH-APPLY configmaps/a?fieldManager=three {apiVersion: v1, kind: ConfigMap, metadata: {name: a}, data: {k: w, l: w}}
409 {reason: Conflict, message: \"Apply failed with 2 conflicts: conflicts with \\\"one\\\":\\n- .data.k\\nconflicts with \\\"two\\\":\\n- .data.l\"}"),
    ("force takes a field over", "
PATCH-APPLY configmaps/a?fieldManager=one {apiVersion: v1, kind: ConfigMap, metadata: {name: a}, data: {k: v}}
201
PATCH-APPLY configmaps/a?fieldManager=two&force=true {apiVersion: v1, kind: ConfigMap, metadata: {name: a}, data: {k: w}}
200 {data: {k: w}, metadata: {managedFields: [{manager: two, fieldsV1: {'f:data': {'f:k': _}}}]}}
PATCH-APPLY configmaps/a?fieldManager=one {apiVersion: v1, kind: ConfigMap, metadata: {name: a}, data: {k: v}}
409 Conflict"),
    ("a field that is no longer applied is removed", "
PATCH-APPLY configmaps/a?fieldManager=one {apiVersion: v1, kind: ConfigMap, metadata: {name: a, labels: {x: y}}, data: {k: v, l: w}}
201
PATCH-APPLY configmaps/a?fieldManager=one {apiVersion: v1, kind: ConfigMap, metadata: {name: a}, data: {l: w}}
200 {data: {k: ABSENT, l: w}, metadata: {labels: ABSENT}}"),
    ("a shared field is removed with its last owner", "
PATCH-APPLY configmaps/a?fieldManager=one {apiVersion: v1, kind: ConfigMap, metadata: {name: a}, data: {k: v}}
201
PATCH-APPLY configmaps/a?fieldManager=two {apiVersion: v1, kind: ConfigMap, metadata: {name: a}, data: {k: v}}
200 {metadata: {managedFields: [{manager: two, time: ABSENT}, {manager: one, time: _}]}}
PATCH-APPLY configmaps/a?fieldManager=one {apiVersion: v1, kind: ConfigMap, metadata: {name: a}}
200 {data: {k: v}}
PATCH-APPLY configmaps/a?fieldManager=two {apiVersion: v1, kind: ConfigMap, metadata: {name: a}}
200 {data: ABSENT}"),
    ("a field that another manager has changed is kept", "
PATCH-APPLY configmaps/a?fieldManager=one {apiVersion: v1, kind: ConfigMap, metadata: {name: a}, data: {k: v, l: w}}
201
PATCH-MERGE configmaps/a?fieldManager=editor {data: {k: x}}
200 {data: {k: x}}
PATCH-APPLY configmaps/a?fieldManager=one {apiVersion: v1, kind: ConfigMap, metadata: {name: a}, data: {l: w}}
200 {data: {k: x, l: w}}"),
    ("a conflict with a writer that does not apply", "
POST configmaps?fieldManager=editor {metadata: {name: a}, data: {k: v}}
201 {metadata: {managedFields: [{manager: editor, operation: Update}]}}
PATCH-APPLY configmaps/a?fieldManager=one {apiVersion: v1, kind: ConfigMap, metadata: {name: a}, data: {k: w}}
409 Conflict: Apply failed with 1 conflict: conflict with \"editor\" using v1: .data.k"),
    ("list items by key", "
PATCH-APPLY pods/a?fieldManager=one {apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {containers: [{name: c, image: i}], tolerations: [{key: x, operator: Exists}]}}
201
PATCH-APPLY pods/a?fieldManager=two {apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {containers: [{name: c, image: j}]}}
409 {message: '~.spec.containers[name=\"c\"].image'}
PATCH-APPLY pods/a?fieldManager=two&force=true {apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {containers: [{name: c, image: j}]}}
200 {spec: {containers: [{name: c, image: j}]}}"),
    ("entries of two managers", "
PATCH-APPLY deployments/a?fieldManager=one {apiVersion: apps/v1, kind: Deployment, metadata: {name: a}, spec: {selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i, env: [{name: A, value: '1'}]}]}}}}
201
PATCH-APPLY deployments/a?fieldManager=two {apiVersion: apps/v1, kind: Deployment, metadata: {name: a}, spec: {template: {spec: {containers: [{name: c, env: [{name: B, value: '2'}]}]}}}}
200 {spec: {template: {spec: {containers: [{name: c, image: i, env: [{name: A, value: '1'}, {name: B, value: '2'}]}]}}}}
PATCH-APPLY deployments/a?fieldManager=two {apiVersion: apps/v1, kind: Deployment, metadata: {name: a}}
200 {spec: {template: {spec: {containers: [{name: c, env: [{name: A}]}]}}}}"),
    ("the status has separate managers", "
PATCH-APPLY deployments/a?fieldManager=one {apiVersion: apps/v1, kind: Deployment, metadata: {name: a}, spec: {selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}]}}}}
201
PATCH-APPLY deployments/a/status?fieldManager=one {apiVersion: apps/v1, kind: Deployment, metadata: {name: a}, spec: {replicas: 7}, status: {replicas: 3}}
200 {spec: {replicas: 1}, status: {replicas: 3}, metadata: {managedFields: [{manager: one, subresource: ABSENT}, {manager: one, operation: Apply, subresource: status, fieldsV1: {'f:spec': ABSENT, 'f:status': {'f:replicas': _}}}]}}"),
    ("an old resource version", "
PATCH-APPLY configmaps/a?fieldManager=one {apiVersion: v1, kind: ConfigMap, metadata: {name: a}}
201
PATCH-APPLY configmaps/a?fieldManager=one {apiVersion: v1, kind: ConfigMap, metadata: {name: a, resourceVersion: '1'}, data: {k: v}}
409 Conflict"),
    ("a dry run", "
PATCH-APPLY configmaps/a?fieldManager=one&dryRun=All {apiVersion: v1, kind: ConfigMap, metadata: {name: a}, data: {k: v}}
201 {data: {k: v}}
GET configmaps/a
404 NotFound"),
    ("without a manager", "
PATCH-APPLY configmaps/a {apiVersion: v1, kind: ConfigMap, metadata: {name: a}}
422 {reason: Invalid, message: '~fieldManager: Required value: is required for apply patch'}"),
    ("force without apply", "
POST configmaps {metadata: {name: a}}
201
PATCH-MERGE configmaps/a?force=true {data: {k: v}}
422 {reason: Invalid, message: '~may not be specified for non-apply patch'}"),
    ("managed fields are not applied", "
PATCH-APPLY configmaps/a?fieldManager=one {apiVersion: v1, kind: ConfigMap, metadata: {name: a, managedFields: [{manager: x, operation: Apply, apiVersion: v1, fieldsType: FieldsV1, fieldsV1: {}}]}}
400 {reason: BadRequest, message: '~metadata.managedFields must be nil'}"),
    ("another name", "
PATCH-APPLY configmaps/a?fieldManager=one {apiVersion: v1, kind: ConfigMap, metadata: {name: b}}
400 BadRequest"),
];
