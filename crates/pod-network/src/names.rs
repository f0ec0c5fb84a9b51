//! How things are called.
//!
//! A link's name has at most 15 bytes and a namespace's is a file name; IDs can be anything. An ID that is short
//! and plain stays readable in the name, any other is replaced by a hash; the two forms begin differently, so
//! that no ID can be made to look like another's hash.

use std::net::{IpAddr, Ipv6Addr};

use sha2::{Digest, Sha256};
use telaio_netlink::rtnl::Mac;

/// How long an ID can be so that a namespace's name has it whole.
const NAMESPACE_ID_LEN_MAX: usize = 64;
/// How long an ID can be so that a bridge's name has it whole.
const BRIDGE_ID_LEN_MAX: usize = 11;

/// What the file of a record ends with until it takes its place.
pub(crate) const TEMPORARY: &str = ".new";

/// The name of the network namespace of an instance of the library.
pub fn namespace(instance_id: &str) -> String {
    if is_plain(instance_id, NAMESPACE_ID_LEN_MAX) {
        format!("telaio-i-{instance_id}")
    } else {
        format!("telaio-h-{}", hash(&["namespace", instance_id], 24))
    }
}

/// Whether a namespace's name is one that [`namespace`] gives.
pub(crate) fn is_namespace(name: &str) -> bool {
    ["telaio-i-", "telaio-h-"].iter().any(|prefix| name.starts_with(prefix))
}

/// The name of the bridge of a node of the library.
pub fn bridge(node_id: &str) -> String {
    if is_plain(node_id, BRIDGE_ID_LEN_MAX) {
        format!("tlb-{node_id}")
    } else {
        format!("tlbx-{}", hash(&["bridge", node_id], 10))
    }
}

/// Whether a bridge's name is one that [`bridge`] gives.
pub(crate) fn is_bridge(name: &str) -> bool {
    ["tlb-", "tlbx-"].iter().any(|prefix| name.starts_with(prefix))
}

/// The name of the node's end of an instance's interface. `turn` tells apart those whose hashes are the same.
pub fn host_link(network: &str, container: &str, interface: &str, turn: u32) -> String {
    format!("tlv{}", hash(&["link", network, container, interface, &turn.to_string()], 12))
}

/// A short name for a longer one of another's making.
pub(crate) fn short(name: &str) -> String {
    hash(&["short", name], 12)
}

/// What host ends begin with.
pub const HOST_LINK_PREFIX: &str = "tlv";

/// Whether a link's name is one that [`host_link`] gives.
pub fn is_host_link(name: &str) -> bool {
    let is_digit = |byte: u8| byte.is_ascii_lowercase() || (b'2'..=b'7').contains(&byte);
    name.strip_prefix(HOST_LINK_PREFIX)
        .is_some_and(|rest| rest.len() == 12 && rest.bytes().all(is_digit))
}

/// The file name of an attachment's record.
pub fn attachment_key(network: &str, container: &str, interface: &str) -> String {
    hash(&["attachment", network, container, interface], 26)
}

/// The file name of a network's record and of the directory of its addresses.
pub fn network_key(network: &str) -> String {
    // What ends like a record that is being written would be taken for one.
    if is_plain(network, 100) && !network.starts_with('.') && !network.ends_with(TEMPORARY) {
        format!("n-{network}")
    } else {
        format!("h-{}", hash(&["network", network], 24))
    }
}

/// The name of the link through which other nodes are reached.
pub fn vxlan_link(vni: u32) -> String {
    format!("{VXLAN_LINK_PREFIX}{vni}")
}

/// What links to other nodes begin with.
pub const VXLAN_LINK_PREFIX: &str = "telaio.";

/// A hardware address of a kind that no manufacturer gives.
pub(crate) fn mac(texts: &[&str]) -> Mac {
    let digest = digest(texts);
    Mac([0x02, digest[0], digest[1], digest[2], digest[3], digest[4]])
}

/// The hardware address of an instance, made from one of its addresses: whoever gets the address next gets the same, and
/// what neighbours remember stays right.
pub(crate) fn instance_mac(address: IpAddr) -> Mac {
    match address {
        IpAddr::V4(ip) => {
            let [a, b, c, d] = ip.octets();
            Mac([0x0a, 0x58, a, b, c, d])
        }
        IpAddr::V6(ip) => {
            let Mac([_, _, a, b, c, d]) = mac(&["instance", &ip.to_string()]);
            Mac([0x0a, 0x56, a, b, c, d])
        }
    }
}

/// The address that the kernel makes from a hardware address (RFC 4291, appendix A).
pub(crate) fn link_local(mac: Mac) -> Ipv6Addr {
    let Mac([first, second, third, rest @ ..]) = mac;
    let [fourth, fifth, sixth] = rest;
    let id = [first ^ 2, second, third, 0xff, 0xfe, fourth, fifth, sixth];
    let id = u64::from_be_bytes(id);
    Ipv6Addr::from(0xfe80 << 112 | u128::from(id))
}

/// Letters, digits, `-`, `_` and `.` only.
fn is_plain(id: &str, len_max: usize) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    !id.is_empty() && id.len() <= len_max && id.chars().all(is_plain)
}

/// So many characters, of five bits each, of a hash of these texts.
fn hash(texts: &[&str], len: usize) -> String {
    const DIGITS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
    let digest = digest(texts);
    let bit = |at: usize| digest[at / 8] >> (7 - at % 8) & 1;
    (0..len)
        .map(|place| (0..5).fold(0, |value, at| value << 1 | bit(place * 5 + at)))
        .map(|value: u8| char::from(DIGITS[usize::from(value)]))
        .collect()
}

fn digest(texts: &[&str]) -> [u8; 32] {
    let mut hasher = Sha256::new();
    for text in texts {
        // With its length, so that `ab`, `c` is not `a`, `bc`.
        hasher.update((text.len() as u64).to_le_bytes());
        hasher.update(text.as_bytes());
    }
    hasher.finalize().into()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn plain_ids_stay_readable() {
        assert_eq!(namespace("instance"), "telaio-i-instance");
        assert_eq!(bridge("node"), "tlb-node");
    }

    #[test]
    fn ids_that_differ_late_get_names_that_differ() {
        let ids =
            ["instance-number-1", "instance-number-2", "instance-number-12", "größer", "größe"];
        let bridges: BTreeSet<String> = ids.iter().map(|id| bridge(id)).collect();
        assert_eq!(bridges.len(), ids.len());
    }

    #[test]
    fn an_id_that_looks_like_a_hash_is_not_taken_for_one() {
        let hashed = namespace("ü");
        let forged = hashed.strip_prefix("telaio-h-").unwrap();
        assert_ne!(namespace(forged), hashed);
        assert_ne!(namespace(&hashed), hashed);
    }

    #[test]
    fn no_networks_record_looks_like_one_that_is_being_written() {
        assert_eq!(network_key("net"), "n-net");
        assert!(!network_key("net.new").ends_with(TEMPORARY));
        assert_ne!(network_key("net.new"), network_key("net"));
    }

    #[test]
    fn texts_are_told_apart_by_their_borders() {
        assert_ne!(host_link("a", "bc", "eth0", 0), host_link("ab", "c", "eth0", 0));
        assert_ne!(host_link("a", "b", "eth0", 0), host_link("a", "b", "eth0", 1));
    }

    proptest! {
        #[test]
        fn every_id_has_a_name_that_fits(id in ".*") {
            prop_assert!(bridge(&id).len() <= 15);
            prop_assert!(host_link(&id, &id, &id, 0).len() == 15);
            prop_assert!(namespace(&id).len() <= 100 && namespace(&id).is_ascii());
            prop_assert!(!network_key(&id).contains('/'));
        }
    }
}
