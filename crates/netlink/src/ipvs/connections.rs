//! IPVS' table of connections, in `/proc`: whether what it has may still carry data.
//!
//! ```text
//! Pro FromIP   FPrt ToIP     TPrt DestIP   DPrt State       Expires PEName PEData
//! TCP CB00710A 9C40 0A600001 0050 0AF4010B 1F90 ESTABLISHED     899
//! ```
//!
//! The counters of a server cannot tell that: a connection that both sides have closed stays in the table for
//! up to two minutes, and counts as one that is being closed. And where another takes the place of IPVS, a
//! client that uses its port again wakes such an entry, though the connection is the other's: IPVS sees only
//! answers of it, takes them for those to a connection that the server began, and counts it as open.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::proc::hex;
use crate::error::NetlinkError;

/// The table of the calling thread's namespace.
const PATH: &str = "/proc/thread-self/net/ip_vs_conn";
const DOING: &str = "reading IPVS' connections";
/// States in which nothing is to be expected any more: nothing has begun, both sides have closed, or one
/// has reset it; and that of an answer to nothing that IPVS has seen.
const OVER: [&str; 8] =
    ["NONE", "SYN_SENT", "TIME_WAIT", "CLOSE", "LISTEN", "CLOSED", "REJECTED", "BUG!"];

/// Whether a connection to one of these servers may still carry data, as of the calling thread's namespace.
/// Flows of UDP always may.
pub fn any_lives(servers: &BTreeSet<SocketAddr>) -> Result<bool, NetlinkError> {
    let failed = |error| NetlinkError::Socket { doing: DOING, error };
    // There may be a million: line by line.
    let lines = BufReader::new(File::open(PATH).map_err(failed)?).lines();
    for line in lines.skip(1) {
        // A line that says something else than we know may be about anything.
        let lives = parse(&line.map_err(failed)?)
            .is_none_or(|(server, lives)| lives && servers.contains(&server));
        if lives {
            return Ok(true);
        }
    }
    Ok(false)
}

/// A connection that IPVS keeps in mind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Connection {
    /// The number of the protocol over IP; 0 for one that is not known here.
    pub protocol: u8,
    /// What the client asked for.
    pub service: SocketAddr,
    /// Who serves it.
    pub server: SocketAddr,
    /// It is open: a TCP connection that stands, or a flow of another protocol that lives.
    pub open: bool,
}

/// Gives each connection of the calling thread's namespace to `each`.
pub fn each(mut each: impl FnMut(&Connection)) -> Result<(), NetlinkError> {
    let failed = |error| NetlinkError::Socket { doing: DOING, error };
    for line in BufReader::new(File::open(PATH).map_err(failed)?).lines().skip(1) {
        if let Some((connection, ..)) = read(&line.map_err(failed)?) {
            each(&connection);
        }
    }
    Ok(())
}

/// The server of a connection, and whether it may still carry data.
fn parse(line: &str) -> Option<(SocketAddr, bool)> {
    read(line).map(|(connection, lives)| (connection.server, lives))
}

/// A connection, and whether it may still carry data.
fn read(line: &str) -> Option<(Connection, bool)> {
    let mut words = line.split_ascii_whitespace();
    let protocol = match words.next()? {
        "TCP" => libc::IPPROTO_TCP as u8,
        "UDP" => libc::IPPROTO_UDP as u8,
        "SCTP" => libc::IPPROTO_SCTP as u8,
        _ => 0,
    };
    let mut place = || Some(SocketAddr::new(address(words.next()?)?, port(words.next()?)?));
    let (client, service, server) = (place()?, place()?, place()?);
    let state = words.next()?;
    // One without the client's port only says which server a client stays with.
    let lives = client.port() != 0 && !OVER.contains(&state);
    let is_tcp = i32::from(protocol) == libc::IPPROTO_TCP;
    let open = lives && (!is_tcp || state == "ESTABLISHED");
    Some((Connection { protocol, service, server, open }, lives))
}

fn address(text: &str) -> Option<IpAddr> {
    if text.contains(':') {
        return Some(IpAddr::V6(text.parse::<Ipv6Addr>().ok()?));
    }
    Some(IpAddr::V4(Ipv4Addr::from(hex(text, 8)?)))
}

fn port(text: &str) -> Option<u16> {
    u16::try_from(hex(text, 4)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_read_with_its_server_and_whether_it_lives() {
        let line =
            "TCP CB00710A 9C40 0A600001 0050 0AF4010B 1F90 ESTABLISHED     899                 ";
        assert_eq!(parse(line), Some(("10.244.1.11:8080".parse().unwrap(), true)));
        let v6 = "UDP 2001:0db8:0113:0000:0000:0000:0000:000a 2710 \
                  fd00:0010:0096:0000:0000:0000:0000:0001 0050 \
                  fd00:0010:0244:0001:0000:0000:0000:0011 1F90 UDP             4";
        assert_eq!(parse(v6), Some(("[fd00:10:244:1::11]:8080".parse().unwrap(), true)));
        let (connection, _) = read(line).unwrap();
        assert_eq!((connection.protocol, connection.open), (6, true));
        assert_eq!(connection.service, "10.96.0.1:80".parse().unwrap());
        let (closing, lives) = read(&line.replace("ESTABLISHED", "FIN_WAIT")).unwrap();
        assert_eq!((closing.open, lives), (false, true));
    }

    #[test]
    fn what_has_ended_and_what_never_began_does_not_live() {
        let lives = |port: &str, state: &str| {
            let line = format!("TCP CB00710A {port} 0A600001 0050 0AF4010B 1F90 {state} 9");
            parse(&line).unwrap().1
        };
        for state in ["SYN_RECV", "ESTABLISHED", "FIN_WAIT", "CLOSE_WAIT", "LAST_ACK"] {
            assert!(lives("9C40", state), "{state}");
        }
        for state in OVER {
            assert!(!lives("9C40", state), "{state}");
        }
        assert!(!lives("0000", "ASSURED"), "it only says where a client stays");
    }

    #[test]
    fn a_line_that_is_not_whole_is_none() {
        for line in
            ["", "TCP", "TCP CB00710A 9C40 0A600001 0050 0AF4010B 1F90", "TCP x 1 y 2 z 3 S"]
        {
            assert_eq!(parse(line), None, "{line}");
        }
    }
}
