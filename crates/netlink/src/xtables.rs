//! A look at the tables of iptables-legacy, without any program.
//!
//! Not netlink: these tables are read by socket options. [`table_info`] costs microseconds and tells
//! when rules come or go; [`table_fingerprint`] reads the whole table and tells of any change. Both
//! make the kernel set the table up if it was not, so ask only about tables that are in use.

#![expect(unsafe_code, reason = "no safe crate of ours wraps these socket options")]

use std::io;
use std::mem::{offset_of, size_of};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// The option that tells a table's size; the same number for both families.
const GET_INFO: libc::c_int = 64;
/// The option that reads a table.
const GET_ENTRIES: libc::c_int = 65;
const NAME_BYTES: usize = 32;
/// How often a table may change under our eyes before we say so.
const ATTEMPTS_MAX: usize = 4;

/// The families that have such tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// IPv4: iptables.
    V4,
    /// IPv6: ip6tables.
    V6,
}

/// How big a table is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TableInfo {
    /// How many rules, beginnings and ends of chains it has.
    pub num_entries: u32,
    /// How many bytes they take.
    pub size: u32,
}

/// The kernel's `ipt_getinfo`.
#[repr(C)]
struct GetInfo {
    name: [u8; NAME_BYTES],
    valid_hooks: u32,
    hook_entry: [u32; 5],
    underflow: [u32; 5],
    num_entries: u32,
    size: u32,
}

/// The kernel's `ipt_get_entries`, without its entries.
#[repr(C)]
struct GetEntries {
    name: [u8; NAME_BYTES],
    size: u32,
    entries: [u64; 0],
}

/// The kernel's `ipt_entry`, without its matches and target.
#[repr(C)]
struct EntryV4 {
    ip: [u32; 21],
    nfcache: u32,
    target_offset: u16,
    next_offset: u16,
    comefrom: u32,
    counters: [u64; 2],
}

/// The kernel's `ip6t_entry`, without its matches and target.
#[repr(C)]
struct EntryV6 {
    ip: [u32; 34],
    nfcache: u32,
    target_offset: u16,
    next_offset: u16,
    comefrom: u32,
    counters: [u64; 2],
}

/// Where in an entry is what we look at.
struct Layout {
    next_offset: usize,
    /// From here on the kernel keeps notes of its own, and counters.
    notes: usize,
    len: usize,
}

impl Family {
    fn level(self) -> libc::c_int {
        match self {
            Self::V4 => libc::IPPROTO_IP,
            Self::V6 => libc::IPPROTO_IPV6,
        }
    }

    fn domain(self) -> libc::c_int {
        match self {
            Self::V4 => libc::AF_INET,
            Self::V6 => libc::AF_INET6,
        }
    }

    fn layout(self) -> Layout {
        match self {
            Self::V4 => Layout {
                next_offset: offset_of!(EntryV4, next_offset),
                notes: offset_of!(EntryV4, comefrom),
                len: size_of::<EntryV4>(),
            },
            Self::V6 => Layout {
                next_offset: offset_of!(EntryV6, next_offset),
                notes: offset_of!(EntryV6, comefrom),
                len: size_of::<EntryV6>(),
            },
        }
    }
}

/// How big a table is; `None` if it cannot be asked, or the kernel has no such table.
pub fn table_info(family: Family, table: &str) -> Option<TableInfo> {
    let socket = open(family).ok()?;
    info(&socket, family, table).ok()
}

/// A number that differs when any rule of a table does; counters do not count.
pub fn table_fingerprint(family: Family, table: &str) -> io::Result<u64> {
    let socket = open(family)?;
    let mut attempt = 1;
    loop {
        let size = info(&socket, family, table)?.size;
        match entries(&socket, family, table, size) {
            Ok(bytes) => {
                return Ok(fingerprint(&bytes[size_of::<GetEntries>()..], &family.layout()));
            }
            // It has changed in between.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && attempt < ATTEMPTS_MAX => {
                attempt += 1;
            }
            Err(error) => return Err(error),
        }
    }
}

fn open(family: Family) -> io::Result<OwnedFd> {
    // SAFETY: socket takes three numbers and touches no memory of ours.
    let fd = unsafe {
        libc::socket(family.domain(), libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::IPPROTO_RAW)
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just given us this descriptor; nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn name(table: &str) -> io::Result<[u8; NAME_BYTES]> {
    let mut name = [0; NAME_BYTES];
    // The last byte stays zero: it ends the name.
    match name.get_mut(..table.len()) {
        Some(place) if table.len() < NAME_BYTES => place.copy_from_slice(table.as_bytes()),
        _ => return Err(io::ErrorKind::InvalidInput.into()),
    }
    Ok(name)
}

fn info(socket: &OwnedFd, family: Family, table: &str) -> io::Result<TableInfo> {
    let mut info = GetInfo {
        name: name(table)?,
        valid_hooks: 0,
        hook_entry: [0; 5],
        underflow: [0; 5],
        num_entries: 0,
        size: 0,
    };
    let mut len = size_of::<GetInfo>() as libc::socklen_t;
    // SAFETY: `info` is a C structure of plain numbers that is `len` bytes long and lives through the
    // call; the kernel writes at most `len` bytes to it.
    let outcome = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            family.level(),
            GET_INFO,
            (&raw mut info).cast(),
            &raw mut len,
        )
    };
    if outcome < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(TableInfo { num_entries: info.num_entries, size: info.size })
}

/// The table as the kernel gives it: a [`GetEntries`], then `size` bytes of entries.
fn entries(socket: &OwnedFd, family: Family, table: &str, size: u32) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0_u8; size_of::<GetEntries>() + size as usize];
    bytes[..NAME_BYTES].copy_from_slice(&name(table)?);
    let at = offset_of!(GetEntries, size);
    bytes[at..at + size_of::<u32>()].copy_from_slice(&size.to_ne_bytes());
    let mut len = libc::socklen_t::try_from(bytes.len())
        .map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge))?;
    // SAFETY: `bytes` is `len` bytes long and lives through the call; the kernel writes at most `len`
    // bytes to it.
    let outcome = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            family.level(),
            GET_ENTRIES,
            bytes.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    if outcome < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(bytes)
}

fn fingerprint(mut entries: &[u8], layout: &Layout) -> u64 {
    let mut hash = Hash(entries.len() as u64);
    while entries.len() >= layout.len {
        let next = [entries[layout.next_offset], entries[layout.next_offset + 1]];
        // An entry is never shorter than its head; if it were, we would stand still.
        let len = usize::from(u16::from_ne_bytes(next)).clamp(layout.len, entries.len());
        hash.add(&entries[..layout.notes]);
        hash.add(&entries[layout.len..len]);
        entries = &entries[len..];
    }
    hash.0
}

/// Fast rather than strong: it tells a table from what it was, not from what an enemy makes of it.
struct Hash(u64);

impl Hash {
    fn add(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            let mixed = (self.0 ^ u64::from_le_bytes(word)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            self.0 = mixed ^ (mixed >> 32);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The length that the kernel's headers give on 64-bit machines.
    #[test]
    #[cfg(target_pointer_width = "64")]
    fn entries_are_laid_out_as_the_kernel_does() {
        assert_eq!((size_of::<EntryV4>(), size_of::<EntryV6>()), (112, 168));
        assert_eq!((size_of::<GetInfo>(), size_of::<GetEntries>()), (84, 40));
        assert_eq!(Family::V4.layout().next_offset, 90);
    }

    #[test]
    fn a_fingerprint_ignores_counters_and_notices_rules() {
        let layout = Family::V4.layout();
        let mut entry = vec![0_u8; 200];
        entry[layout.next_offset..layout.next_offset + 2].copy_from_slice(&200_u16.to_ne_bytes());
        let before = fingerprint(&entry, &layout);
        entry[offset_of!(EntryV4, counters)] = 7;
        assert_eq!(fingerprint(&entry, &layout), before);
        entry[150] = 1;
        assert_ne!(fingerprint(&entry, &layout), before);
    }

    #[test]
    fn a_name_that_is_too_long_is_refused() {
        assert!(name(&"x".repeat(32)).is_err());
        assert!(name("nat").is_ok());
    }
}
