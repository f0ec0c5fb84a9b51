//! What all services together want of the shared chains, and edits of those chains.

use std::collections::{BTreeMap, BTreeSet};

use super::claims::Claims;
use super::compile::{Claimant, ServiceRules, SharedChain, SharedRule, Slot};
use super::names::Table;
use super::restore::{Limits, Phase, Restore, text_of};
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

/// When a rule of the filter table comes or goes, so that a packet never meets what is neither old nor
/// new. What nat sends on meets no such rule; so a rule is without effect as long as nat sends its slot
/// on, and that is when it has to come and to go.
#[derive(Debug, Clone, Copy)]
pub(super) struct Timing {
    /// nat has sent the slot's packets on, or some of them.
    pub(super) sent_on_before: bool,
    /// It will.
    pub(super) sent_on_after: bool,
}

impl Timing {
    fn insert(self) -> Phase {
        let first = self.sent_on_before || !self.sent_on_after;
        if first { Phase::BeforeNat } else { Phase::AfterNat }
    }

    fn delete(self) -> Phase {
        if self.sent_on_after { Phase::AfterNat } else { Phase::BeforeNat }
    }
}

/// Rules that come into a chain, and rules that leave it, at once.
#[derive(Debug, Default)]
struct Edit {
    insert: Vec<String>,
    delete: Vec<String>,
}

impl Edit {
    fn is_empty(&self) -> bool {
        self.insert.is_empty() && self.delete.is_empty()
    }
}

/// How a shared chain changes in one sync.
#[derive(Debug, Default)]
pub(super) struct SharedEdit {
    phases: [Edit; 2],
}

impl SharedEdit {
    fn phase(&mut self, phase: Phase) -> &mut Edit {
        let [before, after] = &mut self.phases;
        match phase {
            Phase::BeforeNat => before,
            Phase::AfterNat => after,
        }
    }

    pub(super) fn insert(&mut self, rule: String, timing: Timing) {
        self.phase(timing.insert()).insert.push(rule);
    }

    pub(super) fn delete(&mut self, rule: String, timing: Timing) {
        self.phase(timing.delete()).delete.push(rule);
    }

    pub(super) fn insert_count(&self) -> usize {
        self.phases.iter().map(|edit| edit.insert.len()).sum()
    }

    pub(super) fn delete_count(&self) -> usize {
        self.phases.iter().map(|edit| edit.delete.len()).sum()
    }

    /// Whether writing a chain of about so many rules anew is faster.
    pub(super) fn is_big(&self, rule_count: usize, limits: Limits) -> bool {
        self.delete_count() > rule_count / limits.rules_per_delete + 8
    }

    /// Writes it rule by rule.
    pub(super) fn write(&self, shared: SharedChain, to: &mut Restore) {
        let (table, chain) = shared.place();
        for (edit, phase) in self.phases.iter().zip(Phase::ALL) {
            let section = to.shared(table, phase);
            for rule in &edit.insert {
                section.insert_text(chain.as_str(), rule);
            }
            for rule in &edit.delete {
                section.delete_text(chain.as_str(), rule);
            }
        }
    }

    /// Writes the whole chain, which is to have `rules` and then `end`.
    pub(super) fn rewrite(
        &self,
        shared: SharedChain,
        rules: &[String],
        end: &[Rule],
        to: &mut Restore,
    ) {
        let [before, after] = &self.phases;
        let everything = || rules.iter().map(String::as_str);
        if shared.place().0 == Table::Nat {
            return write_whole(shared, everything(), end, Phase::AfterNat, to);
        }
        if !before.is_empty() {
            let later: BTreeSet<&str> = after.insert.iter().map(String::as_str).collect();
            let still = after.delete.iter().map(String::as_str);
            let rules = everything().filter(|rule| !later.contains(rule)).chain(still);
            write_whole(shared, rules, end, Phase::BeforeNat, to);
        }
        if !after.is_empty() {
            write_whole(shared, everything(), end, Phase::AfterNat, to);
        }
    }
}

/// Writes a whole shared chain.
pub(super) fn write_whole<'a>(
    shared: SharedChain,
    rules: impl Iterator<Item = &'a str>,
    end: &[Rule],
    phase: Phase,
    to: &mut Restore,
) {
    let (table, chain) = shared.place();
    let section = to.shared(table, phase);
    section.declare(chain.as_str());
    for rule in rules {
        section.append_text(chain.as_str(), rule);
    }
    for rule in end {
        section.append(chain, rule);
    }
}

/// Whether one of these rules makes nat send packets on.
pub(super) fn sends_on(rules: &[SharedRule]) -> bool {
    rules.iter().any(|rule| rule.chain.place().0 == Table::Nat)
}
