//! `ptrace` for User-mode Linux on processors with more registers than it knows.
//!
//! It keeps 2,696 bytes of vector registers for each of its processes and hands them back as they are; the
//! host takes them back only whole, and with AMX they are some 11,000 bytes. So the guest's first process
//! dies of EFAULT. Loaded before the C library, this puts what User-mode Linux keeps over the beginning of what
//! the process has, and hands that back; the rest, of which the guest knows nothing, stays as it was.
//!
//! What always holds: no memory is allocated and little of the stack is used, for it runs on the guest
//! kernel's own. `build.rs` compiles it; it is in no program of ours.
#![allow(unsafe_code, reason = "called by C's rules, and calls by them")]
#![warn(missing_docs, unsafe_op_in_unsafe_fn, unreachable_pub)]

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_long, c_void};

unsafe extern "C" {
    fn syscall(number: c_long, ...) -> c_long;
    fn __errno_location() -> *mut c_int;
}

const SYS_PTRACE: c_long = 101;
/// The requests that look at one word: the kernel writes it, C's `ptrace` returns it.
const PEEK: std::ops::RangeInclusive<c_int> = 1..=3;
const GETREGSET: c_int = 0x4204;
const SETREGSET: c_int = 0x4205;
/// The set of all that XSAVE keeps.
const NT_X86_XSTATE: c_long = 0x202;
const EFAULT: c_int = 14;

/// More than any processor has.
const REGISTERS_BYTES_MAX: usize = 64 << 10;

#[repr(C)]
struct IoVec {
    base: *mut c_void,
    bytes: usize,
}

#[repr(align(64))]
struct Registers(UnsafeCell<[u8; REGISTERS_BYTES_MAX]>);

// SAFETY: User-mode Linux has one core and traces its processes from one thread.
unsafe impl Sync for Registers {}

static WHOLE: Registers = Registers(UnsafeCell::new([0; REGISTERS_BYTES_MAX]));

/// The system call, without what C makes of it; -1 and `errno` if it fails.
///
/// # Safety
/// As the request asks.
unsafe fn call(request: c_int, process: c_int, address: c_long, data: c_long) -> c_long {
    // SAFETY: the caller's word.
    unsafe { syscall(SYS_PTRACE, c_long::from(request), c_long::from(process), address, data) }
}

/// C's `ptrace`.
///
/// # Safety
/// As the request asks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ptrace(
    request: c_int,
    process: c_int,
    address: c_long,
    data: c_long,
) -> c_long {
    // SAFETY: the C library has one for each thread.
    let errno = unsafe { __errno_location() };
    if PEEK.contains(&request) {
        let mut word: c_long = 0;
        // SAFETY: the kernel writes one word.
        if unsafe { call(request, process, address, (&raw mut word) as c_long) } < 0 {
            return -1;
        }
        // SAFETY: ours to write.
        unsafe { *errno = 0 };
        return word;
    }
    // SAFETY: as the caller promises.
    let result = unsafe { call(request, process, address, data) };
    // SAFETY: ours to read.
    let is_too_short = result < 0 && unsafe { *errno } == EFAULT;
    if request == SETREGSET && address == NT_X86_XSTATE && is_too_short {
        // SAFETY: with this request the kernel has read an `IoVec` there.
        return unsafe { set_beginning(process, &*(data as *const IoVec)) };
    }
    result
}

/// Sets the first of a process' registers, and leaves the others.
///
/// # Safety
/// `first` says truly where they are, and nobody else is here.
unsafe fn set_beginning(process: c_int, first: &IoVec) -> c_long {
    let mut whole = IoVec { base: WHOLE.0.get().cast(), bytes: REGISTERS_BYTES_MAX };
    let data = (&raw mut whole) as c_long;
    // SAFETY: the kernel writes no more than the area has, and says how much that is.
    let result = unsafe { call(GETREGSET, process, NT_X86_XSTATE, data) };
    if result < 0 || whole.bytes < first.bytes {
        return -1;
    }
    // SAFETY: there is room, as was just seen; the area is nobody else's.
    unsafe {
        std::ptr::copy_nonoverlapping(first.base.cast::<u8>(), whole.base.cast(), first.bytes)
    };
    // SAFETY: it reads what it has written.
    unsafe { call(SETREGSET, process, NT_X86_XSTATE, data) }
}
