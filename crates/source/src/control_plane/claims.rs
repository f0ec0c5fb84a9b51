//! Who wrote which address or port, and who was given one.

use std::collections::BTreeMap;

use telaio_model::{ObjectKey, Service};

use super::Origin;

/// A service that writes an address. The order decides who keeps one that several write.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Claimant {
    /// When it was made; one that does not say comes last.
    created_s: i64,
    /// Where it was declared.
    pub(super) origin: Origin,
    /// Its name.
    pub(super) key: ObjectKey,
}

impl Claimant {
    pub(super) fn new(service: &Service, origin: Origin) -> Self {
        Self {
            created_s: service.meta.created_s.unwrap_or(i64::MAX),
            origin,
            key: service.meta.key.clone(),
        }
    }
}

/// The addresses, or the ports, of all services.
#[derive(Debug)]
pub(super) struct Claims<K> {
    /// Who wrote it, the first first. Nearly always one, so a list is the smallest form.
    declared: BTreeMap<K, Vec<Claimant>>,
    /// To whom it was given.
    given: BTreeMap<K, ObjectKey>,
}

impl<K> Default for Claims<K> {
    fn default() -> Self {
        Self { declared: BTreeMap::new(), given: BTreeMap::new() }
    }
}

impl<K: Ord + Copy> Claims<K> {
    /// Notes that a manifest writes `what`.
    pub(super) fn declare(&mut self, what: K, claimant: Claimant) {
        let claimants = self.declared.entry(what).or_insert_with(|| Vec::with_capacity(1));
        if let Err(at) = claimants.binary_search(&claimant) {
            claimants.insert(at, claimant);
        }
    }

    /// Notes that a manifest writes `what` no more.
    pub(super) fn withdraw(&mut self, what: K, claimant: &Claimant) {
        if let Some(claimants) = self.declared.get_mut(&what) {
            claimants.retain(|other| other != claimant);
            if claimants.is_empty() {
                self.declared.remove(&what);
            }
        }
    }

    /// All who write `what`, the one who keeps it first.
    pub(super) fn claimants(&self, what: K) -> &[Claimant] {
        self.declared.get(&what).map_or(&[], Vec::as_slice)
    }

    /// To whom it was given.
    pub(super) fn owner(&self, what: K) -> Option<&ObjectKey> {
        self.given.get(&what)
    }

    /// Nobody writes it and nobody was given it.
    pub(super) fn is_free(&self, what: K) -> bool {
        !self.declared.contains_key(&what) && !self.given.contains_key(&what)
    }

    /// Gives it to a service, unless it is taken.
    pub(super) fn give(&mut self, what: K, owner: &ObjectKey) -> bool {
        let free = self.is_free(what);
        if free {
            self.given.insert(what, owner.clone());
        }
        free
    }

    /// Takes it back.
    pub(super) fn take_back(&mut self, what: K) {
        self.given.remove(&what);
    }
}
