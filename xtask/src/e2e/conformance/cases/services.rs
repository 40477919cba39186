//! ClusterIPs and node ports of services, defaults from classes for pods and PersistentVolumeClaims, and storage protection. Both
//! servers have addresses from 10.96.0.0 to 10.96.255.254; each address is used by one case only.

use super::Table;

pub(super) const CASES: Table = &[
    ("a requested cluster IP", "
POST services {metadata: {name: a}, spec: {clusterIP: 10.96.0.201, ports: [{port: 80}]}}
201 {spec: {clusterIP: 10.96.0.201, clusterIPs: [10.96.0.201], ipFamilies: [IPv4], ipFamilyPolicy: SingleStack}}
POST services {metadata: {name: b}, spec: {clusterIP: 10.96.0.201, ports: [{port: 80}]}}
422 {reason: Invalid, message: '~failed to allocate IP 10.96.0.201: provided IP is already allocated',
  details: {causes: [{field: spec.clusterIPs, reason: FieldValueInvalid}]}}
DELETE services/a
200
UNTIL POST services {metadata: {name: b}, spec: {clusterIP: 10.96.0.201, ports: [{port: 80}]}}
201"),
    ("a cluster IP out of range", "
POST services {metadata: {name: a}, spec: {clusterIP: 10.200.0.1, ports: [{port: 80}]}}
422 {reason: Invalid, message: '~failed to allocate IP 10.200.0.1: the provided network does not match the current range',
  details: {causes: [{field: spec.clusterIPs}]}}"),
    ("an invalid cluster IP", "
POST services {metadata: {name: a}, spec: {clusterIP: 10.96.0, ports: [{port: 80}]}}
422 {reason: Invalid, details: {causes: [{field: 'spec.clusterIPs[0]',
  message: 'Invalid value: \"10.96.0\": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)'}]}}
POST services {metadata: {name: a}, spec: {clusterIP: 10.96.0.010, ports: [{port: 80}]}}
422 {reason: Invalid, details: {causes: [{field: 'spec.clusterIPs[0]', message: '~must not have leading 0s'}]}}"),
    ("another IP family", "
POST services {metadata: {name: a}, spec: {clusterIP: 'fd00::1', ports: [{port: 80}]}}
422 {reason: Invalid, message: '~IPv6 is not configured on this cluster'}
POST services {metadata: {name: a}, spec: {ipFamilyPolicy: RequireDualStack, ports: [{port: 80}]}}
422 {reason: Invalid, message: '~this cluster is not configured for dual-stack services'}
POST services {metadata: {name: a}, spec: {ipFamilies: [IPv6], ports: [{port: 80}]}}
422 {reason: Invalid, details: {causes: [{field: 'spec.ipFamilies[0]', message: '~not configured on this cluster'}]}}"),
    ("headless and external services", "
POST services {metadata: {name: a}, spec: {clusterIP: None}}
201 {spec: {clusterIPs: [None], ipFamilies: [IPv4, IPv6], ipFamilyPolicy: RequireDualStack}}
POST services {metadata: {name: b}, spec: {clusterIP: None, selector: {a: b}}}
201 {spec: {clusterIPs: [None], ipFamilies: [IPv4], ipFamilyPolicy: SingleStack}}
POST services {metadata: {name: c}, spec: {type: NodePort, clusterIP: None, ports: [{port: 80}]}}
422 {reason: Invalid, message: '~may not be set to ''None'' for NodePort services'}
POST services {metadata: {name: d}, spec: {type: ExternalName, clusterIP: 10.96.0.202, externalName: x.y}}
422 {reason: Invalid, message: '~may not be set for ExternalName services'}"),
    ("a requested node port", "
POST services {metadata: {name: a}, spec: {type: NodePort, ports: [{port: 80, nodePort: 30011}]}}
201 {spec: {externalTrafficPolicy: Cluster}}
POST services {metadata: {name: b}, spec: {type: NodePort, ports: [{port: 80, nodePort: 30011}]}}
422 {reason: Invalid, details: {causes: [{field: 'spec.ports[0].nodePort',
  message: 'Invalid value: 30011: provided port is already allocated'}]}}
POST services {metadata: {name: b}, spec: {type: NodePort, ports: [{port: 80, nodePort: 80}]}}
422 {reason: Invalid, details: {causes: [{field: 'spec.ports[0].nodePort',
  message: 'Invalid value: 80: provided port is not in the valid range. The range of valid ports is 30000-32767'}]}}
POST services {metadata: {name: b}, spec: {ports: [{port: 80, nodePort: 30012}]}}
422 {reason: Invalid, message: '~may not be used when `type` is ''ClusterIP'''}"),
    ("a service that changes its type", "
POST services {metadata: {name: a}, spec: {ports: [{port: 80}]}}
201 {spec: {type: ClusterIP, clusterIP: $ip, externalTrafficPolicy: ABSENT}}
PATCH-MERGE services/a {spec: {type: NodePort}}
200 {spec: {clusterIP: $ip, externalTrafficPolicy: Cluster, ports: [{port: 80, targetPort: 80, protocol: TCP, nodePort: $port}]}}
PUT services/a {metadata: {name: a}, spec: {type: NodePort, ports: [{port: 80}]}}
200 {spec: {clusterIP: $ip, ports: [{port: 80, targetPort: 80, protocol: TCP, nodePort: $port}]}}
PATCH-MERGE services/a {spec: {clusterIP: 10.96.0.203}}
422 {reason: Invalid, details: {causes: [{field: 'spec.clusterIPs[0]', message: '~may not change once set'}]}}
PATCH-MERGE services/a {spec: {type: ClusterIP}}
200 {spec: {clusterIP: $ip, externalTrafficPolicy: ABSENT, ports: [{port: 80, targetPort: 80, protocol: TCP}]}}
PATCH-MERGE services/a {spec: {type: ExternalName, externalName: x.y}}
200 {spec: {clusterIP: ABSENT, clusterIPs: ABSENT, ipFamilies: ABSENT, ipFamilyPolicy: ABSENT}}
PATCH-MERGE services/a {spec: {type: ClusterIP, externalName: null}}
200 {spec: {clusterIP: _, ipFamilies: [IPv4], ipFamilyPolicy: SingleStack}}"),
    ("two protocols on one port", "
POST services {metadata: {name: a}, spec: {type: NodePort, ports: [{name: t, port: 53}, {name: u, port: 53, protocol: UDP}]}}
201 {spec: {ports: [{name: t, port: 53, targetPort: 53, protocol: TCP, nodePort: $port},
  {name: u, port: 53, targetPort: 53, protocol: UDP, nodePort: $port}]}}"),
    ("duplicate ports", "
POST services {metadata: {name: a}, spec: {ports: [{name: p, port: 80}, {name: p, port: 80}]}}
422 {reason: Invalid, details: {causes: [{field: 'spec.ports[1].name', message: 'Duplicate value: \"p\"'}, {field: 'spec.ports[1]',
  message: 'Duplicate value: {\"Name\":\"\",\"Protocol\":\"TCP\",\"AppProtocol\":null,\"Port\":80,\"TargetPort\":0,\"NodePort\":0}'}]}}"),
    ("a load balancer service", "
POST services {metadata: {name: a}, spec: {type: LoadBalancer, externalTrafficPolicy: Local, ports: [{port: 80}]}}
201 {spec: {allocateLoadBalancerNodePorts: true, healthCheckNodePort: _}}
POST services {metadata: {name: b}, spec: {type: LoadBalancer, allocateLoadBalancerNodePorts: false, ports: [{port: 80}]}}
201 {spec: {ports: [{port: 80, targetPort: 80, protocol: TCP}]}}
POST services {metadata: {name: c}, spec: {healthCheckNodePort: 30000, loadBalancerClass: a/b, ports: [{port: 80}]}}
422 {reason: Invalid, details: {causes: [
  {field: spec.loadBalancerClass, message: 'Forbidden: may only be used when `type` is ''LoadBalancer'''},
  {field: spec.healthCheckNodePort, message: '~Invalid value: 30000: may only be set when `type`'}]}}"),
    ("a pod with a runtime class", "
POST /apis/node.k8s.io/v1/runtimeclasses {metadata: {name: $ns}, handler: h, overhead: {podFixed: {memory: 1Gi}},
  scheduling: {nodeSelector: {vm: 'yes'}, tolerations: [{key: vm, operator: Exists, effect: NoSchedule}]}}
201
UNTIL POST pods {metadata: {name: a}, spec: {runtimeClassName: $ns, containers: [{name: c, image: i}]}}
201 {spec: {overhead: {memory: 1Gi}, nodeSelector: {vm: 'yes'}}}
POST pods {metadata: {name: b}, spec: {runtimeClassName: $ns, overhead: {memory: 2Gi}, containers: [{name: c, image: i}]}}
403 Forbidden: pods \"b\" is forbidden: pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead
POST pods {metadata: {name: b}, spec: {runtimeClassName: $ns, nodeSelector: {vm: 'no'}, containers: [{name: c, image: i}]}}
403 Forbidden: pods \"b\" is forbidden: conflict: runtimeClass.scheduling.nodeSelector[vm] = yes; pod.spec.nodeSelector[vm] = no
POST pods {metadata: {name: b}, spec: {runtimeClassName: $ns-none, containers: [{name: c, image: i}]}}
403 Forbidden: pods \"b\" is forbidden: pod rejected: RuntimeClass \"$ns-none\" not found
POST pods {metadata: {name: b}, spec: {overhead: {memory: 2Gi}, containers: [{name: c, image: i}]}}
403 Forbidden: pods \"b\" is forbidden: pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead
DELETE /apis/node.k8s.io/v1/runtimeclasses/$ns
200"),
    ("a claim is protected by a finalizer", "
POST persistentvolumeclaims {metadata: {name: a}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}
201 {metadata: {finalizers: [kubernetes.io/pvc-protection]}}
POST persistentvolumeclaims {metadata: {name: b, finalizers: [x.io/y]}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}
201 {metadata: {finalizers: [x.io/y, kubernetes.io/pvc-protection]}}
DELETE persistentvolumeclaims/a
200 {metadata: {deletionTimestamp: _}}
GET persistentvolumeclaims/a
200 {metadata: {finalizers: [kubernetes.io/pvc-protection]}}
PATCH-MERGE persistentvolumeclaims/a {metadata: {finalizers: null}}
200
GET persistentvolumeclaims/a
404 NotFound"),
    ("volumes and volume attributes classes are protected by a finalizer", "
POST persistentvolumes {metadata: {name: $ns}, spec: {accessModes: [ReadWriteOnce], capacity: {storage: 1Gi}, hostPath: {path: /x}}}
201 {metadata: {finalizers: [kubernetes.io/pv-protection]}, status: {phase: Pending, lastPhaseTransitionTime: _}}
PATCH-MERGE persistentvolumes/$ns/status {status: {phase: Available, lastPhaseTransitionTime: null}}
200 {status: {phase: Available, lastPhaseTransitionTime: _}}
PATCH-MERGE persistentvolumes/$ns/status {status: {lastPhaseTransitionTime: '2026-01-01T00:00:00Z'}}
200 {status: {phase: Available, lastPhaseTransitionTime: '2026-01-01T00:00:00Z'}}
PATCH-MERGE persistentvolumes/$ns/status {status: {phase: Bound}}
200 {status: {phase: Bound, lastPhaseTransitionTime: '~Z'}}
PATCH-MERGE persistentvolumes/$ns {metadata: {finalizers: null}}
200 {metadata: {finalizers: ABSENT}}
DELETE persistentvolumes/$ns
200
POST /apis/storage.k8s.io/v1/volumeattributesclasses {metadata: {name: $ns}, driverName: example.com, parameters: {a: b}}
201 {metadata: {finalizers: [kubernetes.io/vac-protection]}}
DELETE /apis/storage.k8s.io/v1/volumeattributesclasses/$ns
200 {metadata: {deletionTimestamp: _}}"),
    ("a controller revision without data", "
POST controllerrevisions {metadata: {name: a}, revision: -1}
422 {reason: Invalid, details: {causes: [{field: revision, message: '~must be greater than or equal to 0'},
  {field: data, message: 'Required value: data is mandatory'}]}}
POST controllerrevisions {metadata: {name: a}, revision: 1, data: [1]}
422 {reason: Invalid, details: {causes: [{field: data, message: 'Required value: data must be a valid JSON object'}]}}
POST controllerrevisions {metadata: {name: a}, revision: 1, data: {x: 1}}
201 {data: {x: 1}}
PATCH-MERGE controllerrevisions/a {data: {x: 2}}
422 {reason: Invalid, details: {causes: [{field: data, message: '~field is immutable'}]}}"),
];
