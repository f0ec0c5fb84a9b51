//! Instances of a node: setting one up, and cleaning it up.
//!
//! Both calls can be repeated: what is there already is left alone, what is gone already is no fault.

use std::net::IpAddr;

use cidr::IpInet;

use crate::attach::{self, Addresses, Place, Wanted};
use crate::attachment::Attachment;
use crate::bandwidth::Bandwidth;
use crate::error::{Error, Result};
use crate::names;
use crate::network::Network;
use crate::port::Port;
use crate::state::{Host, State};

/// The name of an instance's interface.
pub const INTERFACE: &str = "eth0";

/// How often a clean-up looks again that finds an instance just set up.
const CLEAN_TRIES_MAX: usize = 10;

/// What an instance should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetupInstanceRequest {
    /// The ID of the node that it is on.
    pub node_id: String,
    /// The node's own address in its network, by which the instance reaches everything.
    pub node_ip_addr: IpAddr,
    /// The instance's ID.
    pub instance_id: String,
    /// Its addresses: at most one of each family.
    pub instance_ip_cidrs: Vec<IpInet>,
    /// Ports of the node that lead to it.
    pub ports: Vec<Port>,
    /// How fast it may be.
    pub bandwidth: Option<Bandwidth>,
}

impl SetupInstanceRequest {
    /// An instance with this address.
    pub fn new(
        node_id: impl Into<String>,
        node_ip_addr: impl Into<IpAddr>,
        instance_id: impl Into<String>,
        instance_ip_cidr: impl Into<IpInet>,
        ports: Vec<Port>,
    ) -> Self {
        Self {
            node_id: node_id.into(),
            node_ip_addr: node_ip_addr.into(),
            instance_id: instance_id.into(),
            instance_ip_cidrs: vec![instance_ip_cidr.into()],
            ports,
            bandwidth: None,
        }
    }

    /// Also with an address of the other family.
    #[must_use]
    pub fn with_instance_ip(mut self, instance_ip_cidr: impl Into<IpInet>) -> Self {
        self.instance_ip_cidrs.push(instance_ip_cidr.into());
        self
    }

    /// No faster than this.
    #[must_use]
    pub fn with_bandwidth(mut self, bandwidth: Bandwidth) -> Self {
        self.bandwidth = Some(bandwidth);
        self
    }
}

/// What was set up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetupInstanceResponse {
    /// The name of the instance's default interface, in its namespace.
    pub interface_name: String,
    /// The name of its namespace, as `ip netns` lists it.
    pub namespace_name: String,
}

/// Which instance should go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CleanInstanceRequest {
    /// Its ID.
    pub instance_id: String,
    /// Its ports. What is on record counts; these are for instances that are on none.
    pub ports: Vec<Port>,
    /// Its address, likewise.
    pub instance_ip_cidr: IpInet,
}

impl CleanInstanceRequest {
    /// This one.
    pub fn new(
        instance_id: impl Into<String>,
        ports: Vec<Port>,
        instance_ip_cidr: impl Into<IpInet>,
    ) -> Self {
        let instance_ip_cidr = instance_ip_cidr.into();
        Self { instance_id: instance_id.into(), ports, instance_ip_cidr }
    }
}

/// Sets an instance up: namespace, interface, addresses, routes and published ports.
///
/// ```
/// # let _machine = telaio_testkit::machine::become_one().unwrap();
/// # use telaio_pod_network::node::{SetupNodeRequest, setup_node};
/// use std::net::Ipv4Addr;
/// use std::str::FromStr;
///
/// use cidr::Ipv4Inet;
/// use telaio_pod_network::Port;
/// use telaio_pod_network::instance::{SetupInstanceRequest, setup_instance};
/// # let own = Ipv4Inet::new(Ipv4Addr::new(10, 0, 0, 1), 24).unwrap();
/// # setup_node(SetupNodeRequest::new("node", own, Vec::new())).unwrap();
///
/// let node_id = "node";
/// let node_ip_addr = Ipv4Addr::from_str("10.0.0.1").unwrap();
/// let instance_id = "instance";
/// let instance_ip_addr = Ipv4Addr::from_str("10.0.0.2").unwrap();
/// let instance_ip_cidr = Ipv4Inet::new(instance_ip_addr, 24).unwrap();
/// let ports = vec![Port::new(80, 8080)];
///
/// let request = SetupInstanceRequest::new(
///     node_id.to_string(),
///     node_ip_addr,
///     instance_id.to_string(),
///     instance_ip_cidr,
///     ports,
/// );
/// let response = setup_instance(request).unwrap();
/// println!("Instance default interface: {}", response.interface_name);
/// println!("Network namespace: {}", response.namespace_name);
/// ```
#[expect(clippy::needless_pass_by_value, reason = "the interface that callers know")]
pub fn setup_instance(request: SetupInstanceRequest) -> Result<SetupInstanceResponse> {
    Host::default().setup_instance(&request)
}

/// Cleans an instance up: nothing of it is left.
///
/// ```
/// # let _machine = telaio_testkit::machine::become_one().unwrap();
/// use std::net::Ipv4Addr;
/// use std::str::FromStr;
///
/// use cidr::Ipv4Inet;
/// use telaio_pod_network::Port;
/// use telaio_pod_network::instance::{CleanInstanceRequest, clean_instance};
///
/// let instance_id = "instance";
/// let instance_ip_addr = Ipv4Addr::from_str("10.0.0.2").unwrap();
/// let instance_ip_cidr = Ipv4Inet::new(instance_ip_addr, 24).unwrap();
/// let ports = vec![Port::new(80, 8080)];
/// let request = CleanInstanceRequest::new(
///     instance_id.to_string(),
///     ports,
///     instance_ip_cidr,
/// );
/// clean_instance(request).unwrap();
/// ```
#[expect(clippy::needless_pass_by_value, reason = "the interface that callers know")]
pub fn clean_instance(request: CleanInstanceRequest) -> Result<()> {
    Host::default().clean_instance(&request)
}

impl Host {
    /// See [`setup_instance`].
    pub fn setup_instance(&self, request: &SetupInstanceRequest) -> Result<SetupInstanceResponse> {
        let state = self.state()?;
        let lock = state.lock_shared()?;
        let network = state.network(&request.node_id)?.ok_or_else(|| Error::Unknown {
            kind: "node",
            name: request.node_id.clone(),
            hint: "call setup_node first, and setup_iptables after a reboot",
        })?;
        check(&network, request)?;
        let namespace_name = names::namespace(&request.instance_id);
        let response = SetupInstanceResponse {
            interface_name: INTERFACE.to_owned(),
            namespace_name: namespace_name.clone(),
        };
        if is_there(&state, request)? {
            return Ok(response);
        }
        let wanted = Wanted {
            container: &request.instance_id,
            interface: INTERFACE,
            place: Place::Named(&namespace_name),
            addresses: Addresses::Exactly(&request.instance_ip_cidrs),
            ports: &request.ports,
            mac: None,
            bandwidth: request.bandwidth,
            pod: None,
            is_default: true,
            routes: &[],
        };
        let attached = match attach::attach(&state, lock, &network, &wanted) {
            // Another call has set up the very same since we looked.
            Err(Error::InterfaceExists { .. }) if is_there(&state, request)? => {
                return Ok(response);
            }
            attached => attached?,
        };
        attach::settle(&state, &attached)?;
        Ok(response)
    }

    /// See [`clean_instance`].
    pub fn clean_instance(&self, request: &CleanInstanceRequest) -> Result<()> {
        let state = self.state()?;
        for _ in 0..CLEAN_TRIES_MAX {
            let there = recorded(&state, request)?;
            if !there.is_empty() {
                let backs = there.iter().map(|it| attach::take_back(&state, it));
                return Error::all(backs.filter_map(Result::err).collect());
            }
            // Whoever was to make it may have been killed before there was a record of it, or that is lost. With nobody else:
            // what nobody has claimed may be about to be claimed.
            let _lock = state.lock_exclusive()?;
            if !recorded(&state, request)?.is_empty() {
                // Set up between the two looks.
                continue;
            }
            let Some(unknown) = unrecorded(&state, request)? else { return Ok(()) };
            let namespace = attach::remove_netns(&names::namespace(&request.instance_id));
            let back = attach::take_back_lost(&state, &unknown, request.instance_ip_cidr);
            return Error::all(back.err().into_iter().chain(namespace.err()).collect());
        }
        Err(Error::Busy { what: format!("instance {}", request.instance_id) })
    }
}

/// What there are records of, of an instance, on whichever network: its ID says nothing of its node.
fn recorded(state: &State, request: &CleanInstanceRequest) -> Result<Vec<Attachment>> {
    let mut found = Vec::new();
    for network in state.networks()? {
        let key = names::attachment_key(&network.name, &request.instance_id, INTERFACE);
        let Some(record) = state.attachment(&key)? else { continue };
        let unknown = unfinished(&network, request);
        let record = record.map_or_else(|| state.claimed_by(&unknown), |it| Ok(Some(it)))?;
        // A container's of the same ID is its runtime's.
        if record.is_none_or(|record| record.netns_name.is_some()) {
            found.push(unknown);
        }
    }
    Ok(found)
}

/// What records would say that are lost, one for each network; `None` if there is a container of the same ID.
fn unrecorded(state: &State, request: &CleanInstanceRequest) -> Result<Option<Vec<Attachment>>> {
    let mut found = Vec::new();
    for network in state.networks()? {
        let key = names::attachment_key(&network.name, &request.instance_id, INTERFACE);
        let unknown = unfinished(&network, request);
        let claimed = state.claimed_by(&unknown)?;
        if state.attachment(&key)?.is_some() || claimed.is_some_and(|it| it.netns_name.is_none()) {
            return Ok(None);
        }
        found.push(unknown);
    }
    Ok(Some(found))
}

/// What a record would say whose writing was cut short.
fn unfinished(network: &Network, request: &CleanInstanceRequest) -> Attachment {
    let id = &request.instance_id;
    Attachment {
        network: network.name.clone(),
        container: id.clone(),
        interface: INTERFACE.to_owned(),
        netns: String::new(),
        netns_name: Some(names::namespace(id)),
        host_link: names::host_link(&network.name, id, INTERFACE, 0),
        is_routed: false,
        is_chained: false,
        is_going: false,
        asked_mac: None,
        mac: String::new(),
        addresses: Vec::new(),
        ports: request.ports.clone(),
        bandwidth: None,
        pod: None,
    }
}

fn check(network: &Network, request: &SetupInstanceRequest) -> Result<()> {
    let invalid = |field, why: String| Err(Error::Invalid { field, why });
    if request.instance_id.is_empty() {
        return invalid("instance_id", "an instance needs an ID".to_owned());
    }
    let own = |ip: IpAddr| network.subnets.iter().any(|subnet| subnet.gateway == Some(ip));
    if !own(request.node_ip_addr) {
        let why = format!("{} is not the address of node {}", request.node_ip_addr, network.name);
        return invalid("node_ip_addr", why);
    }
    for inet in &request.instance_ip_cidrs {
        let ip = inet.address();
        let home = network.subnets.iter().find(|subnet| subnet.cidr.contains(&ip));
        let is_usable = home.is_some_and(|home| {
            let is_broadcast = ip.is_ipv4() && ip == home.cidr.last_address();
            ip != home.cidr.first_address() && !is_broadcast
        });
        if !is_usable {
            let subnets: Vec<_> = network.subnets.iter().map(|it| it.cidr.to_string()).collect();
            return Err(Error::OutsideRange { address: ip, subnets: subnets.join(", ") });
        }
        if own(ip) {
            let owner = format!("node {}", network.name);
            return Err(Error::AddressTaken { address: ip, network: network.name.clone(), owner });
        }
    }
    Ok(())
}

/// The very same instance is there already, whole. One that differs is refused.
fn is_there(state: &State, request: &SetupInstanceRequest) -> Result<bool> {
    let key = names::attachment_key(&request.node_id, &request.instance_id, INTERFACE);
    let Some(Some(record)) = state.attachment(&key)? else { return Ok(false) };
    if !record.is_whole() || !attach::is_live(&record)? {
        return Ok(false);
    }
    let is_same = record.addresses == request.instance_ip_cidrs
        && record.ports == request.ports
        && record.bandwidth == request.bandwidth;
    if is_same {
        return Ok(true);
    }
    Err(Error::Invalid {
        field: "instance_id",
        why: format!(
            "instance {} is there with other addresses, ports or limits; clean it first",
            request.instance_id
        ),
    })
}
