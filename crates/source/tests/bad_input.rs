//! Bad input: each kind of it gets a clear message, and the valid rest is served.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "helpers of tests")]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use telaio_model::{Batch, ObjectChange};
use telaio_source::dir::{DirOptions, DirSource};
use telaio_source::{Problem, Status};
use tempfile::TempDir;

/// A good object that lies beside every bad one.
const GOOD: &str = "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: good\n";

struct Loaded {
    dir: TempDir,
    batch: Batch,
    problems: Vec<Problem>,
}

impl Loaded {
    /// Problems as a person reads them, with the paths cut to those within the directory.
    fn messages(&self) -> Vec<String> {
        let prefix = format!("{}/", self.dir.path().display());
        self.problems.iter().map(|problem| problem.to_string().replace(&prefix, "")).collect()
    }

    fn objects(&self) -> Vec<String> {
        self.batch.changes.iter().map(|change| change.object_ref().to_string()).collect()
    }
}

fn write(root: &Path, files: &[(&str, &[u8])]) {
    for (name, bytes) in files {
        let path = root.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }
}

fn load(files: &[(&str, &[u8])]) -> Loaded {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), files);
    write(dir.path(), &[("good.yaml", GOOD.as_bytes())]);
    load_dir(dir, DirOptions::default())
}

fn load_dir(dir: TempDir, options: DirOptions) -> Loaded {
    let status = Arc::new(Status::default());
    let batch = DirSource::new(dir.path(), options, status.clone()).load_once();
    assert!(batch.synced);
    let problems = status.problems();
    Loaded { dir, batch, problems }
}

/// Loads one bad file; its only problem reads as given, and the good file is served.
#[track_caller]
fn refuses(name: &str, bytes: &[u8], message: &str) {
    let loaded = load(&[(name, bytes)]);
    assert_eq!(loaded.messages(), [message]);
    assert_eq!(loaded.objects(), ["Namespace good"]);
}

fn service(spec: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata:\n  name: web\n  namespace: shop\nspec:\n{spec}"
    )
}

fn slice(rest: &str) -> String {
    format!(
        "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  name: web-1\n\
         addressType: IPv4\n{rest}"
    )
}

#[test]
fn files_with_nothing_in_them_are_fine() {
    let loaded = load(&[
        ("comments.yaml", b"# nothing here\n# yet\n"),
        ("separators.yaml", b"---\n---\n# nothing\n---\n"),
        ("null.yaml", b"null\n"),
        ("notes.txt", b"not: [a manifest"),
        (".hidden.yaml", b"not: [a manifest"),
    ]);
    assert_eq!(loaded.messages(), [""; 0]);
    assert_eq!(loaded.objects(), ["Namespace good"]);
}

#[test]
fn an_empty_file_is_more_likely_cut_off_than_meant() {
    for (name, bytes) in [("a.yaml", &b""[..]), ("a.json", b""), ("b.json", b" \n\t\n")] {
        let message = format!("{name}:1: is empty; write a manifest, or remove the file");
        refuses(name, bytes, &message);
    }
}

#[test]
fn a_small_file_cannot_become_large_by_aliases() {
    let long = "x".repeat(100_000);
    let aliases: Vec<String> = (0..9_000).map(|number| format!("  k{number}: *a")).collect();
    let aliases = aliases.join("\n");
    let bomb = format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: bomb\n  annotations:\n    z: &a {long}\n\
         data:\n{aliases}"
    );
    let loaded = load(&[("bomb.yaml", bomb.as_bytes())]);
    assert_eq!(loaded.messages().len(), 1);
    assert!(loaded.messages()[0].contains("aliases make more than"), "{:?}", loaded.messages());
    assert_eq!(loaded.objects(), ["Namespace good"]);
}

#[test]
fn a_file_of_100_mb_is_refused_unread() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), &[("good.yaml", GOOD.as_bytes())]);
    // A sparse file: nobody reads it, so it need not be there.
    let large = std::fs::File::create(dir.path().join("large.yaml")).unwrap();
    large.set_len(100 * 1024 * 1024).unwrap();
    let loaded = load_dir(dir, DirOptions::default());
    assert_eq!(
        loaded.messages(),
        ["large.yaml: has 104857600 bytes and is not read; split it into files of at most 64 MiB"]
    );
    assert_eq!(loaded.objects(), ["Namespace good"]);
}

#[test]
fn binary_files_are_no_texts() {
    refuses(
        "binary.yaml",
        b"# a\n\x7fELF\x00\x01\x02",
        "binary.yaml:2: has a NUL byte, so it is not a text; remove it or rename the file",
    );
    refuses(
        "latin1.yaml",
        b"# caf\xe9\nkind: Service\n",
        "latin1.yaml:1: is not UTF-8, so it is not a text; save it as UTF-8",
    );
    refuses("utf16.yaml", b"\xff\xfek\x00i\x00", "utf16.yaml:1: is UTF-16; save it as UTF-8");
    refuses(
        "image.json",
        b"\x89PNG\r\n\x1a\n\x00\x00",
        "image.json:3: has a NUL byte, so it is not a text; remove it or rename the file",
    );
}

#[test]
fn texts_that_are_no_manifests_are_told_apart() {
    refuses(
        "prose.yaml",
        b"just some words\n",
        "prose.yaml:1: is not a manifest; write a mapping with apiVersion, kind and metadata",
    );
    refuses(
        "list.yaml",
        b"# a list\n- a\n- b\n",
        "list.yaml:2: is not a manifest; write a mapping with apiVersion, kind and metadata",
    );
    refuses(
        "values.yaml",
        b"replicas: 2\n",
        "values.yaml:1: kind: is missing; write what it is, such as kind: Service",
    );
    refuses(
        "version.yaml",
        b"kind: Service\nmetadata: {name: web}\n",
        "version.yaml:1: Service default/web: apiVersion: is missing; write it, such as \
         apiVersion: v1",
    );
}

#[test]
fn broken_syntax_names_the_line() {
    refuses(
        "broken.yaml",
        b"apiVersion: v1\nkind: Service\nmetadata: {name: web\n",
        "broken.yaml:3: is not valid YAML: unclosed bracket '{'",
    );
    refuses(
        "broken.json",
        b"{\n  \"kind\": \"Service\",\n  oops\n}\n",
        "broken.json:3: is not valid JSON: key must be a string",
    );
    refuses(
        "twice.yaml",
        b"apiVersion: v1\nkind: Service\nkind: Service\n",
        "twice.yaml:3: the key \"kind\" is there twice; remove one",
    );
}

#[test]
fn one_broken_document_does_not_hide_the_others() {
    let text = format!("{GOOD}---\nkind: [\n---\n{}", GOOD.replace("good", "second"));
    let loaded = load(&[("three.yaml", text.replace("good", "first").as_bytes())]);
    assert_eq!(loaded.messages(), ["three.yaml:6: is not valid YAML: unclosed bracket '['"]);
    assert_eq!(loaded.objects(), ["Namespace first", "Namespace good", "Namespace second"]);
}

#[test]
fn a_value_of_the_wrong_type_is_named_with_its_line() {
    for (spec, line, field, message) in [
        ("  ports: http\n", 7, "spec.ports", "the text \"http\" does not fit here; write a list"),
        (
            "  ports:\n  - port: http\n",
            8,
            "spec.ports[0].port",
            "the text \"http\" does not fit here; write a whole number",
        ),
        (
            "  ports:\n  - port: \"80\"\n",
            8,
            "spec.ports[0].port",
            "\"80\" is a text; write the number without quotes",
        ),
        (
            "  ports:\n  - port: 80.5\n",
            8,
            "spec.ports[0].port",
            "the number 80.5 does not fit here; write a whole number",
        ),
        (
            "  ports: [{port: 80}]\n  selector:\n    app.kubernetes.io/name: 5\n",
            9,
            "spec.selector[app.kubernetes.io/name]",
            "the number 5 is not a text; write it in quotes, \"5\"",
        ),
        (
            "  ports: [{port: 80}]\n  publishNotReadyAddresses: maybe\n",
            8,
            "spec.publishNotReadyAddresses",
            "the text \"maybe\" does not fit here; write true or false",
        ),
    ] {
        refuses(
            "web.yaml",
            service(spec).as_bytes(),
            &format!("web.yaml:{line}: Service shop/web: {field}: {message}"),
        );
    }
    refuses(
        "node.json",
        b"{\"apiVersion\": \"v1\", \"kind\": \"Node\",\n \"metadata\": {\"name\": \"a\"},\n \
          \"spec\": {\n  \"podCIDRs\": {}}}",
        "node.json:4: Node a: spec.podCIDRs: a mapping does not fit here; write a list",
    );
}

#[test]
fn ports_outside_of_the_range_are_refused() {
    for port in ["0", "65536", "-1", "99999999999999999999"] {
        let loaded =
            load(&[("web.yaml", service(&format!("  ports:\n  - port: {port}\n")).as_bytes())]);
        let messages = loaded.messages();
        let start = "web.yaml:8: Service shop/web: spec.ports[0].port: ";
        assert!(messages.len() == 1 && messages[0].starts_with(start), "{messages:?}");
        assert!(messages[0].contains(port), "{messages:?}");
        assert_eq!(loaded.objects(), ["Namespace good"]);
    }
    refuses(
        "slice.yaml",
        slice("ports:\n- port: 65536\nendpoints: []\n").as_bytes(),
        "slice.yaml:7: EndpointSlice default/web-1: ports[0].port: 65536 is not a port; write a \
         number from 1 to 65535",
    );
    refuses(
        "web.yaml",
        service(
            "  type: NodePort\n  clusterIP: 10.0.0.1\n  ports: [{port: 80, nodePort: 70000}]\n",
        )
        .as_bytes(),
        "web.yaml:9: Service shop/web: spec.ports[0].nodePort: 70000 is not a port; write a number \
         from 1 to 65535",
    );
}

#[test]
fn addresses_that_are_none_are_refused() {
    refuses(
        "web.yaml",
        service("  clusterIP: 10.96.0.300\n  ports: [{port: 80}]\n").as_bytes(),
        "web.yaml:7: Service shop/web: spec.clusterIP: \"10.96.0.300\" is not an IP address",
    );
    refuses(
        "web.yaml",
        service("  clusterIP: 10.96.0.3\n  externalIPs:\n  - 224.0.0.1\n  ports: [{port: 80}]\n")
            .as_bytes(),
        "web.yaml:9: Service shop/web: spec.externalIPs[0]: 224.0.0.1 is a multicast address, which \
         cannot be used here",
    );
    refuses(
        "slice.yaml",
        slice("endpoints:\n- addresses: [10.0.0.1]\n- addresses: [fd00::1]\n").as_bytes(),
        "slice.yaml:8: EndpointSlice default/web-1: endpoints[1].addresses[0]: fd00::1 is not of \
         the slice's addressType IPv4; put it into a slice of its own",
    );
    refuses(
        "slice.yaml",
        slice("endpoints:\n- conditions: {ready: true}\n").as_bytes(),
        "slice.yaml:7: EndpointSlice default/web-1: endpoints[0].addresses: an endpoint needs at \
         least one address",
    );
}

#[test]
fn mapped_addresses_are_refused_and_the_right_form_is_told() {
    refuses(
        "web.yaml",
        service("  clusterIPs:\n  - ::ffff:10.96.0.1\n  ports: [{port: 80}]\n").as_bytes(),
        "web.yaml:8: Service shop/web: spec.clusterIPs[0]: \"::ffff:10.96.0.1\" is an IPv4-mapped \
         IPv6 address; write it as 10.96.0.1",
    );
}

#[test]
fn networks_that_are_none_are_refused() {
    refuses(
        "web.yaml",
        service(
            "  clusterIP: 10.0.0.1\n  type: LoadBalancer\n  loadBalancerSourceRanges:\n  - ' 10.0.0.0/8 '\n  - 10.0.0.0/33\n  \
             ports: [{port: 80}]\n",
        )
        .as_bytes(),
        "web.yaml:11: Service shop/web: spec.loadBalancerSourceRanges[1]: \"10.0.0.0/33\" is not a \
         CIDR such as 10.0.0.0/8 or fd00::/64",
    );
    refuses(
        "node.yaml",
        b"apiVersion: v1\nkind: Node\nmetadata: {name: a}\nspec:\n  podCIDR: 10.244.0.0\n",
        "node.yaml:5: Node a: spec.podCIDR: \"10.244.0.0\" is not a CIDR such as 10.0.0.0/8 or \
         fd00::/64",
    );
}

#[test]
fn unknown_kinds_are_named_and_usual_companions_are_skipped() {
    refuses(
        "odd.yaml",
        b"apiVersion: example.com/v1\nkind: Gizmo\nmetadata: {name: a, namespace: b}\n",
        "odd.yaml:2: Gizmo b/a: kind: the kind \"Gizmo\" of \"example.com/v1\" is not known; remove \
         it from the directory if it is right elsewhere",
    );
    refuses(
        "case.yaml",
        b"apiVersion: v1\nkind: service\nmetadata: {name: web}\n",
        "case.yaml:2: service default/web: kind: the kind \"service\" of \"v1\" is not known; write \
         Service",
    );
    refuses(
        "old.yaml",
        b"apiVersion: extensions/v1beta1\nkind: Ingress\nmetadata: {name: web}\n",
        "old.yaml:1: Ingress default/web: apiVersion: \"extensions/v1beta1\" is not read for the \
         kind Ingress; write networking.k8s.io/v1",
    );
    refuses(
        "ours.yaml",
        b"apiVersion: telaio.dev/v1\nkind: Gateway\nmetadata: {name: web}\n",
        "ours.yaml:2: Gateway default/web: kind: the kind \"Gateway\" of \"telaio.dev/v1\" is not \
         known; remove it from the directory if it is right elsewhere",
    );
    let deployment = b"apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\n";
    let secret = b"apiVersion: v1\nkind: Secret\nmetadata: {name: a}\ntype: Opaque\ndata: {a: 5}\n";
    let loaded = load(&[("deployment.yaml", deployment), ("secret.yaml", secret)]);
    assert_eq!(loaded.messages(), [""; 0]);
}

#[test]
fn an_object_declared_twice_stands_once() {
    let first = service("  clusterIP: 10.0.0.1\n  ports: [{port: 80}]\n");
    let second = service("  clusterIP: 10.0.0.2\n  ports: [{port: 80}]\n");
    let loaded = load(&[("b.yaml", second.as_bytes()), ("a.yaml", first.as_bytes())]);
    let a = loaded.dir.path().join("a.yaml");
    let [problem] = &loaded.problems[..] else { panic!("{:?}", loaded.problems) };
    assert_eq!(problem.origin, format!("{}:1", loaded.dir.path().join("b.yaml").display()));
    assert_eq!(problem.object.as_deref(), Some("Service shop/web"));
    assert_eq!(
        problem.message,
        format!("is declared in {}:1 already; remove one of the two", a.display())
    );
    assert_eq!(cluster_ip(&loaded.batch), "10.0.0.1");
}

#[test]
fn an_object_declared_twice_in_one_file_stands_once() {
    let text = format!("{GOOD}---\n{GOOD}").replace("good", "same");
    let loaded = load(&[("same.yaml", text.as_bytes())]);
    assert_eq!(
        loaded.messages(),
        ["same.yaml:6: Namespace same: metadata.name: is declared in same.yaml:1 already; remove \
          one of the two"]
    );
    assert_eq!(loaded.objects(), ["Namespace good", "Namespace same"]);
}

#[test]
fn two_services_cannot_have_one_cluster_address() {
    let web = service("  clusterIP: 10.0.0.1\n  ports: [{port: 80}]\n");
    let api = web.replace("name: web", "name: api");
    let older = web
        .replace("name: web", "name: older\n  creationTimestamp: 2020-01-01T00:00:00Z")
        .replace("10.0.0.1", "10.0.0.9");
    let newer = web.replace("name: web", "name: newer").replace("10.0.0.1", "10.0.0.9");
    let loaded = load(&[
        ("a.yaml", api.as_bytes()),
        ("b.yaml", web.as_bytes()),
        ("c.yaml", newer.as_bytes()),
        ("d.yaml", older.as_bytes()),
    ]);
    assert_eq!(
        loaded.messages(),
        [
            "b.yaml:1: Service shop/web: spec.clusterIPs[0]: 10.0.0.1 is the cluster address of \
             Service shop/api (a.yaml:1) already; choose another",
            "c.yaml:1: Service shop/newer: spec.clusterIPs[0]: 10.0.0.9 is the cluster address of \
             Service shop/older (d.yaml:1) already; choose another",
        ]
    );
    assert_eq!(loaded.objects(), ["Service shop/api", "Service shop/older", "Namespace good"]);
}

#[test]
fn two_services_cannot_have_one_node_port_of_a_protocol() {
    let text = |name: &str, ip: &str, protocol: &str| {
        service(&format!(
            "  type: NodePort\n  clusterIP: {ip}\n  ports: [{{port: 80, protocol: {protocol}, nodePort: 30080}}]\n"
        ))
        .replace("name: web", &format!("name: {name}"))
    };
    let loaded = load(&[
        ("a.yaml", text("a", "10.0.0.1", "TCP").as_bytes()),
        ("b.yaml", text("b", "10.0.0.2", "TCP").as_bytes()),
        ("c.yaml", text("c", "10.0.0.3", "UDP").as_bytes()),
    ]);
    assert_eq!(
        loaded.messages(),
        ["b.yaml:1: Service shop/b: spec.ports[0].nodePort: 30080/TCP is a node port of Service \
          shop/a (a.yaml:1) already; choose another"]
    );
    assert_eq!(loaded.objects(), ["Service shop/a", "Service shop/c", "Namespace good"]);
}

#[test]
fn a_network_without_a_free_address_is_named() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["a", "b", "c"] {
        let text =
            service("  ports: [{port: 80}]\n").replace("name: web", &format!("name: {name}"));
        write(dir.path(), &[(&format!("{name}.yaml"), text.as_bytes())]);
    }
    let options =
        DirOptions { service_cidrs: vec!["10.0.0.0/30".parse().unwrap()], ..DirOptions::default() };
    let loaded = load_dir(dir, options);
    assert_eq!(
        loaded.messages(),
        ["c.yaml:1: Service shop/c: spec.clusterIP: no address is left in 10.0.0.0/30; add a \
          network to --service-cidr"]
    );
    assert_eq!(loaded.objects(), ["Service shop/a", "Service shop/b"]);
}

#[test]
fn bombs_are_refused() {
    let mut aliases = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for i in 1..12 {
        let previous = format!("*a{}, ", i - 1).repeat(10);
        writeln!(aliases, "a{i}: &a{i} [{previous}]").unwrap();
    }
    refuses(
        "aliases.yaml",
        aliases.as_bytes(),
        "aliases.yaml:4: aliases make more than 10000 values; write them out",
    );
    let deep = format!("{}{}", "[".repeat(70), "]".repeat(70));
    refuses("deep.yaml", deep.as_bytes(), "deep.yaml:1: is nested deeper than 64 levels");
    let deep = "[".repeat(100_000);
    refuses(
        "deep.yaml",
        deep.as_bytes(),
        "deep.yaml:1: is not valid YAML: recursion limit exceeded",
    );
    let deep = format!("{deep}{}", "]".repeat(100_000));
    refuses(
        "deep.json",
        deep.as_bytes(),
        "deep.json:1: is not valid JSON: recursion limit exceeded",
    );
    refuses(
        "recursive.yaml",
        b"apiVersion: v1\nkind: &a [*a]\n",
        "recursive.yaml:2: an alias stands within what it stands for",
    );
}

#[test]
fn problems_of_one_file_are_told_up_to_a_bound() {
    let ports: String = (0..500).map(|_| "  - port: 0\n").collect();
    let text = service(&format!("  clusterIP: 10.0.0.1\n  ports:\n{ports}"));
    let loaded = load(&[("web.yaml", text.as_bytes())]);
    assert_eq!(loaded.problems.len(), 101);
    assert_eq!(loaded.messages().last().unwrap(), "web.yaml: 900 more problems are not listed");
}

#[test]
fn a_missing_root_is_a_problem_and_not_an_empty_directory() {
    let dir = tempfile::tempdir().unwrap();
    let status = Arc::new(Status::default());
    let root = dir.path().join("no/such");
    let batch = DirSource::new(&root, DirOptions::default(), status.clone()).load_once();
    assert_eq!(batch, Batch::default());
    let [problem] = &status.problems()[..] else { panic!("{:?}", status.problems()) };
    assert!(problem.to_string().starts_with(&format!("{}: cannot be read: ", root.display())));
}

#[cfg(unix)]
#[test]
fn links_that_lead_nowhere_or_back_are_no_trap() {
    use std::os::unix::fs::symlink;
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), &[("sub/good.yaml", GOOD.as_bytes())]);
    symlink("../sub", dir.path().join("sub/again")).unwrap();
    symlink("loop.yaml", dir.path().join("loop.yaml")).unwrap();
    symlink("nowhere.yaml", dir.path().join("dangling.yaml")).unwrap();
    symlink("/dev/zero", dir.path().join("endless.yaml")).unwrap();
    let loaded = load_dir(dir, DirOptions::default());
    let messages = loaded.messages();
    assert_eq!(messages[0], "dangling.yaml: is a link to something that is not there");
    assert!(messages[1].starts_with("loop.yaml: cannot be read: "), "{messages:?}");
    assert_eq!(messages.len(), 2);
    assert_eq!(loaded.objects(), ["Namespace good"]);
}

#[test]
fn the_root_can_be_a_single_file_of_any_name() {
    let dir = tempfile::tempdir().unwrap();
    let file: PathBuf = dir.path().join("manifest");
    std::fs::write(&file, GOOD).unwrap();
    let status = Arc::new(Status::default());
    let batch = DirSource::new(&file, DirOptions::default(), status.clone()).load_once();
    assert_eq!(batch.changes.len(), 1);
    assert_eq!(status.problems(), []);
}

fn cluster_ip(batch: &Batch) -> String {
    let mut ips = batch.changes.iter().filter_map(|change| match change {
        ObjectChange::Set(telaio_model::Object::Service(service)) => {
            service.cluster_ips.first().map(ToString::to_string)
        }
        _ => None,
    });
    ips.next().unwrap()
}
