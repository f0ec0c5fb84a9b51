//! `cargo xtask dist`: what is handed to people whose machine does not build Rust.
//!
//! So far the zip for Windows: the program, built here for there, with what installs it as a service
//! (deploy/windows), the licence and the change log. What always holds: everything in it is in one directory that
//! says the version, and a zip is either whole or not there.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::exec::{Step, program, root, target_directory};
use crate::{install, windows};

/// What goes into the zip besides the program: its place in the project, and its name there.
const FILES: &[(&str, &str)] = &[
    ("deploy/windows/install.cmd", "install.cmd"),
    ("deploy/windows/uninstall.cmd", "uninstall.cmd"),
    ("deploy/windows/README.txt", "README.txt"),
    ("docs/windows.md", "windows.md"),
    ("CHANGELOG.md", "CHANGELOG.md"),
    ("LICENSE", "LICENSE.txt"),
];
/// The program's name.
const PROGRAM: &str = "telaio.exe";

/// Builds and packs.
pub(crate) fn run(mut args: impl Iterator<Item = String>) -> Result<bool> {
    if let Some(other) = args.next() {
        bail!("dist takes no arguments, not {other:?}");
    }
    install::windows_build(windows::TARGET)?;
    if !windows::build(&["--release"]).run()? {
        return Ok(false);
    }
    let built = target_directory().join(windows::TARGET).join("release").join(PROGRAM);
    // Cargo leaves debug information in; who debugs has it in the target directory.
    let stripped = built.with_file_name("telaio-stripped.exe");
    let (from, to) = (built.to_string_lossy(), stripped.to_string_lossy());
    if !program("x86_64-w64-mingw32-strip").args(["-o", &to, &from]).run()? {
        return Ok(false);
    }
    let zip = pack(&stripped, &target_directory().join("dist"))?;
    println!("{} ({} KiB)", zip.display(), fs::metadata(&zip)?.len() / 1024);
    Ok(true)
}

/// Packs a program with what goes with it; the zip.
pub(crate) fn pack(exe: &Path, directory: &Path) -> Result<PathBuf> {
    install::zip()?;
    let name = name();
    let stage = directory.join(&name);
    if stage.exists() {
        fs::remove_dir_all(&stage)?;
    }
    stage_files(exe, &stage)?;
    let zip = directory.join(format!("{name}.zip"));
    let draft = directory.join(format!("{name}.draft.zip"));
    for old in [&zip, &draft] {
        if old.exists() {
            fs::remove_file(old)?;
        }
    }
    let draft_name = draft.to_string_lossy();
    // Without what only Unix knows of files.
    if !zip_step(&["--quiet", "--recurse-paths", "-X", &draft_name, &name])
        .within(directory)
        .run()?
    {
        bail!("zip failed");
    }
    fs::rename(&draft, &zip)?;
    Ok(zip)
}

fn zip_step(args: &[&str]) -> Step {
    program("zip").args(args)
}

/// The zip's name without its end, and the directory's in it.
fn name() -> String {
    format!("telaio-{}-windows-x86_64", env!("CARGO_PKG_VERSION"))
}

fn stage_files(exe: &Path, stage: &Path) -> Result<()> {
    fs::create_dir_all(stage)?;
    let copy = |from: &Path, name: &str| {
        fs::copy(from, stage.join(name))
            .with_context(|| format!("cannot pack {} as {name}", from.display()))
    };
    copy(exe, PROGRAM)?;
    for (from, name) in FILES {
        copy(&root().join(from), name)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_that_is_packed_is_there_under_its_name() {
        let stage = std::env::temp_dir().join(format!("telaio-dist-{}", std::process::id()));
        let exe = std::env::current_exe().unwrap();
        stage_files(&exe, &stage).unwrap();
        let mut packed: Vec<String> = fs::read_dir(&stage)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
            .collect();
        fs::remove_dir_all(&stage).unwrap();
        packed.sort();
        let mut expected: Vec<&str> = FILES.iter().map(|(_, name)| *name).collect();
        expected.push(PROGRAM);
        expected.sort_unstable();
        assert_eq!(packed, expected);
    }

    #[test]
    fn scripts_for_windows_have_its_line_ends() {
        for (from, name) in FILES.iter().filter(|(from, _)| from.contains("install.")) {
            let text = fs::read_to_string(root().join(from)).unwrap();
            assert!(text.lines().count() > 5, "{name}");
            assert_eq!(text.matches('\n').count(), text.matches("\r\n").count(), "{name}");
        }
    }
}
