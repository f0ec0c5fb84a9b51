//! Where UDP services answer, and who serves there.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use telaio_model::{IpFamily, ObjectKey};
use telaio_netlink::conntrack::{Flow, UDP};

use crate::plan::Frontend;

/// A UDP port of a service in one family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UdpPort {
    /// The family.
    pub family: IpFamily,
    /// Where it answers.
    pub frontends: Vec<Frontend>,
    /// Every endpoint that still serves, ordered.
    pub serving: Vec<(IpAddr, u16)>,
}

/// What a flow is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Not to any UDP service.
    NotOurs,
    /// Served by an endpoint that serves.
    Alive,
    /// To a service that would not serve it so.
    Stale,
}

/// What flows are recognised by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Place {
    Address(SocketAddr),
    NodePort(IpFamily, u16),
}

type Serving = BTreeSet<SocketAddr>;

/// Where all UDP services answer. See the [module above](super).
#[derive(Debug, Default)]
pub struct Frontends {
    services: BTreeMap<ObjectKey, Vec<UdpPort>>,
    /// Two services may claim one place; a flow to either's endpoint is alive.
    places: HashMap<Place, Vec<(ObjectKey, Arc<Serving>)>>,
    /// Places where a service answered at the last pass and none does now.
    left: BTreeSet<Place>,
    /// Some flow may have become stale since the last pass.
    needs_pass: bool,
}

impl Frontends {
    /// A service's UDP ports are now these.
    pub fn set(&mut self, key: ObjectKey, ports: Vec<UdpPort>) {
        let before = self.services.get(&key).map_or(&[][..], Vec::as_slice);
        if before == ports {
            return;
        }
        self.needs_pass |= can_make_stale(before, &ports);
        let old_places: Vec<Place> = before.iter().flat_map(places).collect();
        for place in old_places {
            self.leave(place, &key);
        }
        for port in &ports {
            let serving = port.serving.iter().map(|(ip, port)| SocketAddr::new(*ip, *port));
            let serving: Arc<Serving> = Arc::new(serving.collect());
            for place in places(port) {
                self.left.remove(&place);
                self.places.entry(place).or_default().push((key.clone(), Arc::clone(&serving)));
            }
        }
        if ports.is_empty() {
            self.services.remove(&key);
        } else {
            self.services.insert(key, ports);
        }
    }

    fn leave(&mut self, place: Place, key: &ObjectKey) {
        if let Some(owners) = self.places.get_mut(&place) {
            owners.retain(|(owner, _)| owner != key);
            if owners.is_empty() {
                self.places.remove(&place);
                self.left.insert(place);
            }
        }
    }

    /// Whether the table of flows must be looked through.
    pub fn needs_pass(&self) -> bool {
        self.needs_pass
    }

    /// It was, and what was stale is gone.
    pub fn passed(&mut self) {
        self.needs_pass = false;
        self.left.clear();
    }

    /// The families in which anything can be stale.
    pub fn families(&self) -> BTreeSet<IpFamily> {
        let left = self.left.iter().map(|place| match place {
            Place::Address(address) => IpFamily::of(address.ip()),
            Place::NodePort(family, _) => *family,
        });
        self.services.values().flatten().map(|port| port.family).chain(left).collect()
    }

    /// What a flow is. `is_own` says whether an address is the machine's.
    ///
    /// The source of the answers is who serves the flow. Where nothing changed its destination that
    /// is the service's address itself, which no endpoint has: such a flow began before the service
    /// had an endpoint and leads nowhere. Only where no service answers any more is such a flow
    /// somebody else's.
    pub fn judge(&self, flow: &Flow, is_own: impl Fn(IpAddr) -> bool) -> Verdict {
        if flow.original.protocol != UDP {
            return Verdict::NotOurs;
        }
        let asked = flow.original.destination;
        let place = Place::Address(asked);
        let node_port = Place::NodePort(IpFamily::of(asked.ip()), asked.port());
        let is_node_port = || is_own(asked.ip());
        let owners = self.places.get(&place);
        let owners = owners.or_else(|| self.places.get(&node_port).filter(|_| is_node_port()));
        if let Some(owners) = owners {
            let is_served = owners.iter().any(|(_, serving)| serving.contains(&flow.reply.source));
            return if is_served { Verdict::Alive } else { Verdict::Stale };
        }
        let was_ours =
            self.left.contains(&place) || (self.left.contains(&node_port) && is_node_port());
        if was_ours && flow.is_destination_nat() { Verdict::Stale } else { Verdict::NotOurs }
    }
}

fn places(port: &UdpPort) -> impl Iterator<Item = Place> + '_ {
    port.frontends.iter().map(|frontend| match frontend.place.address() {
        Some(ip) => Place::Address(SocketAddr::new(ip, frontend.port)),
        None => Place::NodePort(port.family, frontend.port),
    })
}

/// Whether a flow that was alive before may be stale now. Not if all places are the same and each
/// has all the endpoints that it had, and had some: then nothing led nowhere.
fn can_make_stale(before: &[UdpPort], now: &[UdpPort]) -> bool {
    let only_grew = |before: &UdpPort, now: &UdpPort| {
        before.family == now.family
            && before.frontends == now.frontends
            && !before.serving.is_empty()
            && before.serving.iter().all(|endpoint| now.serving.binary_search(endpoint).is_ok())
    };
    before.len() != now.len() || !before.iter().zip(now).all(|(before, now)| only_grew(before, now))
}
