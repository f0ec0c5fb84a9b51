//! Endpoints: HCN's `HostComputeEndpoint`.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::schema::{self, DocumentError, is_zero, text_or_none};
use crate::{Dns, EndpointFlags, EndpointPolicy, Guid, MacAddress, Route};

/// An endpoint: a port of the virtual switch, or, if it is remote, the knowledge that an address lives
/// on another node.
///
/// Equality covers every member. What HNS fills in by itself makes what is read differ from what was
/// asked for; [`Endpoint::is_satisfied_by`] allows for that.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Endpoint {
    /// Its identity; none if HNS is to choose.
    #[serde(rename = "ID", default, skip_serializing_if = "Option::is_none")]
    pub id: Option<Guid>,
    /// Its name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Who made it, in their own words.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub owner: String,
    /// The network that it is on.
    #[serde(rename = "HostComputeNetwork")]
    pub network: Guid,
    /// The compartment that it is attached to.
    #[serde(
        rename = "HostComputeNamespace",
        with = "text_or_none",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub namespace: Option<Guid>,
    /// What is attached to it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub policies: Vec<EndpointPolicy>,
    /// Its addresses; HNS chooses if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ip_configurations: Vec<IpConfiguration>,
    /// How it resolves names.
    #[serde(default, skip_serializing_if = "Dns::is_empty")]
    pub dns: Dns,
    /// Its routes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub routes: Vec<Route>,
    /// Its Ethernet address; HNS chooses if there is none.
    #[serde(with = "text_or_none", default, skip_serializing_if = "Option::is_none")]
    pub mac_address: Option<MacAddress>,
    /// What is special about it.
    #[serde(default, skip_serializing_if = "EndpointFlags::is_none")]
    pub flags: EndpointFlags,
}

/// An address of an endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct IpConfiguration {
    /// The address.
    pub ip_address: IpAddr,
    /// The length of its subnet's prefix; zero if HNS is to know.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub prefix_length: u8,
}

impl Endpoint {
    /// The document that creates it.
    pub fn to_document(&self) -> Value {
        schema::to_document(self)
    }

    /// Reads HNS's document of it.
    pub fn from_document(document: &Value) -> Result<Self, DocumentError> {
        let endpoint: Self = schema::from_document(document)?;
        endpoint.id.ok_or(DocumentError::Missing("ID"))?;
        Ok(endpoint)
    }

    /// How people know it: its name, else its addresses.
    pub fn label(&self) -> String {
        if !self.name.is_empty() {
            return self.name.clone();
        }
        let addresses: Vec<_> = self.addresses().map(|address| address.to_string()).collect();
        addresses.join(", ")
    }

    /// Whether it stands for an address on another node.
    pub fn is_remote(&self) -> bool {
        self.flags.contains(EndpointFlags::REMOTE_ENDPOINT)
    }

    /// Its addresses.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.ip_configurations.iter().map(|configuration| configuration.ip_address)
    }

    /// On an overlay: the node that it is on.
    pub fn provider_address(&self) -> Option<IpAddr> {
        self.policies.iter().find_map(|policy| match policy {
            EndpointPolicy::ProviderAddress(policy) => Some(policy.provider_address),
            _ => None,
        })
    }

    /// Whether `there`, as HNS has it, is what asking for `self` gives: what `self` leaves to HNS may
    /// be anything, everything else is equal.
    pub fn is_satisfied_by(&self, there: &Self) -> bool {
        let mut asked = self.clone();
        asked.id = asked.id.or(there.id);
        asked.namespace = asked.namespace.or(there.namespace);
        asked.mac_address = asked.mac_address.or(there.mac_address);
        if asked.name.is_empty() {
            asked.name.clone_from(&there.name);
        }
        if asked.owner.is_empty() {
            asked.owner.clone_from(&there.owner);
        }
        if asked.dns.is_empty() {
            asked.dns.clone_from(&there.dns);
        }
        if asked.routes.is_empty() {
            asked.routes.clone_from(&there.routes);
        }
        if asked.ip_configurations.is_empty() {
            asked.ip_configurations.clone_from(&there.ip_configurations);
        }
        for (asked, there) in asked.ip_configurations.iter_mut().zip(&there.ip_configurations) {
            if asked.prefix_length == 0 {
                asked.prefix_length = there.prefix_length;
            }
        }
        asked == *there
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ProviderAddress;
    use serde_json::json;

    fn asked() -> Endpoint {
        Endpoint {
            network: Guid::from_bytes([7; 16]),
            ip_configurations: vec![IpConfiguration {
                ip_address: "10.244.1.5".parse().unwrap(),
                prefix_length: 0,
            }],
            policies: vec![EndpointPolicy::ProviderAddress(ProviderAddress {
                provider_address: "192.0.2.7".parse().unwrap(),
            })],
            flags: EndpointFlags::REMOTE_ENDPOINT,
            ..Endpoint::default()
        }
    }

    #[test]
    fn what_hns_fills_in_satisfies_and_what_it_changed_does_not() {
        let mut there = asked();
        there.id = Some(Guid::from_bytes([1; 16]));
        there.name = "Ethernet".into();
        there.ip_configurations[0].prefix_length = 24;
        there.mac_address = Some(MacAddress([2; 6]));
        assert_ne!(asked(), there);
        assert!(asked().is_satisfied_by(&there));

        let changes: [fn(&mut Endpoint); 5] = [
            |there| there.flags = EndpointFlags::NONE,
            |there| there.policies.clear(),
            |there| there.network = Guid::NIL,
            |there| there.ip_configurations[0].ip_address = "10.244.1.6".parse().unwrap(),
            |there| there.ip_configurations.clear(),
        ];
        for change in changes {
            let mut there = there.clone();
            change(&mut there);
            assert!(!asked().is_satisfied_by(&there), "{there:?}");
        }
    }

    #[test]
    fn empty_texts_and_missing_members_mean_nothing_said() {
        let document = json!({
            "Id": Guid::from_bytes([1; 16]), "HostComputeNetwork": Guid::from_bytes([7; 16]),
            "MacAddress": "", "HostComputeNamespace": "", "Policies": null, "Health": {"Extra": {}},
        });
        let endpoint = Endpoint::from_document(&document).unwrap();
        assert_eq!(endpoint.mac_address, None);
        assert_eq!(endpoint.policies, []);
        let error = Endpoint::from_document(&json!({"ID": Guid::NIL})).unwrap_err();
        assert!(error.to_string().contains("HostComputeNetwork"), "{error}");
    }
}
