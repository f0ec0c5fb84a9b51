//! A look at the tables of iptables-legacy, without any program.
//!
//! Not netlink: these tables are read by socket options. [`table_info`] costs microseconds and tells
//! when rules come or go; [`chain_fingerprints`] reads the whole table and tells of any change. Both
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
/// Where in a target its name is, after its length.
const TARGET_NAME: usize = 2;
/// The length of a target without what is its own: length, name, revision.
const TARGET_LEN: usize = 32;
/// The name of the target that heads a chain, with its end.
const HEAD_TARGET: &[u8] = b"ERROR\0";
/// The number of the place where packets are that are carried on.
const HOOK_FORWARD: usize = 2;
/// How a rule says that it drops: the kernel's number for it, less than zero by one more.
const VERDICT_DROP: i32 = -1;
/// How long the name of a link is, with its end.
const LINK_NAME_BYTES: usize = 16;
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

/// What a table says of packets that are carried on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Forwarding {
    /// What no rule of the chain `FORWARD` has decided about is dropped.
    pub drops: bool,
    /// Names of links that rules ask whether a packet comes in by; with `+` at the end all that begin so.
    pub incoming: Vec<String>,
    /// The same for those that it goes out by.
    pub outgoing: Vec<String>,
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
    /// The names of two links.
    links: usize,
    target_offset: usize,
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
                // Two addresses and two masks come first.
                links: 16,
                target_offset: offset_of!(EntryV4, target_offset),
                next_offset: offset_of!(EntryV4, next_offset),
                notes: offset_of!(EntryV4, comefrom),
                len: size_of::<EntryV4>(),
            },
            Self::V6 => Layout {
                links: 64,
                target_offset: offset_of!(EntryV6, target_offset),
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

/// Tells, for each chain in the table's order, its name and a number that differs when any of its rules
/// does; counters do not count. The kernel's own chains come together, under an empty name.
///
/// Where a rule leads to another chain the number also depends on how large the chains before that one
/// are.
pub fn chain_fingerprints(
    family: Family,
    table: &str,
    each: impl FnMut(&str, u64),
) -> io::Result<()> {
    let socket = open(family)?;
    let mut attempt = 1;
    loop {
        let size = info(&socket, family, table)?.size;
        match entries(&socket, family, table, size) {
            Ok(bytes) => {
                fingerprints(&bytes[size_of::<GetEntries>()..], &family.layout(), each);
                return Ok(());
            }
            // It has changed in between.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && attempt < ATTEMPTS_MAX => {
                attempt += 1;
            }
            Err(error) => return Err(error),
        }
    }
}

/// What a table says of packets that are carried on. One that changes meanwhile is an error of the kind `WouldBlock`.
pub fn forwarding(family: Family, table: &str) -> io::Result<Forwarding> {
    let socket = open(family)?;
    let info = table_head(&socket, family, table)?;
    let bytes = entries(&socket, family, table, info.size)?;
    let (all, layout) = (&bytes[size_of::<GetEntries>()..], family.layout());
    let mut found = Forwarding::default();
    if info.valid_hooks & (1 << HOOK_FORWARD) != 0 {
        let last = all.get(info.underflow[HOOK_FORWARD] as usize..);
        found.drops = last.and_then(|entry| verdict(entry, &layout)) == Some(VERDICT_DROP);
    }
    for entry in each_entry(all, &layout) {
        let name = |at: usize| {
            let name = entry.get(at..at + LINK_NAME_BYTES)?;
            let end = name.iter().position(|byte| *byte == 0)?;
            std::str::from_utf8(&name[..end]).ok().filter(|name| !name.is_empty())
        };
        found.incoming.extend(name(layout.links).map(str::to_owned));
        found.outgoing.extend(name(layout.links + LINK_NAME_BYTES).map(str::to_owned));
    }
    Ok(found)
}

/// What an entry with a target of the kernel's own decides.
fn verdict(entry: &[u8], layout: &Layout) -> Option<i32> {
    let at = entry.get(layout.target_offset..layout.target_offset + 2)?;
    let target = entry.get(usize::from(u16::from_ne_bytes(at.try_into().ok()?))..)?;
    // It has no name.
    (*target.get(TARGET_NAME)? == 0).then_some(())?;
    let verdict = target.get(TARGET_LEN..TARGET_LEN + 4)?;
    Some(i32::from_ne_bytes(verdict.try_into().ok()?))
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
    let head = table_head(socket, family, table)?;
    Ok(TableInfo { num_entries: head.num_entries, size: head.size })
}

fn table_head(socket: &OwnedFd, family: Family, table: &str) -> io::Result<GetInfo> {
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
    Ok(info)
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

fn each_entry<'a>(mut entries: &'a [u8], layout: &Layout) -> impl Iterator<Item = &'a [u8]> {
    let (next_offset, least) = (layout.next_offset, layout.len);
    std::iter::from_fn(move || {
        if entries.len() < least {
            return None;
        }
        let next = [entries[next_offset], entries[next_offset + 1]];
        // An entry is never shorter than its head; if it were, we would stand still.
        let len = usize::from(u16::from_ne_bytes(next)).clamp(least, entries.len());
        let (entry, rest) = entries.split_at(len);
        entries = rest;
        Some(entry)
    })
}

fn fingerprints(entries: &[u8], layout: &Layout, mut each: impl FnMut(&str, u64)) {
    let mut chain = "";
    let mut hash = Hash(0);
    for entry in each_entry(entries, layout) {
        if let Some(name) = chain_begun(entry, layout) {
            each(chain, hash.0);
            (chain, hash) = (name, Hash(0));
        }
        hash.add(&entry[..layout.notes]);
        hash.add(&entry[layout.len..]);
    }
    each(chain, hash.0);
}

/// The name of the chain that an entry is the head of, if it is one. A head is an entry with a target
/// that no packet ever meets; the table ends with one, too.
fn chain_begun<'a>(entry: &'a [u8], layout: &Layout) -> Option<&'a str> {
    let at = entry.get(layout.target_offset..layout.target_offset + 2)?;
    let target = entry.get(usize::from(u16::from_ne_bytes(at.try_into().ok()?))..)?;
    let name = target.get(TARGET_NAME..TARGET_NAME + HEAD_TARGET.len())?;
    if name != HEAD_TARGET {
        return None;
    }
    let name = target.get(TARGET_LEN..)?;
    let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
    std::str::from_utf8(&name[..end]).ok()
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
        let mut rule = entry(200);
        let before = all(&rule);
        rule[offset_of!(EntryV4, counters)] = 7;
        assert_eq!(all(&rule), before);
        rule[150] = 1;
        assert_ne!(all(&rule), before);
        assert_eq!(layout.len, 112);
    }

    /// An IPv4 entry of this length.
    fn entry(len: u16) -> Vec<u8> {
        let layout = Family::V4.layout();
        let mut entry = vec![0_u8; len.into()];
        entry[layout.next_offset..layout.next_offset + 2].copy_from_slice(&len.to_ne_bytes());
        entry[layout.target_offset] = 112;
        entry
    }

    fn head(name: &str) -> Vec<u8> {
        let mut head = entry(176);
        head[114..120].copy_from_slice(HEAD_TARGET);
        head[144..144 + name.len()].copy_from_slice(name.as_bytes());
        head
    }

    fn all(entries: &[u8]) -> Vec<(String, u64)> {
        let mut all = Vec::new();
        fingerprints(entries, &Family::V4.layout(), |name, number| {
            all.push((name.to_owned(), number));
        });
        all
    }

    #[test]
    fn a_change_is_told_of_its_chain_and_no_other() {
        let table = |byte: u8| {
            let mut rule = entry(200);
            rule[150] = byte;
            [entry(152), head("ONE"), rule, head("TWO"), entry(200), head("ERROR")].concat()
        };
        let (before, after) = (all(&table(0)), all(&table(1)));
        let names: Vec<&str> = before.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["", "ONE", "TWO", "ERROR"]);
        let changed: Vec<&str> = before
            .iter()
            .zip(&after)
            .filter(|(one, other)| one != other)
            .map(|((name, _), _)| name.as_str())
            .collect();
        assert_eq!(changed, ["ONE"]);
    }

    #[test]
    fn a_name_that_is_too_long_is_refused() {
        assert!(name(&"x".repeat(32)).is_err());
        assert!(name("nat").is_ok());
    }
}
