//! Load balancers: HCN's `HostComputeLoadBalancer`.

use std::collections::BTreeSet;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::schema::{self, DocumentError, text_or_none};
use crate::{Guid, LoadBalancerFlags, PortMappingFlags};

/// A load balancer: packets to its addresses and ports go to one of its endpoints.
///
/// Endpoints and addresses are sets: HNS gives them back in whatever order. Equality covers every
/// member: another target port or source address is another load balancer.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct LoadBalancer {
    /// Its identity; none if HNS is to choose.
    #[serde(rename = "ID", default, skip_serializing_if = "Option::is_none")]
    pub id: Option<Guid>,
    /// The endpoints that traffic goes to.
    #[serde(rename = "HostComputeEndpoints", default, skip_serializing_if = "BTreeSet::is_empty")]
    pub endpoints: BTreeSet<Guid>,
    /// The source that traffic gets where it has to come back through this node (overlay).
    #[serde(
        rename = "SourceVIP",
        with = "text_or_none",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub source_vip: Option<IpAddr>,
    /// The addresses that it answers on; none means the node's own, for node ports.
    #[serde(rename = "FrontendVIPs", default, skip_serializing_if = "BTreeSet::is_empty")]
    pub frontend_vips: BTreeSet<IpAddr>,
    /// The ports that it answers on. HNS takes one target port for each load balancer.
    pub port_mappings: Vec<PortMapping>,
    /// What is special about it.
    #[serde(default, skip_serializing_if = "LoadBalancerFlags::is_none")]
    pub flags: LoadBalancerFlags,
}

/// One port of a load balancer.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct PortMapping {
    /// 6 is TCP, 17 UDP.
    pub protocol: u32,
    /// The endpoints'.
    pub internal_port: u16,
    /// The one that clients use.
    pub external_port: u16,
    /// Which traffic stays with one endpoint.
    #[serde(default, skip_serializing_if = "Distribution::is_connection")]
    pub distribution_type: Distribution,
    /// What is special about it.
    #[serde(default, skip_serializing_if = "PortMappingFlags::is_none")]
    pub flags: PortMappingFlags,
}

/// TCP's number.
pub const PROTOCOL_TCP: u32 = 6;
/// UDP's number.
pub const PROTOCOL_UDP: u32 = 17;

/// Which traffic stays with one endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub enum Distribution {
    /// Each connection for itself.
    #[default]
    Connection,
    /// All of a client's traffic of the same protocol.
    SourceIpProtocol,
    /// All of a client's traffic: session affinity.
    SourceIp,
}

impl Distribution {
    /// Whether it is the default.
    #[allow(clippy::trivially_copy_pass_by_ref, reason = "serde's calling convention")]
    fn is_connection(&self) -> bool {
        *self == Self::Connection
    }
}

impl From<Distribution> for u32 {
    fn from(distribution: Distribution) -> Self {
        match distribution {
            Distribution::Connection => 0,
            Distribution::SourceIpProtocol => 1,
            Distribution::SourceIp => 2,
        }
    }
}

impl TryFrom<u32> for Distribution {
    type Error = String;

    fn try_from(number: u32) -> Result<Self, String> {
        match number {
            0 => Ok(Self::Connection),
            1 => Ok(Self::SourceIpProtocol),
            2 => Ok(Self::SourceIp),
            other => Err(format!("DistributionType {other} is not known")),
        }
    }
}

impl PortMapping {
    fn label(&self) -> String {
        match self.protocol {
            PROTOCOL_TCP => format!("{}/tcp", self.external_port),
            PROTOCOL_UDP => format!("{}/udp", self.external_port),
            other => format!("{}/{other}", self.external_port),
        }
    }
}

impl LoadBalancer {
    /// The document that creates it, or that modifies it to this.
    pub fn to_document(&self) -> Value {
        schema::to_document(self)
    }

    /// Reads HNS's document of it.
    pub fn from_document(document: &Value) -> Result<Self, DocumentError> {
        let load_balancer: Self = schema::from_document(document)?;
        load_balancer.id.ok_or(DocumentError::Missing("ID"))?;
        Ok(load_balancer)
    }

    /// How people know it: its addresses and ports, as in `10.96.0.10:80/tcp`; node ports have `*`.
    pub fn label(&self) -> String {
        let addresses: Vec<_> = self.frontend_vips.iter().map(ToString::to_string).collect();
        let addresses = if addresses.is_empty() { "*".to_owned() } else { addresses.join(",") };
        let ports: Vec<_> = self.port_mappings.iter().map(PortMapping::label).collect();
        format!("{addresses}:{}", ports.join(","))
    }

    /// Whether `there`, as HNS has it, is what asking for `self` gives: only an identity that `self`
    /// leaves to HNS may differ.
    pub fn is_satisfied_by(&self, there: &Self) -> bool {
        let mut asked = self.clone();
        asked.id = asked.id.or(there.id);
        asked == *there
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn document() -> Value {
        json!({
            "ID": "0be07c06-353c-4fbf-8ebc-5531f877e68a",
            "HostComputeEndpoints": ["FD6BEC0F-7B88-4B61-B5AF-70897AB0960B"],
            "SourceVIP": "10.10.253.194",
            "FrontendVIPs": ["10.96.0.10"],
            "PortMappings": [{"Protocol": 6, "InternalPort": 80, "ExternalPort": 31416, "Flags": 2}],
            "SchemaVersion": {"Major": 2, "Minor": 0},
        })
    }

    #[test]
    fn every_member_that_is_programmed_counts_for_equality() {
        let one = LoadBalancer::from_document(&document()).unwrap();
        let changes: [fn(&mut LoadBalancer); 9] = [
            |lb| lb.endpoints.clear(),
            |lb| lb.source_vip = None,
            |lb| lb.frontend_vips.clear(),
            |lb| lb.flags = LoadBalancerFlags::DSR,
            |lb| lb.port_mappings[0].protocol = PROTOCOL_UDP,
            |lb| lb.port_mappings[0].internal_port = 8080,
            |lb| lb.port_mappings[0].external_port = 31417,
            |lb| lb.port_mappings[0].distribution_type = Distribution::SourceIp,
            |lb| lb.port_mappings[0].flags = PortMappingFlags::NONE,
        ];
        for change in changes {
            let mut other = one.clone();
            change(&mut other);
            assert_ne!(one, other);
            assert!(!other.is_satisfied_by(&one));
        }
        let asked = LoadBalancer { id: None, ..one.clone() };
        assert!(asked.is_satisfied_by(&one));
    }

    #[test]
    fn what_is_missing_or_wrong_is_named() {
        type Change = fn(&mut Value);
        let cases: [(Change, &str); 6] = [
            (|d| drop(d.as_object_mut().unwrap().remove("ID")), "ID"),
            (|d| drop(d.as_object_mut().unwrap().remove("PortMappings")), "PortMappings"),
            (|d| d["PortMappings"][0] = json!({"Protocol": 6}), "InternalPort"),
            (|d| d["PortMappings"][0]["DistributionType"] = json!(9), "DistributionType 9"),
            (|d| d["HostComputeEndpoints"] = json!(["nobody"]), "nobody"),
            (|d| d["SchemaVersion"]["Major"] = json!(1), "1.0"),
        ];
        for (change, wanted) in cases {
            let mut document = document();
            change(&mut document);
            let error = LoadBalancer::from_document(&document).unwrap_err().to_string();
            assert!(error.contains(wanted), "{error}");
        }
    }
}
