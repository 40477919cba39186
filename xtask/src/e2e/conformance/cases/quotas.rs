//! What a namespace may use. No controller runs: cases write the status of their quotas themselves, and wait until the server goes by
//! it.

use super::Table;

pub(super) const CASES: Table = &[
    ("pods are limited by a quota", "
POST resourcequotas {metadata: {name: q}, spec: {hard: {pods: 2, requests.cpu: 1}}}
201
PATCH-MERGE resourcequotas/q/status {status: {hard: {pods: 2, requests.cpu: 1}, used: {pods: 0, requests.cpu: 0}}}
200
UNTIL POST pods?dryRun=All {metadata: {name: x}, spec: {containers: [{name: c, image: i}]}}
403 Forbidden: pods \"x\" is forbidden: failed quota: q: must specify requests.cpu for: c
POST pods {metadata: {name: a}, spec: {containers: [{name: c, image: i, resources: {requests: {cpu: 600m}}}]}}
201
GET resourcequotas/q
200 {status: {hard: {pods: '2', requests.cpu: '1'}, used: {pods: '1', requests.cpu: 600m}}}
POST pods {metadata: {name: b}, spec: {containers: [{name: c, image: i, resources: {requests: {cpu: 500m}}}]}}
403 Forbidden: pods \"b\" is forbidden: exceeded quota: q, requested: requests.cpu=500m, used: requests.cpu=600m, limited: requests.cpu=1
POST pods?dryRun=All {metadata: {name: b}, spec: {containers: [{name: c, image: i, resources: {requests: {cpu: 400m}}}]}}
201
GET resourcequotas/q
200 {status: {used: {pods: '1', requests.cpu: 600m}}}
POST pods {metadata: {name: b}, spec: {containers: [{name: c, image: i, resources: {requests: {cpu: 400m}}}]}}
201
POST pods {metadata: {name: c}, spec: {containers: [{name: c, image: i, resources: {requests: {cpu: 1m}}}]}}
403 Forbidden: pods \"c\" is forbidden: exceeded quota: q, requested: pods=1,requests.cpu=1m, used: pods=2,requests.cpu=1, limited: pods=2,requests.cpu=1"),
    ("limits and extended resources", "
POST resourcequotas {metadata: {name: q}, spec: {hard: {limits.memory: 1Gi, requests.x.io/gpu: 1}}}
201
PATCH-MERGE resourcequotas/q/status {status: {hard: {limits.memory: 1Gi, requests.x.io/gpu: 1}, used: {limits.memory: 0, requests.x.io/gpu: 0}}}
200
UNTIL POST pods?dryRun=All {metadata: {name: x}, spec: {containers: [{name: c, image: i}], initContainers: [{name: b, image: i}]}}
403 Forbidden: pods \"x\" is forbidden: failed quota: q: must specify limits.memory for: b,c
POST pods {metadata: {name: a}, spec: {containers: [{name: c, image: i, resources: {limits: {memory: 1Gi, x.io/gpu: 1}}}]}}
201
GET resourcequotas/q
200 {status: {used: {limits.memory: 1Gi, requests.x.io/gpu: '1'}}}
POST pods {metadata: {name: b}, spec: {containers: [{name: c, image: i, resources: {limits: {memory: 1, x.io/gpu: 1}}}]}}
403 Forbidden: pods \"b\" is forbidden: exceeded quota: q, requested: limits.memory=1,requests.x.io/gpu=1, used: limits.memory=1Gi,requests.x.io/gpu=1, limited: limits.memory=1Gi,requests.x.io/gpu=1"),
    ("a quota without a status", "
POST resourcequotas {metadata: {name: q}, spec: {hard: {pods: 0}}}
201
POST pods {metadata: {name: a}, spec: {containers: [{name: c, image: i}]}}
201
PATCH-MERGE resourcequotas/q/status {status: {hard: {pods: 0, services: 0}}}
200
UNTIL POST pods?dryRun=All {metadata: {name: b}, spec: {containers: [{name: c, image: i}]}}
403 Forbidden: pods \"b\" is forbidden: status unknown for quota: q, resources: pods"),
    ("quotas with scopes", "
POST resourcequotas {metadata: {name: q}, spec: {hard: {pods: 0}, scopes: [Terminating]}}
201
PATCH-MERGE resourcequotas/q/status {status: {hard: {pods: 0}, used: {pods: 0}}}
200
UNTIL POST pods?dryRun=All {metadata: {name: x}, spec: {activeDeadlineSeconds: 9, containers: [{name: c, image: i}]}}
403 Forbidden: pods \"x\" is forbidden: exceeded quota: q, requested: pods=1, used: pods=0, limited: pods=0
POST pods {metadata: {name: a}, spec: {containers: [{name: c, image: i}]}}
201
PATCH-MERGE pods/a {spec: {activeDeadlineSeconds: 9}}
403 Forbidden: pods \"a\" is forbidden: exceeded quota: q, requested: pods=1, used: pods=0, limited: pods=0"),
    ("a quota for a priority class", "
POST resourcequotas {metadata: {name: q}, spec: {hard: {pods: 0}, scopeSelector: {matchExpressions: [
  {scopeName: PriorityClass, operator: In, values: [system-node-critical]}]}}}
201
PATCH-MERGE resourcequotas/q/status {status: {hard: {pods: 0}, used: {pods: 0}}}
200
UNTIL POST pods?dryRun=All {metadata: {name: x}, spec: {priorityClassName: system-node-critical, containers: [{name: c, image: i}]}}
403 Forbidden: pods \"x\" is forbidden: exceeded quota: q, requested: pods=1, used: pods=0, limited: pods=0
POST pods {metadata: {name: a}, spec: {priorityClassName: system-cluster-critical, containers: [{name: c, image: i}]}}
201"),
    ("claims of a storage class", "
POST resourcequotas {metadata: {name: q}, spec: {hard: {requests.storage: 3Gi, gold.storageclass.storage.k8s.io/persistentvolumeclaims: 0}}}
201
PATCH-MERGE resourcequotas/q/status {status: {hard: {requests.storage: 3Gi, gold.storageclass.storage.k8s.io/persistentvolumeclaims: 0},
  used: {requests.storage: 0, gold.storageclass.storage.k8s.io/persistentvolumeclaims: 0}}}
200
UNTIL POST persistentvolumeclaims?dryRun=All {metadata: {name: x}, spec: {storageClassName: gold, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}
403 Forbidden: persistentvolumeclaims \"x\" is forbidden: exceeded quota: q, requested: gold.storageclass.storage.k8s.io/persistentvolumeclaims=1, used: gold.storageclass.storage.k8s.io/persistentvolumeclaims=0, limited: gold.storageclass.storage.k8s.io/persistentvolumeclaims=0
POST persistentvolumeclaims {metadata: {name: a}, spec: {storageClassName: '', accessModes: [ReadWriteOnce], resources: {requests: {storage: 2Gi}}}}
201
GET resourcequotas/q
200 {status: {used: {requests.storage: 2Gi}}}
POST persistentvolumeclaims {metadata: {name: b}, spec: {storageClassName: '', accessModes: [ReadWriteOnce], resources: {requests: {storage: 2Gi}}}}
403 Forbidden: persistentvolumeclaims \"b\" is forbidden: exceeded quota: q, requested: requests.storage=2Gi, used: requests.storage=2Gi, limited: requests.storage=3Gi"),
    ("services and their node ports", "
POST resourcequotas {metadata: {name: q}, spec: {hard: {services: 5, services.nodeports: 1}}}
201
PATCH-MERGE resourcequotas/q/status {status: {hard: {services: 5, services.nodeports: 1}, used: {services: 0, services.nodeports: 0}}}
200
UNTIL POST services?dryRun=All {metadata: {name: x}, spec: {type: NodePort, ports: [{name: a, port: 80}, {name: b, port: 81}]}}
403 Forbidden: services \"x\" is forbidden: exceeded quota: q, requested: services.nodeports=2, used: services.nodeports=0, limited: services.nodeports=1
POST services {metadata: {name: a}, spec: {ports: [{port: 80}]}}
201
PATCH-MERGE services/a {spec: {type: NodePort}}
200
GET resourcequotas/q
200 {status: {used: {services: '1', services.nodeports: '1'}}}
POST services {metadata: {name: b}, spec: {type: NodePort, ports: [{port: 80}]}}
403 Forbidden: services \"b\" is forbidden: exceeded quota: q, requested: services.nodeports=1, used: services.nodeports=1, limited: services.nodeports=1"),
    ("object count quotas", "
POST resourcequotas {metadata: {name: q}, spec: {hard: {count/secrets: 1, secrets: 9, count/leases.coordination.k8s.io: 0}}}
201
PATCH-MERGE resourcequotas/q/status {status: {hard: {count/secrets: 1, secrets: 9, count/leases.coordination.k8s.io: 0},
  used: {count/secrets: 0, secrets: 0, count/leases.coordination.k8s.io: 0}}}
200
UNTIL POST leases?dryRun=All {metadata: {name: x}}
403 Forbidden: leases.coordination.k8s.io \"x\" is forbidden: exceeded quota: q, requested: count/leases.coordination.k8s.io=1, used: count/leases.coordination.k8s.io=0, limited: count/leases.coordination.k8s.io=0
POST secrets {metadata: {name: a}}
201
POST secrets {metadata: {name: b}}
403 Forbidden: secrets \"b\" is forbidden: exceeded quota: q, requested: count/secrets=1, used: count/secrets=1, limited: count/secrets=1
GET resourcequotas/q
200 {status: {used: {count/secrets: '1', secrets: '1'}}}"),
    ("a quota of unknown resources", "
POST resourcequotas {metadata: {name: q}, spec: {hard: {gpu: 1}}}
422 {reason: Invalid, details: {causes: [
  {field: 'spec.hard[gpu]', message: 'Invalid value: \"gpu\": must be a standard resource type or fully qualified'},
  {field: 'spec.hard[gpu]', message: 'Invalid value: \"gpu\": must be a standard resource for quota'}]}}
POST resourcequotas {metadata: {name: q}, spec: {hard: {pods: 1500m}}}
422 {reason: Invalid, details: {causes: [{field: 'spec.hard[pods]', message: 'Invalid value: \"1500m\": must be an integer'}]}}
POST resourcequotas {metadata: {name: q}, spec: {hard: {cpu: -1}}}
422 {reason: Invalid, details: {causes: [{field: 'spec.hard[cpu]', message: 'Invalid value: \"-1\": must be greater than or equal to 0'}]}}"),
    ("invalid combinations of scopes", "
POST resourcequotas {metadata: {name: q}, spec: {hard: {cpu: 1}, scopes: [BestEffort]}}
422 {reason: Invalid, details: {causes: [{field: spec.scopes, message: 'Invalid value: [\"BestEffort\"]: unsupported scope applied to resource'}]}}
POST resourcequotas {metadata: {name: q}, spec: {hard: {pods: 1}, scopes: [BestEffort, NotBestEffort]}}
422 {reason: Invalid, details: {causes: [{field: spec.scopes, message: 'Invalid value: [\"BestEffort\",\"NotBestEffort\"]: conflicting scopes'}]}}
POST resourcequotas {metadata: {name: q}, spec: {hard: {pods: 1}, scopes: [Often]}}
422 {reason: Invalid, details: {causes: [{field: spec.scopes, message: 'Invalid value: [\"Often\"]: unsupported scope'}]}}
POST resourcequotas {metadata: {name: q}, spec: {hard: {pods: 1}, scopeSelector: {matchExpressions: [{scopeName: PriorityClass, operator: In}]}}}
422 {reason: Invalid, details: {causes: [{field: spec.scopeSelector.matchExpressions.values,
  message: '~must be at least one value when `operator` is ''In'' or ''NotIn'' for scope selector'}]}}
POST resourcequotas {metadata: {name: q}, spec: {hard: {pods: 1}, scopes: [BestEffort]}}
201
PATCH-MERGE resourcequotas/q {spec: {scopes: [NotBestEffort]}}
422 {reason: Invalid, details: {causes: [{field: spec.scopes, message: '~field is immutable'}]}}"),
];
