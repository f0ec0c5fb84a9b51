//! `docs/seeds.md` is true: every place that it names exists, and every name of the seed documents
//! has a place.

#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use std::path::{Path, PathBuf};

/// Everything that the seed documents name: components, interfaces, methods. The table must have
/// each, in its document's section.
const NAMES: &[(&str, &[&str])] = &[
    (
        "KPNG's iptables backend",
        &[
            "Backend",
            "Backend.Sink",
            "Backend.BindFlags",
            "Backend.Setup",
            "Backend.Reset",
            "Backend.Sync",
            "Sink",
            "Decoder",
            "SetService",
            "DeleteService",
            "SetEndpoint",
            "DeleteEndpoint",
            "Setup",
            "WaitRequest",
            "Reset",
            "Sync",
            "filterreset",
            "Iptables",
            "IptablesImpl[protocol]",
            "sync()",
            "ServiceChangeTracker",
            "NewServiceChangeTracker",
            "EndpointChangeTracker",
            "serviceChanges",
            "endpointChanges",
            "Update",
            "Delete",
        ],
    ),
    (
        "KPNG's IPVS full-state backend",
        &[
            "init()",
            "Setup()",
            "IpvsController",
            "svcStore",
            "epStore",
            "handlers",
            "ipFamily",
            "IPTableInterface",
            "proxier",
            "ServiceInfo",
            "EndpointInfo",
            "ResourceInfo",
            "DiffStore",
            "client.ServiceEndpoints",
            "Operation",
            "NoOp",
            "Create",
            "Update",
            "Delete",
            "ServicePatch",
            "ServicePatch.apply",
            "EndpointPatch",
            "EndpointPatch.apply",
            "EndpointPatches",
            "EndpointPatches.apply",
            "PatchGroup",
            "generatePatchGroups",
            "Handler",
            "createService",
            "updateService",
            "deleteService",
            "createEndpoint",
            "updateEndpoint",
            "deleteEndpoint",
            "getServiceHandlers",
            "getEndpointHandlers",
        ],
    ),
    (
        "KPNG's Windows kernel full-state proxy",
        &[
            "HostComputeEndpoint",
            "HostComputeLoadBalancer",
            "HostComputeNetwork",
            "Endpoint",
            "LoadBalancer",
            "Network",
            "endpointStore",
            "loadBalancerStore",
            "PreRun",
            "Callback",
            "addServiceEndpointsForClusterIP",
            "addServiceEndpointsForNodePort",
            "programHostComputeObjects",
        ],
    ),
    (
        "Kudo's node and instance network",
        &[
            "setup_node",
            "SetupNodeRequest",
            "setup_iptables",
            "SetupIptablesRequest",
            "add_other_nodes",
            "NodeRequest",
            "NodeIp",
            "setup_instance",
            "SetupInstanceRequest",
            "interface_name",
            "namespace_name",
            "Port",
            "get_namespace_name",
            "new_node_in_cluster",
            "delete_node_in_cluster",
            "clean_node",
            "CleanNodeRequest",
            "clean_instance",
            "CleanInstanceRequest",
            "node",
            "instance",
            "utils",
        ],
    ),
    (
        "Flusso, an ingress controller",
        &[
            "main.rs",
            "Settings",
            "EventListener",
            "EventListener.new",
            "start_listening",
            "process_ingress",
            "remove_ingress",
            "resolve_service_ip",
            "IngressEvent",
            "Add",
            "Remove",
            "IngressProcessor",
            "IngressProcessor.new",
            "process_events",
            "LoadBalancer",
            "LoadBalancer.new",
            "select_backend",
            "add_backend",
            "remove_backend",
            "get_backends",
            "HttpProxy",
            "HttpProxy.new",
            "forward_request",
            "Cache",
            "Cache.new",
            "CacheEntry",
            "store",
            "retrieve",
            "clean_expired",
            "Router",
            "Router.new",
            "Route",
            "add_route",
            "get_backend",
        ],
    ),
];

/// The parts of the work that are still to come.
const TO_COME: &[&str] = &["C", "D", "E", "F", "H"];

#[derive(Debug, Clone)]
struct Row {
    section: String,
    term: String,
    place: String,
    symbols: Vec<String>,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The texts between backticks.
fn quoted(cell: &str) -> Vec<String> {
    cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

fn parse(text: &str) -> Vec<Row> {
    let mut section = String::new();
    let mut rows = Vec::new();
    for line in text.lines() {
        if let Some(title) = line.strip_prefix("## ") {
            title.clone_into(&mut section);
        }
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        if let ["", term, place, symbols, ""] = cells[..]
            && term != "in the document"
            && !term.starts_with("---")
        {
            let (term, place) = (term.to_owned(), place.to_owned());
            rows.push(Row { section: section.clone(), term, place, symbols: quoted(symbols) });
        }
    }
    rows
}

fn rows() -> Vec<Row> {
    parse(&std::fs::read_to_string(root().join("docs/seeds.md")).unwrap())
}

/// What is wrong with a row, if anything.
fn fault(row: &Row) -> Option<String> {
    if let Some(part) = row.place.strip_prefix("comes with ") {
        return (!TO_COME.contains(&part)).then(|| format!("there is no part {part}"));
    }
    let files = quoted(&row.place);
    let [file] = files.as_slice() else { return Some("needs one file".into()) };
    let Ok(source) = std::fs::read_to_string(root().join(file)) else {
        return Some(format!("there is no {file}"));
    };
    if row.symbols.is_empty() {
        return Some("names no symbol".into());
    }
    let missing = row.symbols.iter().find(|symbol| !defines(&source, symbol));
    missing.map(|symbol| format!("{file} does not define {symbol}"))
}

/// Whether a source defines `fn name`, `struct Name`, `enum Name`, `trait Name`, or has the enum
/// variant `variant Name`. Comments do not count.
fn defines(source: &str, symbol: &str) -> bool {
    let code = source.lines().map(str::trim).filter(|line| !line.starts_with("//"));
    let ends = |rest: &str| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_');
    match symbol.split_once(' ') {
        Some(("variant", name)) => {
            code.into_iter().any(|line| line.strip_prefix(name).is_some_and(ends))
        }
        Some(("fn" | "struct" | "enum" | "trait", _)) => code.into_iter().any(|line| {
            line.match_indices(symbol).any(|(at, _)| {
                let before = line[..at].chars().next_back();
                before.is_none_or(|c| c == ' ') && ends(&line[at + symbol.len()..])
            })
        }),
        _ => false,
    }
}

#[test]
fn every_landed_row_names_a_place_that_exists() {
    let rows = rows();
    let faults: Vec<String> = rows
        .iter()
        .filter_map(|row| fault(row).map(|fault| format!("{}: {fault}", row.term)))
        .collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(rows.iter().any(|row| row.place.starts_with('`')), "no row has landed");
}

#[test]
fn every_name_of_the_documents_has_a_row_in_its_section() {
    let rows = rows();
    for (section, names) in NAMES {
        for name in *names {
            let found = rows
                .iter()
                .any(|row| row.section == *section && quoted(&row.term).iter().any(|n| n == name));
            assert!(found, "{section}: {name} has no row");
        }
    }
}

#[test]
fn a_wrong_row_is_found() {
    let good = parse(
        "## Section\n| `Sink` | `crates/reconcile/src/kpng/sink.rs` | `trait Sink` |\n\
         | `X` | comes with C | `struct X` |\n",
    );
    assert_eq!(good.len(), 2);
    assert!(good.iter().all(|row| fault(row).is_none()));
    for wrong in [
        "| `a` | `crates/reconcile/src/kpng/nothing.rs` | `trait Sink` |",
        "| `a` | `crates/reconcile/src/kpng/sink.rs` | `trait Sin` |",
        "| `a` | `crates/reconcile/src/kpng/sink.rs` | `fn Sink` |",
        "| `a` | `crates/reconcile/src/kpng/sink.rs` | `variant Nowhere` |",
        "| `a` | `crates/reconcile/src/kpng/sink.rs` | Sink |",
        "| `a` | `crates/reconcile/src/kpng/sink.rs` | `Sink` |",
        "| `a` | somewhere | `trait Sink` |",
        "| `a` | comes with Z | `trait Sink` |",
    ] {
        let rows = parse(wrong);
        assert_eq!(rows.len(), 1, "{wrong}");
        assert!(fault(&rows[0]).is_some(), "{wrong}");
    }
}

#[test]
fn a_definition_in_a_comment_or_a_longer_name_does_not_count() {
    assert!(defines("pub fn set_service(&mut self) {}", "fn set_service"));
    assert!(defines("    Create {", "variant Create"));
    assert!(!defines("// fn set_service(", "fn set_service"));
    assert!(!defines("fn set_services()", "fn set_service"));
    assert!(!defines("fn reset_service()", "fn service"));
    assert!(!defines("    Created,", "variant Create"));
}
