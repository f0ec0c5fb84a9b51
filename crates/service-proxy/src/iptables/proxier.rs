//! The rules of one family in the kernel, and how they are kept right.
//!
//! [`Iptables`] knows what it has put there and so writes only what changes: a service that differs is
//! compiled as it was and as it is, and the difference is one text for `iptables-restore`. When it does
//! not know, at the start, after an error or to look for drift, it reads everything with
//! `iptables-save`, keeps what is right and mends the rest. Chains that are not ours are never
//! touched, and of the kernel's own chains only our jumps.

use std::collections::{BTreeMap, BTreeSet};

use telaio_model::{IpFamily, ObjectKey, ServiceEndpoints};
use telaio_reconcile::{ApplyError, SyncKind, SyncReport};

use super::claims::Claims;
use super::compile::{Claimant, Context, ServiceRules, SharedChain, SharedRule, Slot, compile};
use super::keeper::Keeper;
use super::mend::{Expected, Mend};
use super::names::{ChainName, Owner, Table};
use super::restore::{Limits, Phase, Restore, text_of};
use super::scaffold::Scaffold;
use super::shared::{SharedEdit, SharedRules, Timing, WantedShared, sends_on, write_whole};

/// Services by name.
pub type Services = BTreeMap<ObjectKey, ServiceEndpoints>;

/// Services that changed, as they are now; `None` for one that is gone.
pub type Changes = BTreeMap<ObjectKey, Option<ServiceEndpoints>>;

/// The kernel's packet filter of one family, by way of the programs that change it.
pub trait Kernel: Send {
    /// What `iptables-save` prints.
    fn save(&mut self) -> Result<String, ApplyError>;

    /// Runs `iptables-restore --noflush` with a text, given in pieces. Each table's part takes
    /// effect as a whole or not at all; after an error earlier parts may have.
    fn restore(&mut self, text: &[&str]) -> Result<(), ApplyError>;

    /// Nobody has ever changed a rule here, so that there is nothing to read.
    fn is_untouched(&mut self) -> bool {
        false
    }

    /// What is fastest with it.
    fn limits(&self) -> Limits;
}

/// The services as the last sync left them, and what may have changed since.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    /// As they were.
    pub before: &'a Services,
    /// What is different now.
    pub changes: &'a Changes,
}

impl View<'static> {
    /// There are no services and never were.
    pub(super) fn nothing() -> Self {
        static SERVICES: Services = Services::new();
        static CHANGES: Changes = Changes::new();
        Self { before: &SERVICES, changes: &CHANGES }
    }
}

impl<'a> View<'a> {
    fn was(self, key: &ObjectKey) -> Option<&'a ServiceEndpoints> {
        self.before.get(key)
    }

    fn is(self, key: &ObjectKey) -> Option<&'a ServiceEndpoints> {
        match self.changes.get(key) {
            Some(change) => change.as_ref(),
            None => self.before.get(key),
        }
    }

    /// All services as they are now.
    pub(super) fn all(self) -> impl Iterator<Item = &'a ServiceEndpoints> + use<'a> {
        let changes = self.changes;
        let unchanged = self.before.iter().filter(|(key, _)| !changes.contains_key(*key));
        unchanged.map(|(_, entry)| entry).chain(changes.values().flatten())
    }
}

/// A number of rules for each table that metrics know, as kube-proxy's do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RuleCounts {
    /// In the nat table.
    pub nat: usize,
    /// In the filter table.
    pub filter: usize,
}

impl RuleCounts {
    /// Some rules go, others come.
    pub(super) fn change(&mut self, table: Table, gone: usize, come: usize) {
        let count = match table {
            Table::Nat => &mut self.nat,
            Table::Filter => &mut self.filter,
            // Never counted, neither by kube-proxy: most have but a canary there.
            Table::Mangle => return,
        };
        *count = (*count + come).saturating_sub(gone);
    }

    pub(super) fn add(&mut self, table: Table, come: usize) {
        self.change(table, 0, come);
    }

    pub(super) fn plus(self, other: Self) -> Self {
        Self { nat: self.nat + other.nat, filter: self.filter + other.filter }
    }
}

/// One family's numbers for metrics, since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Rules in our chains, as the last sync that succeeded left them.
    pub rules: RuleCounts,
    /// Rules that the last sync wrote or removed, one by one; a chain that goes counts as none.
    pub rules_last: RuleCounts,
    /// Restores that failed.
    pub failures: u64,
    /// Those of them that were to write only what changed.
    pub partial_failures: u64,
    /// Transactions that were to be made.
    pub commits: u64,
}

/// One family's rules.
pub struct Iptables {
    keeper: Keeper,
    context: Context,
    scaffold: Scaffold,
    claims: Claims,
}

impl std::fmt::Debug for Iptables {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Iptables").field("context", &self.context).finish_non_exhaustive()
    }
}

impl Iptables {
    /// The rules of `context`'s family in `kernel`, about which nothing is known yet.
    pub fn new(kernel: Box<dyn Kernel>, context: Context) -> Self {
        Self {
            keeper: Keeper::new(kernel, Owner::Iptables),
            scaffold: Scaffold::new(&context),
            context,
            claims: Claims::default(),
        }
    }

    /// The family.
    pub fn family(&self) -> IpFamily {
        self.context.family
    }

    /// Numbers for metrics.
    pub fn counters(&self) -> Counters {
        self.keeper.counters
    }

    /// What all rules depend on is now this; the next sync mends what differs.
    pub fn set_context(&mut self, context: Context) {
        if context != self.context {
            self.scaffold = Scaffold::new(&context);
            self.context = context;
            self.keeper.forget();
        }
    }

    /// Brings the kernel up to date, as thoroughly as `kind` says.
    pub fn sync(&mut self, kind: SyncKind, view: View<'_>) -> Result<SyncReport, ApplyError> {
        let mut report = SyncReport::default();
        let mut expected = self.keeper.begin();
        if self.keeper.is_known() {
            match self.apply_changes(view) {
                Ok(applied) => report = applied,
                Err(error) => {
                    self.keeper.counters.partial_failures += 1;
                    let family = self.context.family;
                    tracing::warn!(%family, %error, "cannot change single chains; comparing all");
                    expected = Expected::Changes;
                }
            }
        }
        if !self.keeper.is_known() || kind != SyncKind::Changes {
            report = report.plus(self.mend(view, expected)?);
        }
        Ok(report)
    }

    /// Writes anew what stands in these chains, which somebody else has changed, and nothing else: the
    /// rest is taken to be as we left it. `None`, and nothing is done, if that cannot be: one of the
    /// kernel's own is among them, services changed, or nothing is known.
    pub fn mend_chains(
        &mut self,
        chains: &BTreeSet<(Table, &str)>,
        view: View<'_>,
    ) -> Result<Option<SyncReport>, ApplyError> {
        let ours: BTreeSet<(Table, &str)> =
            chains.iter().filter(|(_, chain)| self.keeper.owner.owns(chain)).copied().collect();
        // Our jumps are in the kernel's own chains, which have no name here.
        let simple = chains.iter().all(|(_, chain)| !chain.is_empty()) && view.changes.is_empty();
        if !simple || !self.keeper.is_known() {
            return Ok(None);
        }
        let (restore, updated) = self.write_anew(&ours, view);
        let mut report = SyncReport { updated, ..SyncReport::default() };
        if report.updated != ours.len() {
            return Ok(None);
        }
        self.keeper.begin();
        self.keeper.restore(&restore)?;
        report.drift_repairs = report.updated;
        if report.updated > 0 {
            let family = self.context.family;
            let what: Vec<&str> = ours.iter().map(|(_, chain)| *chain).collect();
            let what = what.join(", ");
            tracing::warn!(%family, what, "somebody else changed chains of ours; mended");
        }
        Ok(Some(report))
    }

    /// Text that writes these chains as they have to be, and how many of them there are.
    fn write_anew(&self, chains: &BTreeSet<(Table, &str)>, view: View<'_>) -> (Restore, usize) {
        let mut restore = Restore::new(self.keeper.limits());
        let mut written = 0;
        if chains.is_empty() {
            return (restore, written);
        }
        let wanted = |table: Table, chain: ChainName| chains.contains(&(table, chain.as_str()));
        for (table, chain, rules) in &self.scaffold.chains {
            if wanted(*table, *chain) {
                restore.base(*table).write_chain(*chain, rules);
                written += 1;
            }
        }
        let shared = SharedChain::ALL.into_iter().filter(|it| wanted(it.place().0, it.place().1));
        let shared: Vec<SharedChain> = shared.collect();
        let mut all = WantedShared::default();
        for entry in view.all() {
            let compiled = compile(entry, &self.context);
            for (chain, rules) in &compiled.chains {
                if wanted(Table::Nat, *chain) {
                    restore.prepare().write_chain(*chain, rules);
                    written += 1;
                }
            }
            if !shared.is_empty() {
                all.add(compiled);
            }
        }
        let (rules, _) = all.finish();
        for shared in shared {
            let rules = rules.get(&shared).into_iter().flatten().map(String::as_str);
            let end = self.scaffold.end_of(shared);
            write_whole(shared, rules, end, Phase::BeforeNat, &mut restore);
            written += 1;
        }
        (restore, written)
    }

    /// Reads everything, keeps what is right and mends the rest.
    fn mend(&mut self, view: View<'_>, expected: Expected) -> Result<SyncReport, ApplyError> {
        let text = self.keeper.read()?;
        let mend = Mend::new(self.keeper.owner, &text, view, expected, self.keeper.limits());
        let mended = mend.run(&self.context, &self.scaffold);
        self.claims = mended.claims;
        self.keeper.settle(&mended.restore, mended.rules)?;
        Ok(mended.faults.report(self.context.family))
    }

    /// Writes what leads from the services before to those now.
    fn apply_changes(&mut self, view: View<'_>) -> Result<SyncReport, ApplyError> {
        let mut report = SyncReport::default();
        let mut restore = Restore::new(self.keeper.limits());
        let mut rules = self.keeper.counters.rules;
        let changed = Changed::compile(view, &self.context);
        let redirected = self.change_shared(view, &changed, &mut restore, &mut report, &mut rules);
        for (key, [old, new]) in &changed.services {
            change_chains(old, new, redirected.contains(key), &mut restore, &mut report);
            rules.change(Table::Nat, own_rule_count(old), own_rule_count(new));
        }
        self.keeper.restore(&restore)?;
        self.keeper.counters.rules = rules;
        Ok(report)
    }

    /// Changes the rules of shared chains; says which services have others than before.
    fn change_shared<'a>(
        &mut self,
        view: View<'_>,
        changed: &Changed<'a>,
        restore: &mut Restore,
        report: &mut SyncReport,
        rules: &mut RuleCounts,
    ) -> BTreeSet<&'a ObjectKey> {
        let slots = changed.slots();
        let held: Vec<Option<Claimant>> =
            slots.keys().map(|slot| self.claims.holder(*slot).cloned()).collect();
        changed.claim(&mut self.claims);
        let mut edits: BTreeMap<SharedChain, SharedEdit> = BTreeMap::new();
        let mut redirected = BTreeSet::new();
        for ((slot, services), held) in slots.into_iter().zip(held) {
            let old = held.map(|it| self.rules_in(slot, &it, changed, 0, view.was(&it.service)));
            let holds = self.claims.holder(slot);
            let new = holds.map(|it| self.rules_in(slot, it, changed, 1, view.is(&it.service)));
            let (old, new) = (old.unwrap_or_default(), new.unwrap_or_default());
            if old == new {
                continue;
            }
            redirected.extend(services);
            let timing = Timing { sent_on_before: sends_on(&old), sent_on_after: sends_on(&new) };
            for rule in old.iter().filter(|rule| !new.contains(rule)) {
                edits.entry(rule.chain).or_default().delete(text_of(&rule.rule), timing);
            }
            for rule in new.iter().filter(|rule| !old.contains(rule)) {
                edits.entry(rule.chain).or_default().insert(text_of(&rule.rule), timing);
            }
        }
        self.edit_shared(view, &edits, restore);
        for (shared, edit) in &edits {
            report.created += edit.insert_count();
            report.deleted += edit.delete_count();
            rules.change(shared.place().0, edit.delete_count(), edit.insert_count());
        }
        redirected
    }

    /// The rules that a holder has in a slot. A holder that did not change, which matters only
    /// where two claim a slot, is compiled for that.
    fn rules_in(
        &self,
        slot: Slot,
        holder: &Claimant,
        changed: &Changed<'_>,
        which: usize,
        entry: Option<&ServiceEndpoints>,
    ) -> Vec<SharedRule> {
        let wish = match changed.services.get(&holder.service) {
            Some(rules) => rules[which].slots.get(&slot).cloned(),
            None => entry.and_then(|entry| compile(entry, &self.context).slots.remove(&slot)),
        };
        wish.map(|wish| wish.rules).unwrap_or_default()
    }

    fn edit_shared(
        &self,
        view: View<'_>,
        edits: &BTreeMap<SharedChain, SharedEdit>,
        restore: &mut Restore,
    ) {
        let limits = self.keeper.limits();
        let mut all: Option<SharedRules> = None;
        for (shared, edit) in edits {
            if !edit.is_big(self.claims.len(), limits) {
                edit.write(*shared, restore);
                continue;
            }
            let all = all.get_or_insert_with(|| {
                let mut wanted = WantedShared::default();
                for entry in view.all() {
                    wanted.add(compile(entry, &self.context));
                }
                wanted.finish().0
            });
            let rules = all.get(shared).map(Vec::as_slice).unwrap_or_default();
            edit.rewrite(*shared, rules, self.scaffold.end_of(*shared), restore);
        }
    }
}

/// The services that changed, compiled as they were and as they are.
struct Changed<'a> {
    services: BTreeMap<&'a ObjectKey, [ServiceRules; 2]>,
}

impl<'a> Changed<'a> {
    fn compile(view: View<'a>, context: &Context) -> Self {
        let compiled = |entry: Option<&ServiceEndpoints>| {
            entry.map(|entry| compile(entry, context)).unwrap_or_default()
        };
        let keys = view.changes.keys();
        let services =
            keys.map(|key| (key, [compiled(view.was(key)), compiled(view.is(key))])).collect();
        Self { services }
    }

    /// The slots that they want or wanted, and who.
    fn slots(&self) -> BTreeMap<Slot, Vec<&'a ObjectKey>> {
        let mut slots: BTreeMap<Slot, Vec<&ObjectKey>> = BTreeMap::new();
        for (key, rules) in &self.services {
            for slot in rules.iter().flat_map(|rules| rules.slots.keys()) {
                slots.entry(*slot).or_default().push(key);
            }
        }
        slots
    }

    fn claim(&self, claims: &mut Claims) {
        for [old, new] in self.services.values() {
            for (slot, wish) in &old.slots {
                claims.remove(*slot, &wish.claimant);
            }
            for (slot, wish) in &new.slots {
                claims.add(*slot, wish.claimant.clone());
            }
        }
    }
}

/// How many rules a service has in chains of its own.
pub(super) fn own_rule_count(rules: &ServiceRules) -> usize {
    rules.chains.values().map(Vec::len).sum()
}

/// Writes the chains of a service that differ.
fn change_chains(
    old: &ServiceRules,
    new: &ServiceRules,
    redirected: bool,
    restore: &mut Restore,
    report: &mut SyncReport,
) {
    let written: Vec<_> =
        new.chains.iter().filter(|(chain, rules)| old.chains.get(chain) != Some(rules)).collect();
    let changes = written.iter().filter(|(chain, _)| old.chains.contains_key(chain)).count();
    report.updated += changes;
    report.created += written.len() - changes;
    if !written.is_empty() {
        // Chains that traffic is in must change together with the rules that lead to them.
        let together = redirected && changes > 0;
        let section = if together { restore.switch() } else { restore.prepare() };
        for (chain, rules) in written {
            section.write_chain(*chain, rules);
        }
    }
    let gone: Vec<_> = old.chains.keys().filter(|chain| !new.chains.contains_key(chain)).collect();
    report.deleted += gone.len();
    if !gone.is_empty() {
        let section = restore.retire(Table::Nat);
        for chain in gone {
            section.remove_chain(chain.as_str());
        }
    }
}

/// The whole text that programs these services where nothing is there yet.
pub(super) fn whole_text(services: &Services, context: &Context) -> String {
    let changes = Changes::new();
    let view = View { before: services, changes: &changes };
    let mend = Mend::new(Owner::Iptables, "", view, Expected::Everything, Limits::LEGACY);
    mend.run(context, &Scaffold::new(context)).restore.text().concat()
}
