//! Lets `telaio version` name the platform that the binary was built for.

fn main() {
    let target = std::env::var("TARGET").unwrap_or_else(|_| "unknown".to_owned());
    println!("cargo::rustc-env=TELAIO_TARGET={target}");
    println!("cargo::rerun-if-changed=build.rs");
}
