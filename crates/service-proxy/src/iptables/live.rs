//! What is there: the chains that `iptables-save` shows, and how they differ from what is wanted.

use std::collections::HashMap;

use super::names::{ChainName, Owner, Table};
use super::parse::{appended_rule, declared_chain, leads_to, owned_chain, table_lines};
use super::rule::Rule;

/// A chain of ours as it is.
#[derive(Debug, Default)]
struct LiveChain<'a> {
    rules: Vec<&'a str>,
    /// It was asked for: somebody wants it.
    wanted: bool,
}

/// All chains of one backend in one family, and the rules of others' chains that lead to them.
#[derive(Debug, Default)]
pub(super) struct Live<'a> {
    chains: HashMap<(Table, ChainName), LiveChain<'a>>,
    jumps: Vec<(Table, &'a str, &'a str)>,
}

/// How a chain differs.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Difference {
    None,
    Missing,
    Altered,
}

impl<'a> Live<'a> {
    /// Reads what `iptables-save` printed. Another backend of ours is an other here too.
    pub(super) fn parse(owner: Owner, text: &'a str) -> Self {
        let mut live = Self::default();
        for (table, line) in table_lines(text) {
            if let Some(chain) = declared_chain(line) {
                if let Some(name) = owned_chain(owner, chain) {
                    live.chains.entry((table, name)).or_default();
                }
            } else if let Some((chain, rule)) = appended_rule(line) {
                if let Some(name) = owned_chain(owner, chain) {
                    live.chains.entry((table, name)).or_default().rules.push(rule);
                } else if leads_to(owner, rule) {
                    live.jumps.push((table, chain, rule));
                }
            }
        }
        live
    }

    /// Rules in others' chains that lead to ours.
    pub(super) fn jumps(&self) -> &[(Table, &'a str, &'a str)] {
        &self.jumps
    }

    /// The rules of a chain; none if it is not there.
    pub(super) fn rules(&self, table: Table, name: ChainName) -> &[&'a str] {
        self.chains.get(&(table, name)).map_or(&[], |chain| &chain.rules)
    }

    /// A chain that is wanted.
    pub(super) fn want(&mut self, table: Table, name: ChainName) -> Option<&[&'a str]> {
        let chain = self.chains.get_mut(&(table, name))?;
        chain.wanted = true;
        Some(&chain.rules)
    }

    /// Compares a chain that is wanted with its rules.
    pub(super) fn compare(&mut self, table: Table, name: ChainName, rules: &[Rule]) -> Difference {
        match self.want(table, name) {
            None => Difference::Missing,
            Some(found) if same(rules, found) => Difference::None,
            Some(_) => Difference::Altered,
        }
    }

    /// Chains that nobody asked for, in order.
    pub(super) fn unwanted(&self) -> Vec<(Table, ChainName)> {
        let chains = self.chains.iter().filter(|(_, chain)| !chain.wanted);
        let mut names: Vec<(Table, ChainName)> = chains.map(|(at, _)| *at).collect();
        names.sort_unstable();
        names
    }
}

/// Whether these are the rules.
pub(super) fn same(rules: &[Rule], found: &[&str]) -> bool {
    let mut text = String::with_capacity(128);
    rules.len() == found.len()
        && rules.iter().zip(found).all(|(rule, found)| {
            text.clear();
            // Writing to a string cannot fail. Another version may print a rule otherwise; then its
            // meaning is compared.
            let _ = rule.write(&mut text);
            text == *found || found.parse().is_ok_and(|found: Rule| found == *rule)
        })
}

/// How the rules of a shared chain differ, where order does not matter.
#[derive(Debug, Default)]
pub(super) struct SharedDifference<'a> {
    /// Wanted, and not there.
    pub(super) missing: Vec<&'a str>,
    /// There, and not wanted.
    pub(super) unexpected: Vec<&'a str>,
}

/// Compares the rules of a shared chain.
pub(super) fn compare_shared<'a>(wanted: &'a [String], found: &[&'a str]) -> SharedDifference<'a> {
    let mut open: HashMap<&str, bool> = wanted.iter().map(|rule| (rule.as_str(), true)).collect();
    let mut difference = SharedDifference::default();
    for rule in found {
        let as_we_write = match open.get_mut(rule) {
            Some(is_open) => Some(is_open),
            None => {
                rule.parse().ok().and_then(|rule: Rule| open.get_mut(rule.to_string().as_str()))
            }
        };
        match as_we_write {
            Some(is_open) if *is_open => *is_open = false,
            _ => difference.unexpected.push(rule),
        }
    }
    let wanted = wanted.iter().map(String::as_str);
    difference.missing = wanted.filter(|rule| open.get(rule) == Some(&true)).collect();
    difference
}
