//! Custom resources: each case creates its own CustomResourceDefinition.

use super::{Case, Table, case};

/// The cases, each with a CustomResourceDefinition at the beginning.
pub(super) fn cases() -> Vec<Case> {
    let script = |script: &str| format!("{DEFINITION}{script}");
    CASES.iter().map(|(name, rest)| case(&format!("custom: {name}"), &script(rest))).collect()
}

const DEFINITION: &str = "
POST customresourcedefinitions {apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: crews.$ns.example.com},
 spec: {group: $ns.example.com, scope: Namespaced, names: {plural: crews, singular: crew, kind: Crew, listKind: CrewList},
 versions: [{name: v1, served: true, storage: true,
 subresources: {status: {}, scale: {specReplicasPath: .spec.size, statusReplicasPath: .status.size}},
 schema: {openAPIV3Schema: {type: object, properties: {
 spec: {type: object, properties: {size: {type: integer, minimum: 0, default: 1}, any: {type: object, x-kubernetes-preserve-unknown-fields: true}}},
 status: {type: object, properties: {size: {type: integer}}}}}}}]}}
201
UNTIL GET crews
200 []";

const CASES: Table = &[
    ("unknown fields are pruned", "
POST crews {apiVersion: $ns.example.com/v1, kind: Crew, metadata: {name: a}, spec: {size: 2, surprise: 1, any: {x: 1}}, other: 1}
201 {spec: {size: 2, surprise: ABSENT, any: {x: 1}}, other: ABSENT}
PATCH-MERGE crews/a {spec: {surprise: 2}}
200 {spec: {surprise: ABSENT}}"),
    ("unknown fields with strict validation", "
POST crews?fieldValidation=Strict {apiVersion: $ns.example.com/v1, kind: Crew, metadata: {name: a}, spec: {surprise: 1}}
400 {reason: BadRequest, message: '~unknown field \"spec.surprise\"'}
GET crews
200 []"),
    ("defaults", "
POST crews {apiVersion: $ns.example.com/v1, kind: Crew, metadata: {name: a}, spec: {}}
201 {spec: {size: 1}, metadata: {generation: 1, uid: _}}
POST crews {apiVersion: $ns.example.com/v1, kind: Crew, metadata: {name: b}}
201 {spec: ABSENT}"),
    ("finalizers cannot be added during deletion", "
POST crews {apiVersion: $ns.example.com/v1, kind: Crew, metadata: {name: a, finalizers: [example.com/a]}}
201
DELETE crews/a
200
PATCH-MERGE crews/a {metadata: {finalizers: [example.com/a, example.com/b]}}
422 Invalid
PATCH-MERGE crews/a {metadata: {finalizers: []}}
200
GET crews/a
404 NotFound"),
    ("values that violate the schema", "
POST crews {apiVersion: $ns.example.com/v1, kind: Crew, metadata: {name: a}, spec: {size: -1}}
422 {reason: Invalid, message: '~spec.size in body should be greater than or equal to 0'}
POST crews {apiVersion: $ns.example.com/v1, kind: Crew, metadata: {name: a}, spec: {size: many}}
422 {reason: Invalid, message: '~spec.size in body must be of type integer: \"string\"'}
POST crews {apiVersion: $ns.example.com/v1, kind: Crew, metadata: {name: A_}}
422 Invalid"),
    ("another kind, no kind, another version", "
POST crews {apiVersion: $ns.example.com/v1, kind: Crow, metadata: {name: a}}
422 {reason: Invalid, message: '~kind: Invalid value: \"Crow\": must be Crew'}
POST crews {apiVersion: $ns.example.com/v2, kind: Crew, metadata: {name: a}}
400 BadRequest
POST crews {metadata: {name: a}}
400 BadRequest"),
    ("status is written separately", "
POST crews {apiVersion: $ns.example.com/v1, kind: Crew, metadata: {name: a}, spec: {size: 2}, status: {size: 7}}
201 {status: ABSENT, metadata: {generation: 1}}
PATCH-MERGE crews/a/status {spec: {size: 9}, status: {size: 3}}
200 {spec: {size: 2}, status: {size: 3}, metadata: {generation: 1}}
PATCH-MERGE crews/a {spec: {size: 4}, status: {size: 8}}
200 {spec: {size: 4}, status: {size: 3}, metadata: {generation: 2}}
PATCH-MERGE crews/a {metadata: {labels: {x: y}}}
200 {metadata: {generation: 2}}"),
    ("an old resource version", "
POST crews {apiVersion: $ns.example.com/v1, kind: Crew, metadata: {name: a}, spec: {size: 2}}
201 $seen
PUT crews/a $seen + {spec: {size: 3}}
200 {spec: {size: 3}}
PUT crews/a $seen + {spec: {size: 4}}
409 Conflict
PUT crews/a $seen + {metadata: {resourceVersion: null}, spec: {size: 4}}
422 {reason: Invalid, message: '~metadata.resourceVersion: Invalid value: 0: must be specified for an update'}"),
    ("scale", "
POST crews {apiVersion: $ns.example.com/v1, kind: Crew, metadata: {name: a}, spec: {size: 2}}
201
GET crews/a/scale
200 {kind: Scale, apiVersion: autoscaling/v1, metadata: {name: a, namespace: $ns}, spec: {replicas: 2}, status: {replicas: 0}}
PATCH-MERGE crews/a/scale {spec: {replicas: 5}}
200 {kind: Scale, spec: {replicas: 5}}
GET crews/a
200 {spec: {size: 5}, metadata: {generation: 2}}
PATCH-MERGE crews/a/scale {spec: {replicas: -1}}
422 Invalid"),
    ("patches", "
POST crews {apiVersion: $ns.example.com/v1, kind: Crew, metadata: {name: a}, spec: {size: 2, any: {x: [1]}}}
201
PATCH-JSON crews/a [{op: add, path: /spec/any/x/-, value: 2}]
200 {spec: {any: {x: [1, 2]}}}
PATCH-MERGE crews/a {spec: {size: null}}
200 {spec: {size: 1}}
PATCH-STRATEGIC crews/a {spec: {size: 3}}
415 UnsupportedMediaType"),
    ("apply", "
PATCH-APPLY crews/a?fieldManager=one {apiVersion: $ns.example.com/v1, kind: Crew, metadata: {name: a}, spec: {size: 2, any: {x: 1}}}
201 {metadata: {managedFields: [{manager: one, operation: Apply}]}}
PATCH-APPLY crews/a?fieldManager=two {apiVersion: $ns.example.com/v1, kind: Crew, metadata: {name: a}, spec: {size: 3}}
409 Conflict: Apply failed with 1 conflict: conflict with \"one\": .spec.size
PATCH-APPLY crews/a?fieldManager=two&force=true {apiVersion: $ns.example.com/v1, kind: Crew, metadata: {name: a}, spec: {size: 3}}
200 {spec: {size: 3}}
PATCH-APPLY crews/a?fieldManager=one {apiVersion: $ns.example.com/v1, kind: Crew, metadata: {name: a}}
200 {spec: {size: 3, any: ABSENT}}"),
    ("tables, metadata, watches", "
POST crews {apiVersion: $ns.example.com/v1, kind: Crew, metadata: {name: a, labels: {x: y}}}
201 {metadata: {resourceVersion: $first}}
TABLE crews
200 {kind: Table, columnDefinitions: [{name: Name}, {name: Age}], rows: [{cells: [a, _]}]}
META crews/a
200 {kind: PartialObjectMetadata, metadata: {labels: {x: y}}}
PATCH-MERGE crews/a {spec: {size: 3}}
200
DELETE crews/a
200 {kind: Status, status: Success}
WATCH crews?resourceVersion=$first
MODIFIED a {spec: {size: 3}}
DELETED a"),
    ("discovery and accepted names", "
GET /apis/$ns.example.com/v1
200 {kind: APIResourceList, resources: [{name: crews, singularName: crew, kind: Crew, namespaced: true}, {name: crews/status, kind: Crew}, {name: crews/scale, kind: Scale}]}
GET customresourcedefinitions/crews.$ns.example.com
200 {status: {acceptedNames: {plural: crews}, storedVersions: [v1], conditions: [{type: NamesAccepted, status: 'True'}, {type: Established, status: 'True'}]}}"),
    ("custom resources are deleted with their definition", "
POST crews {apiVersion: $ns.example.com/v1, kind: Crew, metadata: {name: a}}
201
DELETE customresourcedefinitions/crews.$ns.example.com
200
UNTIL GET crews
404"),
    ("a definition needs a structural schema", "
POST customresourcedefinitions {apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: dogs.$ns.example.com}, spec: {group: $ns.example.com, scope: Namespaced, names: {plural: dogs, kind: Dog}, versions: [{name: v1, served: true, storage: true}]}}
422 {reason: Invalid, message: '~spec.versions[0].schema.openAPIV3Schema: Required value'}
POST customresourcedefinitions {apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: dogs.$ns.example.com}, spec: {group: $ns.example.com, scope: Namespaced, names: {plural: dogs, kind: Dog}, versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, properties: {spec: {properties: {}}}}}}]}}
422 {reason: Invalid, message: '~must not be empty for specified object fields'}
POST customresourcedefinitions {apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: cats.$ns.example.com}, spec: {group: $ns.example.com, scope: Namespaced, names: {plural: dogs, kind: Dog}, versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}]}}
422 {reason: Invalid, message: '~must be spec.names.plural'}"),
];
