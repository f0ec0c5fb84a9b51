//! How long IPVS keeps connections without packets: settings that are no files.

use std::io;

use telaio_netlink::NetlinkError;
use telaio_netlink::ipvs::{Ipvs, Timeouts};

use super::{VS_TIMEOUT_TCP, VS_TIMEOUT_TCP_FIN, VS_TIMEOUT_UDP};

/// One of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum IpvsTimeout {
    Tcp,
    TcpFin,
    Udp,
}

impl IpvsTimeout {
    /// The one of this name.
    pub(super) fn of(path: &str) -> Option<Self> {
        match path {
            VS_TIMEOUT_TCP => Some(Self::Tcp),
            VS_TIMEOUT_TCP_FIN => Some(Self::TcpFin),
            VS_TIMEOUT_UDP => Some(Self::Udp),
            _ => None,
        }
    }

    pub(super) fn read(self) -> io::Result<u32> {
        let timeouts = open()?.timeouts().map_err(io_error)?;
        Ok(match self {
            Self::Tcp => timeouts.tcp_s,
            Self::TcpFin => timeouts.tcp_fin_s,
            Self::Udp => timeouts.udp_s,
        })
    }

    pub(super) fn write(self, seconds: u32) -> io::Result<()> {
        // Those that are 0 stay as they are.
        let mut timeouts = Timeouts { tcp_s: 0, tcp_fin_s: 0, udp_s: 0 };
        *match self {
            Self::Tcp => &mut timeouts.tcp_s,
            Self::TcpFin => &mut timeouts.tcp_fin_s,
            Self::Udp => &mut timeouts.udp_s,
        } = seconds;
        open()?.set_timeouts(&timeouts).map_err(io_error)
    }
}

fn open() -> io::Result<Ipvs> {
    Ipvs::open().map_err(io_error)?.ok_or_else(|| io::ErrorKind::NotFound.into())
}

fn io_error(error: NetlinkError) -> io::Error {
    match error.raw_os_error() {
        Some(number) => io::Error::from_raw_os_error(number),
        None => io::Error::other(error),
    }
}
