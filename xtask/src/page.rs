//! The `page` suite: the web page of the admin API, built from its sources and tried in a browser.
//!
//! Sources are copied below the target directory and built there, so the tree stays as it is. What is
//! built has to be what is committed, for the binary embeds that. Then the page's tests run in
//! Chromium against the real agent, in a network namespace of their own.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::exec::{cargo, program, root, target_directory};
use crate::install;

/// What of the page's directory is needed to build and to test it.
const SOURCES: [&str; 9] = [
    "src",
    "public",
    "test",
    "index.html",
    "package.json",
    "package-lock.json",
    ".npmrc",
    "tsconfig.json",
    "vite.config.ts",
];

/// Builds, compares and tests; whether all is as it should be.
pub(crate) fn suite() -> Result<bool> {
    let copy = prepare()?;
    let fresh = built(&copy)? && is_committed(&copy)?;
    Ok(run(&copy, &["--failures", "failures"])? && fresh)
}

/// `cargo xtask page`: builds the page into the tree; with `--screenshots` also takes the pictures of
/// the documentation.
pub(crate) fn command(args: impl Iterator<Item = String>) -> Result<bool> {
    let args: Vec<String> = args.collect();
    let screenshots = match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => false,
        ["--screenshots"] => true,
        _ => bail!("page knows only --screenshots"),
    };
    let copy = prepare()?;
    if !built(&copy)? {
        return Ok(false);
    }
    let dist = page().join("dist");
    if dist.exists() {
        fs::remove_dir_all(&dist)?;
    }
    copy_all(&copy.join("dist"), &dist)?;
    if !screenshots {
        return Ok(true);
    }
    install::optipng()?;
    let pictures = root().join("docs/screenshots");
    fs::create_dir_all(&pictures)?;
    run(&copy, &["--screens", &pictures.to_string_lossy()])
}

/// The page's directory.
fn page() -> PathBuf {
    root().join("crates/gui/page")
}

/// Copies the sources, and installs what they need.
fn prepare() -> Result<PathBuf> {
    install::browser()?;
    let copy = target_directory().join("page");
    for name in SOURCES {
        let (from, to) = (page().join(name), copy.join(name));
        if to.is_dir() {
            fs::remove_dir_all(&to)?;
        }
        copy_all(&from, &to)?;
    }
    install::npm_packages(&copy)?;
    Ok(copy)
}

/// Checks the types and builds.
fn built(copy: &Path) -> Result<bool> {
    let npm = |script: &str| program("npm").args(["run", "--silent", script]).within(copy).run();
    Ok(npm("check")? && npm("build")?)
}

/// Whether what was built is what is committed.
fn is_committed(copy: &Path) -> Result<bool> {
    let differing = differences(&files(&copy.join("dist"))?, &files(&page().join("dist"))?);
    if !differing.is_empty() {
        println!(
            "crates/gui/page/dist is not what the sources build to: {}; run: cargo xtask page",
            differing.join(", ")
        );
    }
    Ok(differing.is_empty())
}

/// Builds the agent and runs the page's tests against it.
fn run(copy: &Path, more: &[&str]) -> Result<bool> {
    if !cargo(["build", "--package", "telaio"]).run()? {
        return Ok(false);
    }
    let binary = target_directory().join("debug/telaio").to_string_lossy().into_owned();
    let tests = ["--net", "node", "test/run.mjs", "--binary", &binary];
    program("unshare").args(tests).args(more).within(copy).run()
}

/// Names of files that only one side has, or that differ.
fn differences(one: &BTreeMap<String, Vec<u8>>, other: &BTreeMap<String, Vec<u8>>) -> Vec<String> {
    let mut names: Vec<&String> = one.keys().chain(other.keys()).collect();
    names.sort();
    names.dedup();
    names.into_iter().filter(|name| one.get(*name) != other.get(*name)).cloned().collect()
}

/// All files below a directory, by their place in it.
fn files(directory: &Path) -> Result<BTreeMap<String, Vec<u8>>> {
    let mut found = BTreeMap::new();
    let mut open = vec![directory.to_owned()];
    while let Some(at) = open.pop() {
        for entry in fs::read_dir(&at).with_context(|| format!("cannot read {}", at.display()))? {
            let path = entry?.path();
            if path.is_dir() {
                open.push(path);
            } else {
                let name = path.strip_prefix(directory)?.to_string_lossy().into_owned();
                found.insert(name, fs::read(&path)?);
            }
        }
    }
    Ok(found)
}

/// Copies a file, or a directory with all below it.
fn copy_all(from: &Path, to: &Path) -> Result<()> {
    if from.is_file() {
        if let Some(above) = to.parent() {
            fs::create_dir_all(above)?;
        }
        fs::copy(from, to).with_context(|| format!("cannot copy {}", from.display()))?;
        return Ok(());
    }
    for (name, content) in files(from)? {
        let place = to.join(name);
        if let Some(above) = place.parent() {
            fs::create_dir_all(above)?;
        }
        fs::write(place, content)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_differ_or_are_missing_are_named() {
        let tree = |files: &[(&str, &str)]| -> BTreeMap<String, Vec<u8>> {
            files.iter().map(|(name, text)| ((*name).into(), text.as_bytes().to_vec())).collect()
        };
        let built = tree(&[("a", "1"), ("b", "2"), ("c", "3")]);
        assert!(differences(&built, &built).is_empty());
        assert_eq!(
            differences(&built, &tree(&[("a", "1"), ("b", "9"), ("d", "3")])),
            ["b", "c", "d"]
        );
    }
}
