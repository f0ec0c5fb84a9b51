//! The ports on which load balancers ask whether this node has endpoints of a service.
//!
//! A LoadBalancer service with an external policy Local has such a port. Whoever asks there, on any
//! path, gets 200 if at least one ready endpoint runs on this node and the proxy is healthy, else
//! 503; the number of endpoints is in a header and in the body, as kube-proxy gives them:
//!
//! ```text
//! HTTP/1.1 200 OK
//! Content-Type: application/json
//! X-Content-Type-Options: nosniff
//! X-Load-Balancing-Endpoint-Weight: 2
//!
//! {"service":{"namespace":"shop","name":"front"},"localEndpoints":2,"serviceProxyHealthy":true}
//! ```
//!
//! Each family is asked about by itself: a service of both has a listener in each, which counts the
//! endpoints of its family.
//!
//! What always holds: a port that somebody else has is a warning and is tried again, and nothing else
//! waits for it. One request per connection, [`CONNECTIONS_MAX`] connections over all ports, and a
//! newcomer always gets in: the oldest connection goes, whose answer should long have been taken.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use socket2::{Domain, Socket, Type};
use telaio_model::{IpFamily, ObjectKey, ServiceEndpoints, ServiceType};
use tokio::task::AbortHandle;

use crate::background::Background;

mod answer;
#[cfg(test)]
mod tests;

use answer::{Guests, Question};

/// How many connections there are at a time, over all ports.
pub const CONNECTIONS_MAX: usize = 256;
/// How many connections the kernel holds for a port until they are taken.
const BACKLOG: i32 = 128;
/// How soon a port that could not be taken is tried again; doubles up to the longest.
const RETRY_MIN: Duration = Duration::from_millis(20);
const RETRY_MAX: Duration = Duration::from_secs(15);
/// A port that is taken for so long is worth a warning. The last owner needs a moment to let go.
const WARN_AFTER: Duration = Duration::from_millis(300);

/// Says whether the proxy does its work. Asked for each request, so it must be quick.
pub type Healthy = Arc<dyn Fn() -> bool + Send + Sync>;

/// What a service has to say on its health check port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthCheck {
    /// The port.
    pub port: u16,
    /// How many endpoints of the node are ready, for each family that the service has.
    pub local_endpoints: BTreeMap<IpFamily, usize>,
}

impl HealthCheck {
    /// That of a service; `None` for one that has no such port.
    ///
    /// Endpoints count by address: two ports of one pod are one endpoint. One that is not ready does
    /// not count, also where it still serves for want of others: the load balancer should turn to
    /// other nodes. Neither does one that gets no traffic from outside because somebody drained it.
    pub fn of(entry: &ServiceEndpoints) -> Option<Self> {
        let service = &entry.service;
        let port = service.health_check_node_port?;
        if service.service_type != ServiceType::LoadBalancer || !service.external_traffic_to_local {
            return None;
        }
        let families: BTreeSet<IpFamily> =
            service.cluster_ips.iter().copied().map(IpFamily::of).collect();
        let ready = entry.endpoints.iter().filter(|endpoint| {
            endpoint.local && endpoint.conditions.ready && endpoint.scopes().external
        });
        let addresses: BTreeSet<IpAddr> =
            ready.flat_map(|endpoint| endpoint.ips.iter().copied()).collect();
        let count = |family| addresses.iter().filter(|ip| IpFamily::of(**ip) == family).count();
        let local_endpoints = families.into_iter().map(|family| (family, count(family))).collect();
        Some(Self { port, local_endpoints })
    }
}

/// All health check ports of a node; dropping it closes them.
#[derive(Debug)]
pub struct HealthCheckServers {
    services: Mutex<Services>,
    shared: Arc<Shared>,
    background: Background,
}

struct Shared {
    healthy: Healthy,
    guests: Mutex<Guests>,
    listening: AtomicUsize,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("listening", &self.listening).finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
struct Services {
    /// Where ports are opened.
    addresses: BTreeSet<IpAddr>,
    served: BTreeMap<ObjectKey, Served>,
}

/// One service's port.
#[derive(Debug)]
struct Served {
    port: u16,
    counts: BTreeMap<IpFamily, Arc<AtomicUsize>>,
    listeners: BTreeMap<IpAddr, Listener>,
}

/// A port on one address, open or about to be; dropping it closes the port.
#[derive(Debug)]
struct Listener(AbortHandle);

impl Drop for Listener {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl HealthCheckServers {
    /// Without any port yet; ports will be opened on all addresses, until
    /// [`set_addresses`](Self::set_addresses) says otherwise.
    pub fn start(healthy: Healthy) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            healthy,
            guests: Mutex::new(Guests::new(CONNECTIONS_MAX)),
            listening: AtomicUsize::new(0),
        });
        let everywhere = IpFamily::ALL.map(unspecified).into_iter().collect();
        let services = Services { addresses: everywhere, served: BTreeMap::new() };
        let background = Background::start("telaio-health-checks")?;
        Ok(Self { services: Mutex::new(services), shared, background })
    }

    /// The addresses on which ports are opened. The unspecified address of a family means all of
    /// it. Ports on addresses that are no longer among them are closed.
    pub fn set_addresses(&self, addresses: BTreeSet<IpAddr>) {
        let mut services = self.services.lock();
        if services.addresses == addresses {
            return;
        }
        services.addresses = addresses;
        let Services { addresses, served } = &mut *services;
        for (key, served) in served.iter_mut() {
            self.listen(key, served, addresses);
        }
    }

    /// The service is now this. `None`, or one without a health check port, closes its port.
    ///
    /// A port that is free is open when this returns.
    pub fn set(&self, key: &ObjectKey, entry: Option<&ServiceEndpoints>) {
        let mut services = self.services.lock();
        let Services { addresses, served } = &mut *services;
        let Some(check) = entry.and_then(HealthCheck::of) else {
            served.remove(key);
            return;
        };
        if served.get(key).is_some_and(|served| served.port != check.port) {
            served.remove(key);
        }
        let served = served.entry(key.clone()).or_insert_with(|| Served {
            port: check.port,
            counts: BTreeMap::new(),
            listeners: BTreeMap::new(),
        });
        served.counts.retain(|family, _| check.local_endpoints.contains_key(family));
        for (family, count) in check.local_endpoints {
            served.counts.entry(family).or_default().store(count, Ordering::Relaxed);
        }
        self.listen(key, served, addresses);
    }

    /// The services that have a port.
    pub fn services(&self) -> BTreeSet<ObjectKey> {
        self.services.lock().served.keys().cloned().collect()
    }

    /// How many listeners are open at this moment: one for each service and address.
    pub fn listening(&self) -> usize {
        self.shared.listening.load(Ordering::Relaxed)
    }

    /// Opens and closes listeners until they are those that the service needs.
    fn listen(&self, key: &ObjectKey, served: &mut Served, addresses: &BTreeSet<IpAddr>) {
        let Served { port, counts, listeners } = served;
        listeners.retain(|ip, _| addresses.contains(ip) && counts.contains_key(&IpFamily::of(*ip)));
        for ip in addresses {
            let Some(count) = counts.get(&IpFamily::of(*ip)) else { continue };
            listeners.entry(*ip).or_insert_with(|| {
                let question = Question {
                    service: key.clone(),
                    local_endpoints: Arc::clone(count),
                    shared: Arc::clone(&self.shared),
                };
                let address = SocketAddr::new(*ip, *port);
                let first_try = bind(address);
                Listener(self.background.spawn(open_and_serve(address, first_try, question)))
            });
        }
    }
}

/// All addresses of a family.
pub(crate) fn unspecified(family: IpFamily) -> IpAddr {
    match family {
        IpFamily::V4 => std::net::Ipv4Addr::UNSPECIFIED.into(),
        IpFamily::V6 => std::net::Ipv6Addr::UNSPECIFIED.into(),
    }
}

fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    if address.is_ipv6() {
        // The IPv4 listener has the same port.
        socket.set_only_v6(true)?;
    }
    // A restart finds connections of the last run that the kernel has not forgotten. On Windows the
    // option means something else, which nobody wants.
    #[cfg(unix)]
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

async fn open_and_serve(
    address: SocketAddr,
    mut outcome: io::Result<TcpListener>,
    question: Question,
) {
    let service = question.service.clone();
    let mut delay = RETRY_MIN;
    let mut has_warned = false;
    let listener = loop {
        match outcome.and_then(tokio::net::TcpListener::from_std) {
            Ok(listener) => break listener,
            Err(error) if delay >= WARN_AFTER && !has_warned => {
                has_warned = true;
                tracing::warn!(
                    %service,
                    %address,
                    %error,
                    "cannot open the service's health check port; trying again. Load balancers \
                     take this node for one without endpoints until whoever has the port frees it"
                );
            }
            Err(error) => tracing::debug!(%service, %address, %error, "health check port"),
        }
        tokio::time::sleep(delay).await;
        delay = (delay * 2).min(RETRY_MAX);
        outcome = bind(address);
    };
    if has_warned {
        tracing::info!(%service, %address, "the service's health check port is open now");
    }
    answer::serve(listener, question).await;
}
