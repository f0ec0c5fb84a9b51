//! Rules that no service changes: a scaffold in the kernel, and how it is kept right.
//!
//! The backend `ipvs` has its services in sets and virtual servers; its rules only ask which set a packet
//! is in. So there is nothing to do until somebody else touches them, or what they depend on changes, and
//! then everything is read, what is right stays and the rest is mended by one run of
//! `iptables-restore`.

use telaio_model::IpFamily;
use telaio_reconcile::{ApplyError, SyncKind, SyncReport};

use super::keeper::Keeper;
use super::mend::{Expected, Mend};
use super::names::Owner;
use super::proxier::{Counters, Kernel, View};
use super::restore::Limits;
use super::scaffold::Scaffold;

/// A scaffold of one family in a kernel.
pub struct FixedRules {
    keeper: Keeper,
    family: IpFamily,
    scaffold: Scaffold,
}

impl std::fmt::Debug for FixedRules {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FixedRules").field("family", &self.family).finish_non_exhaustive()
    }
}

impl FixedRules {
    /// `owner`'s rules of a family in `kernel`, about which nothing is known yet.
    pub fn new(
        owner: Owner,
        kernel: Box<dyn Kernel>,
        family: IpFamily,
        scaffold: Scaffold,
    ) -> Self {
        Self { keeper: Keeper::new(kernel, owner), family, scaffold }
    }

    /// The family.
    pub fn family(&self) -> IpFamily {
        self.family
    }

    /// Numbers for metrics.
    pub fn counters(&self) -> Counters {
        self.keeper.counters
    }

    /// The rules are to be these from now; the next sync mends what differs. Without any, it removes
    /// what is there.
    pub fn set_scaffold(&mut self, scaffold: Scaffold) {
        if scaffold != self.scaffold {
            self.scaffold = scaffold;
            self.keeper.forget();
        }
    }

    /// Brings the kernel up to date. [`SyncKind::Changes`] does nothing where nothing has changed; the
    /// other kinds read everything, and count and name as drift what is not as the last sync left it.
    pub fn sync(&mut self, kind: SyncKind) -> Result<SyncReport, ApplyError> {
        let expected = self.keeper.begin();
        if self.keeper.is_known() && kind == SyncKind::Changes {
            return Ok(SyncReport::default());
        }
        let text = self.keeper.read()?;
        let limits = self.keeper.limits();
        let mend = Mend::new(self.keeper.owner, &text, View::nothing(), expected, limits);
        let mended = mend.run_fixed(&self.scaffold);
        self.keeper.settle(&mended.restore, mended.rules)?;
        Ok(mended.faults.report(self.family))
    }
}

/// The whole text that programs a scaffold where nothing is there yet, to be given to
/// `iptables-restore --noflush`.
pub fn render(owner: Owner, scaffold: &Scaffold) -> String {
    let mend = Mend::new(owner, "", View::nothing(), Expected::Everything, Limits::LEGACY);
    mend.run_fixed(scaffold).restore.text().concat()
}
