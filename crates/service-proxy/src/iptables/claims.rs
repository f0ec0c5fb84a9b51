//! Who holds which slot.
//!
//! Two services may claim one address and port, by mistake or to take another's traffic. The least
//! [`Claimant`] holds it, whoever came first, so that every node and every restart decides alike.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::compile::{Claimant, Slot};

/// The claims of all services on slots.
#[derive(Debug, Default)]
pub(super) struct Claims {
    /// The holder, and who would like to be. Nearly always nobody would.
    slots: HashMap<Slot, (Claimant, Vec<Claimant>)>,
}

impl Claims {
    pub(super) fn add(&mut self, slot: Slot, claimant: Claimant) {
        match self.slots.entry(slot) {
            Entry::Vacant(vacant) => drop(vacant.insert((claimant, Vec::new()))),
            Entry::Occupied(mut taken) => {
                let (holder, others) = taken.get_mut();
                let mut loser = claimant;
                if loser < *holder {
                    std::mem::swap(&mut loser, holder);
                }
                others.push(loser);
            }
        }
    }

    pub(super) fn remove(&mut self, slot: Slot, claimant: &Claimant) {
        let Some((holder, others)) = self.slots.get_mut(&slot) else { return };
        if holder != claimant {
            others.retain(|other| other != claimant);
            return;
        }
        others.sort_unstable();
        if others.is_empty() {
            self.slots.remove(&slot);
        } else {
            *holder = others.remove(0);
        }
    }

    /// Who holds it.
    pub(super) fn holder(&self, slot: Slot) -> Option<&Claimant> {
        self.slots.get(&slot).map(|(holder, _)| holder)
    }

    /// How many slots are held: about as many as there are rules in shared chains.
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }
}
