//! What the backend would make, as the documents that HNS would get.
//!
//! One JSON object: our remote endpoints, our load balancers, and the pods of this node that load balancers
//! name. Those are the CNI plugin's to make, and HNS tells their identities; without HNS they have the ones
//! that we would give.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use telaio_hcn::{Endpoint, Guid, LoadBalancer};

use super::trace::State;

/// The documents, the same for the same input.
pub fn render(state: &State) -> String {
    let ours: BTreeSet<Guid> = state.remote.iter().filter_map(|endpoint| endpoint.id).collect();
    let named: BTreeSet<Guid> =
        state.load_balancers.iter().flat_map(|it| it.endpoints.iter().copied()).collect();
    let pods = state.endpoints.iter().filter(|(id, _)| named.contains(id) && !ours.contains(id));
    let pods: Vec<Value> =
        pods.map(|(id, addresses)| json!({"ID": id, "IpAddresses": addresses})).collect();
    let endpoints: Vec<Value> = state.remote.iter().map(Endpoint::to_document).collect();
    let load_balancers: Vec<Value> =
        state.load_balancers.iter().map(LoadBalancer::to_document).collect();
    let all = json!({
        "Endpoints": endpoints,
        "LoadBalancers": load_balancers,
        "PodsOfThisNode": pods,
    });
    // With a plain value inside, it cannot fail.
    let text = serde_json::to_string_pretty(&all).unwrap_or_default();
    text + "\n"
}
