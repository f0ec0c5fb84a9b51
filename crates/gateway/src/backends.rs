//! Backends: a service's port with its endpoints, as the balancer takes them.
//!
//! Which endpoints a node uses (ready, near enough, not drained by anybody) is decided where the node
//! view is made. Here the rest is a matter of form: those in use are [`Ready`](EndpointState::Ready),
//! those that serve and are used for nothing new are [`Draining`](EndpointState::Draining).

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use telaio_http_proxy::filter::template::Template;
use telaio_http_proxy::table::{
    Backend, BackendId, Balance, Breaker, Endpoint, EndpointAddress, EndpointState, HashKey,
    HealthCheck, Outlier, Sticky, UpstreamProtocol, UpstreamTls,
};
use telaio_model::hash::StableHash;
use telaio_model::{LocalEndpoint, LocalServicePort, ObjectKey, PortRef};

use crate::annotations::{self, HashBy, HealthOptions, Options, Protocol, SameSite, StickyOptions};
use crate::listener::ServiceNews;

/// How often an endpoint is asked how it is, unless said otherwise, and how long it may take.
const HEALTH_TIMES: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(2));
/// The cookie's name in ingress-nginx, for clients that have one already.
const COOKIE: &str = "INGRESSCOOKIE";

/// What an Ingress asks of its backends. Two Ingresses that ask for the same share the backend of a
/// service's port; others have one each.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Manner {
    protocol: Option<Protocol>,
    tls: UpstreamTls,
    balance: Option<annotations::Balance>,
    hash_by: Option<HashBy>,
    sticky: StickyOptions,
    health: HealthOptions,
    connections_max: Option<u32>,
    pending_max: Option<u32>,
    prewarm: Option<u32>,
    slow_start: Option<Duration>,
    eject_after: Option<u32>,
    by_service_address: bool,
    proxy_protocol: Option<u8>,
}

impl Manner {
    /// As these options ask, with TLS material that was looked up.
    pub fn new(options: &Options, tls: UpstreamTls) -> Self {
        Self {
            protocol: options.protocol,
            tls,
            balance: options.balance,
            hash_by: options.hash_by.clone(),
            sticky: if options.sticky.on {
                options.sticky.clone()
            } else {
                StickyOptions::default()
            },
            health: if options.health.path.is_some() {
                options.health.clone()
            } else {
                HealthOptions::default()
            },
            connections_max: options.connections_max,
            pending_max: options.pending_max,
            prewarm: options.prewarm,
            slow_start: options.slow_start,
            eject_after: options.eject_after,
            by_service_address: options.service_upstream,
            proxy_protocol: options.upstream_proxy_protocol,
        }
    }

    /// What tells backends of the same port apart; nothing for the usual manner.
    fn suffix(&self) -> String {
        if *self == Self::default() {
            return String::new();
        }
        // The text of the values is as stable as they are.
        format!("~{}", &StableHash::new().text(&format!("{self:?}")).hex()[..8])
    }
}

/// A service's port as an Ingress means it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackendSpec {
    /// Its identity in the table.
    pub id: BackendId,
    /// The service.
    pub service: ObjectKey,
    /// Its port.
    pub port: PortRef,
    /// How it is spoken to.
    pub manner: Arc<Manner>,
}

/// The port of a service that a reference means.
fn port_of<'a>(news: &'a ServiceNews, port: &PortRef) -> Option<&'a LocalServicePort> {
    news.service.ports.iter().find(|it| match port {
        PortRef::Number(number) => it.port == *number,
        PortRef::Name(name) => it.name == *name,
    })
}

impl BackendSpec {
    /// The backend of a service's port. A port that is named and known is called by its number, so
    /// that both ways to refer to it share one backend.
    pub fn new(
        service: ObjectKey,
        port: &PortRef,
        news: Option<&ServiceNews>,
        manner: &Arc<Manner>,
    ) -> Self {
        let known = news.and_then(|news| port_of(news, port));
        let port = known.map_or_else(|| port.clone(), |known| PortRef::Number(known.port));
        let text = match &port {
            PortRef::Number(number) => format!("{service}:{number}{}", manner.suffix()),
            PortRef::Name(name) => format!("{service}:{name}{}", manner.suffix()),
        };
        Self { id: BackendId::new(&text), service, port, manner: Arc::clone(manner) }
    }

    /// Why there can be no such backend, for a person.
    pub fn missing(&self, news: Option<&ServiceNews>) -> Option<String> {
        let Some(news) = news else {
            return Some(format!("the service {} does not exist", self.service));
        };
        if port_of(news, &self.port).is_some() || self.external_port(news).is_some() {
            return None;
        }
        let ports = news.service.ports.iter().map(|port| match &*port.name {
            "" => port.port.to_string(),
            name => format!("{} ({name})", port.port),
        });
        let asked = match &self.port {
            PortRef::Number(number) => number.to_string(),
            PortRef::Name(name) => format!("{name:?}"),
        };
        let has: Vec<_> = ports.collect();
        let service = &self.service;
        Some(format!("the service {service} has no port {asked}; it has: {}", has.join(", ")))
    }

    /// A mere name may be reached at any port that an Ingress says.
    fn external_port(&self, news: &ServiceNews) -> Option<u16> {
        news.service.external_name.as_ref()?;
        match &self.port {
            PortRef::Number(number) => Some(*number),
            PortRef::Name(_) => None,
        }
    }

    /// The backend as it is now; `None` while the service or its port is not there.
    pub fn build(&self, news: &ServiceNews) -> Option<Backend> {
        let known = port_of(news, &self.port);
        let manner = &*self.manner;
        let endpoints = match (&news.service.external_name, known) {
            (Some(name), known) => {
                let port = known.map(|port| port.port).or_else(|| self.external_port(news))?;
                vec![endpoint(EndpointAddress::Name(Arc::clone(name), port), 1)]
            }
            (None, Some(port)) if manner.by_service_address => news
                .addresses
                .first()
                .map(|ip| endpoint(EndpointAddress::Socket(SocketAddr::new(*ip, port.port)), 1))
                .into_iter()
                .collect(),
            (None, Some(port)) => endpoints(&news.endpoints, port),
            (None, None) => return None,
        };
        let protocol = manner.protocol.unwrap_or_else(|| {
            known.and_then(|port| port.app_protocol.as_deref()).map_or(Protocol::Http, app_protocol)
        });
        let (limits, outlier) = (Breaker::default(), Outlier::default());
        Some(Backend {
            protocol: upstream_protocol(protocol, &manner.tls),
            balance: balance(manner),
            sticky: manner.sticky.on.then(|| sticky(&manner.sticky)),
            health: manner.health.path.as_ref().map(|path| HealthCheck {
                path: Arc::clone(path),
                host: None,
                interval: manner.health.period.unwrap_or(HEALTH_TIMES.0),
                timeout: manner.health.timeout.unwrap_or(HEALTH_TIMES.1),
                unhealthy_after: 3,
                healthy_after: 2,
            }),
            limits: Breaker {
                connections_max: manner.connections_max.unwrap_or(limits.connections_max),
                pending_max: manner.pending_max.unwrap_or(limits.pending_max),
                prewarm: manner.prewarm.unwrap_or(limits.prewarm),
                ..limits
            },
            slow_start: manner.slow_start,
            outlier: Outlier {
                failures: manner.eject_after.unwrap_or(outlier.failures),
                ..outlier
            },
            // A connection that requests share would name one client for all of them.
            proxy_protocol: manner
                .proxy_protocol
                .filter(|_| matches!(protocol, Protocol::Http | Protocol::Https)),
            ..Backend::new(self.id.as_str(), endpoints)
        })
    }
}

fn endpoint(address: EndpointAddress, weight: u16) -> Endpoint {
    Endpoint { address, weight: weight.into(), state: EndpointState::Ready, zone: None }
}

/// The endpoints of one port. In use is what the node view has in the cluster's set, which respects
/// readiness, zones and people's decisions. A traffic policy Local can leave that set empty: it is
/// about the packets of this node's pods, and requests from outside then go to all that are ready.
fn endpoints(all: &[Arc<LocalEndpoint>], port: &LocalServicePort) -> Vec<Endpoint> {
    let served = all.iter().filter_map(|endpoint| {
        let (number, scopes) = endpoint.port_for(port)?;
        let ip = *endpoint.ips.first()?;
        Some((endpoint, SocketAddr::new(ip, number), scopes))
    });
    let served: Vec<_> = served.collect();
    let in_use = |endpoint: &LocalEndpoint| endpoint.weight > 0;
    let any_cluster = served.iter().any(|(_, _, scopes)| scopes.cluster);
    let any_ready = served.iter().any(|(it, ..)| in_use(it) && it.conditions.ready);
    let mut found: Vec<Endpoint> = served
        .into_iter()
        .map(|(it, address, scopes)| {
            let ready = if any_cluster {
                scopes.cluster
            } else if any_ready {
                in_use(it) && it.conditions.ready
            } else {
                in_use(it) && it.conditions.is_serving_terminating()
            };
            Endpoint {
                address: EndpointAddress::Socket(address),
                weight: it.weight.into(),
                state: if ready { EndpointState::Ready } else { EndpointState::Draining },
                zone: it.zone.clone(),
            }
        })
        .collect();
    found.sort_by(|one, other| one.address.cmp(&other.address));
    found.dedup_by(|one, other| one.address == other.address);
    found
}

/// What `appProtocol` says of a port.
fn app_protocol(text: &str) -> Protocol {
    match text.to_ascii_lowercase().as_str() {
        "kubernetes.io/h2c" | "h2c" | "http2" => Protocol::H2c,
        "grpc" => Protocol::Grpc,
        "grpcs" => Protocol::Grpcs,
        "https" | "wss" | "kubernetes.io/wss" => Protocol::Https,
        _ => Protocol::Http,
    }
}

fn upstream_protocol(protocol: Protocol, tls: &UpstreamTls) -> UpstreamProtocol {
    match protocol {
        Protocol::Http => UpstreamProtocol::Http1,
        Protocol::H2c | Protocol::Grpc => UpstreamProtocol::H2c,
        Protocol::Https => UpstreamProtocol::Https(tls.clone()),
        Protocol::Grpcs => UpstreamProtocol::HttpsH2(tls.clone()),
    }
}

fn balance(manner: &Manner) -> Balance {
    match (&manner.hash_by, manner.balance) {
        (Some(by), _) => Balance::Hash(match by {
            HashBy::Uri => HashKey::Uri,
            HashBy::ClientAddress => HashKey::ClientAddress,
            HashBy::Header(name) => HashKey::Header(Arc::clone(name)),
            HashBy::Cookie(name) => HashKey::Cookie(Arc::clone(name)),
            // It was read before, and would not be here else.
            HashBy::Text(text) => Template::parse(text).map_or(HashKey::Uri, HashKey::Text),
        }),
        (None, Some(annotations::Balance::RoundRobin)) => Balance::RoundRobin,
        (None, Some(annotations::Balance::LeastConnections)) => Balance::LeastConnections,
        (None, Some(annotations::Balance::PeakEwma)) => Balance::PeakEwma,
        (None, None) => Balance::default(),
    }
}

fn sticky(options: &StickyOptions) -> Sticky {
    Sticky {
        cookie: options.name.clone().unwrap_or_else(|| COOKIE.into()),
        path: options.path.clone().unwrap_or_else(|| "/".into()),
        domain: options.domain.clone(),
        max_age: options.max_age,
        secure: options.secure,
        same_site: options.same_site.map(|it| match it {
            SameSite::None => "None".into(),
            SameSite::Lax => "Lax".into(),
            SameSite::Strict => "Strict".into(),
        }),
        same_site_by_browser: options.same_site_by_browser,
        change_on_failure: options.change_on_failure,
    }
}
