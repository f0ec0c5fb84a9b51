use super::super::certificate::tests::pem_for;
use super::*;

type Certificates = BTreeMap<CertificateId, Option<table::Certificate>>;

/// A Secret for `hosts`, and its certificate in DER.
fn secret(hosts: &[&str]) -> (table::Certificate, Vec<u8>) {
    let (chain, key) = pem_for(hosts);
    let read = Certificate::from_pem(chain.as_bytes(), key.as_bytes()).unwrap();
    let certificate = table::Certificate {
        hosts: hosts.iter().map(|host| Arc::from(*host)).collect(),
        chain_pem: chain.into_bytes().into(),
        key_pem: key.into_bytes().into(),
    };
    (certificate, read.key().cert[0].to_vec())
}

fn apply(store: &CertificateStore, list: &[(&str, Option<&table::Certificate>)]) -> usize {
    let certificates: Certificates =
        list.iter().map(|(id, it)| (Arc::from(*id), it.cloned())).collect();
    store.apply(CertificatesChange { certificates: &certificates, default: None }).len()
}

fn serves(store: &CertificateStore, host: &str, der: &[u8]) -> bool {
    store.find(host).cert[0].as_ref() == der
}

fn store() -> CertificateStore {
    CertificateStore::new().unwrap()
}

#[test]
fn an_exact_host_beats_a_wildcard_and_a_wildcard_is_one_label() {
    let store = store();
    let ((one, one_der), (all, all_der)) = (secret(&["a.x.org"]), secret(&["*.X.org"]));
    assert_eq!(apply(&store, &[("n/one", Some(&one)), ("n/all", Some(&all))]), 0);
    assert!(serves(&store, "a.x.org", &one_der));
    assert!(serves(&store, "b.x.org", &all_der));
    for host in ["x.org", "b.c.x.org", ".x.org", "", "org"] {
        assert!(store.find_own(host).is_none(), "{host:?}");
    }
    assert!(store.same_certificate("b.x.org", "c.x.org"));
    assert!(!store.same_certificate("a.x.org", "b.x.org"));
    assert!(store.same_certificate("unknown", "other"), "both have the default");
}

#[test]
fn a_renewal_reaches_every_host_of_the_secret() {
    let store = store();
    let ((old, _), (new, new_der)) = (secret(&["a", "b"]), secret(&["a", "b"]));
    apply(&store, &[("n/s", Some(&old))]);
    apply(&store, &[("n/s", Some(&new))]);
    assert!(serves(&store, "a", &new_der) && serves(&store, "b", &new_der));
}

#[test]
fn a_broken_renewal_leaves_the_last_good_certificate() {
    let store = store();
    let (good, der) = secret(&["a"]);
    apply(&store, &[("n/s", Some(&good))]);
    let broken = table::Certificate { key_pem: Arc::from(&b"x"[..]), ..secret(&["a", "b"]).0 };
    assert_eq!(apply(&store, &[("n/s", Some(&broken))]), 1);
    assert!(serves(&store, "a", &der) && serves(&store, "b", &der));
}

#[test]
fn two_secrets_for_one_host_take_turns_by_name() {
    let store = store();
    let ((first, first_der), (second, second_der)) = (secret(&["a"]), secret(&["a"]));
    apply(&store, &[("n/2", Some(&second))]);
    apply(&store, &[("n/1", Some(&first))]);
    assert!(serves(&store, "a", &first_der));
    apply(&store, &[("n/1", None)]);
    assert!(serves(&store, "a", &second_der));
}

#[test]
fn nothing_is_kept_of_what_is_gone() {
    let store = store();
    let (both, _) = secret(&["a", "b"]);
    let (other, der) = secret(&["b", "c"]);
    apply(&store, &[("n/s", Some(&both)), ("n/t", Some(&both))]);
    assert_eq!(store.counts(), (2, 2));
    apply(&store, &[("n/s", Some(&other)), ("n/t", None)]);
    assert_eq!(store.counts(), (1, 2));
    assert!(store.find_own("a").is_none() && serves(&store, "c", &der));
    apply(&store, &[("n/s", None), ("n/never", None)]);
    assert_eq!(store.counts(), (0, 0));
}

#[test]
fn the_default_can_be_given_and_taken_back() {
    let store = store();
    let (given, der) = secret(&[]);
    let certificates: Certificates = [(Arc::from("n/d"), Some(given))].into();
    let default = Some(Arc::from("n/d"));
    store.apply(CertificatesChange { certificates: &certificates, default: Some(&default) });
    assert!(serves(&store, "anything", &der));
    let nothing = Certificates::new();
    store.apply(CertificatesChange { certificates: &nothing, default: Some(&None) });
    assert!(!serves(&store, "anything", &der));
}
