//! Who has which address.
//!
//! A [`Range`] is where addresses of one kind come from; an interface gets one address out of each *set* of
//! ranges, so that two sets of different families make it dual-stack. Addresses are given in turn, so that one
//! that was just given back rests for as long as possible.
//!
//! A claim is a hard link to the holder's record: see [`state`](crate::state).

use std::fs;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use cidr::{IpCidr, IpInet};
use serde::{Deserialize, Serialize};

use crate::attachment::Attachment;
use crate::error::{Error, Result};
use crate::ports::is_same;
use crate::state::{State, read_dir, read_record, remove_file};

#[cfg(test)]
mod tests;

/// How many addresses of a range are tried one after the other before the whole list is read.
const TRIES_MAX: u32 = 64;
/// How many addresses of one range are looked at: more than a node can ever have instances.
const SEARCHED_MAX: u128 = 1 << 20;
/// How many holders an exhausted range names.
const HOLDERS_NAMED_MAX: usize = 5;

/// Where addresses come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Range {
    /// The network that they are of.
    pub subnet: IpCidr,
    /// The first that is given.
    pub first: IpAddr,
    /// The last that is given.
    pub last: IpAddr,
    /// The gateway, which is never given.
    pub gateway: IpAddr,
}

impl Range {
    /// The usable addresses of a network: without its own and, of IPv4, the broadcast address. The gateway is
    /// the first of them unless said otherwise.
    pub fn of(
        subnet: IpCidr,
        first: Option<IpAddr>,
        last: Option<IpAddr>,
        gateway: Option<IpAddr>,
    ) -> Result<Self> {
        let invalid = |why: String| Error::Invalid { field: "ipam.ranges", why };
        let (low, high) = usable(subnet).ok_or_else(|| {
            invalid(format!("{subnet} has no address for instances beside the gateway's"))
        })?;
        for ip in [first, last, gateway].into_iter().flatten() {
            if !subnet.contains(&ip) {
                return Err(Error::OutsideRange { address: ip, subnets: subnet.to_string() });
            }
        }
        let family_matches = |ip: IpAddr| ip.is_ipv4() == subnet.is_ipv4();
        debug_assert!(family_matches(low));
        let first = first.map_or(low, |ip| ip.max(low));
        let last = last.map_or(high, |ip| ip.min(high));
        if first > last {
            return Err(invalid(format!("{first} comes after {last}")));
        }
        Ok(Self { subnet, first, last, gateway: gateway.unwrap_or(low) })
    }

    /// Whether an address can be given.
    pub fn contains(&self, ip: IpAddr) -> bool {
        self.subnet.contains(&ip) && (self.first..=self.last).contains(&ip) && ip != self.gateway
    }

    /// How many addresses can be given.
    pub fn total(&self) -> u128 {
        let all = number(self.last) - number(self.first) + 1;
        all - u128::from((self.first..=self.last).contains(&self.gateway))
    }

    /// An address of the range with the network's prefix length.
    pub fn inet(&self, ip: IpAddr) -> Option<IpInet> {
        IpInet::new(ip, self.subnet.network_length()).ok()
    }

    fn at(&self, offset: u128) -> IpAddr {
        match self.first {
            IpAddr::V4(first) => {
                IpAddr::V4(Ipv4Addr::from(u32::from(first).wrapping_add(offset as u32)))
            }
            IpAddr::V6(first) => IpAddr::V6(Ipv6Addr::from(u128::from(first).wrapping_add(offset))),
        }
    }

    fn len(&self) -> u128 {
        number(self.last) - number(self.first) + 1
    }
}

impl std::fmt::Display for Range {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

/// The lowest and the highest address of a network that a machine can have.
fn usable(subnet: IpCidr) -> Option<(IpAddr, IpAddr)> {
    let (low, high) = (subnet.first_address(), subnet.last_address());
    let length = subnet.network_length();
    match (low, high) {
        (IpAddr::V4(low), IpAddr::V4(high)) if length <= 30 => Some((
            Ipv4Addr::from(u32::from(low) + 1).into(),
            Ipv4Addr::from(u32::from(high) - 1).into(),
        )),
        // The lowest of a network is any router's.
        (IpAddr::V6(low), IpAddr::V6(high)) if length <= 126 => {
            Some((Ipv6Addr::from(u128::from(low) + 1).into(), IpAddr::V6(high)))
        }
        _ => None,
    }
}

fn number(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => u32::from(ip).into(),
        IpAddr::V6(ip) => ip.into(),
    }
}

/// Claims an address out of a set of ranges for the holder of a record: this one, or the next that is free.
pub(crate) fn claim(
    state: &State,
    network: &str,
    key: &str,
    set: &[Range],
    wanted: Option<IpAddr>,
) -> Result<(IpInet, IpAddr)> {
    if let Some(wanted) = wanted {
        let range = set.iter().find(|range| range.contains(wanted));
        let range = range
            .ok_or_else(|| Error::OutsideRange { address: wanted, subnets: ranges_text(set) })?;
        if !try_claim(state, network, key, wanted)? {
            return Err(Error::AddressTaken {
                address: wanted,
                network: network.to_owned(),
                owner: holder(&state.addresses_dir(network), wanted),
            });
        }
        return with_gateway(range, wanted);
    }
    for range in set {
        if let Some(ip) = claim_next(state, network, key, range)? {
            return with_gateway(range, ip);
        }
    }
    Err(exhausted(state, network, set))
}

fn with_gateway(range: &Range, ip: IpAddr) -> Result<(IpInet, IpAddr)> {
    let inet = range.inet(ip);
    let subnets = range.subnet.to_string();
    inet.map(|inet| (inet, range.gateway)).ok_or(Error::OutsideRange { address: ip, subnets })
}

/// Claims an address whatever range it is of: the library's callers choose their own.
pub(crate) fn claim_exactly(state: &State, network: &str, key: &str, ip: IpAddr) -> Result<()> {
    if try_claim(state, network, key, ip)? {
        return Ok(());
    }
    let owner = holder(&state.addresses_dir(network), ip);
    Err(Error::AddressTaken { address: ip, network: network.to_owned(), owner })
}

/// Whether the claim succeeded. An address that the same holder has counts as claimed.
fn try_claim(state: &State, network: &str, key: &str, ip: IpAddr) -> Result<bool> {
    let path = state.addresses_dir(network).join(ip.to_string());
    match fs::hard_link(state.attachment_path(key), &path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(Error::io("cannot claim", path)(error)),
    }
}

/// The next free address of a range after the one that was given last.
fn claim_next(state: &State, network: &str, key: &str, range: &Range) -> Result<Option<IpAddr>> {
    let dir = state.addresses_dir(network);
    // No two ranges of a network begin at the same address.
    let hint = dir.join(format!("last-{}", range.first));
    let last = fs::read_to_string(&hint).ok().and_then(|text| text.parse().ok());
    let start = match last {
        Some(last) if range.subnet.contains(&last) && (range.first..range.last).contains(&last) => {
            number(last) - number(range.first) + 1
        }
        _ => 0,
    };
    let length = range.len().min(SEARCHED_MAX);
    let mut taken = None;
    for step in 0..length {
        let ip = range.at((start + step) % length);
        if ip == range.gateway {
            continue;
        }
        // After some tries in vain, one look at the list tells of all others.
        if step >= u128::from(TRIES_MAX) {
            let taken = match &taken {
                Some(taken) => taken,
                None => taken.insert(names_in(&dir)?),
            };
            if taken.contains(&ip.to_string()) {
                continue;
            }
        }
        if try_claim(state, network, key, ip)? {
            // Only a hint: were it lost, addresses would be given in another order.
            let _ = fs::write(&hint, ip.to_string());
            return Ok(Some(ip));
        }
    }
    Ok(None)
}

fn names_in(dir: &Path) -> Result<std::collections::HashSet<String>> {
    Ok(read_dir(dir)?.iter().map(|entry| entry.file_name().to_string_lossy().into()).collect())
}

/// Gives an address back, if this holder has it.
pub(crate) fn release(state: &State, record: &Attachment, ip: IpAddr) -> Result<()> {
    let path = state.addresses_dir(&record.network).join(ip.to_string());
    match read_record::<Attachment>(&path) {
        Ok(Some(holder)) if !is_same(&holder, record) => Ok(()),
        Ok(None) => Ok(()),
        _ => remove_file(&path),
    }
}

/// All claims of a network; a holder that cannot be read is `None`.
pub(crate) fn claims(state: &State, network: &str) -> Result<Vec<(IpAddr, Option<Attachment>)>> {
    let mut found = Vec::new();
    for entry in read_dir(&state.addresses_dir(network))? {
        if let Some(ip) = entry.file_name().to_str().and_then(|name| name.parse().ok()) {
            found.push((ip, read_record(&entry.path()).ok().flatten()));
        }
    }
    found.sort_by_key(|(ip, _)| *ip);
    Ok(found)
}

/// Whether every set of ranges has a free address.
pub(crate) fn has_free(state: &State, network: &str, sets: &[Vec<Range>]) -> Result<()> {
    let taken = names_in(&state.addresses_dir(network))?;
    for set in sets {
        let taken_here = |range: &Range| {
            let here = taken.iter().filter_map(|name| name.parse().ok());
            here.filter(|ip| range.contains(*ip)).count() as u128
        };
        if set.iter().all(|range| taken_here(range) >= range.total()) {
            return Err(exhausted(state, network, set));
        }
    }
    Ok(())
}

fn holder(dir: &Path, ip: IpAddr) -> String {
    let record = read_record::<Attachment>(&dir.join(ip.to_string()));
    record.ok().flatten().map_or_else(|| "an unfinished attachment".to_owned(), |it| it.to_string())
}

fn ranges_text(set: &[Range]) -> String {
    set.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn exhausted(state: &State, network: &str, set: &[Range]) -> Error {
    let claims = claims(state, network).unwrap_or_default();
    let within = claims.iter().filter(|(ip, _)| set.iter().any(|range| range.contains(*ip)));
    let named: Vec<String> = within
        .clone()
        .take(HOLDERS_NAMED_MAX)
        .map(|(ip, holder)| match holder {
            Some(holder) => format!("{ip} by {holder}"),
            None => format!("{ip} by an unfinished attachment"),
        })
        .collect();
    let more = within.count().saturating_sub(named.len());
    let mut holders = named.join(", ");
    if more > 0 {
        holders = format!("{holders} and {more} more");
    }
    Error::Exhausted {
        network: network.to_owned(),
        ranges: ranges_text(set),
        total: set.iter().map(Range::total).fold(0, u128::saturating_add),
        holders,
    }
}
