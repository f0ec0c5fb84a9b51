//! `telaio trace`: questions as a person or a script asks them, answers as scripts read them.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

mod support;

use std::collections::BTreeSet;
use std::io::Write as _;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use support::{Ended, Manifests, run, telaio};
use telaio_netlink::ipvs::Ipvs;
use telaio_netlink::netns::Netns;
use telaio_testkit::guest::{self, GuestError};
use tempfile::TempDir;

const NODES: &str = "
apiVersion: v1
kind: Node
metadata: {name: node-a}
spec: {podCIDRs: [10.244.1.0/24, 'fd00:10:244:1::/64']}
status:
  addresses:
    - {type: InternalIP, address: 192.168.50.11}
    - {type: InternalIP, address: 'fd00:50::11'}
";

const SERVICES: &str = "
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec:
  type: NodePort
  clusterIPs: [10.96.0.10, 'fd00:10:96::10']
  ipFamilies: [IPv4, IPv6]
  ports:
    - {name: http, port: 80, targetPort: 8080, nodePort: 30080}
    - {name: dns, protocol: UDP, port: 53, targetPort: 5353, nodePort: 30053}
    - {name: sig, protocol: SCTP, port: 90, targetPort: 9090, nodePort: 30090}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-4, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports:
  - {name: http, port: 8080}
  - {name: dns, protocol: UDP, port: 5353}
  - {name: sig, protocol: SCTP, port: 9090}
endpoints:
  - {addresses: [10.244.2.9], nodeName: node-b}
  - {addresses: [10.244.2.10], nodeName: node-b}
  - {addresses: [10.244.1.20], nodeName: node-a}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-6, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv6
ports:
  - {name: http, port: 8080}
  - {name: dns, protocol: UDP, port: 5353}
endpoints:
  - {addresses: ['fd00:10:244:2::9'], nodeName: node-b}
---
apiVersion: v1
kind: Service
metadata: {name: nobody, namespace: shop}
spec:
  clusterIP: 10.96.0.11
  ports: [{port: 80}]
---
apiVersion: v1
kind: Service
metadata: {name: elsewhere, namespace: shop}
spec:
  clusterIP: 10.96.0.12
  internalTrafficPolicy: Local
  ports: [{port: 80, targetPort: 8080}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: elsewhere-4, namespace: shop, labels: {kubernetes.io/service-name: elsewhere}}
addressType: IPv4
ports: [{port: 8080}]
endpoints: [{addresses: [10.244.2.9], nodeName: node-b}]
";

const BACKENDS: [&str; 3] = ["nftables", "iptables", "ipvs"];

/// The services, with or without the Node object.
fn manifests(with_node: bool) -> Manifests {
    let manifests = Manifests::empty();
    manifests.write("services.yaml", SERVICES);
    if with_node {
        manifests.write("nodes.yaml", NODES);
    }
    manifests
}

/// `telaio trace` about node-a of these manifests.
fn trace(manifests: &Manifests, backend: &str) -> Command {
    let mut command = telaio();
    command.args(["trace", &manifests.source(), "--node=node-a", "--cluster-cidr=10.244.0.0/16"]);
    command.arg(format!("--backend={backend}"));
    command
}

/// One question, answered in JSON.
fn ask(manifests: &Manifests, backend: &str, from: &str, to: &str, more: &[&str]) -> Value {
    let ended = run(trace(manifests, backend)
        .args(["--output=json", "--from", from, "--to", to])
        .args(more));
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{from} to {to}");
    serde_json::from_str(&ended.stdout).unwrap()
}

/// Many questions, one a line.
fn batch(manifests: &Manifests, backend: &str, lines: &str) -> (Ended, String) {
    let file = manifests.0.path().join("questions.jsonl");
    std::fs::write(&file, lines).unwrap();
    let file = file.display().to_string();
    (run(trace(manifests, backend).args(["--batch", &file])), file)
}

fn answers(ended: &Ended) -> Vec<Value> {
    ended.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// An answer without the way to it, which is each backend's own, and with its endpoints in some order.
fn fate(answer: &Value) -> Value {
    let via = answer["via"].as_array().expect("via is a list");
    assert!(via.iter().all(Value::is_string), "{answer}");
    let mut endpoints = answer["endpoints"].as_array().expect("endpoints is a list").clone();
    endpoints.sort_by_key(Value::to_string);
    json!({
        "verdict": answer["verdict"],
        "endpoints": endpoints,
        "masquerade": answer["masquerade"],
    })
}

fn sent_to(endpoints: &[&str], masquerade: bool) -> Value {
    json!({"verdict": "dnat", "endpoints": endpoints, "masquerade": masquerade})
}

fn left(verdict: &str) -> Value {
    json!({"verdict": verdict, "endpoints": [], "masquerade": false})
}

#[test]
fn the_answer_has_the_four_fields_and_no_others() {
    let manifests = manifests(true);
    for backend in BACKENDS {
        for to in ["10.96.0.10:80", "10.96.0.11:80", "10.96.0.12:80", "192.0.2.77:80"] {
            let answer = ask(&manifests, backend, "10.244.1.20", to, &[]);
            let fields: Vec<&str> =
                answer.as_object().unwrap().keys().map(String::as_str).collect();
            let mut sorted = fields.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, ["endpoints", "masquerade", "verdict", "via"], "{backend} {to}");
            assert!(answer["masquerade"].is_boolean(), "{backend} {to}");
        }
    }
}

#[test]
fn each_verdict_is_told() {
    let manifests = manifests(true);
    for backend in BACKENDS {
        let ask = |from, to| fate(&ask(&manifests, backend, from, to, &[]));
        let all = ["10.244.1.20:8080", "10.244.2.10:8080", "10.244.2.9:8080"];
        assert_eq!(ask("10.244.1.99", "10.96.0.10:80"), sent_to(&all, false), "{backend}");
        assert_eq!(ask("203.0.113.5", "10.96.0.10:80"), sent_to(&all, true), "{backend}");
        assert_eq!(ask("192.168.50.11", "192.168.50.11:30080"), sent_to(&all, true), "{backend}");
        assert_eq!(ask("10.244.1.99", "10.96.0.11:80"), left("reject"), "{backend}");
        assert_eq!(ask("10.244.1.99", "10.96.0.12:80"), left("drop"), "{backend}");
        assert_eq!(ask("10.244.1.99", "192.0.2.77:80"), left("none"), "{backend}");
    }
}

#[test]
fn the_undefined_port_of_a_cluster_address_is_each_backends_own() {
    let manifests = manifests(true);
    for (backend, verdict) in [("nftables", "reject"), ("iptables", "none"), ("ipvs", "reject")] {
        let answer = ask(&manifests, backend, "10.244.1.99", "10.96.0.10:81", &[]);
        assert_eq!(fate(&answer), left(verdict), "{backend}");
    }
}

#[test]
fn an_unallocated_cluster_address_is_each_backends_own() {
    let manifests = manifests(true);
    for (backend, verdict) in [("nftables", "drop"), ("iptables", "none"), ("ipvs", "none")] {
        let more = ["--service-cidr=10.96.0.0/16"];
        let answer = ask(&manifests, backend, "10.244.1.99", "10.96.0.200:80", &more);
        assert_eq!(fate(&answer), left(verdict), "{backend}");
    }
}

#[test]
fn protocols_are_told_apart_and_tcp_is_meant_where_none_is_named() {
    let manifests = manifests(true);
    for backend in BACKENDS {
        let ask = |to| ask(&manifests, backend, "10.244.1.99", to, &[]);
        let first = |answer: Value| answer["endpoints"][0].clone();
        assert_eq!(first(ask("10.96.0.10:53/udp")), "10.244.1.20:5353", "{backend}");
        assert_eq!(first(ask("10.96.0.10:90/sctp")), "10.244.1.20:9090", "{backend}");
        assert_eq!(first(ask("10.96.0.10:80/tcp")), "10.244.1.20:8080", "{backend}");
        assert_eq!(ask("10.96.0.10:80"), ask("10.96.0.10:80/tcp"), "{backend}");
        let endpoints = ask("10.96.0.10:53")["endpoints"].clone();
        assert_eq!(endpoints, json!([]), "{backend}: that is UDP's port");
    }
}

#[test]
fn ipv6_addresses_stand_in_brackets() {
    let manifests = manifests(true);
    for backend in BACKENDS {
        let answer = ask(&manifests, backend, "2001:db8::5", "[fd00:10:96::10]:80", &[]);
        assert_eq!(answer["endpoints"], json!(["[fd00:10:244:2::9]:8080"]), "{backend}");
        let (ended, _) = batch(
            &manifests,
            backend,
            "{\"from\":\"2001:db8::5\",\"to\":\"[fd00:10:96::10]:53\",\"proto\":\"udp\"}\n",
        );
        assert_eq!(ended.code, Some(0), "{ended:?}");
        let endpoints = &answers(&ended)[0]["endpoints"];
        assert_eq!(*endpoints, json!(["[fd00:10:244:2::9]:5353"]), "{backend}");
    }
}

#[test]
fn a_batch_is_answered_line_by_line_in_order() {
    let manifests = manifests(true);
    let questions = [
        (r#"{"from":"10.244.1.99","to":"10.96.0.10:80"}"#, "dnat"),
        (r#"{"from":"10.244.1.99","to":"10.96.0.11:80","proto":"tcp"}"#, "reject"),
        (r#"{"from":"10.244.1.99","to":"10.96.0.12:80","iface":"cni0"}"#, "drop"),
        (r#"{"from":"10.244.1.99","to":"192.0.2.77:80","proto":"sctp"}"#, "none"),
        (r#"{"proto":"udp","to":"[fd00:10:96::10]:53","from":"fd00:10:244:1::1"}"#, "dnat"),
    ];
    let count = 500;
    let asked: Vec<_> = (0..count).map(|i| questions[i * 7 % questions.len()]).collect();
    let lines: String = asked.iter().flat_map(|(line, _)| [*line, "\n"]).collect();
    for backend in BACKENDS {
        let (ended, _) = batch(&manifests, backend, &lines);
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{backend}");
        let told: Vec<Value> =
            answers(&ended).iter().map(|answer| answer["verdict"].clone()).collect();
        let wanted: Vec<&str> = asked.iter().map(|(_, verdict)| *verdict).collect();
        assert_eq!(told, wanted, "{backend}");
        // One question alone is answered as among others.
        let alone = ask(&manifests, backend, "10.244.1.99", "10.96.0.10:80", &[]);
        assert_eq!(answers(&ended)[0], alone, "{backend}");
    }
}

#[test]
fn a_batch_may_come_by_standard_input_and_end_without_a_line_feed() {
    let manifests = manifests(true);
    let mut child = trace(&manifests, "nftables")
        .args(["--batch", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = concat!(
        "{\"from\":\"10.244.1.99\",\"to\":\"10.96.0.11:80\"}\r\n",
        "{\"from\":\"10.244.1.99\",\"to\":\"10.96.0.12:80\"}"
    );
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    let told = String::from_utf8(output.stdout).unwrap();
    let told: Vec<Value> = told.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(told.iter().map(fate).collect::<Vec<_>>(), [left("reject"), left("drop")]);
}

#[test]
fn an_empty_batch_has_no_answers() {
    let (ended, _) = batch(&manifests(true), "nftables", "");
    assert_eq!((ended.code, ended.stdout.as_str(), ended.stderr.as_str()), (Some(0), "", ""));
}

#[test]
fn a_bad_line_names_the_file_and_the_line_and_exits_2() {
    let manifests = manifests(true);
    let good = r#"{"from":"10.244.1.99","to":"10.96.0.10:80"}"#;
    let bad = [
        "not json",
        "[]",
        "{}",
        r#"{"from":"10.244.1.99"}"#,
        r#"{"to":"10.96.0.10:80"}"#,
        r#"{"from":"pod","to":"10.96.0.10:80"}"#,
        r#"{"from":"10.244.1.99","to":"10.96.0.10"}"#,
        r#"{"from":"10.244.1.99","to":"10.96.0.10:70000"}"#,
        r#"{"from":"10.244.1.99","to":"fd00:10:96::10:80"}"#,
        r#"{"from":"10.244.1.99","to":"[fd00:10:96::10]:80"}"#,
        r#"{"from":"10.244.1.99","to":"10.96.0.10:80","proto":"icmp"}"#,
        r#"{"from":"10.244.1.99","to":"10.96.0.10:80","proto":6}"#,
        r#"{"from":"10.244.1.99","to":"10.96.0.10:80"} {}"#,
    ];
    for line in bad {
        let (ended, file) =
            batch(&manifests, "nftables", &format!("{good}\n{good}\n{line}\n{good}\n"));
        assert_eq!(ended.code, Some(2), "{line}: {ended:?}");
        assert!(ended.stderr.contains(&file), "{line}: {}", ended.stderr);
        let names_it = ["line 3", ":3"].iter().any(|it| ended.stderr.contains(it));
        assert!(names_it, "{line}: {}", ended.stderr);
        assert!(answers(&ended).len() <= 2, "{line}: nothing is answered in its place");
    }
}

#[test]
fn bad_questions_exit_2_and_say_why() {
    let manifests = manifests(true);
    let bad: [(&[&str], &str); 9] = [
        (&["--from=10.0.0.1"], "--to"),
        (&["--to=10.0.0.1:80"], "--from"),
        (&[], "--from"),
        (&["--from=pod", "--to=10.0.0.1:80"], "pod"),
        (&["--from=10.0.0.1", "--to=10.0.0.1"], "10.0.0.1"),
        (&["--from=10.0.0.1", "--to=10.0.0.1:80/icmp"], "icmp"),
        (&["--from=10.0.0.1", "--to=[fd00::1]:80"], "famil"),
        (&["--batch=/nonexistent/questions"], "/nonexistent/questions"),
        (&["--from=10.0.0.1", "--to=10.0.0.1:80", "--batch=x"], "--batch"),
    ];
    for (args, said) in bad {
        let ended = run(trace(&manifests, "nftables").args(args));
        assert_eq!(ended.code, Some(2), "{args:?}: {ended:?}");
        assert!(ended.stderr.contains(said), "{args:?}: {}", ended.stderr);
        assert_eq!(ended.stdout, "", "{args:?}");
    }
}

#[test]
fn endpoints_are_sorted_as_the_texts_that_they_are() {
    let manifests = manifests(true);
    for backend in BACKENDS {
        let answer = ask(&manifests, backend, "10.244.1.99", "10.96.0.10:80", &[]);
        let told: Vec<&str> =
            answer["endpoints"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
        let mut sorted = told.clone();
        sorted.sort_unstable();
        assert_eq!(told, sorted, "{backend}");
    }
}

#[test]
fn the_settings_of_run_decide() {
    let manifests = manifests(true);
    for backend in BACKENDS {
        let masquerade = |from, to, more: &[&str]| {
            ask(&manifests, backend, from, to, more)["masquerade"].as_bool().unwrap()
        };
        let cluster_ip = "10.96.0.10:80";
        assert!(!masquerade("10.244.1.99", cluster_ip, &[]), "{backend}");
        assert!(masquerade("10.244.1.99", cluster_ip, &["--masquerade-all"]), "{backend}");
        let by_interface =
            ["--detect-local-mode=InterfaceNamePrefix", "--pod-interface-name-prefix=veth"];
        let via = |name| [by_interface[0], by_interface[1], name];
        assert!(!masquerade("203.0.113.5", cluster_ip, &via("--iface=veth7")), "{backend}");
        assert!(masquerade("203.0.113.5", cluster_ip, &via("--iface=eth0")), "{backend}");
        let node_cidr = ["--detect-local-mode=NodeCIDR"];
        assert!(!masquerade("10.244.1.99", cluster_ip, &node_cidr), "{backend}");
        assert!(masquerade("10.244.2.99", cluster_ip, &node_cidr), "{backend}");
        let elsewhere = ["--nodeport-addresses=172.16.0.0/12"];
        let answer = ask(&manifests, backend, "203.0.113.5", "192.168.50.11:30080", &elsewhere);
        assert_eq!(fate(&answer), left("none"), "{backend}");
    }
}

#[test]
fn several_cluster_networks_are_named_in_one_flag() {
    let manifests = manifests(true);
    for backend in BACKENDS {
        let ended = run(telaio()
            .args(["trace", &manifests.source(), "--node=node-a", "--output=json"])
            .args(["--cluster-cidr=10.244.0.0/16,fd00:10:244::/48"])
            .args([format!("--backend={backend}")])
            .args(["--from=fd00:10:244:1::99", "--to=[fd00:10:96::10]:80"]));
        assert_eq!(ended.code, Some(0), "{ended:?}");
        let answer: Value = serde_json::from_str(&ended.stdout).unwrap();
        assert_eq!(fate(&answer), sent_to(&["[fd00:10:244:2::9]:8080"], false), "{backend}");
    }
}

#[test]
fn text_is_for_people_and_says_the_same() {
    let manifests = manifests(true);
    for backend in BACKENDS {
        let ask = |to: &str| {
            let args = ["--output=text", "--from=203.0.113.5", "--to", to];
            let ended = run(trace(&manifests, backend).args(args));
            assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{backend} {to}");
            assert!(serde_json::from_str::<Value>(&ended.stdout).is_err(), "{backend} {to}");
            ended.stdout
        };
        let served = ask("10.96.0.10:80");
        for part in ["203.0.113.5", "10.244.1.20:8080", "10.244.2.9:8080", "10.244.2.10:8080"] {
            assert!(served.contains(part), "{backend}: no {part} in {served}");
        }
        assert!(served.contains("the node's address as its source"), "{backend}: {served}");
        assert!(ask("10.96.0.11:80").contains("refused"), "{backend}");
        assert!(ask("10.96.0.12:80").contains("dropped"), "{backend}");
        assert!(ask("192.0.2.77:80").contains("left alone"), "{backend}");
        // Text is what a person gets who says nothing of it.
        let args = ["--from=203.0.113.5", "--to=10.96.0.10:80"];
        assert_eq!(run(trace(&manifests, backend).args(args)).stdout, served, "{backend}");
    }
}

#[test]
fn the_way_names_what_decided() {
    let manifests = manifests(true);
    for (backend, name) in [
        ("nftables", "services"),
        ("iptables", "TELAIO-SERVICES"),
        ("ipvs", "TELAIO-CLUSTER-IP"),
        ("ipvs", "virtual server TCP 10.96.0.10:80: rr"),
    ] {
        let answer = ask(&manifests, backend, "203.0.113.5", "10.96.0.10:80", &[]);
        assert!(answer["via"].to_string().contains(name), "{backend}: {answer}");
    }
    let more = ["--ipvs-scheduler=lc"];
    let answer = ask(&manifests, "ipvs", "203.0.113.5", "10.96.0.10:80", &more);
    assert!(answer["via"].to_string().contains("10.96.0.10:80: lc"), "{answer}");
}

#[test]
fn what_could_not_be_read_is_said_and_the_rest_is_answered() {
    let manifests = manifests(true);
    manifests.write("broken.yaml", "apiVersion: v1\nkind: Service\nmetadata: {name: [}\n");
    let ended = run(trace(&manifests, "nftables").args([
        "--output=json",
        "--from=203.0.113.5",
        "--to=10.96.0.11:80",
    ]));
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.stderr.contains("broken.yaml:3"), "{ended:?}");
    assert_eq!(fate(&serde_json::from_str(&ended.stdout).unwrap()), left("reject"));
}

/// A network namespace with an address of its own, gone when the test ends.
struct Namespace(Netns);

impl Namespace {
    fn new(name: &str) -> Self {
        let name = format!("tl-trace-{name}-{}", std::process::id());
        let namespace = Self(Netns::create(&name).expect("this test needs root"));
        for args in [
            "link set lo up",
            "link add eth0 type veth peer name peer0",
            "link set eth0 up",
            "addr add 192.168.77.7/24 dev eth0",
        ] {
            let ended = namespace.run(Command::new("ip").args(args.split(' ')));
            assert_eq!(ended.code, Some(0), "ip {args}: {ended:?}");
        }
        namespace
    }

    fn run(&self, command: &mut Command) -> Ended {
        self.0.run(|| run(command)).unwrap()
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        Netns::remove(self.0.name()).unwrap();
    }
}

#[test]
fn the_nodes_addresses_are_its_objects_or_else_the_machines() {
    let namespace = Namespace::new("own");
    let (with, without) = (manifests(true), manifests(false));
    for backend in BACKENDS {
        let ask = |manifests: &Manifests, to: &str| {
            let ended = namespace.run(trace(manifests, backend).args([
                "--output=json",
                "--from=203.0.113.5",
                "--to",
                to,
            ]));
            assert_eq!(ended.code, Some(0), "{ended:?}");
            serde_json::from_str::<Value>(&ended.stdout).unwrap()["verdict"].clone()
        };
        assert_eq!(ask(&with, "192.168.50.11:30080"), "dnat", "{backend}");
        assert_eq!(ask(&with, "192.168.77.7:30080"), "none", "{backend}");
        assert_eq!(ask(&without, "192.168.50.11:30080"), "none", "{backend}");
        assert_eq!(ask(&without, "192.168.77.7:30080"), "dnat", "{backend}");
    }
}

/// One question of each kind, for a file.
const QUESTIONS: [&str; 12] = [
    r#"{"from":"10.244.1.99","to":"10.96.0.10:80"}"#,
    r#"{"from":"203.0.113.5","to":"10.96.0.10:80"}"#,
    r#"{"from":"203.0.113.5","to":"10.96.0.10:53","proto":"udp"}"#,
    r#"{"from":"203.0.113.5","to":"192.168.50.11:30080"}"#,
    r#"{"from":"192.168.50.11","to":"192.168.50.11:30053","proto":"udp"}"#,
    r#"{"from":"10.244.1.20","to":"10.96.0.10:80"}"#,
    r#"{"from":"203.0.113.5","to":"10.96.0.11:80"}"#,
    r#"{"from":"203.0.113.5","to":"10.96.0.12:80"}"#,
    r#"{"from":"203.0.113.5","to":"10.96.0.10:81"}"#,
    r#"{"from":"2001:db8::5","to":"[fd00:10:96::10]:80"}"#,
    r#"{"from":"2001:db8::5","to":"[fd00:50::11]:30053","proto":"udp"}"#,
    r#"{"from":"203.0.113.5","to":"192.0.2.77:80"}"#,
];

#[test]
fn the_live_rules_answer_as_the_compiled_ones() {
    let lines = QUESTIONS.join("\n");
    let manifests = manifests(true);
    let flavors: [&[&str]; 3] = [
        &["--backend=nftables"],
        &["--backend=iptables", "--iptables-flavor=nft"],
        &["--backend=iptables", "--iptables-flavor=legacy"],
    ];
    for (i, flavor) in flavors.into_iter().enumerate() {
        let namespace = Namespace::new(&format!("live-{i}"));
        let file = manifests.0.path().join("questions.jsonl");
        std::fs::write(&file, &lines).unwrap();
        let ask = |more: &[&str]| {
            let ended = namespace.run(
                telaio()
                    .args(["trace", &manifests.source(), "--node=node-a"])
                    .args(["--cluster-cidr=10.244.0.0/16", "--batch"])
                    .arg(&file)
                    .args(flavor)
                    .args(more),
            );
            assert_eq!(ended.code, Some(0), "{flavor:?}: {ended:?}");
            answers(&ended).iter().map(fate).collect::<Vec<_>>()
        };
        let before = ask(&["--kernel"]);
        assert!(before.iter().all(|it| *it == left("none")), "nothing is there yet: {before:?}");
        let state = TempDir::new().unwrap();
        let programmed = namespace.run(
            telaio()
                .args(["run", &manifests.source(), "--node=node-a", "--once"])
                .args(["--cluster-cidr=10.244.0.0/16", "--state-dir"])
                .arg(state.path())
                .args(flavor),
        );
        assert_eq!(programmed.code, Some(0), "{flavor:?}: {programmed:?}");
        let (live, compiled) = (ask(&["--kernel"]), ask(&[]));
        assert_eq!(live, compiled, "{flavor:?}");
        assert_eq!(live.len(), lines.lines().count(), "{flavor:?}");
    }
}

#[test]
fn the_live_ipvs_answers_as_the_compiled_one() -> Result<(), GuestError> {
    guest::inside("the_live_ipvs_answers_as_the_compiled_one", || {
        for args in [
            "link set lo up",
            "address add 192.168.50.11/32 dev lo",
            "address add fd00:50::11/128 dev lo",
        ] {
            let ended = run(Command::new("ip").args(args.split(' ')));
            assert_eq!(ended.code, Some(0), "ip {args}: {ended:?}");
        }
        let manifests = manifests(true);
        let file = manifests.0.path().join("questions.jsonl");
        std::fs::write(&file, QUESTIONS.join("\n")).unwrap();
        let flags = ["--backend=ipvs", "--iptables-flavor=legacy", "--cluster-cidr=10.244.0.0/16"];
        let ask = |more: &[&str]| {
            let ended = run(telaio()
                .args(["trace", &manifests.source(), "--node=node-a", "--batch"])
                .arg(&file)
                .args(flags)
                .args(more));
            assert_eq!(ended.code, Some(0), "{ended:?}");
            answers(&ended).iter().map(fate).collect::<Vec<_>>()
        };
        let before = ask(&["--kernel"]);
        assert!(before.iter().all(|it| *it == left("none")), "nothing is there yet: {before:?}");
        let state = TempDir::new().unwrap();
        let programmed = run(telaio()
            .args(["run", &manifests.source(), "--node=node-a", "--once", "--state-dir"])
            .arg(state.path())
            .args(flags));
        assert_eq!(programmed.code, Some(0), "{programmed:?}");
        let (live, compiled) = (ask(&["--kernel"]), ask(&[]));
        assert_eq!(live, compiled);
        let verdicts: BTreeSet<&str> =
            live.iter().filter_map(|it| it["verdict"].as_str()).collect();
        assert_eq!(verdicts, ["dnat", "drop", "none", "reject"].into());
    })
}

#[test]
fn whether_the_kernel_has_ipvs_is_said() {
    let namespace = Namespace::new("no-ipvs");
    let ended = namespace.run(telaio().args([
        "trace",
        "--kernel",
        "--backend=ipvs",
        "--node=node-a",
        "--output=json",
        "--from=203.0.113.5",
        "--to=10.96.0.10:80",
    ]));
    if namespace.0.run(|| Ipvs::open().unwrap().is_some()).unwrap() {
        assert_eq!(ended.code, Some(0), "{ended:?}");
        assert_eq!(fate(&serde_json::from_str(&ended.stdout).unwrap()), left("none"));
    } else {
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(1), ""), "{ended:?}");
        assert!(ended.stderr.contains("this kernel has no IPVS"), "{ended:?}");
    }
}

#[test]
fn the_live_rules_need_no_source() {
    let namespace = Namespace::new("alone");
    let ended = namespace.run(telaio().args([
        "trace",
        "--kernel",
        "--backend=nftables",
        "--node=node-a",
        "--output=json",
        "--from=203.0.113.5",
        "--to=10.96.0.10:80",
    ]));
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(fate(&serde_json::from_str(&ended.stdout).unwrap()), left("none"));
}

#[test]
fn a_node_whose_rules_nobody_may_read_is_said() {
    let namespace = Namespace::new("nobody");
    // Without any privilege, in a namespace of the user's own making.
    let mut command = telaio();
    let args = ["trace", "--kernel", "--backend=nftables", "--node=node-a", "--from=203.0.113.5"];
    command.args(args).arg("--to=10.96.0.10:80");
    let mut unprivileged = Command::new("setpriv");
    unprivileged
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--bounding-set=-all"])
        .arg(command.get_program())
        .args(command.get_args());
    let ended = namespace.run(&mut unprivileged);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("root") || ended.stderr.contains("CAP_NET_ADMIN"), "{ended:?}");
}
