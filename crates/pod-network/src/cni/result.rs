//! The result of an ADD.

use serde_json::{Map, Value, json};

use super::config::Config;
use crate::attach::Attached;

/// In the form of the version that was asked for.
pub(super) fn of(config: &Config, attached: &Attached, dns: &Value) -> Value {
    let record = &attached.record;
    let is_new = config.cni_version == "1.1.0";
    let interface = |name: &str, mac: String, sandbox: Option<&str>| {
        let mut value = Map::new();
        value.insert("name".to_owned(), name.into());
        value.insert("mac".to_owned(), mac.into());
        if is_new {
            value.insert("mtu".to_owned(), attached.mtu.into());
        }
        if let Some(sandbox) = sandbox {
            value.insert("sandbox".to_owned(), sandbox.into());
        }
        Value::Object(value)
    };
    let bridge_mac = attached.bridge_mac.map(|mac| mac.to_string()).unwrap_or_default();
    let interfaces = json!([
        interface(config.bridge(), bridge_mac, None),
        interface(&record.host_link, attached.host_mac.to_string(), None),
        interface(&record.interface, record.mac.clone(), Some(&record.netns)),
    ]);
    let ips: Vec<Value> = record
        .addresses
        .iter()
        .zip(&attached.gateways)
        .map(|(inet, gateway)| {
            let mut ip = json!({ "address": with_length(inet), "interface": 2 });
            if let Some(gateway) = gateway {
                ip["gateway"] = gateway.to_string().into();
            }
            // Versions before 1.0 say the family beside.
            if config.cni_version.starts_with("0.") {
                ip["version"] = if inet.is_ipv4() { "4" } else { "6" }.into();
            }
            ip
        })
        .collect();
    let mut result = json!({
        "cniVersion": config.cni_version,
        "interfaces": interfaces,
        "dns": dns,
    });
    if !ips.is_empty() {
        result["ips"] = ips.into();
    }
    let routes = routes(config, attached);
    if !routes.is_empty() {
        result["routes"] = routes.into();
    }
    result
}

/// Ours after those of plugins before us in the chain.
pub(super) fn after(previous: &Value, mut own: Value) -> Value {
    let list = |value: &Value, key: &str| value[key].as_array().cloned().unwrap_or_default();
    let before = list(previous, "interfaces").len();
    let mut ips = list(&own, "ips");
    for ip in &mut ips {
        if let Some(index) = ip["interface"].as_u64() {
            ip["interface"] = (index + before as u64).into();
        }
    }
    own["ips"] = ips.into();
    for key in ["interfaces", "ips", "routes"] {
        let all: Vec<Value> = list(previous, key).into_iter().chain(list(&own, key)).collect();
        if key != "routes" || !all.is_empty() {
            own[key] = all.into();
        }
    }
    if own["dns"] == json!({}) && previous["dns"].is_object() {
        own["dns"] = previous["dns"].clone();
    }
    own
}

/// With the length also where it is that of a single address.
pub(super) fn with_length(inet: &cidr::IpInet) -> String {
    format!("{}/{}", inet.address(), inet.network_length())
}

fn routes(config: &Config, attached: &Attached) -> Vec<Value> {
    let mut routes: Vec<Value> = Vec::new();
    for route in &config.ipam.routes {
        let mut value = json!({ "dst": route.dst });
        if !route.gw.is_empty() {
            value["gw"] = route.gw.clone().into();
        }
        routes.push(value);
    }
    if config.is_default_gateway {
        for gateway in attached.gateways.iter().flatten() {
            let dst = if gateway.is_ipv4() { "0.0.0.0/0" } else { "::/0" };
            let is_there = routes.iter().any(|route| route["dst"] == dst);
            if !is_there {
                routes.push(json!({ "dst": dst, "gw": gateway.to_string() }));
            }
        }
    }
    routes
}
