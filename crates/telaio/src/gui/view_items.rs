//! Services and endpoints of a view that a brain makes, as lists show them.
//!
//! A view has less than a cluster: neither services that no rules stand for nor endpoints that serve nobody. What
//! it has is what this node goes by.

use std::net::IpAddr;
use std::sync::Arc;

use telaio_gui::values::service::{EndpointItem, EndpointPort};
use telaio_model::{
    IpMode, Kind, LoadBalancerIngress, LocalEndpoint, LocalService, Meta, Object, Override,
    OverrideAction, OverrideTarget, Service, ServiceEndpoints, ServicePort, TargetPort,
    TrafficPolicy,
};
use telaio_reconcile::kpng::State;

/// The overrides of a view.
pub(super) fn overrides(state: &State) -> Vec<Arc<Override>> {
    let all = state.objects_of(Kind::Override).filter_map(|object| match object {
        Object::Override(decided) => Some(Arc::clone(decided)),
        _ => None,
    });
    all.collect()
}

/// A service of a view, as a cluster would have it. It does not say whom it selects.
pub(super) fn service(local: &LocalService) -> Service {
    let policy = |local| if local { TrafficPolicy::Local } else { TrafficPolicy::Cluster };
    let port = |port: &telaio_model::LocalServicePort| ServicePort {
        name: Arc::clone(&port.name),
        protocol: port.protocol,
        port: port.port,
        target_port: match (&port.target_port_name, port.target_port) {
            (Some(name), _) => TargetPort::Name(Arc::clone(name)),
            (None, number) => TargetPort::Number(number.unwrap_or(port.port)),
        },
        node_port: port.node_port,
        app_protocol: port.app_protocol.clone(),
    };
    let vip = |ip: &IpAddr| LoadBalancerIngress { ip: *ip, ip_mode: IpMode::Vip };
    Service {
        meta: Meta {
            labels: local.labels.clone(),
            annotations: local.annotations.clone(),
            ..Meta::named(local.key.clone())
        },
        service_type: local.service_type,
        headless: local.headless,
        cluster_ips: local.cluster_ips.clone(),
        external_ips: local.external_ips.clone(),
        load_balancer: local.load_balancer_ips.iter().map(vip).collect(),
        source_ranges: local.source_ranges.clone(),
        ports: local.ports.iter().map(port).collect(),
        selector: telaio_model::Labels::new(),
        external_traffic_policy: policy(local.external_traffic_to_local),
        internal_traffic_policy: policy(local.internal_traffic_to_local),
        session_affinity: local.session_affinity,
        health_check_node_port: local.health_check_node_port,
        traffic_distribution: None,
        publish_not_ready_addresses: false,
        external_name: local.external_name.clone(),
    }
}

/// The overrides of a service.
pub(super) fn of_service<'a>(
    overrides: &'a [Arc<Override>],
    service: &ServiceEndpoints,
) -> Vec<&'a Override> {
    let key = &service.service.key;
    overrides.iter().map(|it| &**it).filter(|it| it.service() == Some(key)).collect()
}

/// The endpoints of a service of a view, each address by itself.
pub(super) fn endpoints(service: &ServiceEndpoints, overrides: &[&Override]) -> Vec<EndpointItem> {
    let mut items: Vec<(IpAddr, EndpointItem)> = Vec::new();
    for endpoint in service.endpoints.iter() {
        for ip in &endpoint.ips {
            items.push((*ip, item(service, endpoint, *ip, overrides)));
        }
    }
    items.sort_by_key(|(ip, _)| *ip);
    items.into_iter().map(|(_, item)| item).collect()
}

fn item(
    service: &ServiceEndpoints,
    endpoint: &LocalEndpoint,
    ip: IpAddr,
    overrides: &[&Override],
) -> EndpointItem {
    let port = |port: &telaio_model::LocalServicePort| {
        let (number, scopes) = endpoint.port_for(port)?;
        Some(EndpointPort {
            name: port.name.to_string(),
            port: number,
            internal: scopes.internal || scopes.cluster,
            external: scopes.external || scopes.local,
        })
    };
    let is_hit = |it: &&&Override| match &it.target {
        OverrideTarget::Address(address) => *address == ip,
        OverrideTarget::Pod(pod) => endpoint.pod.as_ref() == Some(pod),
        OverrideTarget::Node(node) => endpoint.node.as_ref() == Some(node),
        OverrideTarget::Routes { .. } => false,
    };
    let hits: Vec<&&Override> = overrides.iter().filter(is_hit).collect();
    EndpointItem {
        address: ip.to_string(),
        ports: service.service.ports.iter().filter_map(port).collect(),
        pod: endpoint.pod.as_deref().map(str::to_owned),
        node: endpoint.node.as_deref().map(str::to_owned),
        zone: endpoint.zone.as_deref().map(str::to_owned),
        local: endpoint.local,
        ready: endpoint.conditions.ready,
        serving: endpoint.conditions.serving,
        terminating: endpoint.conditions.terminating,
        weight: endpoint.weight,
        drained: endpoint.weight == 0,
        added: hits.iter().any(|it| matches!(it.action, OverrideAction::Add(_))),
        // The brain leaves them out.
        removed: false,
        used: endpoint.scopes().any(),
        overrides: hits.iter().map(|it| it.meta.key.to_string()).collect(),
        counters: None,
        connections: None,
    }
}
