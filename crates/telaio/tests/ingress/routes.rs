//! Requests go where the Ingresses say.

use super::{Echo, Ingress, Manifests, annotated, ask, ask_with, ingress, service};
use crate::support::{ask_until, get};

#[test]
fn requests_go_by_host_and_path_and_changes_are_followed() {
    let (one, two) = (Echo::start("one"), Echo::start("two"));
    let manifests = Manifests::empty();
    manifests.write("services.yaml", &(service("one", &[&one]) + &service("two", &[&two])));
    manifests.write("a.yaml", &ingress("a", "a.example.com", "/", "one", ""));
    let ingress_plane = Ingress::start(manifests, "same");
    assert_eq!(
        ask(ingress_plane.http, "a.example.com", "/x?y=1").backend().as_deref(),
        Some("one")
    );
    assert_eq!(ask(ingress_plane.http, "b.example.com", "/").status, 404);
    let answer = ask(ingress_plane.http, "A.EXAMPLE.COM:80", "/x?y=1");
    assert!(answer.body.contains("\"path\":\"/x?y=1\""), "{answer:?}");

    ingress_plane.manifests.write("b.yaml", &ingress("b", "b.example.com", "/", "two", ""));
    ingress_plane.ask_until("b.example.com", "/", |it| it.backend().as_deref() == Some("two"));
    // The same route to another service.
    ingress_plane.manifests.write("a.yaml", &ingress("a", "a.example.com", "/", "two", ""));
    ingress_plane.ask_until("a.example.com", "/", |it| it.backend().as_deref() == Some("two"));
    std::fs::remove_file(ingress_plane.manifests.0.path().join("b.yaml")).unwrap();
    ingress_plane.ask_until("b.example.com", "/", |it| it.status == 404);
}

#[test]
fn a_service_without_endpoints_is_unavailable_until_it_has_some() {
    let one = Echo::start("one");
    let manifests = Manifests::empty();
    manifests
        .write("all.yaml", &(service("one", &[]) + &ingress("a", "a.example.com", "/", "one", "")));
    let plane = Ingress::start(manifests, "same");
    assert_eq!(ask(plane.http, "a.example.com", "/").status, 503);
    let with = service("one", &[&one]) + &ingress("a", "a.example.com", "/", "one", "");
    plane.manifests.write("all.yaml", &with);
    plane.ask_until("a.example.com", "/", |it| it.backend().as_deref() == Some("one"));
}

#[test]
fn annotations_of_ingress_nginx_do_what_they_say() {
    let one = Echo::start("one");
    let manifests = Manifests::empty();
    let rewrite = "  annotations: {nginx.ingress.kubernetes.io/rewrite-target: \"/$2\"}\n";
    let all = service("one", &[&one])
        + &ingress("rewrite", "a.example.com", "/shop(/|$)(.*)", "one", rewrite)
            .replace("Prefix", "ImplementationSpecific")
        + &ingress("ssl", "b.example.com", "/", "one", &annotated("force-ssl-redirect", "true"))
        + &ingress(
            "moved",
            "c.example.com",
            "/",
            "one",
            &annotated("permanent-redirect", "https://d.example.com"),
        )
        + &ingress(
            "vhost",
            "e.example.com",
            "/",
            "one",
            &annotated("upstream-vhost", "internal.example.com"),
        );
    manifests.write("all.yaml", &all);
    let plane = Ingress::start(manifests, "same");
    let rewritten = ask(plane.http, "a.example.com", "/shop/cart?x=1");
    assert!(rewritten.body.contains("\"path\":\"/cart?x=1\""), "{rewritten:?}");
    let to_tls = ask(plane.http, "b.example.com", "/x");
    assert_eq!(to_tls.status, 308, "{to_tls:?}");
    // To where HTTPS is served.
    let location = format!("https://b.example.com:{}/x", plane.https.port());
    assert_eq!(to_tls.field("location"), Some(&*location));
    assert_eq!(ask(plane.http, "c.example.com", "/x").status, 301);
    let host = ask(plane.http, "e.example.com", "/");
    assert!(host.body.contains("\"host\":\"internal.example.com\""), "{host:?}");
    // Behind a proxy that is not trusted nobody says who the client is.
    let forged = ask_with(plane.http, "e.example.com", "/", "X-Forwarded-For: 192.0.2.7\r\n");
    assert!(!forged.body.contains("192.0.2.7"), "{forged:?}");
}

#[test]
fn ready_comes_with_the_first_routes_and_the_rest_is_told() {
    let one = Echo::start("one");
    let manifests = Manifests::empty();
    let bad = annotated("proxy-body-size", "8 megs");
    manifests.write(
        "all.yaml",
        &(service("one", &[&one]) + &ingress("a", "a.example.com", "/", "one", &bad)),
    );
    let plane = Ingress::start(manifests, "same");
    let body = ask_until(plane.agent.healthz, "/ready", |status, _| status == 200);
    assert!(body.contains("\"ingress_ready\": true"), "{body}");
    let entry = plane.agent.wait_log(
        "the annotation nginx.ingress.kubernetes.io/proxy-body-size: \"8 megs\" is not right; write a size \
         such as 512k, 8m or 1g; 0 for no limit",
    );
    assert_eq!((&entry["ingress"], &entry["reason"]), (&"shop/a".into(), &"BadAnnotation".into()));
    assert_eq!(get(plane.agent.healthz, "/healthz").0, 200);
}

#[test]
fn nobody_is_ready_or_served_before_there_are_routes() {
    // A brain that is not there: nothing is known of any route.
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let agent = crate::support::Agent::start(&[
        "run",
        "--planes=ingress",
        "--node=loom-a",
        "--http-listen=127.0.0.1:0",
        "--https-listen=127.0.0.1:0",
        "--ingress-process=same",
        &format!("--source=brain:http://{nobody}"),
    ]);
    let listening = agent.wait_log("the ingress listens");
    let http: std::net::SocketAddr = listening["http"].as_str().unwrap().parse().unwrap();
    let (status, body) = get(agent.healthz, "/ready");
    assert_eq!(status, 503, "{body}");
    // Connections wait; nobody is told that there is no such route.
    let mut waiting = std::net::TcpStream::connect(http).unwrap();
    waiting.set_read_timeout(Some(std::time::Duration::from_millis(500))).unwrap();
    std::io::Write::write_all(&mut waiting, b"GET / HTTP/1.1\r\nHost: a.example.com\r\n\r\n")
        .unwrap();
    let error = std::io::Read::read(&mut waiting, &mut [0; 64]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
    assert_eq!(get(agent.healthz, "/ready").0, 503);
    assert_eq!(get(agent.admin, "/api/v1/overview").0, 200, "the admin API answers already");
    let (status, body) = get(agent.admin, "/api/v1/routes");
    assert_eq!(status, 503, "that there are none would not be true: {body}");
}

#[test]
fn a_certificate_of_a_secret_is_shown_and_another_replaces_it() {
    let one = Echo::start("one");
    let manifests = Manifests::empty();
    let secret = |name: &str| {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(vec!["a.example.com".to_owned()]).unwrap();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        let certificate = params.self_signed(&key).unwrap();
        let indent = |text: String| format!("    {}\n", text.trim().replace('\n', "\n    "));
        format!(
            "apiVersion: v1\nkind: Secret\nmetadata: {{name: cert, namespace: shop}}\n\
             type: kubernetes.io/tls\nstringData:\n  tls.crt: |\n{}  tls.key: |\n{}---\n",
            indent(certificate.pem()),
            indent(key.serialize_pem())
        )
    };
    let web = ingress("a", "a.example.com", "/", "one", "")
        .replace("spec:\n", "spec:\n  tls: [{hosts: [a.example.com], secretName: cert}]\n");
    manifests.write("all.yaml", &(service("one", &[&one]) + &web));
    manifests.write("cert.yaml", &secret("first.example.com"));
    let plane = Ingress::start(manifests, "same");
    let shown = || {
        let name = format!("a.example.com:{}:127.0.0.1", plane.https.port());
        let url = format!("https://a.example.com:{}/x", plane.https.port());
        let out = std::process::Command::new("curl")
            .args(["-skv", "--max-time", "20", "--resolve", &name, &url])
            .output()
            .unwrap();
        String::from_utf8_lossy(&out.stderr).into_owned() + &String::from_utf8_lossy(&out.stdout)
    };
    let until = |text: &str| {
        let deadline = std::time::Instant::now() + crate::support::PATIENCE;
        while !shown().contains(text) {
            assert!(std::time::Instant::now() < deadline, "{text} is not in {}", shown());
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    };
    until("\"backend\":\"one\"");
    until("CN=first.example.com");
    plane.manifests.write("cert.yaml", &secret("second.example.com"));
    until("CN=second.example.com");
    // HTTP is redirected where there is TLS.
    assert_eq!(ask(plane.http, "a.example.com", "/").status, 308);
}

#[test]
fn clients_are_redirected_to_the_port_that_is_named_where_traffic_comes_by_another() {
    let one = Echo::start("one");
    for (port, location) in
        [("443", "https://b.example.com/x"), ("8443", "https://b.example.com:8443/x")]
    {
        let manifests = Manifests::empty();
        let forced = annotated("force-ssl-redirect", "true");
        let text = service("one", &[&one]) + &ingress("ssl", "b.example.com", "/", "one", &forced);
        manifests.write("all.yaml", &text);
        let flag = format!("--ssl-redirect-port={port}");
        let plane = Ingress::start_with(manifests, "same", &[&flag]);
        assert_eq!(ask(plane.http, "b.example.com", "/x").field("location"), Some(location));
    }
}
