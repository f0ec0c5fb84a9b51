//! Named network namespaces, the same that `ip netns` lists.
//!
//! A namespace belongs to a thread, not to a process: [`Netns::enter`] moves the calling thread and
//! what it starts from then on, sockets and child processes included. What always holds: nothing
//! here changes the namespace of a thread that did not ask for it. [`Netns::run`] works on a thread
//! of its own and so leaves its caller where it is.
//!
//! ```no_run
//! # fn main() -> Result<(), telaio_netlink::netns::NetnsError> {
//! use std::net::TcpListener;
//! use telaio_netlink::netns::Netns;
//!
//! let blue = Netns::create("blue")?;
//! // The socket stays in the namespace that it was made in.
//! let listener = blue.run(|| TcpListener::bind("127.0.0.1:80"))?;
//! # drop(listener);
//! Netns::remove("blue")
//! # }
//! ```

#![expect(unsafe_code, reason = "no safe crate of ours wraps setns, unshare and mount")]

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::thread;

/// Where names of namespaces are kept; iproute2's place.
pub const NAMES_DIR: &str = "/run/netns";
/// The calling thread's own namespace.
const OWN_NETNS: &str = "/proc/thread-self/ns/net";

/// Why something could not be done with a namespace.
#[derive(Debug, thiserror::Error)]
pub enum NetnsError {
    /// The name is no file name.
    #[error("{0:?} is not a name for a network namespace; use letters, digits, '-', '_' and '.'")]
    BadName(String),
    /// The system refused.
    #[error("cannot {what} network namespace {name}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// With which namespace.
        name: String,
        /// What the system says.
        source: io::Error,
    },
    /// What ran in the namespace panicked.
    #[error("a thread in network namespace {0} panicked")]
    Panicked(String),
}

impl NetnsError {
    fn system(what: &'static str, name: &str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::System { what, name: name.to_owned(), source }
    }
}

/// A network namespace that is held open: it lives at least as long as this value, also when its
/// name is removed.
#[derive(Debug)]
pub struct Netns {
    name: String,
    file: File,
}

impl Netns {
    /// Makes a namespace and gives it a name. Its loopback link is down, as the kernel makes it.
    pub fn create(name: &str) -> Result<Self, NetnsError> {
        let path = path_of(name)?;
        prepare_names_dir().map_err(NetnsError::system("prepare the directory for", name))?;
        // Never taken over: a name that exists is another's.
        File::options()
            .write(true)
            .create_new(true)
            .open(&path)
            .map_err(NetnsError::system("name", name))?;
        let made = thread::scope(|scope| {
            let worker = scope.spawn(|| {
                unshare_network()?;
                bind(Path::new(OWN_NETNS), &path)
            });
            worker.join()
        });
        let made = made.map_err(|_| NetnsError::Panicked(name.to_owned()));
        let outcome = made.and_then(|made| made.map_err(NetnsError::system("make", name)));
        if let Err(error) = outcome {
            // The name alone would mislead; that it was left is worth less than why.
            let _ = std::fs::remove_file(&path);
            return Err(error);
        }
        Self::open(name)
    }

    /// Opens a namespace by its name.
    pub fn open(name: &str) -> Result<Self, NetnsError> {
        let file = File::open(path_of(name)?).map_err(NetnsError::system("open", name))?;
        Ok(Self { name: name.to_owned(), file })
    }

    /// Opens a namespace by its name, if there is one. A name whose namespace was never made, because its maker was
    /// killed, is removed.
    pub fn open_live(name: &str) -> Result<Option<Self>, NetnsError> {
        let path = path_of(name)?;
        match File::open(&path) {
            Ok(file) if is_namespace(&file) => Ok(Some(Self { name: name.to_owned(), file })),
            Ok(_) => {
                std::fs::remove_file(&path).map_err(NetnsError::system("remove", name))?;
                Ok(None)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(NetnsError::system("open", name)(error)),
        }
    }

    /// Opens a namespace by a path: one that another program has named, or `/proc/PID/ns/net`.
    pub fn open_path(path: &Path) -> Result<Self, NetnsError> {
        let name = path.display().to_string();
        let file = File::open(path).map_err(NetnsError::system("open", &name))?;
        Ok(Self { name, file })
    }

    /// The calling thread's own.
    pub fn current() -> Result<Self, NetnsError> {
        Self::open_path(Path::new(OWN_NETNS))
    }

    /// Both are the same namespace.
    pub fn is_same_as(&self, other: &Self) -> Result<bool, NetnsError> {
        use std::os::unix::fs::MetadataExt;
        let id = |netns: &Self| {
            let file = netns.file.metadata().map_err(NetnsError::system("look at", &netns.name))?;
            Ok((file.dev(), file.ino()))
        };
        Ok(id(self)? == id(other)?)
    }

    /// Where a name is kept.
    pub fn path_of(name: &str) -> Result<PathBuf, NetnsError> {
        path_of(name)
    }

    /// Removes a name. The namespace goes with the last process, socket or value that holds it.
    pub fn remove(name: &str) -> Result<(), NetnsError> {
        let path = path_of(name)?;
        unmount(&path).map_err(NetnsError::system("unmount", name))?;
        std::fs::remove_file(&path).map_err(NetnsError::system("remove", name))
    }

    /// The name under which it was opened.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Moves the calling thread into the namespace, for good.
    pub fn enter(&self) -> Result<(), NetnsError> {
        // SAFETY: setns takes a file descriptor, which `file` keeps open, and a flag; it touches no
        // memory of ours. It concerns the calling thread only.
        let status = unsafe { libc::setns(self.file.as_raw_fd(), libc::CLONE_NEWNET) };
        checked(status).map_err(NetnsError::system("enter", &self.name))
    }

    /// Runs `work` in the namespace, on the calling thread, which is back where it was afterwards, also if
    /// `work` panics. For short calls.
    pub fn within<T>(&self, work: impl FnOnce() -> T) -> Result<T, NetnsError> {
        let home = Home { netns: Self::current()?, abroad: &self.name };
        self.enter()?;
        let value = work();
        drop(home);
        Ok(value)
    }

    /// Runs `work` in the namespace, on a thread of its own, and waits for it. What it starts, it
    /// starts there: sockets, and child processes.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, NetnsError> {
        thread::scope(|scope| {
            let worker = scope.spawn(|| self.enter().map(|()| work()));
            worker.join().map_err(|_| NetnsError::Panicked(self.name.clone()))?
        })
    }
}

/// Where a thread belongs; it is there again when this goes.
struct Home<'a> {
    netns: Netns,
    abroad: &'a str,
}

impl Drop for Home<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.netns.enter() {
            // On this thread everything would now happen to the wrong network. It cannot be told, only ended.
            eprintln!("cannot get back out of network namespace {}: {error}", self.abroad);
            std::process::abort();
        }
    }
}

impl AsFd for Netns {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Gives the calling thread, and what it starts from then on, a network namespace and a file system tree of its own,
/// in which these directories are empty: as if it were on another machine. For good.
pub fn isolate_thread(empty: &[&Path]) -> Result<(), NetnsError> {
    let failed = || NetnsError::system("make", "of a thread's own");
    // SAFETY: unshare takes flags and touches no memory of ours. It concerns the calling thread only.
    checked(unsafe { libc::unshare(libc::CLONE_NEWNET | libc::CLONE_NEWNS) }).map_err(failed())?;
    // What is mounted from now on is mounted here alone.
    mount(None, Path::new("/"), libc::MS_PRIVATE | libc::MS_REC).map_err(failed())?;
    for dir in empty {
        let (kind, to) = (c"tmpfs", c_path(dir).map_err(failed())?);
        // SAFETY: the texts end with a zero byte and live until the call returns; null means "no data".
        let status =
            unsafe { libc::mount(kind.as_ptr(), to.as_ptr(), kind.as_ptr(), 0, std::ptr::null()) };
        checked(status).map_err(failed())?;
    }
    Ok(())
}

/// Whether a file is a namespace, and not just a name for one.
fn is_namespace(file: &File) -> bool {
    const FILE_SYSTEM_OF_NAMESPACES: u64 = 0x6e73_6673;
    // SAFETY: an all-zero statfs is a valid one; it and the descriptor live through the call.
    let (status, system) = unsafe {
        let mut system: libc::statfs = std::mem::zeroed();
        (libc::fstatfs(file.as_raw_fd(), &raw mut system), system)
    };
    // Its type differs between C libraries.
    status == 0 && u64::try_from(system.f_type).is_ok_and(|it| it == FILE_SYSTEM_OF_NAMESPACES)
}

fn path_of(name: &str) -> Result<PathBuf, NetnsError> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.is_empty() || name.len() > 255 || name.starts_with('.') || !name.chars().all(is_plain) {
        return Err(NetnsError::BadName(name.to_owned()));
    }
    Ok(Path::new(NAMES_DIR).join(name))
}

/// Makes the directory a mount of its own that is shared, as iproute2 does: only so do names that
/// are removed here vanish from mount namespaces that have copied them.
fn prepare_names_dir() -> io::Result<()> {
    let dir = Path::new(NAMES_DIR);
    std::fs::create_dir_all(dir)?;
    match mount(None, dir, libc::MS_SHARED | libc::MS_REC) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            mount(Some(dir), dir, libc::MS_BIND | libc::MS_REC)?;
            mount(None, dir, libc::MS_SHARED | libc::MS_REC)
        }
        outcome => outcome,
    }
}

fn unshare_network() -> io::Result<()> {
    // SAFETY: unshare takes a flag and touches no memory of ours. It concerns the calling thread only.
    checked(unsafe { libc::unshare(libc::CLONE_NEWNET) })
}

fn bind(from: &Path, to: &Path) -> io::Result<()> {
    mount(Some(from), to, libc::MS_BIND)
}

fn mount(from: Option<&Path>, to: &Path, flags: libc::c_ulong) -> io::Result<()> {
    let from = from.map_or_else(|| Ok(c"none".to_owned()), c_path)?;
    let to = c_path(to)?;
    let kind: &CStr = c"none";
    // SAFETY: the three texts end with a zero byte and live until the call returns; a null pointer
    // for the last argument means "no data".
    checked(unsafe {
        libc::mount(from.as_ptr(), to.as_ptr(), kind.as_ptr(), flags, std::ptr::null())
    })
}

fn unmount(path: &Path) -> io::Result<()> {
    let path = c_path(path)?;
    // SAFETY: the path ends with a zero byte and lives until the call returns.
    checked(unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH) })
}

fn c_path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes())
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "a zero byte in a path"))
}

fn checked(status: libc::c_int) -> io::Result<()> {
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::process::Command;

    use super::*;

    #[test]
    fn a_name_is_a_plain_file_name() {
        for bad in ["", ".", "..", "a/b", "a b", "a\0b"] {
            assert!(matches!(Netns::open(bad), Err(NetnsError::BadName(_))), "{bad:?}");
        }
    }

    #[test]
    fn a_namespace_is_apart_and_known_to_ip_until_it_is_removed() {
        let name = format!("telaio-netns-{}", std::process::id());
        let ours = TcpListener::bind("0.0.0.0:0").unwrap();
        let port = ours.local_addr().unwrap().port();
        let netns = Netns::create(&name).unwrap();
        assert!(Netns::create(&name).is_err(), "a name is given once");
        // The same port again: only another namespace has it free.
        let theirs = netns.run(|| TcpListener::bind(("0.0.0.0", port))).unwrap();
        let output = netns.run(|| Command::new("ip").args(["-o", "link"]).output()).unwrap();
        let links = String::from_utf8(output.unwrap().stdout).unwrap();
        let listed = Command::new("ip").args(["netns", "list"]).output().unwrap();
        Netns::remove(&name).unwrap();
        theirs.unwrap();
        assert_eq!(links.lines().count(), 1, "{links}");
        assert!(
            String::from_utf8(listed.stdout).unwrap().lines().any(|line| line.starts_with(&name))
        );
        assert!(Netns::open(&name).is_err());
        drop(ours);
    }
}
