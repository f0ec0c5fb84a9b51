//! Whole frames of a link, past everything that the machine itself makes of them.
//!
//! What is sent leaves by the link as it is, whatever it claims to be; what is received is every frame that comes in or goes out
//! there. So tests can play somebody who lies.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::links::LinkIndex;

/// Opens a socket that sends and receives the frames of a link of the calling thread's namespace. Needs root there.
pub fn open(link: LinkIndex) -> io::Result<OwnedFd> {
    let protocol = (libc::ETH_P_ALL as u16).to_be();
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    // SAFETY: no pointers; the result is checked.
    #[allow(unsafe_code, reason = "no safe wrapper at hand")]
    let fd = unsafe { libc::socket(libc::AF_PACKET, kind, i32::from(protocol)) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is open and nobody else's.
    #[allow(unsafe_code, reason = "takes ownership of a new descriptor")]
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: an all-zero sockaddr_ll is a valid one.
    #[allow(unsafe_code, reason = "a plain C struct")]
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = protocol;
    address.sll_ifindex = link.0.cast_signed();
    let length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: `address` lives through the call and `length` is its size.
    #[allow(unsafe_code, reason = "no safe wrapper at hand")]
    let bound = unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), length) };
    if bound == 0 { Ok(fd) } else { Err(io::Error::last_os_error()) }
}
