//! Records on disk, and who may change them.
//!
//! Below the state directory, in `pods/`:
//!
//! | path | what |
//! |---|---|
//! | `node.json` | nodes of the library and their peers: what a reboot does not change |
//! | `boot-ID/lock` | shared by those who attach and detach, exclusive for who changes networks or mends |
//! | `boot-ID/ports.lock` | whoever claims ports of the node |
//! | `boot-ID/before.json` | settings of the machine and of others' bridges as they were before us |
//! | `boot-ID/networks/KEY` | a [`Network`] |
//! | `boot-ID/attachments/KEY` | an [`Attachment`] |
//! | `boot-ID/ports/PROTOCOL-PORT/ADDRESS` | the claim of a port of the node, likewise |
//! | `boot-ID/addresses/NETWORK/ADDRESS` | the claim of an address: a hard link to its holder's first record |
//!
//! What always holds:
//! - A record is there before what it tells of, and goes after it: whatever a kill leaves behind has one.
//! - A claim is one `link(2)`: of two who want an address one gets it, and nobody sees half a claim.
//! - Everything that a reboot ends lies in a directory named after the kernel's boot ID, so after a reboot it
//!   counts for nothing, and is removed. Hence nothing is flushed to the disk: what a power failure loses is
//!   void anyhow. A killed process loses nothing that it has written.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use serde::Serialize;
use serde::de::DeserializeOwned;
use telaio_netlink::netns::NAMES_DIR;

use crate::attachment::Attachment;
use crate::error::{Error, Result};
use crate::names;
use crate::network::Network;
use crate::networks::Before;

mod attachments;

pub(crate) use attachments::Holders;

/// Where state is kept unless said otherwise.
pub const STATE_DIR: &str = "/var/lib/telaio";
/// The largest record that is read: far above any of ours.
const RECORD_BYTES_MAX: u64 = 4 << 20;
/// How often a lock is tried again whose file somebody has removed meanwhile.
const LOCK_TRIES_MAX: usize = 100;

/// This machine: its records, and with them every operation of this crate.
///
/// Operations act in the calling thread's network namespace. The free functions of [`node`](crate::node) and
/// [`instance`](crate::instance) use the one of [`STATE_DIR`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    base: PathBuf,
}

impl Default for Host {
    fn default() -> Self {
        Self::new(STATE_DIR)
    }
}

impl Host {
    /// One with this state directory.
    pub fn new(state_dir: impl AsRef<Path>) -> Self {
        Self { base: state_dir.as_ref().join("pods") }
    }

    /// Every network on record, by name, but for those that cannot be read: see [`problems`](Self::problems).
    pub fn networks(&self) -> Result<Vec<Network>> {
        self.state()?.networks()
    }

    /// Records that cannot be read. What they tell of is left as it is; everything else goes on.
    pub fn problems(&self) -> Result<Vec<Error>> {
        let state = self.state()?;
        let mut errors = state.unreadable()?;
        errors.extend(state.unreadable_attachments()?);
        Ok(errors)
    }

    /// Every attachment on record. One whose making was cut short is not among them.
    pub fn attachments(&self) -> Result<Vec<Attachment>> {
        let records = self.state()?.attachments()?.into_iter().filter_map(|(_, record)| record);
        // Until it has its hardware address it is not whole.
        let mut found: Vec<_> = records.filter(|record| !record.mac.is_empty()).collect();
        found.sort_by(|a, b| (&a.network, &a.container).cmp(&(&b.network, &b.container)));
        Ok(found)
    }

    /// Who has these addresses, each with whether it is attached for good: also those that are being attached.
    pub fn holders(
        &self,
        ips: impl IntoIterator<Item = IpAddr>,
    ) -> Result<BTreeMap<IpAddr, (Attachment, bool)>> {
        let state = self.state()?;
        let networks = state.networks()?;
        let mut found = BTreeMap::new();
        for ip in ips {
            for network in &networks {
                let path = state.addresses_dir(&network.name).join(ip.to_string());
                let Ok(Some(holder)) = read_record::<Attachment>(&path) else { continue };
                let key =
                    names::attachment_key(&holder.network, &holder.container, &holder.interface);
                let record = state.attachment(&key)?.flatten();
                let is_whole = record.is_some_and(|record| !record.mac.is_empty());
                found.insert(ip, (holder, is_whole));
            }
        }
        Ok(found)
    }

    /// The records of this boot; made if they are not there.
    pub(crate) fn state(&self) -> Result<State> {
        let state =
            State { dir: self.base.join(format!("boot-{}", boot_id()?)), base: self.base.clone() };
        if !state.dir.join("lock").exists() {
            state.prepare()?;
        }
        Ok(state)
    }
}

/// By what things in the kernel are known to be of a state directory: by its path, which is the same also where it was removed and made
/// anew, and by the directory itself, which may have another path in a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mark {
    path: String,
    directory: String,
}

impl Mark {
    const PREFIX: &str = "state-";

    /// The name of a set.
    pub(crate) fn name(&self) -> String {
        format!("{}{}-{}", Self::PREFIX, self.path, self.directory)
    }

    /// Whether another name is one of this directory; `None` for what is no mark.
    pub(crate) fn is_same(&self, name: &str) -> Option<bool> {
        let (path, directory) = name.strip_prefix(Self::PREFIX)?.split_once('-')?;
        Some(path == self.path || directory == self.directory)
    }
}

/// A lock that ends with this value.
#[derive(Debug)]
#[must_use]
pub(crate) struct Lock {
    _file: File,
}

/// With others who make named namespaces, of whichever state directory: until there is a link in one, nothing else says that
/// somebody needs it.
pub(crate) fn lock_names() -> Result<Lock> {
    let path = Path::new(NAMES_DIR);
    fs::create_dir_all(path).map_err(Error::io("cannot make", path))?;
    let file = File::open(path).map_err(Error::io("cannot open", path))?;
    file.lock_shared().map_err(Error::io("cannot lock", path))?;
    Ok(Lock { _file: file })
}

/// With nobody who makes one; `None` while somebody does, or where there are none.
pub(crate) fn try_lock_names() -> Result<Option<Lock>> {
    let path = Path::new(NAMES_DIR);
    let file = match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        file => file.map_err(Error::io("cannot open", path))?,
    };
    match file.try_lock() {
        Ok(()) => Ok(Some(Lock { _file: file })),
        Err(fs::TryLockError::WouldBlock) => Ok(None),
        Err(fs::TryLockError::Error(error)) => Err(Error::io("cannot lock", path)(error)),
    }
}

/// The records of this boot.
#[derive(Debug)]
pub(crate) struct State {
    dir: PathBuf,
    base: PathBuf,
}

impl State {
    fn prepare(&self) -> Result<()> {
        for dir in ["networks", "attachments", "addresses", "ports"] {
            let path = self.dir.join(dir);
            fs::create_dir_all(&path).map_err(Error::io("cannot make", path))?;
        }
        self.remove_other_boots()?;
        for lock in ["ports.lock", "lock"] {
            self.lock_file(lock)?;
        }
        Ok(())
    }

    /// What was before the last start of the machine is gone.
    fn remove_other_boots(&self) -> Result<()> {
        for entry in read_dir(&self.base)? {
            let is_boot = entry.file_name().to_string_lossy().starts_with("boot-");
            if is_boot && entry.path() != self.dir {
                // Another process may be quicker.
                let _ = fs::remove_dir_all(entry.path());
            }
        }
        Ok(())
    }

    /// By what others know that something is of this state directory.
    pub(crate) fn mark(&self) -> Mark {
        let path = fs::canonicalize(&self.base).unwrap_or_else(|_| self.base.clone());
        let id = fs::metadata(&self.base).map(|it| format!("{}:{}", it.dev(), it.ino()));
        Mark {
            path: names::short(&path.display().to_string()),
            directory: names::short(&id.unwrap_or_default()),
        }
    }

    fn lock_file(&self, name: &str) -> Result<File> {
        let path = self.dir.join(name);
        let open = File::options().read(true).write(true).create(true).truncate(false).open(&path);
        open.map_err(Error::io("cannot open", path))
    }

    /// When a record of an attachment last came or went.
    pub(crate) fn attachments_changed(&self) -> Result<std::time::SystemTime> {
        let path = self.dir.join("attachments");
        let changed = fs::metadata(&path).and_then(|it| it.modified());
        changed.map_err(Error::io("cannot look at", path))
    }

    /// Locks a file that is still there: who removes everything removes the locks, too, and whoever has waited for one of them
    /// would be alone with it.
    fn lock(&self, name: &str, lock: fn(&File) -> io::Result<()>) -> Result<Lock> {
        let path = self.dir.join(name);
        for _ in 0..LOCK_TRIES_MAX {
            let file = match self.lock_file(name) {
                Err(Error::Io { source, .. }) if source.kind() == ErrorKind::NotFound => {
                    self.prepare()?;
                    continue;
                }
                file => file?,
            };
            lock(&file).map_err(Error::io("cannot lock", &path))?;
            let ours = file.metadata().map_err(Error::io("cannot look at", &path))?;
            match fs::metadata(&path) {
                Ok(there) if (there.dev(), there.ino()) == (ours.dev(), ours.ino()) => {
                    return Ok(Lock { _file: file });
                }
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    return Err(Error::io("cannot look at", &path)(error));
                }
                _ => {}
            }
        }
        Err(Error::Busy { what: path.display().to_string() })
    }

    /// With others who attach and detach.
    pub(crate) fn lock_shared(&self) -> Result<Lock> {
        self.lock("lock", File::lock_shared)
    }

    /// With nobody else.
    pub(crate) fn lock_exclusive(&self) -> Result<Lock> {
        self.lock("lock", File::lock)
    }

    /// With nobody else who claims ports.
    pub(crate) fn lock_ports(&self) -> Result<Lock> {
        self.lock("ports.lock", File::lock)
    }

    fn network_path(&self, name: &str) -> PathBuf {
        self.dir.join("networks").join(names::network_key(name))
    }

    /// Where the claims of a network's addresses are.
    pub(crate) fn addresses_dir(&self, network: &str) -> PathBuf {
        self.dir.join("addresses").join(names::network_key(network))
    }

    /// A hint: the bridge of a network had no port left. Making links in vain costs as much as making them, and the
    /// kernel's grace period besides. Were it lost or old, an instance would be routed to or try the bridge first.
    fn full_hint(&self, network: &str) -> PathBuf {
        self.addresses_dir(network).join("last-full")
    }

    pub(crate) fn is_full(&self, network: &str) -> bool {
        self.full_hint(network).exists()
    }

    pub(crate) fn set_full(&self, network: &str, is_full: bool) {
        let path = self.full_hint(network);
        // See there.
        let _ = if is_full { fs::write(path, "") } else { fs::remove_file(path) };
    }

    /// Where the claims of the node's ports are.
    pub(crate) fn ports_dir(&self) -> PathBuf {
        self.dir.join("ports")
    }

    pub(crate) fn network(&self, name: &str) -> Result<Option<Network>> {
        read_record(&self.network_path(name))
    }

    /// Those that can be read, by name; the others are told by [`unreadable`](Self::unreadable).
    pub(crate) fn networks(&self) -> Result<Vec<Network>> {
        Ok(self.read_networks()?.0)
    }

    fn read_networks(&self) -> Result<(Vec<Network>, Vec<Error>)> {
        let (mut found, mut errors): (Vec<Network>, _) = (Vec::new(), Vec::new());
        for entry in read_dir(&self.dir.join("networks"))? {
            if is_temporary(&entry.path()) {
                continue;
            }
            match read_record::<Network>(&entry.path()) {
                Ok(network) => found.extend(network),
                Err(error @ Error::Record { .. }) => errors.push(error),
                Err(error) => return Err(error),
            }
        }
        found.sort_by(|a, b| a.name.cmp(&b.name));
        errors.sort_by_key(ToString::to_string);
        Ok((found, errors))
    }

    /// Records of networks and nodes that cannot be read; those of attachments are told by
    /// [`unreadable_attachments`](Self::unreadable_attachments).
    pub(crate) fn unreadable(&self) -> Result<Vec<Error>> {
        let (_, mut errors) = self.read_networks()?;
        errors.extend(self.node_record::<crate::overlay::NodeRecord>().err());
        Ok(errors)
    }

    /// What was before us; nothing if nobody knows.
    pub(crate) fn before(&self) -> Before {
        read_record(&self.dir.join("before.json")).ok().flatten().unwrap_or_default()
    }

    /// Replaces it. Needs the exclusive lock.
    pub(crate) fn save_before(&self, before: &Before) -> Result<()> {
        let path = self.dir.join("before.json");
        if *before == Before::default() { remove_file(&path) } else { write_record(&path, before) }
    }

    /// Needs the exclusive lock.
    pub(crate) fn save_network(&self, network: &Network) -> Result<()> {
        let dir = self.addresses_dir(&network.name);
        fs::create_dir_all(&dir).map_err(Error::io("cannot make", dir))?;
        write_record(&self.network_path(&network.name), network)
    }

    /// Needs the exclusive lock.
    pub(crate) fn remove_network(&self, name: &str) -> Result<()> {
        let dir = self.addresses_dir(name);
        match fs::remove_dir_all(&dir) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(Error::io("cannot remove", dir)(error));
            }
            _ => {}
        }
        let path = self.network_path(name);
        remove_file(&temporary(&path))?;
        remove_file(&path)
    }

    /// What the nodes of the library know, across reboots.
    pub(crate) fn node_record<T: DeserializeOwned + Default>(&self) -> Result<T> {
        Ok(read_record(&self.base.join("node.json"))?.unwrap_or_default())
    }

    /// Replaces it, flushed to the disk: it has to survive a power failure. Needs the exclusive lock.
    pub(crate) fn save_node_record<T: Serialize>(&self, record: &T) -> Result<()> {
        let path = self.base.join("node.json");
        write_record(&path, record)?;
        let flushed = File::open(&path).and_then(|file| file.sync_all());
        flushed.map_err(Error::io("cannot flush", path))
    }

    /// Removes what writers of records left that were killed before it took its place. Needs the exclusive lock.
    pub(crate) fn remove_unfinished(&self) -> Result<()> {
        let mut errors = Vec::new();
        let dirs = ["", "networks", "attachments"].map(|name| self.dir.join(name));
        for dir in [self.base.clone()].into_iter().chain(dirs) {
            let unfinished = read_dir(&dir)?.into_iter().map(|entry| entry.path());
            let unfinished = unfinished.filter(|path| is_temporary(path));
            errors.extend(unfinished.filter_map(|path| remove_file(&path).err()));
        }
        Error::all(errors)
    }

    /// Puts the record of nodes aside: it cannot be read, and somebody knows what should stand there. Where it is now.
    pub(crate) fn put_node_record_aside(&self) -> Result<PathBuf> {
        let aside = self.base.join("node.json.unreadable");
        let moved = fs::rename(self.base.join("node.json"), &aside);
        moved.map_err(Error::io("cannot move aside to", &aside))?;
        Ok(aside)
    }

    /// Removes every record, locks and all. Needs the exclusive lock. They go at once: who waits for a lock finds none of it.
    pub(crate) fn remove_all(&self) -> Result<()> {
        let gone = self.base.with_extension(format!("gone-{}", std::process::id()));
        match fs::rename(&self.base, &gone) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            moved => moved.map_err(Error::io("cannot move aside to", &gone))?,
        }
        self.remove_gone()
    }

    /// Removes what was to be removed when somebody was killed.
    pub(crate) fn remove_gone(&self) -> Result<()> {
        let (Some(parent), Some(name)) = (self.base.parent(), self.base.file_name()) else {
            return Ok(());
        };
        let begin = format!("{}.gone-", name.to_string_lossy());
        for entry in read_dir(parent)? {
            if entry.file_name().to_string_lossy().starts_with(&begin) {
                let path = entry.path();
                fs::remove_dir_all(&path).map_err(Error::io("cannot remove", &path))?;
            }
        }
        Ok(())
    }
}

/// The kernel's name for the time since it was started.
fn boot_id() -> Result<&'static str> {
    const PATH: &str = "/proc/sys/kernel/random/boot_id";
    static ID: OnceLock<String> = OnceLock::new();
    if let Some(id) = ID.get() {
        return Ok(id);
    }
    let id = fs::read_to_string(PATH).map_err(Error::io("cannot read", PATH))?;
    Ok(ID.get_or_init(|| id.trim().to_owned()))
}

/// The entries of a directory; of one that is not there none.
pub(crate) fn read_dir(path: &Path) -> Result<Vec<fs::DirEntry>> {
    let entries = match fs::read_dir(path) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(Error::io("cannot list", path)(error)),
    };
    entries.collect::<io::Result<_>>().map_err(Error::io("cannot list", path))
}

fn is_temporary(path: &Path) -> bool {
    path.to_str().is_some_and(|path| path.ends_with(names::TEMPORARY))
}

/// Reads a record, if it is there.
pub(crate) fn read_record<T: DeserializeOwned>(path: &Path) -> Result<Option<T>> {
    use io::Read;
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::io("cannot open", path)(error)),
    };
    let mut text = Vec::new();
    let read = file.take(RECORD_BYTES_MAX).read_to_end(&mut text);
    read.map_err(Error::io("cannot read", path))?;
    let value = serde_json::from_slice(&text);
    value.map(Some).map_err(|why| Error::Record { path: path.to_owned(), why: why.to_string() })
}

/// Writes a record so that it is there whole or as it was.
///
/// Each record has one writer at a time, so one name will do; what a killed one left there is overwritten, and goes with the
/// record or with the next repair.
fn write_record<T: Serialize>(path: &Path, record: &T) -> Result<()> {
    let temporary = temporary(path);
    let written = File::create(&temporary)
        .and_then(|file| write_json(&file, record))
        .and_then(|()| fs::rename(&temporary, path));
    written.map_err(|error| {
        let _ = fs::remove_file(&temporary);
        Error::io("cannot write", path)(error)
    })
}

/// Where a record is written before it takes its place.
fn temporary(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(names::TEMPORARY);
    PathBuf::from(name)
}

fn write_json<T: Serialize>(mut file: &File, record: &T) -> io::Result<()> {
    file.write_all(&serde_json::to_vec(record)?)
}

pub(crate) fn remove_file(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(Error::io("cannot remove", path)(error))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::*;

    #[test]
    fn who_waits_for_a_lock_while_everything_is_removed_gets_one_that_others_respect() {
        let dir = tempfile::tempdir().unwrap();
        let host = Host::new(dir.path());
        let state = host.state().unwrap();
        let removing = state.lock_exclusive().unwrap();
        let (tell, told) = channel();
        let waiting = host.clone();
        let thread = std::thread::spawn(move || {
            let state = waiting.state().unwrap();
            tell.send(()).unwrap();
            let _lock = state.lock_exclusive().unwrap();
            tell.send(()).unwrap();
            // Others have to wait now.
            let other = File::open(state.dir.join("lock")).unwrap();
            assert!(matches!(other.try_lock(), Err(fs::TryLockError::WouldBlock)));
            assert!(state.dir.join("networks").is_dir());
        });
        told.recv().unwrap();
        // It waits, or will; either way it must be right.
        assert!(told.recv_timeout(Duration::from_millis(100)).is_err());
        state.remove_all().unwrap();
        drop(removing);
        thread.join().unwrap();
        let left: Vec<_> =
            read_dir(dir.path()).unwrap().iter().map(std::fs::DirEntry::file_name).collect();
        assert_eq!(left, ["pods"], "what was removed is gone");
    }
}
