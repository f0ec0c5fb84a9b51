//! Networks: HCN's `HostComputeNetwork`.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::schema::{self, DocumentError, is_zero, text_or_none};
use crate::{Guid, MacAddress, NetworkFlags, NetworkPolicy, SubnetPolicy};

/// A network: a virtual switch, its subnets and how its traffic gets to other nodes.
///
/// A service proxy makes none; it finds the one that pods are on and reads it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Network {
    /// Its identity; none before HNS gave it one.
    #[serde(rename = "ID", default, skip_serializing_if = "Option::is_none")]
    pub id: Option<Guid>,
    /// Its name, unique on the node.
    pub name: String,
    /// Who made it, in their own words.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub owner: String,
    /// How its traffic gets to other nodes.
    #[serde(rename = "Type")]
    pub kind: NetworkType,
    /// What is attached to it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub policies: Vec<NetworkPolicy>,
    /// The Ethernet addresses that its endpoints get.
    #[serde(default, skip_serializing_if = "MacPool::is_empty")]
    pub mac_pool: MacPool,
    /// How names are resolved on it.
    #[serde(default, skip_serializing_if = "Dns::is_empty")]
    pub dns: Dns,
    /// Its subnets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ipams: Vec<Ipam>,
    /// What is special about it.
    #[serde(default, skip_serializing_if = "NetworkFlags::is_none")]
    pub flags: NetworkFlags,
}

impl Network {
    /// The document that creates it.
    pub fn to_document(&self) -> Value {
        schema::to_document(self)
    }

    /// Reads HNS's document of it.
    pub fn from_document(document: &Value) -> Result<Self, DocumentError> {
        let network: Self = schema::from_document(document)?;
        network.id.ok_or(DocumentError::Missing("ID"))?;
        Ok(network)
    }

    /// All its subnets.
    pub fn subnets(&self) -> impl Iterator<Item = &Subnet> {
        self.ipams.iter().flat_map(|ipam| &ipam.subnets)
    }
}

/// How a network's traffic gets to other nodes.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum NetworkType {
    /// Behind the node's address.
    #[default]
    Nat,
    /// Internet connection sharing.
    Ics,
    /// On the node's own segment, with addresses of that segment.
    Transparent,
    /// On the node's own segment, with the node's Ethernet address: pods are routed to.
    L2Bridge,
    /// As `L2Bridge`, with all traffic by way of the physical switch.
    L2Tunnel,
    /// Wrapped in VXLAN.
    Overlay,
    /// Not at all.
    Private,
    /// Between endpoints and the node only.
    Internal,
    /// One that we do not know.
    Other(String),
}

/// Every known type with its name.
const TYPES: [(NetworkType, &str); 8] = [
    (NetworkType::Nat, "NAT"),
    (NetworkType::Ics, "ICS"),
    (NetworkType::Transparent, "Transparent"),
    (NetworkType::L2Bridge, "L2Bridge"),
    (NetworkType::L2Tunnel, "L2Tunnel"),
    (NetworkType::Overlay, "Overlay"),
    (NetworkType::Private, "Private"),
    (NetworkType::Internal, "Internal"),
];

impl From<String> for NetworkType {
    fn from(text: String) -> Self {
        // HNS's versions spell it differently: L2Bridge, l2bridge.
        let known = TYPES.iter().find(|(_, name)| name.eq_ignore_ascii_case(&text));
        known.map_or(Self::Other(text), |(kind, _)| kind.clone())
    }
}

impl From<NetworkType> for String {
    fn from(kind: NetworkType) -> Self {
        kind.to_string()
    }
}

impl fmt::Display for NetworkType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Self::Other(name) = self {
            return f.write_str(name);
        }
        let known = TYPES.iter().find(|(kind, _)| kind == self);
        f.write_str(known.map_or("", |(_, name)| name))
    }
}

/// Ranges of Ethernet addresses.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct MacPool {
    /// The ranges.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ranges: Vec<MacRange>,
}

impl MacPool {
    /// Whether there is no range in it.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }
}

/// A range of Ethernet addresses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct MacRange {
    /// The first.
    pub start_mac_address: MacAddress,
    /// The last.
    pub end_mac_address: MacAddress,
}

/// How names are resolved.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Dns {
    /// The connection's own suffix.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub suffix: String,
    /// Further suffixes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub search: Vec<String>,
    /// The servers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub server_list: Vec<String>,
    /// The resolver's options.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
}

impl Dns {
    /// Whether it says nothing.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Subnets, and how their addresses are given.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Ipam {
    /// `Static` or `DHCP`; HNS's choice if empty.
    #[serde(rename = "Type", default, skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// The subnets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub subnets: Vec<Subnet>,
}

/// A subnet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Subnet {
    /// Its addresses.
    pub ip_address_prefix: IpNet,
    /// What is attached to it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub policies: Vec<SubnetPolicy>,
    /// Its routes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub routes: Vec<Route>,
}

/// A route of a subnet or an endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Route {
    /// By way of; straight if not said.
    #[serde(with = "text_or_none", default, skip_serializing_if = "Option::is_none")]
    pub next_hop: Option<IpAddr>,
    /// Where to.
    pub destination_prefix: IpNet,
    /// Lower ones come first.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub metric: u16,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_network_without_identity_name_or_type_is_refused() {
        let whole = json!({"ID": Guid::NIL, "Name": "vxlan0", "Type": "overlay"});
        assert_eq!(Network::from_document(&whole).unwrap().kind, NetworkType::Overlay);
        for name in ["ID", "Name", "Type"] {
            let mut document = whole.clone();
            document.as_object_mut().unwrap().remove(name);
            let error = Network::from_document(&document).unwrap_err();
            assert!(error.to_string().contains(name), "{error}");
        }
    }

    #[test]
    fn a_type_that_nobody_knows_keeps_its_name() {
        let kind: NetworkType = serde_json::from_value(json!("Mesh")).unwrap();
        assert_eq!(kind, NetworkType::Other("Mesh".into()));
        assert_eq!(serde_json::to_value(kind).unwrap(), json!("Mesh"));
    }
}
