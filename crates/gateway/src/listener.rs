//! From a node's view to events: what of it is news for the ingress.
//!
//! The view comes as operations ended by `Sync`, and begins anew with `Reset` after a lost
//! connection. The listener remembers what it has passed on, so that a view that is repeated gives
//! no events but for what differs, and what is missing from it is removed. Services are gathered
//! with their endpoints: a service and its endpoints change together.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::net::IpAddr;
use std::sync::Arc;

use telaio_model::{
    AuthSecret, ConfigMap, EndpointRef, Ingress, IngressClass, Kind, LocalEndpoint, LocalService,
    Node, Object, ObjectKey, ObjectRef, Op, Override, TlsSecret,
};
use tokio::sync::mpsc;

/// How many events may wait for the processor before the listener waits.
pub const EVENTS_MAX: usize = 1024;

/// The kinds of objects that the ingress needs beside services and their endpoints.
pub const KINDS: &[Kind] = &[
    Kind::Ingress,
    Kind::IngressClass,
    Kind::TlsSecret,
    Kind::AuthSecret,
    Kind::ConfigMap,
    Kind::Node,
    Kind::Override,
];

/// A node's view as it is followed.
pub trait View: Send {
    /// The next difference, ended by [`Op::Sync`]; `None` when there will be no other.
    fn next(&mut self) -> impl Future<Output = Option<Vec<Op>>> + Send;
}

/// A service with its endpoints, as a backend needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceNews {
    /// The service.
    pub service: Arc<LocalService>,
    /// Its endpoints, ordered by name.
    pub endpoints: Vec<Arc<LocalEndpoint>>,
    /// Where the service itself is reached, see [`EventListener::resolve_service_ip`].
    pub addresses: Vec<IpAddr>,
}

/// Something that happened to what the ingress is made of. Events up to the next
/// [`IngressEvent::Synced`] belong together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IngressEvent {
    /// An Ingress is now this.
    Add(Arc<Ingress>),
    /// An Ingress is no more.
    Remove(ObjectKey),
    /// A class is now this, or no more.
    Class(Arc<str>, Option<Arc<IngressClass>>),
    /// A service with its endpoints is now this, or no more.
    Service(ObjectKey, Option<Arc<ServiceNews>>),
    /// A certificate is now this, or no more.
    Certificate(ObjectKey, Option<Arc<TlsSecret>>),
    /// Who may come in is now this, or no more.
    AuthSecret(ObjectKey, Option<Arc<AuthSecret>>),
    /// A ConfigMap is now this, or no more.
    ConfigMap(ObjectKey, Option<Arc<ConfigMap>>),
    /// Somebody's decision about routes is now this, or no more.
    Pause(ObjectKey, Option<Arc<Override>>),
    /// The addresses of the nodes are now these.
    Nodes(Vec<IpAddr>),
    /// The state is consistent: act on it.
    Synced,
}

/// Nobody takes events any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("nobody takes the events of the ingress any more")]
pub struct Closed;

/// A service as it is gathered.
#[derive(Debug, Default)]
struct Gathered {
    service: Option<Arc<LocalService>>,
    endpoints: BTreeMap<Arc<str>, Arc<LocalEndpoint>>,
}

/// Follows a node's view and says what of it is news.
#[derive(Debug)]
pub struct EventListener {
    events: mpsc::Sender<IngressEvent>,
    services: BTreeMap<ObjectKey, Gathered>,
    objects: BTreeMap<ObjectRef, Object>,
    /// The services that changed since the last sync.
    changed: BTreeSet<ObjectKey>,
    nodes_changed: bool,
    /// After a reset: what has not been repeated yet.
    stale: Option<Stale>,
}

#[derive(Debug, Default)]
struct Stale {
    objects: BTreeSet<ObjectRef>,
    services: BTreeSet<ObjectKey>,
    endpoints: BTreeSet<EndpointRef>,
}

impl EventListener {
    /// A listener, and the events that it will send.
    pub fn new() -> (Self, mpsc::Receiver<IngressEvent>) {
        let (events, receiver) = mpsc::channel(EVENTS_MAX);
        let listener = Self {
            events,
            services: BTreeMap::new(),
            objects: BTreeMap::new(),
            changed: BTreeSet::new(),
            nodes_changed: false,
            stale: None,
        };
        (listener, receiver)
    }

    /// Listens until the view ends or nobody takes the events.
    pub async fn start_listening(mut self, mut view: impl View) -> Result<(), Closed> {
        while let Some(ops) = view.next().await {
            for op in ops {
                self.take(op).await?;
            }
        }
        Ok(())
    }

    /// Takes one operation of the view.
    pub async fn take(&mut self, op: Op) -> Result<(), Closed> {
        match op {
            Op::Reset => self.reset(),
            Op::SetService(service) => {
                self.seen(|stale| _ = stale.services.remove(&service.key));
                let entry = self.services.entry(service.key.clone()).or_default();
                if entry.service.as_ref() != Some(&service) {
                    self.changed.insert(service.key.clone());
                    entry.service = Some(service);
                }
            }
            Op::DeleteService(key) => {
                if let Some(entry) = self.services.get_mut(&key) {
                    entry.service = None;
                    self.changed.insert(key);
                }
            }
            Op::SetEndpoint(endpoint) => {
                self.seen(|stale| _ = stale.endpoints.remove(&endpoint.key));
                let entry = self.services.entry(endpoint.key.service.clone()).or_default();
                if entry.endpoints.get(&endpoint.key.id) != Some(&endpoint) {
                    self.changed.insert(endpoint.key.service.clone());
                    entry.endpoints.insert(Arc::clone(&endpoint.key.id), endpoint);
                }
            }
            Op::DeleteEndpoint(key) => self.delete_endpoint(&key),
            Op::SetObject(object) => self.set_object(object).await?,
            Op::DeleteObject(object_ref) => self.delete_object(&object_ref).await?,
            Op::Sync => self.sync().await?,
        }
        Ok(())
    }

    /// An Ingress is now this.
    pub async fn process_ingress(&mut self, ingress: Arc<Ingress>) -> Result<(), Closed> {
        self.send(IngressEvent::Add(ingress)).await
    }

    /// An Ingress is no more.
    pub async fn remove_ingress(&mut self, key: ObjectKey) -> Result<(), Closed> {
        self.send(IngressEvent::Remove(key)).await
    }

    /// The addresses at which a service itself is reached: its cluster addresses, or those of its
    /// endpoints where it has none. Empty for a service that is not known, or that is a mere name.
    pub fn resolve_service_ip(&self, key: &ObjectKey) -> Vec<IpAddr> {
        let Some(entry) = self.services.get(key) else { return Vec::new() };
        let Some(service) = &entry.service else { return Vec::new() };
        if !service.cluster_ips.is_empty() {
            return service.cluster_ips.clone();
        }
        entry.endpoints.values().filter_map(|endpoint| endpoint.ips.first().copied()).collect()
    }

    async fn send(&mut self, event: IngressEvent) -> Result<(), Closed> {
        self.events.send(event).await.map_err(|_| Closed)
    }

    fn seen(&mut self, forget: impl FnOnce(&mut Stale)) {
        if let Some(stale) = &mut self.stale {
            forget(stale);
        }
    }

    /// Everything is to be repeated: what is not will be gone.
    fn reset(&mut self) {
        let with_service = self.services.iter().filter(|(_, entry)| entry.service.is_some());
        let services = with_service.map(|(key, _)| key.clone()).collect();
        let all = self.services.values().flat_map(|entry| entry.endpoints.values());
        let endpoints = all.map(|endpoint| endpoint.key.clone()).collect();
        self.stale =
            Some(Stale { objects: self.objects.keys().cloned().collect(), services, endpoints });
    }

    fn delete_endpoint(&mut self, key: &EndpointRef) {
        if let Some(entry) = self.services.get_mut(&key.service)
            && entry.endpoints.remove(&key.id).is_some()
        {
            self.changed.insert(key.service.clone());
        }
    }

    async fn set_object(&mut self, object: Object) -> Result<(), Closed> {
        let object_ref = object.object_ref();
        if !KINDS.contains(&object_ref.kind) {
            return Ok(());
        }
        self.seen(|stale| _ = stale.objects.remove(&object_ref));
        if self.objects.get(&object_ref) == Some(&object) {
            return Ok(());
        }
        self.objects.insert(object_ref.clone(), object.clone());
        let key = object_ref.key;
        match object {
            Object::Ingress(ingress) => self.process_ingress(ingress).await,
            Object::IngressClass(class) => {
                self.send(IngressEvent::Class(key.name, Some(class))).await
            }
            Object::TlsSecret(secret) => {
                self.send(IngressEvent::Certificate(key, Some(secret))).await
            }
            Object::AuthSecret(secret) => {
                self.send(IngressEvent::AuthSecret(key, Some(secret))).await
            }
            Object::ConfigMap(map) => self.send(IngressEvent::ConfigMap(key, Some(map))).await,
            Object::Override(decided) => {
                // What is decided about endpoints stands in the services already.
                let pause = Some(decided).filter(|it| it.is_about_routes());
                self.send(IngressEvent::Pause(key, pause)).await
            }
            Object::Node(_) => {
                self.nodes_changed = true;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    async fn delete_object(&mut self, object_ref: &ObjectRef) -> Result<(), Closed> {
        if self.objects.remove(object_ref).is_none() {
            return Ok(());
        }
        let key = object_ref.key.clone();
        match object_ref.kind {
            Kind::Ingress => self.remove_ingress(key).await,
            Kind::IngressClass => self.send(IngressEvent::Class(key.name, None)).await,
            Kind::TlsSecret => self.send(IngressEvent::Certificate(key, None)).await,
            Kind::AuthSecret => self.send(IngressEvent::AuthSecret(key, None)).await,
            Kind::ConfigMap => self.send(IngressEvent::ConfigMap(key, None)).await,
            Kind::Override => self.send(IngressEvent::Pause(key, None)).await,
            Kind::Node => {
                self.nodes_changed = true;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// The state is consistent: sends what was gathered, and removes what was not repeated.
    async fn sync(&mut self) -> Result<(), Closed> {
        if let Some(stale) = self.stale.take() {
            for object_ref in &stale.objects {
                self.delete_object(object_ref).await?;
            }
            for key in &stale.endpoints {
                self.delete_endpoint(key);
            }
            for key in stale.services {
                if let Some(entry) = self.services.get_mut(&key) {
                    entry.service = None;
                    self.changed.insert(key);
                }
            }
        }
        for key in std::mem::take(&mut self.changed) {
            let news = self.news_of(&key);
            if self
                .services
                .get(&key)
                .is_some_and(|it| it.service.is_none() && it.endpoints.is_empty())
            {
                self.services.remove(&key);
            }
            self.send(IngressEvent::Service(key, news)).await?;
        }
        if std::mem::take(&mut self.nodes_changed) {
            let nodes = self.objects.values().filter_map(|object| match object {
                Object::Node(node) => Some(&**node),
                _ => None,
            });
            let addresses = node_addresses(nodes);
            self.send(IngressEvent::Nodes(addresses)).await?;
        }
        self.send(IngressEvent::Synced).await
    }

    fn news_of(&self, key: &ObjectKey) -> Option<Arc<ServiceNews>> {
        let entry = self.services.get(key)?;
        let service = Arc::clone(entry.service.as_ref()?);
        let addresses = self.resolve_service_ip(key);
        let endpoints = entry.endpoints.values().cloned().collect();
        Some(Arc::new(ServiceNews { service, endpoints, addresses }))
    }
}

/// All that these operations are news of, for who wants it at once.
pub async fn all_events(ops: impl IntoIterator<Item = Op>) -> Result<Vec<IngressEvent>, Closed> {
    let (mut listener, mut events) = EventListener::new();
    let mut all = Vec::new();
    for op in ops {
        // One operation may be news of more than there is room for.
        let mut taking = std::pin::pin!(listener.take(op));
        loop {
            tokio::select! {
                biased;
                Some(event) = events.recv() => all.push(event),
                taken = &mut taking => {
                    taken?;
                    break;
                }
            }
        }
    }
    while let Ok(event) = events.try_recv() {
        all.push(event);
    }
    Ok(all)
}

/// One address per node that stays, the outer one where it has one.
pub fn node_addresses<'a>(nodes: impl Iterator<Item = &'a Node>) -> Vec<IpAddr> {
    let mut addresses: Vec<IpAddr> = nodes
        .filter(|node| !node.is_leaving())
        .filter_map(|node| {
            let of = |kind: &str| {
                node.addresses.iter().find(|it| &*it.address_type == kind).map(|it| it.ip)
            };
            of("ExternalIP").or_else(|| of("InternalIP"))
        })
        .collect();
    addresses.sort_unstable();
    addresses.dedup();
    addresses
}
