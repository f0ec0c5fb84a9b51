//! Every row of the expectations on Windows' objects, by the tracer: there is no Windows here to send packets to.
//!
//! HNS leaves alone what it has no load balancer for, so a cell that says neither who answers nor "unreachable"
//! cannot be. Whose address an endpoint sees is one answer for all endpoints of a load balancer.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use serde_json::{Value, json};
use telaio_testkit::netns::{Family, Host, SERVER_PORT, node_a_gateway};

use crate::expectations::{Case, Expected, SeenAs, sections};
use crate::fixtures;
use crate::manifest::nodes_yaml;
use crate::support::{Manifests, run_args};

/// What the tracer says of a case: who answers, and whether they see the node.
fn answers(case: &Case) -> (BTreeSet<String>, Option<bool>) {
    let Expected::Answers(answers) = &case.expected else { return (BTreeSet::new(), None) };
    let family = if case.to.is_ipv4() { Family::V4 } else { Family::V6 };
    let address = |name: &String| {
        let (host, port) = match name.split_once("-9000") {
            Some((host, _)) => (host, 9000),
            None => (name.as_str(), SERVER_PORT),
        };
        let host = Host::named(host).unwrap_or_else(|| panic!("{host}"));
        SocketAddr::new(host.address(family), port).to_string()
    };
    let by_node = answers.values().any(|seen| *seen == SeenAs::Node);
    assert!(answers.values().all(|seen| (*seen == SeenAs::Node) == by_node), "{}", case.row);
    (answers.keys().map(address).collect(), Some(by_node))
}

fn said(answer: &Value) -> (BTreeSet<String>, Option<bool>) {
    let endpoints = answer["endpoints"].as_array().unwrap();
    let endpoints = endpoints.iter().map(|it| it.as_str().unwrap().to_owned()).collect();
    match answer["verdict"].as_str() {
        Some("dnat") => (endpoints, answer["masquerade"].as_bool()),
        _ => (BTreeSet::new(), None),
    }
}

/// The nodes, with every address of node-a: the tracer knows no others.
fn nodes() -> String {
    let mut nodes = nodes_yaml();
    let node_b = nodes.rfind("---").unwrap();
    let gateway = Family::ALL.map(|family| {
        format!("    - {{type: ExternalIP, address: \"{}\"}}\n", node_a_gateway(family))
    });
    nodes.insert_str(node_b, &gateway.concat());
    nodes
}

#[test]
fn every_row_of_the_expectations_holds() {
    let manifests = Manifests::empty();
    manifests.write("nodes.yaml", &nodes());
    let services = fixtures::all();
    for service in &services {
        manifests.write(&format!("{}.yaml", service.name), &service.yaml());
    }
    let questions = tempfile::NamedTempFile::new().unwrap();
    let mut wrong = Vec::new();
    for section in sections("hcn", &services) {
        let lines = section.cases.iter().map(|case| {
            let from = case.client.unwrap_or_else(|| {
                // A node's own, which one does not matter.
                Host::NodeA.address(if case.to.is_ipv4() { Family::V4 } else { Family::V6 })
            });
            let proto = format!("{:?}", case.transport).to_lowercase();
            json!({"from": from, "to": case.to, "proto": proto}).to_string()
        });
        std::fs::write(questions.path(), lines.collect::<Vec<_>>().join("\n")).unwrap();
        let batch = format!("--batch={}", questions.path().display());
        let source = manifests.source();
        let args = ["trace", "--backend=hcn", "--node=node-a", &source, &batch].into_iter();
        let ended = run_args(args.chain(section.flags.iter().map(String::as_str)));
        assert_eq!(ended.code, Some(0), "{ended:?}");
        let traced: Vec<Value> =
            ended.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(traced.len(), section.cases.len());
        for (case, answer) in section.cases.iter().zip(&traced) {
            assert!(
                matches!(case.expected, Expected::Answers(_) | Expected::Unreachable),
                "{}: HNS neither refuses nor drops",
                case.row
            );
            if said(answer) != answers(case) {
                let expected = answers(case);
                wrong.push(format!("{:?} {}: {answer}, not {expected:?}", section.flags, case.row));
            }
        }
    }
    assert!(wrong.is_empty(), "{} rows:\n{}", wrong.len(), wrong.join("\n"));
}
