//! Compiles what the guest kernel is started with (`guest/registers.rs`) into the library.

use std::path::PathBuf;
use std::process::Command;
use std::{env, fs, io};

const SOURCE: &str = "guest/registers.rs";

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed={SOURCE}");
    let said = |name: &str| env::var(name).unwrap_or_default();
    let library = PathBuf::from(said("OUT_DIR")).join("libregisters.so");
    if said("CARGO_CFG_TARGET_OS") != "linux" || said("CARGO_CFG_TARGET_ARCH") != "x86_64" {
        // There is no such guest.
        return fs::write(&library, "");
    }
    // For the host as it is: the guest is a program of the host's.
    let mut rustc = Command::new(env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    rustc.args(["--edition", "2024", "--crate-type", "cdylib", "--crate-name", "registers"]);
    rustc.args(["-O", "-C", "panic=abort", "-D", "warnings", SOURCE, "-o"]).arg(&library);
    if rustc.status()?.success() {
        return Ok(());
    }
    Err(io::Error::other(format!("rustc could not compile {SOURCE}")))
}
