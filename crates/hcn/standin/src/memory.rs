//! Texts handed to the caller, and which of them it has not freed yet.
//!
//! The caller frees them by `CoTaskMemFree`, which we do not see; but the allocator lets a spy look on.
//! It watches for the addresses that we handed out.

use std::collections::BTreeSet;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use windows_sys::Win32::System::Com::{CoRegisterMallocSpy, CoTaskMemAlloc};
use windows_sys::core::{GUID, HRESULT, PWSTR};

/// The addresses of texts that are not freed yet.
static LIVE: Mutex<BTreeSet<usize>> = Mutex::new(BTreeSet::new());

fn live() -> MutexGuard<'static, BTreeSet<usize>> {
    LIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How many texts the caller has not freed.
pub(crate) fn live_texts() -> usize {
    live().len()
}

/// A text for the caller to free; null if there is no memory.
pub(crate) fn hand_out(units: &[u16]) -> PWSTR {
    static SPY_IN: Once = Once::new();
    SPY_IN.call_once(|| {
        // SAFETY: the spy is a static of the layout that the interface asks for.
        unsafe { CoRegisterMallocSpy((&raw const SPY).cast_mut().cast()) };
    });
    // SAFETY: allocates; any size is allowed.
    let text: PWSTR = unsafe { CoTaskMemAlloc((units.len() + 1) * size_of::<u16>()) }.cast();
    if text.is_null() {
        return null_mut();
    }
    // SAFETY: there is room for the units and the zero.
    unsafe {
        std::ptr::copy_nonoverlapping(units.as_ptr(), text, units.len());
        *text.add(units.len()) = 0;
    }
    live().insert(text.addr());
    text
}

/// `IMallocSpy`: a pointer to its functions.
#[repr(C)]
struct Spy {
    functions: &'static SpyFunctions,
}

#[repr(C)]
struct SpyFunctions {
    query_interface:
        unsafe extern "system" fn(*mut c_void, *const GUID, *mut *mut c_void) -> HRESULT,
    add_ref: unsafe extern "system" fn(*mut c_void) -> u32,
    release: unsafe extern "system" fn(*mut c_void) -> u32,
    pre_alloc: unsafe extern "system" fn(*mut c_void, usize) -> usize,
    post_alloc: unsafe extern "system" fn(*mut c_void, *mut c_void) -> *mut c_void,
    pre_free: unsafe extern "system" fn(*mut c_void, *mut c_void, i32) -> *mut c_void,
    post_free: unsafe extern "system" fn(*mut c_void, i32),
    pre_realloc:
        unsafe extern "system" fn(*mut c_void, *mut c_void, usize, *mut *mut c_void, i32) -> usize,
    post_realloc: unsafe extern "system" fn(*mut c_void, *mut c_void, i32) -> *mut c_void,
    pre_get_size: unsafe extern "system" fn(*mut c_void, *mut c_void, i32) -> *mut c_void,
    post_get_size: unsafe extern "system" fn(*mut c_void, usize, i32) -> usize,
    pre_did_alloc: unsafe extern "system" fn(*mut c_void, *mut c_void, i32) -> *mut c_void,
    post_did_alloc: unsafe extern "system" fn(*mut c_void, *mut c_void, i32, i32) -> i32,
    pre_heap_minimize: unsafe extern "system" fn(*mut c_void),
    post_heap_minimize: unsafe extern "system" fn(*mut c_void),
}

static SPY: Spy = Spy {
    functions: &SpyFunctions {
        query_interface,
        add_ref: one,
        release: one,
        pre_alloc: same_size,
        post_alloc: same_after,
        pre_free,
        post_free: nothing_after,
        pre_realloc,
        post_realloc: same,
        pre_get_size: same,
        post_get_size,
        pre_did_alloc: same,
        post_did_alloc,
        pre_heap_minimize: nothing,
        post_heap_minimize: nothing,
    },
};

unsafe extern "system" fn query_interface(
    spy: *mut c_void,
    _: *const GUID,
    place: *mut *mut c_void,
) -> HRESULT {
    // SAFETY: the allocator gives a place for the interface.
    unsafe { *place = spy };
    0
}

unsafe extern "system" fn one(_: *mut c_void) -> u32 {
    1
}

unsafe extern "system" fn same_size(_: *mut c_void, size: usize) -> usize {
    size
}

unsafe extern "system" fn same_after(_: *mut c_void, block: *mut c_void) -> *mut c_void {
    block
}

unsafe extern "system" fn pre_free(_: *mut c_void, block: *mut c_void, _: i32) -> *mut c_void {
    live().remove(&block.addr());
    block
}

unsafe extern "system" fn nothing_after(_: *mut c_void, _: i32) {}

unsafe extern "system" fn pre_realloc(
    _: *mut c_void,
    block: *mut c_void,
    size: usize,
    place: *mut *mut c_void,
    _: i32,
) -> usize {
    // SAFETY: the allocator gives a place for the block.
    unsafe { *place = block };
    size
}

unsafe extern "system" fn same(_: *mut c_void, block: *mut c_void, _: i32) -> *mut c_void {
    block
}

unsafe extern "system" fn post_get_size(_: *mut c_void, size: usize, _: i32) -> usize {
    size
}

unsafe extern "system" fn post_did_alloc(_: *mut c_void, _: *mut c_void, _: i32, did: i32) -> i32 {
    did
}

unsafe extern "system" fn nothing(_: *mut c_void) {}
