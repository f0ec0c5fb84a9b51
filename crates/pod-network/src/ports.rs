//! Who has which port of the node.
//!
//! A claim is a hard link to its holder's record in `ports/PROTOCOL-PORT/`, by the address that it is for, or
//! `any`. Checking and claiming happen under a lock of their own: an address and `any` conflict, and no file
//! system knows that.
//!
//! Processes that listen are holders too: a published port would take their connections away without a word.

use std::fs;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use telaio_netlink::NetlinkError;
use telaio_netlink::conntrack::{Conntrack, Family, Flow, STATUS_DESTINATION_NAT, Selection};
use telaio_netlink::listen::{self, Transport};

use crate::attachment::Attachment;
use crate::error::{Error, Result};
use crate::port::{Port, Protocol};
use crate::rules::{is_for, protocol_number};
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
            let name = entry.file_name();
            let conflicts = name == ANY || claim_name(port) == ANY || name == *claim_name(port);
            if conflicts && !is_of(&entry.path(), record) {
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
    for (at, port) in ports.iter().enumerate() {
        port.check()?;
        if let Some(other) = ports[..at].iter().find(|other| port.conflicts_with(other)) {
            let why = format!("{port} is asked for twice (also as {other})");
            return Err(Error::Invalid { field: "ports", why });
        }
    }
    Ok(())
}

/// Gives an instance's ports back.
pub(crate) fn release(state: &State, record: &Attachment) -> Result<()> {
    if record.ports.is_empty() {
        return Ok(());
    }
    let _lock = state.lock_ports()?;
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

/// Removes claims whose holder is not held by `is_held`.
pub(crate) fn remove_orphans(
    state: &State,
    is_held: &dyn Fn(Option<&Attachment>) -> bool,
) -> Result<()> {
    let _lock = state.lock_ports()?;
    for dir in read_dir(&state.ports_dir())? {
        for entry in read_dir(&dir.path())? {
            let holder = read_record::<Attachment>(&entry.path()).ok().flatten();
            if !is_held(holder.as_ref()) {
                crate::state::remove_file(&entry.path())?;
            }
        }
        // Others may have claims there.
        let _ = fs::remove_dir(dir.path());
    }
    Ok(())
}

/// Whether a claim is this record's. One that cannot be read is nobody's, and so whoever's asks.
fn is_of(path: &std::path::Path, record: &Attachment) -> bool {
    match read_record::<Attachment>(path) {
        Ok(Some(holder)) => {
            (&holder.network, &holder.container, &holder.interface)
                == (&record.network, &record.container, &record.interface)
        }
        Ok(None) => false,
        Err(_) => true,
    }
}

fn directory(state: &State, port: &Port) -> PathBuf {
    let protocol = port.protocol.to_string().to_lowercase();
    state.ports_dir().join(format!("{protocol}-{}", port.host_port))
}

fn claim_name(port: &Port) -> String {
    port.host_ip.map_or_else(|| ANY.to_owned(), |ip| ip.to_string())
}

/// A process that listens on a port keeps it.
fn refuse_if_listened_to(port: &Port, record: &Attachment) -> Result<()> {
    let transport = match port.protocol {
        Protocol::Tcp => Transport::Tcp,
        Protocol::Udp => Transport::Udp,
        Protocol::Sctp => return Ok(()),
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

/// Which flows are forgotten. To find them the kernel walks its whole table, which takes milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flows {
    /// Those that would go on where they went before a port was published: without connections a flow never ends while
    /// somebody sends. TCP begins each connection anew, and the kernel with it.
    Connectionless,
    /// All.
    All,
}

/// Lets the kernel forget flows to instances' published ports.
pub(crate) fn forget_flows(records: &[Attachment], which: Flows) -> Result<()> {
    const COUNT: &str = "/proc/sys/net/netfilter/nf_conntrack_count";
    if fs::read_to_string(COUNT).is_ok_and(|count| count.trim() == "0") {
        return Ok(());
    }
    let mut selections: Vec<(Family, u8)> = Vec::new();
    for record in records {
        for (family, is_ipv4) in [(Family::V4, true), (Family::V6, false)] {
            if record.address(is_ipv4).is_none() {
                continue;
            }
            let concerns = |port: &&Port| {
                is_for(port, is_ipv4) && (which == Flows::All || port.protocol != Protocol::Tcp)
            };
            for port in record.ports.iter().filter(concerns) {
                let selection = (family, protocol_number(port.protocol));
                if !selections.contains(&selection) {
                    selections.push(selection);
                }
            }
        }
    }
    for (family, protocol) in selections {
        forget(records, family, protocol)
            .map_err(Error::kernel("forgetting flows to published ports"))?;
    }
    Ok(())
}

fn forget(records: &[Attachment], family: Family, protocol: u8) -> Result<(), NetlinkError> {
    let (mut list, mut delete) = (Conntrack::open()?, Conntrack::open()?);
    let selection = Selection { protocol: Some(protocol), ..Selection::family(family) };
    list.each(selection, |flow| {
        if records.iter().any(|record| is_stale(flow, protocol, record)) {
            delete.delete(flow)?;
        }
        Ok(())
    })
}

/// To a published port of the node; or to the instance that it was for.
fn is_stale(flow: &Flow, protocol: u8, record: &Attachment) -> bool {
    let to = flow.original.destination;
    record.ports.iter().any(|port| {
        protocol_number(port.protocol) == protocol
            && port.host_port == to.port()
            && match port.host_ip.filter(|ip| !ip.is_unspecified()) {
                Some(ip) => ip == to.ip(),
                // Not what passes by to somebody else's port of the same number.
                None => {
                    flow.status & STATUS_DESTINATION_NAT == 0 && is_own(to.ip(), flow)
                        || record.address(to.is_ipv4()) == Some(flow.reply.source.ip())
                }
            }
    })
}

/// A flow that ends at this machine, as far as the flow itself can tell: nobody has changed who answers.
fn is_own(to: IpAddr, flow: &Flow) -> bool {
    flow.reply.source.ip() == to
}
