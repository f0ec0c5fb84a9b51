//! The machine's own interfaces: which addresses it has, and by which Ethernet address.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ptr::null;

use windows_sys::Win32::Foundation::{ERROR_BUFFER_OVERFLOW, ERROR_NO_DATA, ERROR_SUCCESS};
use windows_sys::Win32::NetworkManagement::IpHelper::{
    GAA_FLAG_SKIP_ANYCAST, GAA_FLAG_SKIP_DNS_SERVER, GAA_FLAG_SKIP_MULTICAST, GetAdaptersAddresses,
    IP_ADAPTER_ADDRESSES_LH,
};
use windows_sys::Win32::Networking::WinSock::{
    AF_INET, AF_INET6, AF_UNSPEC, SOCKADDR_IN, SOCKADDR_IN6, SOCKET_ADDRESS,
};

use crate::MacAddress;

/// How much room the list gets at first; Windows says if it wants more.
const ROOM_BYTES: usize = 16 << 10;
/// The most that it gets.
const ROOM_BYTES_MAX: usize = 16 << 20;
/// The list may grow between asking for its size and asking for it.
const ATTEMPTS_MAX: u32 = 5;
/// A list is never longer than this, whatever its pointers say.
const LINKS_MAX: usize = 100_000;

/// An interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
    /// Its Ethernet address; loopback and tunnels have none.
    pub mac: Option<MacAddress>,
}

/// The machine's interfaces.
pub fn interfaces() -> io::Result<Vec<Interface>> {
    const FLAGS: u32 = GAA_FLAG_SKIP_ANYCAST | GAA_FLAG_SKIP_MULTICAST | GAA_FLAG_SKIP_DNS_SERVER;
    let mut bytes = ROOM_BYTES;
    for _ in 0..ATTEMPTS_MAX {
        // Of whole words, so that the structures in it are aligned.
        let mut room: Vec<u64> = vec![0; bytes.min(ROOM_BYTES_MAX).div_ceil(size_of::<u64>())];
        let mut size = u32::try_from(room.len() * size_of::<u64>()).unwrap_or(u32::MAX);
        let list = room.as_mut_ptr().cast::<IP_ADAPTER_ADDRESSES_LH>();
        // SAFETY: the room has that many bytes, and both places outlive the call.
        let code = unsafe {
            GetAdaptersAddresses(u32::from(AF_UNSPEC), FLAGS, null(), list, &raw mut size)
        };
        match code {
            // SAFETY: Windows has filled the room with a list that begins at its start.
            ERROR_SUCCESS => return Ok(unsafe { read(list) }),
            ERROR_NO_DATA => return Ok(Vec::new()),
            ERROR_BUFFER_OVERFLOW if bytes < ROOM_BYTES_MAX => {
                bytes = usize::try_from(size).unwrap_or(ROOM_BYTES_MAX).max(bytes * 2);
            }
            code => return Err(io::Error::from_raw_os_error(code.cast_signed())),
        }
    }
    Err(io::Error::other("the list of interfaces grows faster than it can be read"))
}

/// # Safety
/// `next` is null or leads to a list of Windows' making.
unsafe fn read(mut next: *const IP_ADAPTER_ADDRESSES_LH) -> Vec<Interface> {
    let mut interfaces = Vec::new();
    while !next.is_null() && interfaces.len() < LINKS_MAX {
        // SAFETY: the caller's word: a member of the list.
        let adapter = unsafe { &*next };
        let mut addresses = Vec::new();
        let mut unicast = adapter.FirstUnicastAddress;
        while !unicast.is_null() && addresses.len() < LINKS_MAX {
            // SAFETY: a member of the adapter's own list.
            let entry = unsafe { &*unicast };
            // SAFETY: Windows has filled it in.
            addresses.extend(unsafe { address(&entry.Address) });
            unicast = entry.Next;
        }
        let mac = adapter.PhysicalAddress.first_chunk().copied().map(MacAddress);
        let mac = mac.filter(|_| adapter.PhysicalAddressLength == 6);
        interfaces.push(Interface { addresses, mac });
        next = adapter.Next;
    }
    interfaces
}

/// # Safety
/// It leads to an address of its own length.
unsafe fn address(given: &SOCKET_ADDRESS) -> Option<IpAddr> {
    let length = usize::try_from(given.iSockaddrLength).ok()?;
    if given.lpSockaddr.is_null() || length < size_of::<SOCKADDR_IN>() {
        return None;
    }
    // SAFETY: every kind of address begins with its family, and it is long enough for that.
    let family = unsafe { (*given.lpSockaddr).sa_family };
    match family {
        AF_INET => {
            // SAFETY: of this family, and long enough; read without trust in its alignment.
            let v4 = unsafe { std::ptr::read_unaligned(given.lpSockaddr.cast::<SOCKADDR_IN>()) };
            // SAFETY: any four bytes are an address.
            let raw = unsafe { v4.sin_addr.S_un.S_addr };
            Some(Ipv4Addr::from(raw.to_ne_bytes()).into())
        }
        AF_INET6 if length >= size_of::<SOCKADDR_IN6>() => {
            // SAFETY: of this family, and long enough; likewise.
            let v6 = unsafe { std::ptr::read_unaligned(given.lpSockaddr.cast::<SOCKADDR_IN6>()) };
            // SAFETY: any sixteen bytes are an address.
            let raw = unsafe { v6.sin6_addr.u.Byte };
            Some(Ipv6Addr::from(raw).into())
        }
        _ => None,
    }
}
