//! Random operations on one object. There are few names, so that managers conflict.

use loadmaster_stdx::Rng;
use serde_json::{Map, Value, json};

/// Case `id` of a seed: a kind, and the operations of managers on an object of this kind.
pub fn case(seed: u64, id: u64) -> (&'static str, Vec<Value>) {
    let mut draw = Draw(Rng::new(seed).split(&id.to_string()));
    let kind = *draw.0.pick(&["Deployment", "Deployment", "Pod", "Service", "ConfigMap"]);
    // Sometimes more managers than managedFields keeps separately.
    let n_managers = if draw.0.one_in(12) { 14 } else { 3 };
    let n_operations = if n_managers > 3 { 16 } else { 2 + draw.0.below(5) };
    (kind, (0..n_operations).map(|_| draw.operation(kind, n_managers)).collect())
}

struct Draw(Rng);

impl Draw {
    fn operation(&mut self, kind: &str, n_managers: u64) -> Value {
        let is_many = n_managers > 3;
        let apply = !is_many && self.0.below(5) < 3;
        let manager = match self.0.below(n_managers) {
            0 => "kubectl".to_owned(),
            n => format!("m{n}"),
        };
        let has_status = kind != "ConfigMap";
        let subresource = if has_status && self.0.one_in(5) { "status" } else { "" };
        let mut object = self.object(kind);
        if self.0.one_in(12) {
            self.spoil(&mut object, apply);
        }
        if !apply && self.0.one_in(8) {
            object["metadata"]["managedFields"] = self.managed_fields(&object);
        }
        json!({"manager": manager, "apply": apply, "force": self.0.one_in(3),
            "subresource": subresource, "object": object})
    }

    fn object(&mut self, kind: &str) -> Value {
        let version = if kind == "Deployment" { "apps/v1" } else { "v1" };
        let mut object = json!({"apiVersion": version, "kind": kind, "metadata": self.metadata()});
        match kind {
            "Deployment" => {
                self.put(&mut object, "spec", Draw::deployment_spec);
                self.put(
                    &mut object,
                    "status",
                    |it| json!({"replicas": it.0.below(3), "conditions": it.conditions()}),
                );
            }
            "Pod" => {
                self.put(&mut object, "spec", Draw::pod_spec);
                self.put(&mut object, "status", |it| {
                    let mut status = json!({"phase": *it.0.pick(&["Pending", "Running"])});
                    it.put(&mut status, "conditions", Draw::conditions);
                    it.put(&mut status, "podIPs", |it| {
                        it.some(&["1.2.3.4", "1.2.3.5"], |_, ip| json!({"ip": ip}))
                    });
                    status
                });
            }
            "Service" => self.put(&mut object, "spec", Draw::service_spec),
            _ => {
                self.put(&mut object, "data", |it| it.map(&["a", "b", "c"]));
                self.put(&mut object, "immutable", |it| it.0.one_in(2).into());
            }
        }
        // The annotation of client-side apply.
        if self.0.one_in(6) {
            let text = self.annotated(&object);
            object["metadata"]["annotations"] =
                json!({"kubectl.kubernetes.io/last-applied-configuration": text});
        }
        object
    }

    /// Mostly the object itself, sometimes another one, sometimes invalid JSON.
    fn annotated(&mut self, object: &Value) -> String {
        match self.0.below(6) {
            0 => "{".to_owned(),
            1 => json!({"apiVersion": "v9", "kind": object["kind"], "metadata": {"name": "x"}})
                .to_string(),
            _ => object.to_string(),
        }
    }

    fn metadata(&mut self) -> Value {
        let mut metadata = json!({"name": "x"});
        self.put(&mut metadata, "labels", |it| it.map(&["a", "b"]));
        self.rarely(&mut metadata, "annotations", |it| it.map(&["n<1>", "p"]));
        self.rarely(&mut metadata, "finalizers", |it| {
            it.some(&["f/a", "f/b", "f/c"], |_, name| name.into())
        });
        self.rarely(&mut metadata, "ownerReferences", |it| {
            it.some(&["1", "2"], |it, uid| {
                json!({"apiVersion": "v1", "kind": "K", "name": *it.0.pick(&["o", "p"]), "uid": uid})
            })
        });
        metadata
    }

    fn deployment_spec(&mut self) -> Value {
        let mut spec = json!({});
        self.put(&mut spec, "replicas", |it| it.0.below(3).into());
        self.rarely(&mut spec, "paused", |it| it.0.one_in(2).into());
        self.put(&mut spec, "selector", |it| json!({"matchLabels": it.map(&["a", "b"])}));
        self.rarely(&mut spec, "strategy", |it| match it.0.below(3) {
            0 => json!({"type": "Recreate"}),
            1 => json!({"rollingUpdate": {"maxSurge": it.0.below(2)}}),
            _ => json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%"}}),
        });
        self.put(&mut spec, "template", |it| {
            let mut template = json!({});
            it.put(&mut template, "metadata", |it| json!({"labels": it.map(&["a", "b"])}));
            it.put(&mut template, "spec", Draw::pod_spec);
            template
        });
        spec
    }

    fn pod_spec(&mut self) -> Value {
        let mut spec = json!({});
        self.put(&mut spec, "containers", |it| it.some(&["a", "b", "c"], Draw::container));
        self.rarely(&mut spec, "nodeSelector", |it| it.map(&["a", "b"]));
        self.rarely(&mut spec, "tolerations", |it| {
            it.some(&["k", "l"], |_, key| json!({"key": key}))
        });
        self.rarely(&mut spec, "volumes", |it| {
            it.some(&["v", "w"], |it, name| match it.0.below(3) {
                0 => json!({"name": name, "emptyDir": {}}),
                1 => json!({"name": name, "emptyDir": {"medium": "Memory"}}),
                _ => json!({"name": name, "configMap": {"name": "c", "items": [{"key": "a", "path": "b"}]}}),
            })
        });
        self.rarely(&mut spec, "imagePullSecrets", |it| {
            it.some(&["s", "t"], |_, name| json!({"name": name}))
        });
        self.rarely(&mut spec, "securityContext", |it| match it.0.below(2) {
            0 => json!({}),
            _ => json!({"runAsUser": it.0.below(3), "supplementalGroups": [1, 2]}),
        });
        self.rarely(&mut spec, "affinity", |it| {
            json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                {"matchExpressions": [{"key": *it.0.pick(&["a", "b"]), "operator": "Exists"}]}]}}})
        });
        self.rarely(&mut spec, "topologySpreadConstraints", |it| {
            it.some(&["zone", "host"], |it, key| {
                json!({"topologyKey": key, "maxSkew": 1 + it.0.below(2),
                    "whenUnsatisfiable": *it.0.pick(&["DoNotSchedule", "ScheduleAnyway"])})
            })
        });
        self.rarely(&mut spec, "hostNetwork", |it| it.0.one_in(2).into());
        spec
    }

    fn container(&mut self, name: &str) -> Value {
        let mut container = json!({"name": name});
        self.put(&mut container, "image", |it| (*it.0.pick(&["i:1", "i:2"])).into());
        self.rarely(&mut container, "command", |it| it.some(&["run", "it"], |_, word| word.into()));
        self.rarely(&mut container, "env", |it| {
            it.some(&["A", "B"], |it, name| match it.0.below(3) {
                0 => json!({"name": name}),
                1 => json!({"name": name, "value": it.0.below(2).to_string()}),
                _ => {
                    json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}})
                }
            })
        });
        self.rarely(&mut container, "ports", |it| it.ports("containerPort"));
        self.rarely(&mut container, "resources", |it| {
            let amount =
                |it: &mut Draw| json!({"cpu": *it.0.pick(&["1", "500m"]), "memory": "1Gi"});
            let mut resources = json!({});
            it.put(&mut resources, "requests", amount);
            it.rarely(&mut resources, "limits", amount);
            it.rarely(&mut resources, "claims", |it| {
                it.some(&["c", "d"], |_, name| json!({"name": name}))
            });
            resources
        });
        self.rarely(&mut container, "volumeMounts", |it| {
            it.some(
                &["/a", "/b"],
                |it, path| json!({"mountPath": path, "name": *it.0.pick(&["v", "w"])}),
            )
        });
        container
    }

    fn ports(&mut self, number: &str) -> Value {
        self.some(&["80", "81", "82"], |it, port| {
            let mut value =
                json!({number: if it.0.one_in(2) { 80 } else { port.parse().unwrap_or(1) }});
            it.rarely(&mut value, "protocol", |it| (*it.0.pick(&["TCP", "UDP"])).into());
            it.rarely(&mut value, "name", |it| (*it.0.pick(&["p", "q"])).into());
            value
        })
    }

    fn service_spec(&mut self) -> Value {
        let mut spec = json!({});
        self.put(&mut spec, "ports", |it| it.ports("port"));
        self.put(&mut spec, "selector", |it| it.map(&["a", "b"]));
        self.rarely(&mut spec, "type", |it| (*it.0.pick(&["ClusterIP", "NodePort"])).into());
        self.rarely(&mut spec, "externalIPs", |it| {
            it.some(&["1.1.1.1", "2.2.2.2"], |_, ip| ip.into())
        });
        self.rarely(
            &mut spec,
            "sessionAffinityConfig",
            |it| json!({"clientIP": {"timeoutSeconds": it.0.below(3)}}),
        );
        spec
    }

    fn conditions(&mut self) -> Value {
        self.some(&["Ready", "Initialized"], |it, kind| {
            json!({"type": kind, "status": *it.0.pick(&["True", "False"]),
                "lastTransitionTime": "2026-01-02T03:04:05Z"})
        })
    }

    fn map(&mut self, names: &[&str]) -> Value {
        let mut map = Map::new();
        for name in names {
            if self.0.one_in(2) {
                map.insert((*name).to_owned(), (*self.0.pick(&["1", "2"])).into());
            }
        }
        Value::Object(map)
    }

    /// Some of the named entries, in any order.
    fn some(&mut self, names: &[&str], mut entry: impl FnMut(&mut Draw, &str) -> Value) -> Value {
        let mut names: Vec<&str> = names.iter().filter(|_| self.0.below(3) > 0).copied().collect();
        if self.0.one_in(2) {
            names.reverse();
        }
        if names.len() > 1 && self.0.one_in(3) {
            names.rotate_left(1);
        }
        names.into_iter().map(|name| entry(self, name)).collect()
    }

    /// Sets the field in three of four cases, sometimes to null.
    fn put(&mut self, object: &mut Value, name: &str, value: impl FnOnce(&mut Draw) -> Value) {
        match self.0.below(40) {
            0 => object[name] = Value::Null,
            1..=29 => object[name] = value(self),
            _ => {}
        }
    }

    fn rarely(&mut self, object: &mut Value, name: &str, value: impl FnOnce(&mut Draw) -> Value) {
        if self.0.one_in(4) {
            self.put(object, name, value);
        }
    }

    /// Makes an object invalid: duplicate entries, and in applied objects also values of wrong types.
    fn spoil(&mut self, object: &mut Value, apply: bool) {
        let path = if object["kind"] == "Deployment" { "/spec/template/spec" } else { "/spec" };
        match self.0.below(if apply { 7 } else { 1 }) {
            0 => {
                let lists = ["containers", "volumes", "ports", "tolerations"];
                let list = *self.0.pick(&lists);
                if let Some(Value::Array(entries)) = object.pointer_mut(&format!("{path}/{list}"))
                    && let Some(first) = entries.first().cloned()
                {
                    entries.push(first);
                }
            }
            1 => object["nope"] = 1.into(),
            2 => match self.0.below(5) {
                0 => object["metadata"]["labels"] = json!(["a", {"b": [1, null]}]),
                1 => object["metadata"]["labels"] = json!({"a": {"b": "c"}}),
                2 => object["metadata"]["generation"] = json!([true]),
                3 => object["spec"] = "text".into(),
                _ => object["metadata"]["finalizers"] = 7.into(),
            },
            3 => object["metadata"]["managedFields"] = json!([]),
            4 => object["apiVersion"] = "v9".into(),
            5 => object["metadata"]["name"] = Value::Null,
            _ => object["metadata"]["finalizers"] = json!([null]),
        }
    }

    /// The managedFields that a client sends: none, invalid ones, or those of a manager with random fields.
    fn managed_fields(&mut self, object: &Value) -> Value {
        let fields = match self.0.below(5) {
            0 => return json!([]),
            1 => return json!([{}]),
            2 => return json!([{"manager": "z", "operation": "Nope"}]),
            3 => {
                json!({"f:metadata": {"f:labels": {".": {}, "f:a": {}}}, "f:data": {"f:a": {}, "r:b": {}}})
            }
            // Parts of atomic fields.
            _ => json!({"f:spec": {"f:selector": {"f:matchLabels": {"f:a": {}}, "f:a": {}},
                "f:nodeSelector": {".": {}, "f:a": {}}, "f:externalIPs": {"v:\"1.1.1.1\"": {}},
                "f:template": {"f:spec": {"f:nodeSelector": {"f:b": {}},
                    "f:containers": {"k:{\"name\":\"a\"}": {".": {}, "f:name": {}, "f:image": {}}}}}}}),
        };
        let operation = *self.0.pick(&["Apply", "Update"]);
        json!([{"manager": *self.0.pick(&["m1", "z"]), "operation": operation,
            "apiVersion": object["apiVersion"], "fieldsType": "FieldsV1", "fieldsV1": fields}])
    }
}
