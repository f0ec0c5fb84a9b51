//! What kube-proxy's mode ipvs has left: noticing it, and removing it.
//!
//! Beside its chains in iptables, which [`iptables`](crate::iptables) removes, that mode has three
//! things: virtual services of IPVS, ipsets that its chains match, and the link `kube-ipvs0` with the
//! addresses of services.
//!
//! What always holds:
//! - Others' stay. Sets go by their exact names, because others name theirs `KUBE-`something, too.
//!   A virtual service goes if its address is one of the link's, or if one of the sets has it.
//! - The services go first, and what tells whose they are only when none of them is left: who is
//!   interrupted can begin anew.
//! - A kernel without IPVS, ipset or such links has nothing of it, which is no error.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::thread;
use std::time::Duration;

use telaio_netlink::NetlinkError;
use telaio_netlink::addresses::{Addresses, addresses_of, own_addresses};
use telaio_netlink::ipset::{Ipset, Member};
use telaio_netlink::ipvs::{
    Command, Frontend, Ipvs, RealServer, RealServerLoad, Snapshot, connections,
};
use telaio_netlink::links::{LinkIndex, Links};

use crate::ipvs;

#[cfg(test)]
mod tests;

/// The link that has the services' addresses.
pub const LINK: &str = "kube-ipvs0";
/// The longest name that a set can have. kube-proxy cuts longer ones.
const SET_NAME_LEN_MAX: usize = 31;
/// How often removing sets that are busy is tried, with pauses that double. nf_tables forgets rules that
/// are gone, and so the sets that they match, in its own time; how long that takes depends on the kernel.
const BUSY_ATTEMPTS_MAX: u32 = 7;
/// The first of these pauses.
const BUSY_PAUSE_MIN: Duration = Duration::from_millis(10);

const TCP: u8 = 6;
const UDP: u8 = 17;
const SCTP: u8 = 132;

/// What the members of a set are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Members {
    /// Addresses and ports of virtual services.
    Frontends,
    /// Ports of virtual services at the node's own addresses, of this protocol.
    NodePorts(u8),
    /// Nothing that IPVS knows.
    Other,
}

/// kube-proxy's sets of IPv4, without `KUBE-`. Those of IPv6 have `KUBE-6-` in its place.
const SETS: [(&str, Members); 19] = [
    ("LOOP-BACK", Members::Other),
    ("CLUSTER-IP", Members::Frontends),
    ("EXTERNAL-IP", Members::Frontends),
    ("EXTERNAL-IP-LOCAL", Members::Frontends),
    ("LOAD-BALANCER", Members::Frontends),
    ("LOAD-BALANCER-LOCAL", Members::Frontends),
    ("LOAD-BALANCER-FW", Members::Frontends),
    ("LOAD-BALANCER-SOURCE-IP", Members::Other),
    ("LOAD-BALANCER-SOURCE-CIDR", Members::Other),
    ("NODE-PORT-TCP", Members::NodePorts(TCP)),
    ("NODE-PORT-LOCAL-TCP", Members::NodePorts(TCP)),
    ("NODE-PORT-UDP", Members::NodePorts(UDP)),
    ("NODE-PORT-LOCAL-UDP", Members::NodePorts(UDP)),
    ("NODE-PORT-SCTP-HASH", Members::Frontends),
    ("NODE-PORT-LOCAL-SCTP-HASH", Members::Frontends),
    // Of releases before 1.15.
    ("NODE-PORT-SCTP", Members::NodePorts(SCTP)),
    ("NODE-PORT-LOCAL-SCTP", Members::NodePorts(SCTP)),
    ("HEALTH-CHECK-NODE-PORT", Members::Other),
    ("IPVS-IPS", Members::Other),
];

/// What shows that kube-proxy's mode ipvs is, or was, at work here.
pub fn present() -> Option<String> {
    let found = link().and_then(|link| {
        if link.is_some() {
            return Ok(Some(format!("the link {LINK}")));
        }
        Ok(sets()?.into_iter().next().map(|set| format!("the ipset {}", set.name)))
    });
    found.unwrap_or_else(|error| {
        tracing::debug!(%error, "cannot look for what kube-proxy's mode ipvs leaves");
        None
    })
}

/// Removes it all; says what it has removed. The rules that match the sets have to be gone before: a
/// set that is still needed stays and is an error, after everything else was removed.
pub fn cleanup() -> Result<Vec<String>, NetlinkError> {
    let link = link()?;
    let sets = sets()?;
    let mut done = Vec::new();
    if link.is_some() || !sets.is_empty() {
        let count = remove_services(link, &sets)?;
        done.extend((count > 0).then(|| format!("{count} IPVS services of kube-proxy")));
    }
    let (count, mut first_error) = remove_sets(sets);
    done.extend((count > 0).then(|| format!("{count} ipsets of kube-proxy")));
    if let Some(link) = link {
        match Links::open().and_then(|mut links| links.delete(link)) {
            Ok(was_there) => done.extend(was_there.then(|| format!("the link {LINK}"))),
            Err(error) => first_error = first_error.or(Some(error)),
        }
    }
    first_error.map_or(Ok(done), Err)
}

/// Takes its virtual services out of service without cutting a connection: they get no new ones, and those
/// that have none are removed, with their addresses. How many are left; [`cleanup`] is for when there is
/// none, or no more patience.
pub fn let_go() -> Result<usize, NetlinkError> {
    let link = link()?;
    let sets = sets()?;
    if link.is_none() && sets.is_empty() {
        return Ok(0);
    }
    let Some(mut ipvs) = Ipvs::open()? else { return Ok(0) };
    let claims = Claims::read(link, &sets)?;
    let theirs: Vec<Snapshot> =
        ipvs.snapshot()?.into_iter().filter(|it| claims.cover(&it.server.frontend)).collect();
    let (commands, left) = going(&theirs);
    if let Some(failure) = ipvs.apply(&commands)?.into_iter().next() {
        return Err(failure.error);
    }
    if !any_lives(&theirs)? {
        // All that may be left are entries of connections that have ended.
        return Ok(0);
    }
    if let Some(link) = link {
        let needed: BTreeSet<IpAddr> = left.iter().filter_map(address).collect();
        let idle: Vec<IpAddr> =
            claims.addresses.iter().copied().filter(|ip| !needed.contains(ip)).collect();
        if let Some(failure) = Addresses::open()?.delete(link, &idle)?.into_iter().next() {
            return Err(failure.error);
        }
    }
    Ok(left.len())
}

/// Whether a connection to one of these services may still carry data.
fn any_lives(services: &[Snapshot]) -> Result<bool, NetlinkError> {
    let loads = services.iter().flat_map(|service| &service.servers);
    let servers: BTreeSet<SocketAddr> = loads.map(|load| load.server.address).collect();
    Ok(!servers.is_empty() && connections::any_lives(&servers)?)
}

/// The commands for virtual services that should go, and those of them that still have connections.
fn going(services: &[Snapshot]) -> (Vec<Command>, Vec<Frontend>) {
    let (mut commands, mut left) = (Vec::new(), Vec::new());
    for service in services {
        let of = service.server.frontend;
        let has_any = |it: &RealServerLoad| it.active > 0 || it.inactive > 0;
        if !service.servers.iter().any(has_any) {
            commands.push(Command::Delete(of));
            continue;
        }
        left.push(of);
        for load in &service.servers {
            if !has_any(load) {
                commands.push(Command::DeleteServer(of, load.server.address));
            } else if load.server.weight > 0 {
                let quiet = RealServer { weight: 0, ..load.server };
                commands.push(Command::EditServer(of, quiet));
            }
        }
    }
    (commands, left)
}

fn address(frontend: &Frontend) -> Option<IpAddr> {
    match frontend {
        Frontend::Address { at, .. } => Some(at.ip()),
        Frontend::Mark { .. } => None,
    }
}

/// A set of kube-proxy's that is there.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Set {
    name: String,
    members: Members,
}

impl Set {
    /// The set of this name, if it is kube-proxy's.
    fn of_kube_proxy(name: String) -> Option<Self> {
        let is_it = |stem: &str| {
            [format!("KUBE-{stem}"), format!("KUBE-6-{stem}")]
                .iter()
                .any(|full| full[..full.len().min(SET_NAME_LEN_MAX)] == name)
        };
        let (_, members) = SETS.into_iter().find(|(stem, _)| is_it(stem))?;
        Some(Self { name, members })
    }
}

fn link() -> Result<Option<LinkIndex>, NetlinkError> {
    Links::open()?.find(LINK)
}

fn sets() -> Result<Vec<Set>, NetlinkError> {
    let names = match Ipset::open()?.names() {
        Err(error) if error.is_unsupported() => Vec::new(),
        names => names?,
    };
    Ok(names.into_iter().filter_map(Set::of_kube_proxy).collect())
}

/// By what kube-proxy's virtual services are told from others'.
#[derive(Debug, Default)]
struct Claims {
    /// The link's addresses.
    addresses: BTreeSet<IpAddr>,
    /// Protocols and places that sets have.
    frontends: BTreeSet<(u8, SocketAddr)>,
    /// Protocols and ports that sets of node ports have.
    node_ports: BTreeSet<(u8, u16)>,
    /// The node's own addresses.
    own: BTreeSet<IpAddr>,
    /// Virtual services that are ours by now.
    taken_over: BTreeSet<Frontend>,
}

impl Claims {
    fn read(link: Option<LinkIndex>, sets: &[Set]) -> Result<Self, NetlinkError> {
        let taken_over = ipvs::servers_on_record()?;
        let mut claims = Self { own: own_addresses()?, taken_over, ..Self::default() };
        if let Some(link) = link {
            claims.addresses = addresses_of(link)?;
        }
        let mut ipset = Ipset::open()?;
        for set in sets.iter().filter(|set| set.members != Members::Other) {
            ipset.each_member(&set.name, |member| claims.add(set.members, member))?;
        }
        Ok(claims)
    }

    fn add(&mut self, kind: Members, member: Member) {
        match (kind, member) {
            (
                Members::Frontends,
                Member { ip: Some(ip), port: Some(port), protocol: Some(protocol) },
            ) => {
                self.frontends.insert((protocol, SocketAddr::new(ip, port)));
            }
            (Members::NodePorts(protocol), Member { port: Some(port), .. }) => {
                self.node_ports.insert((protocol, port));
            }
            _ => {}
        }
    }

    /// kube-proxy has made this virtual service, and it is not ours by now. It makes none by marks.
    fn cover(&self, frontend: &Frontend) -> bool {
        let Frontend::Address { protocol, at } = *frontend else { return false };
        if self.taken_over.contains(frontend) {
            return false;
        }
        self.addresses.contains(&at.ip())
            || self.frontends.contains(&(protocol, at))
            || (self.own.contains(&at.ip()) && self.node_ports.contains(&(protocol, at.port())))
    }
}

/// Removes kube-proxy's virtual services; how many there were.
fn remove_services(link: Option<LinkIndex>, sets: &[Set]) -> Result<usize, NetlinkError> {
    let Some(mut kernel) = Ipvs::open()? else { return Ok(0) };
    let claims = Claims::read(link, sets)?;
    let mut count = 0;
    let _spared = ipvs::SparedEntries::begin();
    for frontend in kernel.frontends()?.iter().filter(|frontend| claims.cover(frontend)) {
        count += usize::from(kernel.delete(frontend)?);
    }
    Ok(count)
}

/// Removes these sets; how many, and what went wrong first. Those that are busy get more chances.
fn remove_sets(mut sets: Vec<Set>) -> (usize, Option<NetlinkError>) {
    if sets.is_empty() {
        return (0, None);
    }
    let mut ipset = match Ipset::open() {
        Ok(ipset) => ipset,
        Err(error) => return (0, Some(error)),
    };
    let all = sets.len();
    let mut pause = BUSY_PAUSE_MIN;
    let mut outcome = destroy(&mut ipset, &mut sets);
    for _ in 1..BUSY_ATTEMPTS_MAX {
        if !outcome.as_ref().is_some_and(NetlinkError::is_busy) {
            break;
        }
        thread::sleep(pause);
        pause *= 2;
        outcome = destroy(&mut ipset, &mut sets);
    }
    (all - sets.len(), outcome)
}

/// Removes what can be removed of these sets, and leaves the others in the list; what went wrong first.
fn destroy(ipset: &mut Ipset, sets: &mut Vec<Set>) -> Option<NetlinkError> {
    let mut first_error = None;
    sets.retain(|set| match ipset.destroy(&set.name) {
        Ok(_) => false,
        Err(error) => {
            first_error.get_or_insert(error);
            true
        }
    });
    first_error
}
