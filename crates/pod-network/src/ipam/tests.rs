//! Ranges, and who gets which address.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::state::Host;

fn range(subnet: &str) -> Range {
    Range::of(subnet.parse().unwrap(), None, None, None).unwrap()
}

/// A state with a network `net`, and records for holders.
struct Ground {
    _dir: tempfile::TempDir,
    state: State,
}

impl Ground {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let state = Host::new(dir.path()).state().unwrap();
        fs::create_dir_all(state.addresses_dir("net")).unwrap();
        Self { _dir: dir, state }
    }

    fn holder(&self, name: &str) -> Attachment {
        let record = Attachment {
            network: "net".to_owned(),
            container: name.to_owned(),
            interface: "eth0".to_owned(),
            netns: String::new(),
            netns_name: None,
            host_link: String::new(),
            is_routed: false,
            is_chained: false,
            is_going: false,
            asked_mac: None,
            mac: String::new(),
            addresses: Vec::new(),
            ports: Vec::new(),
            bandwidth: None,
            pod: None,
        };
        self.state.begin_attachment(name, &record).unwrap().unwrap();
        record
    }

    fn claim(&self, name: &str, set: &[Range]) -> Result<IpAddr> {
        claim(&self.state, "net", name, set, None).map(|(inet, _)| inet.address())
    }
}

#[test]
fn a_range_leaves_out_what_nobody_can_have() {
    let four = range("10.1.0.0/24");
    assert_eq!(
        (four.first.to_string(), four.last.to_string()),
        ("10.1.0.1".into(), "10.1.0.254".into())
    );
    assert_eq!((four.gateway, four.total()), (four.first, 253));
    let six = range("fd01::/64");
    assert_eq!(six.first.to_string(), "fd01::1");
    assert!(!six.contains("fd01::".parse().unwrap()), "any router's");
    assert!(!four.contains(four.gateway));
    for bad in ["10.1.0.0/31", "10.1.0.0/32", "fd01::/127"] {
        assert!(Range::of(bad.parse().unwrap(), None, None, None).is_err(), "{bad}");
    }
    let backwards = Range::of(
        "10.1.0.0/24".parse().unwrap(),
        Some([10, 1, 0, 9].into()),
        Some([10, 1, 0, 3].into()),
        None,
    );
    assert!(backwards.is_err());
}

#[test]
fn addresses_are_given_in_turn_and_one_that_came_back_rests() {
    let ground = Ground::new();
    let set = [range("10.1.0.0/29")];
    let a = ground.holder("a");
    let first = ground.claim("a", &set).unwrap();
    assert_eq!(first.to_string(), "10.1.0.2");
    release(&ground.state, &a, first).unwrap();
    ground.holder("b");
    assert_eq!(ground.claim("b", &set).unwrap().to_string(), "10.1.0.3");
}

#[test]
fn ranges_of_a_set_are_used_one_after_the_other_and_the_last_refusal_names_holders() {
    let ground = Ground::new();
    let set = [range("10.1.0.0/30"), range("10.2.0.0/30")];
    for name in ["a", "b", "c"] {
        ground.holder(name);
    }
    assert_eq!(ground.claim("a", &set).unwrap().to_string(), "10.1.0.2");
    assert_eq!(ground.claim("b", &set).unwrap().to_string(), "10.2.0.2");
    let error = ground.claim("c", &set).unwrap_err().to_string();
    assert!(
        error.contains("all 2 addresses") && error.contains("10.2.0.2 by instance b"),
        "{error}"
    );
}

#[test]
fn nobody_gives_back_what_is_anothers() {
    let ground = Ground::new();
    let set = [range("10.1.0.0/24")];
    ground.holder("a");
    let other = ground.holder("b");
    let ip = ground.claim("a", &set).unwrap();
    release(&ground.state, &other, ip).unwrap();
    assert_eq!(claims(&ground.state, "net").unwrap().len(), 1);
    let taken = claim(&ground.state, "net", "b", &set, Some(ip)).unwrap_err();
    assert!(taken.to_string().contains("instance a"), "{taken}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn no_address_is_given_twice_whatever_is_taken_and_given_back(steps in prop::collection::vec((0_u8..12, any::<bool>()), 1..60)) {
        let ground = Ground::new();
        let set = [range("10.1.0.0/28")];
        let holders: Vec<Attachment> = (0..12).map(|at| ground.holder(&format!("h{at}"))).collect();
        let mut held: Vec<Option<IpAddr>> = vec![None; 12];
        for (who, takes) in steps {
            let who = usize::from(who);
            match (takes, held[who]) {
                (true, None) => held[who] = Some(ground.claim(&format!("h{who}"), &set).unwrap()),
                (false, Some(ip)) => {
                    release(&ground.state, &holders[who], ip).unwrap();
                    held[who] = None;
                }
                _ => {}
            }
            let all: Vec<IpAddr> = held.iter().flatten().copied().collect();
            let different: BTreeSet<IpAddr> = all.iter().copied().collect();
            prop_assert_eq!(all.len(), different.len());
            prop_assert!(all.iter().all(|ip| set[0].contains(*ip)));
        }
    }
}
