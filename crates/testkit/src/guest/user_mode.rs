//! User-mode Linux: a kernel that is an ordinary process and sees the host's files.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{FOLDER_VARIABLE, Folder, GuestError, Machine, find, kernel};

/// The package, what it calls its kernel, and where its modules are.
const PACKAGE: &str = "user-mode-linux";
const KERNEL: &str = "linux.uml";
const MODULES: &str = "/usr/lib/uml/modules";

/// What it needs on processors with more registers than it knows; compiled by `build.rs`.
const REGISTERS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/libregisters.so"));

/// The machine.
pub(super) struct UserMode;

impl Machine for UserMode {
    fn modules(&self) -> Result<PathBuf, GuestError> {
        if !Path::new(MODULES).is_dir() {
            let what = format!("its modules in {MODULES}");
            return Err(GuestError::NotInstalled { what, package: PACKAGE });
        }
        Ok(MODULES.into())
    }

    fn prepare(&self) -> &'static str {
        // It sees the folder already, and could not write there.
        "mount -t hostfs -o \"$folder\" hostfs \"$folder\"\n"
    }

    fn kernel(&self, folder: &Folder) -> Result<Command, GuestError> {
        let own = folder.path(Folder::KERNEL);
        let mut command = kernel::contained(&find(KERNEL, PACKAGE)?, &own);
        let registers = own.join("libregisters.so");
        fs::write(&registers, REGISTERS).map_err(GuestError::Folder)?;
        command.env("LD_PRELOAD", registers);
        command.arg("mem=256M");
        // The host's file system, read-only.
        command.args(["root=none", "rootfstype=hostfs", "rootflags=/", "ro"]);
        // One console, without the kernel's small talk.
        command.args(["con=null", "ssl=null", "con0=fd:0,fd:1", "loglevel=5"]);
        command.arg(format!("uml_dir={}/", own.display()));
        command.arg(format!("init={}", folder.path("init").display()));
        command.arg(format!("{FOLDER_VARIABLE}={}", folder.0.path().display()));
        Ok(command)
    }
}
