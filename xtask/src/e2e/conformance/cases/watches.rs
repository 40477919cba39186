//! Watches: every event once, in order, and none before the requested resource version.

use super::Table;

pub(super) const CASES: Table = &[
    ("all changes in order", "
POST configmaps {metadata: {name: a}, data: {k: '0'}}
201 {metadata: {resourceVersion: $rv}}
PATCH-MERGE configmaps/a {data: {k: '1'}}
200 {metadata: {resourceVersion: $one}}
POST configmaps {metadata: {name: b}}
201 {metadata: {resourceVersion: $two}}
PATCH-MERGE configmaps/a {data: {k: '2'}}
200 {metadata: {resourceVersion: $three}}
DELETE configmaps/a
200
POST configmaps {metadata: {name: a}, data: {k: '3'}}
201 {metadata: {resourceVersion: $five}}
WATCH configmaps?resourceVersion=$rv
MODIFIED a {data: {k: '1'}, metadata: {resourceVersion: $one}}
ADDED b {metadata: {resourceVersion: $two}}
MODIFIED a {data: {k: '2'}, metadata: {resourceVersion: $three}}
DELETED a {data: {k: '2'}, metadata: {resourceVersion: $four}}
ADDED a {data: {k: '3'}, metadata: {resourceVersion: $five}}
END
ASSERT $three < $four
ASSERT $four < $five"),
    ("from each resource version", "
POST configmaps {metadata: {name: a}}
201 {metadata: {resourceVersion: $one}}
POST configmaps {metadata: {name: b}}
201 {metadata: {resourceVersion: $two}}
POST configmaps {metadata: {name: c}}
201 {metadata: {resourceVersion: $three}}
WATCH configmaps?resourceVersion=$one
ADDED b
ADDED c
WATCH configmaps?resourceVersion=$two
ADDED c
WATCH configmaps?resourceVersion=$three
END"),
    ("without a resource version, existing objects first", "
POST configmaps {metadata: {name: b}}
201
POST configmaps {metadata: {name: a}}
201
WATCH configmaps
ADDED a
ADDED b
END
WATCH configmaps?resourceVersion=0
ADDED a
ADDED b
END"),
    ("changes of other resources and namespaces are not sent", "
POST configmaps {metadata: {name: a}}
201 {metadata: {resourceVersion: $rv}}
POST secrets {metadata: {name: b}}
201
POST /api/v1/namespaces/default/configmaps {metadata: {name: $ns}}
201
WATCH configmaps?resourceVersion=$rv
END"),
    ("a no-op update is not sent", "
POST configmaps {metadata: {name: a}}
201 $seen
PUT configmaps/a $seen
200 {metadata: {resourceVersion: $rv}}
WATCH configmaps?resourceVersion=$rv
END"),
    ("initial events, then the bookmark", "
POST configmaps {metadata: {name: a}}
201
POST configmaps {metadata: {name: b}}
201
WATCH configmaps?sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true
ADDED a
ADDED b
BOOKMARK {kind: ConfigMap, metadata: {resourceVersion: $rv, annotations: {k8s.io/initial-events-end: 'true'}}}"),
    ("initial events of an empty list", "
WATCH configmaps?sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true
BOOKMARK {metadata: {annotations: {k8s.io/initial-events-end: 'true'}}}"),
    ("initial events need a match", "
GET configmaps?watch=true&sendInitialEvents=true
422 Invalid
GET configmaps?watch=true&resourceVersionMatch=NotOlderThan
422 Invalid
GET configmaps?watch=true&sendInitialEvents=true&resourceVersionMatch=Exact
422 Invalid"),
    ("sendInitialEvents is invalid for lists", "
GET configmaps?sendInitialEvents=true&resourceVersionMatch=NotOlderThan
422 Invalid"),
    ("an invalid resource version", "
GET configmaps?watch=true&resourceVersion=x
500 {message: 'resourceVersion: Invalid value: \"x\": strconv.ParseUint: parsing \"x\": invalid syntax'}"),
    ("objects that start and stop to match a selector", "
POST configmaps {metadata: {name: a, labels: {x: '1'}}, data: {k: '0'}}
201 {metadata: {resourceVersion: $rv}}
PATCH-MERGE configmaps/a {metadata: {labels: {x: '2'}}, data: {k: '1'}}
200 {metadata: {resourceVersion: $one}}
PATCH-MERGE configmaps/a {data: {k: '2'}}
200
PATCH-MERGE configmaps/a {metadata: {labels: {x: '1'}}}
200 {metadata: {resourceVersion: $three}}
DELETE configmaps/a
200
WATCH configmaps?labelSelector=x=1&resourceVersion=$rv
DELETED a {metadata: {resourceVersion: $one, labels: {x: '1'}}, data: {k: '0'}}
ADDED a {metadata: {resourceVersion: $three}, data: {k: '2'}}
DELETED a
END"),
    ("objects that never match a selector", "
POST configmaps {metadata: {name: a, labels: {x: '1'}}}
201 {metadata: {resourceVersion: $rv}}
PATCH-MERGE configmaps/a {data: {k: v}}
200
DELETE configmaps/a
200
WATCH configmaps?labelSelector=x=2&resourceVersion=$rv
END"),
    ("a pod that is bound, with field selectors", "
POST pods {metadata: {name: a}, spec: {containers: [{name: c, image: i}]}}
201 {metadata: {resourceVersion: $rv}}
POST pods/a/binding {metadata: {name: a}, target: {kind: Node, name: n}}
201
WATCH pods?fieldSelector=spec.nodeName=&resourceVersion=$rv
DELETED a
END
WATCH pods?fieldSelector=spec.nodeName=n&resourceVersion=$rv
ADDED a {spec: {nodeName: n}}
END"),
    ("one object by name", "
POST configmaps {metadata: {name: a}}
201 {metadata: {resourceVersion: $rv}}
POST configmaps {metadata: {name: b}}
201
PATCH-MERGE configmaps/a {data: {k: v}}
200
WATCH configmaps?fieldSelector=metadata.name=a&resourceVersion=$rv
MODIFIED a
END"),
    ("all namespaces", "
POST configmaps {metadata: {name: a, labels: {only: $ns}}}
201 {metadata: {resourceVersion: $rv}}
POST configmaps {metadata: {name: b, labels: {only: $ns}}}
201
WATCH /api/v1/configmaps?labelSelector=only=$ns&resourceVersion=$rv
ADDED b {metadata: {namespace: $ns}}
END"),
    ("deletion with finalizers", "
POST configmaps {metadata: {name: a, finalizers: [example.com/a]}}
201 {metadata: {resourceVersion: $rv}}
DELETE configmaps/a
200
PATCH-MERGE configmaps/a {metadata: {finalizers: null}}
200
WATCH configmaps?resourceVersion=$rv
MODIFIED a {metadata: {deletionTimestamp: _, finalizers: [example.com/a]}}
DELETED a {metadata: {deletionTimestamp: _}}
END"),
    ("graceful deletion of a pod", "
POST pods {metadata: {name: a}, spec: {nodeName: n, containers: [{name: c, image: i}]}}
201 {metadata: {resourceVersion: $rv}}
DELETE pods/a
200
DELETE pods/a?gracePeriodSeconds=0
200
WATCH pods?resourceVersion=$rv
MODIFIED a {metadata: {deletionGracePeriodSeconds: 30}}
MODIFIED a {metadata: {deletionGracePeriodSeconds: 0}}
DELETED a
END"),
    ("deletion of an unassigned pod", "
POST pods {metadata: {name: a}, spec: {containers: [{name: c, image: i}]}}
201 {metadata: {resourceVersion: $rv}}
DELETE pods/a
200
WATCH pods?resourceVersion=$rv
MODIFIED a {metadata: {deletionGracePeriodSeconds: 0}}
DELETED a
END"),
    ("deletion of a collection increases the resource version", "
POST configmaps {metadata: {name: a}}
201
POST configmaps {metadata: {name: b}}
201
GET configmaps
200 {metadata: {resourceVersion: $rv}}
DELETE configmaps
200
GET configmaps
200 {metadata: {resourceVersion: $then}, items: []}
ASSERT $rv < $then"),
    ("a watch continues from the resource version of a list", "
POST configmaps {metadata: {name: a}}
201
GET configmaps
200 {metadata: {resourceVersion: $rv}}
POST configmaps {metadata: {name: b}}
201
WATCH configmaps?resourceVersion=$rv
ADDED b
END"),
    ("a watch continues from the resource version of a page", "
POST configmaps {metadata: {name: a}}
201
POST configmaps {metadata: {name: b}}
201
GET configmaps?limit=1
200 {metadata: {resourceVersion: $rv, continue: $more}}
POST configmaps {metadata: {name: c}}
201
GET configmaps?limit=9&continue=$more
200 {metadata: {resourceVersion: $rv}, items: [{metadata: {name: b}}]}
WATCH configmaps?resourceVersion=$rv
ADDED c
END"),
    ("dry runs are not sent", "
POST configmaps {metadata: {name: a}}
201 {metadata: {resourceVersion: $rv}}
PATCH-MERGE configmaps/a?dryRun=All {data: {k: v}}
200
POST configmaps?dryRun=All {metadata: {name: b}}
201
DELETE configmaps/a?dryRun=All
200
WATCH configmaps?resourceVersion=$rv
END"),
    ("changes of status and spec are sent", "
POST pods {metadata: {name: a}, spec: {containers: [{name: c, image: i}]}}
201 {metadata: {resourceVersion: $rv}}
PATCH-MERGE pods/a/status {status: {message: hello}}
200
PATCH-MERGE pods/a {metadata: {labels: {x: y}}}
200
WATCH pods?resourceVersion=$rv
MODIFIED a {status: {message: hello}, metadata: {labels: ABSENT}}
MODIFIED a {status: {message: hello}, metadata: {labels: {x: y}}}
END"),
];
