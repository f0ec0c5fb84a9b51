//! Who holds which slot.
//!
//! Two services may claim one address and port, by mistake or to take another's traffic. The least
//! [`Claimant`] holds it, whoever came first, so that every node and every restart decides alike.

use std::collections::HashMap;

use super::compile::{Claimant, Slot};

/// The claims of all services on slots.
#[derive(Debug, Default)]
pub(super) struct Claims {
    /// Nearly always one each.
    slots: HashMap<Slot, Vec<Claimant>>,
}

impl Claims {
    pub(super) fn add(&mut self, slot: Slot, claimant: Claimant) {
        self.slots.entry(slot).or_default().push(claimant);
    }

    pub(super) fn remove(&mut self, slot: Slot, claimant: &Claimant) {
        if let Some(claims) = self.slots.get_mut(&slot) {
            claims.retain(|other| other != claimant);
            if claims.is_empty() {
                self.slots.remove(&slot);
            }
        }
    }

    /// Who holds it.
    pub(super) fn holder(&self, slot: Slot) -> Option<&Claimant> {
        self.slots.get(&slot)?.iter().min()
    }

    /// How many slots are held: about as many as there are rules in shared chains.
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }
}
