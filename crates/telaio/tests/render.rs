//! `telaio render`: what a node needs, from what there is.

mod support;

use std::collections::BTreeMap;

use support::{Ended, Manifests, dir_source, examples, run, run_args, telaio};

fn render(source: &str, node: &str) -> Ended {
    run_args(["render", "--backend", "view", source, "--node", node])
}

#[test]
fn the_examples_of_each_node_are_as_reviewed() {
    let source = dir_source(&examples());
    for node in ["loom-a", "loom-b"] {
        let ended = render(&source, node);
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
        insta::assert_snapshot!(format!("examples_{node}"), ended.stdout);
    }
}

#[test]
fn the_same_input_gives_the_same_output_wherever_it_lies() {
    let source = dir_source(&examples());
    let first = render(&source, "loom-a").stdout;
    assert_eq!(render(&source, "loom-a").stdout, first);
    let copy = Manifests::of_examples();
    assert_eq!(render(&copy.source(), "loom-a").stdout, first);
}

#[test]
fn an_empty_directory_is_an_empty_view() {
    let ended = render(&Manifests::empty().source(), "loom-a");
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(0), "node: loom-a\nservices: []\n"));
}

/// The parts of what is rendered for IPVS, by the program that takes each.
fn ipvs_parts(text: &str) -> BTreeMap<&str, &str> {
    let parts = text.trim_start_matches("# ").split("\n# ");
    parts.map(|part| part.split_once('\n').unwrap_or((part, ""))).collect()
}

#[test]
fn ipvs_is_rendered_for_the_programs_of_its_parts() {
    let source = dir_source(&examples());
    let render = || run_args(["render", "--backend=ipvs", &source, "--node=loom-a"]);
    let ended = render();
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
    assert_eq!(render().stdout, ended.stdout);
    // The rules are the same for all services.
    let (services, _) = ended.stdout.split_once("# iptables-restore").unwrap();
    insta::assert_snapshot!("examples_ipvs_loom-a", services);
    let parts = ipvs_parts(&ended.stdout);
    let programs: Vec<&str> = parts.keys().copied().collect();
    let expected = [
        "ip -batch -",
        "ip6tables-restore --noflush",
        "ipset restore",
        "iptables-restore --noflush",
        "ipvsadm --restore",
    ];
    assert_eq!(programs, expected);
    assert!(
        parts["ipvsadm --restore"]
            .lines()
            .all(|line| line.starts_with("-A -") || line.starts_with("-a -"))
    );
}

#[test]
fn windows_objects_are_rendered_as_the_documents_that_hns_would_get() {
    let source = dir_source(&examples());
    let render = |node: &str, more: &[&str]| {
        run_args(["render", "--backend=hcn", &source, "--node", node].iter().chain(more))
    };
    let ended = render("loom-a", &[]);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
    assert_eq!(render("loom-a", &[]).stdout, ended.stdout);
    insta::assert_snapshot!("examples_hcn_loom-a", ended.stdout);
    // A source address says that the network is an overlay: endpoints are behind their nodes then.
    let overlay = render("loom-a", &["--source-vip=10.244.1.2"]);
    assert_eq!(overlay.code, Some(0), "{overlay:?}");
    assert!(overlay.stdout.contains("\"ProviderAddress\": \"192.168.50.12\""), "{overlay:?}");
    let nowhere = render("loom-z", &["--source-vip=10.244.1.2"]);
    assert_eq!(nowhere.code, Some(2), "{nowhere:?}");
    assert!(nowhere.stderr.contains("name it with --bind-address"), "{nowhere:?}");
}

#[test]
fn ipvs_has_node_ports_on_the_addresses_that_are_said_of_the_node() {
    let manifests = Manifests::empty();
    let service = "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: shop}\n\
        spec: {type: NodePort, clusterIP: 10.96.0.1, ports: [{port: 80, nodePort: 30080}]}\n---\n\
        apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\naddressType: IPv4\n\
        metadata: {name: web-4, namespace: shop, labels: {kubernetes.io/service-name: web}}\n\
        ports: [{port: 80}]\nendpoints: [{addresses: [10.244.1.1]}]\n";
    manifests.write("web.yaml", service);
    let servers = |more: &[&str]| {
        let source = manifests.source();
        let ended = run_args(["render", "--backend=ipvs", &source, "--node=a"].iter().chain(more));
        assert_eq!(ended.code, Some(0), "{ended:?}");
        let text = ipvs_parts(&ended.stdout)["ipvsadm --restore"].to_owned();
        let of_line = |line: &str| line.strip_prefix("-A -t ").map(str::to_owned);
        text.lines().filter_map(of_line).collect::<Vec<_>>()
    };
    assert_eq!(servers(&[]), ["10.96.0.1:80 -s rr"]);
    let named = servers(&["--bind-address=192.0.2.1", "--ipvs-scheduler=lc"]);
    assert_eq!(named, ["10.96.0.1:80 -s lc", "192.0.2.1:30080 -s lc"]);
}

#[test]
fn bad_input_is_named_and_the_rest_is_printed() {
    let manifests = Manifests::of_examples();
    let good = render(&manifests.source(), "loom-a").stdout;
    manifests.write("broken.yaml", "apiVersion: v1\nkind: Service\nmetadata: {name: [}\n");
    manifests.write("binary.yaml", "\u{0}\u{1}\u{2}");
    manifests.write(
        "port.yaml",
        "apiVersion: v1\nkind: Service\nmetadata: {name: bad, namespace: shop}\n\
         spec:\n  clusterIP: 10.96.9.9\n  ports: [{port: 70000}]\n",
    );
    let ended = render(&manifests.source(), "loom-a");
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert_eq!(ended.stdout, good);
    for part in
        ["broken.yaml:3", "binary.yaml", "port.yaml", "Service shop/bad", "spec.ports[0].port"]
    {
        assert!(ended.stderr.contains(part), "{part} is not in {}", ended.stderr);
    }
}

#[test]
fn a_source_that_is_not_there_is_said() {
    let ended = render("--source=dir:/nonexistent/manifests", "loom-a");
    assert_eq!(ended.code, Some(2), "{ended:?}");
    let said = "telaio: dir:/nonexistent/manifests cannot be read: No such file";
    assert!(ended.stderr.starts_with(said), "{ended:?}");
    assert!(!ended.stderr.contains("what was read before"), "{ended:?}");

    let ended = render("--source=kube:/nonexistent/kubeconfig", "loom-a");
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.stderr.contains("/nonexistent/kubeconfig"), "{ended:?}");

    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let ended = render(&format!("--source=brain:http://{free}"), "loom-a");
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains(&free.to_string()), "{ended:?}");
}

#[test]
fn whoever_reads_only_the_beginning_is_no_error() {
    let command = format!(
        "{} render {} --node loom-a | head -n 1",
        env!("CARGO_BIN_EXE_telaio"),
        dir_source(&examples())
    );
    let ended = run(std::process::Command::new("bash").args(["-o", "pipefail", "-c", &command]));
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(0), "node: loom-a\n"), "{ended:?}");
}

#[test]
fn nothing_is_written_anywhere() {
    let manifests = Manifests::of_examples();
    let home = tempfile::tempdir().unwrap();
    let ended = run(telaio()
        .args(["render", &manifests.source(), "--node=loom-a"])
        .env("HOME", home.path())
        .env("XDG_STATE_HOME", home.path())
        .env("TMPDIR", home.path())
        .current_dir(home.path()));
    assert_eq!(ended.code, Some(0));
    assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 0);
    let names = |dir: &std::path::Path| std::fs::read_dir(dir).unwrap().count();
    assert_eq!(names(manifests.0.path()), 7);
}
