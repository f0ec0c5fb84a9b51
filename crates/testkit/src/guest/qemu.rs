//! A guest that has both IPVS and nftables for IP, and wireguard: a cloud kernel of Debian's in QEMU.
//!
//! It is emulated, for a host need not let a machine be run on it: a program takes many times what it
//! takes elsewhere, and the start a quarter of a minute. So this is for tests that run on no other
//! kernel, and they are for `cargo xtask test --long`: it installs QEMU, fetches the kernel, and says in
//! `TELAIO_TEST_KERNEL` where that is unpacked. With `#[ignore]`, other runs leave them out.
//!
//! The guest sees nothing of the host's files. What it has is in its memory: the test program, the
//! [`PROGRAMS`] and their libraries, and the modules that are about networks. Serial ports bring back
//! what is written. All else is as [`guest`](super) says. One core, 1 GiB.
//!
//! ```no_run
//! use telaio_testkit::guest::{GuestError, qemu};
//!
//! // With #[test] and #[ignore = "takes minutes: cargo xtask test --long"].
//! fn both_are_known_here() -> Result<(), GuestError> {
//!     qemu::inside("both_are_known_here", &[], || {
//!         for module in ["ip_vs", "nf_tables"] {
//!             let mut modprobe = std::process::Command::new("modprobe");
//!             assert!(modprobe.arg(module).status().unwrap().success());
//!         }
//!     })
//! }
//! ```

use std::fs::{self, File};
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::initramfs::Initramfs;
use super::{FOLDER_VARIABLE, Folder, GuestError, Machine, find, inside_machine, kernel};

/// How long a run may take.
const TIME_MAX: Duration = Duration::from_mins(9);
/// Says where the kernel's package is unpacked, with its list of modules made.
const KERNEL_VARIABLE: &str = "TELAIO_TEST_KERNEL";
/// The emulator, and its package.
const QEMU: (&str, &str) = ("qemu-system-x86_64", "qemu-system-x86");
/// Where modules are on every machine.
const MODULES: &str = "/usr/lib/modules";
/// Which of them the guest gets, with what these need, by how their paths start.
const MODULES_TAKEN: [&str; 4] = [
    "kernel/net/",
    "kernel/drivers/net/dummy.ko",
    "kernel/drivers/net/veth.ko",
    "kernel/drivers/net/wireguard/",
];
/// What the guest has beside the test program: programs, and their packages.
pub const PROGRAMS: &[(&str, &str)] = &[
    ("sh", "dash"),
    ("cat", "coreutils"),
    ("ln", "coreutils"),
    ("mkdir", "coreutils"),
    ("sleep", "coreutils"),
    ("stty", "coreutils"),
    ("mount", "mount"),
    ("modprobe", "kmod"),
    ("ip", "iproute2"),
    ("nft", "nftables"),
    ("ipset", "ipset"),
    ("ipvsadm", "ipvsadm"),
    ("iptables", "iptables"),
    ("iptables-save", "iptables"),
    ("iptables-restore", "iptables"),
    ("iptables-nft-save", "iptables"),
    ("iptables-nft-restore", "iptables"),
    ("iptables-legacy-save", "iptables"),
    ("iptables-legacy-restore", "iptables"),
    ("ip6tables-save", "iptables"),
    ("ip6tables-restore", "iptables"),
    ("ip6tables-nft-save", "iptables"),
    ("ip6tables-nft-restore", "iptables"),
    ("ip6tables-legacy-save", "iptables"),
    ("ip6tables-legacy-restore", "iptables"),
];
/// What programs look for, where it is.
const FILES: [&str; 4] =
    ["/etc/ld.so.cache", "/etc/nsswitch.conf", "/etc/protocols", "/etc/services"];
/// Where `iptables` keeps what it knows of matches and targets, below a directory of libraries.
const EXTENSIONS: &str = "xtables";
/// Directories that are to be there.
const DIRECTORIES: [&str; 6] = ["/proc", "/sys", "/dev", "/run", "/tmp", "/var"];
/// Directories that are elsewhere.
const LINKS: [(&str, &str); 5] = [
    ("/bin", "usr/bin"),
    ("/sbin", "usr/sbin"),
    ("/lib", "usr/lib"),
    ("/lib64", "usr/lib64"),
    ("/var/run", "/run"),
];
/// The first port is the console; the others are to pass on what they get as it is. The kernel would load
/// these modules itself, one after the other while a transaction waits, which takes longer here than a
/// test has patience.
const PREPARE: &str = r#"
mount -t devtmpfs devtmpfs /dev &&
    stty -F /dev/ttyS1 raw -echo && ln -s /dev/ttyS1 "$folder/stdout" &&
    stty -F /dev/ttyS2 raw -echo && ln -s /dev/ttyS2 "$folder/stderr" &&
    stty -F /dev/ttyS3 raw -echo && ln -s /dev/ttyS3 "$folder/outcome" &&
    modprobe -a nft_chain_nat nft_compat nft_ct nft_fib_inet nft_hash nft_limit nft_log nft_masq \
        nft_nat nft_numgen nft_redir nft_reject_ipv4 nft_reject_ipv6
"#;

/// Runs the body of a test in QEMU, as [`guest::inside`](super::inside) does in User-mode Linux; with it
/// go these `programs` of the test's, by their paths.
pub fn inside(name: &str, programs: &[&Path], body: impl FnOnce()) -> Result<(), GuestError> {
    inside_machine(&Emulated { programs }, TIME_MAX, name, body)
}

/// The machine.
struct Emulated<'a> {
    /// What a test brings along.
    programs: &'a [&'a Path],
}

impl Machine for Emulated<'_> {
    fn modules(&self) -> Result<PathBuf, GuestError> {
        Ok(MODULES.into())
    }

    fn prepare(&self) -> &'static str {
        PREPARE
    }

    fn kernel(&self, folder: &Folder) -> Result<Command, GuestError> {
        let (name, package) = QEMU;
        let qemu = find(name, package)?;
        let programs: Result<Vec<PathBuf>, GuestError> =
            PROGRAMS.iter().map(|(name, package)| find(name, package)).collect();
        let kernel = Kernel::find()?;
        let initramfs = self.initramfs(folder, &programs?, &kernel).map_err(GuestError::Folder)?;
        let mut command = kernel::contained(&qemu, &folder.path(Folder::KERNEL));
        // Never by the host's kernel: where it offers that, it may hang. The random numbers are for a
        // kernel that would wait for chance.
        command.args(["-accel", "tcg", "-cpu", "qemu64,+rdrand", "-m", "1024", "-no-reboot"]);
        command.args(["-no-user-config", "-nodefaults", "-display", "none", "-serial", "stdio"]);
        for name in ["stdout", "stderr", Folder::OUTCOME] {
            command.arg("-serial").arg(format!("file:{}", folder.path(name).display()));
        }
        command.arg("-kernel").arg(&kernel.image).arg("-initrd").arg(initramfs);
        let init = folder.path("init");
        command.arg("-append").arg(format!(
            "console=ttyS0 loglevel=5 panic=-1 rdinit={} {FOLDER_VARIABLE}={}",
            init.display(),
            folder.0.path().display()
        ));
        Ok(command)
    }
}

impl Emulated<'_> {
    /// Writes all that the guest has; where that is.
    fn initramfs(
        &self,
        folder: &Folder,
        programs: &[PathBuf],
        kernel: &Kernel,
    ) -> io::Result<PathBuf> {
        let path = folder.path(Folder::KERNEL).join("initramfs");
        let mut archive = Initramfs::new(BufWriter::new(File::create(&path)?));
        for directory in DIRECTORIES {
            archive.directory(Path::new(directory))?;
        }
        for (link, to) in LINKS {
            archive.link(Path::new(link), Path::new(to))?;
        }
        let mut linked = vec![std::env::current_exe()?];
        linked.extend(self.programs.iter().map(|program| program.to_path_buf()));
        for program in &linked {
            // What is only for debuggers is most of such a program.
            let small = folder.path(Folder::KERNEL).join("program");
            let strip = Command::new("strip")
                .arg("--strip-debug")
                .arg(program)
                .arg("-o")
                .arg(&small)
                .status()?;
            archive.file(program, if strip.success() { &small } else { program })?;
        }
        for program in programs {
            linked.push(archive.take(program)?);
        }
        archive.take_libraries(&linked)?;
        for file in FILES.map(Path::new).into_iter().filter(|file| file.exists()) {
            archive.take(file)?;
        }
        let libraries =
            fs::read_dir("/usr/lib")?.flatten().map(|entry| entry.path().join(EXTENSIONS));
        for extensions in libraries.filter(|path| path.is_dir()) {
            archive.take_tree(&extensions)?;
        }
        kernel.put_modules(&mut archive)?;
        archive.take_tree(&folder.path("bin"))?;
        archive.take_tree(&folder.path("lib"))?;
        for name in ["init", "machine", "command"] {
            archive.take(&folder.path(name))?;
        }
        archive.finish()?;
        Ok(path)
    }
}

/// A kernel, unpacked.
struct Kernel {
    image: PathBuf,
    /// Its modules; the directory is called by its version.
    modules: PathBuf,
}

impl Kernel {
    fn find() -> Result<Self, GuestError> {
        let no_kernel = |why: String| GuestError::NoKernel { variable: KERNEL_VARIABLE, why };
        let root = std::env::var_os(KERNEL_VARIABLE);
        let root = PathBuf::from(root.ok_or_else(|| no_kernel("it is not set".to_owned()))?);
        let only = |directory: &str, start: &str| {
            let directory = root.join(directory);
            let entries = fs::read_dir(&directory).into_iter().flatten().flatten();
            let mut found =
                entries.filter(|it| it.file_name().to_string_lossy().starts_with(start));
            let found = found.next().map(|it| it.path());
            found.ok_or_else(|| no_kernel(format!("nothing is in {}", directory.display())))
        };
        Ok(Self { image: only("boot", "vmlinuz-")?, modules: only("lib/modules", "")? })
    }

    /// Puts the modules that are taken where the guest looks for them.
    fn put_modules<W: io::Write>(&self, archive: &mut Initramfs<W>) -> io::Result<()> {
        let there = Path::new(MODULES).join(self.modules.file_name().unwrap_or_default());
        for entry in fs::read_dir(&self.modules)? {
            let path = entry?.path();
            if let (true, Some(name)) = (path.is_file(), path.file_name()) {
                archive.file(&there.join(name), &path)?;
            }
        }
        // A module and what it needs, per line.
        for line in fs::read_to_string(self.modules.join("modules.dep"))?.lines() {
            if MODULES_TAKEN.iter().any(|start| line.starts_with(start)) {
                for module in line.split([':', ' ']).filter(|module| !module.is_empty()) {
                    archive.file(&there.join(module), &self.modules.join(module))?;
                }
            }
        }
        Ok(())
    }
}
