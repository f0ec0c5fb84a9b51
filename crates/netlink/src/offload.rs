//! Switching off what hardware would do.
//!
//! A vxlan link's packets get their checksum late. Some kernels and cards leave it wrong where packets are
//! translated on the way, and connections then begin only after the sender's retries, 63 seconds later. Without the
//! offload on the vxlan link, checksums are right before anything else sees a packet.

#![expect(unsafe_code, reason = "no safe crate of ours wraps this ioctl")]

use std::io;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;

use crate::error::NetlinkError;

const SIOCETHTOOL: libc::c_ulong = 0x8946;
const ETHTOOL_GTXCSUM: u32 = 0x16;
const ETHTOOL_STXCSUM: u32 = 0x17;

/// `struct ethtool_value`.
#[repr(C)]
struct Value {
    command: u32,
    data: u32,
}

/// Has a link of this namespace leave checksums to hardware, or no longer.
pub fn set_checksum_offload(link: &str, is_on: bool) -> Result<(), NetlinkError> {
    let doing = "switching a link's checksum offload";
    ask(link, Value { command: ETHTOOL_STXCSUM, data: u32::from(is_on) }, doing).map(drop)
}

/// Whether a link of this namespace leaves checksums to hardware.
pub fn checksum_offload(link: &str) -> Result<bool, NetlinkError> {
    let doing = "reading a link's checksum offload";
    Ok(ask(link, Value { command: ETHTOOL_GTXCSUM, data: 0 }, doing)? != 0)
}

/// Asks the kernel; the answer.
fn ask(link: &str, mut value: Value, doing: &'static str) -> Result<u32, NetlinkError> {
    let socket = UdpSocket::bind("0.0.0.0:0").or_else(|_| UdpSocket::bind("[::]:0"));
    let socket = socket.map_err(|error| NetlinkError::Socket { doing, error })?;
    // SAFETY: an all-zero ifreq is a valid one.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if link.len() >= request.ifr_name.len() {
        return Err(NetlinkError::TooLong { what: "name of a link" });
    }
    for (to, from) in request.ifr_name.iter_mut().zip(link.bytes()) {
        *to = from.cast_signed();
    }
    request.ifr_ifru.ifru_data = (&raw mut value).cast();
    // SAFETY: the request and the value that it points to live through the call; the name ends with a zero.
    let status = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &raw mut request) };
    if status == 0 {
        return Ok(value.data);
    }
    Err(NetlinkError::Socket { doing, error: io::Error::last_os_error() })
}
