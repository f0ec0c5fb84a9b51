//! Reading rules back: single ones, and all that `iptables-save` prints.
//!
//! Only rules of our own making are understood; that is all that is ever asked. Anything else, such
//! as a rule that somebody has put into a chain of ours, is [`Entry::Unknown`] with its text.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::str::FromStr;

use ipnet::IpNet;
use telaio_model::{IpFamily, Protocol};

use super::names::{ChainName, Owner, Table, protocol_name};
use super::rule::{Directions, Is, Match, Rule, States, Target};

/// Why a text is not a rule of ours.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a rule that we would write: {what} in {text:?}")]
pub struct RuleError {
    /// What is not understood.
    pub what: String,
    /// The whole rule.
    pub text: String,
}

impl FromStr for Rule {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Self, RuleError> {
        let mut words = Words::new(text);
        parse_rule(&mut words)
            .map_err(|what| RuleError { what: what.into_owned(), text: text.to_owned() })
    }
}

type Parsed<T> = Result<T, Cow<'static, str>>;

/// A rule's words; those in double quotes may contain blanks.
struct Words<'a> {
    rest: &'a str,
}

impl<'a> Words<'a> {
    fn new(text: &'a str) -> Self {
        Self { rest: text.trim() }
    }

    fn next(&mut self) -> Option<&'a str> {
        let rest = self.rest.trim_start();
        if rest.is_empty() {
            return None;
        }
        let (word, after) = match rest.strip_prefix('"') {
            // A comment with an escaped quote is not ours: ours have none.
            Some(quoted) => quoted.split_once('"').unwrap_or((quoted, "")),
            None => rest.split_once(' ').unwrap_or((rest, "")),
        };
        self.rest = after;
        Some(word)
    }

    fn value(&mut self, of: &str) -> Parsed<&'a str> {
        self.next().ok_or_else(|| format!("nothing after {of}").into())
    }

    fn parse<T: FromStr>(&mut self, of: &str) -> Parsed<T> {
        let word = self.value(of)?;
        word.parse().map_err(|_| format!("{of} {word}").into())
    }

    fn expect(&mut self, wanted: &str) -> Parsed<()> {
        match self.next() {
            Some(word) if word == wanted => Ok(()),
            other => Err(format!("{} instead of {wanted}", other.unwrap_or("nothing")).into()),
        }
    }

    fn chain(&mut self, of: &str) -> Parsed<ChainName> {
        let word = self.value(of)?;
        ChainName::new(word).ok_or_else(|| format!("the chain {word}").into())
    }
}

fn parse_rule(words: &mut Words<'_>) -> Parsed<Rule> {
    let mut rule = Rule::new(Target::Return);
    let mut invert = false;
    while let Some(word) = words.next() {
        let inverted = std::mem::take(&mut invert);
        match word {
            "!" => invert = true,
            "-s" => rule.source = Some(Is { value: net(words, word)?, invert: inverted }),
            "-d" => rule.destination = Some(Is { value: net(words, word)?, invert: inverted }),
            "-i" => {
                rule.interface = Some(Is { value: words.value(word)?.into(), invert: inverted });
            }
            "-o" => {
                let value = words.value(word)?.into();
                rule.out_interface = Some(Is { value, invert: inverted });
            }
            "-p" if !inverted => rule.protocol = Some(protocol(words.value(word)?)?),
            "-m" if !inverted => parse_match(words, &mut rule)?,
            "-j" => {
                rule.target = parse_target(words)?;
                return match words.next() {
                    None => Ok(rule),
                    Some(more) => Err(format!("{more} after the target").into()),
                };
            }
            other => return Err(other.to_owned().into()),
        }
    }
    Err("no target".into())
}

fn net(words: &mut Words<'_>, of: &str) -> Parsed<IpNet> {
    let word = words.value(of)?;
    let net =
        word.parse().ok().or_else(|| Some(IpNet::from(word.parse::<std::net::IpAddr>().ok()?)));
    net.ok_or_else(|| format!("{of} {word}").into())
}

fn protocol(word: &str) -> Parsed<Protocol> {
    let all = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];
    let found = all.into_iter().find(|protocol| protocol_name(*protocol) == word);
    found.ok_or_else(|| format!("the protocol {word}").into())
}

fn parse_match(words: &mut Words<'_>, rule: &mut Rule) -> Parsed<()> {
    let found = match words.value("-m")? {
        "comment" => {
            words.expect("--comment")?;
            Match::Comment(words.value("--comment")?.into())
        }
        name @ ("tcp" | "udp" | "sctp") => {
            words.expect("--dport")?;
            Match::Port(protocol(name)?, words.parse("--dport")?)
        }
        "addrtype" => match (words.next(), words.next()) {
            (Some("--src-type"), Some("LOCAL")) => Match::LocalSource,
            (Some("--dst-type"), Some("LOCAL")) => Match::LocalDestination,
            _ => return Err("an addrtype".into()),
        },
        "conntrack" => {
            let invert = inverted(words, "--ctstate")?;
            let names = words.value("--ctstate")?;
            let states = States::parse(names).ok_or_else(|| format!("the state {names}"))?;
            Match::State(Is { value: states, invert })
        }
        "mark" => {
            let invert = inverted(words, "--mark")?;
            let (value, mask) = masked(words.value("--mark")?)?;
            Match::Mark { value, mask, invert }
        }
        "set" => {
            let invert = inverted(words, "--match-set")?;
            let name = words.value("--match-set")?.into();
            Match::Set { name, directions: directions(words)?, invert }
        }
        "statistic" => parse_statistic(words)?,
        "recent" => parse_recent(words)?,
        other => return Err(format!("the match {other}").into()),
    };
    rule.matches.push(found);
    Ok(())
}

fn inverted(words: &mut Words<'_>, option: &str) -> Parsed<bool> {
    match words.next() {
        Some("!") => words.expect(option).map(|()| true),
        Some(word) if word == option => Ok(false),
        other => Err(other.unwrap_or("nothing").to_owned().into()),
    }
}

fn masked(text: &str) -> Parsed<(u32, u32)> {
    let hex = |text: &str| u32::from_str_radix(text.strip_prefix("0x")?, 16).ok();
    let (value, mask) = text.split_once('/').unwrap_or((text, "0xffffffff"));
    hex(value).zip(hex(mask)).ok_or_else(|| format!("the mark {text}").into())
}

fn directions(words: &mut Words<'_>) -> Parsed<Directions> {
    let word = words.value("a set")?;
    Directions::parse(word).ok_or_else(|| format!("the directions {word}").into())
}

fn parse_statistic(words: &mut Words<'_>) -> Parsed<Match> {
    words.expect("--mode")?;
    match words.value("--mode")? {
        "random" => {
            words.expect("--probability")?;
            let probability: f64 = words.parse("--probability")?;
            if !(0.0..=1.0).contains(&probability) {
                return Err(format!("the probability {probability}").into());
            }
            let parts = (probability * f64::from(1_u32 << 31)).round();
            #[expect(clippy::cast_sign_loss, reason = "checked just above")]
            Ok(Match::Random(parts as u32))
        }
        "nth" => {
            words.expect("--every")?;
            let every = words.parse("--every")?;
            words.expect("--packet")?;
            Ok(Match::Nth { every, packet: words.parse("--packet")? })
        }
        other => Err(format!("the mode {other}").into()),
    }
}

fn parse_recent(words: &mut Words<'_>) -> Parsed<Match> {
    let seconds = match words.next() {
        Some("--rcheck") => {
            words.expect("--seconds")?;
            let seconds: u32 = words.parse("--seconds")?;
            words.expect("--reap")?;
            Some(seconds)
        }
        Some("--set") => None,
        other => return Err(other.unwrap_or("nothing").to_owned().into()),
    };
    words.expect("--name")?;
    let list = words.chain("--name")?;
    words.expect("--mask")?;
    let family = match words.value("--mask")? {
        "255.255.255.255" => IpFamily::V4,
        "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff" => IpFamily::V6,
        other => return Err(format!("the mask {other}").into()),
    };
    words.expect("--rsource")?;
    Ok(match seconds {
        Some(seconds) => Match::RecentCheck { list, seconds, family },
        None => Match::RecentSet { list, family },
    })
}

fn parse_target(words: &mut Words<'_>) -> Parsed<Target> {
    Ok(match words.value("-j")? {
        "RETURN" => Target::Return,
        "ACCEPT" => Target::Accept,
        "DROP" => Target::Drop,
        "REJECT" => {
            words.expect("--reject-with")?;
            match words.value("--reject-with")? {
                "icmp-port-unreachable" => Target::Reject(IpFamily::V4),
                "icmp6-port-unreachable" => Target::Reject(IpFamily::V6),
                other => return Err(format!("--reject-with {other}").into()),
            }
        }
        "DNAT" => {
            words.expect("--to-destination")?;
            Target::Dnat(words.parse("--to-destination")?)
        }
        "MASQUERADE" => {
            words.expect("--random-fully")?;
            Target::Masquerade
        }
        "MARK" => {
            words.expect("--set-xmark")?;
            let (value, mask) = masked(words.value("--set-xmark")?)?;
            Target::SetMark { value, mask }
        }
        "SET" => {
            words.expect("--map-set")?;
            let set = words.value("--map-set")?.into();
            words.expect(Directions::DestinationPort.as_str())?;
            words.expect("--map-mark")?;
            Target::MapMark { set }
        }
        chain => Target::Jump(ChainName::new(chain).ok_or_else(|| format!("the target {chain}"))?),
    })
}

/// A rule of a chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    /// One that we could have written.
    Rule(Rule),
    /// Another's.
    Unknown(String),
}

/// All chains of one family that concern a backend of ours: its own, and what leads to them from the
/// kernel's own.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ruleset {
    chains: BTreeMap<(Table, ChainName), Vec<Entry>>,
}

impl Ruleset {
    /// Reads the rules of the backend `iptables`; see [`of`](Self::of).
    pub fn parse(text: &str) -> Self {
        Self::of(Owner::Iptables, text)
    }

    /// Reads what `iptables-save` printed, or a text for `iptables-restore` that adds rules only.
    ///
    /// Other chains than `owner`'s, and rules in the kernel's own that do not lead to `owner`'s, are
    /// left out, whatever they do.
    pub fn of(owner: Owner, text: &str) -> Self {
        let mut ruleset = Self::default();
        for (table, line) in table_lines(text) {
            if let Some(chain) = declared_chain(line) {
                if let Some(name) = owned_chain(owner, chain) {
                    ruleset.chains.entry((table, name)).or_default();
                }
                continue;
            }
            let Some((chain, rule)) = appended_rule(line) else { continue };
            let Some(name) = ChainName::new(chain) else { continue };
            if !owner.owns(chain) && !leads_to(owner, rule) {
                continue;
            }
            let entry = rule.parse().map_or_else(|_| Entry::Unknown(rule.to_owned()), Entry::Rule);
            ruleset.chains.entry((table, name)).or_default().push(entry);
        }
        ruleset
    }

    /// The rules of a chain; none if there is no such chain.
    pub fn chain(&self, table: Table, name: ChainName) -> &[Entry] {
        self.chains.get(&(table, name)).map_or(&[], Vec::as_slice)
    }

    /// Every chain with its rules.
    pub fn chains(&self) -> impl Iterator<Item = (Table, ChainName, &[Entry])> {
        self.chains.iter().map(|((table, name), rules)| (*table, *name, rules.as_slice()))
    }
}

/// The lines of each table that we use.
pub(super) fn table_lines(text: &str) -> impl Iterator<Item = (Table, &str)> {
    let mut table = None;
    text.lines().filter_map(move |line| {
        if let Some(name) = line.strip_prefix('*') {
            table = Table::parse(name.trim_end());
            return None;
        }
        table.map(|table| (table, line))
    })
}

/// The chain of a line such as `:CHAIN - [0:0]`.
pub(super) fn declared_chain(line: &str) -> Option<&str> {
    line.strip_prefix(':')?.split(' ').next()
}

/// The chain and the rule of a line such as `-A CHAIN -j DROP`; also of one that inserts.
pub(super) fn appended_rule(line: &str) -> Option<(&str, &str)> {
    line.strip_prefix("-A ").or_else(|| line.strip_prefix("-I "))?.split_once(' ')
}

/// The name of a chain, if it is this owner's.
pub(super) fn owned_chain(owner: Owner, chain: &str) -> Option<ChainName> {
    owner.owns(chain).then(|| ChainName::new(chain)).flatten()
}

/// Where a rule leads to, also if we do not understand the rest of it: a chain, or a target.
pub(super) fn target_of(rule: &str) -> Option<&str> {
    let (_, after) = rule.rsplit_once("-j ").or_else(|| rule.rsplit_once("-g "))?;
    after.split(' ').next()
}

/// Whether a rule leads to a chain of this owner.
pub(super) fn leads_to(owner: Owner, rule: &str) -> bool {
    target_of(rule).is_some_and(|target| owner.owns(target))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_that_is_not_ours_is_unknown_and_not_lost() {
        let text = "*nat\n:TELAIO-SERVICES - [0:0]\n:DOCKER - [0:0]\n\
            -A PREROUTING -m time --timestart 12:00:00 -j TELAIO-SERVICES\n\
            -A PREROUTING -j DOCKER\n\
            -A TELAIO-SERVICES -p tcp -j LOG\nCOMMIT\n";
        let ruleset = Ruleset::parse(text);
        let rules = ruleset.chain(Table::Nat, super::super::names::SERVICES);
        // "LOG" could be a chain: what it is told would matter only to the tracer.
        assert!(matches!(rules, [Entry::Rule(_)]), "{rules:?}");
        let rules = ruleset.chain(Table::Nat, super::super::names::PREROUTING);
        assert!(matches!(rules, [Entry::Unknown(_)]), "{rules:?}");
        assert_eq!(ruleset.chains().count(), 2);
    }

    #[test]
    fn each_backend_reads_its_own_chains_only() {
        let text = "*filter\n:TELAIO-SERVICES - [0:0]\n:TELAIO-IPVS-FILTER - [0:0]\n\
            -A INPUT -j TELAIO-SERVICES\n-A INPUT -j TELAIO-IPVS-FILTER\n\
            -A TELAIO-SERVICES -j RETURN\n-A TELAIO-IPVS-FILTER -j RETURN\nCOMMIT\n";
        for (owner, chain) in [
            (Owner::Iptables, super::super::names::SERVICES),
            (Owner::Ipvs, super::super::names::IPVS_FILTER),
        ] {
            let ruleset = Ruleset::of(owner, text);
            let jump = [Entry::Rule(Rule::jump(chain))];
            assert_eq!(ruleset.chain(Table::Filter, super::super::names::INPUT), jump);
            let rules = ruleset.chain(Table::Filter, chain);
            assert_eq!(rules, [Entry::Rule(Rule::new(Target::Return))]);
            assert_eq!(ruleset.chains().count(), 2);
        }
    }

    #[test]
    fn what_cannot_be_understood_is_named() {
        for (text, what) in [
            ("-s 10.0.0.0/8", "no target"),
            ("-m limit --limit 1/s -j DROP", "the match limit"),
            ("-p icmp -j DROP", "the protocol icmp"),
            ("-j DNAT --to-destination nowhere", "--to-destination nowhere"),
            ("-j ACCEPT --more", "--more after the target"),
            ("-m statistic --mode random --probability 7 -j DROP", "the probability 7"),
            ("-m set --match-set X src,src -j DROP", "the directions src,src"),
            ("-j SET --add-set X src", "--add-set instead of --map-set"),
        ] {
            assert_eq!(text.parse::<Rule>().unwrap_err().what, what);
        }
    }
}
