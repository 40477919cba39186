# Calls of kubectl whose output is compared between two servers: script.sh KUBECTL KUBECONFIG.
kubectl=$1
export KUBECONFIG=$2
cd "$(dirname "$0")" || exit 2
t(){ echo "\$ kubectl $*"; timeout 20 "$kubectl" "$@" 2>&1; echo "= $?"; }
c(){ echo "\$ create <<< $1"; echo "$1" | timeout 20 "$kubectl" create -f - 2>&1; }
t create -f objects.yaml; t get nodes,deploy,pods,svc -o wide; for r in node/n1 pod/p1 deploy/web svc/s; do t get $r -o yaml; done
t get ns -o wide; t get ns default -o json; t get priorityclasses; t get priorityclass system-node-critical -o yaml; t get svc kubernetes -o yaml
t apply -f objects.yaml; t apply -f objects.yaml; t diff -f objects.yaml; t label pod p1 x=y;  t label pod p1 x=z; t annotate pod p1 note=hi; t taint node n1 k=v:NoSchedule; t cordon n1; t get nodes; t describe node n1; t uncordon n1; t taint node n1 k:NoSchedule-
t scale deploy web --replicas=3; t get deploy web -o name; t get deploy web -o yaml; t set image deploy/web c=nginx:1.3; t patch pod p1 -p '{"metadata":{"labels":{"q":"r"}}}'; t patch pod p1 --type=json -p '[{"op":"add","path":"/metadata/labels/z","value":"1"}]'; t patch pod p1 --type=json -p '[{"op":"remove","path":"/metadata/labels/nope"}]';  t patch pod p1 --type=merge -p '{"metadata":{"labels":{"z":null}}}'
t patch pod p1 -p '{"spec":{"nodeName":"x"}}'; t patch pod p1 -p '{"spec":{"containers":[{"name":"c","image":"nginx:2"}]}}'; t patch deploy web -p '{"spec":{"template":{"spec":{"containers":[{"name":"d","image":"i"}]}}}}'; t get deploy web -o jsonpath='{.spec.template.spec.containers}'
t get pods --show-labels; t get pods -l a=b,q; t get pods -l 'a in (b,c),!nope'; t get pods -l 'a in b'; t get pods --field-selector status.phase=Pending -o custom-columns=N:.metadata.name,P:.spec.priority; t get pods --field-selector spec.foo=1; t get nodes --field-selector spec.unschedulable=false -o name
t explain pod.spec.tolerations; t auth can-i create pods; t auth whoami; t create ns foo; t get ns foo -o yaml; t create deploy x --image=a -n foo --replicas=2; t -n foo get deploy; t delete deploy x -n foo; t delete pod p1 --wait=false; t get pod p1; t create configmap cm --from-literal=a=b; t create secret generic se --from-literal=a=b; t get cm cm -o yaml; t get secret se -o yaml; t get cm,secret
t rollout status deploy/web --timeout=1s; t rollout history deploy/web; t expose deploy web --port=80; t get svc web -o yaml; t run r1 --image=busybox --restart=Never; t wait --for=condition=Ready pod/r1 --timeout=1s; t get pods -A --chunk-size=1; t get pod nope; t get nopes; t describe deploy web; t describe pod r1; t describe svc web; t describe ns foo
t create job j1 --image=b; t get job j1 -o yaml; t get jobs -o wide; t create cronjob cj --image=b --schedule='* * * * *'; t get cj -o wide; t get cj cj -o yaml; t create pdb pdb1 --selector=app=web --min-available=1; t get pdb; t get pdb pdb1 -o yaml; t create priorityclass high --value=1000; t get pc high -o yaml; t create role r --verb=get --resource=pods; t create rolebinding rb --role=r --user=u; t get role,rolebinding; t create sa acc; t get sa acc -o yaml; t create quota q --hard=pods=1 -n foo; t get quota -n foo; t create clusterrole cr --verb=get --resource=nodes; t create ingress i1 --rule=a.b/c=svc:80; t get ing
t get ingress i1 -o yaml; t create service nodeport np --tcp=80; t create service externalname en --external-name a.b; t get svc; t create token nope
c '{"apiVersion":"v1","kind":"Pod","metadata":{"name":"bad"},"spec":{"containers":[{"name":"c","image":"i","foo":1}]}}'
c '{"apiVersion":"v1","kind":"Pod","metadata":{"name":"bad"},"spec":{"containers":[]}}'
c '{"apiVersion":"v1","kind":"Pod","metadata":{"name":"Bad_1"},"spec":{"containers":[{"name":"c","image":"i"}]}}'
c '{"apiVersion":"v1","kind":"Pod","metadata":{"name":"bad","labels":{"a b":"c d"}},"spec":{"containers":[{"name":"c","image":"i"}]}}'
c '{"apiVersion":"v1","kind":"Pod","metadata":{"name":"bad"},"spec":{"containers":"x"}}'
c '{"apiVersion":"v1","kind":"Pod","metadata":{"name":"bad"},"spec":{"priority":"x","containers":[{"name":"c","image":"i"}]}}'
c '{"apiVersion":"v1","kind":"Pod","metadata":{"name":"bad"},"spec":{"priority":5,"containers":[{"name":"c","image":"i"}]}}'
c '{"apiVersion":"v1","kind":"Pod","metadata":{"name":"bad"},"spec":{"priorityClassName":"nope","containers":[{"name":"c","image":"i"}]}}'
c '{"apiVersion":"v1","kind":"Pod","metadata":{"name":"bad"},"spec":{"restartPolicy":"Sometimes","containers":[{"name":"c","image":"i"}]}}'
c '{"apiVersion":"v1","kind":"Pod","metadata":{"name":"bad"},"spec":{"containers":[{"name":"c","image":"i","resources":{"requests":{"cpu":"2"},"limits":{"cpu":"1"}}}]}}'
c '{"apiVersion":"v1","kind":"Pod","metadata":{"name":"bad"},"spec":{"containers":[{"name":"c","image":"i","resources":{"requests":{"cpu":"-1"}}}]}}'
c '{"apiVersion":"v1","kind":"Pod","metadata":{"name":"bad"},"spec":{"containers":[{"name":"c","image":"i","resources":{"requests":{"cpu":"x"}}}]}}'
c '{"apiVersion":"v1","kind":"Pod","metadata":{"name":"bad"},"spec":{"containers":[{"name":"c","image":"i"},{"name":"c"}]}}'
c '{"apiVersion":"v1","kind":"Pod","metadata":{"name":"bad"},"spec":{"containers":[{"name":"C_","image":"i","ports":[{"containerPort":70000}]}]}}'
c '{"apiVersion":"v1","kind":"Pod","metadata":{"name":"bad"},"spec":{"containers":[{"name":"c","image":"i","volumeMounts":[{"name":"v","mountPath":"/x"}]}]}}'
c '{"apiVersion":"v1","kind":"Pod","metadata":{"name":"bad"},"spec":{"tolerations":[{"operator":"Foo","key":"k"}],"containers":[{"name":"c","image":"i"}]}}'
c '{"apiVersion":"v1","kind":"Pod","metadata":{"name":"bad"},"spec":{"tolerations":[{"operator":"Exists","value":"v","key":"k"}],"containers":[{"name":"c","image":"i"}]}}'
c '{"apiVersion":"v1","kind":"Pod","metadata":{"name":"bad"},"spec":{"topologySpreadConstraints":[{"maxSkew":0,"topologyKey":"","whenUnsatisfiable":"X"}],"containers":[{"name":"c","image":"i"}]}}'
c '{"apiVersion":"v1","kind":"Pod","metadata":{"name":"bad","namespace":"nowhere"},"spec":{"containers":[{"name":"c","image":"i"}]}}'
c '{"apiVersion":"v1","kind":"Pod","metadata":{"name":"r1"},"spec":{"containers":[{"name":"c","image":"i"}]}}'
c '{"apiVersion":"v1","kind":"Pod","metadata":{},"spec":{"containers":[{"name":"c","image":"i"}]}}'
c '{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"bad"},"spec":{"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"i"}]}}}}'
c '{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"bad"},"spec":{"replicas":-1,"selector":{"matchLabels":{"a":"x"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"restartPolicy":"Never","containers":[{"name":"c","image":"i"}]}}}}'
c '{"apiVersion":"batch/v1","kind":"Job","metadata":{"name":"bad"},"spec":{"template":{"spec":{"containers":[{"name":"c","image":"i"}]}}}}'
c '{"apiVersion":"scheduling.k8s.io/v1","kind":"PriorityClass","metadata":{"name":"bad"},"value":2000000000}'
c '{"apiVersion":"v1","kind":"Service","metadata":{"name":"bad"},"spec":{"ports":[]}}'
c '{"apiVersion":"v1","kind":"Service","metadata":{"name":"bad"},"spec":{"ports":[{"port":0},{"port":99999}]}}'
c '{"apiVersion":"v1","kind":"Node","metadata":{"name":"bad"},"spec":{"taints":[{"key":"a","effect":"X"},{"key":"","effect":"NoSchedule"}]}}'
c '{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"a.b"}}'
c '{"apiVersion":"v1","kind":"Node","metadata":{"name":"bad"},"spec":{"unschedulable":"yes"}}'
t patch deploy web --type=merge -p '{"spec":{"selector":{"matchLabels":{"q":"q"}}}}'; t patch pc high --type=merge -p '{"value":5}'; t replace --raw /api/v1/namespaces/default/pods/r1 -f /dev/null; t get --raw '/api/v1/pods?limit=x'; t get --raw '/api/v1/pods?continue=x';  t get --raw '/api/v1/pods?resourceVersion=x'; t get --raw '/api/v1/pods?resourceVersion=999999999'; t get --raw '/api/v1/pods?resourceVersionMatch=Exact'; t get --raw '/api/v1/nope'; t get --raw '/nope'; t get --raw '/apis/nope/v1';  t get --raw '/api/v1/namespaces/default/pods/r1/nope'; t delete --raw /api/v1/namespaces/default/pods/nope
t create --raw /api/v1/namespaces/default/pods/r1/binding -f - <<< '{"apiVersion":"v1","kind":"Binding","metadata":{"name":"r1"},"target":{"kind":"Node","name":"n1"}}'
t create --raw /api/v1/namespaces/default/pods/r1/binding -f - <<< '{"apiVersion":"v1","kind":"Binding","metadata":{"name":"r1"},"target":{"kind":"Node","name":"n1"}}'
t create --raw /api/v1/namespaces/default/pods/r1/binding -f - <<< '{"apiVersion":"v1","kind":"Binding","metadata":{"name":"r2"},"target":{"kind":"Node","name":"n1"}}'
t create --raw /api/v1/namespaces/default/pods/r1/binding -f - <<< '{"apiVersion":"v1","kind":"Binding","metadata":{"name":"r1"},"target":{"kind":"Node"}}'
t get pod r1 -o yaml; t delete pod r1 --wait=false; t get pod r1; t get pod r1 -o yaml; t create --raw /api/v1/namespaces/default/pods/r1/binding -f - <<< '{"apiVersion":"v1","kind":"Binding","metadata":{"name":"r1"},"target":{"kind":"Node","name":"n1"}}'
t delete pod r1 --grace-period=0 --force; t get pod r1; t delete node n1; t delete deploy,svc --all; t delete cm cm; t drain nope; t cordon nope; t scale deploy nope --replicas=1; t get all
