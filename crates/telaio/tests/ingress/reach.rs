//! Where names may lead that somebody else than the operator wrote.

use super::operations::wait_until;
use super::{Echo, Ingress, Manifests, all_annotated, ask, ingress, service};

#[test]
fn names_that_lead_to_the_node_itself_are_not_followed_unless_the_operator_lets_them() {
    let (one, own) = (Echo::start("one"), Echo::start("own"));
    let port = own.address.port();
    let outside = |name: &str, leads: &str| {
        format!(
            "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: shop}}\n\
             spec: {{type: ExternalName, externalName: {leads}}}\n---\n"
        )
    };
    let to = |name: &str| {
        ingress(name, &format!("{name}.example.com"), "/", name, "")
            .replace("{name: http}}}", &format!("{{number: {port}}}}}}}"))
    };
    let asked = all_annotated(&[("auth-url", &format!("http://{}/check", own.address))]);
    let copied = all_annotated(&[("mirror-target", &format!("http://{}", own.address))]);
    let all = service("one", &[&one])
        + &outside("named", "localhost")
        + &outside("numbered", "127.0.0.1")
        + &to("named")
        + &to("numbered")
        + &ingress("asked", "asked.example.com", "/", "one", &asked)
        + &ingress("copied", "copied.example.com", "/", "one", &copied);
    let start = |flag: &str| {
        let manifests = Manifests::empty();
        manifests.write("all.yaml", &all);
        Ingress::start_with(manifests, "same", &[flag])
    };
    let plane = start("--ingress-local-targets=false");
    let status = |host: &str| ask(plane.http, &format!("{host}.example.com"), "/").status;
    assert_eq!(status("named"), 502);
    assert_eq!(status("numbered"), 502);
    assert_eq!(status("asked"), 500, "nobody is asked, so nobody comes in");
    assert_eq!(status("copied"), 200, "only the copy is left out");
    let (_, log) = plane.agent.end();
    assert_eq!(own.connections(), 0, "{log}");
    for told in
        ["named leads to localhost, which is the node itself", "numbered leads to 127.0.0.1"]
    {
        assert!(log.contains(told), "{log}");
    }
    assert!(log.contains("--ingress-local-targets"), "{log}");

    let plane = start("--ingress-local-targets");
    for host in ["named", "numbered"] {
        let answer = ask(plane.http, &format!("{host}.example.com"), "/");
        assert_eq!(answer.backend().as_deref(), Some("own"), "{answer:?}");
    }
    assert_eq!(ask(plane.http, "asked.example.com", "/").status, 200);
    assert_eq!(ask(plane.http, "copied.example.com", "/copy").status, 200);
    wait_until("the copy", || own.seen().iter().any(|it| it["path"] == "/copy").then_some(()));
    let (_, log) = plane.agent.end();
    assert!(!log.contains("the node itself"), "{log}");
}
