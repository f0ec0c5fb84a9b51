//! A node with an HNS in memory, and what stands in it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use telaio_hcn::{
    Endpoint, FakeHcn, Guid, Hcn, HnsVersion, IpConfiguration, LoadBalancer, MacAddress, Network,
    NetworkType, Query,
};
use telaio_model::ServiceEndpoints;
use telaio_reconcile::kpng::{Changed, FullStateCallback, Inbox, State};
use telaio_reconcile::{ApplyError, PacerConfig, SyncKind, SyncReport, Syncer};
use telaio_service_proxy::config::ProxyConfig;
use telaio_service_proxy::hcn::identity::{is_marked, is_our_endpoint};
use telaio_service_proxy::hcn::{FrontendKey, HcnOptions, HcnSyncer};
use telaio_service_proxy::options::{LocalhostPorts, Nobody, ProxyOptions};

/// The newest HNS: it can modify load balancers.
pub(crate) const NEW: HnsVersion = HnsVersion::new(16, 0);
/// Windows Server 2022: it cannot.
pub(crate) const OLD: HnsVersion = HnsVersion::new(13, 3);
/// The node's own address.
pub(crate) const NODE_IP: &str = "192.168.50.11";
/// All of them, also those of the worlds that are made by chance.
const OWN_IPS: [&str; 4] = [NODE_IP, "192.168.60.1", "fd00:50::11", "fd00:60::1"];
/// The source address on an overlay.
pub(crate) const SOURCE_VIP: &str = "10.244.1.2";
const SOURCE_VIP_6: &str = "fd00:10:244:1::2";

pub(crate) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// An HNS with a network for pods, always of the same identity.
pub(crate) fn hns(version: HnsVersion, kind: NetworkType) -> FakeHcn {
    let fake = FakeHcn::new(version);
    add_network(&fake, kind);
    fake
}

pub(crate) fn add_network(fake: &FakeHcn, kind: NetworkType) {
    let network =
        Network { id: Some(network_id()), name: "pods".into(), kind, ..Network::default() };
    fake.create_network(&network).unwrap();
}

pub(crate) fn network_id() -> Guid {
    Guid::from_bytes([7; 16])
}

/// A pod of this node, as the CNI plugin makes its endpoint.
pub(crate) fn add_pod(fake: &FakeHcn, address: IpAddr) -> Guid {
    let made = fake.create_endpoint(&Endpoint {
        name: format!("pod {address}"),
        network: network_id(),
        ip_configurations: vec![IpConfiguration { ip_address: address, prefix_length: 24 }],
        ..Endpoint::default()
    });
    made.unwrap().id.unwrap()
}

pub(crate) fn options() -> HcnOptions {
    HcnOptions {
        source_vips: vec![ip(SOURCE_VIP), ip(SOURCE_VIP_6)],
        host_macs: OWN_IPS.map(|own| (ip(own), MacAddress([0, 0x15, 0x5d, 1, 2, 3]))).into(),
        enable_dsr: Some(false),
        ..HcnOptions::default()
    }
}

pub(crate) fn proxy_options(config: ProxyConfig) -> ProxyOptions {
    ProxyOptions {
        node: "node-a".into(),
        node_addresses: vec![ip(NODE_IP)],
        config: Arc::new(config),
        localhost: LocalhostPorts::default(),
        pacing: PacerConfig::default(),
        follower: Arc::new(Nobody),
    }
}

/// The backend without its thread.
pub(crate) struct Rig {
    pub(crate) syncer: HcnSyncer,
    inbox: Inbox,
    state: State,
}

impl Rig {
    pub(crate) fn new(hcn: impl Hcn + 'static) -> Self {
        Self::with(hcn, ProxyConfig::default(), &options())
    }

    pub(crate) fn with(hcn: impl Hcn + 'static, config: ProxyConfig, options: &HcnOptions) -> Self {
        Self::on(hcn, &proxy_options(config), options)
    }

    /// A node whose addresses only its Node object says.
    pub(crate) fn of_view(hcn: impl Hcn + 'static, config: ProxyConfig) -> Self {
        let proxy = ProxyOptions { node_addresses: Vec::new(), ..proxy_options(config) };
        Self::on(hcn, &proxy, &options())
    }

    fn on(hcn: impl Hcn + 'static, proxy: &ProxyOptions, options: &HcnOptions) -> Self {
        let inbox = Inbox::default();
        let syncer = HcnSyncer::new((proxy, options), Arc::new(hcn), inbox.clone());
        Self { syncer, inbox, state: State::default() }
    }

    /// These services are now so.
    pub(crate) fn set(&mut self, services: &[ServiceEndpoints]) {
        let mut changed = Changed::default();
        for entry in services {
            let key = entry.service.key.clone();
            self.state.apply(telaio_model::Op::DeleteService(key.clone()));
            self.state.apply(telaio_model::Op::SetService(Arc::clone(&entry.service)));
            let before = self.state.get(&key).map(|it| it.endpoints.clone()).unwrap_or_default();
            for endpoint in before.iter() {
                self.state.apply(telaio_model::Op::DeleteEndpoint(endpoint.key.clone()));
            }
            for endpoint in entry.endpoints.iter() {
                self.state.apply(telaio_model::Op::SetEndpoint(Arc::clone(endpoint)));
            }
            changed.services.insert(key);
        }
        self.tell(&self.state.clone(), &changed);
    }

    /// This service is gone.
    pub(crate) fn remove(&mut self, entry: &ServiceEndpoints) {
        for endpoint in entry.endpoints.iter() {
            self.state.apply(telaio_model::Op::DeleteEndpoint(endpoint.key.clone()));
        }
        self.state.apply(telaio_model::Op::DeleteService(entry.service.key.clone()));
        let changed =
            Changed { services: [entry.service.key.clone()].into(), ..Changed::default() };
        self.tell(&self.state.clone(), &changed);
    }

    /// An object of the cluster is now so.
    pub(crate) fn set_object(&mut self, object: telaio_model::Object) {
        let changed = Changed { objects: [object.object_ref()].into(), ..Changed::default() };
        self.state.apply(telaio_model::Op::SetObject(object));
        self.tell(&self.state.clone(), &changed);
    }

    /// What changed of a view.
    pub(crate) fn tell(&self, state: &State, changed: &Changed) {
        self.inbox.callback(|| {}).callback(state, changed).unwrap();
    }

    pub(crate) fn sync(&mut self, kind: SyncKind) -> Result<SyncReport, ApplyError> {
        self.syncer.sync(kind)
    }

    /// A sync of what changed, which succeeds.
    pub(crate) fn apply(&mut self) -> SyncReport {
        self.sync(SyncKind::Changes).unwrap()
    }
}

/// What stands in an HNS, in terms that two of them can be compared by: endpoints by address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Picture {
    /// Ours: documents without identities and endpoints, and the endpoints' addresses.
    pub(crate) load_balancers: BTreeMap<FrontendKey, (LoadBalancer, BTreeSet<IpAddr>)>,
    /// Ours.
    pub(crate) endpoints: BTreeMap<IpAddr, Endpoint>,
    /// Everybody else's, verbatim.
    pub(crate) foreign: (Vec<LoadBalancer>, Vec<Endpoint>),
}

impl Picture {
    pub(crate) fn of(fake: &FakeHcn) -> Self {
        let all = fake.endpoints(&Query::All).unwrap().objects;
        let addresses: BTreeMap<Guid, Vec<IpAddr>> =
            all.iter().map(|it| (it.id.unwrap(), it.addresses().collect())).collect();
        let (ours, others): (Vec<_>, Vec<_>) = all.into_iter().partition(is_our_endpoint);
        let balancers = fake.load_balancers(&Query::All).unwrap().objects;
        let (our_balancers, other_balancers): (Vec<_>, Vec<_>) =
            balancers.into_iter().partition(|it| is_marked(it.id.unwrap()));
        let mut load_balancers = BTreeMap::new();
        for mut document in our_balancers {
            let key = FrontendKey::of(&document).expect("one place");
            let to = document.endpoints.iter().filter_map(|id| addresses.get(id)).flatten();
            let to = to.copied().collect();
            document.id = None;
            document.endpoints.clear();
            assert!(load_balancers.insert(key, (document, to)).is_none(), "{key} twice");
        }
        let endpoints =
            ours.into_iter().map(|it| (it.ip_configurations[0].ip_address, it)).collect();
        Self { load_balancers, endpoints, foreign: (other_balancers, others) }
    }

    /// Where a place leads, with the target port; nothing if there is no load balancer.
    pub(crate) fn at(&self, place: &str) -> BTreeSet<String> {
        let found = self.load_balancers.iter().find(|(key, _)| key.to_string() == place);
        let Some((_, (document, to))) = found else { return BTreeSet::new() };
        let port = document.port_mappings[0].internal_port;
        to.iter().map(|ip| format!("{ip}:{port}")).collect()
    }

    /// The load balancer at a place.
    pub(crate) fn document(&self, place: &str) -> &LoadBalancer {
        let mut found = self.load_balancers.iter().filter(|(key, _)| key.to_string() == place);
        &found.next().unwrap_or_else(|| panic!("nothing at {place}")).1.0
    }
}
