//! What each profile allows each class, kept up to date.

use std::collections::{BTreeMap, BTreeSet};

use super::{Part, World};
use crate::policy::facts::{Class, Fact, Profile};
use crate::policy::numbers::{Number, Numbers};
use crate::policy::ports::PortSet;

/// What is new since the last time, and what was held until then.
#[derive(Debug, Default)]
pub(super) struct News {
    pub(super) facts: Vec<Number>,
    pub(super) gone_facts: Vec<Fact>,
    pub(super) profiles: BTreeSet<Number>,
    pub(super) classes: BTreeSet<Number>,
    /// Let go of only when everything new is held, so that what stays is not taken for new.
    pub(super) let_go: LetGo,
}

#[derive(Debug, Default)]
pub(super) struct LetGo {
    pub(super) profiles: Vec<Number>,
    pub(super) classes: Vec<Number>,
    groups: Vec<Number>,
}

/// Who speaks of a fact, and about whom it is true.
#[derive(Debug, Clone, Default)]
pub(super) struct Index {
    profiles_by_fact: BTreeMap<Number, BTreeSet<Number>>,
    classes_by_fact: BTreeMap<Number, BTreeSet<Number>>,
    /// The profiles that allow a class something of its own.
    profiles_by_class: BTreeMap<Number, BTreeSet<Number>>,
    /// How many sets of ports have prefixes of a length.
    port_lengths: BTreeMap<u8, usize>,
}

impl Index {
    pub(super) fn port_lengths(&self) -> BTreeSet<u8> {
        self.port_lengths.keys().copied().collect()
    }

    /// Holds a profile that comes with its facts held; if it is there already it has them.
    pub(super) fn hold_profile(
        &mut self,
        profile: &Profile,
        profiles: &mut Numbers<Profile>,
        facts: &mut Numbers<Fact>,
        new: &mut BTreeSet<Number>,
    ) -> Number {
        let (number, is_new) = profiles.hold(profile);
        for fact in profile.facts() {
            if is_new {
                self.profiles_by_fact.entry(fact).or_default().insert(number);
            } else {
                facts.release(fact);
            }
        }
        if is_new {
            new.insert(number);
        }
        number
    }

    pub(super) fn hold_class(
        &mut self,
        class: &Class,
        classes: &mut Numbers<Class>,
        new: &mut BTreeSet<Number>,
    ) -> Number {
        let (number, is_new) = classes.hold(class);
        if is_new {
            for fact in &class.facts {
                self.classes_by_fact.entry(*fact).or_default().insert(number);
            }
            new.insert(number);
        }
        number
    }

    /// Those of `others` that share a fact with these.
    fn related(
        others: &BTreeMap<Number, BTreeSet<Number>>,
        facts: impl Iterator<Item = Number>,
    ) -> BTreeSet<Number> {
        facts.filter_map(|fact| others.get(&fact)).flatten().copied().collect()
    }
}

/// Takes one out of the many at a key.
fn remove_one(from: &mut BTreeMap<Number, BTreeSet<Number>>, key: Number, one: Number) {
    if let Some(many) = from.get_mut(&key) {
        many.remove(&one);
        if many.is_empty() {
            from.remove(&key);
        }
    }
}

impl World {
    /// Lets go of the profiles that instances had before, with what follows from those that nobody has any more.
    pub(super) fn release_profiles(&mut self, news: &mut News) {
        for number in std::mem::take(&mut news.let_go.profiles) {
            let Some(profile) = self.profiles.release(number) else { continue };
            news.profiles.remove(&number);
            for fact in profile.facts() {
                remove_one(&mut self.index.profiles_by_fact, fact, number);
                news.gone_facts.extend(self.facts.release(fact));
            }
            if let Some(group) = self.open.remove(&number) {
                news.let_go.groups.push(group);
                self.changed.insert(Part::Open(number));
            }
            let of_it = self.grants.range((number, 0)..=(number, Number::MAX));
            let classes: Vec<Number> = of_it.map(|((_, class), _)| *class).collect();
            for class in classes {
                self.set_grant(number, class, None, news);
            }
        }
    }

    fn release_classes(&mut self, news: &mut News) {
        for number in std::mem::take(&mut news.let_go.classes) {
            let Some(class) = self.classes.release(number) else { continue };
            news.classes.remove(&number);
            for fact in &class.facts {
                remove_one(&mut self.index.classes_by_fact, *fact, number);
            }
            let profiles = self.index.profiles_by_class.get(&number).cloned().unwrap_or_default();
            for profile in profiles {
                self.set_grant(profile, number, None, news);
            }
        }
    }

    /// Works out what new profiles allow, and what is allowed to new classes.
    pub(super) fn settle_grants(&mut self, mut news: News) {
        self.release_classes(&mut news);
        let mut pairs: BTreeSet<(Number, Number)> = BTreeSet::new();
        for number in std::mem::take(&mut news.profiles) {
            let Some(profile) = self.profiles.get(number) else { continue };
            let classes = Index::related(&self.index.classes_by_fact, profile.facts());
            pairs.extend(classes.into_iter().map(|class| (number, class)));
            let ports = profile.grant(None, &self.facts);
            if let Some(group) = self.hold_group(&ports) {
                self.open.insert(number, group);
                self.changed.insert(Part::Open(number));
            }
        }
        for number in std::mem::take(&mut news.classes) {
            let Some(class) = self.classes.get(number) else { continue };
            let facts = class.facts.iter().copied();
            let profiles = Index::related(&self.index.profiles_by_fact, facts);
            pairs.extend(profiles.into_iter().map(|profile| (profile, number)));
        }
        for (profile, class) in pairs {
            let granted = self.granted(profile, class);
            let group = granted.and_then(|ports| self.hold_group(&ports));
            self.set_grant(profile, class, group, &mut news);
        }
        for group in std::mem::take(&mut news.let_go.groups) {
            self.release_group(group);
        }
    }

    /// What a class is allowed, if that is not what anybody is.
    fn granted(&self, profile: Number, class: Number) -> Option<PortSet> {
        let ports = self.profiles.get(profile)?.grant(self.classes.get(class), &self.facts);
        let anybody = self.open.get(&profile).and_then(|group| self.groups.get(*group));
        (anybody != Some(&ports) && !ports.is_empty()).then_some(ports)
    }

    /// The number of a set of ports, held; none for no ports.
    fn hold_group(&mut self, ports: &PortSet) -> Option<Number> {
        if ports.is_empty() {
            return None;
        }
        let (number, is_new) = self.groups.hold(ports);
        if is_new {
            self.changed.insert(Part::Gate(number));
            for len in lengths(ports) {
                let users = self.index.port_lengths.entry(len).or_insert(0);
                *users += 1;
                if *users == 1 {
                    self.changed.insert(Part::Base);
                }
            }
        }
        Some(number)
    }

    fn release_group(&mut self, number: Number) {
        let Some(ports) = self.groups.release(number) else { return };
        self.changed.insert(Part::Gate(number));
        for len in lengths(&ports) {
            if let Some(users) = self.index.port_lengths.get_mut(&len) {
                *users -= 1;
                if *users == 0 {
                    self.index.port_lengths.remove(&len);
                    self.changed.insert(Part::Base);
                }
            }
        }
    }

    /// A class is now allowed this group of ports, which is held, or nothing of its own.
    fn set_grant(
        &mut self,
        profile: Number,
        class: Number,
        group: Option<Number>,
        news: &mut News,
    ) {
        let before = if let Some(group) = group {
            self.index.profiles_by_class.entry(class).or_default().insert(profile);
            self.grants.insert((profile, class), group)
        } else {
            remove_one(&mut self.index.profiles_by_class, class, profile);
            self.grants.remove(&(profile, class))
        };
        news.let_go.groups.extend(before);
        if before != group {
            self.changed.insert(Part::Grant(profile, class));
        }
    }
}

fn lengths(ports: &PortSet) -> BTreeSet<u8> {
    ports.prefixes().iter().map(|prefix| prefix.len).collect()
}
