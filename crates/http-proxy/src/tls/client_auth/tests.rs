use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};

use super::*;

fn authority_params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params
}

#[test]
fn a_chain_is_no_longer_than_its_host_allows() {
    let key = || KeyPair::generate().unwrap();
    let root = CertifiedIssuer::self_signed(authority_params("root"), key()).unwrap();
    let upper = CertifiedIssuer::signed_by(authority_params("upper"), key(), &root).unwrap();
    let lower = CertifiedIssuer::signed_by(authority_params("lower"), key(), &upper).unwrap();
    let member = CertificateParams::new(vec!["member".to_owned()]).unwrap();
    let member = member.signed_by(&key(), &lower).unwrap();
    let chain = [member.der().clone(), lower.der().clone(), upper.der().clone()];
    for (verify_depth, accepted) in [(1, false), (2, true), (3, true)] {
        let settings = ClientTls {
            mode: ClientTlsMode::Required,
            authorities_pem: root.pem().into_bytes().into(),
            verify_depth,
            error_page: None,
            pass_certificate: false,
            subject_pattern: None,
        };
        let verdict = Judge::new(&settings).unwrap().verify(&chain, UnixTime::now());
        assert_eq!(verdict.is_ok(), accepted, "{verify_depth}: {verdict:?}");
    }
}
