//! Where a redirected connection wanted to go.
//!
//! A rule that redirects a connection changes its destination before the socket sees it. The kernel's
//! connection tracking remembers the first one, and tells whoever accepted the connection.

use std::io;
use std::mem::size_of;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd};

/// The destination that the client of an accepted TCP connection asked for. `local` is the socket's
/// own address and tells the family.
///
/// A connection that nobody redirected has its own address as the answer. One that is not tracked at
/// all is an error of kind [`NotFound`](io::ErrorKind::NotFound).
pub fn original_destination(socket: impl AsFd, local: SocketAddr) -> io::Result<SocketAddr> {
    match local {
        SocketAddr::V4(_) => original_v4(&socket),
        SocketAddr::V6(_) => original_v6(&socket),
    }
}

fn original_v4(socket: &impl AsFd) -> io::Result<SocketAddr> {
    // SAFETY: all zeroes are a valid sockaddr_in.
    #[allow(unsafe_code, reason = "a plain C struct")]
    let mut found: libc::sockaddr_in = unsafe { std::mem::zeroed() };
    read_option(socket, libc::SOL_IP, libc::SO_ORIGINAL_DST, &mut found)?;
    let ip = Ipv4Addr::from(found.sin_addr.s_addr.to_ne_bytes());
    Ok(SocketAddrV4::new(ip, u16::from_be(found.sin_port)).into())
}

fn original_v6(socket: &impl AsFd) -> io::Result<SocketAddr> {
    // SAFETY: all zeroes are a valid sockaddr_in6.
    #[allow(unsafe_code, reason = "a plain C struct")]
    let mut found: libc::sockaddr_in6 = unsafe { std::mem::zeroed() };
    read_option(socket, libc::SOL_IPV6, libc::IP6T_SO_ORIGINAL_DST, &mut found)?;
    let ip = Ipv6Addr::from(found.sin6_addr.s6_addr);
    Ok(SocketAddrV6::new(ip, u16::from_be(found.sin6_port), 0, found.sin6_scope_id).into())
}

/// Marks the C structs that any bytes of the kernel's may be read into.
trait PlainAddress {}
impl PlainAddress for libc::sockaddr_in {}
impl PlainAddress for libc::sockaddr_in6 {}

fn read_option<T: PlainAddress>(
    socket: &impl AsFd,
    level: i32,
    option: i32,
    into: &mut T,
) -> io::Result<()> {
    let mut length = size_of::<T>() as libc::socklen_t;
    // SAFETY: `into` and `length` live through the call, `length` is the size of `into`, and every
    // value of a `PlainAddress` is a valid one.
    #[allow(unsafe_code, reason = "no safe wrapper at hand")]
    let status = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            level,
            option,
            std::ptr::from_mut(into).cast(),
            &raw mut length,
        )
    };
    if status != 0 {
        return Err(io::Error::last_os_error());
    }
    if length as usize != size_of::<T>() {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "an address of another length"));
    }
    Ok(())
}
