//! A guest kernel: for what the host's kernel lacks, and for settings that only a whole machine has.
//!
//! The kernel is Debian's User-mode Linux, an ordinary process. It sees the host's file system as its
//! own, read-only, so programs and tests run there as they are. [`GuestCommand`] runs a program on a
//! fresh kernel; [`inside`] runs the body of a test there. It has: IPVS, iptables-legacy, SCTP, dummy,
//! veth, vxlan, bridge, ipset. It lacks: nftables for IP, wireguard. One core, 256 MiB. For what it
//! lacks there is [`qemu`], which is much slower.
//!
//! What always holds:
//! - Nothing of the host changes: `/run` is the guest's own, `TMPDIR` lies in it, and only the folder
//!   with the program's output, which goes with the run, is the host's.
//! - There is no network but the guest's own loopback, and what the program makes.
//! - Many run at once. When the time is over, or the test is killed, the guest goes with all that ran
//!   in it.
//! - Where it cannot run, that is an error, never a reason to skip. It needs root and the Debian
//!   packages `user-mode-linux` and `kmod`.
//!
//! ```no_run
//! # fn main() -> Result<(), telaio_testkit::guest::GuestError> {
//! use telaio_testkit::guest::GuestCommand;
//!
//! let output = GuestCommand::new("uname").arg("-r").run()?;
//! assert_eq!(output.code, 0);
//! assert!(output.stdout.starts_with("6.1."));
//! # Ok(())
//! # }
//! ```

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Permissions};
use std::io::{self, Write as _};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

mod initramfs;
mod kernel;
pub mod qemu;
mod user_mode;

use user_mode::UserMode;

/// How long a run may take, if nobody says. Less than a test may.
const TIME_MAX: Duration = Duration::from_mins(2);
/// How the folders of all runs are called; process and a random part follow.
const FOLDER_PREFIX: &str = "telaio-guest-";
/// Names the folder in the guest. Who finds it set is inside.
const FOLDER_VARIABLE: &str = "TELAIO_GUEST_FOLDER";
/// How the variables are called that tell tests something.
const TEST_PREFIX: &str = "TELAIO_TEST_";
/// The first process; see there for what it expects in the folder.
const INIT: &str = include_str!("guest/init.sh");
/// Where programs are when `PATH` does not say.
const USUAL_DIRS: [&str; 3] = ["/usr/sbin", "/sbin", "/usr/bin"];

/// Why nothing came of a run. Shown with all that the guest has said, also by `unwrap`.
#[derive(thiserror::Error)]
pub enum GuestError {
    /// Something that it takes is not installed.
    #[error("the guest kernel needs {what}; as root: apt-get install {package}")]
    NotInstalled {
        /// What is missing.
        what: String,
        /// The Debian package that has it.
        package: &'static str,
    },
    /// What `cargo xtask test --long` fetches is not there.
    #[error("{variable} names no kernel ({why}); cargo xtask test --long fetches one and sets it")]
    NoKernel {
        /// The variable that says where it is.
        variable: &'static str,
        /// What is wrong with what it says.
        why: String,
    },
    /// The folder for the run could not be made or read.
    #[error("cannot prepare a folder for the guest kernel, or read from it: {0}")]
    Folder(#[source] io::Error),
    /// The kernel could not be started.
    #[error("cannot start the guest kernel: {0}")]
    Start(#[source] io::Error),
    /// It was ended because it took too long.
    #[error("the guest kernel was ended after {time_max:?}; it said:\n{said}")]
    TooLong {
        /// How long it was given.
        time_max: Duration,
        /// What it and the program have said.
        said: String,
    },
    /// The kernel ended and the program had not.
    #[error("the guest kernel ended before the program did; it said:\n{said}")]
    Ended {
        /// What it and the program have said.
        said: String,
    },
    /// A test failed in the guest.
    #[error("{name} failed on the guest kernel:\n{output}")]
    TestFailed {
        /// The test.
        name: String,
        /// How it ended.
        output: GuestOutput,
    },
    /// There was no such test to run in the guest.
    #[error("no test is called {name}, so none ran on the guest kernel")]
    NoSuchTest {
        /// The name that was given.
        name: String,
    },
}

impl std::fmt::Debug for GuestError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

/// How a program ended in the guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuestOutput {
    /// Its exit code; 128 and more for the signal that ended it, as shells count.
    pub code: i32,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
    /// The end of what the kernel has said.
    pub console: String,
}

impl std::fmt::Display for GuestOutput {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { code, stdout, stderr, console } = self;
        write!(f, "exit code {code}\n{}", said(stdout, stderr, console))
    }
}

fn said(stdout: &str, stderr: &str, console: &str) -> String {
    format!("--- stdout\n{stdout}\n--- stderr\n{stderr}\n--- console\n{console}")
}

/// A program to be run on a guest kernel of its own.
#[derive(Debug, Clone)]
pub struct GuestCommand {
    /// The program and its arguments.
    words: Vec<OsString>,
    variables: Vec<(String, OsString)>,
    time_max: Duration,
}

impl GuestCommand {
    /// A program by its path or, if it is one of the system's, by its name.
    pub fn new(program: impl Into<OsString>) -> Self {
        Self { words: vec![program.into()], variables: Vec::new(), time_max: TIME_MAX }
    }

    /// One more argument.
    #[must_use]
    pub fn arg(mut self, argument: impl Into<OsString>) -> Self {
        self.words.push(argument.into());
        self
    }

    /// More arguments.
    #[must_use]
    pub fn args<A: Into<OsString>>(mut self, arguments: impl IntoIterator<Item = A>) -> Self {
        self.words.extend(arguments.into_iter().map(Into::into));
        self
    }

    /// One more variable. Those of the caller are not passed on.
    #[must_use]
    pub fn env(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.variables.push((name.to_owned(), value.into()));
        self
    }

    /// How long all of it may take, the kernel's start included.
    #[must_use]
    pub fn time_max(mut self, time_max: Duration) -> Self {
        self.time_max = time_max;
        self
    }

    /// Boots, runs the program to its end, and powers off.
    pub fn run(&self) -> Result<GuestOutput, GuestError> {
        Folder::make(self, &UserMode)?.run(&UserMode, self.time_max)
    }

    /// The script that the first process runs.
    fn script(&self) -> Vec<u8> {
        let mut script = Vec::new();
        for (name, value) in &self.variables {
            script.extend(format!("export {name}=").bytes());
            script.extend(quoted(value).into_vec());
            script.push(b'\n');
        }
        script.extend(b"exec");
        for word in &self.words {
            script.push(b' ');
            script.extend(quoted(word).into_vec());
        }
        script.push(b'\n');
        script
    }
}

/// Whether we are on a guest kernel.
pub fn is_inside() -> bool {
    std::env::var_os(FOLDER_VARIABLE).is_some()
}

/// Runs the body of a test on a guest kernel: there the test program is started again for this one
/// test. `name` is the test's own, with its modules. Variables `TELAIO_TEST_…` are passed on.
///
/// ```no_run
/// use telaio_testkit::guest::{self, GuestError};
///
/// // With #[test].
/// fn virtual_servers_are_known_here() -> Result<(), GuestError> {
///     guest::inside("virtual_servers_are_known_here", || {
///         assert!(std::process::Command::new("modprobe").arg("ip_vs").status().unwrap().success());
///     })
/// }
/// ```
pub fn inside(name: &str, body: impl FnOnce()) -> Result<(), GuestError> {
    inside_machine(&UserMode, TIME_MAX, name, body)
}

fn inside_machine(
    machine: &dyn Machine,
    time_max: Duration,
    name: &str,
    body: impl FnOnce(),
) -> Result<(), GuestError> {
    if let Some(folder) = std::env::var_os(FOLDER_VARIABLE) {
        body();
        return Folder::note_ran(Path::new(&folder)).map_err(GuestError::Folder);
    }
    let program = std::env::current_exe().map_err(GuestError::Start)?;
    let words = ["--exact", name, "--include-ignored", "--nocapture", "--test-threads=1"];
    let mut command = GuestCommand::new(program).args(words).time_max(time_max);
    for (variable, value) in std::env::vars_os() {
        if let Some(variable) = variable.to_str().filter(|it| it.starts_with(TEST_PREFIX)) {
            command = command.env(variable, value);
        }
    }
    let folder = Folder::make(&command, machine)?;
    let output = folder.run(machine, command.time_max)?;
    if output.code != 0 {
        return Err(GuestError::TestFailed { name: name.to_owned(), output });
    }
    if !folder.has_run().map_err(GuestError::Folder)? {
        return Err(GuestError::NoSuchTest { name: name.to_owned() });
    }
    Ok(())
}

/// A kind of guest.
trait Machine {
    /// Where its modules are, as it sees them itself.
    fn modules(&self) -> Result<PathBuf, GuestError>;

    /// What its first process does so that what is written in the folder reaches the host, and what
    /// else such a machine needs: a shell's commands.
    fn prepare(&self) -> &'static str;

    /// Its kernel, to be started, for a run that has this folder.
    fn kernel(&self, folder: &Folder) -> Result<Command, GuestError>;
}

/// What a run has on the host.
struct Folder(TempDir);

impl Folder {
    /// How it ended: a line by a test that ran to its end, and the exit code in the last.
    const OUTCOME: &str = "outcome";
    /// That line.
    const RAN: &str = "ran";
    /// What is only for the process that is the kernel.
    const KERNEL: &str = "kernel";

    fn make(command: &GuestCommand, machine: &dyn Machine) -> Result<Self, GuestError> {
        remove_what_killed_tests_left();
        let modprobe = find("modprobe", "kmod")?;
        let modules = machine.modules()?;
        let fill = || {
            let name = format!("{FOLDER_PREFIX}{}-", std::process::id());
            let folder = Self(TempDir::with_prefix(name)?);
            for directory in ["bin", "lib", Self::KERNEL] {
                fs::create_dir(folder.path(directory))?;
            }
            folder.write_program("init", INIT)?;
            // It looks for lib/modules below a directory.
            let (modprobe, root) =
                (quoted(modprobe.as_os_str()), quoted(folder.0.path().as_os_str()));
            let (modprobe, root) = (modprobe.display(), root.display());
            let text = format!("#!/bin/sh\nexec {modprobe} --dirname {root} \"$@\"\n");
            folder.write_program("bin/modprobe", &text)?;
            symlink(modules, folder.path("lib/modules"))?;
            fs::write(folder.path("machine"), machine.prepare())?;
            fs::write(folder.path("command"), command.script())?;
            Ok(folder)
        };
        fill().map_err(GuestError::Folder)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write_program(&self, name: &str, text: &str) -> io::Result<()> {
        fs::write(self.path(name), text)?;
        fs::set_permissions(self.path(name), Permissions::from_mode(0o755))
    }

    fn run(&self, machine: &dyn Machine, time_max: Duration) -> Result<GuestOutput, GuestError> {
        let end = kernel::run(machine.kernel(self)?, time_max).map_err(GuestError::Start)?;
        let read = |name| self.read(name).map_err(GuestError::Folder);
        let (stdout, stderr, console) = (read("stdout")?, read("stderr")?, end.console);
        if end.is_too_late {
            return Err(GuestError::TooLong { time_max, said: said(&stdout, &stderr, &console) });
        }
        match read(Self::OUTCOME)?.lines().last().unwrap_or_default().trim().parse() {
            Ok(code) => Ok(GuestOutput { code, stdout, stderr, console }),
            Err(_) => Err(GuestError::Ended { said: said(&stdout, &stderr, &console) }),
        }
    }

    /// What the guest has written; nothing if it did not come to that.
    fn read(&self, name: &str) -> io::Result<String> {
        match fs::read(self.path(name)) {
            Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
            Err(error) => Err(error),
        }
    }

    fn note_ran(folder: &Path) -> io::Result<()> {
        let mut outcome =
            File::options().append(true).create(true).open(folder.join(Self::OUTCOME))?;
        writeln!(outcome, "{}", Self::RAN)
    }

    fn has_run(&self) -> io::Result<bool> {
        Ok(self.read(Self::OUTCOME)?.lines().any(|line| line == Self::RAN))
    }
}

fn find(name: &str, package: &'static str) -> Result<PathBuf, GuestError> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs = std::env::split_paths(&path).chain(USUAL_DIRS.iter().map(PathBuf::from));
    let found = dirs.map(|dir| dir.join(name)).find(|path| path.is_file());
    found.ok_or_else(|| GuestError::NotInstalled { what: format!("the program {name}"), package })
}

/// A word that a shell takes as it is.
fn quoted(word: &OsStr) -> OsString {
    let mut bytes = vec![b'\''];
    for byte in word.as_bytes() {
        match byte {
            b'\'' => bytes.extend(br"'\''"),
            other => bytes.push(*other),
        }
    }
    bytes.push(b'\'');
    OsString::from_vec(bytes)
}

/// Removes the folders of test processes that no longer run: whoever is killed cleans nothing up.
fn remove_what_killed_tests_left() {
    let Ok(entries) = fs::read_dir(std::env::temp_dir()) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let rest = name.to_str().and_then(|name| name.strip_prefix(FOLDER_PREFIX));
        let process = rest.and_then(|rest| rest.split('-').next());
        if process.is_some_and(|process| !Path::new("/proc").join(process).exists()) {
            // Another test may be quicker.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named_with_its_package() {
        let error = find("no-such-program", "some-package").unwrap_err();
        let text = "the guest kernel needs the program no-such-program; as root: apt-get install \
                    some-package";
        assert_eq!(error.to_string(), text);
    }
}
