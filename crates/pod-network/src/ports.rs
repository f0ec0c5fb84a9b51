//! Who has which port of the node.
//!
//! A claim is a hard link to its holder's record in `ports/PROTOCOL-PORT/`, by the address that it is for, or
//! `any`. Checking and claiming happen under a lock of their own: an address and `any` conflict, and no file
//! system knows that.
//!
//! Processes that listen are holders too: a published port would take their connections away without a word.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use telaio_netlink::NetlinkError;
use telaio_netlink::addresses::Addresses;
use telaio_netlink::conntrack::{Conntrack, Family, Flow, STATUS_ASSURED, Selection};
use telaio_netlink::listen::{self, Transport};

use crate::attachment::Attachment;
use crate::error::{Error, Result};
use crate::port::{Port, Protocol, addresses_meet};
use crate::rules::{PORTS_MAX, is_for, protocol_number};
use crate::state::{State, read_dir, read_record};

#[cfg(test)]
mod tests;

/// How long a container's ID is at least that is not in a command line by chance.
const ID_LEN_MIN: usize = 12;
/// The name of a claim for all addresses.
const ANY: &str = "any";

/// Claims an instance's ports, all or none.
pub(crate) fn claim(state: &State, key: &str, record: &Attachment) -> Result<()> {
    if record.ports.is_empty() {
        return Ok(());
    }
    check(&record.ports)?;
    let _lock = state.lock_ports()?;
    for port in &record.ports {
        let dir = directory(state, port);
        for entry in read_dir(&dir)? {
            if claims(&entry.file_name(), port.host_ip) && !is_of(&entry.path(), record) {
                let owner = read_record::<Attachment>(&entry.path()).ok().flatten();
                let owner =
                    owner.map_or("an unfinished attachment".to_owned(), |it| it.to_string());
                return Err(Error::PortTaken { port: port.to_string(), owner });
            }
        }
        refuse_if_listened_to(port, record)?;
    }
    for port in &record.ports {
        let dir = directory(state, port);
        fs::create_dir_all(&dir).map_err(Error::io("cannot make", &dir))?;
        let path = dir.join(claim_name(port));
        match fs::hard_link(state.attachment_path(key), &path) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                return Err(Error::io("cannot claim", path)(error));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Ports that cannot be, or ask for the same port of the node twice.
pub(crate) fn check(ports: &[Port]) -> Result<()> {
    if ports.len() > PORTS_MAX as usize {
        let why =
            format!("{} ports are more than the {PORTS_MAX} that a node can publish", ports.len());
        return Err(Error::Invalid { field: "ports", why });
    }
    let mut by_number: HashMap<(Protocol, u16), Vec<&Port>> = HashMap::new();
    for port in ports {
        port.check()?;
        let same = by_number.entry((port.protocol, port.host_port)).or_default();
        if let Some(other) = same.iter().find(|other| port.conflicts_with(other)) {
            let why = format!("{port} is asked for twice (also as {other})");
            return Err(Error::Invalid { field: "ports", why });
        }
        same.push(port);
    }
    Ok(())
}

/// Gives an instance's ports back.
pub(crate) fn release(state: &State, record: &Attachment) -> Result<()> {
    if record.ports.is_empty() {
        return Ok(());
    }
    let _lock = state.lock_ports()?;
    release_locked(state, record)
}

/// The same by whoever has the lock.
pub(crate) fn release_locked(state: &State, record: &Attachment) -> Result<()> {
    for port in &record.ports {
        let dir = directory(state, port);
        let path = dir.join(claim_name(port));
        if is_of(&path, record) {
            crate::state::remove_file(&path)?;
            // Others may have claims there.
            let _ = fs::remove_dir(&dir);
        }
    }
    Ok(())
}

/// The ports of an instance that it has claimed: others' are not its to take back.
pub(crate) fn claimed(state: &State, record: &Attachment) -> Vec<Port> {
    let is_ours = |port: &&Port| is_of(&directory(state, port).join(claim_name(port)), record);
    record.ports.iter().filter(is_ours).copied().collect()
}

/// Those of these ports that nobody has claimed.
pub(crate) fn unclaimed(state: &State, ports: &[Port]) -> Result<Vec<Port>> {
    let mut found = Vec::new();
    for port in ports {
        let claimed = read_dir(&directory(state, port))?;
        if !claimed.iter().any(|entry| claims(&entry.file_name(), port.host_ip)) {
            found.push(*port);
        }
    }
    Ok(found)
}

/// Removes claims whose holder is not held by `is_held`; how many.
pub(crate) fn remove_orphans(
    state: &State,
    is_held: &dyn Fn(Option<&Attachment>) -> bool,
) -> Result<usize> {
    let _lock = state.lock_ports()?;
    let mut removed = 0;
    for dir in read_dir(&state.ports_dir())? {
        for entry in read_dir(&dir.path())? {
            let holder = read_record::<Attachment>(&entry.path()).ok().flatten();
            if !is_held(holder.as_ref()) {
                crate::state::remove_file(&entry.path())?;
                removed += 1;
            }
        }
        // Others may have claims there.
        let _ = fs::remove_dir(dir.path());
    }
    Ok(removed)
}

/// Whether a claim is this record's. One that cannot be read is that of a whole record which says so, for it has claimed it.
fn is_of(path: &std::path::Path, record: &Attachment) -> bool {
    match read_record::<Attachment>(path) {
        Ok(Some(holder)) => is_same(&holder, record),
        Ok(None) => false,
        Err(_) => !record.mac.is_empty(),
    }
}

/// Whether two records are of one attachment.
pub(crate) fn is_same(a: &Attachment, b: &Attachment) -> bool {
    (&a.network, &a.container, &a.interface) == (&b.network, &b.container, &b.interface)
}

fn directory(state: &State, port: &Port) -> PathBuf {
    let protocol = port.protocol.to_string().to_lowercase();
    state.ports_dir().join(format!("{protocol}-{}", port.host_port))
}

/// Whether what has this name claims the port at this address, too.
fn claims(name: &std::ffi::OsStr, host_ip: Option<IpAddr>) -> bool {
    let claimed = match name.to_str() {
        Some(ANY) => None,
        text => match text.and_then(|text| text.parse().ok()) {
            Some(ip) => Some(ip),
            None => return false,
        },
    };
    addresses_meet(claimed, host_ip)
}

fn claim_name(port: &Port) -> String {
    port.host_ip.map_or_else(|| ANY.to_owned(), |ip| ip.to_string())
}

/// A process that listens on a port keeps it.
fn refuse_if_listened_to(port: &Port, record: &Attachment) -> Result<()> {
    let transport = match port.protocol {
        Protocol::Tcp => Transport::Tcp,
        Protocol::Udp => Transport::Udp,
        Protocol::Sctp => Transport::Sctp,
    };
    let anywhere: [(bool, IpAddr); 2] =
        [(true, Ipv4Addr::UNSPECIFIED.into()), (false, Ipv6Addr::UNSPECIFIED.into())];
    for (is_ipv4, any) in anywhere {
        if !is_for(port, is_ipv4) || record.address(is_ipv4).is_none() {
            continue;
        }
        let at = SocketAddr::new(port.host_ip.unwrap_or(any), port.host_port);
        if listen::is_free(transport, at) {
            continue;
        }
        let owner = listen::owner(transport, at);
        // Some runtimes hold their containers' ports themselves, so that nobody else takes them.
        let is_runtime =
            |line: &str| record.container.len() >= ID_LEN_MIN && line.contains(&record.container);
        if owner.as_ref().is_some_and(|owner| is_runtime(&owner.command_line)) {
            continue;
        }
        let owner = owner.map_or_else(
            || "a process that listens there".to_owned(),
            |owner| format!("process {} ({}), which listens there", owner.name, owner.pid),
        );
        return Err(Error::PortTaken { port: port.to_string(), owner });
    }
    Ok(())
}

/// Lets the kernel forget flows to instances' published ports: those that ended at this machine before, and those that went to
/// the instance. To find them the kernel walks its whole table, which takes a millisecond or two; where it tracks nothing
/// there is nothing to walk.
pub(crate) fn forget_flows(records: &[Attachment]) -> Result<()> {
    if records.iter().all(|record| record.ports.is_empty()) || has_no_flows() {
        return Ok(());
    }
    let doing = || Error::kernel("forgetting flows to published ports");
    let own = Addresses::open().and_then(|mut it| it.list()).map_err(doing())?;
    let own: HashSet<IpAddr> = own.into_iter().map(|address| address.ip).collect();
    for (family, is_ipv4) in [(Family::V4, true), (Family::V6, false)] {
        let mut protocols: BTreeSet<u8> = BTreeSet::new();
        for record in records.iter().filter(|record| record.address(is_ipv4).is_some()) {
            let ports = record.ports.iter().filter(|port| is_for(port, is_ipv4));
            protocols.extend(ports.map(|port| protocol_number(port.protocol)));
        }
        // One walk, also for several protocols.
        let protocol = match protocols.len() {
            0 => continue,
            1 => protocols.first().copied(),
            _ => None,
        };
        let selection = Selection { protocol, ..Selection::family(family) };
        let is_meant = |flow: &Flow| records.iter().any(|record| is_stale(flow, &own, record));
        match forget(&is_meant, selection) {
            // A kernel that does not tell of its flows cannot be made to forget them.
            Err(error) if error.is_unsupported() => return Ok(()),
            outcome => outcome.map_err(doing())?,
        }
    }
    Ok(())
}

/// Lets the kernel forget all flows of an instance's addresses: those of whoever had them before.
pub(crate) fn forget_flows_of(record: &Attachment) -> Result<()> {
    if has_no_flows() {
        return Ok(());
    }
    let doing = || Error::kernel(format!("forgetting flows of the addresses of {record}"));
    let own: Vec<IpAddr> = record.addresses.iter().map(cidr::IpInet::address).collect();
    let is_own = |flow: &Flow| {
        let ends = [flow.original, flow.reply].map(|it| [it.source.ip(), it.destination.ip()]);
        ends.as_flattened().iter().any(|ip| own.contains(ip))
    };
    for (family, is_ipv4) in [(Family::V4, true), (Family::V6, false)] {
        if !own.iter().any(|ip| ip.is_ipv4() == is_ipv4) {
            continue;
        }
        match forget(&is_own, Selection::family(family)) {
            // A kernel that does not tell of its flows cannot be made to forget them.
            Err(error) if error.is_unsupported() => return Ok(()),
            outcome => outcome.map_err(doing())?,
        }
    }
    Ok(())
}

/// Where the kernel tracks nothing there is nothing to walk.
fn has_no_flows() -> bool {
    const COUNT: &str = "/proc/sys/net/netfilter/nf_conntrack_count";
    fs::read_to_string(COUNT).is_ok_and(|count| count.trim() == "0")
}

fn forget(is_meant: &dyn Fn(&Flow) -> bool, selection: Selection) -> Result<(), NetlinkError> {
    let (mut list, mut delete) = (Conntrack::open()?, Conntrack::open()?);
    list.each(selection, |flow| {
        if is_meant(flow) {
            delete.delete(flow)?;
        }
        Ok(())
    })
}

/// To a published port of the node, and carried on to nobody or to this instance. What passes by to somebody else's port of the
/// same number is none of ours, and neither is what a service has sent elsewhere.
fn is_stale(flow: &Flow, own: &HashSet<IpAddr>, record: &Attachment) -> bool {
    let to = flow.original.destination;
    let is_own = own.contains(&to.ip()) || to.ip().is_loopback();
    let is_ours = record.address(to.is_ipv4()) == Some(flow.reply.source.ip());
    // Somebody's living connection is not a flow that goes on where it should not.
    let lives = flow.original.protocol == protocol_number(Protocol::Tcp)
        && flow.status & STATUS_ASSURED != 0;
    let ends_here = is_own && !flow.is_destination_nat() && !lives;
    let is_it = |port: &&Port| {
        protocol_number(port.protocol) == flow.original.protocol
            && port.host_port == to.port()
            && port.host_ip.is_none_or(|ip| ip.is_unspecified() || ip == to.ip())
    };
    (is_ours || ends_here) && record.ports.iter().any(|port| is_it(&port))
}
