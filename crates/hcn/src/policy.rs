//! What is attached to networks, subnets and endpoints: HCN's policies.
//!
//! A policy is a `Type` and `Settings`. Those that a service proxy reads or makes have a variant of
//! their own; every other one, and one of a known type whose settings are not as expected, is kept
//! verbatim: a document that is read and written again says the same.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::schema::{self, comma_list, is_zero, text_or_none};
use crate::{MacAddress, NatFlags};

/// A policy as it stands in a document.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct RawPolicy {
    /// Its type's name.
    #[serde(rename = "Type")]
    pub kind: String,
    /// Its settings, whatever they are.
    // The published schema calls them `Data`; HNS and everybody who talks to it, `Settings`.
    #[serde(alias = "Data", default, skip_serializing_if = "Value::is_null")]
    pub settings: Value,
}

/// Declares an enum of policies: those with a variant, and `Other`.
macro_rules! policies {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident($settings:ty) = $kind:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(from = "RawPolicy", into = "RawPolicy")]
        pub enum $name {
            $($(#[$variant_doc])* $variant($settings),)*
            /// Any other, verbatim.
            Other(RawPolicy),
        }

        impl From<RawPolicy> for $name {
            fn from(raw: RawPolicy) -> Self {
                $(
                    if raw.kind.eq_ignore_ascii_case($kind)
                        && let Ok(settings) = schema::shaped(schema::canonical(&raw.settings))
                    {
                        return Self::$variant(settings);
                    }
                )*
                Self::Other(raw)
            }
        }

        impl From<$name> for RawPolicy {
            fn from(policy: $name) -> Self {
                match policy {
                    $($name::$variant(settings) => RawPolicy {
                        kind: $kind.to_owned(),
                        // Plain values: there is nothing in them that JSON cannot say.
                        settings: serde_json::to_value(settings).unwrap_or_default(),
                    },)*
                    $name::Other(raw) => raw,
                }
            }
        }
    };
}

policies! {
    /// What is attached to an endpoint.
    EndpointPolicy {
        /// On an overlay: the node that the endpoint is on.
        ProviderAddress(ProviderAddress) = "ProviderAddress",
        /// Who may talk to it.
        Acl(Acl) = "ACL",
        /// Its traffic that leaves gets another source address.
        OutBoundNat(OutBoundNat) = "OutBoundNAT",
        /// A route for its traffic.
        SdnRoute(SdnRoute) = "SDNRoute",
        /// A port of the node that leads to it.
        PortMapping(NatPortMapping) = "PortMapping",
    }
}

policies! {
    /// What is attached to a network.
    NetworkPolicy {
        /// A subnet of another node, and how to get there.
        RemoteSubnetRoute(RemoteSubnetRoute) = "RemoteSubnetRoute",
        /// The node's address that the network's traffic between nodes has.
        ProviderAddress(ProviderAddress) = "ProviderAddress",
    }
}

policies! {
    /// What is attached to a subnet.
    SubnetPolicy {
        /// The virtual subnet of an overlay.
        Vsid(IsolationId) = "VSID",
        /// The VLAN.
        Vlan(IsolationId) = "VLAN",
    }
}

/// The node behind an endpoint of an overlay.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct ProviderAddress {
    /// The node's own address.
    pub provider_address: IpAddr,
}

/// What tells subnets apart on the wire.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct IsolationId {
    /// The number.
    pub isolation_id: u32,
}

/// A subnet of another node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct RemoteSubnetRoute {
    /// Its addresses.
    pub destination_prefix: IpNet,
    /// Its virtual subnet.
    pub isolation_id: u32,
    /// The node's own address.
    pub provider_address: IpAddr,
    /// The Ethernet address of that node's router.
    #[serde(with = "text_or_none", default, skip_serializing_if = "Option::is_none")]
    pub distributed_router_mac_address: Option<MacAddress>,
}

/// Whether a rule lets traffic pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum AclAction {
    /// It passes.
    Allow,
    /// It is dropped.
    Block,
    /// The next tier decides.
    Pass,
}

/// Which traffic a rule is about, seen from the endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum AclDirection {
    /// To it.
    In,
    /// From it.
    Out,
}

/// Where a rule is enforced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum AclRuleType {
    /// In the host's firewall.
    Host,
    /// In the virtual switch.
    Switch,
}

/// A rule about who may talk to an endpoint. An empty list means any.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Acl {
    /// Protocols by number: 6 is TCP, 17 UDP.
    #[serde(with = "comma_list", default, skip_serializing_if = "Vec::is_empty")]
    pub protocols: Vec<u8>,
    /// Pass or drop.
    pub action: AclAction,
    /// To the endpoint or from it.
    pub direction: AclDirection,
    /// Addresses and networks of this side.
    #[serde(with = "comma_list", default, skip_serializing_if = "Vec::is_empty")]
    pub local_addresses: Vec<String>,
    /// Addresses and networks of the other side.
    #[serde(with = "comma_list", default, skip_serializing_if = "Vec::is_empty")]
    pub remote_addresses: Vec<String>,
    /// Ports and ranges (`8000-8010`) of this side.
    #[serde(with = "comma_list", default, skip_serializing_if = "Vec::is_empty")]
    pub local_ports: Vec<String>,
    /// Ports and ranges of the other side.
    #[serde(with = "comma_list", default, skip_serializing_if = "Vec::is_empty")]
    pub remote_ports: Vec<String>,
    /// Where it is enforced; HNS's choice if not said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule_type: Option<AclRuleType>,
    /// Lower ones come first; zero is HNS's choice.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub priority: u16,
}

/// Another source address for traffic that leaves.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct OutBoundNat {
    /// The address; the node's own if not said.
    #[serde(
        rename = "VirtualIP",
        with = "text_or_none",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub virtual_ip: Option<IpAddr>,
    /// Not for traffic to these.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exceptions: Vec<String>,
    /// Only for traffic to these.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub destinations: Vec<String>,
    /// What is special about it.
    #[serde(default, skip_serializing_if = "NatFlags::is_none")]
    pub flags: NatFlags,
}

/// A route for an endpoint's traffic.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct SdnRoute {
    /// Where to.
    pub destination_prefix: IpNet,
    /// By way of; straight if not said.
    #[serde(with = "text_or_none", default, skip_serializing_if = "Option::is_none")]
    pub next_hop: Option<IpAddr>,
    /// Whether it is wrapped for the overlay.
    #[serde(default)]
    pub need_encap: bool,
}

/// A port of the node that leads to an endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct NatPortMapping {
    /// 6 is TCP, 17 UDP.
    pub protocol: u32,
    /// The endpoint's.
    pub internal_port: u16,
    /// The node's.
    pub external_port: u16,
    /// The node's address; any if not said.
    #[serde(
        rename = "VIP",
        with = "text_or_none",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub vip: Option<IpAddr>,
    /// What is special about it.
    #[serde(default, skip_serializing_if = "NatFlags::is_none")]
    pub flags: NatFlags,
}

/// What is to happen to an object's policies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum RequestType {
    /// They come in addition.
    Add,
    /// They go.
    Remove,
    /// They replace all of their types.
    Update,
}

/// A change of a network's or an endpoint's policies: the document of a modify call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyChange<P> {
    /// What is to happen.
    pub request: RequestType,
    /// To these.
    pub policies: Vec<P>,
}

impl<P: Serialize> PolicyChange<P> {
    /// The document of the modify call.
    pub fn document(&self) -> Value {
        serde_json::json!({
            "ResourceType": "Policy",
            "RequestType": self.request,
            "Settings": { "Policies": self.policies },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(document: Value) -> EndpointPolicy {
        serde_json::from_value(document).unwrap()
    }

    #[test]
    fn a_known_policy_is_read_whatever_its_case() {
        let policy =
            read(json!({"Type": "provideraddress", "Settings": {"providerAddress": "10.0.0.7"}}));
        let wanted = ProviderAddress { provider_address: "10.0.0.7".parse().unwrap() };
        assert_eq!(policy, EndpointPolicy::ProviderAddress(wanted));
    }

    #[test]
    fn an_unknown_policy_and_unexpected_settings_are_kept_verbatim() {
        for document in [
            json!({"Type": "L4WFPPROXY", "Settings": {"UserSID": "S-1", "name": null}}),
            json!({"Type": "ProviderAddress", "Settings": {"ProviderAddress": "no address"}}),
            json!({"Type": "L2Driver"}),
        ] {
            let policy = read(document.clone());
            assert!(matches!(policy, EndpointPolicy::Other(_)), "{policy:?}");
            assert_eq!(serde_json::to_value(policy).unwrap(), document);
        }
    }

    #[test]
    fn lists_in_one_text_are_taken_apart_and_put_together() {
        let document = json!({"Type": "ACL", "Settings": {
            "Protocols": "6,17", "Action": "Allow", "Direction": "In",
            "RemoteAddresses": "10.0.0.0/8,192.0.2.1", "LocalPorts": "80,8000-8010",
            "RuleType": "Switch", "Priority": 100,
        }});
        let policy = read(document.clone());
        let EndpointPolicy::Acl(acl) = &policy else { panic!("{policy:?}") };
        assert_eq!(acl.protocols, [6, 17]);
        assert_eq!(acl.local_ports, ["80", "8000-8010"]);
        assert_eq!(serde_json::to_value(policy).unwrap(), document);
    }
}
