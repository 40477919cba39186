//! The versions of `KubeSchedulerConfiguration`.

use std::fmt;

/// A version of `KubeSchedulerConfiguration`, the oldest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ConfigVersion {
    /// The only profile is the configuration itself; its algorithm may come from a Policy.
    V1Alpha1,
    /// Profiles and extenders.
    V1Alpha2,
    /// Plugin arguments have types.
    V1Beta1,
    /// The score plugins for resources are NodeResourcesFit with a strategy.
    V1Beta2,
    /// `multiPoint`.
    V1Beta3,
    /// The version of kube-scheduler 1.25 and later.
    V1,
}

impl ConfigVersion {
    /// Every version.
    pub const ALL: [ConfigVersion; 6] = [
        ConfigVersion::V1Alpha1,
        ConfigVersion::V1Alpha2,
        ConfigVersion::V1Beta1,
        ConfigVersion::V1Beta2,
        ConfigVersion::V1Beta3,
        ConfigVersion::V1,
    ];

    /// The `apiVersion` in a file.
    pub const fn api_version(self) -> &'static str {
        match self {
            ConfigVersion::V1Alpha1 => "kubescheduler.config.k8s.io/v1alpha1",
            ConfigVersion::V1Alpha2 => "kubescheduler.config.k8s.io/v1alpha2",
            ConfigVersion::V1Beta1 => "kubescheduler.config.k8s.io/v1beta1",
            ConfigVersion::V1Beta2 => "kubescheduler.config.k8s.io/v1beta2",
            ConfigVersion::V1Beta3 => "kubescheduler.config.k8s.io/v1beta3",
            ConfigVersion::V1 => crate::v1::API_VERSION,
        }
    }

    /// The version with this `apiVersion`.
    pub fn from_api_version(text: &str) -> Option<ConfigVersion> {
        ConfigVersion::ALL.into_iter().find(|version| version.api_version() == text)
    }

    /// The last minor release of kube-scheduler that read it; `None` if 1.36 does.
    pub const fn last_release(self) -> Option<&'static str> {
        match self {
            ConfigVersion::V1Alpha1 | ConfigVersion::V1Alpha2 => Some("1.18"),
            ConfigVersion::V1Beta1 => Some("1.22"),
            ConfigVersion::V1Beta2 => Some("1.27"),
            ConfigVersion::V1Beta3 => Some("1.28"),
            ConfigVersion::V1 => None,
        }
    }
}

impl fmt::Display for ConfigVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.api_version())
    }
}
