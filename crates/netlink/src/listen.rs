//! Whether a port is free, and who has it if it is not.

#![expect(unsafe_code, reason = "std makes no sockets that share a port with one that is closing")]

use std::fs;
use std::mem::size_of;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;

/// Transport protocols that processes listen with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
}

/// A process that has a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    /// Its number.
    pub pid: u32,
    /// Its name.
    pub name: String,
    /// Its command line, with spaces.
    pub command_line: String,
}

/// Whether nobody in this namespace has the port. What cannot be tried, such as an address that is not this
/// machine's, counts as free.
pub fn is_free(transport: Transport, at: SocketAddr) -> bool {
    let kind = match transport {
        Transport::Tcp => libc::SOCK_STREAM,
        Transport::Udp => libc::SOCK_DGRAM,
        // To try would load a module that nobody else may need.
        Transport::Sctp => return sctp_inode(&sctp_table(), at).is_none(),
    };
    let family = if at.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    // SAFETY: no pointers; the result is checked.
    let fd = unsafe { libc::socket(family, kind | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return true;
    }
    // SAFETY: the descriptor is open and nobody else's.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    if transport == Transport::Tcp {
        // Connections that are closing do not listen.
        set_option(&socket, libc::SOL_SOCKET, libc::SO_REUSEADDR);
    }
    if at.is_ipv6() {
        set_option(&socket, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY);
    }
    bind(&socket, at) || std::io::Error::last_os_error().raw_os_error() != Some(libc::EADDRINUSE)
}

fn set_option(socket: &OwnedFd, level: i32, option: i32) {
    let value = 1_i32;
    // SAFETY: the value lives through the call and its size is given. That it fails changes only what is found.
    unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            (&raw const value).cast(),
            size_of::<i32>() as libc::socklen_t,
        );
    }
}

fn bind(socket: &OwnedFd, at: SocketAddr) -> bool {
    match at {
        SocketAddr::V4(at) => {
            // SAFETY: an all-zero sockaddr_in is a valid one.
            let mut address: libc::sockaddr_in = unsafe { std::mem::zeroed() };
            address.sin_family = libc::AF_INET as libc::sa_family_t;
            address.sin_port = at.port().to_be();
            address.sin_addr.s_addr = u32::from_ne_bytes(at.ip().octets());
            let length = size_of::<libc::sockaddr_in>() as libc::socklen_t;
            // SAFETY: the address lives through the call and its size is given.
            unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) == 0 }
        }
        SocketAddr::V6(at) => {
            // SAFETY: an all-zero sockaddr_in6 is a valid one.
            let mut address: libc::sockaddr_in6 = unsafe { std::mem::zeroed() };
            address.sin6_family = libc::AF_INET6 as libc::sa_family_t;
            address.sin6_port = at.port().to_be();
            address.sin6_addr.s6_addr = at.ip().octets();
            let length = size_of::<libc::sockaddr_in6>() as libc::socklen_t;
            // SAFETY: the address lives through the call and its size is given.
            unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) == 0 }
        }
    }
}

/// Who has a port in this namespace, as far as /proc tells.
pub fn owner(transport: Transport, at: SocketAddr) -> Option<Owner> {
    let inode = ["", "6"].into_iter().find_map(|suffix| {
        let name = match transport {
            Transport::Tcp => "tcp",
            Transport::Udp => "udp",
            Transport::Sctp => return sctp_inode(&sctp_table(), at),
        };
        let table = fs::read_to_string(format!("/proc/thread-self/net/{name}{suffix}")).ok()?;
        inode_of(&table, transport, at.port())
    })?;
    let wanted = format!("socket:[{inode}]");
    for process in fs::read_dir("/proc").ok()?.flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        if has_descriptor(&process.path(), &wanted) {
            let read = |name: &str| fs::read(process.path().join(name)).unwrap_or_default();
            let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).trim().to_owned();
            let command_line =
                read("cmdline").iter().map(|byte| if *byte == 0 { b' ' } else { *byte }).collect();
            return Some(Owner { pid, name: text(read("comm")), command_line: text(command_line) });
        }
    }
    None
}

fn has_descriptor(process: &Path, wanted: &str) -> bool {
    let Ok(descriptors) = fs::read_dir(process.join("fd")) else { return false };
    descriptors
        .flatten()
        .any(|entry| fs::read_link(entry.path()).is_ok_and(|target| target.as_os_str() == wanted))
}

/// The inode of the socket that has a port, from a table of /proc/net.
fn inode_of(table: &str, transport: Transport, port: u16) -> Option<u64> {
    /// The kernel's number for "listening".
    const LISTENING: &str = "0A";
    let port = format!(":{port:04X}");
    table.lines().skip(1).find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let has_state = transport == Transport::Udp || fields.get(3) == Some(&LISTENING);
        let is_it = fields.get(1)?.ends_with(&port) && has_state;
        is_it.then(|| fields.get(9)?.parse().ok()).flatten()
    })
}

/// The endpoints of SCTP in this namespace; nothing where the kernel has none.
fn sctp_table() -> String {
    fs::read_to_string("/proc/thread-self/net/sctp/eps").unwrap_or_default()
}

/// The inode of the SCTP socket that listens where packets to this address arrive, from the kernel's table of endpoints.
fn sctp_inode(table: &str, at: SocketAddr) -> Option<u64> {
    /// The kernel's number for "listening".
    const LISTENING: &str = "10";
    let port = at.port().to_string();
    table.lines().skip(1).find_map(|line| {
        // Two addresses in memory, then type, state, bucket, port, user, inode and the addresses.
        let fields: Vec<&str> = line.split_whitespace().collect();
        let is_it = fields.get(3) == Some(&LISTENING) && fields.get(5) == Some(&port.as_str());
        let meets = |own: &str| match own.parse::<IpAddr>() {
            Ok(own) => {
                let is_all = own.is_unspecified() && (own.is_ipv6() || at.is_ipv4());
                is_all
                    || own == at.ip()
                    || at.ip().is_unspecified() && own.is_ipv4() == at.is_ipv4()
            }
            // Whatever it is, it listens.
            Err(_) => true,
        };
        let addresses = fields.get(8..).unwrap_or_default();
        (is_it && addresses.iter().any(|own| meets(own))).then(|| fields[7].parse().ok()).flatten()
    })
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener, UdpSocket};

    use super::*;

    #[test]
    fn a_port_that_is_listened_to_is_not_free_and_its_owner_is_named() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let everywhere = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), at.port());
        assert!(!is_free(Transport::Tcp, at) && !is_free(Transport::Tcp, everywhere));
        assert!(is_free(Transport::Udp, at));
        assert_eq!(owner(Transport::Tcp, at).unwrap().pid, std::process::id());
        drop(listener);
        assert!(is_free(Transport::Tcp, at));
    }

    #[test]
    fn a_bound_udp_socket_has_its_port() {
        let socket = UdpSocket::bind("[::1]:0").unwrap();
        let at = socket.local_addr().unwrap();
        assert!(!is_free(Transport::Udp, at));
        assert_eq!(owner(Transport::Udp, at).unwrap().pid, std::process::id());
    }

    #[test]
    fn who_listens_with_sctp_is_found_in_the_kernels_table() {
        let table = " ENDPT     SOCK   STY SST HBKT LPORT   UID INODE LADDRS\n\
            0 0 2   10  9    9999      0 4711 10.0.0.1 fd00::1 \n\
            0 0 2   10  9    7777      0 4712 0.0.0.0 \n\
            0 0 2   10  9    6666      0 4714 :: \n\
            0 0 2   7   9    8888      0 4713 0.0.0.0 \n";
        let at = |text: &str| sctp_inode(table, text.parse().unwrap());
        assert_eq!((at("10.0.0.1:9999"), at("0.0.0.0:9999")), (Some(4711), Some(4711)));
        assert_eq!((at("[fd00::1]:9999"), at("[::]:9999")), (Some(4711), Some(4711)));
        assert_eq!((at("10.0.0.2:9999"), at("[fd00::2]:9999")), (None, None));
        assert_eq!((at("192.0.2.1:7777"), at("[::]:7777")), (Some(4712), None));
        assert_eq!((at("192.0.2.1:6666"), at("[fd00::9]:6666")), (Some(4714), Some(4714)));
        assert_eq!((at("192.0.2.1:8888"), at("0.0.0.0:1")), (None, None));
        assert_eq!(sctp_inode("", "0.0.0.0:1".parse().unwrap()), None);
    }

    #[test]
    fn what_cannot_be_tried_counts_as_free() {
        assert!(is_free(Transport::Tcp, "192.0.2.1:80".parse().unwrap()));
    }
}
