//! Keeps [`Devices`] current: for pods, nodes and ConfigMaps a list, then a watch, for ever.

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

/// Waits between failing attempts.
const RETRY_FIRST: Duration = Duration::from_millis(500);
const RETRY_MAX: Duration = Duration::from_secs(30);

/// The devices, shared by handlers and watches. Cheap to clone; nobody holds a guard while waiting.
#[derive(Clone, Default)]
pub struct Cache {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    devices: RwLock<Devices>,
    /// Kinds that have been listed once.
    synced: AtomicU8,
}

/// A kind that is watched.
trait Watched: Resource + Clone + Debug + DeserializeOwned + Send + 'static {
    const BIT: u8;
    /// As it is now.
    fn set(&self, devices: &mut Devices);
    /// It is gone.
    fn gone(&self, devices: &mut Devices);
    /// What there was before a list was asked for.
    fn before(devices: &Devices) -> Vec<String>;
    /// How [`Watched::before`] names this one.
    fn key(&self) -> String;
    /// What there was and is not in the list.
    fn drop_key(key: &str, devices: &mut Devices);
}

const ALL: u8 = 0b111;

impl Watched for Pod {
    const BIT: u8 = 0b001;

    fn set(&self, devices: &mut Devices) {
        let has_node = self.spec.as_ref().is_some_and(|spec| spec.node_name.is_some());
        match pod::claim(self) {
            Some(claim) => devices.confirm(&self.key(), claim),
            // One without a node may be about to get it from us.
            None if has_node => devices.release(&self.key()),
            None => {}
        }
    }

    fn gone(&self, devices: &mut Devices) {
        devices.release(&self.key());
    }

    fn before(devices: &Devices) -> Vec<String> {
        devices.settled()
    }

    fn key(&self) -> String {
        self.metadata.uid.clone().unwrap_or_default()
    }

    fn drop_key(key: &str, devices: &mut Devices) {
        devices.release(key);
    }
}

impl Watched for Node {
    const BIT: u8 = 0b010;

    fn set(&self, devices: &mut Devices) {
        devices.set_capacity(&self.key(), pod::capacity(self));
    }

    fn gone(&self, devices: &mut Devices) {
        devices.set_capacity(&self.key(), None);
    }

    fn before(devices: &Devices) -> Vec<String> {
        devices.nodes().map(|(name, _)| name.to_owned()).collect()
    }

    fn key(&self) -> String {
        self.name_any()
    }

    fn drop_key(key: &str, devices: &mut Devices) {
        devices.set_capacity(key, None);
    }
}

impl Watched for ConfigMap {
    const BIT: u8 = 0b100;

    fn set(&self, devices: &mut Devices) {
        if let Some(node) = pod::node_of(self) {
            devices.set_unhealthy(node, pod::unhealthy(self));
        }
    }

    fn gone(&self, devices: &mut Devices) {
        if let Some(node) = pod::node_of(self) {
            devices.set_unhealthy(node, BTreeSet::new());
        }
    }

    fn before(devices: &Devices) -> Vec<String> {
        devices.unhealthy().map(str::to_owned).collect()
    }

    fn key(&self) -> String {
        pod::node_of(self).unwrap_or_default().to_owned()
    }

    fn drop_key(key: &str, devices: &mut Devices) {
        devices.set_unhealthy(key, BTreeSet::new());
    }
}

impl Cache {
    /// To look.
    pub fn read(&self) -> RwLockReadGuard<'_, Devices> {
        self.shared.devices.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// To change.
    pub fn write(&self) -> RwLockWriteGuard<'_, Devices> {
        self.shared.devices.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether everything has been listed once.
    pub fn is_synced(&self) -> bool {
        self.shared.synced.load(Ordering::Relaxed) == ALL
    }

    /// Watches for ever.
    pub async fn follow(self, client: Client) {
        tokio::join!(
            self.keep(Api::<Node>::all(client.clone())),
            self.keep(Api::<Pod>::all(client.clone())),
            self.keep(Api::<ConfigMap>::namespaced(client, "kube-system")),
        );
    }

    async fn keep<K: Watched>(&self, api: Api<K>) {
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

    /// Ends when the watch can go on no more: a list comes next.
    async fn list_and_watch<K: Watched>(
        &self,
        api: &Api<K>,
        pause: &mut Duration,
    ) -> Result<(), kube::Error> {
        let mut before: BTreeSet<String> = K::before(&self.read()).into_iter().collect();
        let list = api.list(&ListParams::default()).await?;
        let mut version = list.metadata.resource_version.unwrap_or_default();
        {
            let mut devices = self.write();
            for item in list.items {
                before.remove(&item.key());
                item.set(&mut devices);
            }
            before.iter().for_each(|key| K::drop_key(key, &mut devices));
        }
        self.shared.synced.fetch_or(K::BIT, Ordering::Relaxed);
        *pause = RETRY_FIRST;
        loop {
            let mut events = pin!(api.watch(&WatchParams::default(), &version).await?);
            while let Some(event) = poll_fn(|context| events.as_mut().poll_next(context)).await {
                match event? {
                    WatchEvent::Added(item) | WatchEvent::Modified(item) => {
                        item.set(&mut self.write());
                        version = item.resource_version().unwrap_or(version);
                    }
                    WatchEvent::Deleted(item) => {
                        item.gone(&mut self.write());
                        version = item.resource_version().unwrap_or(version);
                    }
                    WatchEvent::Bookmark(mark) => version = mark.metadata.resource_version,
                    // Most often 410: the version is too old.
                    WatchEvent::Error(status) => return Err(kube::Error::Api(status)),
                }
            }
            // Watches end now and then; a server that ends them at once is not to be kept busy.
            sleep(RETRY_FIRST).await;
        }
    }
}
