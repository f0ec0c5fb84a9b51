//! What a runtime asks for: its environment and the configuration together.

use std::net::IpAddr;

use telaio_netlink::rtnl::Mac;

use super::config::{Config, PortMapping, address};
use super::fault::Fault;
use crate::attachment::PodName;
use crate::bandwidth::Bandwidth;
use crate::port::{Port, Protocol};

/// The longest name of a link.
const INTERFACE_LEN_MAX: usize = 15;

/// Which container's which interface.
#[derive(Debug, Clone)]
pub(super) struct Target {
    pub(super) container: String,
    pub(super) interface: String,
}

impl Target {
    pub(super) fn read(env: &dyn Fn(&str) -> Option<String>) -> Result<Self, Fault> {
        let container = required(env, "CNI_CONTAINERID")?;
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
        let begins_well = container.starts_with(|c: char| c.is_ascii_alphanumeric());
        if !begins_well || !container.chars().all(is_plain) {
            let why = format!(
                "CNI_CONTAINERID: {container:?} is no container ID; it has letters, digits, '_', '.' and '-'"
            );
            return Err(Fault::environment(why));
        }
        let interface = required(env, "CNI_IFNAME")?;
        let is_bad = |c: char| "/:%".contains(c) || c.is_whitespace() || c.is_control();
        if interface.len() > INTERFACE_LEN_MAX
            || interface == "."
            || interface == ".."
            || interface.contains(is_bad)
        {
            let why = format!(
                "CNI_IFNAME: {interface:?} is no name of a link; it has at most {INTERFACE_LEN_MAX} characters"
            );
            return Err(Fault::environment(why));
        }
        Ok(Self { container, interface })
    }
}

/// An ADD or CHECK.
#[derive(Debug, Clone)]
pub(super) struct Request {
    pub(super) target: Target,
    pub(super) netns: String,
    pub(super) config: Config,
    pub(super) ips: Vec<IpAddr>,
    pub(super) mac: Option<Mac>,
    pub(super) ports: Vec<Port>,
    pub(super) bandwidth: Option<Bandwidth>,
    /// The pod that it is for, if the runtime says so.
    pub(super) pod: Option<PodName>,
}

impl Request {
    pub(super) fn read(
        env: &dyn Fn(&str) -> Option<String>,
        config: Config,
    ) -> Result<Self, Fault> {
        let target = Target::read(env)?;
        let netns = required(env, "CNI_NETNS")?;
        let args = arguments(&env("CNI_ARGS").unwrap_or_default())?;
        let argument =
            |name: &str| args.iter().find(|(key, _)| key == name).map(|(_, value)| value);
        let asked = config.runtime.ips.iter().chain(&config.args.cni.ips);
        let asked = asked.chain(argument("IP"));
        let ips = asked
            .flat_map(|text| text.split(','))
            .map(|text| address("ips", text.split('/').next().unwrap_or_default().trim()))
            .collect::<Result<Vec<_>, _>>()?;
        let runtime = &config.runtime;
        let mac = runtime.mac.as_ref().or(config.args.cni.mac.as_ref()).or(argument("MAC"));
        let mac = mac.filter(|mac| !mac.is_empty()).map(|mac| mac.parse());
        let mac = mac.transpose().map_err(|why| Fault::configuration(format!("mac: {why}")))?;
        let ports = runtime.port_mappings.iter().filter(|mapping| mapping.host_port != 0);
        let ports = ports.map(port).collect::<Result<Vec<_>, _>>()?;
        let bandwidth = runtime.bandwidth.filter(|limits| *limits != Bandwidth::default());
        let pod = argument("K8S_POD_NAMESPACE").zip(argument("K8S_POD_NAME"));
        let pod = pod
            .map(|(namespace, name)| PodName { namespace: namespace.clone(), name: name.clone() });
        Ok(Self { target, netns, config, ips, mac, ports, bandwidth, pod })
    }
}

fn required(env: &dyn Fn(&str) -> Option<String>, name: &str) -> Result<String, Fault> {
    let value = env(name).filter(|value| !value.is_empty());
    value.ok_or_else(|| Fault::environment(format!("{name} is missing")))
}

/// `KEY=value;KEY=value`.
fn arguments(text: &str) -> Result<Vec<(String, String)>, Fault> {
    let pairs = text.split(';').filter(|pair| !pair.is_empty()).map(|pair| {
        let (key, value) = pair.split_once('=').ok_or_else(|| {
            Fault::environment(format!("CNI_ARGS: {pair:?} is not of the form KEY=value"))
        })?;
        Ok((key.to_owned(), value.to_owned()))
    });
    pairs.collect()
}

fn port(mapping: &PortMapping) -> Result<Port, Fault> {
    let invalid =
        |what: String| Fault::configuration(format!("runtimeConfig.portMappings: {what}"));
    let number = |name: &str, value: i64| {
        let port = u16::try_from(value).ok().filter(|port| *port != 0);
        port.ok_or_else(|| invalid(format!("{name} is {value}; a port is 1 to 65535")))
    };
    let protocol = match mapping.protocol.to_ascii_lowercase().as_str() {
        "" | "tcp" => Protocol::Tcp,
        "udp" => Protocol::Udp,
        "sctp" => Protocol::Sctp,
        other => return Err(invalid(format!("protocol is {other:?}; it is tcp, udp or sctp"))),
    };
    let ports =
        (number("hostPort", mapping.host_port)?, number("containerPort", mapping.container_port)?);
    let mut port = Port::new(ports.0, ports.1).with_protocol(protocol);
    if !mapping.host_ip.is_empty() {
        port = port.at(address("runtimeConfig.portMappings.hostIP", &mapping.host_ip)?);
    }
    Ok(port)
}
