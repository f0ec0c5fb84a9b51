//! Reads `expectations.txt`.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use telaio_testkit::netns::{
    Family, Host, Place, Transport, node_a_gateway, node_a_second, outside_client,
};

use crate::fixtures::UNALLOCATED;
use crate::manifest::{
    SERVICE_PORT, Service, cluster_ip, external_ip, load_balancer_ip, node_port,
};

/// The table.
const TABLE: &str = include_str!("expectations.txt");
/// The number of the client `stranger` among those outside.
const STRANGER: u8 = 200;
/// What `…:unknown` adds to a port.
const UNKNOWN_PORT: u16 = 1;

/// Whose address a server sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SeenAs {
    Client,
    Node,
}

/// What a cell expects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Expected {
    /// All of these answer, and nobody else.
    Answers(BTreeMap<String, SeenAs>),
    Refused,
    Dropped,
    Unreachable,
}

/// A row for one backend, transport and family.
#[derive(Debug, Clone)]
pub(crate) struct Case {
    /// The row, for messages.
    pub(crate) row: String,
    pub(crate) from: Place,
    /// The client's own address, where there is only one that it can have.
    pub(crate) client: Option<IpAddr>,
    pub(crate) to: SocketAddr,
    pub(crate) transport: Transport,
    pub(crate) expected: Expected,
}

/// The rows that are asked with one set of flags.
#[derive(Debug, Clone)]
pub(crate) struct Section {
    pub(crate) flags: Vec<String>,
    pub(crate) cases: Vec<Case>,
}

/// All sections, with what a column expects: a backend's name, or `hcn`.
pub(crate) fn sections(name: &str, services: &[Service]) -> Vec<Section> {
    let mut lines = TABLE.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#'));
    let header: Vec<&str> = cells(lines.next().expect("a header"));
    let column = header.iter().position(|it| *it == name).expect("a column");
    let mut sections: Vec<Section> = Vec::new();
    for line in lines {
        if let Some(flags) = line.strip_prefix("==") {
            let flags = flags.split_whitespace().filter(|flag| flag.starts_with('-'));
            sections.push(Section { flags: flags.map(str::to_owned).collect(), cases: Vec::new() });
            continue;
        }
        let row = cells(line);
        assert_eq!(row.len(), header.len(), "{line}");
        let cell = row[..=column].iter().rev().find(|cell| **cell != "=").expect("a cell");
        let expected = expected(cell);
        let service = services.iter().find(|service| service.name == row[0]);
        let service = service.unwrap_or_else(|| panic!("no such service: {line}"));
        let section = sections.last_mut().expect("flags come first");
        for (transport, family) in by(row[3]) {
            let (from, client) = client(row[1], family);
            section.cases.push(Case {
                row: format!("{} from {} to {} by {transport:?}{family:?}", row[0], row[1], row[2]),
                from,
                client,
                to: destination(row[2], service.number, family),
                transport,
                expected: expected.clone(),
            });
        }
    }
    sections
}

fn cells(line: &str) -> Vec<&str> {
    line.split('|').map(str::trim).collect()
}

fn by(cell: &str) -> Vec<(Transport, Family)> {
    let all = [Transport::Tcp, Transport::Udp]
        .into_iter()
        .flat_map(|transport| Family::ALL.map(|family| (transport, family)));
    let transport = |name: &str| match name {
        "tcp" => Some(Transport::Tcp),
        "udp" => Some(Transport::Udp),
        _ => None,
    };
    let digits = cell.trim_start_matches(char::is_alphabetic);
    let wanted = transport(&cell[..cell.len() - digits.len()]);
    let family = match digits {
        "4" => Some(Family::V4),
        "6" => Some(Family::V6),
        "" | "*" => None,
        other => panic!("no family: {other:?}"),
    };
    all.filter(|(t, f)| wanted.is_none_or(|it| it == *t) && family.is_none_or(|it| it == *f))
        .collect()
}

fn expected(cell: &str) -> Expected {
    match cell {
        "refused" => return Expected::Refused,
        "dropped" => return Expected::Dropped,
        "unreachable" => return Expected::Unreachable,
        _ => {}
    }
    let mut answers = BTreeMap::new();
    for group in cell.split(',') {
        let (names, seen) = group.split_once(" as ").unwrap_or_else(|| panic!("{cell:?}"));
        let seen = match seen.trim() {
            "client" => SeenAs::Client,
            "node" => SeenAs::Node,
            other => panic!("seen as {other:?}?"),
        };
        answers.extend(names.split_whitespace().map(|name| (name.to_owned(), seen)));
    }
    assert!(!answers.is_empty(), "{cell:?}");
    Expected::Answers(answers)
}

fn client(name: &str, family: Family) -> (Place, Option<IpAddr>) {
    if name == "stranger" {
        let address = outside_client(family, STRANGER);
        return (Place::outside(address), Some(address));
    }
    let host = Host::named(name).unwrap_or_else(|| panic!("no client {name:?}"));
    // A node has several; which one it uses is the route's choice. So have those outside, and there
    // the choice is ours.
    match host {
        Host::NodeA => (Place::of(host), None),
        Host::Outside => (Place::outside(host.address(family)), Some(host.address(family))),
        _ => (Place::of(host), Some(host.address(family))),
    }
}

fn destination(cell: &str, number: u8, family: Family) -> SocketAddr {
    let (name, add) = match cell.split_once(':') {
        Some((name, "unknown")) => (name, UNKNOWN_PORT),
        None => (cell, 0),
        Some(other) => panic!("{other:?}"),
    };
    let localhost = family.pick(std::net::Ipv4Addr::LOCALHOST, std::net::Ipv6Addr::LOCALHOST);
    let (address, port) = match name {
        "cluster-ip" => (cluster_ip(family, number), SERVICE_PORT),
        "balancer-ip" => (load_balancer_ip(family, number), SERVICE_PORT),
        "external-ip" => (external_ip(family, number), SERVICE_PORT),
        "unallocated-ip" => (cluster_ip(family, UNALLOCATED), SERVICE_PORT),
        "node-ip" => (Host::NodeA.address(family), node_port(number)),
        "second-ip" => (node_a_second(family), node_port(number)),
        "gateway-ip" => (node_a_gateway(family), node_port(number)),
        "localhost" => (localhost, node_port(number)),
        other => panic!("no destination {other:?}"),
    };
    // Far above every port that a service has.
    SocketAddr::new(address, port + add * 1000)
}

#[test]
fn the_table_is_well_formed_and_about_every_fixture() {
    let services = crate::fixtures::all();
    for name in ["nftables", "iptables-nft", "iptables-legacy", "ipvs", "hcn"] {
        let sections = sections(name, &services);
        let first = &sections[0];
        assert!(first.flags.is_empty());
        for service in &services {
            let prefix = format!("{} from ", service.name);
            assert!(first.cases.iter().any(|case| case.row.starts_with(&prefix)), "{prefix}");
        }
    }
}
