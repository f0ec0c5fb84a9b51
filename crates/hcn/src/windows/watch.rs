//! Notifications of HNS's, to listeners of ours.
//!
//! HNS gets a number as context, not a pointer: a notification that comes late, on whatever thread,
//! finds nobody instead of freed memory.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{null_mut, without_provenance};
use std::sync::{Mutex, MutexGuard, PoisonError};

use windows_sys::Win32::System::HostComputeNetwork::{
    HcnNotificationNetworkCreate, HcnNotificationNetworkDelete, HcnNotificationServiceDisconnect,
};
use windows_sys::core::{HRESULT, PCWSTR};

use super::library::Library;
use crate::{Call, Event, HcnError, Hresult, Listener, ObjectKind, Operation, Watch};

static LISTENERS: Mutex<Listeners> = Mutex::new(Listeners { last: 0, by_number: BTreeMap::new() });

struct Listeners {
    last: usize,
    by_number: BTreeMap<usize, Listener>,
}

fn listeners() -> MutexGuard<'static, Listeners> {
    // Inserting and removing cannot stop half-way.
    LISTENERS.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn begin(library: &Library, listener: Listener) -> Result<Watch, HcnError> {
    let number = {
        let mut listeners = listeners();
        listeners.last += 1;
        let number = listeners.last;
        listeners.by_number.insert(number, listener);
        number
    };
    let mut raw = null_mut();
    // SAFETY: the function lives as long as the program, the context is only a number, and the place
    // outlives the call.
    let code = unsafe {
        let context = without_provenance(number);
        (library.register_service_callback)(Some(notify), context, &raw mut raw)
    };
    if code < 0 {
        listeners().by_number.remove(&number);
        let call = Call::new(Operation::Watch, ObjectKind::Service, "");
        return Err(call.failed_with(Hresult(code.cast_unsigned()), ""));
    }
    let unregister = library.unregister_service_callback;
    let handle = raw.expose_provenance();
    Ok(Watch::new(move || {
        listeners().by_number.remove(&number);
        // SAFETY: the handle came from registering and is given back this once.
        unsafe { unregister(std::ptr::with_exposed_provenance(handle)) };
    }))
}

const EVENTS: [(i32, Event); 3] = [
    (HcnNotificationServiceDisconnect, Event::Disconnected),
    (HcnNotificationNetworkCreate, Event::NetworkCreated),
    (HcnNotificationNetworkDelete, Event::NetworkDeleted),
];

unsafe extern "system" fn notify(
    notification: u32,
    context: *const c_void,
    _status: HRESULT,
    _data: PCWSTR,
) {
    let listener = listeners().by_number.get(&context.addr()).cloned();
    let event = EVENTS.iter().find(|(number, _)| *number == notification.cast_signed());
    let event = event.map_or(Event::Other(notification), |(_, event)| *event);
    if let Some(listener) = listener {
        // A panic must not run through HNS's frames.
        let _ = catch_unwind(AssertUnwindSafe(|| listener(event)));
    }
}
