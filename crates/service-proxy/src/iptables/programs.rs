//! The programs `iptables-save` and `iptables-restore`: finding them, running them, understanding what
//! they complain about.
//!
//! They come in two flavours, which write to different places in the kernel: one to nf_tables, one to
//! the older tables. Whoever changes rules of both makes a riddle for others, so a node uses one; which
//! one is what `iptables-restore` is installed as, unless the operator says otherwise.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::fs::{MemfdFlags, memfd_create};
use telaio_model::IpFamily;
use telaio_netlink::nftables::Nftables;
use telaio_netlink::xtables;
use telaio_reconcile::ApplyError;

use super::proxier::Kernel;
use super::restore::Limits;

/// How long a program may take before it is ended: far more than 30,000 services need.
const RUN_TIME_MAX: Duration = Duration::from_mins(5);
/// How long a program that only tells its version may take.
const VERSION_TIME_MAX: Duration = Duration::from_secs(10);
/// How long iptables-legacy waits for another that holds the lock, in seconds.
const LOCK_WAIT_S: &str = "10";
/// How much of a program's complaint is passed on.
const COMPLAINT_LINES_MAX: usize = 6;
/// Where these programs are when `PATH`, as for many services, does not say.
const USUAL_DIRS: [&str; 4] = ["/usr/sbin", "/sbin", "/usr/local/sbin", "/usr/bin"];

/// Which iptables to use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Flavor {
    /// What `iptables-restore` is installed as.
    #[default]
    Auto,
    /// On nf_tables.
    Nft,
    /// On the older tables.
    Legacy,
}

/// Why the programs cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// Not installed.
    #[error(
        "the program {program} is not installed: install it (Debian and Ubuntu: apt-get install \
         iptables; Fedora: dnf install iptables-nft iptables-legacy), or use --backend nftables, \
         which needs no program"
    )]
    Missing {
        /// Which program.
        program: String,
    },
    /// Installed, but it does not work.
    #[error("the program {program} does not work: {why}")]
    Broken {
        /// Which program.
        program: String,
        /// What it says.
        why: String,
    },
}

/// The programs for one family.
#[derive(Debug, Clone)]
pub struct Programs {
    family: IpFamily,
    flavor: Flavor,
    restore: PathBuf,
    save: PathBuf,
}

impl Programs {
    /// Finds them, and for [`Flavor::Auto`] asks which flavour they are.
    pub fn find(flavor: Flavor, family: IpFamily) -> Result<Self, ProgramError> {
        let restore = find_program(&program_name(flavor, family, "restore"))?;
        let save = find_program(&program_name(flavor, family, "save"))?;
        let flavor = match flavor {
            Flavor::Auto => ask_flavor(&restore)?,
            known => known,
        };
        Ok(Self { family, flavor, restore, save })
    }

    /// What they are: never [`Flavor::Auto`].
    pub fn flavor(&self) -> Flavor {
        self.flavor
    }

    /// Their family.
    pub fn family(&self) -> IpFamily {
        self.family
    }

    /// Fails if rules cannot be read, with what the program says about it.
    pub fn check(&self) -> Result<(), ApplyError> {
        let can_read = match self.flavor {
            Flavor::Legacy => xtables::table_info(legacy_family(self.family), "nat").is_some(),
            Flavor::Auto | Flavor::Nft => nft_generation().is_some(),
        };
        // To ask the kernel takes no time; to ask the program takes as long as to read all rules.
        if can_read { Ok(()) } else { self.save_table("nat").map(drop) }
    }

    /// What `iptables-save` prints for one table.
    pub fn save_table(&self, table: &str) -> Result<String, ApplyError> {
        self.run_save(&["-t", table])
    }

    /// What `iptables-save` prints for all tables.
    pub fn save(&self) -> Result<String, ApplyError> {
        self.run_save(&[])
    }

    fn run_save(&self, arguments: &[&str]) -> Result<String, ApplyError> {
        let run = Run { program: &self.save, arguments, input: &[], time_max: RUN_TIME_MAX };
        let output = run.run()?;
        if output.status.success() { Ok(output.stdout) } else { Err(run.complaint(&output)) }
    }
}

impl Kernel for Programs {
    fn save(&mut self) -> Result<String, ApplyError> {
        self.run_save(&[])
    }

    fn restore(&mut self, text: &[&str]) -> Result<(), ApplyError> {
        let arguments = ["--noflush", "--wait", LOCK_WAIT_S];
        let run = Run {
            program: &self.restore,
            arguments: &arguments,
            input: text,
            time_max: RUN_TIME_MAX,
        };
        let output = run.run()?;
        if output.status.success() { Ok(()) } else { Err(run.complaint(&output)) }
    }

    fn is_untouched(&mut self) -> bool {
        match self.flavor {
            Flavor::Legacy => legacy_is_untouched(self.family),
            // Every transaction makes a new generation; a namespace begins with the first.
            Flavor::Auto | Flavor::Nft => nft_generation().is_some_and(|it| it <= 1),
        }
    }

    fn limits(&self) -> Limits {
        match self.flavor {
            Flavor::Legacy => Limits::LEGACY,
            Flavor::Auto | Flavor::Nft => Limits::NFT,
        }
    }
}

/// The number of the last transaction of nf_tables, if it may be asked for.
fn nft_generation() -> Option<u32> {
    Nftables::open().and_then(|mut nftables| nftables.generation()).ok()
}

/// A family as the older tables have it.
pub(super) fn legacy_family(family: IpFamily) -> xtables::Family {
    match family {
        IpFamily::V4 => xtables::Family::V4,
        IpFamily::V6 => xtables::Family::V6,
    }
}

/// Whether the older tables have nothing but the ends of their own chains.
fn legacy_is_untouched(family: IpFamily) -> bool {
    let family = legacy_family(family);
    // Each of the kernel's own chains ends in its policy, and the table in an error.
    [("filter", 4), ("nat", 5), ("mangle", 6)].into_iter().all(|(table, entries)| {
        xtables::table_info(family, table).is_some_and(|info| info.num_entries == entries)
    })
}

/// Such as `ip6tables-legacy-restore`.
pub(super) fn program_name(flavor: Flavor, family: IpFamily, what: &str) -> String {
    let base = match family {
        IpFamily::V4 => "iptables",
        IpFamily::V6 => "ip6tables",
    };
    let flavor = match flavor {
        Flavor::Auto => "",
        Flavor::Nft => "-nft",
        Flavor::Legacy => "-legacy",
    };
    format!("{base}{flavor}-{what}")
}

fn find_program(name: &str) -> Result<PathBuf, ProgramError> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs = std::env::split_paths(&path).chain(USUAL_DIRS.iter().map(PathBuf::from));
    dirs.map(|dir| dir.join(name))
        .find(|path| path.is_file())
        .ok_or_else(|| ProgramError::Missing { program: name.to_owned() })
}

fn ask_flavor(restore: &Path) -> Result<Flavor, ProgramError> {
    let run =
        Run { program: restore, arguments: &["--version"], input: &[], time_max: VERSION_TIME_MAX };
    let broken = |why: String| ProgramError::Broken { program: restore.display().to_string(), why };
    let output = run.run().map_err(|error| broken(error.to_string()))?;
    if !output.status.success() {
        return Err(broken(format!("{} ({})", output.stderr.trim(), output.status)));
    }
    // Before 1.8 there was only one flavour and no word about it.
    let is_nft = output.stdout.contains("nf_tables");
    Ok(if is_nft { Flavor::Nft } else { Flavor::Legacy })
}

/// One run of a program.
struct Run<'a> {
    program: &'a Path,
    arguments: &'a [&'a str],
    /// In pieces.
    input: &'a [&'a str],
    time_max: Duration,
}

/// What came of it.
struct Output {
    stdout: String,
    stderr: String,
    status: ExitStatus,
}

impl Run<'_> {
    fn action(&self) -> String {
        format!("running {}", self.program.display())
    }

    fn run(&self) -> Result<Output, ApplyError> {
        self.try_run().map_err(|error| ApplyError::from_io(self.action(), error))
    }

    fn try_run(&self) -> io::Result<Output> {
        let mut child = Command::new(self.program)
            .args(self.arguments)
            .env("LC_ALL", "C")
            .stdin(in_memory(self.input)?)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let child = Mutex::new(child);
        thread::scope(|scope| {
            let (done, end) = mpsc::channel::<()>();
            let (child, time_max) = (&child, self.time_max);
            let watchdog = scope.spawn(move || end_in_time(child, &end, time_max));
            let errors = scope.spawn(move || read_all(stderr));
            let stdout = read_all(stdout)?;
            let stderr = join(errors)??;
            // It has closed both, so it has ended or is about to.
            let status = child.lock().wait()?;
            drop(done);
            if join(watchdog)? {
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    format!("no answer in {} s", self.time_max.as_secs()),
                ));
            }
            Ok(Output { stdout, stderr, status })
        })
    }

    /// What a failed run means.
    fn complaint(&self, output: &Output) -> ApplyError {
        let stderr = output.stderr.trim();
        let lines: Vec<&str> = stderr
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty() && !line.starts_with("Try `"))
            .take(COMPLAINT_LINES_MAX)
            .collect();
        let mut text =
            format!("{} ended with {}: {}", self.action(), output.status, lines.join("; "));
        let mut lines = self.input.iter().flat_map(|piece| piece.lines());
        if let Some(line) = failed_line(stderr).and_then(|at| lines.nth(at - 1)) {
            text = format!("{text}; the line is: {line}");
        }
        classify(stderr, output.status, text)
    }
}

/// A file that holds the pieces and is nowhere on a disk. A pipe would wake writer and reader in turn for
/// every few thousand bytes.
fn in_memory(pieces: &[&str]) -> io::Result<Stdio> {
    if pieces.is_empty() {
        return Ok(Stdio::null());
    }
    let mut file = File::from(memfd_create("telaio-input", MemfdFlags::CLOEXEC)?);
    pieces.iter().try_for_each(|piece| file.write_all(piece.as_bytes()))?;
    file.rewind()?;
    Ok(file.into())
}

fn read_all(from: Option<impl Read>) -> io::Result<String> {
    let mut bytes = Vec::new();
    if let Some(mut from) = from {
        from.read_to_end(&mut bytes)?;
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn join<T>(thread: thread::ScopedJoinHandle<'_, T>) -> io::Result<T> {
    thread.join().map_err(|_| io::Error::other("a thread panicked"))
}

/// Ends the child if `end` does not come in time; says whether it had to.
fn end_in_time(child: &Mutex<Child>, end: &mpsc::Receiver<()>, time_max: Duration) -> bool {
    // Whoever waits for the child's end holds the lock only once its output has ended.
    if end.recv_timeout(time_max) != Err(mpsc::RecvTimeoutError::Timeout) {
        return false;
    }
    match child.lock().kill() {
        Ok(()) => {}
        Err(error) => tracing::warn!(%error, "cannot end a program that hangs"),
    }
    true
}

/// The number of the line that a complaint is about, from 1.
fn failed_line(stderr: &str) -> Option<usize> {
    let number = |after: &str| {
        let digits = after.trim_start_matches([':', ' ']);
        let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
        digits[..end].parse().ok().filter(|number| *number > 0)
    };
    stderr.match_indices("line").find_map(|(at, word)| number(&stderr[at + word.len()..]))
}

fn classify(stderr: &str, status: ExitStatus, text: String) -> ApplyError {
    let says = |words: &[&str]| words.iter().any(|word| stderr.contains(word));
    if says(&["Permission denied", "Operation not permitted", "you must be root"]) {
        return ApplyError::Permission(text);
    }
    if stderr.contains("is incompatible") {
        let hint = "somebody has put rules into a table of iptables with the program nft; remove \
                    them, or use --backend nftables";
        return ApplyError::Unsupported(format!("{text}; {hint}"));
    }
    // A chain of ours that is gone looks like a target that cannot be loaded.
    let lost_chain = says(&["target `TELAIO-", "No chain/target/match", "does not exist"]);
    if says(&["insmod", "missing kernel module", "Couldn't load", "not supported"])
        && !stderr.contains("target `TELAIO-")
    {
        let hint = "the kernel lacks a part of iptables (modules nf_nat, xt_statistic, xt_recent, \
                    xt_addrtype, xt_conntrack, xt_comment); load it, or use --backend nftables";
        return ApplyError::Unsupported(format!("{text}; {hint}"));
    }
    // 4 is what xtables calls a problem with resources: mostly the lock.
    if status.code() == Some(4) || says(&["Resource temporarily unavailable", "xtables lock"]) {
        return ApplyError::Transient(text);
    }
    if says(&["unknown option", "Bad argument", "invalid", "Invalid argument"]) && !lost_chain {
        return ApplyError::Refused(text);
    }
    ApplyError::Conflict(text)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::time::Instant;

    use super::*;

    fn sh(script: &str, input: &str, time_max: Duration) -> io::Result<Output> {
        let arguments = ["-c", script];
        let input = &[input];
        let run = Run { program: Path::new("/bin/sh"), arguments: &arguments, input, time_max };
        run.try_run()
    }

    #[test]
    fn a_program_that_hangs_is_ended() {
        let started = Instant::now();
        let outcome = sh("exec sleep 600", "", Duration::from_millis(50));
        assert_eq!(outcome.err().unwrap().kind(), io::ErrorKind::TimedOut);
        assert!(started.elapsed() < Duration::from_mins(5));
    }

    #[test]
    fn much_input_and_many_complaints_do_not_block_each_other() {
        let input = "x".repeat(1 << 20);
        let script = "head -c 1000000 /dev/zero >&2; cat";
        let output = sh(script, &input, Duration::from_mins(1)).unwrap();
        assert_eq!((output.stdout.len(), output.stderr.len()), (1 << 20, 1_000_000));
    }

    #[test]
    fn a_missing_program_says_what_to_install() {
        let error = find_program("telaio-no-such-program").unwrap_err().to_string();
        assert!(error.contains("apt-get install iptables"), "{error}");
    }

    #[test]
    fn complaints_are_told_apart() {
        let status = |code: i32| ExitStatus::from_raw(code << 8);
        let of = |stderr: &str, code| classify(stderr, status(code), String::new());
        let root = "iptables-restore v1.8.9 (nf_tables): Could not fetch rule set generation id: \
                    Permission denied (you must be root)";
        assert!(matches!(of(root, 4), ApplyError::Permission(_)));
        let lock = "Another app is currently holding the xtables lock; waiting (10s)";
        assert!(matches!(of(lock, 4), ApplyError::Transient(_)));
        let chain = "iptables-restore v1.8.9 (legacy): Couldn't load target `TELAIO-SVC-X':No such \
                     file or directory";
        assert!(matches!(of(chain, 2), ApplyError::Conflict(_)));
        let module = "iptables-restore v1.8.9 (legacy): Couldn't load match `recent':No such file";
        assert!(matches!(of(module, 2), ApplyError::Unsupported(_)));
        assert!(matches!(of("line 3: CHAIN_USER_ADD failed", 1), ApplyError::Conflict(_)));
    }

    #[test]
    fn the_line_that_failed_is_shown() {
        for text in
            ["iptables-restore: line 2 failed", "Error occurred at line: 2", "\nline 2: RULE"]
        {
            assert_eq!(failed_line(text), Some(2), "{text}");
        }
        assert_eq!(failed_line("the pipeline broke"), None);
    }
}
