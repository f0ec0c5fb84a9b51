//! Instances that were attached a moment ago: their policies hold from the first packet on.
//!
//! Whoever attaches an instance ([`admit`]) writes its addresses, before there is a link, into two sets of the policy tables, if
//! an agent has made these: `arrived`, by which the agent hears of it, and `unjudged`, if the instance's namespace has policies:
//! nothing comes from such an address, or goes to it. When the agent has judged it, it takes the address out, and whoever
//! attaches it, who waits for that ([`wait`]), is done. Where no agent keeps policies there are no such tables, and nobody waits.
//! Where the agent is gone but its tables are there, the instance is refused: policies that nobody keeps up to date would be
//! worse than a message.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use telaio_model::IpFamily;
use telaio_netlink::NetlinkError;
use telaio_netlink::nftables::{Batch, Element, ElementData, Family, Nftables};

use super::layout::{Map, TABLE, nft_family};
use super::numbers;
use crate::attachment::Attachment;
use crate::error::{Error, Result};
use crate::ports;

/// How long the agent has to judge an instance.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long it is waited between two looks: at first, and at most.
const PAUSE_FIRST: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(40);
const ENOENT: i32 = 2;

/// Addresses that somebody has attached here.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Newcomers {
    /// Of which the agent was told.
    pub arrived: BTreeSet<IpAddr>,
    /// Which nobody has judged yet.
    pub unjudged: BTreeSet<IpAddr>,
}

impl Newcomers {
    /// There are none.
    pub fn is_empty(&self) -> bool {
        self.arrived.is_empty() && self.unjudged.is_empty()
    }

    /// All of them, each once.
    pub fn all(&self) -> BTreeSet<IpAddr> {
        self.arrived.union(&self.unjudged).copied().collect()
    }

    /// Those that stand in the tables.
    pub(super) fn read(nft: &mut Nftables) -> std::result::Result<Self, NetlinkError> {
        Ok(Self { arrived: read(nft, Map::Arrived)?, unjudged: read(nft, Map::Unjudged)? })
    }

    /// Takes them out of the tables; that they are gone is no fault.
    pub(super) fn remove(&self, nft: &mut Nftables) -> std::result::Result<(), NetlinkError> {
        for (map, ips) in [(Map::Arrived, &self.arrived), (Map::Unjudged, &self.unjudged)] {
            for family in IpFamily::ALL {
                let ours = ips.iter().filter(|ip| IpFamily::of(**ip) == family);
                remove(nft, family, map, &ours.copied().collect::<Vec<_>>())?;
            }
        }
        Ok(())
    }
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

fn is_gone(error: &NetlinkError) -> bool {
    error.raw_os_error() == Some(ENOENT) || error.is_unsupported()
}

/// The elements of a set in both tables. One that is not there has none.
fn read(nft: &mut Nftables, map: Map) -> std::result::Result<BTreeSet<IpAddr>, NetlinkError> {
    let mut all = BTreeSet::new();
    for family in IpFamily::ALL {
        let mut found = Vec::new();
        let listed =
            nft.elements(nft_family(family), TABLE, &map.name(), |element| match element {
                None => found.clear(),
                Some(element) => found.extend(address(element.key)),
            });
        match listed {
            Err(error) if is_gone(&error) => {}
            listed => {
                listed?;
                all.extend(found);
            }
        }
    }
    Ok(all)
}

fn address(key: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(key).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(key).map(IpAddr::from)).ok()
}

fn remove(
    nft: &mut Nftables,
    family: IpFamily,
    map: Map,
    ips: &[IpAddr],
) -> std::result::Result<(), NetlinkError> {
    let mut delete = |ips: &[IpAddr]| {
        let mut batch = Batch::new(nft_family(family), TABLE);
        for ip in ips {
            batch.delete_element(&map.name(), &octets(*ip));
        }
        nft.commit(&mut [&mut batch])
    };
    match ips {
        [] => Ok(()),
        ips => match delete(ips) {
            // Some of them are gone: then each for itself.
            Err(error) if is_gone(&error) => {
                for ip in ips {
                    match delete(std::slice::from_ref(ip)) {
                        Err(error) if is_gone(&error) => {}
                        outcome => outcome?,
                    }
                }
                Ok(())
            }
            outcome => outcome,
        },
    }
}

/// Says that an instance is about to be attached, before there is a link; whether it has to be [waited](wait) for its being
/// judged. Flows of whoever had its addresses before are forgotten, for what belongs to a known connection passes.
pub(crate) fn admit(record: &Attachment) -> Result<bool> {
    let doing = || Error::kernel(format!("saying that {record} comes"));
    let mut nft = Nftables::open().map_err(doing())?;
    let (mut is_kept, mut waits) = (false, false);
    for family in IpFamily::ALL {
        let own = record.addresses.iter().map(cidr::IpInet::address);
        let own: Vec<IpAddr> = own.filter(|ip| IpFamily::of(*ip) == family).collect();
        let of = nft_family(family);
        if own.is_empty() || !has_table(&mut nft, of).map_err(doing())? {
            continue;
        }
        is_kept = true;
        let Some(pod) = &record.pod else { continue };
        let mut has_policies = false;
        let number = numbers::of_text(&pod.namespace).map(u32::to_ne_bytes).concat();
        let asked = [number.as_slice()];
        nft.elements_at(of, TABLE, &Map::Namespaces.name(), asked, |_, element| {
            has_policies = element.is_some();
        })
        .map_err(doing())?;
        let mut batch = Batch::new(of, TABLE);
        for map in [Map::Unjudged, Map::Arrived] {
            if map == Map::Arrived || has_policies {
                for ip in &own {
                    batch.add_element(&map.name(), &Element::new(&octets(*ip), ElementData::None));
                }
            }
        }
        match nft.commit(&mut [&mut batch]) {
            Ok(()) => waits |= has_policies,
            // Of an agent of an earlier release, or just removed.
            Err(error) if error.raw_os_error() == Some(ENOENT) => {}
            Err(error) => return Err(doing()(error)),
        }
    }
    if is_kept {
        ports::forget_flows_of(record)?;
    }
    Ok(waits)
}

/// A kernel without tables has none of ours.
fn has_table(nft: &mut Nftables, family: Family) -> std::result::Result<bool, NetlinkError> {
    match nft.has_live_table(family, TABLE) {
        Err(error) if error.is_unsupported() => Ok(false),
        there => there,
    }
}

/// Waits until the agent has judged an instance. To be called without any lock: the agent may need it.
pub(crate) fn wait(record: &Attachment) -> Result<()> {
    let doing = || Error::kernel(format!("waiting for the policies of {record}"));
    let mut nft = Nftables::open().map_err(doing())?;
    let deadline = Instant::now() + PATIENCE;
    let mut pause = PAUSE_FIRST;
    loop {
        let mut unjudged = None;
        for ip in record.addresses.iter().map(cidr::IpInet::address) {
            let key = octets(ip);
            let family = nft_family(IpFamily::of(ip));
            let looked =
                nft.elements_at(family, TABLE, &Map::Unjudged.name(), [key.as_slice()], |_, it| {
                    unjudged = it.map(|_| ip).or(unjudged);
                });
            looked.map_err(doing())?;
        }
        let Some(address) = unjudged else { return Ok(()) };
        if Instant::now() >= deadline {
            let pod = record.pod.as_ref();
            let pod = pod.map(|pod| format!("{}/{}", pod.namespace, pod.name)).unwrap_or_default();
            return Err(Error::Unjudged { pod, address, seconds: PATIENCE.as_secs() });
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// Instances go, or were never there after all. Only those that are pods were ever told of.
pub(crate) fn forget(records: &[Attachment]) -> Result<()> {
    let own: BTreeSet<IpAddr> = records
        .iter()
        .filter(|record| record.pod.is_some())
        .flat_map(|record| record.addresses.iter().map(cidr::IpInet::address))
        .collect();
    if own.is_empty() {
        return Ok(());
    }
    let doing = || Error::kernel("forgetting that instances came");
    let mut nft = Nftables::open().map_err(doing())?;
    let Newcomers { mut arrived, mut unjudged } = Newcomers::read(&mut nft).map_err(doing())?;
    for there in [&mut arrived, &mut unjudged] {
        there.retain(|ip| own.contains(ip));
    }
    Newcomers { arrived, unjudged }.remove(&mut nft).map_err(doing())
}
