use super::*;

/// A certificate for `names`, in PEM, with its key; signed by itself.
pub(crate) fn pem_for(names: &[&str]) -> (String, String) {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let made = rcgen::generate_simple_self_signed(names).unwrap();
    (made.cert.pem(), made.signing_key.serialize_pem())
}

pub(crate) fn certificate_for(names: &[&str]) -> Certificate {
    let (chain, key) = pem_for(names);
    Certificate::from_pem(chain.as_bytes(), key.as_bytes()).unwrap()
}

#[test]
fn a_pair_is_read_with_its_names() {
    let certificate = certificate_for(&["A.example.org", "*.b.example.org"]);
    assert_eq!(certificate.names().collect::<Vec<_>>(), ["a.example.org", "*.b.example.org"]);
    assert!(certificate.covers("a.example.org"));
    assert!(certificate.covers("x.b.example.org"));
    assert!(!certificate.covers("b.example.org"));
    assert!(!certificate.covers("x.y.b.example.org"));
    assert!(certificate.not_after_s() > 0);
}

#[test]
fn the_default_is_made_and_is_for_nobody() {
    let certificate = Certificate::self_signed().unwrap();
    assert!(!certificate.covers("example.org"));
    assert!(certificate.key().keys_match().is_ok());
}

#[test]
fn what_is_wrong_is_named_by_field() {
    let (chain, key) = pem_for(&["a"]);
    let (_, other) = pem_for(&["a"]);
    let error = |chain: &str, key: &str| {
        Certificate::from_pem(chain.as_bytes(), key.as_bytes()).unwrap_err().to_string()
    };
    assert_eq!(error("", &key), "tls.crt: there is no certificate in it, in PEM");
    assert_eq!(error(&chain, "nothing"), "tls.key: there is no private key in it, in PEM");
    assert!(error(&chain, &other).contains("tls.key is not the key of the certificate"));
    assert_eq!(error(&key, &key), "tls.crt: there is no certificate in it, in PEM");
    let cut = &chain[..chain.len() / 2];
    assert!(error(cut, &key).starts_with("tls.crt: "), "{}", error(cut, &key));
    let long = chain.repeat(CHAIN_MAX + 1);
    assert!(error(&long, &key).contains("more than 16"));
}
