//! A text for `iptables-restore --noflush`: what one sync changes in one family.
//!
//! Each table's part ends in `COMMIT` and is taken as a whole or not at all. The parts come in an
//! order that a sync can be cut after any of them:
//! 1. filter, as far as it is without effect because nat still sends packets on;
//! 2. nat, where each service changes from old to new;
//! 3. filter, as far as it is without effect because nat sends packets on from now.
//!
//! One nat part is the rule. But `iptables-nft-restore` looks up each chain that a part names in a
//! list, so that thousands of chains take it minutes; for it a big change is split, between services
//! only: first chains that nothing leads to yet, or whose addresses stay, then the shared chains, then
//! what nothing leads to any more. See [`Limits`].

use std::fmt::Write;

use super::names::{ChainName, Table};
use super::proxier::RuleCounts;
use super::rule::Rule;

/// What is fastest with one flavour of iptables; measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// How many chains a part may name.
    pub chains_per_commit: usize,
    /// To delete more than one in so many rules of a shared chain, the chain is written anew.
    pub rules_per_delete: usize,
}

impl Limits {
    /// For iptables on nf_tables: 10,000 services take 2.5 s with parts of 150 chains, 59 s with
    /// one part; deleting one of 10,000 rules takes 11 ms, writing all of them 1 s.
    pub const NFT: Self = Self { chains_per_commit: 150, rules_per_delete: 128 };
    /// For iptables-legacy, which reads and writes the whole table for each part.
    pub const LEGACY: Self = Self { chains_per_commit: usize::MAX, rules_per_delete: 32 };
}

/// The end of a part.
const COMMIT: &str = "COMMIT\n";

/// When the filter table changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    BeforeNat,
    AfterNat,
}

impl Phase {
    pub(super) const ALL: [Self; 2] = [Self::BeforeNat, Self::AfterNat];
}

/// One part: changes to one table that take effect together.
#[derive(Debug, Default)]
pub(super) struct Section {
    declared: String,
    edits: String,
    removed: String,
    /// How many chains it names.
    chains: usize,
    rules: usize,
}

impl Section {
    fn is_empty(&self) -> bool {
        self.declared.is_empty() && self.edits.is_empty() && self.removed.is_empty()
    }

    /// A chain has exactly these rules.
    pub(super) fn write_chain<'a>(
        &mut self,
        name: ChainName,
        rules: impl IntoIterator<Item = &'a Rule>,
    ) {
        self.declare(name.as_str());
        for rule in rules {
            self.append(name, rule);
        }
    }

    /// Makes a chain, or empties it.
    pub(super) fn declare(&mut self, name: &str) {
        self.declared.extend([":", name, " - [0:0]\n"]);
        self.chains += 1;
    }

    pub(super) fn append(&mut self, chain: ChainName, rule: &Rule) {
        self.edits.extend(["-A ", chain.as_str(), " "]);
        // Writing to a string cannot fail.
        let _ = rule.write(&mut self.edits);
        self.edits.push('\n');
        self.rules += 1;
    }

    /// Adds a rule, given as a text, at the end of a chain.
    pub(super) fn append_text(&mut self, chain: &str, rule: &str) {
        self.edit("-A ", chain, rule);
    }

    /// Adds a rule at the beginning of a chain.
    pub(super) fn insert_text(&mut self, chain: &str, rule: &str) {
        self.edit("-I ", chain, rule);
    }

    /// Removes a rule.
    pub(super) fn delete_text(&mut self, chain: &str, rule: &str) {
        self.edit("-D ", chain, rule);
    }

    fn edit(&mut self, what: &str, chain: &str, rule: &str) {
        self.edits.extend([what, chain, " ", rule, "\n"]);
        self.rules += 1;
    }

    /// Removes a chain, with its rules.
    pub(super) fn remove_chain(&mut self, name: &str) {
        self.declare(name);
        self.removed.extend(["-X ", name, "\n"]);
    }

    /// Removes a chain that is empty.
    pub(super) fn remove_empty_chain(&mut self, name: &str) {
        self.removed.extend(["-X ", name, "\n"]);
        self.chains += 1;
    }

    /// One transaction of these, in pieces.
    fn write<'a>(sections: &[&'a Self], table: Table, text: &mut Vec<&'a str>) {
        if sections.iter().all(|section| section.is_empty()) {
            return;
        }
        text.push(match table {
            Table::Filter => "*filter\n",
            Table::Mangle => "*mangle\n",
            Table::Nat => "*nat\n",
        });
        text.extend(sections.iter().map(|section| section.declared.as_str()));
        text.extend(sections.iter().map(|section| section.edits.as_str()));
        text.extend(sections.iter().map(|section| section.removed.as_str()));
        text.push(COMMIT);
    }
}

/// All changes of one sync.
#[derive(Debug)]
pub(super) struct Restore {
    limits: Limits,
    /// filter: chains and rules that are new.
    filter_before: Section,
    /// nat: fixed chains, which those of services lead to.
    base: Section,
    /// nat: service chains to write, each service wholly in one part.
    prepare: Vec<Section>,
    /// nat: shared chains, and chains that have to change together with them.
    switch: Section,
    /// nat: chains to remove.
    retire: Vec<Section>,
    /// filter: what has to go.
    filter_after: Section,
    /// mangle: whatever changes.
    mangle: Section,
}

impl Restore {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            filter_before: Section::default(),
            base: Section::default(),
            prepare: Vec::new(),
            switch: Section::default(),
            retire: Vec::new(),
            filter_after: Section::default(),
            mangle: Section::default(),
        }
    }

    /// Where chains are written that have to change together with shared ones.
    pub(super) fn switch(&mut self) -> &mut Section {
        &mut self.switch
    }

    /// Where a service's chains are written that may change before the shared ones do.
    pub(super) fn prepare(&mut self) -> &mut Section {
        with_room(&mut self.prepare, self.limits)
    }

    /// Where a table's fixed chains are written.
    pub(super) fn base(&mut self, table: Table) -> &mut Section {
        match table {
            Table::Filter => &mut self.filter_before,
            Table::Mangle => &mut self.mangle,
            Table::Nat => &mut self.base,
        }
    }

    /// Where shared chains, and the kernel's own, change.
    pub(super) fn shared(&mut self, table: Table, phase: Phase) -> &mut Section {
        match (table, phase) {
            (Table::Filter, Phase::BeforeNat) => &mut self.filter_before,
            (Table::Filter, Phase::AfterNat) => &mut self.filter_after,
            (Table::Mangle, _) => &mut self.mangle,
            (Table::Nat, _) => &mut self.switch,
        }
    }

    /// Where a chain is removed that nothing leads to any more.
    pub(super) fn retire(&mut self, table: Table) -> &mut Section {
        match table {
            Table::Filter => &mut self.filter_after,
            Table::Mangle => &mut self.mangle,
            Table::Nat => with_room(&mut self.retire, self.limits),
        }
    }

    fn nat(&self) -> impl Iterator<Item = &Section> {
        let first = [&self.base].into_iter().chain(&self.prepare);
        first.chain([&self.switch]).chain(&self.retire)
    }

    fn sections(&self) -> impl Iterator<Item = &Section> {
        self.nat().chain([&self.filter_before, &self.filter_after, &self.mangle])
    }

    pub(super) fn is_empty(&self) -> bool {
        self.sections().all(Section::is_empty)
    }

    /// How many rules it writes or removes.
    pub(super) fn rule_counts(&self) -> RuleCounts {
        RuleCounts {
            nat: self.nat().map(|section| section.rules).sum(),
            filter: self.filter_before.rules + self.filter_after.rules,
        }
    }

    /// How many transactions a text is.
    pub(super) fn commit_count(text: &[&str]) -> u64 {
        text.iter().filter(|piece| **piece == COMMIT).count() as u64
    }

    /// The text, in pieces that need not be copied; nothing if nothing changes.
    pub(super) fn text(&self) -> Vec<&str> {
        let nat: Vec<&Section> = self.nat().collect();
        let mut text = Vec::new();
        let nat_changes = nat.iter().any(|section| !section.is_empty());
        if nat_changes {
            Section::write(&[&self.filter_before], Table::Filter, &mut text);
            let chains: usize = nat.iter().map(|section| section.chains).sum();
            if chains <= self.limits.chains_per_commit {
                Section::write(&nat, Table::Nat, &mut text);
            } else {
                for section in nat {
                    Section::write(&[section], Table::Nat, &mut text);
                }
            }
            Section::write(&[&self.filter_after], Table::Filter, &mut text);
        } else {
            let both = [&self.filter_before, &self.filter_after];
            Section::write(&both, Table::Filter, &mut text);
        }
        Section::write(&[&self.mangle], Table::Mangle, &mut text);
        text
    }
}

fn with_room(sections: &mut Vec<Section>, limits: Limits) -> &mut Section {
    if sections.last().is_none_or(|last| last.chains >= limits.chains_per_commit) {
        sections.push(Section::default());
    }
    let last = sections.len() - 1;
    &mut sections[last]
}

/// A rule as it is written.
pub(super) fn text_of(rule: &Rule) -> String {
    let mut text = String::with_capacity(128);
    // Writing to a string cannot fail.
    let _ = write!(text, "{rule}");
    text
}
