//! Deletions: grace periods, finalizers, propagation, collections.

use super::Table;

pub(super) const CASES: Table = &[
    ("the response of most kinds is a status", "
POST configmaps {metadata: {name: a}}
201 {metadata: {uid: $uid}}
DELETE configmaps/a
200 {kind: Status, status: Success, details: {name: a, kind: configmaps, uid: $uid}}"),
    ("the status names the group", "
POST deployments {metadata: {name: a}, spec: {selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}]}}}}
201 {metadata: {uid: $uid}}
DELETE deployments/a
200 {kind: Status, status: Success, details: {name: a, group: apps, kind: deployments, uid: $uid}}"),
    ("the response for a pod is the pod", "
POST pods {metadata: {name: a}, spec: {containers: [{name: c, image: i}]}}
201 {metadata: {uid: $uid}}
DELETE pods/a
200 {kind: Pod, metadata: {name: a, uid: $uid}}
GET pods/a
404 NotFound"),
    ("an assigned pod has a grace period", "
POST pods {metadata: {name: a}, spec: {nodeName: n, terminationGracePeriodSeconds: 20, containers: [{name: c, image: i}]}}
201
DELETE pods/a
200 {metadata: {deletionTimestamp: _, deletionGracePeriodSeconds: 20}}
GET pods/a
200 {metadata: {deletionTimestamp: _}}
DELETE pods/a?gracePeriodSeconds=5
200 {metadata: {deletionGracePeriodSeconds: 5}}
DELETE pods/a?gracePeriodSeconds=10
200 {metadata: {deletionGracePeriodSeconds: 5}}
DELETE pods/a?gracePeriodSeconds=0
200
GET pods/a
404 NotFound"),
    ("very long and negative grace periods", "
POST pods {metadata: {name: a}, spec: {nodeName: n, containers: [{name: c, image: i}]}}
201
DELETE pods/a?gracePeriodSeconds=9223372036854775807
200 {metadata: {deletionGracePeriodSeconds: 9223372036854775807}}
GET pods/a
200 {metadata: {deletionTimestamp: _}}
POST pods {metadata: {name: b}, spec: {nodeName: n, containers: [{name: c, image: i}]}}
201
DELETE pods/b?gracePeriodSeconds=-5
200 {metadata: {deletionGracePeriodSeconds: 1}}"),
    ("a deletion without a grace period keeps the earlier one", "
POST pods {metadata: {name: a}, spec: {nodeName: n, terminationGracePeriodSeconds: 20, containers: [{name: c, image: i}]}}
201
DELETE pods/a?gracePeriodSeconds=100
200 {metadata: {deletionGracePeriodSeconds: 100, deletionTimestamp: $time}}
DELETE pods/a
200 {metadata: {deletionGracePeriodSeconds: 100, deletionTimestamp: $time}}"),
    ("a grace period in the body", "
POST pods {metadata: {name: a}, spec: {nodeName: n, containers: [{name: c, image: i}]}}
201
DELETE pods/a {gracePeriodSeconds: 7}
200 {metadata: {deletionGracePeriodSeconds: 7}}"),
    ("a terminated pod is deleted immediately", "
POST pods {metadata: {name: a}, spec: {nodeName: n, containers: [{name: c, image: i}]}}
201
PATCH-MERGE pods/a/status {status: {phase: Succeeded}}
200
DELETE pods/a
200
GET pods/a
404 NotFound"),
    ("a name can be reused", "
POST configmaps {metadata: {name: a}}
201 {metadata: {uid: $first}}
DELETE configmaps/a
200
POST configmaps {metadata: {name: a}}
201 {metadata: {uid: $second}}
ASSERT $first != $second"),
    ("finalizers cannot be added during deletion", "
POST configmaps {metadata: {name: a, finalizers: [example.com/a]}}
201
DELETE configmaps/a
200
PATCH-MERGE configmaps/a {metadata: {finalizers: [example.com/a, example.com/b]}}
422 Invalid
PATCH-MERGE configmaps/a {metadata: {finalizers: []}}
200
GET configmaps/a
404 NotFound"),
    ("an object can be changed during deletion", "
POST configmaps {metadata: {name: a, finalizers: [example.com/a]}}
201
DELETE configmaps/a
200 {metadata: {deletionTimestamp: $time}}
PATCH-MERGE configmaps/a {data: {k: v}}
200 {data: {k: v}, metadata: {deletionTimestamp: $time}}
PATCH-MERGE configmaps/a {metadata: {deletionTimestamp: null}}
200 {metadata: {deletionTimestamp: $time}}
DELETE configmaps/a
200 {metadata: {deletionTimestamp: $time}}"),
    ("foreground deletion", "
POST configmaps {metadata: {name: a}}
201
DELETE configmaps/a?propagationPolicy=Foreground
200 {metadata: {deletionTimestamp: _, finalizers: [foregroundDeletion]}}
GET configmaps/a
200"),
    ("orphaning dependents", "
POST configmaps {metadata: {name: a}}
201
DELETE configmaps/a {propagationPolicy: Orphan}
200 {metadata: {finalizers: [orphan]}}"),
    ("the last propagation policy is used", "
POST configmaps {metadata: {name: a}}
201
DELETE configmaps/a?propagationPolicy=Foreground
200 {metadata: {finalizers: [foregroundDeletion]}}
DELETE configmaps/a?propagationPolicy=Orphan
200 {metadata: {finalizers: [orphan]}}
DELETE configmaps/a
200 {metadata: {finalizers: [orphan]}}
DELETE configmaps/a?propagationPolicy=Background
200 {kind: Status}
GET configmaps/a
404 NotFound"),
    ("an invalid propagation policy", "
POST configmaps {metadata: {name: a}}
201
DELETE configmaps/a?propagationPolicy=Sideways
422 Invalid"),
    ("orphanDependents with a propagation policy", "
POST configmaps {metadata: {name: a}}
201
DELETE configmaps/a {propagationPolicy: Background, orphanDependents: true}
422 Invalid"),
    ("the message of a failed precondition", "
POST configmaps {metadata: {name: a}}
201 {metadata: {uid: $uid}}
DELETE configmaps/a {preconditions: {uid: other}}
409 {reason: Conflict, message: 'Operation cannot be fulfilled on ConfigMap \"a\": the UID in the precondition (other) does not match the UID in record ($uid). The object might have been deleted and then recreated'}"),
    ("selected objects of a collection", "
POST configmaps {metadata: {name: a, labels: {x: '1'}}}
201
POST configmaps {metadata: {name: b}}
201
DELETE configmaps?labelSelector=x=1
200
GET configmaps
200 [b]
DELETE configmaps?fieldSelector=metadata.name=b
200
GET configmaps
200 []"),
    ("a collection in a dry run", "
POST configmaps {metadata: {name: a}}
201
DELETE configmaps?dryRun=All
200
GET configmaps
200 [a]"),
    ("a collection with finalizers", "
POST configmaps {metadata: {name: a, finalizers: [example.com/a]}}
201
POST configmaps {metadata: {name: b}}
201
DELETE configmaps
200
GET configmaps
200 {items: [{metadata: {name: a, deletionTimestamp: _}}]}"),
    ("a terminating namespace accepts no new objects", "
POST namespaces {metadata: {name: $ns-b}}
201
DELETE namespaces/$ns-b
200 {status: {phase: Terminating}, metadata: {deletionTimestamp: _}}
POST /api/v1/namespaces/$ns-b/configmaps {metadata: {name: a}}
403 {reason: Forbidden, details: {causes: [{reason: NamespaceTerminating}]}}
PUT namespaces/$ns-b/finalize {metadata: {name: $ns-b}, spec: {finalizers: []}}
200
GET namespaces/$ns-b
404 NotFound"),
    ("system namespaces cannot be deleted", "
DELETE namespaces/default
403 Forbidden
DELETE namespaces/kube-system
403 Forbidden"),
    ("replication controllers orphan their pods by default", "
POST replicationcontrollers {metadata: {name: a}, spec: {selector: {a: b}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}]}}}}
201
DELETE replicationcontrollers/a
200 {metadata: {finalizers: [orphan]}}"),
];
