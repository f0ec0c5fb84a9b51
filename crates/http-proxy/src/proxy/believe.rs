//! Who the client is, if the peer is a proxy that we trust to say so.
//!
//! `X-Forwarded-For` decides where it is there; else RFC 7239's `Forwarded`, which is then put into the
//! words of `X-Forwarded-*`, so that filters, cache and backend all read the same. Only one of the two
//! goes on: a proxy that writes one of them passes the other as its own client wrote it.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;

use crate::head::target::check_authority;
use crate::head::{Headers, Known, RequestHead, Scheme, split_quoted};

/// How many proxies before us are believed.
const HOPS_MAX: usize = 64;

/// Takes a trusted peer's word for who the client is and how it came.
pub(crate) fn believe(trusted: &[IpNet], request: &mut RequestHead) {
    request.client.trusted = is_within(trusted, request.client.peer.ip());
    if !request.client.trusted {
        return;
    }
    let elements = if request.headers.contains(Known::XForwardedFor) {
        request.headers.remove_known(Known::Forwarded);
        Vec::new()
    } else {
        translate(&mut request.headers)
    };
    let (address, hops) = client(&request.headers, trusted);
    request.client.address = address.unwrap_or(request.client.address);
    // The element that names the client tells how the client came.
    let own = elements.len().checked_sub(hops).and_then(|place| elements.get(place));
    if let Some(proto) = own.and_then(|element| element.proto.as_deref()) {
        request.headers.set(Known::XForwardedProto.as_str(), proto);
    }
    if let Some(host) = own.and_then(|element| element.host.as_deref()) {
        request.headers.set(Known::XForwardedHost.as_str(), host);
    }
    match request.headers.get_known(Known::XForwardedProto) {
        Some(b"https") => request.scheme = Scheme::Https,
        Some(b"http") => request.scheme = Scheme::Http,
        _ => {}
    }
}

fn is_within(networks: &[IpNet], address: IpAddr) -> bool {
    networks.iter().any(|network| network.contains(&address))
}

/// From the right, the first that is not one of ours: what stands before it anybody can write. Also
/// how many were read.
fn client(headers: &Headers, trusted: &[IpNet]) -> (Option<IpAddr>, usize) {
    let lines: Vec<&[u8]> = headers.get_all_known(Known::XForwardedFor).collect();
    let texts = lines.iter().rev().filter_map(|line| std::str::from_utf8(line).ok());
    let (mut address, mut hops) = (None, 0);
    for text in texts.flat_map(|line| line.rsplit(',')).take(HOPS_MAX) {
        let Some(named) = node(text.trim()) else { break };
        (address, hops) = (Some(named), hops + 1);
        if !is_within(trusted, named) {
            break;
        }
    }
    (address, hops)
}

/// An address, perhaps with a port.
fn node(text: &str) -> Option<IpAddr> {
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    let address = bare.parse::<IpAddr>().ok();
    let with_port = || text.parse::<SocketAddr>().ok().map(|address| address.ip());
    address.or_else(with_port).map(|address| address.to_canonical())
}

/// What one proxy says in `Forwarded`.
#[derive(Debug, Default, PartialEq, Eq)]
struct Element {
    node: Option<IpAddr>,
    proto: Option<String>,
    host: Option<String>,
}

impl Element {
    fn read(text: &str) -> Self {
        let mut element = Self::default();
        for pair in split_quoted(text, b';') {
            let Some((name, value)) = pair.split_once('=') else { continue };
            let value = unquote(value.trim());
            match name.trim().to_ascii_lowercase().as_str() {
                "for" => element.node = node(&value),
                "proto" => element.proto = Some(value.to_ascii_lowercase()),
                "host" => element.host = Some(value).filter(|it| check_authority(it).is_ok()),
                _ => {}
            }
        }
        element
    }
}

/// Reads `Forwarded`, and writes its nodes as `X-Forwarded-For`.
fn translate(headers: &mut Headers) -> Vec<Element> {
    let lines = headers.get_all_known(Known::Forwarded);
    let lines = lines.filter_map(|line| std::str::from_utf8(line).ok());
    let elements: Vec<Element> =
        lines.flat_map(|line| split_quoted(line, b',')).map(Element::read).collect();
    if elements.is_empty() {
        return elements;
    }
    let nodes = elements.iter().map(|element| match element.node {
        Some(address) => address.to_string(),
        None => "unknown".to_owned(),
    });
    let list = nodes.collect::<Vec<_>>().join(", ");
    headers.push_known(Known::XForwardedFor, list);
    elements
}

fn unquote(text: &str) -> String {
    let inner = text.strip_prefix('"').and_then(|text| text.strip_suffix('"'));
    inner.map_or_else(|| text.to_owned(), |inner| inner.replace('\\', ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn believed(fields: &[(&str, &str)]) -> RequestHead {
        let mut head = RequestHead::new();
        head.client.peer = "127.0.0.1:9".parse().unwrap();
        head.client.address = head.client.peer.ip();
        for (name, value) in fields {
            assert!(head.headers.push(name, value));
        }
        believe(&["127.0.0.0/8".parse().unwrap(), "10.0.0.0/8".parse().unwrap()], &mut head);
        head
    }

    fn address(fields: &[(&str, &str)]) -> String {
        believed(fields).client.address.to_string()
    }

    #[test]
    fn several_lines_are_one_list_and_ports_are_no_part_of_an_address() {
        let two = [("X-Forwarded-For", "6.6.6.6, 192.0.2.7"), ("X-Forwarded-For", "10.1.1.1")];
        assert_eq!(address(&two), "192.0.2.7");
        for (text, client) in [
            ("192.0.2.1:5555", "192.0.2.1"),
            ("[2001:db8::1]:80", "2001:db8::1"),
            ("[2001:db8::1]", "2001:db8::1"),
            ("2001:db8::1", "2001:db8::1"),
            ("::ffff:192.0.2.1", "192.0.2.1"),
            ("192.0.2.9, nonsense", "127.0.0.1"),
        ] {
            assert_eq!(address(&[("X-Forwarded-For", text)]), client, "{text}");
        }
    }

    #[test]
    fn forwarded_is_believed_where_there_is_no_x_forwarded_for() {
        let text = "for=6.6.6.6;proto=http, for=\"[2001:db8::1]:4711\";proto=HTTPS;host=\"a.example:8443\", \
                    for=10.0.0.2;proto=http";
        let head = believed(&[("Forwarded", text), ("X-Forwarded-Host", "evil.example")]);
        assert_eq!(head.client.address.to_string(), "2001:db8::1");
        assert_eq!(head.scheme, Scheme::Https);
        assert_eq!(head.headers.get_str("x-forwarded-proto"), Some("https"));
        assert_eq!(head.headers.get_str("x-forwarded-host"), Some("a.example:8443"));
        let list = head.headers.get_str("x-forwarded-for");
        assert_eq!(list, Some("6.6.6.6, 2001:db8::1, 10.0.0.2"));
        assert_eq!(address(&[("Forwarded", "for=_hidden")]), "127.0.0.1");
        assert_eq!(
            address(&[("Forwarded", "For=\"a,b;for=6.6.6.6\", for=192.0.2.3")]),
            "192.0.2.3"
        );
        for nonsense in ["", ",;=\"", "for", "for=\"192.0.2.1", "\\\"\\"] {
            assert_eq!(address(&[("Forwarded", nonsense)]), "127.0.0.1", "{nonsense}");
        }
    }

    #[test]
    fn the_field_that_was_not_believed_does_not_go_on() {
        let head = believed(&[("X-Forwarded-For", "192.0.2.1"), ("Forwarded", "for=6.6.6.6")]);
        assert_eq!(head.client.address.to_string(), "192.0.2.1");
        assert!(!head.headers.contains(Known::Forwarded));
    }
}
