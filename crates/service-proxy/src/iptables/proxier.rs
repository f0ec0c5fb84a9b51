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
use super::compile::{
    Claimant, Context, ServiceRules, SharedChain, SharedRule, Slot, compile,
};
use super::live::{Difference, Live, compare_shared, same};
use super::names::Table;
use super::restore::{Limits, Restore, text_of};
use super::scaffold::Scaffold;

/// Services by name.
pub type Services = BTreeMap<ObjectKey, ServiceEndpoints>;

/// Services that changed, as they are now; `None` for one that is gone.
pub type Changes = BTreeMap<ObjectKey, Option<ServiceEndpoints>>;

/// How many faults a message names; the rest it counts.
const FAULTS_NAMED_MAX: usize = 8;

/// The kernel's packet filter of one family, by way of the programs that change it.
pub trait Kernel: Send {
    /// What `iptables-save` prints.
    fn save(&mut self) -> Result<String, ApplyError>;

    /// Runs `iptables-restore --noflush` with a text. Each table's part takes effect as a whole or
    /// not at all; after an error earlier parts may have.
    fn restore(&mut self, text: &str) -> Result<(), ApplyError>;

    /// What is fastest with it.
    fn limits(&self) -> Limits;
}

/// The services before a sync and what changed since.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    /// As the last sync left them.
    pub before: &'a Services,
    /// What is different now.
    pub changes: &'a Changes,
}

impl<'a> View<'a> {
    fn old(&self, key: &ObjectKey) -> Option<&'a ServiceEndpoints> {
        self.before.get(key)
    }

    fn new(&self, key: &ObjectKey) -> Option<&'a ServiceEndpoints> {
        match self.changes.get(key) {
            Some(change) => change.as_ref(),
            None => self.before.get(key),
        }
    }

    /// All services as they are now.
    fn all(&self) -> impl Iterator<Item = &'a ServiceEndpoints> {
        let changes = self.changes;
        let unchanged = self.before.iter().filter(|(key, _)| !changes.contains_key(*key));
        unchanged.map(|(_, entry)| entry).chain(changes.values().flatten())
    }
}

/// What a mend was to find, because it is known to be different.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expected {
    /// Nothing: every difference is somebody else's doing.
    Nothing,
    /// Services that changed.
    Changes,
    /// Everything: it is the first look, or what all rules depend on has changed.
    Everything,
}

/// Numbers for metrics, since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Rules that our chains have, as last counted.
    pub rules: usize,
    /// Rules that the last restore wrote or removed.
    pub rules_last: usize,
    /// Restores that failed.
    pub failures: u64,
    /// Those of them that were to write only what changed.
    pub partial_failures: u64,
}

/// One family's rules.
pub struct Iptables {
    kernel: Box<dyn Kernel>,
    context: Context,
    scaffold: Scaffold,
    claims: Claims,
    /// What is in the kernel is what we have put there, as far as we know.
    known: bool,
    synced_once: bool,
    counters: Counters,
}

impl std::fmt::Debug for Iptables {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Iptables").field("context", &self.context).finish_non_exhaustive()
    }
}

impl Iptables {
    /// The rules of `context`'s family in `kernel`, about which nothing is known yet.
    pub fn new(kernel: Box<dyn Kernel>, context: Context) -> Self {
        let scaffold = Scaffold::new(&context);
        Self {
            kernel,
            context,
            scaffold,
            claims: Claims::default(),
            known: false,
            synced_once: false,
            counters: Counters::default(),
        }
    }

    /// The family.
    pub fn family(&self) -> IpFamily {
        self.context.family
    }

    /// Numbers for metrics.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// What all rules depend on is now this; the next sync mends what differs.
    pub fn set_context(&mut self, context: Context) {
        if context != self.context {
            self.scaffold = Scaffold::new(&context);
            self.context = context;
            self.known = false;
            self.synced_once = false;
        }
    }

    /// Brings the kernel up to date, as thoroughly as `kind` says.
    pub fn sync(&mut self, kind: SyncKind, view: View<'_>) -> Result<SyncReport, ApplyError> {
        let mut report = SyncReport::default();
        let mut expected = match (self.known, self.synced_once) {
            (true, _) => Expected::Nothing,
            (false, true) => Expected::Changes,
            (false, false) => Expected::Everything,
        };
        if self.known {
            match self.apply_changes(view) {
                Ok(applied) => report = applied,
                Err(error) => {
                    self.counters.partial_failures += 1;
                    let family = self.context.family;
                    tracing::warn!(%family, %error, "cannot change single chains; comparing all");
                    expected = Expected::Changes;
                }
            }
        }
        if !self.known || kind != SyncKind::Changes {
            report = report.plus(self.mend(view, expected)?);
        }
        Ok(report)
    }

    /// Runs a text; from the moment it begins until it has succeeded nothing is known.
    fn restore(&mut self, restore: &Restore) -> Result<(), ApplyError> {
        if restore.is_empty() {
            return Ok(());
        }
        self.known = false;
        self.counters.rules_last = restore.rule_count();
        self.kernel.restore(&restore.text()).inspect_err(|_| self.counters.failures += 1)?;
        self.known = true;
        Ok(())
    }

    fn apply_changes(&mut self, view: View<'_>) -> Result<SyncReport, ApplyError> {
        let mut report = SyncReport::default();
        let restore = self.changes(view, &mut report);
        self.restore(&restore)?;
        Ok(report)
    }

    /// The text that leads from the services before to those now.
    fn changes(&mut self, view: View<'_>, report: &mut SyncReport) -> Restore {
        let compiled = |entry: Option<&ServiceEndpoints>| {
            entry.map(|entry| compile(entry, &self.context)).unwrap_or_default()
        };
        let changed: BTreeMap<&ObjectKey, [ServiceRules; 2]> = view
            .changes
            .keys()
            .map(|key| (key, [compiled(view.old(key)), compiled(view.new(key))]))
            .collect();
        let mut restore = Restore::new(self.kernel.limits());
        let redirected = self.change_shared(view, &changed, &mut restore, report);
        for (key, [old, new]) in &changed {
            change_chains(old, new, redirected.contains(*key), &mut restore, report);
        }
        restore
    }

    /// Changes the rules of shared chains; says which services have others than before.
    fn change_shared<'a>(
        &mut self,
        view: View<'_>,
        changed: &BTreeMap<&'a ObjectKey, [ServiceRules; 2]>,
        restore: &mut Restore,
        report: &mut SyncReport,
    ) -> BTreeSet<&'a ObjectKey> {
        let rules = changed.values().flatten();
        let slots: BTreeSet<Slot> = rules.flat_map(|rules| rules.slots.keys().copied()).collect();
        let held: Vec<(Slot, Option<Claimant>)> =
            slots.into_iter().map(|slot| (slot, self.claims.holder(slot).cloned())).collect();
        for [old, new] in changed.values() {
            for (slot, wish) in &old.slots {
                self.claims.remove(*slot, &wish.claimant);
            }
            for (slot, wish) in &new.slots {
                self.claims.add(*slot, wish.claimant.clone());
            }
        }
        let mut edits: BTreeMap<SharedChain, SharedEdit> = BTreeMap::new();
        let mut redirected = BTreeSet::new();
        for (slot, holder) in held {
            let old = self.rules_in(slot, holder.as_ref(), changed, 0, |key| view.old(key));
            let holder = self.claims.holder(slot).cloned();
            let new = self.rules_in(slot, holder.as_ref(), changed, 1, |key| view.new(key));
            if old == new {
                continue;
            }
            redirected.extend(
                changed.iter().filter(|(_, [a, b])| {
                    a.slots.contains_key(&slot) || b.slots.contains_key(&slot)
                }).map(|(key, _)| *key),
            );
            for rule in old.iter().filter(|rule| !new.contains(rule)) {
                edits.entry(rule.chain).or_default().delete.push(text_of(&rule.rule));
            }
            for rule in new.iter().filter(|rule| !old.contains(rule)) {
                edits.entry(rule.chain).or_default().insert.push(text_of(&rule.rule));
            }
        }
        self.edit_shared(view, &edits, restore, report);
        redirected
    }

    /// The rules that a holder has in a slot. A holder that did not change, which matters only
    /// where two claim a slot, is compiled for that.
    fn rules_in<'a>(
        &self,
        slot: Slot,
        holder: Option<&Claimant>,
        changed: &BTreeMap<&ObjectKey, [ServiceRules; 2]>,
        which: usize,
        entry: impl Fn(&ObjectKey) -> Option<&'a ServiceEndpoints>,
    ) -> Vec<SharedRule> {
        let Some(holder) = holder else { return Vec::new() };
        let wish = match changed.get(&holder.service) {
            Some(rules) => rules[which].slots.get(&slot).cloned(),
            None => entry(&holder.service)
                .and_then(|entry| compile(entry, &self.context).slots.remove(&slot)),
        };
        wish.map(|wish| wish.rules).unwrap_or_default()
    }

    fn edit_shared(
        &self,
        view: View<'_>,
        edits: &BTreeMap<SharedChain, SharedEdit>,
        restore: &mut Restore,
        report: &mut SyncReport,
    ) {
        let delete_max = self.claims.len() / self.kernel.limits().rules_per_delete + 8;
        let mut all: Option<BTreeMap<SharedChain, Vec<String>>> = None;
        for (shared, edit) in edits {
            report.created += edit.insert.len();
            report.deleted += edit.delete.len();
            let rewrite = (edit.delete.len() > delete_max).then(|| {
                all.get_or_insert_with(|| self.wanted_shared(view.all()).0)
                    .get(shared)
                    .map(Vec::as_slice)
                    .unwrap_or_default()
            });
            self.write_shared(*shared, edit, rewrite, restore);
        }
    }

    fn write_shared(
        &self,
        shared: SharedChain,
        edit: &SharedEdit,
        rewrite: Option<&[String]>,
        restore: &mut Restore,
    ) {
        let (table, chain) = shared.place();
        let name = chain.as_str();
        let is_nat = table == Table::Nat;
        // In nat one part has both; in the filter what refuses comes before and goes after.
        if !(is_nat && rewrite.is_some()) {
            let section = restore.table(table);
            edit.insert.iter().for_each(|rule| section.insert_text(name, rule));
        }
        let section = if is_nat { &mut restore.switch } else { &mut restore.filter_after };
        match rewrite {
            None => edit.delete.iter().for_each(|rule| section.delete_text(name, rule)),
            Some(rules) => {
                section.declare(name);
                rules.iter().for_each(|rule| section.append_text(name, rule));
                let end = self.scaffold.end_of(shared);
                end.iter().for_each(|rule| section.append(chain, rule));
            }
        }
    }

    /// The rules that shared chains should have, without their ends, and everybody's claims.
    fn wanted_shared<'a>(
        &self,
        services: impl Iterator<Item = &'a ServiceEndpoints>,
    ) -> (BTreeMap<SharedChain, Vec<String>>, Claims) {
        let mut wanted = WantedShared::default();
        for entry in services {
            wanted.add(compile(entry, &self.context));
        }
        wanted.finish()
    }

    /// Reads everything, keeps what is right and mends the rest.
    fn mend(&mut self, view: View<'_>, expected: Expected) -> Result<SyncReport, ApplyError> {
        self.known = false;
        let text = self.kernel.save()?;
        let mut live = Live::parse(&text);
        let was_empty = live.is_empty();
        let mut faults = Faults { expected, changes: view.changes, ..Faults::default_for(view) };
        let mut restore = Restore::new(self.kernel.limits());
        self.mend_scaffold(&mut live, &mut restore, &mut faults);
        let mut wanted = WantedShared::default();
        for entry in view.all() {
            let rules = compile(entry, &self.context);
            mend_service(&entry.service.key, &rules, &mut live, &mut restore, &mut faults);
            wanted.add(rules);
        }
        let (shared, claims) = wanted.finish();
        self.claims = claims;
        self.mend_shared(&shared, &mut live, &mut restore, &mut faults);
        for (table, chain) in live.unwanted() {
            faults.unexpected(None, || format!("chain {chain} in table {}", table.as_str()));
            let section = match table {
                Table::Nat => restore.retire(),
                Table::Filter => &mut restore.filter_after,
                Table::Mangle => &mut restore.mangle,
            };
            section.remove_chain(chain);
        }
        self.counters.rules = live.rule_count();
        if was_empty {
            self.counters.rules = restore.rule_count();
        }
        self.restore(&restore)?;
        self.known = true;
        self.synced_once = true;
        Ok(faults.report(self.context.family))
    }

    fn mend_scaffold(
        &self,
        live: &mut Live<'_>,
        restore: &mut Restore,
        faults: &mut Faults<'_>,
    ) {
        for (table, chain, rules) in &self.scaffold.chains {
            let difference = live.compare(*table, *chain, rules);
            if faults.chain(None, &difference, *table, chain.as_str()) {
                restore.table(*table).write_chain(*chain, rules);
            }
        }
        let mut wanted: BTreeMap<(Table, &str), Vec<String>> = BTreeMap::new();
        for (table, chain, rule) in &self.scaffold.jumps {
            wanted.entry((*table, chain.as_str())).or_default().push(text_of(rule));
        }
        let mut found: BTreeMap<(Table, &str), Vec<&str>> = BTreeMap::new();
        for (table, chain, rule) in live.jumps() {
            found.entry((*table, chain)).or_default().push(rule);
        }
        let chains: BTreeSet<(Table, &str)> = wanted.keys().chain(found.keys()).copied().collect();
        for at in chains {
            let (table, chain) = at;
            let wanted = wanted.get(&at).map(Vec::as_slice).unwrap_or_default();
            let found = found.get(&at).map(Vec::as_slice).unwrap_or_default();
            let difference = compare_shared(wanted, found);
            // Each goes to the head of its chain, so the last is the first.
            for rule in difference.missing.iter().rev() {
                faults.missing(None, || format!("rule in {chain}: {rule}"));
                restore.table(table).insert_text(chain, rule);
            }
            for rule in difference.unexpected {
                faults.unexpected(None, || format!("rule in {chain}: {rule}"));
                let section = match table {
                    Table::Filter => &mut restore.filter_after,
                    Table::Nat | Table::Mangle => restore.table(table),
                };
                section.delete_text(chain, rule);
            }
        }
    }

    fn mend_shared(
        &self,
        wanted: &BTreeMap<SharedChain, Vec<String>>,
        live: &mut Live<'_>,
        restore: &mut Restore,
        faults: &mut Faults<'_>,
    ) {
        let delete_max = self.claims.len() / self.kernel.limits().rules_per_delete + 8;
        for shared in SharedChain::ALL {
            let (table, chain) = shared.place();
            let wanted = wanted.get(&shared).map(Vec::as_slice).unwrap_or_default();
            let end = self.scaffold.end_of(shared);
            let found = live.want(table, chain).map(<[&str]>::to_vec);
            let split = found.as_ref().map(|found| found.split_at(found.len().saturating_sub(end.len())));
            let Some((rules, _)) = split.filter(|(_, last)| same(end, last)) else {
                let difference =
                    if found.is_some() { Difference::Altered } else { Difference::Missing };
                faults.chain(None, &difference, table, chain.as_str());
                // What is to be refused is there before nat changes; nothing is lost by writing it
                // all at once.
                let section = restore.table(table);
                section.declare(chain.as_str());
                wanted.iter().for_each(|rule| section.append_text(chain.as_str(), rule));
                end.iter().for_each(|rule| section.append(chain, rule));
                continue;
            };
            let difference = compare_shared(wanted, rules);
            let edit = SharedEdit::from(&difference);
            for rule in &edit.insert {
                faults.missing(service_in(rule).as_ref(), || format!("rule in {chain}: {rule}"));
            }
            for rule in &edit.delete {
                faults.unexpected(service_in(rule).as_ref(), || format!("rule in {chain}: {rule}"));
            }
            let rewrite = (edit.delete.len() > delete_max).then_some(wanted);
            self.write_shared(shared, &edit, rewrite, restore);
        }
    }
}

/// Compares one service's own chains.
fn mend_service(
    key: &ObjectKey,
    rules: &ServiceRules,
    live: &mut Live<'_>,
    restore: &mut Restore,
    faults: &mut Faults<'_>,
) {
    let mut to_write = Vec::new();
    for (chain, rules) in &rules.chains {
        let difference = live.compare(Table::Nat, *chain, rules);
        if faults.chain(Some(key), &difference, Table::Nat, chain.as_str()) {
            to_write.push((*chain, rules));
        }
    }
    if !to_write.is_empty() {
        let section = restore.prepare();
        to_write.into_iter().for_each(|(chain, rules)| section.write_chain(chain, rules));
    }
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
        let section = if together { &mut restore.switch } else { restore.prepare() };
        written.into_iter().for_each(|(chain, rules)| section.write_chain(*chain, rules));
    }
    let gone: Vec<_> =
        old.chains.keys().filter(|chain| !new.chains.contains_key(chain)).collect();
    report.deleted += gone.len();
    if !gone.is_empty() {
        let section = restore.retire();
        gone.into_iter().for_each(|chain| section.remove_chain(chain.as_str()));
    }
}

/// What changes in a shared chain.
#[derive(Debug, Default)]
struct SharedEdit {
    insert: Vec<String>,
    delete: Vec<String>,
}

impl From<&super::live::SharedDifference<'_>> for SharedEdit {
    fn from(difference: &super::live::SharedDifference<'_>) -> Self {
        let own = |rules: &[&str]| rules.iter().map(|rule| (*rule).to_owned()).collect();
        Self { insert: own(&difference.missing), delete: own(&difference.unexpected) }
    }
}

/// What all services want of shared chains.
#[derive(Debug, Default)]
struct WantedShared {
    claims: Claims,
    slots: BTreeMap<Slot, (Claimant, Vec<(SharedChain, String)>)>,
}

impl WantedShared {
    fn add(&mut self, rules: ServiceRules) {
        for (slot, wish) in rules.slots {
            self.claims.add(slot, wish.claimant.clone());
            if self.slots.get(&slot).is_none_or(|(holder, _)| wish.claimant < *holder) {
                let texts = wish.rules.iter().map(|it| (it.chain, text_of(&it.rule))).collect();
                self.slots.insert(slot, (wish.claimant, texts));
            }
        }
    }

    fn finish(self) -> (BTreeMap<SharedChain, Vec<String>>, Claims) {
        let mut chains: BTreeMap<SharedChain, Vec<String>> = BTreeMap::new();
        for (chain, rule) in self.slots.into_values().flat_map(|(_, rules)| rules) {
            chains.entry(chain).or_default().push(rule);
        }
        (chains, self.claims)
    }
}

/// The service that a rule's comment names.
fn service_in(rule: &str) -> Option<ObjectKey> {
    let (_, comment) = rule.split_once("--comment \"")?;
    let name = comment.split(['"', ' ', ':']).next()?;
    Some(ObjectKey::parse(name))
}

/// What a mend found, and whose doing it is.
#[derive(Debug)]
struct Faults<'a> {
    expected: Expected,
    changes: &'a Changes,
    report: SyncReport,
    named: Vec<String>,
}

impl<'a> Faults<'a> {
    fn default_for(view: View<'a>) -> Self {
        Self {
            expected: Expected::Everything,
            changes: view.changes,
            report: SyncReport::default(),
            named: Vec::new(),
        }
    }

    /// Counts a difference of a chain; says whether there is one.
    fn chain(
        &mut self,
        service: Option<&ObjectKey>,
        difference: &Difference,
        table: Table,
        chain: &str,
    ) -> bool {
        let what = || format!("chain {chain} in table {}", table.as_str());
        match difference {
            Difference::None => return false,
            Difference::Missing => self.missing(service, what),
            Difference::Altered => {
                self.report.updated += 1;
                self.blame(service, "changed", what);
            }
        }
        true
    }

    fn missing(&mut self, service: Option<&ObjectKey>, what: impl FnOnce() -> String) {
        self.report.created += 1;
        self.blame(service, "missing", what);
    }

    fn unexpected(&mut self, service: Option<&ObjectKey>, what: impl FnOnce() -> String) {
        self.report.deleted += 1;
        self.blame(service, "unexpected", what);
    }

    fn blame(&mut self, service: Option<&ObjectKey>, how: &str, what: impl FnOnce() -> String) {
        let is_expected = match self.expected {
            Expected::Nothing => false,
            Expected::Changes => service.is_some_and(|key| self.changes.contains_key(key)),
            Expected::Everything => true,
        };
        if is_expected {
            return;
        }
        self.report.drift_repairs += 1;
        if self.named.len() < FAULTS_NAMED_MAX {
            self.named.push(format!("{how}: {}", what()));
        }
    }

    fn report(self, family: IpFamily) -> SyncReport {
        let count = self.report.drift_repairs;
        if count > 0 {
            let what = self.named.join("; ");
            tracing::warn!(%family, count, what, "somebody else changed our rules; mended");
        }
        self.report
    }
}

/// The whole text that programs these services where nothing is there: what `render` shows.
pub(super) fn whole_text(services: &Services, context: Context) -> String {
    struct Empty;
    impl Kernel for Empty {
        fn save(&mut self) -> Result<String, ApplyError> {
            Ok(String::new())
        }
        fn restore(&mut self, _: &str) -> Result<(), ApplyError> {
            Ok(())
        }
        fn limits(&self) -> Limits {
            Limits::LEGACY
        }
    }
    let iptables = Iptables::new(Box::new(Empty), context);
    let changes = Changes::new();
    let view = View { before: services, changes: &changes };
    let mut restore = Restore::new(Limits::LEGACY);
    let mut live = Live::default();
    let mut faults = Faults::default_for(view);
    iptables.mend_scaffold(&mut live, &mut restore, &mut faults);
    let mut wanted = WantedShared::default();
    for (key, entry) in services {
        let rules = compile(entry, &iptables.context);
        mend_service(key, &rules, &mut live, &mut restore, &mut faults);
        wanted.add(rules);
    }
    iptables.mend_shared(&wanted.finish().0, &mut live, &mut restore, &mut faults);
    restore.text()
}
