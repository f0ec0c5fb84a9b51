//! CHECK: what is there is what ADD said.

use std::path::Path;

use serde_json::Value;
use telaio_netlink::addresses::Addresses;
use telaio_netlink::links::Link;
use telaio_netlink::netns::Netns;
use telaio_netlink::rtnl::Rtnetlink;

use super::fault::{CHECK_FAILED, Fault};
use super::request::Request;
use super::result::with_length;
use crate::attachment::Attachment;
use crate::error::Error;
use crate::names;
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
    let record = state.attachment(&key)?.flatten().filter(|record| !record.mac.is_empty());
    let record = record.ok_or_else(|| {
        failed(format!(
            "container {} is not on record on network {}",
            target.container, config.name
        ))
    })?;
    let netns = Netns::open_path(Path::new(&request.netns)).map_err(Error::from)?;
    let (link, addresses, routes) = look_inside(&netns, &record)?;
    compare_interface(previous, &record, &link)?;
    compare_addresses(previous, &record, &addresses)?;
    for (to, _) in config.routes()? {
        let wanted = (to.first_address(), to.network_length());
        if !routes.contains(&wanted) {
            return Err(failed(format!("the route to {to} is missing in {}", request.netns)));
        }
    }
    let doing = || Error::kernel("looking for links");
    let mut kernel = Rtnetlink::open().map_err(doing())?;
    for name in [config.bridge(), &record.host_link] {
        let there = kernel.link(name).map_err(doing())?;
        if !there.is_some_and(|link| link.is_up()) {
            return Err(failed(format!("link {name} is missing or switched off")));
        }
    }
    if !Rules::open()?.has(std::slice::from_ref(&record))? {
        return Err(failed(
            "the container's addresses or ports are missing among the node's rules (nftables' tables telaio-pods)",
        ));
    }
    Ok(())
}

type Inside = (Link, Vec<String>, Vec<(std::net::IpAddr, u8)>);

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
    let routes = kernel.routes().map_err(doing())?;
    let routes = routes.iter().filter(|route| route.link == link.index);
    let routes = routes.map(|route| (route.destination, route.prefix_len)).collect();
    Ok((link, texts, routes))
}

fn compare_interface(previous: &Value, record: &Attachment, link: &Link) -> Result<(), Fault> {
    let interfaces = previous["interfaces"].as_array().cloned().unwrap_or_default();
    let ours = interfaces.iter().find(|it| {
        it["name"] == record.interface && it["sandbox"].as_str().is_some_and(|at| !at.is_empty())
    });
    let ours = ours.ok_or_else(|| {
        failed(format!("prevResult knows no interface {} in a container", record.interface))
    })?;
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
