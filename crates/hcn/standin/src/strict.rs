//! Documents as the published schema has them, and not a bit otherwise.
//!
//! HNS forgives; the stand-in does not, so that what we send is right by the letter: no unknown member,
//! no missing one, schema version 2.0, identities, addresses, ports and flags of the right form.

use std::net::IpAddr;

use serde_json::{Map, Value};
use telaio_hcn::{Guid, MacAddress, ObjectKind};

type Check = fn(&Value) -> bool;

/// A member: its name, whether it must be there, and what it may be.
type Member = (&'static str, bool, Check);

const NETWORK: &[Member] = &[
    ("ID", false, is_guid),
    ("Name", true, is_text),
    ("Owner", false, is_text),
    ("Type", true, is_network_type),
    ("Policies", false, are_policies),
    ("MacPool", false, is_mac_pool),
    ("Dns", false, is_dns),
    ("Ipams", false, are_ipams),
    ("Flags", false, is_flags),
    ("SchemaVersion", true, is_v2),
];
const ENDPOINT: &[Member] = &[
    ("ID", false, is_guid),
    ("Name", false, is_text),
    ("Owner", false, is_text),
    ("HostComputeNetwork", true, is_guid),
    ("HostComputeNamespace", false, is_guid),
    ("Policies", false, are_policies),
    ("IpConfigurations", false, are_ip_configurations),
    ("Dns", false, is_dns),
    ("Routes", false, are_routes),
    ("MacAddress", false, is_mac),
    ("Flags", false, is_flags),
    ("SchemaVersion", true, is_v2),
];
const LOAD_BALANCER: &[Member] = &[
    ("ID", false, is_guid),
    ("HostComputeEndpoints", true, |v| are(v, is_guid)),
    ("SourceVIP", false, is_ip),
    ("FrontendVIPs", false, |v| are(v, is_ip)),
    ("PortMappings", true, are_port_mappings),
    ("Flags", false, is_flags),
    ("SchemaVersion", true, is_v2),
];
const QUERY: &[Member] =
    &[("SchemaVersion", true, is_v2), ("Filter", false, is_filter), ("Flags", false, is_flags)];
const CHANGE: &[Member] = &[
    ("ResourceType", true, |v| is_one_of(v, &["Policy"])),
    ("RequestType", true, |v| is_one_of(v, &["Add", "Remove", "Update"])),
    ("Settings", true, |v| is(v, &[("Policies", true, are_policies)])),
];

/// Checks the settings of a create call.
pub(crate) fn settings(kind: ObjectKind, document: &Value) -> Result<(), String> {
    members(
        document,
        match kind {
            ObjectKind::Network => NETWORK,
            ObjectKind::Endpoint => ENDPOINT,
            _ => LOAD_BALANCER,
        },
    )
}

/// Checks the settings of a modify call: load balancers take their whole document.
pub(crate) fn modification(kind: ObjectKind, document: &Value) -> Result<(), String> {
    members(document, if kind == ObjectKind::LoadBalancer { LOAD_BALANCER } else { CHANGE })
}

/// Checks a query.
pub(crate) fn query(document: &Value) -> Result<(), String> {
    members(document, QUERY)
}

fn members(document: &Value, allowed: &[Member]) -> Result<(), String> {
    let object = document.as_object().ok_or("not an object")?;
    if let Some(unknown) =
        object.keys().find(|name| !allowed.iter().any(|(known, ..)| known == name))
    {
        return Err(format!("{unknown} is not in the schema"));
    }
    for (name, required, check) in allowed {
        match object.get(*name) {
            Some(value) if check(value) => {}
            Some(value) => return Err(format!("{name} may not be {value}")),
            None if *required => return Err(format!("{name} is missing")),
            None => {}
        }
    }
    Ok(())
}

fn is(value: &Value, allowed: &[Member]) -> bool {
    members(value, allowed).is_ok()
}

fn are(value: &Value, check: Check) -> bool {
    value.as_array().is_some_and(|items| !items.is_empty() && items.iter().all(check))
}

fn is_text(value: &Value) -> bool {
    value.as_str().is_some_and(|text| !text.is_empty())
}

fn is_one_of(value: &Value, allowed: &[&str]) -> bool {
    value.as_str().is_some_and(|text| allowed.contains(&text))
}

fn is_guid(value: &Value) -> bool {
    value.as_str().is_some_and(|text| text.parse::<Guid>().is_ok_and(|guid| !guid.is_nil()))
}

fn is_ip(value: &Value) -> bool {
    value.as_str().is_some_and(|text| text.parse::<IpAddr>().is_ok())
}

fn is_mac(value: &Value) -> bool {
    value
        .as_str()
        .is_some_and(|text| text.parse::<MacAddress>().is_ok_and(|mac| mac.to_string() == text))
}

fn is_prefix(value: &Value) -> bool {
    let Some((ip, length)) = value.as_str().and_then(|text| text.split_once('/')) else {
        return false;
    };
    let (Ok(ip), Ok(length)) = (ip.parse::<IpAddr>(), length.parse::<u8>()) else { return false };
    length <= if ip.is_ipv4() { 32 } else { 128 }
}

fn is_flags(value: &Value) -> bool {
    value.as_u64().is_some_and(|bits| bits > 0 && u32::try_from(bits).is_ok())
}

fn is_port(value: &Value) -> bool {
    value.as_u64().is_some_and(|port| (1..=65535).contains(&port))
}

fn is_up_to(value: &Value, most: u64) -> bool {
    value.as_u64().is_some_and(|number| number <= most)
}

fn is_v2(value: &Value) -> bool {
    *value == serde_json::json!({"Major": 2, "Minor": 0})
}

fn is_network_type(value: &Value) -> bool {
    is_one_of(
        value,
        &["NAT", "ICS", "Transparent", "L2Bridge", "L2Tunnel", "Overlay", "Private", "Internal"],
    )
}

fn are_policies(value: &Value) -> bool {
    are(value, |policy| {
        is(policy, &[("Type", true, is_text), ("Settings", false, Value::is_object)])
    })
}

fn is_dns(value: &Value) -> bool {
    let list: Check = |value| are(value, is_text);
    is(
        value,
        &[
            ("Suffix", false, is_text),
            ("Search", false, list),
            ("ServerList", false, list),
            ("Options", false, list),
        ],
    )
}

fn is_mac_pool(value: &Value) -> bool {
    let range: Check =
        |value| is(value, &[("StartMacAddress", true, is_mac), ("EndMacAddress", true, is_mac)]);
    // A function pointer cannot hold the other; the list is checked here.
    value.get("Ranges").and_then(Value::as_array).is_some_and(|ranges| ranges.iter().all(range))
}

fn are_routes(value: &Value) -> bool {
    are(value, |route| {
        is(
            route,
            &[
                ("NextHop", false, is_ip),
                ("DestinationPrefix", true, is_prefix),
                ("Metric", false, |v| is_up_to(v, 65535)),
            ],
        )
    })
}

fn are_ipams(value: &Value) -> bool {
    are(value, |ipam| {
        is(
            ipam,
            &[
                ("Type", false, |v| is_one_of(v, &["Static", "DHCP"])),
                ("Subnets", true, |v| {
                    are(v, |subnet| {
                        is(
                            subnet,
                            &[
                                ("IpAddressPrefix", true, is_prefix),
                                ("Policies", false, are_policies),
                                ("Routes", false, are_routes),
                            ],
                        )
                    })
                }),
            ],
        )
    })
}

fn are_ip_configurations(value: &Value) -> bool {
    are(value, |configuration| {
        is(
            configuration,
            &[("IpAddress", true, is_ip), ("PrefixLength", false, |v| is_up_to(v, 128))],
        )
    })
}

fn are_port_mappings(value: &Value) -> bool {
    are(value, |mapping| {
        is(
            mapping,
            &[
                ("Protocol", true, |v| is_up_to(v, 255)),
                ("InternalPort", true, is_port),
                ("ExternalPort", true, is_port),
                ("DistributionType", false, |v| is_up_to(v, 2)),
                ("Flags", false, is_flags),
            ],
        )
    })
}

/// A filter is a document as text, with one member.
fn is_filter(value: &Value) -> bool {
    let Some(Ok(filter)) = value.as_str().map(serde_json::from_str::<Map<String, Value>>) else {
        return false;
    };
    let mut members = filter.iter();
    match (members.next(), members.next()) {
        (Some((name, value)), None) => match name.as_str() {
            "ID" | "VirtualNetwork" => is_guid(value),
            "Name" => value.is_string(),
            _ => false,
        },
        _ => false,
    }
}
