//! Connections that the rules lead to services, as the kernel has them.
//!
//! The kernel's table is read when somebody looks, once for all who do, on a thread of its own, and so
//! seldom that it takes a small share of a core however large the table is. Nothing of it is held but
//! sums: one per port of a service, and one per endpoint that is in use.

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use telaio_gui::values::service::{Connections, EndpointItem, ServiceTraffic};
use telaio_model::{ObjectKey, Protocol, Service};

use super::Programming;

/// How long figures count at least.
const AGE_MIN: Duration = Duration::from_secs(3);
/// So many times as long as a reading took, none follows.
const REST_FACTOR: u32 = 20;
/// How long those who ask wait for a reading; then they get the figures before.
const WAIT_MAX: Duration = Duration::from_millis(500);
/// How many pairs of a service and an endpoint are told apart.
const ENDPOINTS_MAX: usize = 200_000;

/// Why the kernel has no figures of a service. A counter in a rule or in conntrack would cost every packet.
const NOT_COUNTED: &str = "only IPVS counts packets and bytes per service: in rules and in the connection table a \
                           counter would cost every packet (docs/admin.md)";

/// The sum of all.
pub(super) fn sum(all: &[Connections]) -> Connections {
    let of = |of: fn(&Connections) -> u64| all.iter().map(of).sum();
    Connections { open: of(|it| it.open), other: of(|it| it.other) }
}

/// What was counted.
#[derive(Debug, Default)]
pub(super) struct Counted {
    /// Per service, in the order of its ports; none where nothing could be read.
    ports: Option<HashMap<ObjectKey, Vec<Connections>>>,
    endpoints: HashMap<ObjectKey, HashMap<SocketAddr, Connections>>,
    /// Why there are no figures, or not all.
    pub(super) reason: Option<String>,
    /// What the kernel counts itself, per service; none where it does not.
    traffic: Option<HashMap<ObjectKey, ServiceTraffic>>,
    /// Why there is none of that.
    pub(super) traffic_reason: Option<String>,
}

impl Counted {
    fn nothing(reason: impl Into<String>) -> Self {
        let reason = Some(reason.into());
        Self { traffic_reason: reason.clone(), reason, ..Self::default() }
    }

    /// What the kernel has counted for a service.
    pub(super) fn of_traffic(&self, key: &ObjectKey) -> Option<ServiceTraffic> {
        Some(self.traffic.as_ref()?.get(key).copied().unwrap_or_default())
    }

    /// The connections of each port of a service.
    pub(super) fn of_ports(&self, service: &Service) -> Option<Vec<Connections>> {
        let all = self.ports.as_ref()?;
        let none = || vec![Connections::default(); service.ports.len()];
        let known = all.get(&service.meta.key).cloned();
        Some(known.filter(|it| it.len() == service.ports.len()).unwrap_or_else(none))
    }

    /// Those of an endpoint of a service.
    pub(super) fn of_endpoint(&self, key: &ObjectKey, item: &EndpointItem) -> Option<Connections> {
        self.ports.as_ref()?;
        let ip: IpAddr = item.address.parse().ok()?;
        let Some(known) = self.endpoints.get(key) else { return Some(Connections::default()) };
        let numbers: BTreeSet<u16> = item.ports.iter().map(|port| port.port).collect();
        let all = numbers.iter().filter_map(|port| known.get(&SocketAddr::new(ip, *port)));
        Some(sum(&all.copied().collect::<Vec<_>>()))
    }
}

/// The last figures.
#[derive(Debug, Default)]
pub(super) struct Flows {
    kept: Arc<Mutex<Kept>>,
    /// Held by who reads.
    reading: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Debug, Default)]
struct Kept {
    counted: Arc<Counted>,
    /// None before this are read.
    next: Option<Instant>,
}

impl Flows {
    /// What was counted last.
    pub(super) fn counted(&self) -> Arc<Counted> {
        Arc::clone(&self.kept.lock().counted)
    }

    /// Counts anew, if it is time to.
    pub(super) async fn look(
        &self,
        services: impl FnOnce() -> Option<Vec<Arc<Service>>>,
        programming: Option<&Programming>,
    ) {
        let Ok(reading) = Arc::clone(&self.reading).try_lock_owned() else { return };
        if self.kept.lock().next.is_some_and(|next| Instant::now() < next) {
            return;
        }
        let keep = |counted| {
            let next = Some(Instant::now() + AGE_MIN);
            *self.kept.lock() = Kept { counted: Arc::new(counted), next };
        };
        let Some(programming) = programming else {
            return keep(Counted::nothing("no services are programmed here"));
        };
        let Some(services) = services() else {
            return keep(Counted::nothing("which services there are is not known here yet"));
        };
        let (kept, backend) = (Arc::clone(&self.kept), programming.backend);
        let work = tokio::task::spawn_blocking(move || {
            let begin = Instant::now();
            let mut places = Places::default();
            for service in services {
                places.add(&service);
            }
            let counted = read(backend, places);
            let rest = begin.elapsed().saturating_mul(REST_FACTOR).max(AGE_MIN);
            *kept.lock() = Kept { counted: Arc::new(counted), next: Some(Instant::now() + rest) };
            drop(reading);
        });
        // Whoever waits too long gets what was counted before; the reading goes on.
        let _ = tokio::time::timeout(WAIT_MAX, work).await;
    }
}

/// Where services answer.
#[derive(Debug, Default)]
struct Places {
    keys: Vec<ObjectKey>,
    counts: Vec<Vec<Connections>>,
    /// The service and the port of it.
    addresses: HashMap<(u8, SocketAddr), (usize, usize)>,
    node_ports: HashMap<(u8, u16), (usize, usize)>,
    endpoints: HashMap<(usize, SocketAddr), Connections>,
    left_out: bool,
    /// Per service, where the kernel counts that.
    traffic: Option<HashMap<usize, ServiceTraffic>>,
}

impl Places {
    fn add(&mut self, service: &Service) {
        let index = self.keys.len();
        self.keys.push(service.meta.key.clone());
        self.counts.push(vec![Connections::default(); service.ports.len()]);
        let ips = service.cluster_ips.iter().chain(&service.external_ips).copied();
        let ips: Vec<IpAddr> = ips.chain(service.load_balancer_vips()).collect();
        for (place, port) in service.ports.iter().enumerate() {
            let protocol = number(port.protocol);
            for ip in &ips {
                let at = (protocol, SocketAddr::new(*ip, port.port));
                self.addresses.entry(at).or_insert((index, place));
            }
            if let Some(port) = port.node_port {
                self.node_ports.entry((protocol, port)).or_insert((index, place));
            }
        }
    }

    /// The service, and the port of it, that is asked for at this address.
    fn place(
        &self,
        protocol: u8,
        asked: SocketAddr,
        own: &BTreeSet<IpAddr>,
    ) -> Option<(usize, usize)> {
        let of_node = || {
            let found = self.node_ports.get(&(protocol, asked.port()));
            found.filter(|_| own.contains(&asked.ip()))
        };
        self.addresses.get(&(protocol, asked)).or_else(of_node).copied()
    }

    #[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "nothing is read there"))]
    fn count(
        &mut self,
        protocol: u8,
        asked: SocketAddr,
        server: SocketAddr,
        open: bool,
        own: &BTreeSet<IpAddr>,
    ) {
        let Some((service, port)) = self.place(protocol, asked, own) else { return };
        let add = |to: &mut Connections| *(if open { &mut to.open } else { &mut to.other }) += 1;
        if let Some(count) = self.counts.get_mut(service).and_then(|all| all.get_mut(port)) {
            add(count);
        }
        if self.endpoints.len() < ENDPOINTS_MAX || self.endpoints.contains_key(&(service, server)) {
            add(self.endpoints.entry((service, server)).or_default());
        } else {
            self.left_out = true;
        }
    }

    #[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "nothing is read there"))]
    fn end(self) -> Counted {
        let mut endpoints: HashMap<ObjectKey, HashMap<SocketAddr, Connections>> = HashMap::new();
        for ((service, server), count) in self.endpoints {
            endpoints.entry(self.keys[service].clone()).or_default().insert(server, count);
        }
        // Most services have none.
        let traffic = self.traffic.map(|all| {
            let each = all.into_iter().map(|(service, sum)| (self.keys[service].clone(), sum));
            each.collect()
        });
        let traffic_reason = traffic.is_none().then(|| NOT_COUNTED.to_owned());
        let used = self.keys.into_iter().zip(self.counts);
        let used = used.filter(|(_, all)| all.iter().any(|it| *it != Connections::default()));
        let reason =
            format!("connections to more than {ENDPOINTS_MAX} endpoints: some are left out");
        let reason = self.left_out.then_some(reason);
        Counted { ports: Some(used.collect()), endpoints, reason, traffic, traffic_reason }
    }
}

fn number(protocol: Protocol) -> u8 {
    match protocol {
        Protocol::Tcp => 6,
        Protocol::Udp => 17,
        Protocol::Sctp => 132,
    }
}

#[cfg(target_os = "linux")]
fn read(backend: &str, mut places: Places) -> Counted {
    use telaio_netlink::NetlinkError;
    use telaio_netlink::addresses::own_addresses;
    use telaio_netlink::conntrack::{Conntrack, Family, STATUS_DESTINATION_NAT, Selection};

    let mut fill = || -> Result<(), NetlinkError> {
        let own = own_addresses()?;
        if backend == "ipvs" {
            places.traffic = Some(ipvs_traffic(&places, &own)?);
            return telaio_netlink::ipvs::connections::each(|it| {
                places.count(it.protocol, it.service, it.server, it.open, &own);
            });
        }
        for family in [Family::V4, Family::V6] {
            let selection =
                Selection { status: STATUS_DESTINATION_NAT, ..Selection::family(family) };
            Conntrack::open()?.each(selection, |flow| {
                let asked = &flow.original;
                let server = flow.reply.source;
                places.count(asked.protocol, asked.destination, server, flow.is_open(), &own);
                Ok(())
            })?;
        }
        Ok(())
    };
    match fill() {
        Ok(()) => places.end(),
        Err(error) => Counted::nothing(format!("the kernel's connections cannot be read: {error}")),
    }
}

/// What IPVS has counted, by service. Virtual servers that are known by a mark stand for several services at once.
#[cfg(target_os = "linux")]
fn ipvs_traffic(
    places: &Places,
    own: &BTreeSet<IpAddr>,
) -> Result<HashMap<usize, ServiceTraffic>, telaio_netlink::NetlinkError> {
    use telaio_netlink::ipvs::{Frontend, Ipvs};

    let mut found: HashMap<usize, ServiceTraffic> = HashMap::new();
    let Some(mut ipvs) = Ipvs::open()? else { return Ok(found) };
    for state in ipvs.services()? {
        let Frontend::Address { protocol, at } = state.server.frontend else { continue };
        let Some((service, _)) = places.place(protocol, at, own) else { continue };
        let sum = found.entry(service).or_default();
        sum.connections += state.stats.connections;
        sum.packets_in += state.stats.packets_in;
        sum.packets_out += state.stats.packets_out;
        sum.bytes_in += state.stats.bytes_in;
        sum.bytes_out += state.stats.bytes_out;
    }
    Ok(found)
}

#[cfg(not(target_os = "linux"))]
fn read(_: &str, _: Places) -> Counted {
    Counted::nothing("connections are not read on this system")
}
