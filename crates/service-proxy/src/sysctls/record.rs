//! What settings were before us, on disk.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};

/// One setting.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Kept {
    /// What it was before us.
    pub(super) before: String,
    /// What we made of it: one value, or two while it is being changed from one to the other.
    pub(super) ours: Vec<String>,
}

/// All settings that we changed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    /// The kernel's name for its own run. After a restart of the machine all settings are as they
    /// were, and the record is worth nothing.
    pub(super) boot: String,
    /// Each by its file.
    pub(super) settings: BTreeMap<String, Kept>,
}

impl Record {
    /// Reads it; a file that does not exist is an empty record. An error says what is wrong with it.
    pub(super) fn load(path: &Path) -> Result<Self, String> {
        let text = match fs::read(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(error.to_string()),
        };
        serde_json::from_slice(&text).map_err(|error| error.to_string())
    }

    /// Writes it: the old one or the new one is on disk at any moment. An empty record is no file.
    pub(super) fn save(&self, path: &Path) -> io::Result<()> {
        if self.settings.is_empty() {
            return match fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            };
        }
        let directory = path.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(directory)?;
        let next = path.with_extension("next");
        let mut file = File::create(&next)?;
        file.write_all(&serde_json::to_vec_pretty(self)?)?;
        file.sync_all()?;
        fs::rename(&next, path)?;
        File::open(directory)?.sync_all()
    }
}
