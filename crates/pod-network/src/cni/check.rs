//! CHECK: what is there is what ADD said.

use std::path::Path;

use cidr::IpInet;
use serde_json::Value;
use telaio_netlink::addresses::Addresses;
use telaio_netlink::links::Link;
use telaio_netlink::netns::Netns;
use telaio_netlink::rtnl::{Route, Rtnetlink};

use super::config::Config;
use super::fault::{CHECK_FAILED, Fault};
use super::request::Request;
use super::result::with_length;
use crate::attach;
use crate::attachment::Attachment;
use crate::bandwidth::Limited;
use crate::error::Error;
use crate::names;
use crate::network::Network;
use crate::rules::Rules;
use crate::state::Host;

pub(super) fn check(host: &Host, request: &Request) -> Result<(), Fault> {
    let config = &request.config;
    let previous = config
        .prev_result
        .as_ref()
        .ok_or_else(|| Fault::configuration("prevResult: CHECK needs the result of the ADD"))?;
    let target = &request.target;
    let state = host.state()?;
    let _lock = state.lock_shared()?;
    let key = names::attachment_key(&config.name, &target.container, &target.interface);
    let record = state.attachment(&key)?.flatten().filter(Attachment::is_whole);
    let record = record.ok_or_else(|| {
        failed(format!(
            "container {} is not on record on network {}",
            target.container, config.name
        ))
    })?;
    let netns = Netns::open_path(Path::new(&request.netns)).map_err(Error::from)?;
    let network = state.network(&config.name)?.ok_or_else(|| {
        failed(format!("network {} is not on record; somebody has removed it", config.name))
    })?;
    let (link, addresses, routes) = look_inside(&netns, &record)?;
    compare_interface(previous, &network, &record, &link)?;
    compare_addresses(previous, &record, &addresses)?;
    compare_routes(config, previous, (&network, &record), &link, &routes)?;
    compare_host_end(&network, &record)?;
    compare_published(request, &record)
}

/// Published ports, addresses among the node's rules, limits: what a container has beside its interface.
pub(super) fn compare_published(request: &Request, record: &Attachment) -> Result<(), Fault> {
    let container = &record.container;
    if record.ports != request.ports {
        return Err(failed(format!("container {container} was published with other ports")));
    }
    if !Rules::open()?.has(std::slice::from_ref(record))? {
        return Err(failed(format!(
            "addresses or published ports of container {container} are missing among the node's rules (nftables' tables telaio-pods)",
        )));
    }
    if record.bandwidth != request.bandwidth {
        return Err(failed(format!("container {container} was given other limits of speed")));
    }
    match &record.bandwidth {
        Some(limits) if !Limited::read()?.has(&record.host_link, limits)? => {
            Err(failed(format!("the limits of speed of link {} are missing", record.host_link)))
        }
        _ => Ok(()),
    }
}

type Inside = (Link, Vec<String>, Vec<Route>);

/// The node's end and its bridge.
fn compare_host_end(network: &Network, record: &Attachment) -> Result<(), Fault> {
    let doing = || Error::kernel("looking for links");
    let mut kernel = Rtnetlink::open().map_err(doing())?;
    let mut there = |name: &str| -> Result<Link, Fault> {
        let link = kernel.link(name).map_err(doing())?.filter(Link::is_up);
        link.ok_or_else(|| failed(format!("link {name} is missing or switched off")))
    };
    let (bridge, end) = (there(&network.bridge)?, there(&record.host_link)?);
    if !record.is_routed {
        if end.master != Some(bridge.index) {
            return Err(failed(format!("link {} is no port of {}", end.name, bridge.name)));
        }
        return match end.port {
            Some(port) if port != attach::port_of(network) => Err(failed(format!(
                "port {} of {} may do other things than it should: isolated {}, hairpin {}",
                end.name, bridge.name, port.isolated, port.hairpin
            ))),
            _ => Ok(()),
        };
    }
    let routes = kernel.routes().map_err(doing())?;
    for ip in record.addresses.iter().map(cidr::IpInet::address) {
        let leads = |route: &Route| route.destination == ip && route.link == end.index;
        if !routes.iter().any(leads) {
            return Err(failed(format!("the node's route to {ip} by {} is missing", end.name)));
        }
    }
    Ok(())
}

/// The routes in the container: where to, and by whom.
fn compare_routes(
    config: &Config,
    previous: &Value,
    (network, record): (&Network, &Attachment),
    link: &Link,
    there: &[Route],
) -> Result<(), Fault> {
    let more = config.routes()?;
    let routes = attach::Routes { is_default: config.is_default_gateway, more: &more };
    // Ranges of one network may have different gateways: which one it was, ADD has said.
    let ips = previous["ips"].as_array().cloned().unwrap_or_default();
    let said = |inet: &IpInet| {
        let own = ips.iter().find(|ip| ip["address"] == with_length(inet).as_str())?;
        own["gateway"].as_str()?.parse().ok()
    };
    for wanted in attach::wanted_routes(network, record, &said, routes, link.index) {
        let is_it = |route: &Route| {
            (route.destination, route.prefix_len, route.gateway)
                == (wanted.destination, wanted.prefix_len, wanted.gateway)
        };
        if !there.iter().any(is_it) {
            let by = wanted.gateway.map(|ip| format!(" by {ip}")).unwrap_or_default();
            return Err(failed(format!(
                "the route to {}/{}{by} is missing in the container",
                wanted.destination, wanted.prefix_len
            )));
        }
    }
    Ok(())
}

/// The interface, its addresses and the routes by it.
fn look_inside(netns: &Netns, record: &Attachment) -> Result<Inside, Fault> {
    let doing = || Error::kernel(format!("looking into {}", netns.name()));
    let mut kernel = Rtnetlink::open_in(netns).map_err(Error::from)?.map_err(doing())?;
    let link = kernel.link(&record.interface).map_err(doing())?;
    let link = link.filter(Link::is_up).ok_or_else(|| {
        failed(format!(
            "interface {} is missing or switched off in {}",
            record.interface,
            netns.name()
        ))
    })?;
    let addresses = netns.within(Addresses::open).map_err(Error::from)?.map_err(doing())?;
    let addresses = { addresses }.list().map_err(doing())?;
    let own = addresses.iter().filter(|it| it.link == link.index);
    let texts = own.map(|it| format!("{}/{}", it.ip, it.prefix_len)).collect();
    let mut routes = kernel.routes().map_err(doing())?;
    routes.retain(|route| route.link == link.index);
    Ok((link, texts, routes))
}

fn compare_interface(
    previous: &Value,
    network: &Network,
    record: &Attachment,
    link: &Link,
) -> Result<(), Fault> {
    let interfaces = previous["interfaces"].as_array().cloned().unwrap_or_default();
    let ours = interfaces.iter().find(|it| {
        it["name"] == record.interface && it["sandbox"].as_str().is_some_and(|at| !at.is_empty())
    });
    let ours = ours.ok_or_else(|| {
        failed(format!("prevResult knows no interface {} in a container", record.interface))
    })?;
    // Who comes after us in the chain may have changed it, and says so.
    let mtu = ours["mtu"].as_u64().or(network.mtu.map(u64::from));
    if let Some(mtu) = mtu.filter(|mtu| *mtu != u64::from(link.mtu)) {
        return Err(failed(format!(
            "interface {} takes packets of {} bytes, not of {mtu}",
            record.interface, link.mtu
        )));
    }
    let there = link.mac.map(|mac| mac.to_string()).unwrap_or_default();
    match ours["mac"].as_str() {
        Some(mac) if !mac.is_empty() && mac != there => {
            Err(failed(format!("interface {} has address {there}, not {mac}", record.interface)))
        }
        _ => Ok(()),
    }
}

fn compare_addresses(previous: &Value, record: &Attachment, there: &[String]) -> Result<(), Fault> {
    let ips = previous["ips"].as_array().cloned().unwrap_or_default();
    // Other plugins of the chain may have made further interfaces.
    let is_ours = |ip: &&Value| {
        let at = ip["interface"].as_u64().and_then(|at| usize::try_from(at).ok());
        at.is_none_or(|at| previous["interfaces"][at]["name"] == record.interface.as_str())
    };
    for ip in ips.iter().filter(is_ours).filter_map(|ip| ip["address"].as_str()) {
        let wanted = ip.parse().map_or_else(|_| ip.to_owned(), |inet| with_length(&inet));
        if !there.contains(&wanted) {
            return Err(failed(format!("address {ip} is missing in the container")));
        }
    }
    Ok(())
}

fn failed(why: impl Into<String>) -> Fault {
    Fault::new(CHECK_FAILED, why)
}
