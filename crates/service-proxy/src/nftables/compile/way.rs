//! Ways: where services lead, mostly chains that pick an endpoint and that services of one kind share.

use telaio_model::IpFamily;
use telaio_model::hash::StableHash;
use telaio_netlink::nftables::{Chain, FibAddress, NumgenKind, Verdict};

use super::item::ChainItem;
use super::shared::{MARK, REFUSE};
use crate::config::LocalSources;
use crate::nftables::rule::{Place, Rule, Slots, Words};

/// Up to how many endpoints ways stand ready.
const READY_COUNT_MAX: u32 = 16;

/// How an endpoint is chosen.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Choice {
    /// By chance.
    Random,
    /// By the client's address.
    Hash,
    /// By chance the first time, then the same for this many seconds.
    Sticky(u32),
    /// In turn, with the counter of the service port that has this hash.
    Turn(u64),
}

/// A chain that picks an endpoint.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pick {
    pub(super) place: Place,
    pub(super) slots: Slots,
    pub(super) count: u32,
    pub(super) choice: Choice,
}

/// A way that services lead: mostly a chain that they share.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Way {
    /// Traffic is refused.
    Reject,
    /// Traffic is dropped.
    Drop,
    /// Picks an endpoint.
    Pick(Pick),
    /// Marks for masquerade, then picks.
    Masquerade(Pick),
    /// External traffic with policy Local: pods of this node, and the node itself, go to the first
    /// (or get its answer); everybody else goes to the second.
    ExternalLocal(Target, Target),
}

/// A pick, or what is said where there is nobody to pick.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Target {
    /// One of these.
    Pick(Pick),
    /// Refused.
    Reject,
    /// Dropped.
    Drop,
}

impl Pick {
    fn name(&self) -> String {
        let place = match self.place {
            Place::Address => "",
            Place::NodePort => "node-",
        };
        let slots = match self.slots {
            Slots::Cluster => "",
            Slots::Local => "local-",
        };
        let count = self.count;
        match &self.choice {
            Choice::Random => format!("{place}pick-{slots}{count}"),
            Choice::Hash => format!("{place}hash-{slots}{count}"),
            Choice::Sticky(timeout_s) => format!("{place}sticky-{slots}{count}-{timeout_s}s"),
            Choice::Turn(port) => format!("{place}turn-{slots}{count}-{port:016x}"),
        }
    }

    fn rules(&self, words: Words) -> Vec<Rule> {
        let Self { place, slots, count, .. } = *self;
        match self.choice {
            Choice::Random => vec![words.pick(place, slots, count, NumgenKind::Random)],
            Choice::Hash => vec![words.pick_by_source(place, slots, count)],
            Choice::Turn(_) => vec![words.pick(place, slots, count, NumgenKind::Incremental)],
            Choice::Sticky(timeout_s) => vec![
                words.stay(place, slots, timeout_s),
                words.leave_dead(place),
                words.leave_other(place, slots),
                words.settle(place, slots, count, timeout_s),
                words.stay(place, slots, timeout_s),
                // The map is full.
                words.pick(place, slots, count, NumgenKind::Random),
            ],
        }
    }
}

impl Target {
    fn name(&self) -> String {
        match self {
            Self::Pick(pick) => pick.name(),
            Self::Reject => "refused".to_owned(),
            Self::Drop => "dropped".to_owned(),
        }
    }

    fn rule(&self, words: Words) -> Rule {
        match self {
            Self::Pick(pick) => words.goto(&pick.name()),
            Self::Reject => words.goto(REFUSE),
            Self::Drop => words.verdict(Verdict::Drop),
        }
    }

    fn pick(&self) -> Option<&Pick> {
        match self {
            Self::Pick(pick) => Some(pick),
            _ => None,
        }
    }
}

impl Way {
    /// Its name, which says all about it.
    pub fn name(&self) -> String {
        match self {
            Self::Reject => REFUSE.to_owned(),
            Self::Drop => "drop".to_owned(),
            Self::Pick(pick) => pick.name(),
            Self::Masquerade(pick) => format!("masquerade-{}", pick.name()),
            Self::ExternalLocal(node, outside) => {
                format!("external-{}-else-{}", node.name(), outside.name())
            }
        }
    }

    /// The chains that it goes to.
    pub(super) fn needs(&self) -> Vec<Self> {
        match self {
            Self::Reject | Self::Drop | Self::Pick(_) => Vec::new(),
            Self::Masquerade(pick) => vec![Self::Pick(pick.clone())],
            Self::ExternalLocal(node, outside) => {
                let picks = [node, outside].into_iter().filter_map(Target::pick);
                picks.cloned().map(Self::Pick).collect()
            }
        }
    }

    /// Where it leads.
    pub(super) fn verdict(&self) -> Verdict {
        match self {
            Self::Drop => Verdict::Drop,
            _ => Verdict::Goto(self.name()),
        }
    }

    /// The number that services lead to. Two ways with the same hash are told apart by who keeps
    /// the numbers.
    pub fn hash(&self) -> u32 {
        let pick = |hash: StableHash, pick: &Pick| {
            let (kind, detail) = match pick.choice {
                Choice::Random => (0, 0),
                Choice::Hash => (1, 0),
                Choice::Sticky(timeout_s) => (2, u64::from(timeout_s)),
                Choice::Turn(port) => (3, port),
            };
            hash.bytes(&[kind, pick.place as u8, pick.slots as u8])
                .bytes(&pick.count.to_be_bytes())
                .bytes(&detail.to_be_bytes())
        };
        let target = |hash: StableHash, target: &Target| match target {
            Target::Reject => hash.bytes(&[0]),
            Target::Drop => hash.bytes(&[1]),
            Target::Pick(it) => pick(hash.bytes(&[2]), it),
        };
        let hash = StableHash::new();
        let hash = match self {
            Self::Reject => hash.bytes(&[0]),
            Self::Drop => hash.bytes(&[1]),
            Self::Pick(it) => pick(hash.bytes(&[2]), it),
            Self::Masquerade(it) => pick(hash.bytes(&[3]), it),
            Self::ExternalLocal(node, outside) => target(target(hash.bytes(&[4]), node), outside),
        };
        let hash = hash.finish();
        (hash ^ (hash >> 32)) as u32
    }

    /// The chain, for ways that have one of their own.
    pub(super) fn chain(&self, words: Words, pods: &LocalSources) -> Option<ChainItem> {
        let rules = match self {
            Self::Reject | Self::Drop => return None,
            Self::Pick(pick) => pick.rules(words),
            Self::Masquerade(pick) => vec![words.jump(MARK), words.goto(&pick.name())],
            Self::ExternalLocal(node, outside) => {
                let mut rules: Vec<Rule> = from_pod(words, pods)
                    .into_iter()
                    .map(|from_pod| from_pod.then(node.rule(words)))
                    .collect();
                let from_node = words.is_local(FibAddress::Source);
                rules.push(from_node.clone().then(words.jump(MARK)));
                rules.push(from_node.then(node.rule(words)));
                rules.push(outside.rule(words));
                rules
            }
        };
        Some(ChainItem { chain: Chain::regular(self.name()), rules: Some(rules) })
    }
}

/// One condition for each way in which a packet can come from a pod of this node.
pub(super) fn from_pod(words: Words, pods: &LocalSources) -> Vec<Rule> {
    match pods {
        LocalSources::Nowhere => Vec::new(),
        LocalSources::Networks(nets) => nets.iter().map(|net| words.from_net(net)).collect(),
        LocalSources::Interface(name) => vec![words.from_interface(name, false)],
        LocalSources::InterfacePrefix(prefix) => vec![words.from_interface(prefix, true)],
    }
}

/// The ways that stand ready before any service leads them. A chain that looks endpoints up is cheap
/// to make while there are none, and later costs the kernel a look at each of them.
pub fn ready_ways(families: &[IpFamily]) -> Vec<(IpFamily, Way)> {
    let pick = |count| Pick {
        place: Place::Address,
        slots: Slots::Cluster,
        count,
        choice: Choice::Random,
    };
    let counts = 1..=READY_COUNT_MAX;
    let of = |family| counts.clone().map(move |count| (family, Way::Pick(pick(count))));
    families.iter().flat_map(|family| of(*family)).collect()
}
