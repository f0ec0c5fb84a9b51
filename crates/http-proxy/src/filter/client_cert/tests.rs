use std::sync::Arc;

use super::*;
use crate::tls::certificate::tests::certificate_for;

fn settings(mode: ClientTlsMode) -> ClientTls {
    ClientTls {
        mode,
        authorities_pem: Arc::from(&b"authority"[..]),
        verify_depth: 1,
        error_page: None,
        pass_certificate: true,
        subject_pattern: None,
    }
}

fn tls(certificate: bool, verified: bool) -> TlsInfo {
    let der = || Arc::from(certificate_for(&["member"]).key().cert[0].as_ref());
    TlsInfo {
        server_name: Some("safe.org".into()),
        client_certificate: certificate.then(der),
        client_verified: verified,
        client_authority: Some(Arc::from(&b"authority"[..])),
        ..TlsInfo::default()
    }
}

fn request(tls: Option<TlsInfo>) -> RequestHead {
    let mut head = RequestHead::new();
    head.set_authority("safe.org:443");
    head.client.tls = tls.map(Arc::new);
    head
}

fn status(mode: ClientTlsMode, tls: Option<TlsInfo>) -> Option<u16> {
    refusal(&settings(mode), &Subjects::Any, &request(tls)).map(|reply| reply.head.status.as_u16())
}

#[test]
fn each_mode_takes_what_it_says() {
    use ClientTlsMode::{Optional, OptionalUnverified, Required};
    let cases = [
        (Required, Some(tls(true, true)), None),
        (Required, Some(tls(true, false)), Some(400)),
        (Required, Some(tls(false, false)), Some(400)),
        (Required, None, Some(403)),
        (Optional, Some(tls(true, true)), None),
        (Optional, Some(tls(true, false)), Some(400)),
        (Optional, Some(tls(false, false)), None),
        (Optional, None, None),
        (OptionalUnverified, Some(tls(true, false)), None),
        (OptionalUnverified, Some(tls(false, false)), None),
    ];
    for (number, (mode, tls, expected)) in cases.into_iter().enumerate() {
        assert_eq!(status(mode, tls), expected, "case {number}");
    }
}

#[test]
fn a_connection_for_another_host_or_authority_is_misdirected() {
    let other_host = TlsInfo { server_name: Some("open.org".into()), ..tls(true, true) };
    let no_name = TlsInfo { server_name: None, ..tls(true, true) };
    let other = TlsInfo { client_authority: Some(Arc::from(&b"x"[..])), ..tls(true, true) };
    let not_asked = TlsInfo { client_authority: None, ..tls(false, false) };
    for info in [other_host, no_name, other, not_asked] {
        assert_eq!(status(ClientTlsMode::Optional, Some(info)), Some(421));
    }
}

#[test]
fn an_error_page_is_where_refused_clients_are_sent() {
    let settings =
        ClientTls { error_page: Some("https://a/no".into()), ..settings(ClientTlsMode::Required) };
    let reply = refusal(&settings, &Subjects::Any, &request(Some(tls(false, false)))).unwrap();
    assert_eq!(reply.head.status, 302);
    assert_eq!(reply.head.headers.get_str("location"), Some("https://a/no"));
}

#[test]
fn the_backend_is_told_by_us_and_never_by_the_client() {
    let mut head = request(Some(tls(true, true)));
    head.headers.push("SSL-Client-Verify", "SUCCESS");
    head.headers.push("Ssl-Client-Cert", "forged");
    tell(&settings(ClientTlsMode::Required), &mut head);
    assert_eq!(head.headers.get_all("ssl-client-verify").count(), 1);
    assert_eq!(head.headers.get_str("ssl-client-verify"), Some("SUCCESS"));
    let certificate = head.headers.get_str("ssl-client-cert").unwrap();
    assert!(certificate.starts_with("-----BEGIN%20CERTIFICATE-----%0A"), "{certificate}");
    assert!(head.headers.get("ssl-client-subject-dn").is_some());
    let mut none = request(Some(tls(false, false)));
    none.headers.push("ssl-client-verify", "SUCCESS");
    tell(&settings(ClientTlsMode::Optional), &mut none);
    assert_eq!(none.headers.get_str("ssl-client-verify"), Some("NONE"));
}

#[test]
fn of_verified_certificates_those_with_the_right_subject_come_in() {
    use ClientTlsMode::{Optional, OptionalUnverified, Required};
    let status = |pattern: &str, mode, tls: Option<TlsInfo>| {
        let settings = ClientTls { subject_pattern: Some(pattern.into()), ..settings(mode) };
        let (subjects, error) = Subjects::new(&settings);
        assert_eq!(error.is_some(), pattern == "(");
        refusal(&settings, &subjects, &request(tls)).map(|reply| reply.head.status.as_u16())
    };
    // What rcgen writes where nothing else is asked for.
    let own = "^CN=rcgen self signed cert$";
    let cases = [
        (own, Required, Some(tls(true, true)), None),
        ("CN=rcgen", Required, Some(tls(true, true)), None),
        ("^CN=ann$", Required, Some(tls(true, true)), Some(403)),
        ("(", Required, Some(tls(true, true)), Some(403)),
        (own, Required, Some(tls(true, false)), Some(400)),
        (own, Optional, Some(tls(false, false)), Some(403)),
        (own, Optional, None, Some(403)),
        (own, OptionalUnverified, Some(tls(true, false)), Some(403)),
        (own, OptionalUnverified, Some(tls(true, true)), None),
    ];
    for (number, (pattern, mode, tls, expected)) in cases.into_iter().enumerate() {
        assert_eq!(status(pattern, mode, tls), expected, "case {number}");
    }
}
