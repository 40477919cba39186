//! Lists: selectors, pagination, resource versions.

use super::Table;

pub(super) const CASES: Table = &[
    ("an empty list", "
GET configmaps
200 {kind: ConfigMapList, apiVersion: v1, metadata: {resourceVersion: _}, items: []}"),
    ("items have no kind", "
POST configmaps {metadata: {name: a}}
201
GET configmaps
200 {items: [{kind: ABSENT, apiVersion: ABSENT, metadata: {name: a}}]}"),
    ("sorted by name", "
POST configmaps {metadata: {name: b}}
201
POST configmaps {metadata: {name: a}}
201
POST configmaps {metadata: {name: a-b}}
201
GET configmaps
200 [a, a-b, b]"),
    ("equality-based label selectors", "
POST configmaps {metadata: {name: a, labels: {x: '1', y: '1'}}}
201
POST configmaps {metadata: {name: b, labels: {x: '2'}}}
201
POST configmaps {metadata: {name: c}}
201
GET configmaps?labelSelector=x=1
200 [a]
GET configmaps?labelSelector=x==2
200 [b]
GET configmaps?labelSelector=x!=1
200 [b, c]
GET configmaps?labelSelector=x=1,y=1
200 [a]
GET configmaps?labelSelector=x=1,y=2
200 []"),
    ("set-based label selectors", "
POST configmaps {metadata: {name: a, labels: {x: '1'}}}
201
POST configmaps {metadata: {name: b, labels: {x: '2'}}}
201
POST configmaps {metadata: {name: c}}
201
GET configmaps?labelSelector=x+in+(1,2)
200 [a, b]
GET configmaps?labelSelector=x+notin+(1)
200 [b, c]
GET configmaps?labelSelector=x
200 [a, b]
GET configmaps?labelSelector=!x
200 [c]
GET configmaps?labelSelector=x+in+(1,2),x+notin+(2)
200 [a]"),
    ("an invalid selector", "
GET configmaps?labelSelector=x+in
400 BadRequest"),
    ("a selector with an invalid value", "
GET configmaps?labelSelector=x=a+b
400 BadRequest"),
    ("field selectors of metadata", "
POST configmaps {metadata: {name: a}}
201
POST configmaps {metadata: {name: b}}
201
GET configmaps?fieldSelector=metadata.name=a
200 [a]
GET configmaps?fieldSelector=metadata.name!=a
200 [b]
GET configmaps?fieldSelector=metadata.namespace=$ns
200 [a, b]
GET configmaps?fieldSelector=metadata.name=a,metadata.name=b
200 []"),
    ("field selectors of pods", "
POST pods {metadata: {name: a}, spec: {containers: [{name: c, image: i}]}}
201
POST pods {metadata: {name: b}, spec: {nodeName: n, restartPolicy: Never, containers: [{name: c, image: i}]}}
201
GET pods?fieldSelector=spec.nodeName=
200 [a]
GET pods?fieldSelector=spec.nodeName=n
200 [b]
GET pods?fieldSelector=status.phase=Pending
200 [a, b]
GET pods?fieldSelector=status.phase!=Pending
200 []
GET pods?fieldSelector=spec.restartPolicy=Never
200 [b]"),
    ("unsupported field selectors", "
GET configmaps?fieldSelector=data.k=v
400 {reason: BadRequest, message: '\"data.k\" is not a known field selector: only \"metadata.name\", \"metadata.namespace\"'}"),
    ("label and field selectors together", "
POST configmaps {metadata: {name: a, labels: {x: '1'}}}
201
POST configmaps {metadata: {name: b, labels: {x: '1'}}}
201
GET configmaps?labelSelector=x=1&fieldSelector=metadata.name=b
200 [b]"),
    ("a page has the remaining item count", "
POST configmaps {metadata: {name: a}}
201
POST configmaps {metadata: {name: b}}
201
POST configmaps {metadata: {name: c}}
201
GET configmaps?limit=1
200 {metadata: {continue: _, remainingItemCount: 2}, items: [{metadata: {name: a}}]}"),
    ("a full last page has no continue token", "
POST configmaps {metadata: {name: a}}
201
POST configmaps {metadata: {name: b}}
201
GET configmaps?limit=2
200 {metadata: {continue: ABSENT, remainingItemCount: ABSENT}}
GET configmaps?limit=10
200 [a, b]"),
    ("all pages have the same resource version", "
POST configmaps {metadata: {name: a}}
201
POST configmaps {metadata: {name: b}, data: {k: old}}
201
POST configmaps {metadata: {name: c}}
201
GET configmaps?limit=1
200 {metadata: {continue: $more, resourceVersion: $rv}, items: [{metadata: {name: a}}]}
POST configmaps {metadata: {name: aa}}
201
PATCH-MERGE configmaps/b {data: {k: new}}
200
DELETE configmaps/c
200
GET configmaps?limit=5&continue=$more
200 {metadata: {resourceVersion: $rv}, items: [{metadata: {name: b}, data: {k: old}}, {metadata: {name: c}}]}
GET configmaps
200 [a, aa, b]"),
    ("a continue token with a resource version", "
POST configmaps {metadata: {name: a}}
201
POST configmaps {metadata: {name: b}}
201
GET configmaps?limit=1
200 {metadata: {continue: $more, resourceVersion: $rv}}
GET configmaps?limit=1&continue=$more&resourceVersion=$rv
400 BadRequest"),
    ("an invalid continue token", "
GET configmaps?limit=1&continue=nonsense
400 BadRequest"),
    ("resourceVersionMatch Exact and NotOlderThan", "
POST configmaps {metadata: {name: a}, data: {k: old}}
201
GET configmaps
200 {metadata: {resourceVersion: $then}}
PATCH-MERGE configmaps/a {data: {k: new}}
200
POST configmaps {metadata: {name: b}}
201
GET configmaps?resourceVersion=$then&resourceVersionMatch=Exact
200 {metadata: {resourceVersion: $then}, items: [{metadata: {name: a}, data: {k: old}}]}
GET configmaps?resourceVersion=$then&resourceVersionMatch=NotOlderThan
200 [a, b]
GET configmaps?resourceVersion=0
200"),
    ("a match without a resource version", "
GET configmaps?resourceVersionMatch=Exact
422 Invalid"),
    ("an exact match of resource version 0", "
GET configmaps?resourceVersion=0&resourceVersionMatch=Exact
422 Invalid"),
    ("an invalid match", "
GET configmaps?resourceVersion=1&resourceVersionMatch=Later
422 Invalid"),
    ("a future resource version", "
GET configmaps?resourceVersion=1000000000000
504 Timeout"),
    ("an invalid resource version", "
GET configmaps?resourceVersion=x
400 BadRequest"),
    ("an invalid limit", "
GET configmaps?limit=x
400 BadRequest"),
    ("one object with a resource version", "
POST configmaps {metadata: {name: a}}
201 {metadata: {resourceVersion: $rv}}
GET configmaps/a?resourceVersion=$rv
200 {metadata: {resourceVersion: $rv}}
GET configmaps/a?resourceVersion=0
200"),
    ("all namespaces", "
POST configmaps {metadata: {name: a, labels: {only: $ns}}}
201
GET /api/v1/configmaps?labelSelector=only=$ns
200 {items: [{metadata: {name: a, namespace: $ns}}]}"),
    ("a nonexistent namespace is empty", "
GET /api/v1/namespaces/$ns-none/configmaps
200 []"),
    ("a table of pods", "
POST pods {metadata: {name: a}, spec: {containers: [{name: c, image: i}]}}
201
TABLE pods
200 {kind: Table, rows: [{cells: [a, 0/1, Pending, '0', _, <none>, <none>, <none>, <none>]}]}
TABLE pods?includeObject=None
200 {rows: [{object: ABSENT}]}
TABLE pods?includeObject=Object
200 {rows: [{object: {kind: Pod, spec: {containers: _}}}]}
TABLE pods/a
200 {rows: [{cells: [a, 0/1, Pending, '0', _, <none>, <none>, <none>, <none>]}]}"),
    ("a table of configmaps", "
POST configmaps {metadata: {name: a}, data: {k: v, l: w}}
201
TABLE configmaps
200 {columnDefinitions: [{name: Name}, {name: Data}, {name: Age}], rows: [{cells: [a, 2, _]}]}"),
];
