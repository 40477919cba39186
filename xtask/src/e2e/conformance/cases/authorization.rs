//! Authorization: roles, bindings, impersonation, reviews. On a real server `view` and `edit` have no rules until a controller
//! has aggregated them, so the cases bind the roles from which they are aggregated.

use super::Table;

pub(super) const CASES: Table = &[
    ("a denial names user, verb, resource and namespace", "
AS ann GET pods
403 Forbidden: pods is forbidden: User \"ann\" cannot list resource \"pods\" in API group \"\" in the namespace \"$ns\"
AS ann GET pods/a
403 Forbidden: pods \"a\" is forbidden: User \"ann\" cannot get resource \"pods\" in API group \"\" in the namespace \"$ns\"
AS ann GET nodes
403 Forbidden: nodes is forbidden: User \"ann\" cannot list resource \"nodes\" in API group \"\" at the cluster scope
AS ann GET /api/v1/pods
403 Forbidden: pods is forbidden: User \"ann\" cannot list resource \"pods\" in API group \"\" at the cluster scope
AS ann DELETE deployments
403 Forbidden: deployments.apps is forbidden: User \"ann\" cannot deletecollection resource \"deployments\" in API group \"apps\" in the namespace \"$ns\"
AS ann PATCH-MERGE deployments/a/status {status: {}}
403 Forbidden: deployments.apps \"a\" is forbidden: User \"ann\" cannot patch resource \"deployments/status\" in API group \"apps\" in the namespace \"$ns\"
AS ann POST configmaps {metadata: {name: a}}
403 Forbidden: configmaps is forbidden: User \"ann\" cannot create resource \"configmaps\" in API group \"\" in the namespace \"$ns\"
AS ann GET pods?watch=true
403 Forbidden: pods is forbidden: User \"ann\" cannot watch resource \"pods\" in API group \"\" in the namespace \"$ns\"
AS ann GET /metrics
403 Forbidden: forbidden: User \"ann\" cannot get path \"/metrics\""),
    ("authorization is checked before existence", "
AS ann GET /apis/nope.example.com/v1/nopes
403 Forbidden: nopes.nope.example.com is forbidden: User \"ann\" cannot list resource \"nopes\" in API group \"nope.example.com\" at the cluster scope"),
    ("authenticated users can use discovery", "
AS ann GET /version
200 {major: '1', minor: '36'}
AS ann GET /api
200
AS ann GET /apis/apps/v1
200
AS ann GET /healthz
200"),
    ("a certificate signing request has its requester", "
POST clusterroles {metadata: {name: $ns}, rules: [{apiGroups: [certificates.k8s.io], resources: [certificatesigningrequests, certificatesigningrequests/approval], verbs: [create, get, update, patch]}]}
201
POST clusterrolebindings {metadata: {name: $ns}, roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: $ns}, subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: $ns}]}
201
UNTIL AS $ns GET certificatesigningrequests/nope
404 NotFound
AS $ns POST certificatesigningrequests {metadata: {name: $ns}, spec: {signerName: example.com/a, usages: [client auth], request: LS0tLS1CRUdJTiBDRVJUSUZJQ0FURSBSRVFVRVNULS0tLS0KTUlISU1IQUNBUUF3RGpFTU1Bb0dBMVVFQXd3RFlXNXVNRmt3RXdZSEtvWkl6ajBDQVFZSUtvWkl6ajBEQVFjRApRZ0FFaVk3Zk04QlJQdHRDTXEyQWJEZGRTVDVRMmllUUs2WEpNNDRZZFlpTGhZR2x3N29CQ05BakkzM29vS3NRCnFtT0xVRkRBNEFxUmp3V2tPaE9zTjZacW42QUFNQW9HQ0NxR1NNNDlCQU1DQTBnQU1FVUNJRGNPZzcyWE90WlUKMjZkN1REUy8wZEFWUlBLWDR6L0cyaGJsK0xkMEhHUVpBaUVBM3hnQWtDMTBSYTdGTFh3UU01NVhiZTN5QndRNwp2Z1pIZ2gvdlphUXdIakk9Ci0tLS0tRU5EIENFUlRJRklDQVRFIFJFUVVFU1QtLS0tLQo=, username: root, groups: ['system:masters']}}
201 {spec: {username: $ns, groups: ['system:authenticated']}, status: {conditions: ABSENT}}
AS $ns PATCH-MERGE certificatesigningrequests/$ns {spec: {username: root}}
200 {spec: {username: $ns}}
AS $ns PATCH-MERGE certificatesigningrequests/$ns/approval {status: {conditions: [{type: Approved, status: 'True', reason: r}]}}
403 {reason: Forbidden, message: '~user not permitted to approve requests with signerName \"example.com/a\"'}"),
    ("a role applies in its namespace", "
POST roles {metadata: {name: r}, rules: [{apiGroups: [''], resources: [pods], verbs: [get, list]}]}
201
POST rolebindings {metadata: {name: b}, roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: r}, subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: ann}]}
201
UNTIL AS ann GET pods
200 []
AS ann GET pods/a
404 NotFound
AS bob GET pods
403 Forbidden
AS ann GET pods/a/log
403 Forbidden
AS ann GET /api/v1/namespaces/default/pods
403 Forbidden
AS ann POST pods {metadata: {name: a}, spec: {containers: [{name: c, image: i}]}}
403 Forbidden
DELETE rolebindings/b
200
UNTIL AS ann GET pods
403 Forbidden"),
    ("a cluster role bound in a namespace, to a group", "
POST rolebindings {metadata: {name: b}, roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: 'system:aggregate-to-view'}, subjects: [{apiGroup: rbac.authorization.k8s.io, kind: Group, name: staff}]}
201
UNTIL AS ann,staff GET configmaps
200
AS ann,staff GET secrets
403 Forbidden
AS ann,others GET configmaps
403 Forbidden"),
    ("resource names in a rule", "
POST roles {metadata: {name: r}, rules: [{apiGroups: [''], resources: [configmaps], verbs: [get, list, create], resourceNames: [a]}]}
201
POST rolebindings {metadata: {name: b}, roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: r}, subjects: [{kind: User, name: ann}]}
201
UNTIL AS ann GET configmaps/a
404 NotFound
AS ann GET configmaps/b
403 Forbidden
AS ann GET configmaps
403 Forbidden
AS ann GET configmaps?fieldSelector=metadata.name%3Da
200 []
AS ann POST configmaps {metadata: {name: a}}
403 Forbidden"),
    ("a service account and its groups", "
AS system:serviceaccount:$ns:robot POST /apis/authentication.k8s.io/v1/selfsubjectreviews {apiVersion: authentication.k8s.io/v1, kind: SelfSubjectReview}
201 {status: {userInfo: {username: 'system:serviceaccount:$ns:robot', groups: ['system:serviceaccounts', 'system:serviceaccounts:$ns', 'system:authenticated']}}}
POST rolebindings {metadata: {name: b}, roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: 'system:aggregate-to-edit'}, subjects: [{kind: ServiceAccount, name: robot, namespace: $ns}]}
201
UNTIL AS system:serviceaccount:$ns:robot GET secrets
200"),
    ("a self subject review with impersonation", "
AS ann,staff POST /apis/authentication.k8s.io/v1/selfsubjectreviews {apiVersion: authentication.k8s.io/v1, kind: SelfSubjectReview}
201 {status: {userInfo: {username: ann, groups: [staff, 'system:authenticated']}}}
AS system:anonymous GET pods
403 Forbidden: pods is forbidden: User \"system:anonymous\" cannot list resource \"pods\" in API group \"\" in the namespace \"$ns\""),
    ("privilege escalation is denied", "
POST roles {metadata: {name: maker}, rules: [{apiGroups: [rbac.authorization.k8s.io], resources: [roles, rolebindings], verbs: ['create']}, {apiGroups: [''], resources: [pods], verbs: [get]}]}
201
POST rolebindings {metadata: {name: b}, roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: maker}, subjects: [{kind: User, name: ann}]}
201
UNTIL AS ann POST roles {metadata: {generateName: ok}, rules: [{apiGroups: [''], resources: [pods], verbs: [get]}]}
201
AS ann POST roles {metadata: {name: more}, rules: [{apiGroups: [''], resources: [pods], verbs: [get, list]}]}
403 {reason: Forbidden, message: '~is attempting to grant RBAC permissions not currently held'}
AS ann POST rolebindings {metadata: {name: more}, roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: 'system:aggregate-to-edit'}, subjects: [{kind: User, name: ann}]}
403 Forbidden"),
    ("reviews", "
AS ann POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews {apiVersion: authorization.k8s.io/v1, kind: SelfSubjectAccessReview, spec: {resourceAttributes: {namespace: $ns, verb: get, resource: pods}}}
201 {status: {allowed: false}}
POST /apis/authorization.k8s.io/v1/subjectaccessreviews {apiVersion: authorization.k8s.io/v1, kind: SubjectAccessReview, spec: {user: ann, groups: ['system:masters'], resourceAttributes: {namespace: $ns, verb: get, resource: pods}}}
201 {status: {allowed: true}}
AS ann POST /apis/authorization.k8s.io/v1/subjectaccessreviews {apiVersion: authorization.k8s.io/v1, kind: SubjectAccessReview, spec: {user: bob, nonResourceAttributes: {path: /api, verb: get}}}
403 Forbidden"),
    ("the role of a binding is immutable", "
POST rolebindings {metadata: {name: b}, roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: view}, subjects: []}
201
PATCH-MERGE rolebindings/b {roleRef: {name: edit}}
422 {reason: Invalid, message: '~cannot change roleRef'}"),
];
