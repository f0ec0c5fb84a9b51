//! Which endpoint a new connection gets.
//!
//! `statistic` knows chance and counting, so that is what services can have: random shares in
//! proportion to the weights, and exact turns. Turns with weights are a round of slots, of which an
//! endpoint has as many as its weight, and rules cost time, so a round has a bound; a service beyond it,
//! and one that asks for `source-hash`, gets random shares and a [`warning`].

use telaio_model::{IpFamily, ServiceEndpoints};

use crate::plan::{Balance, Destination, EndpointSet, balance_problem, plan};

use super::names::ChainName;
use super::rule::{Match, Rule};

/// The longest round.
const ROUND_SLOTS_MAX: u32 = 128;

/// Adds rules that choose among `chains`, which belong to `destinations` in the same order.
pub(super) fn choose(
    balance: Balance,
    destinations: &[Destination],
    chains: &[ChainName],
    rules: &mut Vec<Rule>,
) {
    let round = (balance == Balance::RoundRobin).then(|| round(destinations)).flatten();
    if let Some(round) = round {
        let slots = round.len() as u32;
        rules.extend(round.into_iter().zip(0..).filter_map(|(at, before)| {
            let rule = Rule::jump(*chains.get(at)?);
            let every = slots - before;
            // Each rule counts only what those before it have let through.
            Some(if every > 1 { rule.with(Match::Nth { every, packet: 0 }) } else { rule })
        }));
        return;
    }
    let mut rest: u32 = destinations.iter().map(|to| u32::from(to.weight)).sum();
    for (at, (to, chain)) in destinations.iter().zip(chains).enumerate() {
        let is_last = at + 1 == chains.len();
        let share = u32::from(to.weight);
        let rule = Rule::jump(*chain);
        rules.push(if is_last { rule } else { rule.chance(share, rest) });
        rest = rest.saturating_sub(share);
    }
}

/// The turns of one round, as indices, spread out as evenly as the weights let; `None` if there would
/// be too many.
fn round(destinations: &[Destination]) -> Option<Vec<usize>> {
    let divisor = destinations.iter().fold(0, |all, to| gcd(all, u32::from(to.weight))).max(1);
    let weights: Vec<i64> =
        destinations.iter().map(|to| i64::from(to.weight) / i64::from(divisor)).collect();
    let total: i64 = weights.iter().sum();
    if total > i64::from(ROUND_SLOTS_MAX) {
        return None;
    }
    // Smooth weighted turns: everybody earns its weight, the richest goes and pays the total.
    let mut credit = vec![0_i64; weights.len()];
    let mut turns = Vec::new();
    for _ in 0..total {
        for (credit, weight) in credit.iter_mut().zip(&weights) {
            *credit += weight;
        }
        let richest =
            credit.iter().enumerate().max_by_key(|(at, credit)| (**credit, usize::MAX - at));
        let (at, _) = richest?;
        credit[at] -= total;
        turns.push(at);
    }
    Some(turns)
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// What a service asks of its balance that it does not get here.
pub fn warning(entry: &ServiceEndpoints) -> Option<String> {
    if let Some(problem) = balance_problem(entry) {
        return Some(problem);
    }
    let plans = IpFamily::ALL.into_iter().flat_map(|family| plan(entry, family));
    let key = &entry.service.key;
    for plan in plans {
        match plan.balance {
            Balance::Random => return None,
            Balance::SourceHash => {
                return Some(format!(
                    "service {key}: iptables cannot choose endpoints by source-hash; using random"
                ));
            }
            Balance::RoundRobin => {
                let too_many = |set| round(plan.set(set)).is_none();
                if too_many(EndpointSet::Cluster) || too_many(EndpointSet::Local) {
                    return Some(format!(
                        "service {key}: a round of its endpoints has more than \
                         {ROUND_SLOTS_MAX} turns; using random"
                    ));
                }
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn destinations(weights: &[u16]) -> Vec<Destination> {
        let destination = |weight: &u16| Destination {
            address: "10.0.0.1".parse().unwrap(),
            port: 80,
            weight: *weight,
            local: false,
        };
        weights.iter().map(destination).collect()
    }

    #[test]
    fn turns_follow_the_weights_and_are_spread_out() {
        assert_eq!(round(&destinations(&[1, 1, 1])).unwrap(), [0, 1, 2]);
        assert_eq!(round(&destinations(&[20, 10])).unwrap(), [0, 1, 0]);
        assert_eq!(round(&destinations(&[])).unwrap(), [] as [usize; 0]);
        assert_eq!(round(&destinations(&[127, 2])), None);
    }

    #[test]
    fn shares_are_what_the_weights_say_of_what_is_left() {
        let chains = ["A", "B", "C"].map(|name| ChainName::new(name).unwrap());
        let mut rules = Vec::new();
        choose(Balance::Random, &destinations(&[1, 2, 1]), &chains, &mut rules);
        let texts: Vec<String> = rules.iter().map(ToString::to_string).collect();
        assert_eq!(
            texts,
            [
                "-m statistic --mode random --probability 0.25000000000 -j A",
                "-m statistic --mode random --probability 0.66666666651 -j B",
                "-j C",
            ]
        );
    }
}
