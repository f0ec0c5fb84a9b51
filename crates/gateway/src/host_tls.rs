//! Who has a host's TLS: whose certificate it is served with, or to whose backend its connections go
//! unopened.
//!
//! What always holds:
//! - Who names a host for a Secret comes before whose Secret merely has the name; among equals the
//!   older Ingress wins.
//! - A host's TLS is passed through only for the namespace that has had the host longest, be it by a
//!   rule, a certificate or a passage of its own. Exact hosts and wildcards are hosts of their own here:
//!   which of them a client means is the proxy's to find out.
//! - Whoever loses is told so.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use telaio_http_proxy::table::{Age, BackendId, Certificate, CertificateId, TableChange};
use telaio_model::ObjectKey;

use crate::claims::{Claims, Place};
use crate::compile::{Cluster, Compiled, host_match};
use crate::warning::{Reason, Warning};

/// How good a claim to a host's certificate is, and how old.
type Standing = (Named, Age);

/// How a host came to a Secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Named {
    /// An Ingress names both.
    ByIngress,
    /// The host is one of the names in the Secret's certificate.
    ByCertificate,
}

/// The hosts and secrets that a set of changes touches.
#[derive(Debug, Default)]
pub(crate) struct Touched {
    pub(crate) secrets: BTreeSet<ObjectKey>,
    hosts: BTreeSet<Arc<str>>,
    passthrough: BTreeSet<Arc<str>>,
}

impl Touched {
    /// These secrets.
    pub(crate) fn secrets(secrets: BTreeSet<ObjectKey>) -> Self {
        Self { secrets, ..Self::default() }
    }
}

/// The secrets that Ingresses have for a host, and the one whose certificate it gets.
#[derive(Debug, Default)]
struct Served {
    claims: BTreeMap<Standing, ObjectKey>,
    winner: Option<ObjectKey>,
    /// The Ingresses whose certificate is not used, and what they are told.
    losers: BTreeMap<ObjectKey, Warning>,
}

impl Served {
    /// The first whose secret is there; a certificate that is missing keeps nobody's place, but what
    /// was named is never left to whose certificate merely has the name.
    fn choose(&self, cluster: &Cluster) -> Option<(&Standing, &ObjectKey)> {
        let (first, _) = self.claims.first_key_value()?;
        let mut equals = self.claims.iter().take_while(|((named, _), _)| *named == first.0);
        let usable = equals.find(|(_, key)| cluster.tls.contains_key(*key));
        usable.or_else(|| self.claims.first_key_value())
    }

    /// Works out who has the host, and who is told that somebody else has. Gives those who are told
    /// something else than before. A copy of the same certificate loses nothing.
    fn judge(&mut self, host: &str, cluster: &Cluster) -> BTreeSet<ObjectKey> {
        let mut losers = BTreeMap::new();
        let chosen = self.choose(cluster).map(|(standing, key)| (standing.clone(), key.clone()));
        let usable = chosen
            .as_ref()
            .and_then(|(standing, key)| Some((standing, key, &cluster.tls.get(key)?.certificate)));
        if let Some(((named, winner), winner_key, certificate)) = usable {
            for ((own, age), key) in &self.claims {
                let secret = cluster.tls.get(key);
                if age.name == winner.name
                    || secret.is_none_or(|secret| secret.certificate == *certificate)
                {
                    continue;
                }
                let why = match (named, own) {
                    (Named::ByIngress, Named::ByIngress) => "an older Ingress names",
                    (Named::ByIngress, Named::ByCertificate) => "another Ingress names",
                    (Named::ByCertificate, _) => "an older Ingress has",
                };
                let ingress = ObjectKey::parse(&age.name);
                let message = format!(
                    "the certificate of the Secret {key} is not used for {host}: {why} the Secret \
                     {winner_key} for it"
                );
                let warning = Warning::new(&ingress, Reason::Conflict, message);
                losers.insert(ingress, warning);
            }
        }
        self.winner = chosen.map(|(_, key)| key);
        replace_losers(&mut self.losers, losers)
    }
}

/// Replaces what losers are told; gives those who are told something else than before.
fn replace_losers(
    known: &mut BTreeMap<ObjectKey, Warning>,
    losers: BTreeMap<ObjectKey, Warning>,
) -> BTreeSet<ObjectKey> {
    let before = std::mem::replace(known, losers);
    let keys = before.keys().chain(known.keys());
    keys.filter(|key| before.get(key) != known.get(key)).cloned().collect()
}

/// Who wants a host's TLS for its backend, and who gets it.
#[derive(Debug, Default)]
struct Passage {
    claims: BTreeMap<Age, BackendId>,
    winner: Option<BackendId>,
    losers: BTreeMap<ObjectKey, Warning>,
}

impl Passage {
    /// Works out who has the host, whose oldest claim otherwise is `known`. Gives those who are told
    /// something else than before.
    fn judge(&mut self, host: &str, known: Option<&Age>) -> BTreeSet<ObjectKey> {
        let first = self.claims.keys().next();
        let owner = known.into_iter().chain(first).min().map(|age| ObjectKey::parse(&age.name));
        let is_of_owner = |age: &Age| {
            let own = ObjectKey::parse(&age.name).namespace;
            owner.as_ref().is_some_and(|owner| owner.namespace == own)
        };
        let winner = self.claims.iter().find(|(age, _)| is_of_owner(age));
        let mut losers = BTreeMap::new();
        for (age, backend) in &self.claims {
            let other = match (&winner, &owner) {
                (Some((_, has)), _) if is_of_owner(age) && *has == backend => continue,
                (Some((winner, _)), _) if is_of_owner(age) => ObjectKey::parse(&winner.name),
                (_, Some(owner)) => owner.clone(),
                (_, None) => continue,
            };
            let ingress = ObjectKey::parse(&age.name);
            let message = format!(
                "TLS for {host} is not passed through as asked for here: the older Ingress {other} has \
                 the host"
            );
            let warning = Warning::new(&ingress, Reason::Conflict, message);
            losers.insert(ingress, warning);
        }
        self.winner = winner.map(|(_, backend)| backend.clone());
        replace_losers(&mut self.losers, losers)
    }
}

/// How a secret is used.
#[derive(Debug, Default)]
struct SecretUse {
    hosts: BTreeSet<Arc<str>>,
    /// What stands in the table.
    standing: Option<Certificate>,
}

/// Who has which host's TLS.
#[derive(Debug, Default)]
pub(crate) struct HostTls {
    default: Option<ObjectKey>,
    served: BTreeMap<Arc<str>, Served>,
    /// The hosts that each secret has won.
    secrets: BTreeMap<ObjectKey, SecretUse>,
    passages: BTreeMap<Arc<str>, Passage>,
}

impl HostTls {
    /// Nobody has anything; hosts without a certificate get that of this secret.
    pub(crate) fn new(default: Option<ObjectKey>) -> Self {
        Self { default, ..Self::default() }
    }

    /// Looks at the default's secret too, if it never was.
    pub(crate) fn touch_default(&mut self, touched: &mut Touched) {
        if let Some(key) = &self.default
            && !self.secrets.contains_key(key)
        {
            self.secrets.insert(key.clone(), SecretUse::default());
            touched.secrets.insert(key.clone());
        }
    }

    /// Takes back what an Ingress wanted, and takes what it wants now.
    pub(crate) fn replace(&mut self, before: &Compiled, after: &Compiled, touched: &mut Touched) {
        for claim in &before.tls {
            if let Some(served) = self.served.get_mut(&claim.host) {
                served.claims.remove(&(claim.named, before.age.clone()));
            }
            touched.hosts.insert(Arc::clone(&claim.host));
        }
        for claim in &after.tls {
            let served = self.served.entry(Arc::clone(&claim.host)).or_default();
            // Of two entries of one Ingress for a host the first counts.
            let standing = (claim.named, after.age.clone());
            served.claims.entry(standing).or_insert_with(|| claim.secret.clone());
            touched.hosts.insert(Arc::clone(&claim.host));
        }
        for (host, _) in &before.passthrough {
            if let Some(passage) = self.passages.get_mut(host) {
                passage.claims.remove(&before.age);
            }
            touched.passthrough.insert(Arc::clone(host));
        }
        for (host, backend) in &after.passthrough {
            let passage = self.passages.entry(Arc::clone(host)).or_default();
            passage.claims.entry(after.age.clone()).or_insert_with(|| backend.clone());
            touched.passthrough.insert(Arc::clone(host));
        }
    }

    /// Looks again at who has the hosts of these places, where they are passed through.
    pub(crate) fn touch_places(&self, places: &BTreeSet<Place>, touched: &mut Touched) {
        if self.passages.is_empty() {
            return;
        }
        for place in places {
            let host = place.host.to_string();
            if let Some((host, _)) = self.passages.get_key_value(&*host) {
                touched.passthrough.insert(Arc::clone(host));
            }
        }
    }

    /// Decides who gets what was touched, and gives the table what differs. Gives the Ingresses whose
    /// warnings may differ.
    pub(crate) fn settle(
        &mut self,
        mut touched: Touched,
        claims: &Claims,
        cluster: &Cluster,
        change: &mut TableChange,
    ) -> BTreeSet<ObjectKey> {
        let mut concerned = BTreeSet::new();
        for host in &touched.hosts {
            if self.passages.contains_key(host) {
                touched.passthrough.insert(Arc::clone(host));
            }
            let Some(served) = self.served.get_mut(host) else { continue };
            let before = served.winner.clone();
            concerned.extend(served.judge(host, cluster));
            let winner = served.winner.clone();
            if winner.is_none() {
                self.served.remove(host);
            }
            if before == winner {
                continue;
            }
            if let Some(key) = before
                && let Some(used) = self.secrets.get_mut(&key)
            {
                used.hosts.remove(host);
                touched.secrets.insert(key);
            }
            if let Some(key) = winner {
                self.secrets.entry(key.clone()).or_default().hosts.insert(Arc::clone(host));
                touched.secrets.insert(key);
            }
        }
        for key in &touched.secrets {
            self.settle_secret(key, cluster, change);
        }
        for host in &touched.passthrough {
            concerned.extend(self.settle_passage(host, claims, change));
        }
        concerned
    }

    fn settle_secret(&mut self, key: &ObjectKey, cluster: &Cluster, change: &mut TableChange) {
        let is_default = self.default.as_ref() == Some(key);
        let Some(used) = self.secrets.get_mut(key) else { return };
        let wanted = is_default || !used.hosts.is_empty();
        let secret = cluster.tls.get(key).filter(|_| wanted);
        let certificate = secret.map(|secret| Certificate {
            hosts: used.hosts.iter().cloned().collect(),
            chain_pem: Arc::clone(&secret.certificate),
            key_pem: Arc::clone(&secret.private_key),
        });
        if certificate != used.standing {
            let id: CertificateId = key.to_string().into();
            change.certificates.insert(id, certificate.clone());
            used.standing = certificate;
        }
        if !wanted {
            self.secrets.remove(key);
        }
    }

    fn settle_passage(
        &mut self,
        host: &Arc<str>,
        claims: &Claims,
        change: &mut TableChange,
    ) -> BTreeSet<ObjectKey> {
        let Some(passage) = self.passages.get_mut(host) else { return BTreeSet::new() };
        let by_rule = claims.oldest(&host_match(host));
        let served = self.served.get(host).into_iter().flat_map(|served| served.claims.keys());
        let by_secret = served.filter(|(named, _)| *named == Named::ByIngress).map(|(_, age)| age);
        let known = by_rule.into_iter().chain(by_secret).min();
        let before = passage.winner.take();
        let concerned = passage.judge(host, known);
        if before != passage.winner {
            change.passthrough.insert(Arc::clone(host), passage.winner.clone());
        }
        if passage.claims.is_empty() {
            self.passages.remove(host);
        }
        concerned
    }

    /// What an Ingress is told that has lost something.
    pub(crate) fn warnings<'a>(
        &'a self,
        ingress: &'a ObjectKey,
        compiled: &'a Compiled,
    ) -> impl Iterator<Item = &'a Warning> {
        let served = compiled.tls.iter().filter_map(|claim| self.served.get(&claim.host));
        let passages = compiled.passthrough.iter().filter_map(|(host, _)| self.passages.get(host));
        let lost = served.filter_map(|served| served.losers.get(ingress));
        lost.chain(passages.filter_map(|passage| passage.losers.get(ingress)))
    }
}
