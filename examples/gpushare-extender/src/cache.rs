//! Keeps [`Devices`] current: lists and watches pods, nodes and ConfigMaps.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use futures_core::Stream as _;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod};
use kube::api::{ListParams, WatchEvent, WatchParams};
use kube::{Api, Client, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use tokio::time::sleep;

use crate::devices::Devices;
use crate::pod;

/// Backoff after failed attempts.
const RETRY_FIRST: Duration = Duration::from_millis(500);
const RETRY_MAX: Duration = Duration::from_secs(30);

/// The devices, shared by handlers and watches. Cheap to clone; a guard is never held across an await.
#[derive(Clone, Default)]
pub struct Cache {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    devices: RwLock<Devices>,
    /// Bits of the kinds that have been listed once.
    synced: AtomicU8,
}

/// A kind that is watched.
trait Watched: Resource + Clone + Debug + DeserializeOwned + Send + 'static {
    const BIT: u8;
    /// The object was added or updated.
    fn on_upsert(&self, devices: &mut Devices);
    /// The object was deleted.
    fn on_delete(&self, devices: &mut Devices);
    /// Keys of the objects that are known before a list.
    fn known_keys(devices: &Devices) -> Vec<String>;
    /// Key of the object.
    fn key(&self) -> String;
    /// The object with this key is not in the list any more.
    fn on_missing(key: &str, devices: &mut Devices);
}

const ALL: u8 = 0b111;

impl Watched for Pod {
    const BIT: u8 = 0b001;

    fn on_upsert(&self, devices: &mut Devices) {
        let has_node = self.spec.as_ref().is_some_and(|spec| spec.node_name.is_some());
        match pod::claim(self) {
            Some(claim) => devices.confirm(&self.key(), claim),
            // A pod without a node may be assumed.
            None if has_node => devices.release(&self.key()),
            None => {}
        }
    }

    fn on_delete(&self, devices: &mut Devices) {
        devices.release(&self.key());
    }

    fn known_keys(devices: &Devices) -> Vec<String> {
        devices.confirmed_pods()
    }

    fn key(&self) -> String {
        self.metadata.uid.clone().unwrap_or_default()
    }

    fn on_missing(key: &str, devices: &mut Devices) {
        devices.release(key);
    }
}

impl Watched for Node {
    const BIT: u8 = 0b010;

    fn on_upsert(&self, devices: &mut Devices) {
        devices.set_capacity(&self.key(), pod::capacity(self));
    }

    fn on_delete(&self, devices: &mut Devices) {
        devices.set_capacity(&self.key(), None);
    }

    fn known_keys(devices: &Devices) -> Vec<String> {
        devices.nodes().map(|(name, _)| name.to_owned()).collect()
    }

    fn key(&self) -> String {
        self.name_any()
    }

    fn on_missing(key: &str, devices: &mut Devices) {
        devices.set_capacity(key, None);
    }
}

impl Watched for ConfigMap {
    const BIT: u8 = 0b100;

    fn on_upsert(&self, devices: &mut Devices) {
        if let Some(node) = pod::node_of(self) {
            devices.set_unhealthy(node, pod::unhealthy(self));
        }
    }

    fn on_delete(&self, devices: &mut Devices) {
        if let Some(node) = pod::node_of(self) {
            devices.set_unhealthy(node, BTreeSet::new());
        }
    }

    fn known_keys(devices: &Devices) -> Vec<String> {
        devices.unhealthy().map(str::to_owned).collect()
    }

    fn key(&self) -> String {
        pod::node_of(self).unwrap_or_default().to_owned()
    }

    fn on_missing(key: &str, devices: &mut Devices) {
        devices.set_unhealthy(key, BTreeSet::new());
    }
}

impl Cache {
    /// Locks the devices for reading.
    pub fn read(&self) -> RwLockReadGuard<'_, Devices> {
        self.shared.devices.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the devices for writing.
    pub fn write(&self) -> RwLockWriteGuard<'_, Devices> {
        self.shared.devices.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether everything has been listed once.
    pub fn is_synced(&self) -> bool {
        self.shared.synced.load(Ordering::Relaxed) == ALL
    }

    /// Lists and watches forever.
    pub async fn run(self, client: Client) {
        tokio::join!(
            self.reflect(Api::<Node>::all(client.clone())),
            self.reflect(Api::<Pod>::all(client.clone())),
            self.reflect(Api::<ConfigMap>::namespaced(client, "kube-system")),
        );
    }

    async fn reflect<K: Watched>(&self, api: Api<K>) {
        let mut pause = RETRY_FIRST;
        loop {
            match self.list_and_watch(&api, &mut pause).await {
                Ok(()) => {}
                Err(error) => {
                    tracing::warn!(path = api.resource_url(), err = %error, "Watching failed");
                    sleep(pause).await;
                    pause = (pause * 2).min(RETRY_MAX);
                }
            }
        }
    }

    /// Returns when the watch cannot be continued, so that a relist is needed.
    async fn list_and_watch<K: Watched>(
        &self,
        api: &Api<K>,
        pause: &mut Duration,
    ) -> Result<(), kube::Error> {
        let mut before: BTreeSet<String> = K::known_keys(&self.read()).into_iter().collect();
        let list = api.list(&ListParams::default()).await?;
        let mut version = list.metadata.resource_version.unwrap_or_default();
        {
            let mut devices = self.write();
            for item in list.items {
                before.remove(&item.key());
                item.on_upsert(&mut devices);
            }
            before.iter().for_each(|key| K::on_missing(key, &mut devices));
        }
        self.shared.synced.fetch_or(K::BIT, Ordering::Relaxed);
        *pause = RETRY_FIRST;
        loop {
            let mut events = pin!(api.watch(&WatchParams::default(), &version).await?);
            while let Some(event) = poll_fn(|context| events.as_mut().poll_next(context)).await {
                match event? {
                    WatchEvent::Added(item) | WatchEvent::Modified(item) => {
                        item.on_upsert(&mut self.write());
                        version = item.resource_version().unwrap_or(version);
                    }
                    WatchEvent::Deleted(item) => {
                        item.on_delete(&mut self.write());
                        version = item.resource_version().unwrap_or(version);
                    }
                    WatchEvent::Bookmark(mark) => version = mark.metadata.resource_version,
                    // Most often 410: the resourceVersion is too old.
                    WatchEvent::Error(status) => return Err(kube::Error::Api(status)),
                }
            }
            // Watches end regularly; the pause protects a server that ends them at once.
            sleep(RETRY_FIRST).await;
        }
    }
}
