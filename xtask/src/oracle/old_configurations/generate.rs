//! Random configuration files of old versions: mostly valid ones.

use anyhow::{Context as _, Result};
use loadmaster_stdx::Rng;
use serde_json::{Map, Value, json};

use super::version::{OldRelease, OldVersion, PluginTable};

/// Extension points in the order of a file.
const POINTS: &[&str] = &[
    "queueSort",
    "preFilter",
    "filter",
    "postFilter",
    "preScore",
    "score",
    "reserve",
    "permit",
    "preBind",
    "bind",
    "postBind",
];

/// Plugins that are not enabled in random files: NodeResourceLimits of 1.18 was behind an alpha gate, and Loadmaster does not have it.
const LEFT_OUT: &[&str] = &["NodeResourceLimits"];

/// The file with this number of a seed.
pub fn file(seed: u64, id: u64, version: OldVersion, table: &PluginTable) -> Result<String> {
    let rng = Rng::new(seed).split("old configurations").split(&id.to_string());
    let mut draw = Draw { rng, version, table, is_valid_only: false };
    let value = match version {
        OldVersion::Policy => draw.policy(),
        _ => draw.configuration(),
    };
    match draw.rng.one_in(2) {
        true => Ok(format!("{value:#}")),
        false => serde_saphyr::to_string(&value).context("writing a configuration as YAML"),
    }
}

/// Draws parts of a file.
pub(super) struct Draw<'a> {
    pub rng: Rng,
    pub version: OldVersion,
    pub table: &'a PluginTable,
    /// Nothing invalid is drawn.
    pub is_valid_only: bool,
}

impl Draw<'_> {
    /// True seldom: for what is invalid or unusual.
    pub fn rarely(&mut self) -> bool {
        self.rng.one_in(60) && !self.is_valid_only
    }

    pub fn number(&mut self, usual: &[i64], unusual: &[i64]) -> Value {
        let numbers = if self.rarely() { unusual } else { usual };
        (*self.rng.pick(numbers)).into()
    }

    pub fn text(&mut self, texts: &[&str]) -> Value {
        (*self.rng.pick(texts)).into()
    }

    /// Sets a field once in `n` times.
    pub fn put(
        &mut self,
        object: &mut Value,
        n: u64,
        field: &str,
        draw: impl FnOnce(&mut Self) -> Value,
    ) {
        if self.rng.one_in(n) {
            object[field] = draw(self);
        }
    }

    fn configuration(&mut self) -> Value {
        let version = self.version;
        let mut file = version.empty_file();
        self.general_fields(&mut file);
        if version == OldVersion::V1Alpha1 {
            self.put(&mut file, 4, "schedulerName", |it| it.text(&["default-scheduler", "old"]));
            self.put(&mut file, 4, "hardPodAffinitySymmetricWeight", |it| {
                it.number(&[0, 1, 5, 100], &[101, -1])
            });
            self.put(&mut file, 4, "algorithmSource", Draw::algorithm_source);
            self.plugins_of_profile(&mut file);
        } else {
            self.put(&mut file, 5, "extenders", Draw::extenders);
            let n_profiles = [0, 1, 1, 1, 1, 1, 2, 3][self.rng.below(8) as usize];
            if n_profiles > 0 || self.rng.one_in(3) {
                file["profiles"] = self.profiles(n_profiles);
            }
        }
        if self.rarely() {
            let field = *self.rng.pick(&["percentageOfNodesToScoer", "predicates", "multiPoint"]);
            file[field] = json!(1);
        }
        if self.rarely() {
            self.spoil(&mut file);
        }
        file
    }

    /// Gives a field a value of another type, or null.
    fn spoil(&mut self, file: &mut Value) {
        let fields = [
            "percentageOfNodesToScore",
            "podMaxBackoffSeconds",
            "enableProfiling",
            "leaderElection",
            "clientConnection",
            "profiles",
            "extenders",
            "plugins",
            "pluginConfig",
        ];
        let values = [json!(null), json!("50"), json!(1.5), json!(true), json!([]), json!({})];
        file[*self.rng.pick(&fields)] = self.rng.pick(&values).clone();
    }

    fn algorithm_source(&mut self) -> Value {
        if self.rarely() {
            return json!({"provider": "NoSuchProvider"});
        }
        let providers = ["DefaultProvider", "ClusterAutoscalerProvider", ""];
        json!({"provider": *self.rng.pick(&providers)})
    }

    fn general_fields(&mut self, file: &mut Value) {
        let version = self.version;
        self.put(file, 4, "percentageOfNodesToScore", |it| it.number(&[0, 1, 50, 100], &[101, -1]));
        self.put(file, 5, "podInitialBackoffSeconds", |it| it.number(&[1, 2, 5], &[0, -1, 100]));
        self.put(file, 5, "podMaxBackoffSeconds", |it| it.number(&[10, 60], &[0, 1]));
        self.put(file, 6, "enableProfiling", |it| it.rng.one_in(2).into());
        self.put(file, 6, "enableContentionProfiling", |it| it.rng.one_in(2).into());
        self.put(file, 4, "leaderElection", Draw::leader_election);
        self.put(file, 5, "clientConnection", Draw::client_connection);
        if version.is_alpha() {
            self.put(file, 4, "disablePreemption", |it| it.rng.one_in(2).into());
            self.put(file, 4, "bindTimeoutSeconds", |it| it.number(&[1, 30, 600], &[0]));
        } else {
            self.put(file, 6, "parallelism", |it| it.number(&[1, 8, 16, 32], &[0, -1]));
        }
        if version <= OldVersion::V1Beta2 {
            // v1beta2 of 1.22 accepts addresses that later releases reject, and the reverse.
            let n = match self.table.release {
                Some(OldRelease::V1_22) if version == OldVersion::V1Beta2 => u64::MAX,
                _ => 6,
            };
            for field in ["healthzBindAddress", "metricsBindAddress"] {
                self.put(file, n, field, Draw::bind_address);
            }
        }
    }

    /// Versions differ in which addresses they accept.
    fn bind_address(&mut self) -> Value {
        if self.version != OldVersion::V1Beta2 {
            self.text(&["0.0.0.0:10251", ":10251", "0.0.0.0", "", "no address"])
        } else if self.rng.one_in(10) {
            self.text(&["0.0.0.0:10251", "0.0.0.0", "no address"])
        } else {
            self.text(&["", "0.0.0.0:0", "127.0.0.1:0"])
        }
    }

    fn leader_election(&mut self) -> Value {
        let mut value = json!({});
        self.put(&mut value, 2, "leaderElect", |it| it.rng.one_in(2).into());
        self.put(&mut value, 6, "leaseDuration", |it| it.text(&["15s", "30s", "1m0s"]));
        self.put(&mut value, 6, "renewDeadline", |it| it.text(&["10s", "5s", "12s"]));
        self.put(&mut value, 6, "retryPeriod", |it| it.text(&["2s", "1s", "1500ms"]));
        if self.rarely() {
            value["renewDeadline"] = "20s".into();
        }
        self.put(&mut value, 5, "resourceLock", |it| {
            it.text(&["leases", "leases", "endpointsleases"])
        });
        self.put(&mut value, 5, "resourceName", |it| it.text(&["kube-scheduler", "mine"]));
        self.put(&mut value, 5, "resourceNamespace", |it| it.text(&["kube-system", "mine"]));
        if self.version == OldVersion::V1Alpha1 {
            self.put(&mut value, 6, "lockObjectName", |it| it.text(&["kube-scheduler", "mine"]));
            self.put(&mut value, 6, "lockObjectNamespace", |it| it.text(&["kube-system", "mine"]));
        }
        value
    }

    fn client_connection(&mut self) -> Value {
        let mut value = json!({});
        self.put(&mut value, 3, "kubeconfig", |it| it.text(&["/etc/scheduler.conf"]));
        self.put(&mut value, 3, "qps", |it| it.number(&[0, 100, 1000], &[-1]));
        self.put(&mut value, 3, "burst", |it| it.number(&[0, 200, 2000], &[-1]));
        self.put(&mut value, 5, "contentType", |it| it.text(&["application/json"]));
        self.put(&mut value, 5, "acceptContentTypes", |it| it.text(&["application/json"]));
        value
    }

    fn profiles(&mut self, n_profiles: u64) -> Value {
        let profiles = (0..n_profiles).map(|idx| {
            let mut profile = json!({});
            if n_profiles > 1 || self.rng.one_in(3) {
                profile["schedulerName"] = match idx {
                    0 => "default-scheduler".into(),
                    _ if self.rarely() => "default-scheduler".into(),
                    idx => format!("scheduler-{idx}").into(),
                };
            }
            if n_profiles > 1 && self.rarely() {
                profile = json!({});
            }
            self.plugins_of_profile(&mut profile);
            profile
        });
        profiles.collect()
    }

    fn plugins_of_profile(&mut self, profile: &mut Value) {
        let mut enabled = Vec::new();
        if !self.rng.one_in(8) {
            let mut plugins = json!({});
            for point in POINTS {
                let n = match *point {
                    "queueSort" | "bind" => 25,
                    "score" => 2,
                    "postFilter" if self.version.is_alpha() => continue,
                    _ => 4,
                };
                // PreScore was called PostFilter then.
                let is_renamed = self.version == OldVersion::V1Alpha1 && *point == "preScore";
                let field = if is_renamed { "postFilter" } else { point };
                self.put(&mut plugins, n, field, |it| it.plugin_set(point, &mut enabled));
            }
            if self.version.is_alpha() {
                // No plugin of the scheduler itself implements it.
                self.put(&mut plugins, 8, "unreserve", |it| it.set_of(false, vec![], vec![]));
            }
            if self.version == OldVersion::V1Beta3 {
                self.put(&mut plugins, 2, "multiPoint", |it| it.multi_point(&mut enabled));
            }
            profile["plugins"] = plugins;
        }
        // Old releases check the arguments of NodeResourcesFit only when they build it: a wrong key in a table of upstream's.
        let plugins = profile["plugins"].to_string();
        let is_fit_certain = !plugins.contains("NodeResourcesFit") && !plugins.contains("\"*\"");
        let configs = self.plugin_config(&enabled, is_fit_certain);
        if !configs.is_empty() || self.rng.one_in(20) {
            profile["pluginConfig"] = configs.into();
        }
    }

    /// The plugins of one extension point. Names that are enabled are added to `enabled`.
    fn plugin_set(&mut self, point: &str, enabled: &mut Vec<String>) -> Value {
        let table = self.table;
        let candidates: Vec<&String> = table
            .points
            .keys()
            .filter(|name| table.implements(name, point) && !LEFT_OUT.contains(&name.as_str()))
            .collect();
        let is_single = matches!(point, "queueSort" | "bind");
        let defaults = table.defaults.get(point).map(Vec::as_slice).unwrap_or_default();
        let disables_all = self.rng.one_in(if is_single { 2 } else { 6 });
        let mut disabled: Vec<String> = if disables_all {
            vec!["*".to_owned()]
        } else if is_single {
            Vec::new()
        } else {
            defaults.iter().filter(|_| self.rng.one_in(4)).cloned().collect()
        };
        let mut names: Vec<String> = Vec::new();
        let n_enabled = if is_single { u64::from(disables_all) } else { self.rng.below(5) };
        for _ in 0..n_enabled {
            if candidates.is_empty() {
                break;
            }
            let name = (*self.rng.pick(&candidates)).clone();
            if names.contains(&name) && !self.rarely() {
                continue;
            }
            let stands_twice = table.is_default(&name, point) && !disabled.contains(&name);
            if self.version.appends() && stands_twice && !disables_all && !self.rarely() {
                disabled.push(name.clone());
            }
            names.push(name);
        }
        if self.rarely() {
            let strange =
                ["NoSuchPlugin", "NodeName", "ImageLocality", "PrioritySort", "NodeLabel"];
            names.push((*self.rng.pick(&strange)).to_owned());
        }
        enabled.extend(names.iter().cloned());
        self.set_of(point == "score", names, disabled)
    }

    fn multi_point(&mut self, enabled: &mut Vec<String>) -> Value {
        let all: Vec<&String> = self.table.points.keys().collect();
        let disables_all = self.rng.one_in(8);
        let mut names: Vec<String> = Vec::new();
        let mut disabled = Vec::new();
        if disables_all {
            disabled.push("*".to_owned());
            // Else there would be no profile.
            if !self.rng.one_in(8) {
                names.extend(["PrioritySort".to_owned(), "DefaultBinder".to_owned()]);
            }
        } else {
            let kept = ["PrioritySort", "DefaultBinder"];
            let rng = &mut self.rng;
            let optional = all.iter().filter(|name| !kept.contains(&name.as_str()));
            disabled.extend(optional.filter(|_| rng.one_in(8)).map(|name| (*name).clone()));
        }
        for _ in 0..self.rng.below(5) {
            let name = (*self.rng.pick(&all)).clone();
            if !names.contains(&name) || self.rarely() {
                names.push(name);
            }
        }
        if self.rarely() {
            names.push("NoSuchPlugin".to_owned());
        }
        enabled.extend(names.iter().cloned());
        self.set_of(true, names, disabled)
    }

    fn set_of(&mut self, is_weighted: bool, names: Vec<String>, disabled: Vec<String>) -> Value {
        let mut set = Map::new();
        if !disabled.is_empty() || self.rng.one_in(10) {
            let entries = disabled.into_iter().map(|name| json!({"name": name}));
            set.insert("disabled".to_owned(), entries.collect());
        }
        if !names.is_empty() || self.rng.one_in(10) {
            let entries = names.into_iter().map(|name| {
                let mut entry = json!({"name": name});
                if is_weighted && !self.rng.one_in(4) || self.rarely() {
                    // In 1.18 it depends on the order of a map whether negative weights are an overflow.
                    let unusual: &[i64] = if self.version.is_alpha() { &[0] } else { &[0, -1] };
                    entry["weight"] = self.number(&[1, 2, 3, 5, 10, 100, 10_000], unusual);
                }
                entry
            });
            set.insert("enabled".to_owned(), entries.collect());
        }
        Value::Object(set)
    }

    pub fn extenders(&mut self) -> Value {
        let n_extenders = 1 + self.rng.below(2);
        let mut extenders: Vec<Value> = (0..n_extenders).map(|idx| self.extender(idx)).collect();
        if extenders.len() > 1 && !self.rarely() {
            for field in ["bindVerb", "BindVerb"] {
                if let Some(extender) = extenders[1].as_object_mut() {
                    extender.remove(field);
                }
            }
        }
        extenders.into()
    }

    fn extender(&mut self, idx: u64) -> Value {
        let is_legacy = self.version.is_alpha() || self.version == OldVersion::Policy;
        let mut value = json!({"urlPrefix": format!("http://127.0.0.1:{}/extender", 8000 + idx)});
        self.put(&mut value, 2, "filterVerb", |it| it.text(&["filter"]));
        self.put(&mut value, 4, "preemptVerb", |it| it.text(&["preempt"]));
        if self.rng.one_in(2) {
            value["prioritizeVerb"] = "prioritize".into();
            value["weight"] = self.number(&[1, 5, 10], &[0, -1]);
        }
        let bind_verb = if is_legacy && self.rng.one_in(3) { "BindVerb" } else { "bindVerb" };
        self.put(&mut value, 5, bind_verb, |it| it.text(&["bind"]));
        self.put(&mut value, 3, "nodeCacheCapable", |it| it.rng.one_in(2).into());
        self.put(&mut value, 3, "ignorable", |it| it.rng.one_in(2).into());
        let https = if is_legacy { "enableHttps" } else { "enableHTTPS" };
        self.put(&mut value, 4, https, |it| it.rng.one_in(2).into());
        self.put(&mut value, 8, "tlsConfig", |_| json!({"insecure": true}));
        if is_legacy {
            self.put(&mut value, 3, "httpTimeout", |it| {
                it.number(&[1_000_000, 5_000_000_000, 30_000_000_000], &[1])
            });
        } else {
            self.put(&mut value, 3, "httpTimeout", |it| it.text(&["5s", "100ms", "1m0s", "0s"]));
        }
        self.put(&mut value, 3, "managedResources", |it| {
            let name =
                if it.rarely() { "cpu".to_owned() } else { format!("example.com/thing{idx}") };
            let mut resource = json!({"name": name});
            it.put(&mut resource, 2, "ignoredByScheduler", |it| it.rng.one_in(2).into());
            json!([resource])
        });
        if self.rarely() {
            value["urlPrefx"] = "x".into();
        }
        value
    }
}
