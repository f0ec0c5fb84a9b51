//! The node view, case by case: what kube-proxy would decide, said as addresses and scopes.
//!
//! A line such as `10.0.0.1:80 iecl` reads: this endpoint's port is used for **i**nternal traffic,
//! for **e**xternal traffic, and stands in the **c**luster and in the **l**ocal set. The node is `n1`
//! in zone `z1` unless a test says otherwise.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod overrides;
mod policies;
mod services;
mod slices;
#[path = "../support/mod.rs"]
mod support;
mod topology;
mod wants;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures::FutureExt as _;
use support::follower::Follower;
use support::*;
use telaio_brain::{
    LocalWatch, NodeContext, ServiceState, ServiceView, Store, Wants, service_view,
};
use telaio_model::service::{LABEL_HEADLESS, LABEL_PROXY_NAME};
use telaio_model::{
    AddressType, ClientIpAffinity, Endpoint, EndpointPort, EndpointSlice, Families, IpMode, Kind,
    Node, Object, ObjectRef, OverrideAction, OverrideTarget, Protocol, Service, ServiceType,
    TargetPort,
};

/// A case: a service, its slices and overrides, the node, and what the receiver asked for.
struct Case {
    service: Option<Service>,
    slices: Vec<EndpointSlice>,
    overrides: Vec<telaio_model::Override>,
    node: Option<Node>,
    wants: Wants,
}

fn case(service: Service, slices: impl IntoIterator<Item = EndpointSlice>) -> Case {
    Case {
        service: Some(service),
        slices: slices.into_iter().collect(),
        overrides: vec![],
        node: Some(node("n1", Some("z1"))),
        wants: Wants::default(),
    }
}

/// A case of one slice.
fn one(service: Service, endpoints: impl IntoIterator<Item = Endpoint>) -> Case {
    case(service, [web_slice("web-1", endpoints.into_iter().collect())])
}

impl Case {
    fn on(mut self, node: Option<Node>) -> Self {
        self.node = node;
        self
    }

    fn overridden(mut self, target: OverrideTarget, action: OverrideAction) -> Self {
        let name = format!("o{}", self.overrides.len());
        self.overrides.push(web_override(&name, target, action));
        self
    }

    fn serving_endpoints(mut self) -> Self {
        self.wants.serving_endpoints = true;
        self
    }

    fn all_services(mut self) -> Self {
        self.wants.all_services = true;
        self
    }

    fn try_view(&self) -> Option<ServiceView> {
        let state = ServiceState::new(
            key("web"),
            self.service.clone().map(Arc::new),
            self.slices.iter().cloned().map(Arc::new).collect(),
            self.overrides.iter().cloned().map(Arc::new).collect(),
        );
        let node = NodeContext::new("n1".into(), self.node.as_ref());
        service_view(&state, &node, &self.wants)
    }

    fn view(&self) -> ServiceView {
        self.try_view().expect("the service is in the view")
    }

    /// Every endpoint's use of the port `name`, one line for each address.
    fn port(&self, name: &str) -> Vec<String> {
        let view = self.view();
        let port = view.service.ports.iter().find(|port| &*port.name == name).unwrap();
        let external = self.service.as_ref().unwrap().is_externally_accessible();
        let mut lines = BTreeSet::new();
        for endpoint in view.endpoints.values() {
            let Some((number, scopes)) = endpoint.port_for(port) else { continue };
            let letters = [
                (scopes.internal, 'i'),
                // Without a way in from outside, it does not matter what is said of such traffic.
                (scopes.external && external, 'e'),
                (scopes.cluster, 'c'),
                (scopes.local, 'l'),
            ];
            let letters: String =
                letters.iter().filter(|(set, _)| *set).map(|(_, letter)| letter).collect();
            for address in &endpoint.ips {
                let line = format!("{address}:{number} {letters}");
                assert!(lines.insert(line.clone()), "{line} is there twice");
            }
        }
        lines.into_iter().collect()
    }

    fn http(&self) -> Vec<String> {
        self.port("http")
    }

    fn has_endpoints(&self, name: &str) -> Families {
        let view = self.view();
        view.service.ports.iter().find(|port| &*port.name == name).unwrap().has_endpoints
    }
}

const V4: Families = Families { v4: true, v6: false };
const V6: Families = Families { v4: false, v6: true };
const BOTH: Families = Families { v4: true, v6: true };
const NEITHER: Families = Families { v4: false, v6: false };

fn here(number: u8) -> Endpoint {
    pod(&format!("here-{number}"), &format!("10.0.1.{number}"), "n1")
}

fn there(number: u8) -> Endpoint {
    pod(&format!("there-{number}"), &format!("10.0.2.{number}"), "n2")
}
