//! Records on disk, and who may change them.
//!
//! Below the state directory, in `pods/`:
//!
//! | path | what |
//! |---|---|
//! | `node.json` | nodes of the library and their peers: what a reboot does not change |
//! | `boot-ID/lock` | shared by those who attach and detach, exclusive for who changes networks or mends |
//! | `boot-ID/ports.lock` | whoever claims ports of the node |
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

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::attachment::Attachment;
use crate::error::{Error, Result};
use crate::names;
use crate::network::{GROUP_FIRST, NETWORKS_MAX, Network};

/// Where state is kept unless said otherwise.
pub const STATE_DIR: &str = "/var/lib/telaio";
/// The largest record that is read: far above any of ours.
const RECORD_BYTES_MAX: u64 = 4 << 20;

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

    /// Every network on record, by name. One that cannot be read is an error.
    pub fn networks(&self) -> Result<Vec<Network>> {
        self.state()?.networks()
    }

    /// Every attachment on record. One whose making was cut short is not among them.
    pub fn attachments(&self) -> Result<Vec<Attachment>> {
        let mut found: Vec<_> =
            self.state()?.attachments()?.into_iter().filter_map(|(_, record)| record).collect();
        found.sort_by(|a, b| (&a.network, &a.container).cmp(&(&b.network, &b.container)));
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

/// A lock that ends with this value.
#[derive(Debug)]
#[must_use]
pub(crate) struct Lock {
    _file: File,
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

    /// With others who attach and detach.
    pub(crate) fn lock_shared(&self) -> Result<Lock> {
        let file = self.lock_file("lock")?;
        file.lock_shared().map_err(Error::io("cannot lock", self.dir.join("lock")))?;
        Ok(Lock { _file: file })
    }

    /// With nobody else.
    pub(crate) fn lock_exclusive(&self) -> Result<Lock> {
        let file = self.lock_file("lock")?;
        file.lock().map_err(Error::io("cannot lock", self.dir.join("lock")))?;
        Ok(Lock { _file: file })
    }

    /// With nobody else who claims ports.
    pub(crate) fn lock_ports(&self) -> Result<Lock> {
        let file = self.lock_file("ports.lock")?;
        file.lock().map_err(Error::io("cannot lock", self.dir.join("ports.lock")))?;
        Ok(Lock { _file: file })
    }

    fn network_path(&self, name: &str) -> PathBuf {
        self.dir.join("networks").join(names::network_key(name))
    }

    /// Where the claims of a network's addresses are.
    pub(crate) fn addresses_dir(&self, network: &str) -> PathBuf {
        self.dir.join("addresses").join(names::network_key(network))
    }

    /// Where the claims of the node's ports are.
    pub(crate) fn ports_dir(&self) -> PathBuf {
        self.dir.join("ports")
    }

    pub(crate) fn network(&self, name: &str) -> Result<Option<Network>> {
        read_record(&self.network_path(name))
    }

    pub(crate) fn networks(&self) -> Result<Vec<Network>> {
        let mut found: Vec<Network> = Vec::new();
        for entry in read_dir(&self.dir.join("networks"))? {
            if !is_temporary(&entry.path()) {
                found.extend(read_record::<Network>(&entry.path())?);
            }
        }
        found.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(found)
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

    /// A group that no network has. Needs the exclusive lock.
    pub(crate) fn free_group(&self) -> Result<u32> {
        let taken: Vec<u32> = self.networks()?.iter().map(|network| network.group).collect();
        let free = (GROUP_FIRST..GROUP_FIRST + NETWORKS_MAX).find(|group| !taken.contains(group));
        free.ok_or_else(|| Error::Invalid {
            field: "network",
            why: format!("this node has {NETWORKS_MAX} networks already; remove one"),
        })
    }

    pub(crate) fn attachment_path(&self, key: &str) -> PathBuf {
        self.dir.join("attachments").join(key)
    }

    /// An attachment by the key of its record; `Some(None)` if its making was cut short before it was whole.
    #[expect(clippy::option_option, reason = "none, unfinished and whole are three")]
    pub(crate) fn attachment(&self, key: &str) -> Result<Option<Option<Attachment>>> {
        let path = self.attachment_path(key);
        match read_record(&path) {
            Ok(Some(record)) => Ok(Some(Some(record))),
            Ok(None) => Ok(None),
            Err(Error::Record { .. }) => Ok(Some(None)),
            Err(error) => Err(error),
        }
    }

    /// All attachments by the key of their records, with those whose making was cut short.
    pub(crate) fn attachments(&self) -> Result<Vec<(String, Option<Attachment>)>> {
        let mut found = Vec::new();
        for entry in read_dir(&self.dir.join("attachments"))? {
            let name = entry.file_name();
            let (Some(key), false) = (name.to_str(), is_temporary(&entry.path())) else { continue };
            if let Some(record) = self.attachment(key)? {
                found.push((key.to_owned(), record));
            }
        }
        Ok(found)
    }

    /// Begins a record; gives the lock on it. `None` if there is one of this key.
    pub(crate) fn begin_attachment(&self, key: &str, record: &Attachment) -> Result<Option<File>> {
        let path = self.attachment_path(key);
        let file = match File::options().write(true).create_new(true).open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::AlreadyExists => return Ok(None),
            Err(error) => return Err(Error::io("cannot make", path)(error)),
        };
        let begun = file.lock().and_then(|()| write_json(&file, record));
        begun.map_err(Error::io("cannot write", path))?;
        Ok(Some(file))
    }

    /// Locks a record for as long as the file is open; `None` if another call has it, or it is gone.
    pub(crate) fn lock_attachment(&self, key: &str) -> Result<Option<File>> {
        let path = self.attachment_path(key);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Error::io("cannot open", path)(error)),
        };
        match file.try_lock() {
            Ok(()) => Ok(Some(file)),
            Err(fs::TryLockError::WouldBlock) => Ok(None),
            Err(fs::TryLockError::Error(error)) => Err(Error::io("cannot lock", path)(error)),
        }
    }

    /// Replaces a record.
    pub(crate) fn save_attachment(&self, key: &str, record: &Attachment) -> Result<()> {
        write_record(&self.attachment_path(key), record)
    }

    /// Removes a record; that it is gone already is no fault.
    pub(crate) fn remove_attachment(&self, key: &str) -> Result<()> {
        let path = self.attachment_path(key);
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
        for dir in [self.base.clone(), self.dir.join("networks"), self.dir.join("attachments")] {
            let unfinished = read_dir(&dir)?.into_iter().map(|entry| entry.path());
            let unfinished = unfinished.filter(|path| is_temporary(path));
            errors.extend(unfinished.filter_map(|path| remove_file(&path).err()));
        }
        Error::all(errors)
    }

    /// Removes every record, locks and all. Needs the exclusive lock.
    pub(crate) fn remove_all(&self) -> Result<()> {
        match fs::remove_dir_all(&self.base) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(Error::io("cannot remove", &self.base)(error))
            }
            _ => Ok(()),
        }
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
    path.extension().is_some_and(|extension| extension == "new")
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
    name.push(".new");
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
