//! `ProcessPrng`, by way of the older function that wine has.
//!
//! Rust's standard library for Windows asks bcryptprimitives.dll for random numbers, and wine has that
//! library only since 9. It must not use the standard library itself: that would ask for it.
#![cfg_attr(windows, no_std)]
#![allow(unsafe_code, reason = "called by C's rules, and calls by them")]

#[cfg(windows)]
mod prng {
    #[link(name = "advapi32")]
    unsafe extern "system" {
        /// RtlGenRandom, by the name that it is exported under.
        fn SystemFunction036(buffer: *mut u8, length: u32) -> u8;
    }

    /// Fills the buffer with random bytes; always succeeds, as on Windows.
    #[unsafe(no_mangle)]
    pub unsafe extern "system" fn ProcessPrng(buffer: *mut u8, length: usize) -> i32 {
        let mut done = 0;
        while done < length {
            let part = (length - done).min(1 << 20);
            // SAFETY: the caller's buffer has `length` bytes, of which `done` are behind us.
            if unsafe { SystemFunction036(buffer.add(done), part as u32) } == 0 {
                return 0;
            }
            done += part;
        }
        1
    }

    #[panic_handler]
    fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
        loop {}
    }
}
