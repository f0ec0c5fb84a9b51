//! What the C library's heap is told about a program like ours: one load of everything, then little.
//!
//! Here, though it is no netlink, because this is the crate that may call the system directly. Other
//! C libraries than glibc have nothing to be told.

/// Keeps the memory of all threads in one arena. By itself the C library gives each thread one of its
/// own, which grows page by page, a system call each, and which keeps what others could use. Whoever
/// loads everything on one thread after the other pays for that and gains nothing. To be called before
/// there are other threads.
pub fn share_one_arena() {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: no pointers; it changes how later allocations are laid out and nothing else.
        #[allow(unsafe_code, reason = "no safe wrapper at hand")]
        let set = unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
        debug_assert_eq!(set, 1, "the C library knows the setting");
    }
}

/// Gives memory that is free back to the system. Walks through all that is free: for after a load, not
/// for every day.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: no pointers; memory that is in use is not touched.
        #[allow(unsafe_code, reason = "no safe wrapper at hand")]
        let _given = unsafe { libc::malloc_trim(0) };
    }
}
