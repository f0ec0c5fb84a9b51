//! Numbers of the audit log, which say whose log it is.
//!
//! Every agent keeps its own log, and a number that counts from one in each of them would have an
//! action undone at one node that was done at another: by a person who asks the wrong address, or by a
//! page behind an address that several agents share. So a number begins with a short tag of the agent,
//! made of its name: `kf4m-12`. An agent that knows the names of the nodes can say whose a tag is.

use telaio_model::hash::StableHash;

/// Letters that are not taken for others, and make no words.
const LETTERS: &[u8; 27] = b"bcdfghjkmnpqrstvwxz23456789";
const TAG_LENGTH: usize = 4;
/// How long a number may be.
const LENGTH_MAX: usize = 32;

/// Which agent this is, for people and for the numbers of its audit log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentName {
    kind: Kind,
    name: String,
}

/// What an agent does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Node,
    Brain,
}

impl AgentName {
    /// The agent of a node.
    pub fn node(name: impl Into<String>) -> Self {
        Self { kind: Kind::Node, name: name.into() }
    }

    /// A brain, on this host.
    pub fn brain(host: impl Into<String>) -> Self {
        Self { kind: Kind::Brain, name: host.into() }
    }

    /// What its numbers begin with: the same at every start.
    pub fn tag(&self) -> String {
        let mut rest = self.hash();
        let base = LETTERS.len() as u64;
        let letters = (0..TAG_LENGTH).map(|_| {
            let letter = usize::try_from(rest % base).ok().and_then(|at| LETTERS.get(at));
            rest /= base;
            char::from(letter.copied().unwrap_or(b'b'))
        });
        letters.collect()
    }
}

impl AgentName {
    /// A number below `max` that agents do not have alike, so that they do not do a thing at once.
    pub fn spread(&self, max: u64) -> u64 {
        self.hash() % max.max(1)
    }

    fn hash(&self) -> u64 {
        let kind = match self.kind {
            Kind::Node => "node",
            Kind::Brain => "brain",
        };
        let hash = StableHash::new().text(kind).text(&self.name).hex();
        u64::from_str_radix(&hash, 16).unwrap_or_default()
    }
}

impl std::fmt::Display for AgentName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.kind {
            Kind::Node => write!(f, "the node {}", self.name),
            Kind::Brain => write!(f, "the brain on {}", self.name),
        }
    }
}

/// The entry of this place in the log of the agent with this tag.
pub(crate) fn entry_id(tag: &str, number: u64) -> String {
    format!("{tag}-{number}")
}

/// The place in its log.
pub(crate) fn number_of(id: &str) -> Option<u64> {
    id.rsplit('-').next()?.parse().ok()
}

/// Whose it is, if it says so. What cannot be a number of anybody's is an error.
pub(crate) fn tag_of(id: &str) -> Result<Option<&str>, ()> {
    let (tag, number) = match id.rsplit_once('-') {
        Some((tag, number)) => (Some(tag), number),
        None => (None, id),
    };
    let is_tag =
        |tag: &str| tag.len() == TAG_LENGTH && tag.bytes().all(|letter| LETTERS.contains(&letter));
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    if id.len() <= LENGTH_MAX && is_number && tag.is_none_or(is_tag) { Ok(tag) } else { Err(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_is_short_lasting_and_not_that_of_another_agent() {
        let tag = AgentName::node("loom-a").tag();
        assert_eq!(tag, AgentName::node("loom-a").tag());
        let id = entry_id(&tag, 12);
        assert_eq!((tag_of(&id), number_of(&id)), (Ok(Some(tag.as_str())), Some(12)));
        assert_ne!(tag, AgentName::brain("loom-a").tag());
        let mut all: Vec<String> =
            (0..500).map(|i| AgentName::node(format!("loom-{i}")).tag()).collect();
        all.sort();
        all.dedup();
        assert!(all.len() >= 499, "{}", all.len());
    }

    #[test]
    fn what_is_no_number_is_told_apart() {
        assert_eq!(tag_of("12"), Ok(None));
        for bad in ["", "x", "kf4m-", "kf4m-x", "-12", "a-12", "../12", "kf4m-1 2"] {
            assert_eq!(tag_of(bad), Err(()), "{bad:?}");
        }
        assert_eq!(tag_of(&"9".repeat(40)), Err(()));
    }
}
