//! What an administrator decides about a cluster.

use jiff::SignedDuration;

use crate::audit::Audit;
use crate::auth::SigningKey;
use crate::authorize::Mode;

/// What an administrator decides. The default is a cluster without secrets: everybody known may do everything.
#[derive(Debug)]
pub struct Setup {
    /// How requests are decided on.
    pub mode: Mode,
    /// Whether requests without credentials are taken for those of `system:anonymous`. With [`Mode::AlwaysAllow`] that
    /// user may only ask for health and version, since nothing else would limit them.
    pub anonymous: bool,
    /// Signs the tokens of service accounts; without one, a key is made that lives as long as the server.
    pub signing_key: Option<SigningKey>,
    /// Checks and changes of new objects.
    pub admission: Admission,
    /// How long an event stays after its last write, give or take a minute. Zero keeps them.
    pub event_ttl: SignedDuration,
    /// Where requests are written down.
    pub audit: Option<Audit>,
}

impl Default for Setup {
    fn default() -> Setup {
        Setup {
            mode: Mode::default(),
            anonymous: true,
            signing_key: None,
            admission: Admission::default(),
            event_ttl: SignedDuration::from_hours(1),
            audit: None,
        }
    }
}

/// Admission plugins of upstream's that can be switched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admission {
    /// `LimitRanger`: defaults and limits of a namespace. On by default.
    pub limit_ranger: bool,
    /// `ResourceQuota`: what a namespace may use. On by default; a controller must write what there is to a quota's status.
    pub resource_quota: bool,
    /// `ServiceAccount`: a pod's account must be there, and its token is mounted. Off by default: it needs controllers.
    pub service_account: bool,
    /// `StorageObjectInUseProtection`: claims, volumes and their classes stay until a controller lets go of them. On by default.
    pub storage_protection: bool,
    /// `TaintNodesByCondition`: new nodes are not ready. Off by default: it needs a controller.
    pub taint_nodes: bool,
}

impl Default for Admission {
    fn default() -> Admission {
        Admission {
            limit_ranger: true,
            resource_quota: true,
            service_account: false,
            storage_protection: true,
            taint_nodes: false,
        }
    }
}

impl Admission {
    /// The names of what can be switched.
    pub const NAMES: [&'static str; 5] = [
        "LimitRanger",
        "ResourceQuota",
        "ServiceAccount",
        "StorageObjectInUseProtection",
        "TaintNodesByCondition",
    ];

    /// Switches a plugin; false if it cannot be switched.
    #[must_use]
    pub fn switch(&mut self, name: &str, on: bool) -> bool {
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
