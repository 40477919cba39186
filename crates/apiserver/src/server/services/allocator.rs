//! The allocated cluster IPs and node ports, derived from the services: an index over their table that is updated
//! when it is needed.

use std::net::Ipv4Addr;
use std::sync::Arc;

use loadmaster_stdx::Map;
use serde_json::Value;

use crate::object::{list_entries, parsed};
use crate::store::{ChangeKind, Cursor, Filter, ListOptions, Object, Store, TableId};

/// The range of addresses: 10.96.0.0/12, as `kubeadm` has it.
const NETWORK: u32 = 10 << 24 | 96 << 16;
/// Neither the address of the network nor that for all.
const HOSTS: (u32, u32) = (1, (1 << 20) - 2);
/// Upstream allocates dynamically behind the first 256 addresses, which are reserved for explicit requests as long as
/// there are others.
const HOSTS_FREE: u32 = 257;

/// As upstream's default.
const PORTS: (u16, u16) = (30_000, 32_767);
/// The first port of dynamic allocation; those before it are for explicit requests.
const PORTS_FREE: u16 = 30_086;

/// What services have.
#[derive(Debug, Default)]
pub(in crate::server) struct ServiceAllocator {
    /// How far the view is; none before the first look.
    cursor: Option<Cursor>,
    by_service: Map<Arc<str>, AllocatedToService>,
    /// How many services have each, which is one, but for those of older folders.
    addresses: Map<Ipv4Addr, u32>,
    ports: Map<u16, u32>,
    /// What was taken last, behind which the search for the next begins: not what was given, so that a request that is only
    /// tried out gets what it would get.
    host: u32,
    port: u16,
}

#[derive(Debug, Default)]
struct AllocatedToService {
    address: Option<Ipv4Addr>,
    ports: Vec<u16>,
}

impl ServiceAllocator {
    /// Sees what has changed.
    pub fn update(&mut self, store: &Store, table: TableId) {
        let changes = self.cursor.as_mut().map(|it| it.read(store, u64::MAX, usize::MAX));
        if let Some(Ok(changes)) = changes {
            for change in changes {
                self.forget(change.object.key());
                if change.kind != ChangeKind::Deleted {
                    self.note(&change.object);
                }
            }
            return;
        }
        // The first look, or one so late that changes are forgotten.
        *self =
            ServiceAllocator { host: self.host, port: self.port, ..ServiceAllocator::default() };
        let page = store.list(table, &ListOptions::default(), &Filter::everything());
        let Ok(page) = page else { return };
        page.objects.iter().for_each(|it| self.note(it));
        self.cursor = store.watch(table, page.revision, "", Filter::everything()).ok();
    }

    fn note(&mut self, service: &Object) {
        let Ok(value) = parsed(service) else { return };
        let held = AllocatedToService::of(&value["spec"]);
        if let Some(address) = held.address {
            *self.addresses.entry(address).or_default() += 1;
            self.host = u32::from(address).wrapping_sub(NETWORK);
        }
        for port in &held.ports {
            *self.ports.entry(*port).or_default() += 1;
            self.port = *port;
        }
        self.by_service.insert(service.shared_key(), held);
    }

    fn forget(&mut self, key: &str) {
        let Some(held) = self.by_service.remove(key) else { return };
        if let Some(address) = held.address {
            release(&mut self.addresses, &address);
        }
        for port in &held.ports {
            release(&mut self.ports, port);
        }
    }

    /// Checks that an address can be allocated; the error has upstream's message.
    pub fn check_address(&self, address: Ipv4Addr) -> Result<(), String> {
        let host = u32::from(address).wrapping_sub(NETWORK);
        if !(HOSTS.0..=HOSTS.1).contains(&host) {
            return Err("the provided network does not match the current range".to_owned());
        }
        if self.addresses.contains_key(&address) {
            return Err("provided IP is already allocated".to_owned());
        }
        Ok(())
    }

    /// The next address that is free.
    pub fn next_address(&self) -> Option<Ipv4Addr> {
        let behind = self.host.saturating_add(1).clamp(HOSTS_FREE, HOSTS.1);
        let mut all =
            (behind..=HOSTS.1).chain(HOSTS_FREE..behind).chain(HOSTS.0..HOSTS_FREE).map(at);
        all.find(|address| !self.addresses.contains_key(address))
    }

    /// Checks that a port can be allocated beside those in `claimed`; the error has upstream's message.
    pub fn check_port(&self, number: i64, claimed: &[u16]) -> Result<u16, String> {
        let port = u16::try_from(number).ok().filter(|it| (PORTS.0..=PORTS.1).contains(it));
        let port = port.ok_or_else(|| {
            let (first, last) = PORTS;
            format!("provided port is not in the valid range. The range of valid ports is {first}-{last}")
        })?;
        if self.ports.contains_key(&port) || claimed.contains(&port) {
            return Err("provided port is already allocated".to_owned());
        }
        Ok(port)
    }

    /// The next port that is free and not `claimed`.
    pub fn next_port(&self, claimed: &[u16]) -> Option<u16> {
        let behind = self.port.saturating_add(1).clamp(PORTS_FREE, PORTS.1);
        let mut all = (behind..=PORTS.1).chain(PORTS_FREE..behind).chain(PORTS.0..PORTS_FREE);
        all.find(|it| !self.ports.contains_key(it) && !claimed.contains(it))
    }
}

impl AllocatedToService {
    fn of(spec: &Value) -> AllocatedToService {
        let address = spec["clusterIP"].as_str().and_then(|it| it.parse().ok());
        let ports = list_entries(&spec["ports"]).iter().map(|it| &it["nodePort"]);
        let ports = ports.chain([&spec["healthCheckNodePort"]]);
        let ports = ports.filter_map(|it| u16::try_from(it.as_u64()?).ok());
        let mut ports: Vec<u16> = ports.filter(|it| *it != 0).collect();
        ports.sort_unstable();
        ports.dedup();
        AllocatedToService { address, ports }
    }
}

fn at(host: u32) -> Ipv4Addr {
    Ipv4Addr::from(NETWORK + host)
}

fn release<K: std::hash::Hash + Eq>(taken: &mut Map<K, u32>, key: &K) {
    if let Some(n) = taken.get_mut(key) {
        *n -= 1;
        if *n == 0 {
            taken.remove(key);
        }
    }
}
