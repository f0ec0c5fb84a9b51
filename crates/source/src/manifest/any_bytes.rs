//! What must hold for any bytes that somebody calls a manifest.

use std::net::IpAddr;

use telaio_model::Object;

use super::tree::check_fast_reader;
use super::{Context, FileContent, Format, read_file_content};
use crate::intern::Interner;

/// Reads `bytes` in both formats and checks what must hold whatever they are.
///
/// This is the body of the fuzz target `manifests`. The crate's tests run it on mutated manifests.
///
/// # Panics
///
/// When something does not hold.
pub fn check_any_bytes(bytes: &[u8]) {
    for format in [Format::Yaml, Format::Json] {
        let read = || {
            let ctx = Context::directory(Interner::default());
            read_file_content("any", bytes, format, &ctx)
        };
        let content = read();
        check(&content);
        assert_eq!(content, read(), "the same bytes gave something else");
    }
    if let Ok(text) = std::str::from_utf8(bytes) {
        check_fast_reader(text);
    }
}

fn check(content: &FileContent) {
    for problem in &content.problems {
        assert!(problem.origin.starts_with("any"), "{problem}");
        assert!(!problem.message.is_empty(), "{problem:?}");
        assert!(problem.message.len() < 4_096, "a message is a whole file: {}", problem.origin);
    }
    for found in &content.objects {
        assert!(found.line >= 1);
        let key = found.object.key();
        assert!(!key.name.is_empty() && key.name.len() <= 253, "{key}");
        assert!(found.allocation.is_none() || matches!(found.object, Object::Service(_)));
        for ip in addresses(&found.object) {
            assert!(!matches!(ip, IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some()), "{ip}");
        }
        for port in ports(&found.object) {
            assert_ne!(port, 0, "{key}");
        }
    }
}

fn addresses(object: &Object) -> Vec<IpAddr> {
    match object {
        Object::Service(service) => service
            .cluster_ips
            .iter()
            .chain(&service.external_ips)
            .copied()
            .chain(service.load_balancer.iter().map(|ingress| ingress.ip))
            .collect(),
        Object::EndpointSlice(slice) => slice.endpoints.iter().map(|e| e.address).collect(),
        Object::Pod(pod) => pod.ips.clone(),
        Object::Node(node) => node.addresses.iter().map(|address| address.ip).collect(),
        _ => Vec::new(),
    }
}

fn ports(object: &Object) -> Vec<u16> {
    match object {
        Object::Service(service) => {
            let ports = service.ports.iter();
            ports.flat_map(|port| [Some(port.port), port.node_port]).flatten().collect()
        }
        Object::EndpointSlice(slice) => slice.ports.iter().filter_map(|port| port.port).collect(),
        Object::Pod(pod) => pod.ports.iter().map(|port| port.container_port).collect(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SEEDS: [&str; 3] = [
        include_str!("testdata/every-kind.yaml"),
        include_str!("testdata/list.json"),
        include_str!("testdata/odd-forms.yaml"),
    ];

    #[test]
    fn the_seeds_are_good_manifests() {
        let ctx = Context::directory(Interner::default());
        for (seed, format, objects) in
            [(SEEDS[0], Format::Yaml, 12), (SEEDS[1], Format::Json, 2), (SEEDS[2], Format::Yaml, 3)]
        {
            let content = read_file_content("seed", seed.as_bytes(), format, &ctx);
            assert_eq!(content.problems, []);
            assert_eq!(content.objects.len(), objects);
            check_any_bytes(seed.as_bytes());
        }
    }

    /// Pieces that mean something to one parser or the other.
    fn piece() -> impl Strategy<Value = Vec<u8>> {
        let known = prop::sample::select(vec![
            "\n",
            " ",
            "\t",
            "\r",
            "---\n",
            "...\n",
            "- ",
            ": ",
            "&a ",
            "*a",
            "!!str ",
            "!x ",
            "|\n",
            ">\n",
            "|2-\n",
            "\"",
            "'",
            "{",
            "}",
            "[",
            "]",
            ",",
            "#",
            "%",
            "@",
            "`",
            "? ",
            "<<: ",
            "null",
            "~",
            "true",
            "0",
            "65536",
            "-1",
            "1e9",
            "0x10",
            "::ffff:1.2.3.4",
            "\\u0000",
            "\\ud800",
            "\u{feff}",
            "\u{2028}",
            "\u{85}",
            "é",
        ]);
        prop_oneof![
            4 => known.prop_map(|text| text.as_bytes().to_vec()),
            1 => prop::collection::vec(any::<u8>(), 0..4),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1_500))]

        #[test]
        fn any_bytes_get_an_answer(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            check_any_bytes(&bytes);
        }

        #[test]
        fn any_text_gets_an_answer(pieces in prop::collection::vec(piece(), 0..60)) {
            check_any_bytes(&pieces.concat());
        }

        #[test]
        fn mutated_manifests_get_an_answer(
            seed in prop::sample::select(SEEDS.to_vec()),
            edits in prop::collection::vec((any::<prop::sample::Index>(), 0..20usize, piece()), 1..6),
        ) {
            let mut bytes = seed.as_bytes().to_vec();
            for (at, cut, piece) in edits {
                let at = at.index(bytes.len().max(1)).min(bytes.len());
                let end = (at + cut).min(bytes.len());
                bytes.splice(at..end, piece);
            }
            check_any_bytes(&bytes);
        }
    }
}
