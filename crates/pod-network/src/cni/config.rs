//! The configuration of a network, as a runtime gives it on standard input.

use std::net::IpAddr;

use cidr::IpCidr;
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

use super::VERSIONS;
use super::fault::{Fault, INCOMPATIBLE_VERSION, UNSUPPORTED_FIELD};
use crate::bandwidth::Bandwidth;
use crate::ipam::Range;
use crate::network::{Masquerade, Mode, Network, Subnet};

/// The highest number of a virtual network.
const VLAN_MAX: u16 = 4094;

/// A network's configuration: the keys of the reference plugins `bridge` and `host-local` that mean something here.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Config {
    #[serde(deserialize_with = "nullable")]
    pub(super) cni_version: String,
    #[serde(deserialize_with = "nullable")]
    pub(super) name: String,
    pub(super) bridge: Option<String>,
    #[serde(deserialize_with = "nullable")]
    pub(super) is_gateway: bool,
    #[serde(deserialize_with = "nullable")]
    pub(super) is_default_gateway: bool,
    #[serde(deserialize_with = "nullable")]
    pub(super) ip_masq: bool,
    /// Ours: destinations that see the container's own address.
    #[serde(deserialize_with = "nullable")]
    pub(super) masq_except: Vec<String>,
    /// Ours: networks of this node whose containers may reach this one's, and be reached.
    #[serde(deserialize_with = "nullable")]
    pub(super) reaches: Vec<String>,
    #[serde(deserialize_with = "nullable")]
    pub(super) hairpin_mode: bool,
    #[serde(deserialize_with = "nullable")]
    pub(super) promisc_mode: bool,
    pub(super) mtu: Option<u32>,
    pub(super) vlan: Option<i64>,
    #[serde(deserialize_with = "nullable")]
    vlan_trunk: Vec<Value>,
    #[serde(deserialize_with = "nullable")]
    preserve_default_vlan: bool,
    #[serde(deserialize_with = "nullable")]
    force_address: bool,
    #[serde(deserialize_with = "nullable")]
    macspoofchk: bool,
    #[serde(deserialize_with = "nullable")]
    enabledad: bool,
    #[serde(deserialize_with = "nullable")]
    port_isolation: bool,
    #[serde(deserialize_with = "nullable")]
    pub(super) disable_container_interface: bool,
    #[serde(deserialize_with = "ipam")]
    pub(super) ipam: Ipam,
    pub(super) dns: Option<Value>,
    #[serde(rename = "runtimeConfig", deserialize_with = "nullable")]
    pub(super) runtime: RuntimeConfig,
    #[serde(deserialize_with = "nullable")]
    pub(super) args: Args,
    pub(super) prev_result: Option<Value>,
    #[serde(rename = "cni.dev/valid-attachments")]
    pub(super) valid_attachments: Option<Vec<ValidAttachment>>,
    /// Ours: where state is kept.
    pub(super) state_dir: Option<std::path::PathBuf>,
}

/// Where addresses come from.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Ipam {
    /// The key is there, if only with an empty object.
    #[serde(skip)]
    is_there: bool,
    /// A file in the form of resolv.conf, whose contents go into the result.
    #[serde(deserialize_with = "nullable")]
    pub(super) resolv_conf: String,
    #[serde(rename = "type", deserialize_with = "nullable")]
    pub(super) kind: String,
    #[serde(flatten)]
    pub(super) single: RangeConfig,
    #[serde(deserialize_with = "nullable")]
    pub(super) ranges: Vec<Vec<RangeConfig>>,
    #[serde(deserialize_with = "nullable")]
    pub(super) routes: Vec<RouteConfig>,
}

/// A range of addresses.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct RangeConfig {
    pub(super) subnet: Option<String>,
    pub(super) range_start: Option<String>,
    pub(super) range_end: Option<String>,
    pub(super) gateway: Option<String>,
}

/// A route of the container's.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct RouteConfig {
    pub(super) dst: String,
    #[serde(deserialize_with = "nullable")]
    pub(super) gw: String,
    #[serde(deserialize_with = "nullable")]
    mtu: i64,
    #[serde(deserialize_with = "nullable")]
    advmss: i64,
    #[serde(deserialize_with = "nullable")]
    priority: i64,
    table: Option<i64>,
    scope: Option<i64>,
}

/// What capabilities bring.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct RuntimeConfig {
    #[serde(deserialize_with = "nullable")]
    pub(super) port_mappings: Vec<PortMapping>,
    pub(super) bandwidth: Option<Bandwidth>,
    #[serde(deserialize_with = "nullable")]
    pub(super) ips: Vec<String>,
    #[serde(deserialize_with = "nullable")]
    pub(super) ip_ranges: Vec<Vec<RangeConfig>>,
    pub(super) mac: Option<String>,
    pub(super) dns: Option<Value>,
}

/// A published port.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct PortMapping {
    pub(super) host_port: i64,
    pub(super) container_port: i64,
    #[serde(deserialize_with = "nullable")]
    pub(super) protocol: String,
    #[serde(rename = "hostIP", alias = "hostIp", deserialize_with = "nullable")]
    pub(super) host_ip: String,
}

/// What older runtimes give by convention.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Args {
    #[serde(deserialize_with = "nullable")]
    pub(super) cni: CniArgs,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct CniArgs {
    #[serde(deserialize_with = "nullable")]
    pub(super) ips: Vec<String>,
    pub(super) mac: Option<String>,
}

/// An attachment that a runtime still knows.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct ValidAttachment {
    #[serde(rename = "containerID")]
    container_id: String,
    ifname: String,
}

fn ipam<'de, D: Deserializer<'de>>(from: D) -> Result<Ipam, D::Error> {
    let ipam: Option<Ipam> = Option::deserialize(from)?;
    Ok(ipam.map(|ipam| Ipam { is_there: true, ..ipam }).unwrap_or_default())
}

/// A key whose value is `null` is as good as none.
fn nullable<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    from: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

impl Config {
    pub(super) fn parse(text: &str) -> Result<Self, Fault> {
        let config: Self = serde_json::from_str(text).map_err(|error| Fault::decode(&error))?;
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
        let is_good = config.name.starts_with(|c: char| c.is_ascii_alphanumeric())
            && config.name.chars().all(is_plain);
        if !is_good {
            let name = &config.name;
            let why = format!(
                "name: {name:?} is no name of a network; use letters, digits, '_', '.' and '-'"
            );
            return Err(Fault::configuration(why));
        }
        Ok(config)
    }

    /// Refuses what can be no result of the plugins before. What is to go goes whatever came before.
    pub(super) fn check_previous(&self) -> Result<(), Fault> {
        match self.prev_result.as_ref().filter(|it| !it.is_object()) {
            Some(other) => {
                let why = format!("prevResult: {other} is no result of a plugin; it is an object");
                Err(Fault::configuration(why))
            }
            None => Ok(()),
        }
    }

    /// Refuses a version that we do not speak, or that does not have the command.
    pub(super) fn check_version(&self, needed: &str, command: &str) -> Result<(), Fault> {
        let place = |version: &str| VERSIONS.iter().position(|it| *it == version);
        let why = match (place(&self.cni_version), place(needed)) {
            (None, _) => format!(
                "cniVersion: {:?} is none that this plugin speaks: {}",
                self.cni_version,
                VERSIONS.join(", ")
            ),
            (Some(asked), Some(needed_at)) if asked < needed_at => {
                format!("cniVersion: {command} needs {needed}, not {}", self.cni_version)
            }
            _ => return Ok(()),
        };
        Err(Fault::new(INCOMPATIBLE_VERSION, why))
    }

    /// Behind another plugin in the chain, whose interface gets ports and limits: there is nothing to give addresses of.
    pub(super) fn is_chained(&self) -> bool {
        !self.ipam.is_there
    }

    /// Frames only: `ipam` is there and empty, so nobody gets an address.
    fn is_plain(&self) -> bool {
        self.ipam.is_there
            && self.ipam.kind.is_empty()
            && self.ipam.single.subnet.is_none()
            && self.ipam.ranges.is_empty()
    }

    /// The sets of ranges; one address comes out of each.
    pub(super) fn ranges(&self) -> Result<Vec<Vec<Range>>, Fault> {
        let ipam = &self.ipam;
        if self.is_plain() {
            return Ok(Vec::new());
        }
        if !matches!(ipam.kind.as_str(), "host-local" | "telaio" | "telaio-cni") {
            let why = format!("ipam.type: {:?} is not supported; use host-local", ipam.kind);
            return Err(Fault::new(UNSUPPORTED_FIELD, why));
        }
        let mut sets = Vec::new();
        if ipam.single.subnet.is_some() {
            sets.push(vec![ipam.single.clone()]);
        }
        let more = &self.runtime.ip_ranges;
        sets.extend(more.iter().chain(&ipam.ranges).cloned());
        if sets.is_empty() || sets.iter().any(Vec::is_empty) {
            return Err(Fault::configuration(
                "ipam.ranges: a network needs a subnet to give addresses of",
            ));
        }
        let sets = sets
            .iter()
            .map(|set| set.iter().map(RangeConfig::range).collect::<Result<Vec<Range>, Fault>>())
            .collect::<Result<Vec<_>, _>>()?;
        refuse_overlaps(&sets)?;
        Ok(sets)
    }

    pub(super) fn bridge(&self) -> &str {
        self.bridge.as_deref().filter(|name| !name.is_empty()).unwrap_or("cni0")
    }

    /// The network as it should be.
    pub(super) fn network(&self, sets: &[Vec<Range>]) -> Result<Network, Fault> {
        let vlan = self.vlan.filter(|vlan| *vlan != 0);
        let vlan = vlan.map(|vlan| {
            let number = u16::try_from(vlan).ok().filter(|vlan| *vlan <= VLAN_MAX);
            number
                .ok_or_else(|| Fault::configuration(format!("vlan: {vlan} is not 1 to {VLAN_MAX}")))
        });
        let vlan = vlan.transpose()?;
        let is_gateway = (self.is_gateway || self.is_default_gateway) && !self.is_plain();
        self.refuse_unsupported(is_gateway)?;
        if is_gateway {
            self.refuse_other_gateways(sets)?;
        }
        if let Some(mtu) = self.mtu.filter(|mtu| *mtu != 0 && !(68..=65535).contains(mtu)) {
            return Err(Fault::configuration(format!("mtu: {mtu} is not between 68 and 65535")));
        }
        let mut subnets: Vec<Subnet> = Vec::new();
        for range in sets.iter().flatten() {
            let subnet = Subnet { cidr: range.subnet, gateway: Some(range.gateway) };
            if !subnets.iter().any(|it| it.cidr == subnet.cidr && it.gateway == subnet.gateway) {
                subnets.push(subnet);
            }
        }
        let except = self.masq_except.iter().map(|text| cidr("masqExcept", text));
        let except = except.collect::<Result<Vec<IpCidr>, Fault>>()?;
        Ok(Network {
            name: self.name.clone(),
            group: 0,
            bridge: self.bridge().to_owned(),
            bridge_mac: String::new(),
            subnets,
            mode: if is_gateway { Mode::Routed } else { Mode::Bridged },
            mtu: self.mtu.filter(|mtu| *mtu != 0),
            masquerade: self.ip_masq.then_some(Masquerade { except }),
            vlan,
            hairpin: self.hairpin_mode,
            promiscuous: self.promisc_mode,
            is_adopted: false,
            is_made: false,
            reaches: self.reaches.clone(),
            joined: Vec::new(),
        })
    }

    /// Keys of the reference plugins whose meaning would be lost without a word.
    fn refuse_unsupported(&self, is_gateway: bool) -> Result<(), Fault> {
        let routes = &self.ipam.routes;
        let any = |of: fn(&RouteConfig) -> bool| routes.iter().any(of);
        let has_vlan = self.vlan.is_some_and(|vlan| vlan != 0);
        for (key, is_set, why) in [
            (
                "disableContainerInterface",
                self.disable_container_interface,
                "this plugin always switches the interface on",
            ),
            (
                "vlanTrunk",
                !self.vlan_trunk.is_empty(),
                "a port is in one virtual network; use vlan",
            ),
            (
                "preserveDefaultVlan",
                self.preserve_default_vlan && has_vlan,
                "a port is in the virtual network of vlan and no other; leave it out",
            ),
            ("forceAddress", self.force_address, "a bridge keeps the addresses that it has"),
            (
                "macspoofchk",
                self.macspoofchk && !is_gateway,
                "senders are checked with isGateway, and not on a plain bridge",
            ),
            (
                "portIsolation",
                self.port_isolation && !is_gateway,
                "containers are apart with isGateway, and not on a plain bridge",
            ),
            ("enabledad", self.enabledad, "nobody else is asked whether he has an address"),
            ("ipam.routes.mtu", any(|route| route.mtu != 0), "set mtu for the network"),
            ("ipam.routes.advmss", any(|route| route.advmss != 0), "it cannot be set"),
            ("ipam.routes.priority", any(|route| route.priority != 0), "it cannot be set"),
            (
                "ipam.routes.table",
                any(|route| route.table.is_some()),
                "routes are in the main table",
            ),
            (
                "ipam.routes.scope",
                any(|route| route.scope.is_some()),
                "it follows from the gateway",
            ),
        ] {
            if is_set {
                let why = format!("{key} is not supported: {why}");
                return Err(Fault::new(UNSUPPORTED_FIELD, why));
            }
        }
        Ok(())
    }

    /// A neighbour is reached by the node, and so cannot be a gateway.
    fn refuse_other_gateways(&self, sets: &[Vec<Range>]) -> Result<(), Fault> {
        let is_own = |ip: IpAddr| sets.iter().flatten().any(|range| range.gateway == ip);
        let others = self.routes()?.into_iter().filter_map(|(_, gateway)| gateway);
        match { others }.find(|ip| !is_own(*ip)) {
            None => Ok(()),
            Some(other) => {
                let why = format!(
                    "ipam.routes.gw {other} is not supported: with isGateway everything goes by the node; leave it out, and route there on \
                     the node"
                );
                Err(Fault::new(UNSUPPORTED_FIELD, why))
            }
        }
    }

    /// What the result says of names: what the runtime wants, what the configuration says, what the file of `resolvConf` says.
    pub(super) fn dns(&self) -> Result<Value, Fault> {
        if let Some(dns) = self.runtime.dns.as_ref().or(self.dns.as_ref()) {
            return Ok(dns.clone());
        }
        let path = &self.ipam.resolv_conf;
        if path.is_empty() {
            return Ok(json!({}));
        }
        let text = std::fs::read_to_string(path).map_err(|error| {
            Fault::configuration(format!("ipam.resolvConf: cannot read {path}: {error}"))
        })?;
        Ok(resolv_conf(&text))
    }

    /// The routes that the container gets.
    pub(super) fn routes(&self) -> Result<Vec<(IpCidr, Option<IpAddr>)>, Fault> {
        let route = |route: &RouteConfig| {
            let gateway = Some(&route.gw).filter(|gw| !gw.is_empty());
            let gateway = gateway.map(|gw| address("ipam.routes.gw", gw)).transpose()?;
            Ok((cidr("ipam.routes.dst", &route.dst)?, gateway))
        };
        self.ipam.routes.iter().map(route).collect()
    }

    /// What GC must leave alone.
    pub(super) fn valid_attachments(&self) -> Result<Vec<(String, String)>, Fault> {
        // Without the list everything would have to go: more likely somebody forgot it.
        let valid = self.valid_attachments.as_ref().ok_or_else(|| {
            Fault::configuration("cni.dev/valid-attachments: GC needs the list, empty or not")
        })?;
        Ok(valid.iter().map(|it| (it.container_id.clone(), it.ifname.clone())).collect())
    }
}

impl RangeConfig {
    fn range(&self) -> Result<Range, Fault> {
        let subnet = self.subnet.as_deref().unwrap_or_default();
        let network = cidr("ipam.subnet", subnet)?;
        if subnet.parse() != Ok(network) {
            let why = format!("ipam.subnet: {subnet} has bits of a host; the network is {network}");
            return Err(Fault::configuration(why));
        }
        let subnet = network;
        let ip = |field, text: &Option<String>| {
            let text = text.as_deref().filter(|text| !text.is_empty());
            text.map(|text| address(field, text)).transpose()
        };
        let first = ip("ipam.rangeStart", &self.range_start)?;
        let last = ip("ipam.rangeEnd", &self.range_end)?;
        let gateway = ip("ipam.gateway", &self.gateway)?;
        Ok(Range::of(subnet, first, last, gateway)?)
    }
}

/// A file in the form of resolv.conf as CNI says it.
fn resolv_conf(text: &str) -> Value {
    let (mut servers, mut search, mut options) = (Vec::new(), Vec::new(), Vec::new());
    let mut domain = None;
    for line in text.lines() {
        let mut words = line.split_whitespace();
        match words.next() {
            Some("nameserver") => servers.extend(words.next()),
            Some("domain") => domain = words.next(),
            Some("search") => search = words.collect(),
            Some("options") => options.extend(words),
            _ => {}
        }
    }
    let mut dns = json!({});
    if let Some(domain) = domain {
        dns["domain"] = domain.into();
    }
    for (key, values) in [("nameservers", servers), ("search", search), ("options", options)] {
        if !values.is_empty() {
            dns[key] = values.into();
        }
    }
    dns
}

/// Ranges of one network have no address in common.
fn refuse_overlaps(sets: &[Vec<Range>]) -> Result<(), Fault> {
    let all: Vec<&Range> = sets.iter().flatten().collect();
    for (at, one) in all.iter().enumerate() {
        for other in &all[..at] {
            if one.subnet.is_ipv4() == other.subnet.is_ipv4()
                && one.first <= other.last
                && other.first <= one.last
            {
                let why = format!("ipam.ranges: {one} and {other} overlap");
                return Err(Fault::configuration(why));
            }
        }
    }
    Ok(())
}

/// A network; bits of a host are passed over.
fn cidr(field: &str, text: &str) -> Result<IpCidr, Fault> {
    let inet: Result<cidr::IpInet, _> = text.parse();
    match inet {
        Ok(inet) if text.contains('/') => Ok(inet.network()),
        _ => Err(Fault::configuration(format!("{field}: {text:?} is no network like 10.1.0.0/16"))),
    }
}

pub(super) fn address(field: &str, text: &str) -> Result<IpAddr, Fault> {
    text.parse().map_err(|_| Fault::configuration(format!("{field}: {text:?} is no address")))
}
