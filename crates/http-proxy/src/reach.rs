//! Where names may lead that somebody else than the operator wrote: `ExternalName` services, `auth-url`,
//! `mirror-target`.
//!
//! A proxy with its node's network would publish what listens on the node's loopback alone, and what only a
//! machine on the link may ask, such as a cloud's metadata, to whoever may write a Service or an Ingress.
//! So names lead there only where the operator says that they may. What counts is what a name resolves to,
//! at the moment when it is connected to.

use std::io;
use std::net::{IpAddr, SocketAddr};

use tokio::net::TcpStream;

/// Whether an address is the node's own (loopback, unspecified) or of its link.
pub fn is_local(address: IpAddr) -> bool {
    match address.to_canonical() {
        // 0.0.0.0/8 is "this host".
        IpAddr::V4(ip) => ip.octets()[0] == 0 || ip.is_loopback() || ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_loopback() || ip.is_unspecified() || ip.is_unicast_link_local(),
    }
}

/// Whether a name as written leads there, as far as that can be told without asking.
pub fn is_local_name(name: &str) -> bool {
    let name = name.trim_end_matches('.').to_ascii_lowercase();
    if let Ok(address) = name.parse() {
        return is_local(address);
    }
    name == "localhost" || name.ends_with(".localhost") || name == "localhost.localdomain"
}

/// Connects to a name or an address; with `local`, wherever that leads.
pub(crate) async fn connect(name: &str, port: u16, local: bool) -> io::Result<TcpStream> {
    if local {
        return TcpStream::connect((name, port)).await;
    }
    let found: Vec<SocketAddr> = tokio::net::lookup_host((name, port)).await?.collect();
    let mut outcome = refusal(name);
    for address in found.into_iter().filter(|address| !is_local(address.ip())) {
        match TcpStream::connect(address).await {
            Ok(stream) => return Ok(stream),
            Err(error) => outcome = error,
        }
    }
    Err(outcome)
}

fn refusal(name: &str) -> io::Error {
    let message = format!(
        "{name} leads to this node itself or to its link (loopback, unspecified, link-local); \
         --ingress-local-targets lets it"
    );
    io::Error::new(io::ErrorKind::PermissionDenied, message)
}

/// Whether it is our own refusal, and no failure of the network's.
pub(crate) fn is_refusal(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::PermissionDenied && error.raw_os_error().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nodes_own_addresses_and_its_links_are_local_however_they_are_written() {
        for text in [
            "127.0.0.1",
            "127.9.9.9",
            "0.0.0.0",
            "0.1.2.3",
            "169.254.169.254",
            "::1",
            "::",
            "fe80::1",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "localhost",
            "LocalHost.",
            "a.localhost",
        ] {
            assert!(is_local_name(text), "{text}");
        }
        for text in
            ["10.0.0.1", "192.0.2.1", "2001:db8::1", "fd00::1", "example.org", "mylocalhost"]
        {
            assert!(!is_local_name(text), "{text}");
        }
    }

    #[tokio::test]
    async fn what_a_name_resolves_to_decides() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        // The last one is for the resolver to read.
        for name in ["localhost", "127.0.0.1", "0.0.0.0", "127.1"] {
            let refused = connect(name, port, false).await.unwrap_err();
            assert!(is_refusal(&refused), "{name}: {refused}");
        }
        assert!(connect("localhost", port, true).await.is_ok());
        assert!(connect("127.0.0.1", port, true).await.is_ok());
    }
}
