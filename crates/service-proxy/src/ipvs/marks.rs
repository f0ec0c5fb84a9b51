//! Marks for virtual servers that are known by one.
//!
//! Each port of a service with the external policy Local has a mark of its own, and keeps it while it
//! lives, across restarts too: the members of [`SetKind::Local`](super::sets::SetKind::Local) say which
//! address had which.
//!
//! What always holds: no mark has the bit that says "masquerade", no two ports have the same one.

use std::collections::{BTreeMap, BTreeSet};

use super::types::ServerKey;
use crate::plan::PortName;

/// How many ports can have a mark.
pub const MARKS_MAX: u32 = 0xffff;

/// Who has which mark, in one family.
#[derive(Debug)]
pub struct Marks {
    /// How far a number is moved so that it leaves the masquerade bit alone.
    shift: u32,
    of_port: BTreeMap<PortName, u32>,
    taken: BTreeSet<u32>,
    /// What an earlier run gave to addresses, for the ports that have not asked yet.
    earlier: BTreeMap<ServerKey, u32>,
    /// Those of them that nobody has taken again.
    not_asked_for: BTreeSet<u32>,
    next: u32,
}

impl Marks {
    /// Nobody has one yet.
    pub fn new(masquerade_mark: u32) -> Self {
        Self {
            // Half of the mark's bits are enough; the masquerade bit is in the other half.
            shift: if masquerade_mark <= MARKS_MAX { 16 } else { 0 },
            of_port: BTreeMap::new(),
            taken: BTreeSet::new(),
            earlier: BTreeMap::new(),
            not_asked_for: BTreeSet::new(),
            next: 1,
        }
    }

    /// An earlier run led what comes to this address to that mark. Whoever answers there gets it again;
    /// nobody else does.
    pub fn remember(&mut self, server: ServerKey, mark: u32) {
        if self.is_ours(mark) && !self.taken.contains(&mark) {
            self.earlier.insert(server, mark);
            self.not_asked_for.insert(mark);
        }
    }

    /// Nobody gets this mark: it is another's. Who has it gets one anew.
    pub fn avoid(&mut self, mark: u32) {
        self.of_port.retain(|_, of_port| *of_port != mark);
        self.not_asked_for.remove(&mark);
        self.taken.insert(mark);
    }

    /// Whether a mark is one that we could have given.
    pub fn is_ours(&self, mark: u32) -> bool {
        let number = mark >> self.shift;
        (1..=MARKS_MAX).contains(&number) && number << self.shift == mark
    }

    /// The mark of a port that answers at `servers`; `None` if there is none left.
    pub fn of(
        &mut self,
        port: &PortName,
        mut servers: impl Iterator<Item = ServerKey>,
    ) -> Option<u32> {
        if let Some(mark) = self.of_port.get(port) {
            return Some(*mark);
        }
        let earlier = servers.find_map(|server| {
            let mark = self.earlier.get(&server)?;
            self.not_asked_for.take(mark)
        });
        let mark = earlier.or_else(|| self.unused())?;
        self.taken.insert(mark);
        self.of_port.insert(port.clone(), mark);
        Some(mark)
    }

    /// The port does not need its mark any more.
    pub fn release(&mut self, port: &PortName) {
        if let Some(mark) = self.of_port.remove(port) {
            self.taken.remove(&mark);
        }
    }

    /// The port does not need this mark any more. It may have another by now, and keeps that.
    pub fn give_back(&mut self, port: &PortName, mark: u32) {
        if self.of_port.get(port) == Some(&mark) {
            self.release(port);
        }
    }

    /// Numbers are given in turn, so that one is not soon given again.
    fn unused(&mut self) -> Option<u32> {
        for _ in 0..MARKS_MAX {
            let mark = self.next << self.shift;
            self.next = self.next % MARKS_MAX + 1;
            if !self.taken.contains(&mark) && !self.not_asked_for.contains(&mark) {
                return Some(mark);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use telaio_model::{ObjectKey, Protocol};

    use super::*;
    use crate::ipvs::types::server_at;

    fn port(name: &str) -> PortName {
        PortName {
            service: ObjectKey::new("default", name),
            port: "http".into(),
            protocol: Protocol::Tcp,
        }
    }

    fn at(text: &str) -> ServerKey {
        server_at(Protocol::Tcp, text.parse().unwrap())
    }

    #[test]
    fn a_port_keeps_its_mark_and_shares_it_with_nobody() {
        let mut marks = Marks::new(1 << 14);
        let first = marks.of(&port("a"), std::iter::empty()).unwrap();
        let second = marks.of(&port("b"), std::iter::empty()).unwrap();
        assert_ne!(first, second);
        assert_eq!(marks.of(&port("a"), std::iter::empty()), Some(first));
        marks.release(&port("a"));
        assert_ne!(marks.of(&port("c"), std::iter::empty()), Some(second));
    }

    #[test]
    fn what_an_earlier_run_gave_is_given_to_the_same_address() {
        let mut marks = Marks::new(1 << 14);
        marks.remember(at("192.0.2.1:80"), 1 << 16);
        let other = marks.of(&port("a"), [at("192.0.2.2:80")].into_iter());
        assert_eq!(other, Some(2 << 16));
        let same = [at("192.0.2.3:80"), at("192.0.2.1:80")].into_iter();
        assert_eq!(marks.of(&port("b"), same), Some(1 << 16));
        let late = marks.of(&port("c"), [at("192.0.2.1:80")].into_iter());
        assert_eq!(late, Some(3 << 16));
    }

    #[test]
    fn nobody_gets_anothers_mark() {
        let mut marks = Marks::new(1 << 14);
        marks.remember(at("192.0.2.1:80"), 2 << 16);
        marks.avoid(1 << 16);
        marks.avoid(2 << 16);
        let given = marks.of(&port("a"), [at("192.0.2.1:80")].into_iter());
        assert_eq!(given, Some(3 << 16));
        // Not even who had it.
        marks.avoid(3 << 16);
        assert_eq!(marks.of(&port("a"), std::iter::empty()), Some(4 << 16));
    }

    #[test]
    fn no_mark_has_the_masquerade_bit() {
        for bit in 0..32 {
            let mut marks = Marks::new(1 << bit);
            for number in 0..100 {
                let mark = marks.of(&port(&number.to_string()), std::iter::empty()).unwrap();
                assert_eq!(mark & (1 << bit), 0, "bit {bit}");
                assert!(marks.is_ours(mark));
            }
            assert!(!marks.is_ours(1 << bit), "bit {bit}");
        }
    }

    #[test]
    fn when_all_are_taken_there_is_none() {
        let mut marks = Marks::new(1 << 14);
        for number in 0..MARKS_MAX {
            assert!(marks.of(&port(&number.to_string()), std::iter::empty()).is_some());
        }
        assert_eq!(marks.of(&port("late"), std::iter::empty()), None);
        marks.release(&port("7"));
        assert!(marks.of(&port("late"), std::iter::empty()).is_some());
    }
}
