//! Compiles the protocol files without a `protoc` program.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let files = protox::compile(["proto/localv1.proto", "proto/globalv1.proto"], ["proto"])?;
    tonic_prost_build::configure().bytes(".").btree_map(".").compile_fds(files)?;
    Ok(())
}
