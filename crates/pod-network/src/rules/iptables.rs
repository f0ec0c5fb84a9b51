//! The same rules by iptables, for kernels without nftables for IP.
//!
//! All of it is written at each change, from the records, in one `iptables-restore --noflush` per family: chains of ours are
//! emptied and filled, and led to from the kernel's own where that is missing. So a change costs as much as there are
//! published ports.
//!
//! | chain | led to from | what |
//! |---|---|---|
//! | `TELAIO-POD-GUARD` | mangle, PREROUTING | loopback addresses are out of reach, and sources are of the network that they come from |
//! | `TELAIO-POD-PORTS` | nat, PREROUTING and OUTPUT | published ports |
//! | `TELAIO-POD-SOURCE` | nat, POSTROUTING | masquerade |
//! | `TELAIO-POD-APART` | filter, FORWARD, first | networks do not reach each other |
//! | `TELAIO-POD-PASS` | filter, FORWARD, last | what instances send and get is carried on, whatever the chain's policy |
//! | `TELAIO-POD-OUT` | filter, OUTPUT | instances are never told to talk past the node |
//!
//! What differs: sources are checked by network only, unless the kernel has nftables at least for bridges. Network
//! policies need nftables.

use std::fmt::Write;
use std::net::{IpAddr, SocketAddr};

use cidr::IpCidr;
use telaio_netlink::nftables::Family;

use super::programs::Programs;
use super::{Cluster, FAMILIES, is_for, joined};
use crate::attach;
use crate::attachment::Attachment;
use crate::error::Result;
use crate::names::VXLAN_LINK_PREFIX;
use crate::network::{Mode, Network};
use crate::ports;
use crate::state::State;

/// What all of our chains begin with.
const PREFIX: &str = "TELAIO-POD-";
/// All groups of links that can be ours, with a mask.
const OUR_GROUPS: &str = "0x7e1a0000/0xffff0000";

/// A chain of ours, and the rule that leads to it.
struct Place {
    table: &'static str,
    from: &'static str,
    /// What packets have to be.
    only: &'static str,
    chain: &'static str,
    is_first: bool,
}

const fn place(
    table: &'static str,
    from: &'static str,
    only: &'static str,
    chain: &'static str,
    is_first: bool,
) -> Place {
    Place { table, from, only, chain, is_first }
}

const LOCAL: &str = "-m addrtype --dst-type LOCAL ";
const PLACES: [Place; 7] = [
    place("mangle", "PREROUTING", "", "TELAIO-POD-GUARD", false),
    place("nat", "PREROUTING", LOCAL, "TELAIO-POD-PORTS", false),
    place("nat", "OUTPUT", LOCAL, "TELAIO-POD-PORTS", false),
    place("nat", "POSTROUTING", "", "TELAIO-POD-SOURCE", false),
    place("filter", "FORWARD", "", "TELAIO-POD-APART", true),
    place("filter", "FORWARD", "", "TELAIO-POD-PASS", false),
    place("filter", "OUTPUT", "", "TELAIO-POD-OUT", false),
];
const TABLES: [&str; 3] = ["mangle", "filter", "nat"];

impl Place {
    fn jump(&self) -> String {
        format!("{} {}-j {}", self.from, self.only, self.chain)
    }
}

/// Makes all rules as the records say, but for instances that leave: their ports are given back with their rules.
pub(super) fn write(state: &State, cluster: &Cluster<'_>, leaving: &[Attachment]) -> Result<()> {
    // Whoever writes reads the records after the one before has written.
    let _lock = state.lock_ports()?;
    let mut instances = attach::recorded(state)?;
    instances.retain(|instance| !leaving.iter().any(|it| ports::is_same(it, instance)));
    for family in FAMILIES {
        if family == Family::Ip6 && !cluster.has_ipv6() {
            continue;
        }
        let programs = Programs::find(family)?;
        let there = programs.save()?;
        programs.restore(&text(family, cluster, &instances, &there))?;
    }
    for instance in leaving {
        ports::release_locked(state, instance)?;
    }
    Ok(())
}

/// Removes all rules and chains of ours.
pub(super) fn remove() -> Result<()> {
    for family in FAMILIES {
        // Without the programs there can be none.
        let Ok(programs) = Programs::find(family) else { continue };
        let Ok(there) = programs.save() else { continue };
        if there.contains(PREFIX) {
            programs.restore(&removal(&there))?;
        }
    }
    Ok(())
}

/// Whether the published ports of these instances are there.
pub(super) fn has(instances: &[Attachment]) -> Result<bool> {
    for family in FAMILIES {
        let wanted: Vec<String> =
            instances.iter().flat_map(|instance| port_rules(family, instance)).collect();
        if wanted.is_empty() {
            continue;
        }
        let there = Programs::find(family)?.save()?;
        if !wanted.iter().all(|rule| there.lines().any(|line| line == rule)) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// What `iptables-restore` gets; `there` is what `iptables-save` says.
pub(super) fn text(
    family: Family,
    cluster: &Cluster<'_>,
    instances: &[Attachment],
    there: &str,
) -> String {
    let rules = rules(family, cluster, instances);
    let mut text = String::new();
    for table in TABLES {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "*{table}");
        let places = || PLACES.iter().filter(|place| place.table == table);
        let mut declared = Vec::new();
        for place in places() {
            if !declared.contains(&place.chain) {
                declared.push(place.chain);
                let _ = writeln!(text, ":{} - [0:0]", place.chain);
            }
        }
        let ours =
            |rule: &&String| declared.iter().any(|chain| rule.starts_with(&format!("-A {chain} ")));
        for rule in rules.iter().filter(ours) {
            let _ = writeln!(text, "{rule}");
        }
        for place in places() {
            if !section(there, table).any(|line| line == format!("-A {}", place.jump())) {
                let _ =
                    writeln!(text, "-{} {}", if place.is_first { "I" } else { "A" }, place.jump());
            }
        }
        text.push_str("COMMIT\n");
    }
    text
}

/// The lines of one table.
fn section<'a>(there: &'a str, table: &str) -> impl Iterator<Item = &'a str> {
    let head = format!("*{table}");
    let lines = there.lines().skip_while(move |line| *line != head).skip(1);
    lines.take_while(|line| *line != "COMMIT")
}

pub(super) fn removal(there: &str) -> String {
    let mut text = String::new();
    for table in TABLES {
        let chains: Vec<&str> = section(there, table)
            .filter_map(|line| line.strip_prefix(':')?.split(' ').next())
            .filter(|chain| chain.starts_with(PREFIX))
            .collect();
        if chains.is_empty() {
            continue;
        }
        let _ = writeln!(text, "*{table}");
        for chain in &chains {
            let _ = writeln!(text, ":{chain} - [0:0]");
        }
        for line in section(there, table) {
            let leads = |chain: &&str| line.ends_with(&format!(" -j {chain}"));
            if let Some(rule) = line.strip_prefix("-A ")
                && !rule.starts_with(PREFIX)
                && chains.iter().any(leads)
            {
                let _ = writeln!(text, "-D {rule}");
            }
        }
        for chain in &chains {
            let _ = writeln!(text, "-X {chain}");
        }
        text.push_str("COMMIT\n");
    }
    text
}

/// Every rule of our chains, as `iptables-save` would print it.
fn rules(family: Family, cluster: &Cluster<'_>, instances: &[Attachment]) -> Vec<String> {
    let mut rules = Vec::new();
    let is_ipv4 = family == Family::Ip;
    guard(is_ipv4, cluster.networks, &mut rules);
    if !is_ipv4 {
        // The kernel does not let ::1 leave the machine.
        rules.push("-A TELAIO-POD-PORTS -d ::1/128 -j RETURN".to_owned());
    }
    for instance in instances {
        rules.extend(port_rules(family, instance));
        let has_ports = instance.ports.iter().any(|port| is_for(port, is_ipv4));
        if let Some(ip) = instance.address(is_ipv4).filter(|_| has_ports) {
            let ip = host(ip);
            rules.push(format!("-A TELAIO-POD-SOURCE -s {ip} -d {ip} -j MASQUERADE"));
        }
    }
    masquerade(is_ipv4, cluster, &mut rules);
    apart(is_ipv4, cluster, &mut rules);
    for side in ["src", "dst"] {
        rules.push(format!("-A TELAIO-POD-PASS -m devgroup --{side}-group {OUR_GROUPS} -j ACCEPT"));
    }
    let redirect = if is_ipv4 {
        "-p icmp -m icmp --icmp-type 5"
    } else {
        "-p ipv6-icmp -m icmp6 --icmpv6-type 137"
    };
    rules
        .push(format!("-A TELAIO-POD-OUT {redirect} -m devgroup --dst-group {OUR_GROUPS} -j DROP"));
    rules
}

fn routed(networks: &[Network]) -> impl Iterator<Item = &Network> {
    networks.iter().filter(|network| network.mode == Mode::Routed)
}

fn guard(is_ipv4: bool, networks: &[Network], rules: &mut Vec<String>) {
    let chain = "-A TELAIO-POD-GUARD";
    if is_ipv4 {
        rules.push(format!("{chain} -d 127.0.0.0/8 -m devgroup --src-group {OUR_GROUPS} -j DROP"));
    } else {
        for own in ["fe80::/10", "::/128"] {
            rules.push(format!("{chain} -s {own} -j RETURN"));
        }
    }
    // Other nodes vouch for theirs.
    rules.push(format!("{chain} -i {VXLAN_LINK_PREFIX}+ -j RETURN"));
    for network in routed(networks) {
        let group = format!("-m devgroup --src-group {:#x}", network.group);
        for cidr in cidrs(network, is_ipv4) {
            rules.push(format!("{chain} -s {} {group} -j RETURN", with_length(cidr)));
        }
        rules.push(format!("{chain} {group} -j DROP"));
    }
}

fn port_rules(family: Family, instance: &Attachment) -> Vec<String> {
    let is_ipv4 = family == Family::Ip;
    let Some(ip) = instance.address(is_ipv4) else { return Vec::new() };
    let ports = instance.ports.iter().filter(|port| is_for(port, is_ipv4));
    let rule = ports.map(|port| {
        let protocol = port.protocol.to_string().to_lowercase();
        let at = port.host_ip.filter(|ip| !ip.is_unspecified());
        let at = at.map(|ip| format!("-d {} ", host(ip))).unwrap_or_default();
        let to = SocketAddr::new(ip, port.instance_port);
        let number = port.host_port;
        format!(
            "-A TELAIO-POD-PORTS {at}-p {protocol} -m {protocol} --dport {number} -j DNAT --to-destination {to}"
        )
    });
    rule.collect()
}

fn masquerade(is_ipv4: bool, cluster: &Cluster<'_>, rules: &mut Vec<String>) {
    let chain = "-A TELAIO-POD-SOURCE";
    if is_ipv4 {
        rules.push(format!(
            "{chain} -s 127.0.0.0/8 -m devgroup --dst-group {OUR_GROUPS} -j MASQUERADE"
        ));
    }
    for other in cluster.others.iter().filter(|cidr| cidr.is_ipv4() == is_ipv4) {
        rules.push(format!("{chain} -d {} -j RETURN", with_length(other)));
    }
    let multicast = if is_ipv4 { "224.0.0.0/4" } else { "ff00::/8" };
    for network in cluster.networks {
        let Some(masquerade) = &network.masquerade else { continue };
        let except = masquerade.except.iter().chain(joined(cluster.networks, network));
        let except = except.filter(|cidr| cidr.is_ipv4() == is_ipv4);
        let except: Vec<String> = except.map(with_length).collect();
        let own: Vec<String> = cidrs(network, is_ipv4).map(with_length).collect();
        for cidr in &own {
            let within = own.iter().map(String::as_str).chain([multicast]);
            for to in within.chain(except.iter().map(String::as_str)) {
                rules.push(format!("{chain} -s {cidr} -d {to} -j RETURN"));
            }
            rules.push(format!("{chain} -s {cidr} -j MASQUERADE"));
        }
    }
}

/// Networks do not reach each other, unless they may. Connections whose destination was changed are meant: somebody published
/// a port or a service.
fn apart(is_ipv4: bool, cluster: &Cluster<'_>, rules: &mut Vec<String>) {
    let networks = cluster.networks;
    let chain = "-A TELAIO-POD-APART";
    rules.push(format!("{chain} -m conntrack --ctstate DNAT -j RETURN"));
    let mut pairs = Vec::new();
    for network in routed(networks) {
        pairs.push((network.group, network.group));
        for other in routed(networks).filter(|other| network.lets_in(&other.name)) {
            pairs.extend([(network.group, other.group), (other.group, network.group)]);
        }
    }
    pairs.sort_unstable();
    pairs.dedup();
    for (from, to) in &pairs {
        rules.push(format!(
            "{chain} -m devgroup --src-group {from:#x} --dst-group {to:#x} -j RETURN"
        ));
    }
    rules.push(format!(
        "{chain} -m devgroup --src-group {OUR_GROUPS} --dst-group {OUR_GROUPS} -j DROP"
    ));
    // Where routes lead to other nodes the link does not say whose network theirs belong to.
    let others: Vec<String> =
        cluster.others.iter().filter(|it| it.is_ipv4() == is_ipv4).map(with_length).collect();
    let Some(carrier) = cluster.carrier.filter(|_| !others.is_empty()) else { return };
    for (from, _) in pairs.iter().filter(|(_, to)| *to == carrier) {
        for side in ["src", "dst"] {
            rules.push(format!("{chain} -m devgroup --{side}-group {from:#x} -j RETURN"));
        }
    }
    for other in others {
        rules.push(format!("{chain} -d {other} -m devgroup --src-group {OUR_GROUPS} -j DROP"));
        rules.push(format!("{chain} -s {other} -m devgroup --dst-group {OUR_GROUPS} -j DROP"));
    }
}

fn cidrs(network: &Network, is_ipv4: bool) -> impl Iterator<Item = &IpCidr> {
    let all = network.subnets.iter().map(|subnet| &subnet.cidr);
    all.filter(move |cidr| cidr.is_ipv4() == is_ipv4)
}

/// With the length also where it is that of a single address.
fn with_length(cidr: &IpCidr) -> String {
    format!("{}/{}", cidr.first_address(), cidr.network_length())
}

fn host(ip: IpAddr) -> String {
    format!("{ip}/{}", if ip.is_ipv4() { 32 } else { 128 })
}
