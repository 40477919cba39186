//! The old versions, and the kube-scheduler releases that read them.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::answers::Answers;
use crate::oracle::process::GoProgram;

/// A version of the configuration before v1, or a Policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OldVersion {
    V1Alpha1,
    V1Alpha2,
    V1Beta1,
    V1Beta2,
    V1Beta3,
    Policy,
}

impl OldVersion {
    pub const ALL: [OldVersion; 6] = [
        OldVersion::V1Alpha1,
        OldVersion::V1Alpha2,
        OldVersion::V1Beta1,
        OldVersion::V1Beta2,
        OldVersion::V1Beta3,
        OldVersion::Policy,
    ];

    pub fn name(self) -> &'static str {
        match self {
            OldVersion::V1Alpha1 => "v1alpha1",
            OldVersion::V1Alpha2 => "v1alpha2",
            OldVersion::V1Beta1 => "v1beta1",
            OldVersion::V1Beta2 => "v1beta2",
            OldVersion::V1Beta3 => "v1beta3",
            OldVersion::Policy => "Policy",
        }
    }

    /// The releases that answer: v1beta2 is asked of two in turn.
    pub fn releases(self) -> &'static [OldRelease] {
        match self {
            OldVersion::V1Alpha1 | OldVersion::V1Alpha2 => &[OldRelease::V1_18],
            OldVersion::V1Beta1 | OldVersion::Policy => &[OldRelease::V1_22],
            OldVersion::V1Beta2 => &[OldRelease::V1_22, OldRelease::V1_25],
            OldVersion::V1Beta3 => &[OldRelease::V1_25],
        }
    }

    /// Whether plugins keep their arguments as they stand in the file, without `apiVersion` and `kind`.
    pub fn is_alpha(self) -> bool {
        matches!(self, OldVersion::V1Alpha1 | OldVersion::V1Alpha2)
    }

    /// Whether a plugin that is enabled by default and in the file stands twice, which is an error.
    pub fn appends(self) -> bool {
        self <= OldVersion::V1Beta1
    }

    /// A file without any settings.
    pub fn empty_file(self) -> Value {
        match self {
            OldVersion::Policy => json!({"apiVersion": "v1", "kind": "Policy"}),
            _ => json!({
                "apiVersion": format!("kubescheduler.config.k8s.io/{}", self.name()),
                "kind": "KubeSchedulerConfiguration",
            }),
        }
    }

    /// The question about a file.
    pub fn question(self, text: &str) -> Value {
        let kind = if self == OldVersion::Policy { "policy" } else { "config" };
        json!({"kind": kind, "text": text})
    }
}

/// A release of kube-scheduler whose code answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OldRelease {
    V1_18,
    V1_22,
    V1_25,
}

impl OldRelease {
    pub const ALL: [OldRelease; 3] = [OldRelease::V1_18, OldRelease::V1_22, OldRelease::V1_25];

    pub fn name(self) -> &'static str {
        match self {
            OldRelease::V1_18 => "1.18",
            OldRelease::V1_22 => "1.22",
            OldRelease::V1_25 => "1.25",
        }
    }

    pub fn program(self) -> GoProgram {
        let (module, name) = match self {
            OldRelease::V1_18 => ("conformance/old-schedulers/1.18", "old-scheduler-1.18"),
            OldRelease::V1_22 => ("conformance/old-schedulers/1.22", "old-scheduler-1.22"),
            OldRelease::V1_25 => ("conformance/old-schedulers/1.25", "old-scheduler-1.25"),
        };
        GoProgram { module, package: ".", name }
    }
}

/// The plugins that a release has, and those that a version enables by default.
#[derive(Clone, Debug, Default)]
pub struct PluginTable {
    /// The release that answers.
    pub release: Option<OldRelease>,
    /// Extension points by plugin.
    pub points: BTreeMap<String, BTreeSet<String>>,
    /// Plugins by extension point, in order; empty for a Policy.
    pub defaults: BTreeMap<String, Vec<String>>,
}

impl PluginTable {
    /// Asks a release.
    pub fn ask(
        answers: &mut Answers,
        release: OldRelease,
        version: OldVersion,
    ) -> Result<PluginTable> {
        let answer = answers.ask(release, &json!({"kind": "points"}))?;
        let points = serde_json::from_value(answer["plugins"].clone())
            .with_context(|| format!("the extension points of the plugins: {answer}"))?;
        let mut defaults = BTreeMap::new();
        if version != OldVersion::Policy {
            let answer =
                answers.ask(release, &version.question(&version.empty_file().to_string()))?;
            let plugins = answer["profiles"][0]["plugins"].as_object();
            for (point, list) in plugins.with_context(|| format!("no profile: {answer}"))? {
                let names = list.as_array().into_iter().flatten();
                let names = names.filter_map(|it| it.as_str().or_else(|| it[0].as_str()));
                defaults.insert(point.clone(), names.map(str::to_owned).collect());
            }
        }
        Ok(PluginTable { release: Some(release), points, defaults })
    }

    pub fn implements(&self, plugin: &str, point: &str) -> bool {
        self.points.get(plugin).is_some_and(|points| points.contains(point))
    }

    pub fn is_default(&self, plugin: &str, point: &str) -> bool {
        self.defaults.get(point).is_some_and(|names| names.iter().any(|name| name == plugin))
    }
}
