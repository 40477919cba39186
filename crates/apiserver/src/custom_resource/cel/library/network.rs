//! URLs and addresses.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use super::super::eval::{Failure, Outcome};
use super::super::value::{CelMapKey, Val};
use loadmaster_stdx::CollectByInsertion as _;

pub fn call(name: &str, is_member: bool, args: &[Val]) -> Option<Outcome> {
    match (name, args) {
        ("url", [Val::Text(text)]) => Some(match Url::parse(text) {
            Some(_) => Ok(Val::Url(Arc::clone(text))),
            None => Err(Failure::new(format!(
                "URL parse error during conversion from string: parse {text:?}: invalid URI for request"
            ))),
        }),
        ("isURL", [Val::Text(text)]) => Some(Ok(Val::Bool(Url::parse(text).is_some()))),
        ("ip", [Val::Text(text)]) if !is_member => Some(address(text).map(Val::Ip)),
        ("isIP", [Val::Text(text)]) => Some(Ok(Val::Bool(address(text).is_ok()))),
        ("ip.isCanonical", [Val::Text(text)]) => {
            Some(address(text).map(|it| Val::Bool(it.to_string() == **text)))
        }
        ("cidr", [Val::Text(text)]) => Some(network(text).map(|(it, n)| Val::Cidr(it, n))),
        ("isCIDR", [Val::Text(text)]) => Some(Ok(Val::Bool(network(text).is_ok()))),
        (_, [Val::Url(text)]) => of_url(name, &Url::parse(text)?),
        (_, [Val::Ip(it)]) => of_address(name, *it),
        (_, [Val::Cidr(it, n), rest @ ..]) => of_network(name, *it, *n, rest),
        _ => None,
    }
}

/// The parts of a URL as `net/url` names them.
struct Url<'a> {
    scheme: &'a str,
    host: &'a str,
    path: &'a str,
    query: &'a str,
}

impl Url<'_> {
    fn parse(text: &str) -> Option<Url<'_>> {
        let is_bad = |c: char| c.is_ascii_control() || c == ' ';
        if text.is_empty() || text.contains(is_bad) {
            return None;
        }
        let (rest, query) = text.split_once('?').unwrap_or((text, ""));
        if rest.starts_with('/') {
            return Some(Url { scheme: "", host: "", path: rest, query });
        }
        let (scheme, rest) = rest.split_once(':')?;
        let is_part = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
        if !scheme.starts_with(|c: char| c.is_ascii_alphabetic()) || !scheme.chars().all(is_part) {
            return None;
        }
        let Some(rest) = rest.strip_prefix("//") else {
            return Some(Url { scheme, host: "", path: rest, query });
        };
        let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let host = host.rsplit('@').next().unwrap_or(host);
        let url = Url { scheme, host, path, query };
        url.port().chars().all(|c| c.is_ascii_digit()).then_some(url)
    }

    fn hostname(&self) -> &str {
        match self.host.strip_prefix('[') {
            Some(inner) => inner.split(']').next().unwrap_or(inner),
            None => self.host.split(':').next().unwrap_or(self.host),
        }
    }

    fn port(&self) -> &str {
        let behind = self.host.rsplit(']').next().unwrap_or(self.host);
        behind.rsplit_once(':').map_or("", |(_, port)| port)
    }
}

fn of_url(name: &str, url: &Url<'_>) -> Option<Outcome> {
    let text = match name {
        "getScheme" => url.scheme.to_lowercase(),
        "getHost" => url.host.to_owned(),
        "getHostname" => url.hostname().to_owned(),
        "getPort" => url.port().to_owned(),
        "getEscapedPath" => url.path.to_owned(),
        "getQuery" => {
            let mut all: BTreeMap<CelMapKey, Vec<Val>> = BTreeMap::new();
            for (name, value) in form_urlencoded::parse(url.query.as_bytes()) {
                all.entry(CelMapKey::text(&name)).or_default().push(Val::text(&*value));
            }
            let all = all.into_iter().map(|(name, values)| (name, Val::list(values)));
            return Some(Ok(Val::Map(Arc::new(all.collect_by_insertion()))));
        }
        _ => return None,
    };
    Some(Ok(Val::text(text)))
}

fn address(text: &str) -> Result<IpAddr, Failure> {
    let parsed = text.parse::<IpAddr>().map_err(|_| {
        Failure::new(format!("IP Address {text:?} parse error during conversion from string: ParseAddr({text:?}): unable to parse IP"))
    })?;
    match parsed {
        IpAddr::V6(it) if it.to_ipv4_mapped().is_some() => {
            Err(Failure::new(format!("IPv4-mapped IPv6 address {text:?} is not allowed")))
        }
        parsed => Ok(parsed),
    }
}

fn network(text: &str) -> Result<(IpAddr, u8), Failure> {
    let parsed = text.split_once('/').and_then(|(it, bits)| {
        let it = address(it).ok()?;
        let is_plain = bits == "0" || !bits.starts_with(['0', '+']);
        let bits = bits.parse::<u8>().ok().filter(|it| is_plain && *it <= 128)?;
        (it.is_ipv6() || bits <= 32).then_some((it, bits))
    });
    parsed.ok_or_else(|| {
        let why = if text.contains('/') { "unable to parse IP" } else { "no '/'" };
        let prefix = "network address parse error during conversion from string: ";
        Failure::new(format!("{prefix}{prefix}netip.ParsePrefix({text:?}): {why}"))
    })
}

fn of_address(name: &str, it: IpAddr) -> Option<Outcome> {
    let is_link_local = match it {
        IpAddr::V4(it) => it.is_link_local(),
        IpAddr::V6(it) => it.segments()[0] & 0xffc0 == 0xfe80,
    };
    Some(Ok(match name {
        "family" => Val::Int(if it.is_ipv4() { 4 } else { 6 }),
        "isUnspecified" => Val::Bool(it.is_unspecified()),
        "isLoopback" => Val::Bool(it.is_loopback()),
        "isLinkLocalUnicast" => Val::Bool(is_link_local),
        "isLinkLocalMulticast" => Val::Bool(match it {
            IpAddr::V4(it) => it.octets()[..3] == [224, 0, 0],
            IpAddr::V6(it) => it.segments()[0] & 0xff0f == 0xff02,
        }),
        "isGlobalUnicast" => {
            let is_broadcast = matches!(it, IpAddr::V4(it) if it.is_broadcast());
            Val::Bool(
                !(it.is_unspecified()
                    || it.is_loopback()
                    || it.is_multicast()
                    || is_link_local
                    || is_broadcast),
            )
        }
        _ => return None,
    }))
}

/// The bits of an address that a network of some bits has.
fn masked(it: IpAddr, bits: u8) -> IpAddr {
    let keep = |width: u32| {
        let drop = width - u32::from(bits).min(width);
        u128::MAX.checked_shl(drop).unwrap_or(0)
    };
    match it {
        IpAddr::V4(it) => IpAddr::V4((it.to_bits() & keep(32) as u32).into()),
        IpAddr::V6(it) => IpAddr::V6(Ipv6Addr::from(it.to_bits() & keep(128))),
    }
}

fn of_network(name: &str, it: IpAddr, bits: u8, rest: &[Val]) -> Option<Outcome> {
    let has =
        |other: IpAddr| other.is_ipv4() == it.is_ipv4() && masked(other, bits) == masked(it, bits);
    let has_all = |other: IpAddr, n: u8| Val::Bool(n >= bits && has(other));
    Some(match (name, rest) {
        ("containsIP", [Val::Ip(other)]) => Ok(Val::Bool(has(*other))),
        ("containsIP", [Val::Text(text)]) => address(text).map(|other| Val::Bool(has(other))),
        ("containsCIDR", [Val::Cidr(other, n)]) => Ok(has_all(*other, *n)),
        ("containsCIDR", [Val::Text(text)]) => network(text).map(|(other, n)| has_all(other, n)),
        ("ip", []) => Ok(Val::Ip(it)),
        ("prefixLength", []) => Ok(Val::Int(i64::from(bits))),
        ("masked", []) => Ok(Val::Cidr(masked(it, bits), bits)),
        _ => return None,
    })
}
