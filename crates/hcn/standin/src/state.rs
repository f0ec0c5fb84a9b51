//! What the stand-in knows: objects, handles, callbacks, and what it is to do wrong.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use telaio_hcn::{FakeHcn, Guid, HnsVersion, ObjectKind};
use windows_sys::Win32::System::HostComputeNetwork::HCN_NOTIFICATION_CALLBACK;

use crate::answer::Wrong;

/// An open handle.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Open {
    pub(crate) kind: ObjectKind,
    pub(crate) id: Guid,
    /// HNS's run in which it was opened.
    pub(crate) run: u64,
}

/// What one of the library's functions does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub(crate) enum Function {
    Enumerate,
    Open,
    Properties,
    Create,
    Modify,
    Delete,
    Register,
    Version,
}

/// Calls that are to be answered wrongly.
pub(crate) struct Misbehaviour {
    pub(crate) function: Function,
    pub(crate) kind: ObjectKind,
    pub(crate) wrong: Wrong,
    pub(crate) times: u32,
}

/// A registered callback.
#[derive(Clone, Copy)]
pub(crate) struct Callback {
    pub(crate) function: HCN_NOTIFICATION_CALLBACK,
    pub(crate) context: usize,
}

pub(crate) struct State {
    pub(crate) hcn: FakeHcn,
    /// Which run of HNS it is: a restart ends what is open.
    pub(crate) run: u64,
    pub(crate) handles: BTreeMap<usize, Open>,
    handle_last: usize,
    /// Handles that were closed twice or never existed.
    pub(crate) strays: u64,
    pub(crate) misbehaviour: Vec<Misbehaviour>,
    pub(crate) callbacks: BTreeMap<usize, Callback>,
    /// The call that is held back, and how many calls wait.
    pub(crate) held: Option<(Function, ObjectKind)>,
    pub(crate) waiting: u32,
    /// How often each function was entered.
    pub(crate) entered: BTreeMap<(Function, ObjectKind), u64>,
    /// The last document of each kind that was sent.
    pub(crate) documents: BTreeMap<(Function, ObjectKind), Value>,
}

static STATE: Mutex<Option<State>> = Mutex::new(None);
static RELEASED: Condvar = Condvar::new();
/// A test that forgets to release a call fails instead of hanging.
const HOLD_MAX: Duration = Duration::from_secs(30);

impl State {
    pub(crate) fn new(version: HnsVersion) -> Self {
        Self {
            hcn: FakeHcn::new(version),
            run: 0,
            handles: BTreeMap::new(),
            handle_last: 0x1000,
            strays: 0,
            misbehaviour: Vec::new(),
            callbacks: BTreeMap::new(),
            held: None,
            waiting: 0,
            entered: BTreeMap::new(),
            documents: BTreeMap::new(),
        }
    }

    /// A new handle; not an address, so that whoever looks behind it fails.
    pub(crate) fn open(&mut self, kind: ObjectKind, id: Guid) -> *mut c_void {
        self.handle_last += 0x10;
        self.handles.insert(self.handle_last, Open { kind, id, run: self.run });
        std::ptr::without_provenance_mut(self.handle_last)
    }

    /// How this call is to be wrong, if it is.
    pub(crate) fn wrong(&mut self, function: Function, kind: ObjectKind) -> Option<Wrong> {
        let one = self
            .misbehaviour
            .iter_mut()
            .find(|one| one.times > 0 && one.function == function && one.kind == kind)?;
        one.times -= 1;
        Some(one.wrong)
    }
}

/// The state, made when first asked for.
pub(crate) fn with<T>(act: impl FnOnce(&mut State) -> T) -> T {
    act(lock().get_or_insert_with(|| State::new(HnsVersion::new(16, 0))))
}

fn lock() -> MutexGuard<'static, Option<State>> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Enters a call: counts it, and waits if it is held back.
pub(crate) fn enter(function: Function, kind: ObjectKind) {
    let held = with(|state| {
        *state.entered.entry((function, kind)).or_default() += 1;
        // Only the first is held back: the next of its kind overtakes it.
        let held = state.held == Some((function, kind)) && state.waiting == 0;
        state.waiting += u32::from(held);
        held
    });
    if held {
        let guard = lock();
        let is_held =
            |state: &mut Option<State>| state.as_ref().is_some_and(|state| state.held.is_some());
        drop(RELEASED.wait_timeout_while(guard, HOLD_MAX, is_held));
        with(|state| state.waiting = state.waiting.saturating_sub(1));
    }
}

/// Lets held calls go on.
pub(crate) fn release() {
    with(|state| state.held = None);
    RELEASED.notify_all();
}
