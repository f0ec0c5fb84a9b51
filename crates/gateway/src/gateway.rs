//! What is known, and what of the table changes with it.
//!
//! Events are taken one by one and cost nothing but remembering; [`Gateway::commit`] then works out
//! what they change together: Ingresses that changed, or that refer to something that did, are
//! compiled again; services whose endpoints changed get their backends built again; hosts and paths
//! that were touched are settled anew. Everything else is left alone.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use telaio_http_proxy::table::{Age, Backend, BackendId, HostMatch, PathMatch, TableChange};
use telaio_model::{Ingress, ObjectKey, Override};

use crate::backends::BackendSpec;
use crate::claims::{Claims, Place};
use crate::class::{ClassSettings, Classes};
use crate::compile::{Cluster, Compiled, Need, compile};
use crate::host_tls::{self, HostTls};
use crate::listener::{IngressEvent, ServiceNews};
use crate::small_set::SmallSet;
use crate::warning::{Reason, Warning};

/// What decides besides the objects.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GatewaySettings {
    /// Which Ingresses are ours.
    pub class: ClassSettings,
    /// The secret with the certificate for hosts that have none.
    pub default_certificate: Option<ObjectKey>,
    /// Whether `ExternalName` services may lead to the node itself: no warning then.
    pub local_targets: bool,
}

/// What a set of events changes.
#[derive(Debug, Default)]
pub struct Commit {
    /// Of the table.
    pub table: TableChange,
    /// The warnings of Ingresses, as they are now, whose warnings are others than before.
    pub warnings: BTreeMap<ObjectKey, Vec<Warning>>,
    /// Ingresses of ours that came or changed, or `None` for those that went.
    pub ours: BTreeMap<ObjectKey, Option<Arc<Ingress>>>,
}

/// An Ingress that is known.
#[derive(Debug)]
struct Entry {
    ingress: Arc<Ingress>,
    /// What it wants; `None` if it is not ours.
    compiled: Option<Compiled>,
    /// What was last said about it.
    warned: Vec<Warning>,
}

/// A backend and the Ingresses that have it.
#[derive(Debug)]
struct BackendEntry {
    spec: BackendSpec,
    users: SmallSet<ObjectKey>,
    built: Option<Backend>,
}

/// All that the gateway knows.
#[derive(Debug, Default)]
pub struct Gateway {
    settings: GatewaySettings,
    classes: Classes,
    cluster: Cluster,
    // Boxed, here and below: a tree has room for twice as many.
    entries: BTreeMap<ObjectKey, Box<Entry>>,
    /// Who refers to what.
    needed_by: BTreeMap<Need, SmallSet<ObjectKey>>,
    /// The Ingress that each decision about routes is about.
    paused: BTreeMap<ObjectKey, ObjectKey>,
    claims: Claims,
    backends: BTreeMap<BackendId, Box<BackendEntry>>,
    /// The backends of a service.
    of_service: BTreeMap<ObjectKey, SmallSet<BackendId>>,
    tls: HostTls,
    pending: Pending,
}

/// What happened since the last commit.
#[derive(Debug, Default)]
struct Pending {
    ingresses: BTreeMap<ObjectKey, Option<Arc<Ingress>>>,
    needs: BTreeSet<Need>,
    /// Services whose backends are to be built again.
    services: BTreeSet<ObjectKey>,
    secrets: BTreeSet<ObjectKey>,
    classes: bool,
    started: bool,
}

impl Gateway {
    /// A gateway that knows nothing yet.
    pub fn new(settings: GatewaySettings) -> Self {
        let tls = HostTls::new(settings.default_certificate.clone());
        let cluster = Cluster { local_targets: settings.local_targets, ..Cluster::default() };
        Self { settings, cluster, tls, ..Self::default() }
    }

    /// Somebody's decision to pause what has this host and path of an Ingress.
    pub fn pause_of(
        &self,
        ingress: &ObjectKey,
        host: &HostMatch,
        path: &PathMatch,
    ) -> Option<&Override> {
        self.cluster.pause_of(ingress, host, path)
    }

    /// Takes note of an event.
    pub fn take(&mut self, event: IngressEvent) {
        let pending = &mut self.pending;
        match event {
            IngressEvent::Add(ingress) => {
                pending.ingresses.insert(ingress.meta.key.clone(), Some(ingress));
            }
            IngressEvent::Remove(key) => drop(pending.ingresses.insert(key, None)),
            IngressEvent::Class(name, class) => pending.classes |= self.classes.set(&name, class),
            IngressEvent::Service(key, news) => self.take_service(key, news),
            IngressEvent::Certificate(key, secret) => {
                self.cluster.set_certificate(&key, secret);
                pending.secrets.insert(key.clone());
                pending.needs.insert(Need::Secret(key));
            }
            IngressEvent::AuthSecret(key, secret) => {
                set(&mut self.cluster.auth, &key, secret);
                pending.needs.insert(Need::Secret(key));
            }
            IngressEvent::ConfigMap(key, map) => {
                set(&mut self.cluster.maps, &key, map);
                pending.needs.insert(Need::ConfigMap(key));
            }
            IngressEvent::Pause(key, pause) => self.take_pause(key, pause),
            IngressEvent::Nodes(_) | IngressEvent::Synced => {}
        }
    }

    fn take_pause(&mut self, key: ObjectKey, pause: Option<Arc<Override>>) {
        let before = match &pause {
            Some(pause) => self.paused.insert(key.clone(), pause.object.clone()),
            None => self.paused.remove(&key),
        };
        if let Some(ingress) = before
            && let Some(pauses) = self.cluster.pauses.get_mut(&ingress)
        {
            pauses.remove(&key);
            if pauses.is_empty() {
                self.cluster.pauses.remove(&ingress);
            }
            self.pending.needs.insert(Need::Pauses(ingress));
        }
        if let Some(pause) = pause {
            let ingress = pause.object.clone();
            self.cluster.pauses.entry(ingress.clone()).or_default().insert(key, pause);
            self.pending.needs.insert(Need::Pauses(ingress));
        }
    }

    fn take_service(&mut self, key: ObjectKey, news: Option<Arc<ServiceNews>>) {
        let before = self.cluster.services.get(&key);
        // Ingresses depend on a service's ports and kind, not on its endpoints.
        let same_form = match (before, &news) {
            (Some(before), Some(news)) => {
                before.service.ports == news.service.ports
                    && before.service.external_name == news.service.external_name
            }
            (None, None) => true,
            _ => false,
        };
        if !same_form {
            self.pending.needs.insert(Need::Service(key.clone()));
        }
        set(&mut self.cluster.services, &key, news);
        self.pending.services.insert(key);
    }

    /// Works out what the events since the last commit change.
    pub fn commit(&mut self) -> Commit {
        let mut commit = Commit::default();
        let pending = std::mem::take(&mut self.pending);
        if !pending.started {
            let default = self.settings.default_certificate.as_ref();
            commit.table.default_certificate = default.map(|key| Some(key.to_string().into()));
        }
        self.pending.started = true;
        let mut dirty: BTreeSet<ObjectKey> = pending.ingresses.keys().cloned().collect();
        for need in &pending.needs {
            dirty.extend(self.needed_by.get(need).into_iter().flatten().cloned());
        }
        for (key, ingress) in pending.ingresses {
            match ingress {
                Some(ingress) => self.set_ingress(key, ingress),
                None => self.remove_ingress(&key, &mut commit),
            }
        }
        if pending.classes {
            dirty.extend(self.entries.keys().cloned());
        }
        let tls = host_tls::Touched::secrets(pending.secrets);
        let mut touched = Touched { services: pending.services, tls, ..Touched::default() };
        self.tls.touch_default(&mut touched.tls);
        let mut left = Vec::new();
        for key in &dirty {
            self.recompile(key, &mut touched, &mut commit, &mut left);
        }
        self.tls.touch_places(&touched.places, &mut touched.tls);
        let mut concerned =
            self.claims.settle(std::mem::take(&mut touched.places), &mut commit.table);
        self.settle_backends(&touched.services, left, &mut commit.table);
        let cluster = &self.cluster;
        concerned.extend(self.tls.settle(touched.tls, &self.claims, cluster, &mut commit.table));
        dirty.extend(concerned);
        self.tell(dirty, &mut commit);
        commit
    }

    fn set_ingress(&mut self, key: ObjectKey, ingress: Arc<Ingress>) {
        let new = Entry { ingress: Arc::clone(&ingress), compiled: None, warned: Vec::new() };
        self.entries.entry(key).or_insert_with(|| Box::new(new)).ingress = ingress;
    }

    /// Marks an Ingress as gone; what it had is taken back when it is compiled.
    fn remove_ingress(&mut self, key: &ObjectKey, commit: &mut Commit) {
        if let Some(entry) = self.entries.get(key) {
            if entry.compiled.is_some() {
                commit.ours.insert(key.clone(), None);
            }
            self.pending.ingresses.insert(key.clone(), None);
        }
    }

    /// Compiles an Ingress again and replaces what it had.
    fn recompile(
        &mut self,
        key: &ObjectKey,
        touched: &mut Touched,
        commit: &mut Commit,
        left: &mut Vec<BackendId>,
    ) {
        let gone = self.pending.ingresses.remove(key).is_some();
        let Some(entry) = self.entries.get_mut(key) else { return };
        let before = entry.compiled.take().unwrap_or_default();
        let is_ours = !gone && self.classes.is_ours(&entry.ingress, &self.settings.class);
        let after = is_ours.then(|| compile(&entry.ingress, &self.cluster));
        let ingress = Arc::clone(&entry.ingress);
        match (&after, before.age != Age::default()) {
            (Some(_), _) => drop(commit.ours.insert(key.clone(), Some(ingress))),
            (None, true) => drop(commit.ours.insert(key.clone(), None)),
            (None, false) => {}
        }
        let none = Compiled::default();
        let new = after.as_ref().unwrap_or(&none);
        self.claims.replace(&before.claims, &new.claims, &mut touched.places);
        for need in before.needs.difference(&new.needs) {
            if let Some(users) = self.needed_by.get_mut(need) {
                users.remove(key);
                if users.is_empty() {
                    self.needed_by.remove(need);
                }
            }
        }
        for need in new.needs.difference(&before.needs) {
            self.needed_by.entry(need.clone()).or_default().insert(key.clone());
        }
        self.replace_backends(key, &before.backends, &new.backends, touched, left);
        self.tls.replace(&before, new, &mut touched.tls);
        if let Some(entry) = self.entries.get_mut(key) {
            entry.compiled = after;
        }
        if gone {
            let warned = self.entries.remove(key).is_some_and(|entry| !entry.warned.is_empty());
            if warned {
                commit.warnings.insert(key.clone(), Vec::new());
            }
        }
    }

    fn replace_backends(
        &mut self,
        key: &ObjectKey,
        before: &[BackendSpec],
        after: &[BackendSpec],
        touched: &mut Touched,
        left: &mut Vec<BackendId>,
    ) {
        for spec in before.iter().filter(|spec| !after.contains(spec)) {
            if let Some(entry) = self.backends.get_mut(&spec.id) {
                entry.users.remove(key);
                left.push(spec.id.clone());
            }
        }
        for spec in after {
            let of_service = self.of_service.entry(spec.service.clone()).or_default();
            if of_service.insert(spec.id.clone()) {
                touched.services.insert(spec.service.clone());
            }
            let entry = self.backends.entry(spec.id.clone()).or_insert_with(|| {
                let users = SmallSet::default();
                Box::new(BackendEntry { spec: spec.clone(), users, built: None })
            });
            if entry.spec != *spec {
                entry.spec = spec.clone();
                touched.services.insert(spec.service.clone());
            }
            entry.users.insert(key.clone());
        }
    }

    /// Builds the backends of services that changed, and drops those that nobody has any more.
    fn settle_backends(
        &mut self,
        services: &BTreeSet<ObjectKey>,
        left: Vec<BackendId>,
        change: &mut TableChange,
    ) {
        for id in left {
            if self.backends.get(&id).is_some_and(|entry| entry.users.is_empty())
                && let Some(entry) = self.backends.remove(&id)
            {
                if let Some(all) = self.of_service.get_mut(&entry.spec.service) {
                    all.remove(&id);
                    if all.is_empty() {
                        self.of_service.remove(&entry.spec.service);
                    }
                }
                if entry.built.is_some() {
                    change.backends.insert(id, None);
                }
            }
        }
        for service in services {
            let news = self.cluster.services.get(service);
            for id in self.of_service.get(service).into_iter().flatten() {
                let Some(entry) = self.backends.get_mut(id) else { continue };
                // A service that went while routes lead there: nobody is there to ask.
                let nobody = || Backend::new(id.as_str(), Vec::new());
                let built = news
                    .and_then(|news| entry.spec.build(news))
                    .or_else(|| entry.built.is_some().then(nobody));
                if built != entry.built {
                    change.backends.insert(id.clone(), built.clone());
                    entry.built = built;
                }
            }
        }
    }

    /// Gathers the warnings of Ingresses that may have others than before.
    fn tell(&mut self, concerned: BTreeSet<ObjectKey>, commit: &mut Commit) {
        for key in concerned {
            let Some(entry) = self.entries.get_mut(&key) else { continue };
            let own = entry.compiled.iter().flat_map(|compiled| &compiled.warnings);
            let lost = entry.compiled.iter().flat_map(|compiled| self.tls.warnings(&key, compiled));
            let mut warnings: Vec<Warning> =
                own.chain(self.claims.warnings(&key)).chain(lost).cloned().collect();
            warnings.sort();
            warnings.dedup();
            bound(&key, &mut warnings);
            if warnings != entry.warned {
                entry.warned.clone_from(&warnings);
                commit.warnings.insert(key, warnings);
            }
        }
    }

    /// All Ingresses of ours.
    pub fn ours(&self) -> impl Iterator<Item = &Arc<Ingress>> {
        let ours = self.entries.values().filter(|entry| entry.compiled.is_some());
        ours.map(|entry| &entry.ingress)
    }

    /// All warnings.
    pub fn warnings(&self) -> impl Iterator<Item = &Warning> {
        self.entries.values().flat_map(|entry| &entry.warned)
    }
}

/// The most warnings of one Ingress: they are kept, reported and written as Events.
const WARNINGS_MAX: usize = 64;

/// Leaves out what one Ingress has too much of.
fn bound(ingress: &ObjectKey, warnings: &mut Vec<Warning>) {
    if warnings.len() > WARNINGS_MAX {
        let more = warnings.len() - (WARNINGS_MAX - 1);
        warnings.truncate(WARNINGS_MAX - 1);
        let message = format!("{more} further warnings are left out");
        warnings.push(Warning::new(ingress, Reason::BadAnnotation, message));
    }
}

/// What a commit has to look at.
#[derive(Debug, Default)]
struct Touched {
    places: BTreeSet<Place>,
    services: BTreeSet<ObjectKey>,
    tls: host_tls::Touched,
}

fn set<T>(map: &mut BTreeMap<ObjectKey, T>, key: &ObjectKey, value: Option<T>) {
    match value {
        Some(value) => drop(map.insert(key.clone(), value)),
        None => drop(map.remove(key)),
    }
}
