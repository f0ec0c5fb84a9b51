//! How our objects are told from others'.
//!
//! HCN lets who makes an object choose its identity, and load balancers have nothing else that could carry a
//! name. So ours begin with the bytes `telaio`: 74656c61-696f-8…. The rest is a hash of what the object
//! stands for. Whatever moment we are killed at, what we made says that it is ours: there is no record that
//! could lag behind.
//!
//! Remote endpoints have a name beside that, for people.

use std::net::IpAddr;

use sha2::{Digest as _, Sha256};
use telaio_hcn::{Endpoint, Guid};

use super::store::FrontendKey;

/// What the identity of everything of ours begins with.
const MARK: &[u8; 6] = b"telaio";
/// What the names of our endpoints begin with.
pub const NAME_PREFIX: &str = "telaio-";
/// The name of the endpoint that has the source address, where we had to make it.
pub const SOURCE_VIP_NAME: &str = "telaio-source-vip";

/// The identity of our endpoint at an address of a network.
pub fn endpoint_id(network: Guid, address: IpAddr) -> Guid {
    match address {
        IpAddr::V4(ip) => marked(b'e', network, &ip.octets()),
        IpAddr::V6(ip) => marked(b'e', network, &ip.octets()),
    }
}

/// The identity of our load balancer at a place of a network.
pub fn load_balancer_id(network: Guid, key: &FrontendKey) -> Guid {
    marked(b'l', network, key.to_string().as_bytes())
}

/// The name of our endpoint at an address.
pub fn endpoint_name(address: IpAddr) -> String {
    format!("{NAME_PREFIX}{address}")
}

/// Whether an identity is one that we chose.
pub fn is_marked(id: Guid) -> bool {
    let bytes = id.to_bytes();
    bytes.starts_with(MARK) && bytes[6] >> 4 == 8
}

/// Whether an endpoint is ours.
pub fn is_our_endpoint(endpoint: &Endpoint) -> bool {
    endpoint.name.starts_with(NAME_PREFIX) || endpoint.id.is_some_and(is_marked)
}

fn marked(kind: u8, network: Guid, what: &[u8]) -> Guid {
    let hash = Sha256::new().chain_update([kind]).chain_update(network.to_bytes());
    let hash = hash.chain_update(what).finalize();
    let mut bytes = [0; 16];
    bytes[..6].copy_from_slice(MARK);
    bytes[6..].copy_from_slice(&hash[..10]);
    // A UUID of version 8: its content is the maker's affair.
    bytes[6] = 0x80 | (bytes[6] & 0x0f);
    bytes[8] = 0x80 | (bytes[8] & 0x3f);
    Guid::from_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ours_are_known_by_their_first_bytes_and_differ_by_what_they_stand_for() {
        let network = Guid::from_bytes([7; 16]);
        let one = endpoint_id(network, "10.244.1.5".parse().unwrap());
        assert!(one.to_string().starts_with("74656c61-696f-8"), "{one}");
        assert!(is_marked(one));
        assert_eq!(one, endpoint_id(network, "10.244.1.5".parse().unwrap()));
        assert_ne!(one, endpoint_id(network, "10.244.1.6".parse().unwrap()));
        assert_ne!(one, endpoint_id(Guid::from_bytes([8; 16]), "10.244.1.5".parse().unwrap()));
        assert!(!is_marked(network));
        assert!(!is_marked(Guid::from_bytes(*b"telaio4567890123")));
    }
}
