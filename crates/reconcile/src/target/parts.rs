//! Targets whose input falls into parts that can be compiled alone.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use crate::pacer::SyncKind;
use crate::target::reconciler::Claim;
use crate::target::{ApplyError, DriftReport, Reconciler, SyncReport, Target, TouchTarget};

/// A [`Target`] whose input falls into parts, such as services, each compiled without the others.
///
/// Two parts may want the same key: services that share a load balancer's address, or, by mistake, a
/// cluster address. Then the part that comes first in order has it, and when that one lets go the
/// next one takes over. So [`Target::compile`] must equal [`compile_by_parts`]; call just that.
pub trait PartialTarget: Target {
    /// The name of a part. What belongs to no service, such as base chains, is a part too.
    type Part: Ord + Clone;

    /// Every part of `input`.
    fn parts(&self, input: &Self::Input) -> Vec<Self::Part>;

    /// What has to be there for one part, each key once, in any order; nothing for a part that `input`
    /// does not have. Pure, and its cost must not depend on the other parts.
    fn compile_part(&self, input: &Self::Input, part: &Self::Part) -> Vec<(Self::Key, Self::Item)>;

    /// Every part with what has to be there for it, in any order. For a target that has all of it at
    /// hand without looking each part up.
    fn compile_parts(&self, input: &Self::Input) -> Vec<CompiledPart<Self>> {
        let compiled = |part: Self::Part| {
            let items = self.compile_part(input, &part);
            (part, items)
        };
        self.parts(input).into_iter().map(compiled).collect()
    }
}

/// A part with what has to be there for it.
pub type CompiledPart<T> =
    (<T as PartialTarget>::Part, Vec<(<T as Target>::Key, <T as Target>::Item)>);

/// The whole of what has to be there, from the parts: where two want the same key, the first has it.
pub fn compile_by_parts<T: PartialTarget>(
    target: &T,
    input: &T::Input,
) -> BTreeMap<T::Key, T::Item> {
    let mut parts = target.parts(input);
    parts.sort();
    let mut whole = BTreeMap::new();
    for part in &parts {
        for (key, item) in target.compile_part(input, part) {
            whole.entry(key).or_insert(item);
        }
    }
    whole
}

/// What is known of one part.
#[derive(Debug)]
struct PartEntry<P, K> {
    part: P,
    /// The keys that it wants, in order.
    keys: Box<[K]>,
}

/// Keeps a [`PartialTarget`] as its input wants it, part by part.
///
/// Beside what a [`Reconciler`] holds it keeps the keys of each part, and the claims of others to a
/// key only where there are any.
#[derive(Debug)]
pub struct PartReconciler<T: PartialTarget> {
    inner: Reconciler<T>,
    ids: BTreeMap<T::Part, u32>,
    /// By id; `None` is free to use.
    entries: Vec<Option<PartEntry<T::Part, T::Key>>>,
    free_ids: Vec<u32>,
    /// Every claim to a key that more than one part wants.
    contested: BTreeMap<T::Key, BTreeMap<T::Part, T::Item>>,
    /// Every part was compiled at least once.
    complete: bool,
}

impl<T: PartialTarget> PartReconciler<T> {
    /// A reconciler that knows nothing of its target yet: its first step observes.
    pub fn new(target: T) -> Self {
        Self {
            inner: Reconciler::new(target),
            ids: BTreeMap::new(),
            entries: Vec::new(),
            free_ids: Vec::new(),
            contested: BTreeMap::new(),
            complete: false,
        }
    }

    /// The target.
    pub fn target(&self) -> &T {
        self.inner.target()
    }

    /// The target, to configure it. After a change that alters what is compiled, reconcile in full.
    pub fn target_mut(&mut self) -> &mut T {
        self.inner.target_mut()
    }

    /// Gives the target back.
    pub fn into_target(self) -> T {
        self.inner.into_target()
    }

    /// Everything that should be there, in key order.
    pub fn wanted(&self) -> impl Iterator<Item = (&T::Key, &T::Item)> {
        self.inner.wanted()
    }

    /// The keys that more than one part wants, each with those parts: the first has it.
    pub fn contested(&self) -> impl Iterator<Item = (&T::Key, impl Iterator<Item = &T::Part>)> {
        self.contested.iter().map(|(key, claims)| (key, claims.keys()))
    }

    /// Makes the target what `input` wants, compiling every part.
    pub fn reconcile(&mut self, input: &T::Input) -> Result<SyncReport, ApplyError> {
        if self.ids.is_empty() && self.inner.store.is_empty() {
            self.load(input);
            self.complete = true;
            return self.inner.flush();
        }
        let mut parts = self.inner.target().parts(input);
        parts.sort();
        let gone: Vec<T::Part> =
            self.ids.keys().filter(|part| parts.binary_search(part).is_err()).cloned().collect();
        for part in &gone {
            self.replace_part(part, Vec::new());
        }
        for part in &parts {
            let items = self.inner.target().compile_part(input, part);
            self.replace_part(part, items);
        }
        self.complete = true;
        self.inner.flush()
    }

    /// Makes the target what `input` wants, where only `parts` may have changed since the last time.
    /// Costs no more than those parts. The first time it is a full [`reconcile`](Self::reconcile),
    /// because nothing is known of the other parts.
    pub fn reconcile_part<'a>(
        &mut self,
        parts: impl IntoIterator<Item = &'a T::Part>,
        input: &T::Input,
    ) -> Result<SyncReport, ApplyError>
    where
        T::Part: 'a,
    {
        if !self.complete {
            return self.reconcile(input);
        }
        for part in parts {
            let items = self.inner.target().compile_part(input, part);
            self.replace_part(part, items);
        }
        self.inner.flush()
    }

    /// Does what a sync of `kind` asks for, where only `parts` may have changed since the last sync
    /// that succeeded. After an error give the same parts again, with what changed since.
    pub fn sync<'a>(
        &mut self,
        kind: SyncKind,
        parts: impl IntoIterator<Item = &'a T::Part>,
        input: &T::Input,
    ) -> Result<SyncReport, ApplyError>
    where
        T::Part: 'a,
    {
        let mended = self.inner.mend_for(kind)?;
        let changed = match kind {
            SyncKind::Changes | SyncKind::Drift => self.reconcile_part(parts, input)?,
            SyncKind::Full => self.reconcile(input)?,
        };
        Ok(mended.plus(changed))
    }

    /// Makes the target what was wanted last; for a retry when the input did not change. Does nothing
    /// before the first reconcile.
    pub fn retry(&mut self) -> Result<SyncReport, ApplyError> {
        self.inner.retry()
    }

    /// Forgets what was applied: the next step observes.
    pub fn distrust(&mut self) {
        self.inner.distrust();
    }

    /// Observes, mends what differs from what was wanted last, and tells what was wrong.
    pub fn check_drift(&mut self) -> Result<DriftReport<T::Key>, ApplyError> {
        self.inner.check_drift()
    }

    /// Looks at what was touched, mends what differs from what was wanted last, and tells what was
    /// wrong. Where that cannot be told it is a [`check_drift`](Self::check_drift).
    pub fn check_touched(&mut self, touched: &T::Touched) -> Result<DriftReport<T::Key>, ApplyError>
    where
        T: TouchTarget,
    {
        self.inner.check_touched(touched)
    }

    /// Takes all parts where there was none: what is wanted is sorted once instead of being found a
    /// place for one by one.
    fn load(&mut self, input: &T::Input) {
        let mut parts = self.inner.target().compile_parts(input);
        parts.retain(|(_, items)| !items.is_empty());
        parts.sort_by(|(one, _), (other, _)| one.cmp(other));
        let count = parts.iter().map(|(_, items)| items.len()).sum();
        let mut claims: Vec<(T::Key, Claim<T::Item>)> = Vec::with_capacity(count);
        self.entries.reserve_exact(parts.len());
        for (part, items) in parts {
            let mut keys: Vec<T::Key> = items.iter().map(|(key, _)| key.clone()).collect();
            keys.sort_unstable();
            let owner = self.entries.len() as u32;
            self.entries.push(Some(PartEntry { part, keys: keys.into() }));
            claims.extend(items.into_iter().map(|(key, item)| (key, Claim { item, owner })));
        }
        let by_part = self.entries.iter().flatten().zip(0..);
        self.ids = by_part.map(|(entry, id)| (entry.part.clone(), id)).collect();
        claims.sort_unstable_by(|(one, first), (other, second)| {
            one.cmp(other).then_with(|| first.owner.cmp(&second.owner))
        });
        for rivals in claims.chunk_by(|(one, _), (other, _)| one == other) {
            if let [(key, _), _, ..] = rivals {
                let by_part = rivals.iter().filter_map(|(_, claim)| {
                    Some((self.part_of(claim.owner)?.clone(), claim.item.clone()))
                });
                self.contested.insert(key.clone(), by_part.collect());
            }
        }
        // Of several the first part has it, and parts have been numbered in their order.
        claims.dedup_by(|(later, _), (first, _)| later == first);
        self.inner.store.fill(claims);
    }

    fn replace_part(&mut self, part: &T::Part, mut items: Vec<(T::Key, T::Item)>) {
        if items.is_empty() && !self.ids.contains_key(part) {
            return;
        }
        let id = self.id_of(part);
        let before = self.keys_of(id);
        items.sort_by(|(one, _), (other, _)| one.cmp(other));
        let keys: Vec<T::Key> = items.iter().map(|(key, _)| key.clone()).collect();
        for key in before.iter().filter(|key| keys.binary_search(key).is_err()) {
            self.release(key, part);
        }
        for (key, item) in items {
            self.claim(key, item, part, id);
        }
        if keys.is_empty() {
            self.forget_part(part);
        } else if let Some(Some(entry)) = self.entries.get_mut(id as usize) {
            entry.keys = keys.into();
        }
    }

    fn claim(&mut self, key: T::Key, item: T::Item, part: &T::Part, id: u32) {
        // Nearly always the key is new, or was this part's before.
        let (key, item) = match self.inner.store.set_new(key, Claim { item, owner: id }) {
            Ok(()) => return,
            Err((key, claim)) => (key, claim.item),
        };
        if let Some(claims) = self.contested.get_mut(&key) {
            claims.insert(part.clone(), item);
            self.give_to_first(&key);
            return;
        }
        let rival = match self.inner.store.peek(&key) {
            Some(claim) if claim.owner != id => {
                self.part_of(claim.owner).map(|rival| (rival.clone(), claim.item.clone()))
            }
            _ => None,
        };
        match rival {
            Some(rival) => {
                let claims = BTreeMap::from([rival, (part.clone(), item)]);
                self.contested.insert(key.clone(), claims);
                self.give_to_first(&key);
            }
            None => self.inner.store.set(key, Claim { item, owner: id }),
        }
    }

    fn release(&mut self, key: &T::Key, part: &T::Part) {
        let Some(claims) = self.contested.get_mut(key) else {
            self.inner.store.delete(key);
            return;
        };
        claims.remove(part);
        let settled = claims.len() <= 1;
        self.give_to_first(key);
        if settled {
            self.contested.remove(key);
        }
    }

    /// Of those who claim a contested key, the first part in order has it.
    fn give_to_first(&mut self, key: &T::Key) {
        let first = self.contested.get(key).and_then(BTreeMap::first_key_value);
        if let Some((part, item)) = first
            && let Some(&owner) = self.ids.get(part)
        {
            self.inner.store.set(key.clone(), Claim { item: item.clone(), owner });
        }
    }

    /// Takes out the keys that a part has wanted so far.
    fn keys_of(&mut self, id: u32) -> Box<[T::Key]> {
        match self.entries.get_mut(id as usize) {
            Some(Some(entry)) => std::mem::take(&mut entry.keys),
            _ => Box::default(),
        }
    }

    fn part_of(&self, id: u32) -> Option<&T::Part> {
        self.entries.get(id as usize)?.as_ref().map(|entry| &entry.part)
    }

    fn id_of(&mut self, part: &T::Part) -> u32 {
        let vacant = match self.ids.entry(part.clone()) {
            Entry::Occupied(known) => return *known.get(),
            Entry::Vacant(vacant) => vacant,
        };
        let entry = Some(PartEntry { part: part.clone(), keys: Box::default() });
        let id = if let Some(id) = self.free_ids.pop() {
            self.entries[id as usize] = entry;
            id
        } else {
            self.entries.push(entry);
            (self.entries.len() - 1) as u32
        };
        *vacant.insert(id)
    }

    fn forget_part(&mut self, part: &T::Part) {
        if let Some(id) = self.ids.remove(part) {
            self.entries[id as usize] = None;
            self.free_ids.push(id);
        }
    }
}
