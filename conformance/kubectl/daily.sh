# Everyday kubectl commands whose output is compared between two servers: daily.sh KUBECTL KUBECONFIG.
kubectl=$1
export KUBECONFIG=$2
cd "$(dirname "$0")" || exit 2
t(){ echo "\$ kubectl $*"; timeout 20 "$kubectl" "$@" 2>&1; echo "= $?"; }
c(){ echo "\$ create <<< $1"; echo "$1" | timeout 20 "$kubectl" create -f - 2>&1; }
# Edits an object with a sed script: object, script, further flags.
e(){ local what=$1 program=$2; shift 2; echo "\$ edit $what with $program $*"; KUBE_EDITOR="sed -i -E '$program'" timeout 20 "$kubectl" edit "$@" "$what" 2>&1 | sed -E 's/kubectl-edit-[0-9]+/kubectl-edit/g'; echo "= ${PIPESTATUS[0]}"; }
t create ns daily; t config set-context --current --namespace=daily > /dev/null
# Watching, while something happens.
w(){ echo "\$ watch $*"; timeout 30 "$kubectl" get "$@" -w > "$watched" 2>&1 & watcher=$!; sleep 3; }
ended(){ sleep 2; kill $watcher 2> /dev/null; wait $watcher 2> /dev/null; cat "$watched"; }
watched=$(mktemp); trap 'rm -f "$watched"' EXIT
w pods; t run w1 --image=i; t label pod w1 a=b; t delete pod w1 --grace-period=0 --force; ended
w deploy -o name; t create deploy w --image=i; t scale deploy w --replicas=2; t delete deploy w; ended
w cm,secret -l 'k=v'; ended
w pods --output-watch-events -l a=b; t run w2 --image=i; t label pod w2 a=b; t label pod w2 a-; t delete pod w2 --grace-period=0 --force; ended
w nodes -o custom-columns=N:.metadata.name,U:.spec.unschedulable; c '{"apiVersion":"v1","kind":"Node","metadata":{"name":"d1"}}'; t cordon d1; t uncordon d1; ended
t get pods --watch-only --request-timeout=1s
# Editing.
t create deploy web --image=nginx:1 --replicas=2; t create cm settings --from-literal=a=1
e deploy/web 's/replicas: 2/replicas: 4/'; e deploy/web 's/nothing/nothing/'; e deploy/web 's/replicas: 4/replicas: -4/'; e cm/settings 's/a: "1"/a: "2"/' -o json; e cm/settings 's/"a": "1"/"a": "2"/' -o json; e cm/settings 's/^data:/nope:/'; e cm/settings 's/kind: ConfigMap/kind: Secret/'; e cm/settings 's/^  name: settings/  name: other/'; e cm/nope 's/a/b/'; t get deploy web -o jsonpath='{.spec.replicas}'; t get cm settings -o jsonpath='{.data}'
# Rollouts: what the controller of Deployments would have made stands in two ReplicaSets.
uid=$("$kubectl" get deploy web -o jsonpath='{.metadata.uid}')
rs(){ c '{"apiVersion":"apps/v1","kind":"ReplicaSet","metadata":{"name":"web-'"$1"'","labels":{"app":"web","pod-template-hash":"'"$1"'"},"annotations":{"deployment.kubernetes.io/revision":"'"$1"'","kubernetes.io/change-cause":"image '"$2"'"},"ownerReferences":[{"apiVersion":"apps/v1","kind":"Deployment","name":"web","uid":"'"$uid"'","controller":true}]},"spec":{"replicas":0,"selector":{"matchLabels":{"app":"web","pod-template-hash":"'"$1"'"}},"template":{"metadata":{"labels":{"app":"web","pod-template-hash":"'"$1"'"}},"spec":{"containers":[{"name":"nginx","image":"nginx:'"$2"'"}]}}}}' | sed "s/$uid/UID/"; }
t rollout undo deploy/web; rs 1 0; rs 2 1; t rollout history deploy/web; t rollout history deploy/web --revision=1; t rollout undo deploy/web --to-revision=1 --dry-run=server; t rollout undo deploy/web; t get deploy web -o jsonpath='{.spec.template.spec.containers[0].image}'; t rollout undo deploy/web --to-revision=2; t rollout undo deploy/web --to-revision=2; t rollout undo deploy/web --to-revision=9; t get deploy web -o jsonpath='{.spec.template.spec.containers[0].image}'
t rollout pause deploy/web; t rollout pause deploy/web; t rollout undo deploy/web; t rollout resume deploy/web; t rollout restart deploy/web; t get deploy web -o jsonpath='{.spec.template.metadata.annotations}'; t patch deploy web --subresource=status --type=merge -p '{"status":{"observedGeneration":99,"replicas":4,"updatedReplicas":4,"readyReplicas":4,"availableReplicas":4}}'; t rollout status deploy/web; t get deploy web; t describe deploy web; t describe rs web-1; t autoscale deploy web --max=3; t get hpa; t describe hpa web
# Draining: what evictions of pods on a node meet, in any order.
d(){ t drain "$@" | sort; }
pod(){ c '{"apiVersion":"v1","kind":"Pod","metadata":{"name":"'"$1"'","labels":{"app":"'"$1"'"}'"$2"'},"spec":{"nodeName":"d1","containers":[{"name":"c","image":"i"}]'"$3"'}}'; }
pod bare '' ''; d d1; t get node d1; d d1 --force --grace-period=0 --timeout=10s; t get pods; t uncordon d1
pod owned ',"ownerReferences":[{"apiVersion":"apps/v1","kind":"ReplicaSet","name":"web-1","uid":"'"$("$kubectl" get rs web-1 -o jsonpath='{.metadata.uid}')"'","controller":true}]' '' | sed -E 's/"uid":"[^"]*"/"uid":"UID"/'; pod scratch '' ',"volumes":[{"name":"v","emptyDir":{}}]'; t create pdb guard --selector=app=guarded --min-available=1; pod guarded '' ''; t patch pod guarded --subresource=status -p '{"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"}]}}'; t patch pdb guard --subresource=status --type=merge -p '{"status":{"observedGeneration":1,"expectedPods":1,"desiredHealthy":1,"currentHealthy":1}}'
d d1 --dry-run=client; d d1 --force --delete-emptydir-data --grace-period=0 --timeout=3s; d d1 --force --delete-emptydir-data --grace-period=0 --timeout=3s --pod-selector=app=scratch; d d1 --disable-eviction --force --grace-period=0 --timeout=10s; t get pods,pdb; t delete node d1
# Deleting.
t create job j --image=i; t delete job j --cascade=orphan --wait=false; t get job j -o jsonpath='{.metadata.finalizers}'; t create job k --image=i; t delete job k --cascade=foreground --wait=false; t get job k -o jsonpath='{.metadata.finalizers}'; t patch job k --type=merge -p '{"metadata":{"finalizers":null}}'; t delete rs web-1 --cascade=background; t delete rs web-2 --cascade=sideways
t run d --image=i --overrides='{"spec":{"nodeName":"d1"}}'; t delete pod d --grace-period=5 --wait=false; t get pod d -o jsonpath='{.metadata.deletionGracePeriodSeconds}'; t delete pod d --grace-period=3 --wait=false; t get pod d -o jsonpath='{.metadata.deletionGracePeriodSeconds}'; t delete pod d --now --wait=false; t delete pod d --grace-period=0; t get pod d -o jsonpath='{.metadata.deletionGracePeriodSeconds}'; t delete pod d --force; t delete pods -l app=nope; t delete cm settings nope; t delete cm settings --ignore-not-found; t delete deploy web --dry-run=server; t delete deploy,hpa,pdb --all; t delete -f objects.yaml --dry-run=client
# Waiting.
t run x --image=i; t wait pod/x --for=jsonpath='{.spec.containers[0].image}'=i --timeout=5s; t wait pod/x --for=jsonpath='{.status.phase}'=Running --timeout=1s; t wait pod/x --for=condition=Ready=false --timeout=1s; t patch pod x --subresource=status -p '{"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"}]}}'; t wait pod/x --for=condition=Ready --timeout=5s; t wait pod/nope --for=delete --timeout=1s; t wait pod/nope --for=condition=Ready --timeout=1s; t wait pod/x --for=delete --timeout=1s; t wait pod --all --for=create --timeout=1s
# Differences.
echo '{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"settings"},"data":{"a":"1","b":"2"}}' | t apply -f -
echo '{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"settings"},"data":{"a":"2"}}' | t diff -f - | grep -v -E '^(diff|---|\+\+\+)'
echo '{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"fresh"},"data":{"a":"2"}}' | t diff -f - | grep -v -E '^(diff|---|\+\+\+)'
echo '{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"settings"},"data":{"a":2}}' | t diff -f -
echo '{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"settings"},"data":{"a":"2"}}' | t apply -f - --dry-run=server -o yaml
echo '{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"settings"},"data":{"a":"2"}}' | t replace -f - --save-config
t apply view-last-applied cm/settings; t apply -f - --prune -l a=b <<< '{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"pruned","labels":{"a":"b"}}}'; t apply -f - --prune -l a=b <<< '{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"kept","labels":{"a":"b"}}}'; t get cm -l a=b
# Events.
ev(){ c '{"apiVersion":"v1","kind":"Event","metadata":{"name":"'"$1"'"},"involvedObject":{"apiVersion":"v1","kind":"Pod","name":"'"$2"'","namespace":"daily"},"reason":"'"$3"'","message":"'"$4"'","type":"'"$5"'","source":{"component":"me"},"count":'"$6"',"firstTimestamp":"2026-01-01T00:00:00Z","lastTimestamp":"2026-01-0'"$6"'T00:00:00Z"}'; }
ev e1 x Scheduled 'on a node' Normal 1; ev e2 x FailedScheduling '0/3 nodes' Warning 3; ev e3 y Killing bye Normal 2
for call in 'events' 'events --for=pod/x' 'events --types=Warning' 'events -A' 'get events' 'get events --sort-by=.lastTimestamp -o wide' 'get events --field-selector involvedObject.name=y' 'get events.events.k8s.io' 'describe pod x'; do t $call | sed -E 's/\b([0-9]+d|[0-9]+y[0-9]*d?)( \(x[0-9]+ over [0-9]+d\))?/DAYS/g'; done
c '{"apiVersion":"v1","kind":"Event","metadata":{"name":"bad","namespace":"daily"},"involvedObject":{"kind":"Pod","namespace":"other","name":"x"},"reason":"R","type":"Normal"}'
c '{"apiVersion":"events.k8s.io/v1","kind":"Event","metadata":{"name":"bad","namespace":"daily"},"regarding":{"kind":"Pod","namespace":"daily","name":"x"},"type":"Odd","eventTime":"2026-01-01T00:00:00.000000Z"}'
# What there is, and what it means.
for group in '' apps batch policy scheduling.k8s.io storage.k8s.io coordination.k8s.io events.k8s.io discovery.k8s.io node.k8s.io resource.k8s.io rbac.authorization.k8s.io authentication.k8s.io authorization.k8s.io apiextensions.k8s.io networking.k8s.io certificates.k8s.io; do t api-resources --api-group=$group -o wide; done
t api-resources --verbs=list,watch --namespaced=false -o name --categories=all; t api-resources --categories=all; t version
for what in pods nodes deployments jobs cronjobs statefulsets daemonsets services configmaps events namespaces persistentvolumes persistentvolumeclaims priorityclasses storageclasses csinodes csistoragecapacities poddisruptionbudgets replicasets resourceclaims resourceslices deviceclasses leases customresourcedefinitions roles clusterrolebindings ingresses networkpolicies horizontalpodautoscalers endpointslices limitranges resourcequotas runtimeclasses; do t explain $what; t explain $what --recursive; done
for what in pod.spec pod.spec.affinity pod.spec.tolerations.operator pod.spec.containers.imagePullPolicy pod.spec.containers.ports pod.spec.containers.resources.limits pod.spec.topologySpreadConstraints pod.status.conditions pod.metadata pod.metadata.creationTimestamp pod.metadata.managedFields.fieldsV1 node.status.capacity node.spec.taints deploy.spec.strategy.rollingUpdate.maxSurge pdb.spec.minAvailable pv.spec.accessModes crd.spec.versions.schema.openAPIV3Schema crd.spec.versions.schema.openAPIV3Schema.default crd.spec.conversion resourceclaim.spec.devices.requests.exactly lease.spec secret.data secret.stringData pod.spec.nope nope; do t explain $what; done
t explain pod.spec.affinity --recursive; t explain events --api-version=events.k8s.io/v1; t explain pods --api-version=v2; t explain pod.spec --output=plaintext-openapiv2; t explain deploy.spec.template --output=plaintext-openapiv2 --recursive
t create token nope; t certificate approve nope; t top pods; t cluster-info; t get --raw /livez; t get --raw '/readyz?verbose' | tail -1; t config view -o jsonpath='{.current-context}' > /dev/null
t delete ns daily --wait=false; t get ns daily; t config set-context --current --namespace=default > /dev/null
