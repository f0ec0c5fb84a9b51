//! What is known of the rules in a kernel, and how it is kept: what is written, and what is counted.
//!
//! From the moment a text is given to the kernel until that has succeeded nothing is known, so whatever
//! fails, the next sync reads everything anew.

use telaio_reconcile::ApplyError;

use super::mend::Expected;
use super::names::Owner;
use super::proxier::{Counters, Kernel, RuleCounts};
use super::restore::{Limits, Restore};

/// One backend's rules of one family in a kernel.
pub(super) struct Keeper {
    kernel: Box<dyn Kernel>,
    /// Whose chains these are.
    pub(super) owner: Owner,
    /// What is in the kernel is what we have put there, as far as we know.
    known: bool,
    /// It was so once, and what all rules depend on has not changed since.
    known_once: bool,
    pub(super) counters: Counters,
}

impl Keeper {
    /// Nothing is known yet.
    pub(super) fn new(kernel: Box<dyn Kernel>, owner: Owner) -> Self {
        Self { kernel, owner, known: false, known_once: false, counters: Counters::default() }
    }

    pub(super) fn is_known(&self) -> bool {
        self.known
    }

    pub(super) fn limits(&self) -> Limits {
        self.kernel.limits()
    }

    /// A sync begins; says which differences from what is wanted nobody else is to blame for.
    pub(super) fn begin(&mut self) -> Expected {
        self.counters.rules_last = RuleCounts::default();
        match (self.known, self.known_once) {
            (true, _) => Expected::Nothing,
            (false, true) => Expected::Changes,
            (false, false) => Expected::Everything,
        }
    }

    /// What all rules depend on has changed.
    pub(super) fn forget(&mut self) {
        self.known = false;
        self.known_once = false;
    }

    /// Reads everything, because what is there may be anything.
    pub(super) fn read(&mut self) -> Result<String, ApplyError> {
        self.known = false;
        if self.kernel.is_untouched() { Ok(String::new()) } else { self.kernel.save() }
    }

    /// Mends what was read; from then on our chains have so many rules and are known.
    pub(super) fn settle(
        &mut self,
        restore: &Restore,
        rules: RuleCounts,
    ) -> Result<(), ApplyError> {
        self.restore(restore)?;
        self.counters.rules = rules;
        self.known = true;
        self.known_once = true;
        Ok(())
    }

    /// Runs a text, if there is any.
    pub(super) fn restore(&mut self, restore: &Restore) -> Result<(), ApplyError> {
        if restore.is_empty() {
            return Ok(());
        }
        self.known = false;
        let text = restore.text();
        self.counters.commits += Restore::commit_count(&text);
        self.kernel.restore(&text).inspect_err(|_| self.counters.failures += 1)?;
        self.counters.rules_last = self.counters.rules_last.plus(restore.rule_counts());
        self.known = true;
        Ok(())
    }
}
