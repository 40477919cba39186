//! Options of the embedded cluster: authorization, admission, audit, event TTL.

use jiff::SignedDuration;

use crate::audit::AuditLog;
use crate::authentication::SigningKey;
use crate::authorization::AuthorizationMode;

/// Options of the cluster. By default every authenticated user may do everything.
#[derive(Debug)]
pub struct ClusterOptions {
    /// The authorization mode.
    pub mode: AuthorizationMode,
    /// Whether requests without credentials are those of `system:anonymous`. With [`AuthorizationMode::AlwaysAllow`], that user
    /// may only read health and version, since no role limits it.
    pub anonymous: bool,
    /// Signs service account tokens. By default a key is generated that is valid until the server ends.
    pub signing_key: Option<SigningKey>,
    /// The enabled admission plugins.
    pub admission: AdmissionPlugins,
    /// How long an event is kept after its last write, with a tolerance of a minute. Zero: forever.
    pub event_ttl: SignedDuration,
    /// The audit log.
    pub audit: Option<AuditLog>,
}

impl Default for ClusterOptions {
    fn default() -> ClusterOptions {
        ClusterOptions {
            mode: AuthorizationMode::default(),
            anonymous: true,
            signing_key: None,
            admission: AdmissionPlugins::default(),
            event_ttl: SignedDuration::from_hours(1),
            audit: None,
        }
    }
}

/// Admission plugins of upstream's that can be enabled and disabled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdmissionPlugins {
    /// `LimitRanger`: defaults and limits of a namespace. On by default.
    pub limit_ranger: bool,
    /// `ResourceQuota`: enforces quotas of namespaces. On by default; a controller must write the limits to a quota's
    /// status.
    pub resource_quota: bool,
    /// `ServiceAccount`: a pod's service account must exist, and its token is mounted. Off by default: it needs
    /// controllers.
    pub service_account: bool,
    /// `StorageObjectInUseProtection`: PersistentVolumeClaims, PersistentVolumes and VolumeAttributesClasses get a
    /// finalizer that a controller removes. On by default.
    pub storage_protection: bool,
    /// `TaintNodesByCondition`: taints new nodes as not ready. Off by default: it needs a controller.
    pub taint_nodes: bool,
}

impl Default for AdmissionPlugins {
    fn default() -> AdmissionPlugins {
        AdmissionPlugins {
            limit_ranger: true,
            resource_quota: true,
            service_account: false,
            storage_protection: true,
            taint_nodes: false,
        }
    }
}

impl AdmissionPlugins {
    /// The names of these plugins.
    pub const NAMES: [&'static str; 5] = [
        "LimitRanger",
        "ResourceQuota",
        "ServiceAccount",
        "StorageObjectInUseProtection",
        "TaintNodesByCondition",
    ];

    /// Enables or disables a plugin; false if there is no such plugin.
    #[must_use]
    pub fn set_enabled(&mut self, name: &str, on: bool) -> bool {
        match name {
            "LimitRanger" => self.limit_ranger = on,
            "ResourceQuota" => self.resource_quota = on,
            "ServiceAccount" => self.service_account = on,
            "StorageObjectInUseProtection" => self.storage_protection = on,
            "TaintNodesByCondition" => self.taint_nodes = on,
            _ => return false,
        }
        true
    }
}
