//! The link by which other nodes are reached.

use telaio_netlink::links::{Link, VxlanState};
use telaio_netlink::offload::set_checksum_offload;
use telaio_netlink::rtnl::{OwnAddress, Request, Rtnetlink, SetLink, Vxlan, Which};

use super::{Backend, Ground, LocalNode, uplink, vtep_mac};
use crate::error::{Error, Result};
use crate::names;
use crate::networks::{ENODEV, set};
use telaio_netlink::links::LinkIndex;

/// Takes a link off its bridge.
const NO_MASTER: LinkIndex = LinkIndex(0);

/// The link by which peers are reached, made if it is not there or not as it should be. Whatever happens in between, a link
/// that is up has everything.
pub(crate) fn ensure_link(kernel: &mut Rtnetlink, node: &LocalNode, group: u32) -> Result<Ground> {
    let uplink = uplink(node.tunnel)?;
    let Backend::Vxlan { vni, port } = node.backend else {
        return Ok(Ground { link: uplink.link, is_ipv4: uplink.address.is_ipv4() });
    };
    let name = names::vxlan_link(vni);
    let doing = || Error::kernel(format!("making link {name}"));
    let (mac, mtu) = (vtep_mac(&node.cidrs), node.mtu()?);
    let told = VxlanState {
        vni,
        port,
        local: Some(uplink.address),
        lower: Some(uplink.link),
        learns: false,
    };
    match kernel.link(&name).map_err(doing())? {
        Some(link) if link.kind.as_deref() != Some("vxlan") => {
            let what = link.kind.map_or("hardware".to_owned(), |kind| format!("a {kind}"));
            return Err(Error::ForeignLink { name, what });
        }
        Some(link) if link.vxlan == Some(told) => {}
        there => {
            // What it was told cannot be changed.
            let delete = there.map(|link| Request::DeleteLink(Which::Index(link.index)));
            kernel.all_but(&[ENODEV], delete).map_err(doing())?;
            let (local, lower) = (uplink.address, Some(uplink.link));
            let vxlan = Vxlan { name: &name, vni, port, local, lower, mac, mtu, group };
            kernel.all([Request::Vxlan(vxlan)]).map_err(doing())?;
        }
    }
    let link = kernel.link(&name).map_err(doing())?.ok_or_else(|| Error::Unknown {
        kind: "link",
        name: name.clone(),
        hint: "somebody has just removed it; try again",
    })?;
    set_checksum_offload(&name, false).map_err(doing())?;
    set(&format!("ipv4/conf/{name}/rp_filter"), "0")?;
    let which = Which::Index(link.index);
    let wanted = SetLink {
        mac: (link.mac != Some(mac)).then_some(mac),
        mtu: (link.mtu != mtu).then_some(mtu),
        group: (link.group != group).then_some(group),
        master: link.master.map(|_| NO_MASTER),
        ..SetLink::new(which)
    };
    let quiet = SetLink { own_address: Some(OwnAddress::Nothing), ..SetLink::new(which) };
    let up = (!link.is_up()).then_some(Request::Set(SetLink::up(which)));
    let steps = [Request::Set(quiet), Request::Set(wanted)].into_iter().chain(up);
    kernel.all(steps).map_err(doing())?;
    Ok(Ground { link: link.index, is_ipv4: uplink.address.is_ipv4() })
}

/// Removes links to peers, with everything that leads over them, but for the one of this node.
pub(crate) fn remove_links(kernel: &mut Rtnetlink, but: Option<&LocalNode>) -> Result<()> {
    let doing = || Error::kernel("removing links to other nodes");
    let kept = but.and_then(|node| match node.backend {
        Backend::Vxlan { vni, .. } => Some(names::vxlan_link(vni)),
        Backend::HostGw => None,
    });
    let is_ours = |link: &Link| {
        let number = link.name.strip_prefix(names::VXLAN_LINK_PREFIX);
        let is_named = number.is_some_and(|number| number.parse::<u32>().is_ok());
        is_named && link.kind.as_deref() == Some("vxlan") && Some(&link.name) != kept.as_ref()
    };
    let links = kernel.links().map_err(doing())?;
    let delete = links.iter().filter(|link| is_ours(link));
    let delete = delete.map(|link| Request::DeleteLink(Which::Index(link.index)));
    kernel.all_but(&[ENODEV], delete).map_err(doing())
}
