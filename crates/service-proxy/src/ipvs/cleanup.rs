//! Removing what this backend has made: at once, or when its last connection has ended.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use telaio_model::IpFamily;
use telaio_netlink::NetlinkError;
use telaio_netlink::conntrack::{Conntrack, Family, Selection};
use telaio_netlink::ipset::Ipset;
use telaio_netlink::ipvs::{Frontend, Ipvs};
use telaio_netlink::links::Links;
use telaio_reconcile::{ApplyError, SyncKind};

use super::mirror::record;
use super::network::Membership;
use super::proxier::{DEVICE, Proxier, ProxierOptions, spec};
use super::rules::{RulesContext, leaving_scaffold};
use super::sets::{SetKind, SetName};
use crate::config::{NodeFacts, ProxyConfig};
use crate::iptables::{self, FixedRules, Flavor, Owner, Programs};

/// How often removing a set that is busy is tried, with pauses that double: nf_tables forgets rules that
/// are gone, and so the sets that they match, in its own time.
const BUSY_ATTEMPTS_MAX: u32 = 7;
/// The first of these pauses.
const BUSY_PAUSE_MIN: Duration = Duration::from_millis(10);
const UDP: u8 = 17;

/// What shows that this backend is, or was, at work here.
pub fn present() -> Result<Option<String>, NetlinkError> {
    if Links::open()?.find(DEVICE)?.is_some() {
        return Ok(Some(format!("the link {DEVICE}")));
    }
    Ok(our_sets()?.into_iter().next().map(|set| format!("the ipset {set}")))
}

/// Removes every trace of it at once, with these flavours of iptables; says what it has removed. What fails
/// does not keep the rest from going.
pub fn cleanup(flavors: &[Flavor]) -> Result<Vec<String>, String> {
    let mut done = Vec::new();
    let mut errors = Vec::new();
    // The rules first: a set that one of them matches cannot be removed.
    match iptables::cleanup_of(Owner::Ipvs, flavors) {
        Ok(removed) => done.extend(removed),
        Err(error) => errors.push(error.to_string()),
    }
    let mut attempt = |outcome: Result<Option<String>, NetlinkError>| match outcome {
        Ok(removed) => done.extend(removed),
        Err(error) => errors.push(error.to_string()),
    };
    let servers = remove_servers();
    let recorded = servers.is_ok();
    attempt(servers);
    if recorded {
        attempt(remove_sets());
    }
    attempt(remove_device());
    if errors.is_empty() { Ok(done) } else { Err(errors.join("; ")) }
}

/// The sets of ours that are there.
fn our_sets() -> Result<Vec<SetName>, NetlinkError> {
    let names = match Ipset::open()?.names() {
        Err(error) if error.is_unsupported() => Vec::new(),
        names => names?,
    };
    Ok(names.iter().filter_map(|name| SetName::parse(name)).collect())
}

/// What tells our virtual servers from others'.
fn records() -> Result<BTreeSet<Membership>, NetlinkError> {
    let mut ipset = Ipset::open()?;
    let mut records = BTreeSet::new();
    for set in our_sets()? {
        if matches!(set.kind, SetKind::Servers | SetKind::Marks) {
            let entries = ipset.entries(set.as_str(), spec(set).kind)?;
            records.extend(entries.into_iter().map(|entry| Membership { set, entry: entry.key }));
        }
    }
    Ok(records)
}

/// The virtual servers on record: ours, also those that a kube-proxy had made and we took over.
pub fn servers_on_record() -> Result<BTreeSet<Frontend>, NetlinkError> {
    let records = records()?;
    if records.is_empty() {
        return Ok(BTreeSet::new());
    }
    let Some(mut ipvs) = Ipvs::open()? else { return Ok(BTreeSet::new()) };
    let all = ipvs.frontends()?.into_iter();
    Ok(all.filter(|key| records.contains(&record(key))).collect())
}

fn remove_servers() -> Result<Option<String>, NetlinkError> {
    let servers = servers_on_record()?;
    let mut count = 0;
    if let (false, Some(mut ipvs)) = (servers.is_empty(), Ipvs::open()?) {
        let _spared = SparedEntries::begin();
        for key in &servers {
            count += usize::from(ipvs.delete(key)?);
        }
    }
    Ok((count > 0).then(|| format!("{count} IPVS services")))
}

/// While this lives, IPVS leaves its entries of connections to their own end when their server goes.
///
/// Else it removes them at once, and with each the entry of connection tracking of the same addresses and
/// ports. That may be another connection by then, which another backend leads: of a client that has used its
/// port again.
pub(crate) struct SparedEntries {
    before: Option<String>,
}

impl SparedEntries {
    const SETTING: &str = "/proc/sys/net/ipv4/vs/expire_nodest_conn";

    /// Begins. Where the setting cannot be changed, it stays.
    pub(crate) fn begin() -> Self {
        let before = std::fs::read_to_string(Self::SETTING).ok().filter(|it| it.trim() != "0");
        let before = before.filter(|_| std::fs::write(Self::SETTING, "0").is_ok());
        Self { before }
    }
}

impl Drop for SparedEntries {
    fn drop(&mut self) {
        if let Some(before) = &self.before
            && let Err(error) = std::fs::write(Self::SETTING, before.trim())
        {
            tracing::warn!(setting = Self::SETTING, %error, "cannot be put back");
        }
    }
}

fn remove_sets() -> Result<Option<String>, NetlinkError> {
    let sets = our_sets()?;
    let mut ipset = Ipset::open()?;
    for set in &sets {
        let mut pause = BUSY_PAUSE_MIN;
        let mut outcome = ipset.destroy(set.as_str());
        for _ in 1..BUSY_ATTEMPTS_MAX {
            if !outcome.as_ref().is_err_and(NetlinkError::is_busy) {
                break;
            }
            thread::sleep(pause);
            pause *= 2;
            outcome = ipset.destroy(set.as_str());
        }
        outcome?;
    }
    Ok((!sets.is_empty()).then(|| format!("{} ipsets", sets.len())))
}

fn remove_device() -> Result<Option<String>, NetlinkError> {
    let mut links = Links::open()?;
    let Some(device) = links.find(DEVICE)? else { return Ok(None) };
    Ok(links.delete(device)?.then(|| format!("the link {DEVICE}")))
}

/// The way out, when another backend serves: connections that IPVS has go on, no new ones come, and what
/// has none is removed. May be begun anew at any time.
///
/// Connections that both sides have closed are not waited for, though IPVS remembers them for two minutes:
/// nothing comes of them any more, and a client that uses its port again would begin those minutes anew,
/// without end on a busy node.
#[derive(Debug)]
pub struct Leave {
    proxier: Proxier,
    rules: Vec<FixedRules>,
    flavors: Vec<Flavor>,
    begun: Instant,
    time_max: Duration,
}

impl Leave {
    /// Begins; `None` if there is nothing of this backend. Whatever still has connections goes after
    /// `time_max` all the same.
    pub fn begin(
        families: &[IpFamily],
        flavor: Flavor,
        time_max: Duration,
        now: Instant,
    ) -> Result<Option<Self>, ApplyError> {
        if present().map_err(|error| ApplyError::Transient(error.to_string()))?.is_none() {
            return Ok(None);
        }
        let options = ProxierOptions {
            families: families.to_vec(),
            exclude: Vec::new(),
            takeover: false,
            drain_time_max: time_max,
        };
        let mut proxier = Proxier::open(options)?;
        proxier.be_patient();
        let mut rules = Vec::new();
        for family in families {
            let programs = Programs::find(flavor, *family);
            let programs = programs.map_err(|error| ApplyError::Unsupported(error.to_string()))?;
            let context =
                RulesContext::new(&ProxyConfig::default(), &NodeFacts::default(), *family);
            let scaffold = leaving_scaffold(&context);
            rules.push(FixedRules::new(Owner::Ipvs, Box::new(programs), *family, scaffold));
        }
        Ok(Some(Self { proxier, rules, flavors: vec![flavor], begun: now, time_max }))
    }

    /// One look and what follows from it; to be called every second or so. `Some` when nothing is left, with
    /// what was removed at the end.
    pub fn step(&mut self, now: Instant) -> Result<Option<Vec<String>>, String> {
        let told = |error: ApplyError| error.to_string();
        for rules in &mut self.rules {
            rules.sync(SyncKind::Changes).map_err(told)?;
        }
        self.proxier.observe(now).map_err(told)?;
        if now - self.begun >= self.time_max {
            forget_udp_flows().map_err(|error| error.to_string())?;
        }
        self.proxier.flush(now).map_err(told)?;
        if self.proxier.is_draining() && self.proxier.has_live_connections().map_err(told)? {
            return Ok(None);
        }
        cleanup(&self.flavors).map(Some)
    }

    /// How many virtual servers still have connections.
    pub fn servers_left(&self) -> usize {
        self.proxier.counts().0
    }
}

/// Flows of UDP have no end that could be waited for. Without a connection in IPVS, connection tracking
/// would lead them nowhere; forgotten, they begin anew with who serves now.
fn forget_udp_flows() -> Result<(), NetlinkError> {
    let ours: BTreeSet<SocketAddr> = servers_on_record()?
        .into_iter()
        .filter_map(|key| match key {
            Frontend::Address { protocol: UDP, at } => Some(at),
            _ => None,
        })
        .collect();
    if ours.is_empty() {
        return Ok(());
    }
    let mut conntrack = Conntrack::open()?;
    for family in [Family::V4, Family::V6] {
        let mut flows = Vec::new();
        let selection = Selection { protocol: Some(UDP), ..Selection::family(family) };
        conntrack.each(selection, |flow| {
            if ours.contains(&flow.original.destination) {
                flows.push(*flow);
            }
            Ok(())
        })?;
        for flow in &flows {
            conntrack.delete(flow)?;
        }
    }
    Ok(())
}
