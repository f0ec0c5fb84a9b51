//! SCTP, by rules and tracer: the kernel of a test machine need not have its sockets.

use serde_json::Value;
use telaio_testkit::netns::{CLUSTER_CIDRS, Family, Host, SERVER_PORT, SERVICE_CIDRS};

use crate::manifest::{SERVICE_PORT, Service, cluster_ip, load_balancer_ip, node_port, nodes_yaml};
use crate::node::Backend;
use crate::support::{Manifests, run_args};

on_every_backend!(sctp_is_rendered_and_traced_like_the_others);

fn sctp_is_rendered_and_traced_like_the_others(backend: Backend) {
    let manifests = Manifests::empty();
    let service = |name, number| Service::new(name, number).protocols(&["SCTP"]).load_balancer();
    let yaml = nodes_yaml()
        + &service("sctp", 1).endpoints("a1 b1").yaml()
        + &service("sctp-local", 2).external_local().endpoints("b1").yaml()
        + &service("sctp-none", 3).yaml();
    manifests.write("sctp.yaml", &yaml);
    let common = || {
        let mut args = vec![
            manifests.source(),
            "--node=node-a".to_owned(),
            format!("--cluster-cidr={CLUSTER_CIDRS}"),
            format!("--service-cidr={SERVICE_CIDRS}"),
        ];
        args.extend(backend.args().iter().map(|arg| (*arg).to_owned()));
        args
    };
    let rendered = run_args([vec!["render".to_owned()], common()].concat());
    assert_eq!(rendered.code, Some(0), "{rendered:?}");
    assert!(rendered.stdout.contains("sctp"), "{}", rendered.stdout);

    let trace = |from: String, to: String| -> Value {
        let asked = ["trace".to_owned(), format!("--from={from}"), format!("--to={to}/sctp")];
        let args = [asked.to_vec(), common(), vec!["--output=json".to_owned()]].concat();
        let ended = run_args(&args);
        assert_eq!(ended.code, Some(0), "{args:?}: {ended:?}");
        serde_json::from_str(&ended.stdout).unwrap()
    };
    for family in Family::ALL {
        let at = |ip, port| std::net::SocketAddr::new(ip, port).to_string();
        let mut both = [Host::A1, Host::B1].map(|host| at(host.address(family), SERVER_PORT));
        both.sort_unstable();
        let pod = || Host::A2.address(family).to_string();
        let outside = || Host::Outside.address(family).to_string();

        let traced = trace(pod(), at(cluster_ip(family, 1), SERVICE_PORT));
        assert_eq!((&traced["verdict"], &traced["masquerade"]), (&"dnat".into(), &false.into()));
        assert_eq!(traced["endpoints"], serde_json::json!(both));
        let traced = trace(outside(), at(Host::NodeA.address(family), node_port(1)));
        assert_eq!((&traced["verdict"], &traced["masquerade"]), (&"dnat".into(), &true.into()));
        assert_eq!(traced["endpoints"], serde_json::json!(both));
        let traced = trace(outside(), at(load_balancer_ip(family, 2), SERVICE_PORT));
        assert_eq!(traced["verdict"], "drop", "{traced}");
        let traced = trace(pod(), at(cluster_ip(family, 3), SERVICE_PORT));
        assert_eq!(traced["verdict"], "reject", "{traced}");
    }
}
