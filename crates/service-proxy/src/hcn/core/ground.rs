//! What the node offers.

use std::net::IpAddr;

use telaio_hcn::{
    Endpoint, EndpointPolicy, Feature, Guid, Hcn, HcnError, HnsVersion, IpConfiguration,
    MacAddress, Network, NetworkPolicy, NetworkType, ProviderAddress, Query, SupportedFeatures,
};
use telaio_model::IpFamily;

use super::super::compile::{Ground, Overlay};
use super::super::identity;
use super::super::options::HcnOptions;
use crate::config::{NodeFacts, NodePortMatch, ProxyConfig};

/// The newest HNS that we know.
const NEWEST: HnsVersion = HnsVersion::new(16, 0);

/// Why services cannot be programmed on this node, or not yet.
#[derive(Debug, thiserror::Error)]
pub enum PreRunError {
    /// A call failed.
    #[error(transparent)]
    Hcn(#[from] HcnError),
    /// HNS is too old.
    #[error(
        "HNS {0} is too old: it does not know documents of version 2 (Windows Server 2019 does)"
    )]
    TooOld(HnsVersion),
    /// There is no network of that name, or none that pods could be on.
    #[error("{0}; is the CNI plugin deployed on this node?")]
    NoNetwork(String),
    /// Several networks could be meant.
    #[error("pods may be on any of the networks {}; name one (--network-name)", .0.join(", "))]
    Ambiguous(Vec<String>),
    /// The network is of a kind that services do not work on.
    #[error("network {name} is of type {kind}; services need an overlay or l2bridge network")]
    WrongType {
        /// Its name.
        name: String,
        /// Its type.
        kind: NetworkType,
    },
    /// HNS cannot do what the operator asks for.
    #[error("HNS {0} has no direct server return (--enable-dsr)")]
    NoDsr(HnsVersion),
    /// HNS cannot do overlays.
    #[error("HNS {0} knows no subnets of other nodes, which an overlay network needs")]
    NoOverlay(HnsVersion),
    /// On an overlay a source address is needed.
    #[error(
        "overlay network {0}: no source address is known: name one (--source-vip), or make an endpoint \
         {0}_ep that has it"
    )]
    NoSourceVip(String),
    /// On an overlay the node's own address is needed.
    #[error("overlay network {0}: the node's own address is not known yet")]
    NoNodeAddress(String),
}

impl PreRunError {
    /// Whether waiting can help: what is missing may come.
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Hcn(_) | Self::NoNetwork(_) | Self::NoSourceVip(_) | Self::NoNodeAddress(_) => {
                true
            }
            Self::TooOld(_)
            | Self::Ambiguous(_)
            | Self::WrongType { .. }
            | Self::NoDsr(_)
            | Self::NoOverlay(_) => false,
        }
    }
}

/// What the node offers; and, on an overlay, the endpoint that is missing for the source address.
pub(super) fn survey(
    hcn: &dyn Hcn,
    config: &ProxyConfig,
    options: &HcnOptions,
    node: &NodeFacts,
) -> Result<(Ground, Option<Endpoint>), PreRunError> {
    let features = hcn.supported_features()?;
    let version = features.version();
    if !features.has(Feature::SchemaV2) {
        return Err(PreRunError::TooOld(version));
    }
    if options.enable_dsr == Some(true) && !features.has(Feature::Dsr) {
        return Err(PreRunError::NoDsr(version));
    }
    let network = find_network(hcn, options)?;
    let (overlay, source_vip) = match network.kind {
        NetworkType::Overlay => {
            if !features.has(Feature::RemoteSubnet) {
                return Err(PreRunError::NoOverlay(version));
            }
            let (overlay, source_vip) = survey_overlay(hcn, &network, options, node)?;
            (Some(overlay), source_vip)
        }
        _ => (None, None),
    };
    let families = families(config, &network, &features, overlay.as_ref());
    let ground = Ground {
        network: network.id.unwrap_or_default(),
        node_port_addresses: node_port_addresses(config, node, &families),
        families,
        overlay,
        dsr: has_dsr(config, options, &features),
        features,
    };
    Ok((ground, source_vip))
}

/// What a node is taken to offer whose HNS cannot be asked: the newest HNS that we know, and an l2bridge
/// network of both families; with a source address, an overlay.
pub fn assumed(
    config: &ProxyConfig,
    options: &HcnOptions,
    node: &NodeFacts,
) -> Result<Ground, PreRunError> {
    let is_overlay = !options.source_vips.is_empty();
    let name = options.network_name.clone().unwrap_or_else(|| "pods".to_owned());
    let overlay = if is_overlay {
        let network = Network { name, kind: NetworkType::Overlay, ..Network::default() };
        Some(overlay(&network, options, node, options.source_vips.clone())?)
    } else {
        None
    };
    let features = SupportedFeatures::of(NEWEST);
    let families = families(config, &Network::default(), &features, overlay.as_ref());
    Ok(Ground {
        network: Guid::NIL,
        node_port_addresses: node_port_addresses(config, node, &families),
        families,
        overlay,
        dsr: has_dsr(config, options, &features),
        features,
    })
}

/// Answers that go straight to who asked must find their way from the endpoint's own point of view, so the
/// endpoint sees who asked: that is not what `--masquerade-all` wants.
fn has_dsr(config: &ProxyConfig, options: &HcnOptions, features: &SupportedFeatures) -> bool {
    !config.masquerade_all && options.enable_dsr.unwrap_or_else(|| features.has(Feature::Dsr))
}

fn is_suitable(kind: &NetworkType) -> bool {
    matches!(kind, NetworkType::Overlay | NetworkType::L2Bridge | NetworkType::L2Tunnel)
}

/// The network of the name, or the only one that pods can be on.
fn find_network(hcn: &dyn Hcn, options: &HcnOptions) -> Result<Network, PreRunError> {
    let listed = hcn.networks(&Query::All)?;
    // An unreadable network may be the one: better to wait than to take another.
    let unreadable = listed.problems.into_iter().next();
    let mut networks = listed.objects;
    if let Some(name) = &options.network_name {
        let found = networks.into_iter().find(|it| it.name.eq_ignore_ascii_case(name));
        return match (found, unreadable) {
            (Some(network), _) if is_suitable(&network.kind) => Ok(network),
            (Some(network), _) => {
                Err(PreRunError::WrongType { name: network.name, kind: network.kind })
            }
            (None, Some(error)) => Err(error.into()),
            (None, None) => Err(PreRunError::NoNetwork(format!("there is no network {name:?}"))),
        };
    }
    if let Some(error) = unreadable {
        return Err(error.into());
    }
    networks.retain(|network| is_suitable(&network.kind));
    if networks.len() > 1 {
        let mut names: Vec<String> = networks.into_iter().map(|it| it.name).collect();
        names.sort_unstable();
        return Err(PreRunError::Ambiguous(names));
    }
    let none = || PreRunError::NoNetwork("there is no overlay or l2bridge network".to_owned());
    networks.pop().ok_or_else(none)
}

fn survey_overlay(
    hcn: &dyn Hcn,
    network: &Network,
    options: &HcnOptions,
    node: &NodeFacts,
) -> Result<(Overlay, Option<Endpoint>), PreRunError> {
    let reserved = hcn.endpoints(&Query::Name(format!("{}_ep", network.name)))?.objects;
    let on_it = |endpoint: &&Endpoint| Some(endpoint.network) == network.id;
    let reserved: Vec<IpAddr> =
        reserved.iter().filter(on_it).flat_map(Endpoint::addresses).collect();
    let is_named = !options.source_vips.is_empty();
    let source_vips = if is_named { options.source_vips.clone() } else { reserved };
    let overlay = overlay(network, options, node, source_vips)?;
    if overlay.source_vips.is_empty() {
        return Err(PreRunError::NoSourceVip(network.name.clone()));
    }
    let endpoint = is_named.then(|| source_vip_endpoint(network, &overlay));
    Ok((overlay, endpoint))
}

fn overlay(
    network: &Network,
    options: &HcnOptions,
    node: &NodeFacts,
    source_vips: Vec<IpAddr>,
) -> Result<Overlay, PreRunError> {
    let own = node.primary(IpFamily::V4).or_else(|| node.addresses.first().copied());
    let management = own.ok_or_else(|| PreRunError::NoNodeAddress(network.name.clone()))?;
    let routes = network.policies.iter().filter_map(|policy| match policy {
        NetworkPolicy::RemoteSubnetRoute(route) => Some(route.clone()),
        _ => None,
    });
    Ok(Overlay {
        source_vips,
        management,
        own: IpFamily::ALL.into_iter().filter_map(|family| node.primary(family)).collect(),
        host_mac: options.host_macs.get(&management).copied().or_else(|| router_mac(network)),
        routes: routes.collect(),
    })
}

/// The endpoint that has the source address. Not a remote one: answers come to it.
fn source_vip_endpoint(network: &Network, overlay: &Overlay) -> Endpoint {
    let id = network.id.unwrap_or_default();
    let provider_address = overlay.management;
    let configuration = |ip: &IpAddr| IpConfiguration { ip_address: *ip, prefix_length: 0 };
    Endpoint {
        id: overlay.source_vips.first().map(|address| identity::endpoint_id(id, *address)),
        name: identity::SOURCE_VIP_NAME.to_owned(),
        network: id,
        policies: vec![EndpointPolicy::ProviderAddress(ProviderAddress { provider_address })],
        ip_configurations: overlay.source_vips.iter().map(configuration).collect(),
        mac_address: overlay.host_mac,
        ..Endpoint::default()
    }
}

/// The Ethernet address of this node on an overlay, where the network says it.
fn router_mac(network: &Network) -> Option<MacAddress> {
    network.policies.iter().find_map(|policy| match policy {
        NetworkPolicy::Other(raw) if raw.kind.eq_ignore_ascii_case("DrMacAddress") => {
            raw.settings.get("Address")?.as_str()?.parse().ok()
        }
        _ => None,
    })
}

/// What the operator, HNS and the network have in common. A network that names no subnet has all.
fn families(
    config: &ProxyConfig,
    network: &Network,
    features: &SupportedFeatures,
    overlay: Option<&Overlay>,
) -> Vec<IpFamily> {
    let subnets: Vec<IpFamily> =
        network.subnets().map(|it| IpFamily::of_net(&it.ip_address_prefix)).collect();
    let has = |family: &IpFamily| {
        (*family == IpFamily::V4 || features.has(Feature::Ipv6DualStack))
            && (subnets.is_empty() || subnets.contains(family))
            && overlay.is_none_or(|it| it.source_vips.iter().any(|ip| IpFamily::of(*ip) == *family))
    };
    config.families.iter().copied().filter(has).collect()
}

/// The node's addresses that serve node ports; none: all.
fn node_port_addresses(
    config: &ProxyConfig,
    node: &NodeFacts,
    families: &[IpFamily],
) -> Option<Vec<IpAddr>> {
    let mut own = Vec::new();
    let mut limited = false;
    for family in families.iter().copied() {
        let of_family = node.addresses.iter().copied().filter(|ip| IpFamily::of(*ip) == family);
        match NodePortMatch::new(config, node, family) {
            NodePortMatch::AnyLocal => own.extend(of_family),
            NodePortMatch::Within(nets) => {
                limited = true;
                own.extend(of_family.filter(|ip| nets.iter().any(|net| net.contains(ip))));
            }
        }
    }
    own.sort_unstable();
    own.dedup();
    limited.then_some(own)
}
