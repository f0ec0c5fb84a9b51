//! `ProcessPrng`, by way of the older function that wine has.
//!
//! Rust's standard library for Windows asks bcryptprimitives.dll for random numbers, and wine 8 lacks
//! that library. It must not use the standard library itself: that would ask for it. Built with
//! `panic=abort`, and without anything that can panic: unwinding is of the standard library.
#![cfg_attr(windows, no_std)]
#![allow(unsafe_code, reason = "called by C's rules, and calls by them")]

#[cfg(windows)]
pub mod prng {
    //! The function.

    #[link(name = "advapi32")]
    unsafe extern "system" {
        /// RtlGenRandom, by the name that it is exported under.
        fn SystemFunction036(buffer: *mut u8, length: u32) -> u8;
    }

    /// The most that is asked for at once.
    const PART: usize = 1 << 20;

    /// Fills the buffer with random bytes; 1 if that worked.
    ///
    /// # Safety
    /// The buffer has `length` bytes.
    #[unsafe(no_mangle)]
    pub unsafe extern "system" fn ProcessPrng(mut buffer: *mut u8, mut length: usize) -> i32 {
        while length > 0 {
            let part = if length < PART { length } else { PART };
            // SAFETY: the rest of the caller's buffer has at least that many bytes.
            if unsafe { SystemFunction036(buffer, part as u32) } == 0 {
                return 0;
            }
            buffer = buffer.wrapping_add(part);
            length = length.wrapping_sub(part);
        }
        1
    }

    #[panic_handler]
    fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
        loop {}
    }
}
