//! Records of attachments: begun, locked, replaced and removed, and what becomes of those that cannot be read.
//!
//! A file that says nothing is one of two things. Either its writer was killed before it had said anything: then nothing was made
//! and nothing claimed, and it can go. Or somebody has spoiled it, or it is of a release that said other things: then an
//! instance lives by it. What such a record tells of is left alone until it can be read, or somebody removes it.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::{
    State, is_temporary, read_dir, read_record, remove_file, temporary, write_json, write_record,
};
use crate::attachment::Attachment;
use crate::error::{Error, Result};
use crate::names;

impl State {
    pub(crate) fn attachment_path(&self, key: &str) -> PathBuf {
        self.dir.join("attachments").join(key)
    }

    /// An attachment by the key of its record; `Some(None)` if that cannot be read.
    #[expect(clippy::option_option, reason = "none, one that says nothing and one are three")]
    pub(crate) fn attachment(&self, key: &str) -> Result<Option<Option<Attachment>>> {
        let path = self.attachment_path(key);
        match read_record(&path) {
            Ok(Some(record)) => Ok(Some(Some(record))),
            Ok(None) => Ok(None),
            Err(Error::Record { .. }) => Ok(Some(None)),
            Err(error) => Err(error),
        }
    }

    /// All attachments by the key of their records, with those whose making was cut short before they said anything. Without those
    /// that cannot be read for another reason.
    pub(crate) fn attachments(&self) -> Result<Vec<(String, Option<Attachment>)>> {
        let mut found = Vec::new();
        for key in self.attachment_keys()? {
            match self.attachment(&key)? {
                Some(None) if !self.is_cut_short(&key)? => {}
                Some(record) => found.push((key, record)),
                None => {}
            }
        }
        Ok(found)
    }

    /// Records of attachments that cannot be read, and were not cut short.
    pub(crate) fn unreadable_attachments(&self) -> Result<Vec<Error>> {
        let mut found = Vec::new();
        for key in self.attachment_keys()? {
            if let Err(error @ Error::Record { .. }) =
                read_record::<Attachment>(&self.attachment_path(&key))
                && !self.is_cut_short(&key)?
            {
                found.push(error);
            }
        }
        found.sort_by_key(ToString::to_string);
        Ok(found)
    }

    /// The keys of all records.
    fn attachment_keys(&self) -> Result<Vec<String>> {
        let entries = read_dir(&self.dir.join("attachments"))?;
        let entries = entries.iter().filter(|entry| !is_temporary(&entry.path()));
        Ok(entries.filter_map(|entry| entry.file_name().into_string().ok()).collect())
    }

    /// Whether a record's writer was killed before it had said anything: it ends too early, and nothing is claimed in its name.
    pub(crate) fn is_cut_short(&self, key: &str) -> Result<bool> {
        let path = self.attachment_path(key);
        let text = match fs::read(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(true),
            text => text.map_err(Error::io("cannot read", &path))?,
        };
        let ends_early =
            serde_json::from_slice::<serde_json::Value>(&text).is_err_and(|error| error.is_eof());
        if !ends_early {
            return Ok(false);
        }
        let is_of_another = |claim: PathBuf| match read_record::<Attachment>(&claim) {
            Ok(Some(holder)) => key_of(&holder) != key,
            Ok(None) => true,
            // It says as little.
            Err(_) => false,
        };
        Ok(self.claims()?.into_iter().all(is_of_another))
    }

    /// The files of all claims, of addresses and of ports.
    fn claims(&self) -> Result<Vec<PathBuf>> {
        let mut found = Vec::new();
        for dir in read_dir(&self.dir.join("addresses"))? {
            let claims = read_dir(&dir.path())?.into_iter();
            // Beside them lies what was given last.
            let is_claim = |entry: &fs::DirEntry| {
                entry.file_name().to_str().is_some_and(|it| it.parse::<IpAddr>().is_ok())
            };
            found.extend(claims.filter(is_claim).map(|entry| entry.path()));
        }
        for dir in read_dir(&self.ports_dir())? {
            found.extend(read_dir(&dir.path())?.into_iter().map(|entry| entry.path()));
        }
        Ok(found)
    }

    /// What the claims of an attachment say of it, where its record does not: what it was to be when it was begun.
    pub(crate) fn claimed_by(&self, wanted: &Attachment) -> Result<Option<Attachment>> {
        let key = key_of(wanted);
        let holders = self.claims()?.into_iter();
        let mut holders = holders.filter_map(|path| read_record::<Attachment>(&path).ok()?);
        Ok(holders.find(|holder| key_of(holder) == key))
    }

    /// Begins a record; gives the lock on it. `None` if there is one of this key.
    pub(crate) fn begin_attachment(&self, key: &str, record: &Attachment) -> Result<Option<File>> {
        let path = self.attachment_path(key);
        let file = match File::options().write(true).create_new(true).open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::AlreadyExists => return Ok(None),
            Err(error) => return Err(Error::io("cannot make", path)(error)),
        };
        // Before the lock is ours somebody may take it for one that was cut short, and remove it.
        let begun = file.lock().and_then(|()| is_at(&file, &path)).and_then(|is_there| {
            if is_there {
                write_json(&file, record)?;
            }
            Ok(is_there)
        });
        let is_there = begun.inspect_err(|_| {
            // Half a record is of no use to anybody, and nothing has been made yet.
            let _ = fs::remove_file(&path);
        });
        Ok(is_there.map_err(Error::io("cannot write", path))?.then_some(file))
    }

    /// Locks a record for as long as the file is open; `None` if another call has it, or it is gone, or another by now.
    pub(crate) fn lock_attachment(&self, key: &str) -> Result<Option<File>> {
        let path = self.attachment_path(key);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Error::io("cannot open", path)(error)),
        };
        match file.try_lock() {
            // Whoever has written it anew has the lock on what was there before: it says nothing any more.
            Ok(()) if is_at(&file, &path).map_err(Error::io("cannot look at", &path))? => {
                Ok(Some(file))
            }
            Ok(()) | Err(fs::TryLockError::WouldBlock) => Ok(None),
            Err(fs::TryLockError::Error(error)) => Err(Error::io("cannot lock", path)(error)),
        }
    }

    /// Says in a record that its attachment is going; gives the lock on it. Whoever has the lock on what was there before loses nothing:
    /// the new one is locked before anybody sees it.
    pub(crate) fn save_as_going(&self, key: &str, record: &Attachment) -> Result<File> {
        let path = self.attachment_path(key);
        let temporary = temporary(&path);
        let going = Attachment { is_going: true, ..record.clone() };
        let written = File::create(&temporary).and_then(|file| {
            file.lock()?;
            write_json(&file, &going)?;
            fs::rename(&temporary, &path)?;
            Ok(file)
        });
        written.map_err(|error| {
            let _ = fs::remove_file(&temporary);
            Error::io("cannot write", path)(error)
        })
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
}

/// Whose claims count.
#[derive(Debug)]
pub(crate) struct Holders {
    keys: HashSet<String>,
    /// The addresses that are on record, by network.
    addresses: HashSet<(String, IpAddr)>,
    /// There is a record that cannot be read: whoever's claim says nothing may be of that one.
    has_unreadable: bool,
}

impl Holders {
    /// All that have a record.
    pub(crate) fn read(state: &State) -> Result<Self> {
        let keys = state.attachment_keys()?.into_iter().collect();
        let records = state.attachments()?.into_iter().filter_map(|(_, record)| record);
        let of = |record: Attachment| {
            let network = record.network;
            let addresses = record.addresses.into_iter();
            addresses.map(move |inet| (network.clone(), inet.address()))
        };
        let addresses = records.flat_map(of).collect();
        let has_unreadable = !state.unreadable_attachments()?.is_empty();
        Ok(Self { keys, addresses, has_unreadable })
    }

    /// Whether a claim's holder has a record.
    pub(crate) fn has(&self, holder: Option<&Attachment>) -> bool {
        holder.map_or(self.has_unreadable, |holder| self.keys.contains(&key_of(holder)))
    }

    /// Whether the holder of an address's claim has a record; one whose name cannot be read may have it.
    pub(crate) fn has_address(
        &self,
        network: &str,
        ip: IpAddr,
        holder: Option<&Attachment>,
    ) -> bool {
        self.has(holder) || (holder.is_none() && self.addresses.contains(&(network.to_owned(), ip)))
    }
}

fn key_of(record: &Attachment) -> String {
    names::attachment_key(&record.network, &record.container, &record.interface)
}

/// Whether an open file is the one at a path.
fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    match fs::metadata(path) {
        Ok(there) => Ok(there.ino() == file.metadata()?.ino()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}
