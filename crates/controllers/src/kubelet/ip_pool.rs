//! IP addresses of nodes and pods: unique, and stable across restarts. No I/O.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use loadmaster_stdx::Rng;

use crate::kind::Key;

/// A range of IPv4 addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpRange {
    base: u32,
    n_bits: u32,
}

impl IpRange {
    /// Parses a CIDR such as `10.0.0.0/24`; None for other texts, for IPv6, and for fewer than four addresses.
    pub fn parse(text: &str) -> Option<IpRange> {
        let (base, prefix) = text.split_once('/')?;
        let n_bits = 32u32.checked_sub(prefix.parse().ok()?).filter(|n_bits| *n_bits >= 2)?;
        let base = u64::from(u32::from(base.parse::<Ipv4Addr>().ok()?)) >> n_bits << n_bits;
        Some(IpRange { base: u32::try_from(base).ok()?, n_bits })
    }

    /// All but the first and the last.
    fn len(self) -> u32 {
        u32::try_from((1u64 << self.n_bits) - 2).unwrap_or(u32::MAX)
    }

    fn nth(self, n: u32) -> Ipv4Addr {
        Ipv4Addr::from(self.base + 1 + n)
    }
}

/// Allocated addresses by owner.
#[derive(Clone, Debug, Default)]
pub struct IpPool {
    by_address: BTreeMap<Ipv4Addr, Key>,
    /// The address, with the uid of its owner.
    by_key: BTreeMap<Key, (String, Ipv4Addr)>,
}

impl IpPool {
    /// Records that an object uses an address.
    pub fn reserve(&mut self, key: &Key, uid: &str, address: Ipv4Addr) {
        if self.by_key.get(key).is_some_and(|(old, at)| old == uid && *at == address) {
            return;
        }
        self.release(key);
        self.by_address.insert(address, key.clone());
        self.by_key.insert(key.clone(), (uid.to_owned(), address));
    }

    /// Releases the address of an object.
    pub fn release(&mut self, key: &Key) {
        if let Some((_, address)) = self.by_key.remove(key)
            && self.by_address.get(&address) == Some(key)
        {
            self.by_address.remove(&address);
        }
    }

    /// Allocates an address for an object: the one it has, else a free one. None if the range is exhausted.
    pub fn allocate(&mut self, key: &Key, uid: &str, range: IpRange) -> Option<Ipv4Addr> {
        if let Some((old, address)) = self.by_key.get(key)
            && old == uid
        {
            return Some(*address);
        }
        // Derived from the uid, so that the address is most likely the same after a restart.
        let first = Rng::new(0).split(uid).below(u64::from(range.len())) as u32;
        let free = (0..range.len())
            .map(|n| range.nth((first.wrapping_add(n)) % range.len()))
            .find(|address| !self.by_address.contains_key(address))?;
        self.reserve(key, uid, free);
        Some(free)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind::Kind;

    #[test]
    fn ranges() {
        #[track_caller]
        fn check(text: &str, want: Option<(&str, u32)>) {
            let got = IpRange::parse(text).map(|range| (range.nth(0).to_string(), range.len()));
            assert_eq!(got, want.map(|(first, len)| (first.to_owned(), len)));
        }
        check("10.0.3.77/24", Some(("10.0.3.1", 254)));
        check("10.128.0.0/9", Some(("10.128.0.1", (1 << 23) - 2)));
        check("0.0.0.0/0", Some(("0.0.0.1", u32::MAX - 1)));
        check("10.0.0.0/31", None);
        check("10.0.0.0/33", None);
        check("fd00::/64", None);
        check("10.0.0.0", None);
    }

    #[test]
    fn addresses_are_unique_and_stable() {
        let range = IpRange::parse("10.0.0.0/29").unwrap();
        let key = |n: usize| Key::new(Kind::Pod, "a", n.to_string());
        let mut all = IpPool::default();
        let given: Vec<_> =
            (0..6).map(|n| all.allocate(&key(n), &n.to_string(), range).unwrap()).collect();
        let distinct: std::collections::BTreeSet<_> = given.iter().collect();
        assert_eq!(distinct.len(), 6);
        assert_eq!(all.allocate(&key(6), "6", range), None, "all are taken");
        assert_eq!(all.allocate(&key(3), "3", range), Some(given[3]));
        // Another pod of the name needs another address as long as the old one may be in use, and the old one becomes free.
        all.release(&key(3));
        assert_eq!(all.allocate(&key(6), "6", range), Some(given[3]));
        // An address that was recorded before a restart stays.
        let mut again = IpPool::default();
        again.reserve(&key(0), "0", given[1]);
        assert_ne!(again.allocate(&key(1), "1", range), Some(given[1]));
        assert_eq!(again.allocate(&key(0), "0", range), Some(given[1]));
    }
}
