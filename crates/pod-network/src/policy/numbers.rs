//! Numbers for things, by what the things are.
//!
//! Rules in the kernel speak of numbers where we speak of pods with certain labels or of certain ports. A number is made from
//! a hash of its thing: so a restart gives the same numbers, and what the kernel has can stay; and a number that was
//! somebody's does not soon become somebody else's. A packet that runs the rules while a transaction commits may look one
//! thing up before it and another after it: then it finds nothing, instead of something of another's. Two things of the same
//! hash get different numbers.
//!
//! Things are counted: one that nobody holds any more is forgotten.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{Hash, Hasher};

use telaio_model::hash::StableHash;

/// A number of a thing. Never 0.
pub(super) type Number = u32;

/// Numbers stay below this, so that nobody takes one for negative.
const NUMBER_MAX: u64 = 0x7fff_ffff;

/// Things with their numbers.
#[derive(Clone)]
pub(super) struct Numbers<T> {
    by_thing: BTreeMap<T, Number>,
    things: BTreeMap<Number, (T, usize)>,
}

/// Not derived, which would ask for a default thing.
impl<T> Default for Numbers<T> {
    fn default() -> Self {
        Self { by_thing: BTreeMap::new(), things: BTreeMap::new() }
    }
}

impl<T: fmt::Debug> fmt::Debug for Numbers<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(&self.things).finish()
    }
}

impl<T: Ord + Clone + Hash> Numbers<T> {
    /// Holds a thing; its number, and whether it is new.
    pub(super) fn hold(&mut self, thing: &T) -> (Number, bool) {
        if let Some(number) = self.by_thing.get(thing).copied() {
            if let Some((_, holders)) = self.things.get_mut(&number) {
                *holders += 1;
            }
            return (number, false);
        }
        let mut number = first_number(thing);
        while self.things.contains_key(&number) {
            number = if u64::from(number) == NUMBER_MAX { 1 } else { number + 1 };
        }
        self.by_thing.insert(thing.clone(), number);
        self.things.insert(number, (thing.clone(), 1));
        (number, true)
    }

    /// Lets go of a thing; gives it back if nobody holds it any more.
    pub(super) fn release(&mut self, number: Number) -> Option<T> {
        let (_, holders) = self.things.get_mut(&number)?;
        *holders -= 1;
        if *holders > 0 {
            return None;
        }
        let (thing, _) = self.things.remove(&number)?;
        self.by_thing.remove(&thing);
        Some(thing)
    }

    /// The thing of a number.
    pub(super) fn get(&self, number: Number) -> Option<&T> {
        self.things.get(&number).map(|(thing, _)| thing)
    }

    /// All of them, by number.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Number, &T)> {
        self.things.iter().map(|(number, (thing, _))| (*number, thing))
    }
}

/// Two numbers for a text, which nobody counts: everybody comes to the same, and no two texts are expected to share them.
pub(super) fn of_text(text: &str) -> [Number; 2] {
    let mut hasher = Stable(StableHash::new());
    text.hash(&mut hasher);
    let hash = hasher.finish();
    [(hash >> 32) as Number, hash as Number]
}

fn first_number(thing: &impl Hash) -> Number {
    let mut hasher = Stable(StableHash::new());
    thing.hash(&mut hasher);
    let hash = hasher.finish();
    // The upper half is mixed better; both have a part.
    (((hash >> 32) ^ hash) % NUMBER_MAX + 1) as Number
}

/// A hasher that is the same in every run.
struct Stable(StableHash);

impl Hasher for Stable {
    fn write(&mut self, bytes: &[u8]) {
        self.0 = self.0.bytes(bytes);
    }

    fn finish(&self) -> u64 {
        self.0.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All of them have the same hash.
    #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
    struct Same(u8);

    impl Hash for Same {
        fn hash<H: Hasher>(&self, state: &mut H) {
            0_u8.hash(state);
        }
    }

    #[test]
    fn a_thing_has_the_same_number_in_every_run() {
        let (mut one, mut other) = (Numbers::default(), Numbers::default());
        let first = one.hold(&"web").0;
        other.hold(&"db");
        assert_eq!(other.hold(&"web"), (first, true));
        assert_eq!(one.hold(&"web"), (first, false));
    }

    #[test]
    fn things_of_one_hash_have_different_numbers() {
        let mut numbers = Numbers::default();
        let (first, second) = (numbers.hold(&Same(1)).0, numbers.hold(&Same(2)).0);
        assert_ne!(first, second);
        assert_eq!((numbers.get(first), numbers.get(second)), (Some(&Same(1)), Some(&Same(2))));
        assert_eq!(numbers.release(first), Some(Same(1)));
        assert_eq!(numbers.hold(&Same(2)), (second, false));
    }

    #[test]
    fn a_thing_is_forgotten_with_its_last_holder() {
        let mut numbers = Numbers::default();
        let number = numbers.hold(&"web").0;
        numbers.hold(&"web");
        assert_eq!(numbers.release(number), None);
        assert_eq!(numbers.release(number), Some("web"));
        assert_eq!(numbers.release(number), None);
        assert_eq!(numbers.get(number), None);
    }
}
