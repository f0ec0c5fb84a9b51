//! Every fuzz target compiles, with what it calls, and takes some bytes. They are a workspace of their own, whose engine is built
//! by `cargo xtask test --long` alone; here its macro makes a function of each.

#![allow(unused_attributes, missing_docs, reason = "they are written as programs of their own")]

// What they call the engine is us.
extern crate self as libfuzzer_sys;

/// The engine's macro: a function of the target's name.
#[macro_export]
macro_rules! fuzz_target {
    (|$bytes:ident: &[u8]| $body:expr) => {
        pub(crate) fn run($bytes: &[u8]) {
            let () = $body;
        }
    };
}

macro_rules! targets {
    ($($name:ident at $path:literal;)*) => {
        $(#[path = $path] mod $name;)*

        const TARGETS: &[(&str, fn(&[u8]))] = &[$((stringify!($name), $name::run)),*];
    };
}

targets! {
    annotations at "../../../fuzz/fuzz_targets/annotations.rs";
    forwarded at "../../../fuzz/fuzz_targets/forwarded.rs";
    h2 at "../../../fuzz/fuzz_targets/h2.rs";
    heads at "../../../fuzz/fuzz_targets/heads.rs";
    http_cache at "../../../fuzz/fuzz_targets/http_cache.rs";
    manifests at "../../../fuzz/fuzz_targets/manifests.rs";
    proxy_protocol at "../../../fuzz/fuzz_targets/proxy_protocol.rs";
    router at "../../../fuzz/fuzz_targets/router.rs";
    template at "../../../fuzz/fuzz_targets/template.rs";
    wire at "../../../fuzz/fuzz_targets/wire.rs";
}

#[test]
fn every_fuzz_target_is_one_of_these_and_takes_any_bytes() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz");
    let manifest = std::fs::read_to_string(format!("{root}/Cargo.toml")).unwrap();
    let mut files: Vec<String> = std::fs::read_dir(format!("{root}/fuzz_targets"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_str().unwrap().replace(".rs", ""))
        .collect();
    files.sort();
    let names: Vec<_> = TARGETS.iter().map(|(name, _)| *name).collect();
    assert_eq!(files, names);
    for (name, run) in TARGETS {
        assert!(manifest.contains(&format!("path = \"fuzz_targets/{name}.rs\"")), "{name}");
        for bytes in [&b""[..], b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", &[0xff; 64], &[0; 300]] {
            run(bytes);
        }
    }
}
