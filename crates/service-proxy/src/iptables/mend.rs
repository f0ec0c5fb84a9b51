//! From whatever is there to what has to be: what is right stays, the rest is mended.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet, HashSet};

use ipnet::IpNet;
use telaio_model::{IpFamily, ObjectKey, Protocol};
use telaio_reconcile::SyncReport;

use super::claims::Claims;
use super::compile::{Context, ServiceRules, SharedChain, compile};
use super::live::{Difference, Live, compare_shared, same};
use super::names::{ChainName, Owner, Table, is_kernels};
use super::parse::target_of;
use super::proxier::{Changes, RuleCounts, View, own_rule_count};
use super::restore::{Limits, Phase, Restore, text_of};
use super::rule::{Match, Rule};
use super::scaffold::Scaffold;
use super::shared::{SharedEdit, SharedRules, Timing, WantedShared, write_whole};

/// How many faults a message names; the rest it counts.
const FAULTS_NAMED_MAX: usize = 8;

/// What is known to be different, and therefore nobody's fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Expected {
    /// Nothing: every difference is somebody else's doing.
    Nothing,
    /// Services that changed.
    Changes,
    /// Everything: it is the first look, or what all rules depend on has changed.
    Everything,
}

/// One comparison of all there is with all there should be.
pub(super) struct Mend<'a> {
    view: View<'a>,
    limits: Limits,
    live: Live<'a>,
    restore: Restore,
    faults: Faults<'a>,
}

/// What it led to.
pub(super) struct Mended<'a> {
    /// What has to be written.
    pub(super) restore: Restore,
    /// What was wrong.
    pub(super) faults: Faults<'a>,
    /// Everybody's claims.
    pub(super) claims: Claims,
    /// How many rules our chains should have.
    pub(super) rules: RuleCounts,
}

impl<'a> Mend<'a> {
    /// Compares what `iptables-save` printed of `owner`'s chains with the services of `view`.
    pub(super) fn new(
        owner: Owner,
        saved: &'a str,
        view: View<'a>,
        expected: Expected,
        limits: Limits,
    ) -> Self {
        Self {
            view,
            limits,
            live: Live::parse(owner, saved),
            restore: Restore::new(limits),
            faults: Faults {
                expected,
                changes: view.changes,
                report: SyncReport::default(),
                named: Vec::new(),
            },
        }
    }

    /// For a scaffold and nothing else.
    pub(super) fn run_fixed(mut self, scaffold: &Scaffold) -> Mended<'a> {
        let rules = self.fixed_chains(scaffold);
        self.jumps(scaffold);
        self.unwanted_chains();
        Mended { restore: self.restore, faults: self.faults, claims: Claims::default(), rules }
    }

    /// For a scaffold and the services within it.
    pub(super) fn run(mut self, context: &Context, scaffold: &Scaffold) -> Mended<'a> {
        let mut counts = self.fixed_chains(scaffold);
        self.jumps(scaffold);
        let mut wanted = WantedShared::default();
        for entry in self.view.all() {
            let rules = compile(entry, context);
            counts.add(Table::Nat, own_rule_count(&rules));
            self.service(&entry.service.key, &rules);
            wanted.add(rules);
        }
        let (shared, claims) = wanted.finish();
        for chain in SharedChain::ALL {
            let rules = shared.get(&chain).map_or(0, Vec::len);
            counts.add(chain.place().0, rules + scaffold.end_of(chain).len());
        }
        self.shared_chains(&shared, scaffold, claims.len());
        self.unwanted_chains();
        Mended { restore: self.restore, faults: self.faults, claims, rules: counts }
    }

    fn fixed_chains(&mut self, scaffold: &Scaffold) -> RuleCounts {
        let mut counts = RuleCounts::default();
        for (table, chain, rules) in &scaffold.chains {
            let difference = self.live.compare(*table, *chain, rules);
            if self.faults.chain(None, &difference, *table, chain.as_str()) {
                self.restore.base(*table).write_chain(*chain, rules);
            }
            counts.add(*table, rules.len());
        }
        counts
    }

    /// The rules in the kernel's own chains that lead to ours.
    fn jumps(&mut self, scaffold: &Scaffold) {
        let mut wanted: BTreeMap<(Table, &str), Vec<String>> = BTreeMap::new();
        for (table, chain, rule) in &scaffold.jumps {
            wanted.entry((*table, chain.as_str())).or_default().push(text_of(rule));
        }
        let mut found: BTreeMap<(Table, &str), Vec<&str>> = BTreeMap::new();
        for (table, chain, rule) in self.live.jumps() {
            if is_kernels(chain) {
                found.entry((*table, chain)).or_default().push(rule);
            }
        }
        let chains: BTreeSet<(Table, &str)> = wanted.keys().chain(found.keys()).copied().collect();
        for at @ (table, chain) in chains {
            let wanted = wanted.get(&at).map(Vec::as_slice).unwrap_or_default();
            let found = found.get(&at).map(Vec::as_slice).unwrap_or_default();
            let difference = compare_shared(wanted, found);
            // Each goes to the head of its chain, so the last comes first.
            for rule in difference.missing.iter().rev() {
                self.faults.missing(None, || format!("rule in {chain}: {rule}"));
                self.restore.shared(table, Phase::BeforeNat).insert_text(chain, rule);
            }
            for rule in difference.unexpected {
                self.faults.unexpected(None, || format!("rule in {chain}: {rule}"));
                self.restore.shared(table, Phase::AfterNat).delete_text(chain, rule);
            }
        }
    }

    fn service(&mut self, key: &ObjectKey, rules: &ServiceRules) {
        let mut differing = Vec::new();
        for (chain, rules) in &rules.chains {
            let difference = self.live.compare(Table::Nat, *chain, rules);
            if self.faults.chain(Some(key), &difference, Table::Nat, chain.as_str()) {
                differing.push((*chain, rules));
            }
        }
        if !differing.is_empty() {
            let section = self.restore.prepare();
            for (chain, rules) in differing {
                section.write_chain(chain, rules);
            }
        }
    }

    fn shared_chains(&mut self, wanted: &SharedRules, scaffold: &Scaffold, rule_count: usize) {
        let sent_on = SentOn::new(&self.live, wanted);
        for shared in SharedChain::ALL {
            let (table, chain) = shared.place();
            let rules = wanted.get(&shared).map(Vec::as_slice).unwrap_or_default();
            let end = scaffold.end_of(shared);
            let Some(found) = self.live.want(table, chain).map(<[&str]>::to_vec) else {
                self.faults.chain(None, &Difference::Missing, table, chain.as_str());
                make_shared(shared, rules, end, &sent_on, &mut self.restore);
                continue;
            };
            let (found, found_end) = found.split_at(found.len().saturating_sub(end.len()));
            if !same(end, found_end) {
                self.faults.chain(None, &Difference::Altered, table, chain.as_str());
                make_shared(shared, rules, end, &sent_on, &mut self.restore);
                continue;
            }
            let edit = self.shared_edit(chain.as_str(), rules, found, &sent_on);
            if edit.is_big(rule_count, self.limits) {
                edit.rewrite(shared, rules, end, &mut self.restore);
            } else {
                edit.write(shared, &mut self.restore);
            }
        }
    }

    fn shared_edit(
        &mut self,
        chain: &str,
        wanted: &[String],
        found: &[&str],
        sent_on: &SentOn<'_>,
    ) -> SharedEdit {
        let difference = compare_shared(wanted, found);
        let mut edit = SharedEdit::default();
        for rule in difference.missing {
            let what = || format!("rule in {chain}: {rule}");
            self.faults.missing(service_in(rule).as_ref(), what);
            edit.insert(rule.to_owned(), sent_on.timing(rule));
        }
        for rule in difference.unexpected {
            let what = || format!("rule in {chain}: {rule}");
            self.faults.unexpected(service_in(rule).as_ref(), what);
            edit.delete(rule.to_owned(), sent_on.timing(rule));
        }
        edit
    }

    fn unwanted_chains(&mut self) {
        let unwanted = self.live.unwanted();
        for (table, chain, rule) in self.live.jumps() {
            let leads_there =
                |it: &(Table, ChainName)| it.0 == *table && Some(it.1.as_str()) == target_of(rule);
            // Where another's own chain leads to a chain that stays is its owner's business.
            if !is_kernels(chain) && unwanted.iter().any(leads_there) {
                self.faults.unexpected(None, || format!("rule in {chain}: {rule}"));
                self.restore.shared(*table, Phase::AfterNat).delete_text(chain, rule);
            }
        }
        // They may lead to each other: all are emptied before the first is removed.
        for (table, chain) in &unwanted {
            let what = || format!("chain {chain} in table {}", table.as_str());
            self.faults.unexpected(None, what);
            self.restore.retire(*table).declare(chain.as_str());
        }
        for (table, chain) in &unwanted {
            self.restore.retire(*table).remove_empty_chain(chain.as_str());
        }
    }
}

/// Writes a shared chain that is not there, or not as it has to be.
fn make_shared(
    shared: SharedChain,
    rules: &[String],
    end: &[Rule],
    sent_on: &SentOn<'_>,
    to: &mut Restore,
) {
    let (table, chain) = shared.place();
    let rules = rules.iter().map(String::as_str);
    let (later, first): (Vec<&str>, Vec<&str>) =
        rules.partition(|rule| table == Table::Filter && sent_on.timing(rule).sent_on_after);
    write_whole(shared, first.into_iter(), end, Phase::BeforeNat, to);
    let section = to.shared(table, Phase::AfterNat);
    for rule in later {
        section.insert_text(chain.as_str(), rule);
    }
}

/// What a rule of a shared chain stands for, as far as its text tells.
type Place = (Option<IpNet>, Protocol, u16);

/// Which places nat sends on, as it is and as it has to be. Worked out when somebody asks: mostly nobody
/// does.
struct SentOn<'a> {
    live: Vec<&'a str>,
    wanted: Vec<&'a str>,
    before: OnceCell<HashSet<Place>>,
    after: OnceCell<HashSet<Place>>,
}

impl<'a> SentOn<'a> {
    fn new(live: &Live<'a>, wanted: &'a SharedRules) -> Self {
        let (mut is, mut will_be) = (Vec::new(), Vec::new());
        for shared in SharedChain::ALL.into_iter().filter(|it| it.place().0 == Table::Nat) {
            let (table, chain) = shared.place();
            is.extend(live.rules(table, chain));
            will_be.extend(wanted.get(&shared).into_iter().flatten().map(String::as_str));
        }
        Self { live: is, wanted: will_be, before: OnceCell::new(), after: OnceCell::new() }
    }

    fn timing(&self, rule: &str) -> Timing {
        let places = |rules: &[&str]| rules.iter().filter_map(|rule| place_of(rule)).collect();
        let Some(place) = place_of(rule) else {
            return Timing { sent_on_before: false, sent_on_after: false };
        };
        Timing {
            sent_on_before: self.before.get_or_init(|| places(&self.live)).contains(&place),
            sent_on_after: self.after.get_or_init(|| places(&self.wanted)).contains(&place),
        }
    }
}

fn place_of(rule: &str) -> Option<Place> {
    let rule: Rule = rule.parse().ok()?;
    let to = rule.destination.map(|net| net.value);
    rule.matches.iter().find_map(|it| match it {
        Match::Port(protocol, port) => Some((to, *protocol, *port)),
        _ => None,
    })
}

/// The service that a rule's comment names.
fn service_in(rule: &str) -> Option<ObjectKey> {
    let (_, comment) = rule.split_once("--comment \"")?;
    Some(ObjectKey::parse(comment.split(['"', ' ', ':']).next()?))
}

/// What was wrong, and whose doing it is.
#[derive(Debug)]
pub(super) struct Faults<'a> {
    expected: Expected,
    changes: &'a Changes,
    report: SyncReport,
    named: Vec<String>,
}

impl Faults<'_> {
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

    /// Says what somebody else has done, and counts it.
    pub(super) fn report(self, family: IpFamily) -> SyncReport {
        let count = self.report.drift_repairs;
        if count > 0 {
            let what = self.named.join("; ");
            tracing::warn!(%family, count, what, "somebody else changed our rules; mended");
        }
        self.report
    }
}
