//! What all services together want of the shared chains, and edits of those chains.

use std::collections::BTreeMap;

use super::claims::Claims;
use super::compile::{Claimant, ServiceRules, SharedChain, Slot};
use super::names::Table;
use super::restore::{Limits, Restore, Section, text_of};
use super::rule::Rule;

/// The rules of each shared chain as texts, without its end; a chain without rules is left out.
pub(super) type SharedRules = BTreeMap<SharedChain, Vec<String>>;

/// Gathers what services want.
#[derive(Debug, Default)]
pub(super) struct WantedShared {
    claims: Claims,
    slots: BTreeMap<Slot, (Claimant, Vec<(SharedChain, String)>)>,
}

impl WantedShared {
    pub(super) fn add(&mut self, rules: ServiceRules) {
        for (slot, wish) in rules.slots {
            self.claims.add(slot, wish.claimant.clone());
            if self.slots.get(&slot).is_none_or(|(holder, _)| wish.claimant < *holder) {
                let texts = wish.rules.iter().map(|it| (it.chain, text_of(&it.rule))).collect();
                self.slots.insert(slot, (wish.claimant, texts));
            }
        }
    }

    /// The rules of those who hold their slots, in the slots' order, and everybody's claims.
    pub(super) fn finish(self) -> (SharedRules, Claims) {
        let mut chains = SharedRules::new();
        for (chain, rule) in self.slots.into_values().flat_map(|(_, rules)| rules) {
            chains.entry(chain).or_default().push(rule);
        }
        (chains, self.claims)
    }
}

/// Rules that come into a shared chain, and rules that leave it.
#[derive(Debug, Default)]
pub(super) struct SharedEdit {
    pub(super) insert: Vec<String>,
    pub(super) delete: Vec<String>,
}

impl SharedEdit {
    /// Whether writing a chain of about so many rules anew is faster.
    pub(super) fn is_big(&self, rule_count: usize, limits: Limits) -> bool {
        self.delete.len() > rule_count / limits.rules_per_delete + 8
    }

    /// Writes it: rule by rule, or with `anew` the whole chain.
    pub(super) fn write(&self, shared: SharedChain, anew: Option<Anew<'_>>, to: &mut Restore) {
        let (table, chain) = shared.place();
        // In nat one part has both; in the filter what refuses comes before nat and goes after.
        if anew.is_none() || table != Table::Nat {
            let section = to.add(table);
            for rule in &self.insert {
                section.insert_text(chain.as_str(), rule);
            }
        }
        if let Some(anew) = anew {
            anew.replace(shared, to);
            return;
        }
        let section = to.take(table);
        for rule in &self.delete {
            section.delete_text(chain.as_str(), rule);
        }
    }
}

/// All that a shared chain should have.
#[derive(Debug, Clone, Copy)]
pub(super) struct Anew<'a> {
    pub(super) rules: &'a [String],
    pub(super) end: &'a [Rule],
}

impl Anew<'_> {
    /// Writes a chain that is there and whose rules have to change.
    fn replace(self, shared: SharedChain, to: &mut Restore) {
        self.write(shared, to.take(shared.place().0));
    }

    /// Writes a chain that is not there, or not as it has to be.
    pub(super) fn make(self, shared: SharedChain, to: &mut Restore) {
        self.write(shared, to.add(shared.place().0));
    }

    fn write(self, shared: SharedChain, section: &mut Section) {
        let (_, chain) = shared.place();
        section.declare(chain.as_str());
        for rule in self.rules {
            section.append_text(chain.as_str(), rule);
        }
        for rule in self.end {
            section.append(chain, rule);
        }
    }
}
