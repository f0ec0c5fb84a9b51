//! Every annotation that does something is asked for by a test that sends real requests.

use std::fmt::Write as _;

use telaio_gateway::annotations::GROUPS;

/// Those that no request can tell apart, and why.
const NOTHING_TO_SEE: &[(&str, &str)] = &[
    ("relative-redirects", "it changes nothing"),
    ("affinity-mode", "it changes nothing"),
    ("auth-secret-type", "there is one way to write users, and it is the usual one"),
    ("auth-keepalive", "it changes nothing"),
    ("auth-keepalive-requests", "it changes nothing"),
    ("auth-keepalive-timeout", "it changes nothing"),
    ("auth-keepalive-share-vars", "it changes nothing"),
];

#[test]
fn every_annotation_is_asked_for_by_a_test_with_requests() {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ingress");
    let mut tests = String::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.file_name().is_some_and(|name| name != "every.rs") {
            tests += &std::fs::read_to_string(path).unwrap();
        }
    }
    let is_asked = |name: &str| {
        [format!("\"{name}\""), format!("telaio.dev/{name}\""), format!("telaio.dev/{name}:")]
            .iter()
            .chain([&format!("kubernetes.io/{name}:")])
            .any(|written| tests.contains(written))
    };
    let mut wrong = String::new();
    let rows = GROUPS.iter().filter(|(heading, _)| *heading != "Taken and without effect");
    for row in rows.flat_map(|(_, rows)| *rows) {
        let excused = NOTHING_TO_SEE.iter().find(|(name, _)| *name == row.name);
        match (is_asked(row.name), excused) {
            (true, None) | (false, Some(_)) => {}
            (false, None) => writeln!(wrong, "{}: no test asks for it", row.name).unwrap(),
            (true, Some(_)) => writeln!(wrong, "{}: a test asks for it", row.name).unwrap(),
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    let known = |name: &str| GROUPS.iter().flat_map(|(_, rows)| *rows).any(|it| it.name == name);
    assert!(NOTHING_TO_SEE.iter().all(|(name, _)| known(name)));
}
