//! Taking a port, and saying who has it when it is taken.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};

use anyhow::{Context, Result, bail};

use crate::exit::CommandError;

/// Refuses two flags that ask for one port.
pub(crate) fn check_distinct(asked: &[(&str, SocketAddr)]) -> Result<(), CommandError> {
    let numbered = asked.iter().enumerate();
    let mut pairs = numbered.flat_map(|(i, one)| asked[..i].iter().map(move |other| (other, one)));
    match pairs.find(|((_, one), (_, other))| is_one_port(*one, *other)) {
        None => Ok(()),
        Some(((first, address), (second, other))) => Err(CommandError::bad_input(format!(
            "{first} {address} and {second} {other} are one port; give another address with either"
        ))),
    }
}

/// Whether two sockets cannot have both addresses. Port 0 is any free one; IPv6's unspecified address
/// is IPv4's too.
fn is_one_port(one: SocketAddr, other: SocketAddr) -> bool {
    let takes_all_of = |one: SocketAddr, other: SocketAddr| {
        one.ip().is_unspecified() && (one.is_ipv6() || other.is_ipv4())
    };
    one.port() != 0
        && one.port() == other.port()
        && (one.ip() == other.ip() || takes_all_of(one, other) || takes_all_of(other, one))
}

/// Whether a socket cannot have this address beside one of those.
pub(crate) fn is_one_port_of(address: SocketAddr, those: &[SocketAddr]) -> bool {
    those.iter().any(|other| is_one_port(address, *other))
}

/// Fails if somebody has the port, unless it will be given up at one of the addresses in `to_come`.
pub(crate) fn check_free(
    flag: &'static str,
    address: SocketAddr,
    to_come: &[SocketAddr],
) -> Result<()> {
    Port::take(flag, address, to_come).map(drop)
}

/// A port that we have, or will have.
#[derive(Debug)]
pub(super) enum Port {
    Ours(TcpListener, SocketAddr),
    /// Who has it will give it up.
    ToCome(&'static str, SocketAddr),
}

impl Port {
    /// Takes it, if it is not one that is given up later.
    pub(super) fn take(
        flag: &'static str,
        address: SocketAddr,
        to_come: &[SocketAddr],
    ) -> Result<Self> {
        match bind(flag, address) {
            Ok((listener, address)) => Ok(Self::Ours(listener, address)),
            Err(_) if is_one_port_of(address, to_come) => Ok(Self::ToCome(flag, address)),
            Err(error) => Err(error),
        }
    }

    /// Its socket, and the address with the port that the system chose for port 0.
    pub(super) fn listener(self) -> Result<(TcpListener, SocketAddr)> {
        match self {
            Self::Ours(listener, address) => Ok((listener, address)),
            Self::ToCome(flag, address) => bind(flag, address),
        }
    }
}

/// Listens on `address`; the address given back has the port that the system chose for port 0.
pub(crate) fn bind(flag: &str, address: SocketAddr) -> Result<(TcpListener, SocketAddr)> {
    let listener = match TcpListener::bind(address) {
        Ok(listener) => listener,
        Err(error) if error.kind() == ErrorKind::AddrInUse => {
            let owner = owner::of_port(address.port());
            let owner = owner.unwrap_or_else(|| "another process".to_owned());
            bail!("{address} is in use by {owner}; stop it, or give another address with {flag}");
        }
        Err(error) => {
            return Err(error).with_context(|| format!("cannot listen on {address} ({flag})"));
        }
    };
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    Ok((listener, address))
}

/// Who listens on a port, by /proc: the socket's inode, then the process that holds it.
mod owner {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    /// The state of a listening socket in /proc/net/tcp.
    const LISTEN: &str = "0A";

    /// The process that listens on `port`, as far as we may see it.
    pub(super) fn of_port(port: u16) -> Option<String> {
        let inodes: BTreeSet<String> = ["/proc/net/tcp", "/proc/net/tcp6"]
            .iter()
            .filter_map(|path| fs::read_to_string(path).ok())
            .flat_map(|table| listening_inodes(&table, port))
            .collect();
        let wanted: BTreeSet<String> = inodes.iter().map(|i| format!("socket:[{i}]")).collect();
        fs::read_dir("/proc").ok()?.flatten().find_map(|entry| {
            let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
            let holds = fs::read_dir(entry.path().join("fd")).ok()?.flatten().any(|fd| {
                fs::read_link(fd.path()).is_ok_and(|to| wanted.contains(&*to.to_string_lossy()))
            });
            holds.then(|| format!("process {pid} ({})", name(&entry.path())))
        })
    }

    fn name(process: &Path) -> String {
        let name = fs::read_to_string(process.join("comm")).unwrap_or_default();
        name.trim().to_owned()
    }

    /// The inodes of the sockets in a /proc/net/tcp table that listen on `port`.
    pub(super) fn listening_inodes(table: &str, port: u16) -> Vec<String> {
        let listens = |line: &str| {
            let mut fields = line.split_ascii_whitespace().skip(1);
            let local = fields.next()?;
            let state = fields.nth(1)?;
            let inode = fields.nth(5)?;
            let (_, hex) = local.rsplit_once(':')?;
            let ours = u16::from_str_radix(hex, 16) == Ok(port) && state == LISTEN;
            ours.then(|| inode.to_owned())
        };
        table.lines().skip(1).filter_map(listens).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listening_socket_is_found_in_the_kernels_table() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
             0: 0100007F:26AC 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 12345 1 0 100 0 0 10 0\n\
             1: 0100007F:26AC 0100007F:9999 01 00000000:00000000 00:00000000 00000000     0        0 54321 1 0 100 0 0 10 0\n";
        assert_eq!(owner::listening_inodes(table, 9900), ["12345"]);
        assert!(owner::listening_inodes(table, 9901).is_empty());
        assert!(owner::listening_inodes("header\ngarbage\n: :\n", 1).is_empty());
    }

    #[test]
    fn two_flags_of_one_port_are_named() {
        let check = |one: &str, other: &str| {
            let any = "127.0.0.1:0".parse().unwrap();
            check_distinct(&[
                ("--a", any),
                ("--b", one.parse().unwrap()),
                ("--c", any),
                ("--d", other.parse().unwrap()),
            ])
        };
        for (one, other) in [
            ("127.0.0.1:99", "127.0.0.1:99"),
            ("0.0.0.0:99", "127.0.0.1:99"),
            ("127.0.0.1:99", "[::]:99"),
        ] {
            let Err(CommandError::BadInput(error)) = check(one, other) else {
                panic!("{one} and {other} are taken");
            };
            let message = error.to_string();
            assert!(message.contains("--b") && message.contains("--d"), "{message}");
        }
        for (one, other) in [
            ("127.0.0.1:99", "127.0.0.1:98"),
            ("127.0.0.1:99", "127.0.0.2:99"),
            ("0.0.0.0:99", "[::1]:99"),
        ] {
            assert!(check(one, other).is_ok(), "{one} and {other}");
        }
    }

    #[test]
    fn a_port_that_somebody_gives_up_is_taken_then_and_any_other_is_refused() {
        let any = "127.0.0.1:0".parse().unwrap();
        let (running, address) = bind("--a", any).unwrap();
        let wild = SocketAddr::new([0, 0, 0, 0].into(), address.port());
        assert!(Port::take("--a", address, &[]).is_err());
        assert!(Port::take("--a", address, &["127.0.0.1:1".parse().unwrap()]).is_err());
        assert!(check_free("--a", address, &[wild]).is_ok());
        let port = Port::take("--a", address, &[address]).unwrap();
        assert!(matches!(port, Port::ToCome(..)));
        drop(running);
        assert_eq!(port.listener().unwrap().1, address);
        let Port::Ours(_, free) = Port::take("--a", any, &[address]).unwrap() else {
            panic!("nobody has it")
        };
        assert_ne!(free.port(), 0);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_taken_port_names_its_owner_and_the_flag() {
        let (listener, address) = bind("--admin-listen", "127.0.0.1:0".parse().unwrap()).unwrap();
        assert_ne!(address.port(), 0);
        let message = bind("--admin-listen", address).unwrap_err().to_string();
        assert!(message.contains(&format!("process {} (", std::process::id())), "{message}");
        assert!(message.contains("--admin-listen"), "{message}");
        drop(listener);
    }
}
