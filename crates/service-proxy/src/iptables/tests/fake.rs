//! A kernel that keeps rules in a map and takes texts for `iptables-restore --noflush`, as strictly as
//! the real one: what a rule leads to must exist, what is deleted must be there.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use telaio_reconcile::ApplyError;

use super::super::names::Table;
use super::super::proxier::Kernel;
use super::super::restore::Limits;

type Chains = BTreeMap<String, Vec<String>>;

/// What the fake kernel holds, and what it was given.
#[derive(Debug, Default)]
pub(crate) struct FakeState {
    pub(crate) tables: BTreeMap<Table, Chains>,
    pub(crate) texts: Vec<String>,
    pub(crate) saves: usize,
    /// The next restore fails after so many commits.
    pub(crate) fail_after: Option<usize>,
}

/// Handles share one state.
#[derive(Debug, Clone)]
pub(crate) struct FakeKernel {
    pub(crate) state: Arc<Mutex<FakeState>>,
    limits: Limits,
}

impl FakeKernel {
    pub(crate) fn new(limits: Limits) -> Self {
        let builtin = |names: &[&str]| {
            names.iter().map(|name| ((*name).to_owned(), Vec::new())).collect::<Chains>()
        };
        let tables = BTreeMap::from([
            (Table::Filter, builtin(&["INPUT", "FORWARD", "OUTPUT"])),
            (Table::Mangle, builtin(&["PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"])),
            (Table::Nat, builtin(&["PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"])),
        ]);
        let state = FakeState { tables, ..FakeState::default() };
        Self { state: Arc::new(Mutex::new(state)), limits }
    }

    /// What `iptables-save` would print, with the rules of shared chains in order.
    pub(crate) fn sorted(&self) -> String {
        let mut state = self.state.lock();
        let shared =
            super::super::compile::SharedChain::ALL.map(super::super::compile::SharedChain::place);
        let saved = state.tables.clone();
        for (table, chain) in shared {
            let chains = state.tables.entry(table).or_default();
            if let Some(rules) = chains.get_mut(chain.as_str()) {
                rules.sort();
            }
        }
        let text = print(&state.tables);
        state.tables = saved;
        text
    }

    pub(crate) fn text(&self) -> String {
        print(&self.state.lock().tables)
    }
}

fn print(tables: &BTreeMap<Table, Chains>) -> String {
    let mut text = String::new();
    for (table, chains) in tables {
        text.extend(["*", table.as_str(), "\n"]);
        for name in chains.keys() {
            text.extend([":", name, " - [0:0]\n"]);
        }
        for (name, rules) in chains {
            for rule in rules {
                text.extend(["-A ", name, " ", rule, "\n"]);
            }
        }
        text.push_str("COMMIT\n");
    }
    text
}

impl Kernel for FakeKernel {
    fn save(&mut self) -> Result<String, ApplyError> {
        self.state.lock().saves += 1;
        Ok(self.text())
    }

    fn restore(&mut self, text: &[&str]) -> Result<(), ApplyError> {
        let text = text.concat();
        let mut state = self.state.lock();
        state.texts.push(text.clone());
        let fail_after = state.fail_after.take();
        let mut open: Option<(Table, Chains)> = None;
        let mut commits = 0;
        for line in text.lines() {
            if let Some(name) = line.strip_prefix('*') {
                let table = Table::parse(name).expect("a table");
                open = Some((table, state.tables[&table].clone()));
                continue;
            }
            let (table, chains) = open.as_mut().expect("a table's part");
            if line == "COMMIT" {
                if fail_after == Some(commits) {
                    return Err(ApplyError::Conflict("it was to fail".into()));
                }
                check_jumps(chains);
                state.tables.insert(*table, std::mem::take(chains));
                open = None;
                commits += 1;
                continue;
            }
            edit(chains, line).map_err(|why| ApplyError::Conflict(format!("{why}: {line}")))?;
        }
        assert!(open.is_none(), "no COMMIT at the end");
        Ok(())
    }

    fn limits(&self) -> Limits {
        self.limits
    }
}

fn check_jumps(chains: &Chains) {
    for rule in chains.values().flatten() {
        let target = rule.rsplit_once("-j ").expect("a target").1.split(' ').next().unwrap();
        let known = ["RETURN", "ACCEPT", "DROP", "REJECT", "DNAT", "MASQUERADE", "MARK", "SET"];
        assert!(known.contains(&target) || chains.contains_key(target), "no {target}: {rule}");
    }
}

fn edit(chains: &mut Chains, line: &str) -> Result<(), &'static str> {
    if let Some(chain) = line.strip_prefix(':') {
        let name = chain.split(' ').next().unwrap_or_default();
        chains.insert(name.to_owned(), Vec::new());
        return Ok(());
    }
    let mut words = line.splitn(3, ' ');
    let (what, name) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let rule = words.next().unwrap_or_default().to_owned();
    if what == "-X" {
        let rules = chains.remove(name).ok_or("no such chain")?;
        return if rules.is_empty() { Ok(()) } else { Err("not empty") };
    }
    let rules = chains.get_mut(name).ok_or("no such chain")?;
    match what {
        "-A" => rules.push(rule),
        "-I" => rules.insert(0, rule),
        "-D" => {
            let at = rules.iter().position(|it| *it == rule).ok_or("no such rule")?;
            rules.remove(at);
        }
        _ => return Err("not understood"),
    }
    Ok(())
}
