//! TLS as annotations ask for it: certificates of clients, connections passed through, encrypted backends.

use std::path::Path;
use std::process::Command;

use rcgen::{CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use serde_json::{Value, json};

use super::operations::wait_until;
use super::{Answer, Echo, Ingress, Manifests, all_annotated, ingress, service, service_at};

fn indent(text: &str) -> String {
    format!("    {}\n", text.trim().replace('\n', "\n    "))
}

fn secret(name: &str, kind: &str, entries: &[(&str, &str)]) -> String {
    let entry = |(key, text): &(&str, &str)| format!("  {key}: |\n{}", indent(text));
    let data = entries.iter().map(entry).collect::<Vec<_>>().concat();
    format!(
        "apiVersion: v1\nkind: Secret\nmetadata: {{name: {name}, namespace: shop}}\ntype: {kind}\n\
         stringData:\n{data}---\n"
    )
}

pub(crate) fn authority(name: &str) -> CertifiedIssuer<'static, KeyPair> {
    CertifiedIssuer::self_signed(authority_params(name), KeyPair::generate().unwrap()).unwrap()
}

fn authority_params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    params
}

/// Certificate and key in PEM.
pub(crate) fn signed(name: &str, by: &CertifiedIssuer<'static, KeyPair>) -> (String, String) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    (params.signed_by(&key, by).unwrap().pem(), key.serialize_pem())
}

/// Asks by HTTPS; `None` without an answer.
pub(crate) fn curl(plane: &Ingress, host: &str, path: &str, more: &[&str]) -> Option<Answer> {
    let port = plane.https.port();
    let out = Command::new("curl")
        .args(["-ski", "--max-time", "60", "--resolve", &format!("{host}:{port}:127.0.0.1")])
        .args(more)
        .arg(format!("https://{host}:{port}{path}"))
        .output()
        .unwrap();
    Answer::read(&String::from_utf8_lossy(&out.stdout))
}

fn write(directory: &Path, name: &str, text: &str) -> String {
    let path = directory.join(name);
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

fn with_tls(text: &str, host: &str) -> String {
    text.replace("spec:\n", &format!("spec:\n  tls: [{{hosts: [{host}], secretName: cert}}]\n"))
}

#[test]
fn clients_show_the_certificates_that_are_asked_for_also_before_the_cache() {
    let one = Echo::start("one");
    let (ours, others) = (authority("ours"), authority("others"));
    let (certificate, key) = signed("a.example.com", &ours);
    let manifests = Manifests::empty();
    let pairs = [
        ("auth-tls-secret", "shop/clients"),
        ("auth-tls-verify-client", "on"),
        ("auth-tls-pass-certificate-to-upstream", "true"),
        ("telaio.dev/cache", "true"),
    ];
    let all = service("one", &[&one])
        + &secret("cert", "kubernetes.io/tls", &[("tls.crt", &certificate), ("tls.key", &key)])
        + &secret("clients", "Opaque", &[("ca.crt", &ours.pem())])
        + &with_tls(
            &ingress("a", "a.example.com", "/", "one", &all_annotated(&pairs)),
            "a.example.com",
        );
    manifests.write("all.yaml", &all);
    let plane = Ingress::start(manifests, "own");
    let directory = tempfile::tempdir().unwrap();
    let files = |name: &str, by| {
        let (certificate, key) = signed(name, by);
        let certificate = write(directory.path(), &format!("{name}.crt"), &certificate);
        (certificate, write(directory.path(), &format!("{name}.key"), &key))
    };
    let (ann, ann_key) = files("ann", &ours);
    let (eve, eve_key) = files("eve", &others);
    let path = "/?max-age=60,public";
    let as_ann = || {
        curl(&plane, "a.example.com", path, &["--cert", &ann, "--key", &ann_key])
            .expect("an answer")
    };
    let first = as_ann();
    assert_eq!(first.status, 200, "{first:?}");
    let headers = &first.seen()["headers"];
    assert_eq!(headers["ssl-client-verify"], "SUCCESS", "{headers}");
    assert!(headers["ssl-client-subject-dn"].as_str().unwrap().contains("CN=ann"), "{headers}");
    assert!(headers["ssl-client-cert"].as_str().unwrap().contains("BEGIN"), "{headers}");
    wait_until("a hit", || {
        as_ann().field("cache-status").filter(|it| it.contains("hit")).map(drop)
    });
    let before = one.requests();
    // What is cached is for those with a certificate only.
    let without = curl(&plane, "a.example.com", path, &[]).expect("an answer");
    assert_eq!(without.status, 400, "{without:?}");
    assert_eq!(without.backend(), None);
    // A wrong one is answered, too: the connection is not cut.
    let wrong = curl(&plane, "a.example.com", path, &["--cert", &eve, "--key", &eve_key])
        .expect("an answer");
    assert_eq!((wrong.status, wrong.backend()), (400, None), "{wrong:?}");
    assert_eq!(one.requests(), before);
}

#[test]
fn tls_goes_through_to_a_backend_or_is_spoken_with_it() {
    let one = Echo::start("one");
    let issuer = authority("inner");
    let (certificate, key) = signed("b.example.com", &issuer);
    let manifests = Manifests::empty();
    // The agent's own HTTPS is the backend that speaks TLS.
    let inner = service("one", &[&one])
        + &secret("cert", "kubernetes.io/tls", &[("tls.crt", &certificate), ("tls.key", &key)])
        + &with_tls(&ingress("b", "b.example.com", "/", "one", ""), "b.example.com");
    manifests.write("inner.yaml", &inner);
    let inner = Ingress::start(manifests, "same");
    let manifests = Manifests::empty();
    let https = [
        ("backend-protocol", "HTTPS"),
        ("upstream-vhost", "b.example.com"),
        ("proxy-ssl-name", "b.example.com"),
        ("proxy-ssl-server-name", "on"),
    ];
    let all = service_at("tls", &[inner.https])
        + &ingress("a", "a.example.com", "/", "tls", &all_annotated(&https))
        + &ingress(
            "through",
            "b.example.com",
            "/",
            "tls",
            &all_annotated(&[("ssl-passthrough", "true")]),
        );
    manifests.write("all.yaml", &all);
    let plane = Ingress::start(manifests, "same");
    let answer = super::ask(plane.http, "a.example.com", "/x");
    assert_eq!(answer.status, 200, "{answer:?}");
    let seen = answer.seen();
    assert_eq!(
        (&seen["backend"], &seen["headers"]["host"]),
        (&json!("one"), &json!("b.example.com"))
    );
    let through = curl(&plane, "b.example.com", "/y", &[]).expect("an answer");
    assert_eq!(through.backend().as_deref(), Some("one"), "{through:?}");
    // It was not opened on the way: what was shown is the backend's own certificate.
    let name = format!("b.example.com:{}:127.0.0.1", plane.https.port());
    let url = format!("https://b.example.com:{}/", plane.https.port());
    let directory = tempfile::tempdir().unwrap();
    let ca = write(directory.path(), "ca.crt", &issuer.pem());
    let out = Command::new("curl")
        .args(["-s", "--max-time", "60", "--cacert", &ca, "--resolve", &name, &url])
        .output()
        .unwrap();
    let seen: Value =
        serde_json::from_slice(&out.stdout).unwrap_or_else(|error| panic!("{error}: {out:?}"));
    assert_eq!(seen["headers"]["via"], "2.0 telaio", "one proxy has opened it: {seen}");
}

#[test]
fn clients_certificates_may_be_so_far_from_the_authority_and_have_such_names() {
    let one = Echo::start("one");
    let key = || KeyPair::generate().unwrap();
    let root = authority("root");
    let upper = CertifiedIssuer::signed_by(authority_params("upper"), key(), &root).unwrap();
    let lower = CertifiedIssuer::signed_by(authority_params("lower"), key(), &upper).unwrap();
    let (member, member_key) = signed("member", &lower);
    let (certificate, server_key) = signed("*.example.com", &authority("server"));
    let clients = ("auth-tls-secret", "clients");
    let mut all = service("one", &[&one])
        + &secret(
            "cert",
            "kubernetes.io/tls",
            &[("tls.crt", &certificate), ("tls.key", &server_key)],
        )
        + &secret("clients", "Opaque", &[("ca.crt", &root.pem())]);
    let page = "https://www.example.com/no-certificate";
    for (name, more) in [
        ("near", &[("auth-tls-verify-depth", "1")][..]),
        ("far", &[("auth-tls-verify-depth", "2")][..]),
        ("page", &[("auth-tls-error-page", page)][..]),
        ("named", &[("auth-tls-verify-depth", "2"), ("auth-tls-match-cn", "^CN=member(,|$)")][..]),
        ("unnamed", &[("auth-tls-verify-depth", "2"), ("auth-tls-match-cn", "CN=ann")][..]),
        ("off", &[("auth-tls-verify-client", "off")][..]),
    ] {
        let pairs: Vec<_> = [clients].into_iter().chain(more.iter().copied()).collect();
        let host = format!("{name}.example.com");
        all += &with_tls(&ingress(name, &host, "/", "one", &all_annotated(&pairs)), &host);
    }
    let manifests = Manifests::empty();
    manifests.write("all.yaml", &all);
    let plane = Ingress::start(manifests, "same");
    let directory = tempfile::tempdir().unwrap();
    let chain = member + &lower.as_ref().pem() + &upper.as_ref().pem();
    let chain = write(directory.path(), "chain.crt", &chain);
    let member_key = write(directory.path(), "member.key", &member_key);
    let shown = ["--cert", &*chain, "--key", &*member_key];
    let status = |host: &str, more: &[&str]| {
        let answer = curl(&plane, host, "/", more).expect("an answer");
        (answer.status, answer.field("location").map(str::to_owned))
    };
    assert_eq!(status("near.example.com", &shown), (400, None), "two lie between");
    assert_eq!(status("far.example.com", &shown), (200, None));
    assert_eq!(status("page.example.com", &[]), (302, Some(page.to_owned())));
    assert_eq!(status("named.example.com", &shown), (200, None));
    assert_eq!(status("unnamed.example.com", &shown), (403, None));
    assert_eq!(status("off.example.com", &[]), (200, None));
    assert_eq!(status("off.example.com", &shown), (200, None));
}

#[test]
fn a_backends_certificate_must_hold_where_that_is_asked_for_and_it_is_shown_ours() {
    let one = Echo::start("one");
    let (inner_issuer, clients, others) =
        (authority("inner"), authority("clients"), authority("x"));
    let (certificate, key) = signed("b.example.com", &inner_issuer);
    let inner_manifests = Manifests::empty();
    let pairs = [("auth-tls-secret", "clients"), ("auth-tls-verify-client", "on")];
    let text = service("one", &[&one])
        + &secret("cert", "kubernetes.io/tls", &[("tls.crt", &certificate), ("tls.key", &key)])
        + &secret("clients", "Opaque", &[("ca.crt", &clients.pem())])
        + &with_tls(
            &ingress("b", "b.example.com", "/", "one", &all_annotated(&pairs)),
            "b.example.com",
        );
    inner_manifests.write("inner.yaml", &text);
    let inner = Ingress::start(inner_manifests, "same");
    let (ours, our_key) = signed("proxy", &clients);
    let own = [("tls.crt", &*ours), ("tls.key", &*our_key)];
    let mut all = service_at("tls", &[inner.https]);
    for (name, verify, authority) in [
        ("right", "on", Some(inner_issuer.pem())),
        ("wrong", "on", Some(others.pem())),
        ("never", "off", Some(others.pem())),
        ("missing", "on", None),
    ] {
        let pairs = [
            ("backend-protocol", "HTTPS"),
            ("upstream-vhost", "b.example.com"),
            ("proxy-ssl-name", "b.example.com"),
            ("proxy-ssl-verify", verify),
            ("proxy-ssl-secret", name),
        ];
        if let Some(authority) = authority {
            let entries = [own[0], own[1], ("ca.crt", &*authority)];
            all += &secret(name, "kubernetes.io/tls", &entries);
        }
        all += &ingress(name, &format!("{name}.example.com"), "/", "tls", &all_annotated(&pairs));
    }
    let manifests = Manifests::empty();
    manifests.write("all.yaml", &all);
    let plane = Ingress::start(manifests, "same");
    let ask = |host: &str| super::ask(plane.http, host, "/");
    for host in ["right.example.com", "never.example.com"] {
        let answer = ask(host);
        assert_eq!(answer.status, 200, "{host}: {answer:?}");
        let subject = answer.seen()["headers"]["ssl-client-subject-dn"].clone();
        assert!(subject.as_str().unwrap().contains("CN=proxy"), "{host}: {subject}");
    }
    let before = one.requests();
    assert_eq!(ask("wrong.example.com").status, 502);
    assert_eq!(ask("missing.example.com").status, 403, "nobody comes in");
    assert_eq!(one.requests(), before);
}

/// Runs openssl in a directory.
fn openssl(directory: &Path, arguments: &str) {
    let mut command = Command::new("openssl");
    let out = command.args(arguments.split(' ')).current_dir(directory).output().unwrap();
    assert!(out.status.success(), "openssl {arguments}: {}", String::from_utf8_lossy(&out.stderr));
}

/// An authority, and clients' certificates such as many have from examples: of version 1, signed by
/// the authority, by another of the same name, and over; and one of a kind that webpki does not read.
fn make_old_certificates(directory: &Path) -> String {
    for authority in ["ca", "other"] {
        let rsa = format!("-newkey rsa:2048 -nodes -keyout {authority}.key -out {authority}.crt");
        openssl(directory, &format!("req -x509 {rsa} -days 30 -subj /CN=myca"));
    }
    std::fs::write(directory.join("odd.cnf"), "1.2.3.4=critical,ASN1:UTF8String:odd\n").unwrap();
    let cases = [
        ("rsa", "rsa:2048", "ca", "-days 30"),
        ("ec", "ec -pkeyopt ec_paramgen_curve:P-384", "ca", "-days 30"),
        ("stranger", "rsa:2048", "other", "-days 30"),
        ("over", "rsa:2048", "ca", "-days -1"),
        ("odd", "rsa:2048", "ca", "-days 30 -extfile odd.cnf"),
    ];
    for (name, key, by, more) in cases {
        let newkey = format!("-newkey {key} -nodes -keyout {name}.key -out {name}.csr");
        openssl(directory, &format!("req {newkey} -subj /CN={name}"));
        let signer = format!("-CA {by}.crt -CAkey {by}.key -set_serial 02");
        openssl(
            directory,
            &format!("x509 -req -sha256 {more} -in {name}.csr {signer} -out {name}.crt"),
        );
    }
    std::fs::read_to_string(directory.join("ca.crt")).unwrap()
}

#[test]
fn certificates_of_version_1_are_judged_and_none_cuts_the_handshake() {
    let one = Echo::start("one");
    let directory = tempfile::tempdir().unwrap();
    let authority_pem = make_old_certificates(directory.path());
    let (certificate, key) = signed("a.example.com", &authority("server"));
    let mut all = service("one", &[&one])
        + &secret("cert", "kubernetes.io/tls", &[("tls.crt", &certificate), ("tls.key", &key)])
        + &secret("clients", "Opaque", &[("ca.crt", &authority_pem)]);
    for (name, mode) in [("on", "on"), ("maybe", "optional"), ("any", "optional_no_ca")] {
        let pairs = [("auth-tls-secret", "shop/clients"), ("auth-tls-verify-client", mode)];
        let host = format!("{name}.example.com");
        all += &with_tls(&ingress(name, &host, "/", "one", &all_annotated(&pairs)), &host);
    }
    all += &with_tls(&ingress("open", "open.example.com", "/", "one", ""), "open.example.com");
    let manifests = Manifests::empty();
    manifests.write("all.yaml", &all);
    let plane = Ingress::start(manifests, "own");
    let status = |host: &str, client: &str, version: &[&str]| {
        let file = |end: &str| directory.path().join(format!("{client}.{end}"));
        let (certificate, key) = (file("crt"), file("key"));
        let mut more = vec!["--cert", certificate.to_str().unwrap()];
        more.extend(["--key", key.to_str().unwrap()]);
        more.extend(version);
        let host = format!("{host}.example.com");
        let answer = curl(&plane, &host, "/", &more);
        let answer = answer.unwrap_or_else(|| panic!("{host} as {client} {version:?}: cut"));
        let verify = (answer.status == 200)
            .then(|| answer.seen()["headers"]["ssl-client-verify"].as_str().map(str::to_owned));
        (answer.status, verify.flatten())
    };
    let success = || (200, Some("SUCCESS".to_owned()));
    for version in [&["--tls-max", "1.2"][..], &["--tlsv1.3"]] {
        for client in ["rsa", "ec"] {
            for host in ["on", "maybe", "any"] {
                assert_eq!(status(host, client, version), success(), "{host} {client} {version:?}");
            }
        }
        for client in ["stranger", "over", "odd"] {
            for host in ["on", "maybe"] {
                let refused = (400, None);
                assert_eq!(status(host, client, version), refused, "{host} {client} {version:?}");
            }
            let (answered, verify) = status("any", client, version);
            let verify = verify.unwrap_or_default();
            assert!(answered == 200 && verify.starts_with("FAILED:"), "{client}: {verify}");
            // Who is not asked sends none.
            assert_eq!(status("open", client, version), (200, None), "{client} {version:?}");
        }
    }
}

#[test]
fn aliases_and_redirected_hosts_are_served_with_the_certificate_that_is_for_them() {
    let one = Echo::start("one");
    let ours = authority("ours");
    let key = KeyPair::generate().unwrap();
    let names = ["a.example.com", "www.a.example.com", "alias.example.com"];
    let params = CertificateParams::new(names.map(str::to_owned)).unwrap();
    let certificate = params.signed_by(&key, &ours).unwrap().pem();
    let pairs =
        [("server-alias", "alias.example.com,other.example.com"), ("from-to-www-redirect", "true")];
    let all = service("one", &[&one])
        + &secret(
            "cert",
            "kubernetes.io/tls",
            &[("tls.crt", &certificate), ("tls.key", &key.serialize_pem())],
        )
        + &with_tls(
            &ingress("a", "a.example.com", "/", "one", &all_annotated(&pairs)),
            "a.example.com",
        );
    let manifests = Manifests::empty();
    manifests.write("all.yaml", &all);
    let plane = Ingress::start(manifests, "same");
    let directory = tempfile::tempdir().unwrap();
    let authority = write(directory.path(), "ca.crt", &ours.pem());
    // As a browser: with the certificate verified.
    let status = |host: &str| {
        let port = plane.https.port();
        let out = Command::new("curl")
            .args(["-si", "--max-time", "60", "--cacert", &authority])
            .args(["--resolve", &format!("{host}:{port}:127.0.0.1")])
            .arg(format!("https://{host}:{port}/x"))
            .output()
            .unwrap();
        Answer::read(&String::from_utf8_lossy(&out.stdout)).map(|answer| answer.status)
    };
    assert_eq!(status("a.example.com"), Some(200));
    assert_eq!(status("alias.example.com"), Some(200));
    assert_eq!(status("www.a.example.com"), Some(308));
    assert_eq!(status("other.example.com"), None, "the certificate is not for that host");
    assert_eq!(curl(&plane, "other.example.com", "/", &[]).map(|it| it.status), Some(200));
}
