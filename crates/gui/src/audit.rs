//! The audit log: who did what, when, and how to undo it.
//!
//! One line of JSON an entry, in a file that only its owner reads. When it is full it becomes
//! `audit.log.1`, in place of the one before. The last entries are held, so that they can be shown
//! and undone, over restarts too. What was refused is held apart: asking in vain pushes out nothing
//! that can be undone.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use telaio_model::{ObjectKey, Override};

use crate::entry_id::{AgentName, entry_id, number_of};
use crate::values::action::{AuditEntry, Outcome};

/// The file's name in the state directory.
pub const FILE: &str = "audit.log";
/// How long the file may be; there are two.
const FILE_BYTES_MAX: u64 = 4 << 20;
/// How many entries are held, and of them how many that were refused.
const HELD_MAX: usize = 1000;
const REFUSED_MAX: usize = 200;

/// One override before and after an action.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// Its name.
    pub key: ObjectKey,
    /// As it was.
    pub before: Option<Override>,
    /// As it is.
    pub after: Option<Override>,
}

/// An entry as it is kept.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Kept {
    #[serde(flatten)]
    pub(crate) entry: AuditEntry,
    #[serde(default)]
    pub(crate) steps: Vec<Step>,
}

#[derive(Debug, Default)]
struct Inner {
    entries: VecDeque<Kept>,
    next_id: u64,
    file: Option<(File, u64)>,
}

/// The log.
#[derive(Debug)]
pub struct AuditLog {
    agent: AgentName,
    tag: String,
    path: Option<PathBuf>,
    inner: Mutex<Inner>,
}

impl AuditLog {
    /// The log of this agent in this directory.
    pub fn open(state_dir: &Path, agent: AgentName) -> io::Result<Self> {
        let path = state_dir.join(FILE);
        let mut inner = Inner { next_id: 1, ..Inner::default() };
        for file in [rotated(&path), path.clone()] {
            inner.load(&file)?;
        }
        inner.file = Some(open(&path)?);
        Ok(Self { tag: agent.tag(), agent, path: Some(path), inner: Mutex::new(inner) })
    }

    /// A log that nothing is written of, for where there is no state directory.
    pub fn in_memory(agent: AgentName) -> Self {
        let inner = Mutex::new(Inner { next_id: 1, ..Inner::default() });
        Self { tag: agent.tag(), agent, path: None, inner }
    }

    /// Whose it is.
    pub(crate) fn agent(&self) -> &AgentName {
        &self.agent
    }

    /// What its numbers begin with.
    pub(crate) fn tag(&self) -> &str {
        &self.tag
    }

    /// Notes an entry; gives it with its number. What cannot be written is held, and logged.
    pub(crate) fn append(&self, mut kept: Kept) -> AuditEntry {
        let mut inner = self.inner.lock();
        kept.entry.id = entry_id(&self.tag, inner.next_id);
        inner.next_id += 1;
        if let Err(error) = self.write(&mut inner, &kept) {
            // A part of the line may stand there; opening anew begins another.
            inner.file = None;
            tracing::error!(%error, "the audit log cannot be written");
        }
        let entry = kept.entry.clone();
        inner.hold(kept);
        tracing::info!(
            id = %entry.id, who = %entry.who, from = %entry.from, outcome = ?entry.outcome,
            "{}", entry.summary
        );
        entry
    }

    fn write(&self, inner: &mut Inner, kept: &Kept) -> io::Result<()> {
        let Some(path) = &self.path else { return Ok(()) };
        let mut line = serde_json::to_vec(kept)?;
        line.push(b'\n');
        let is_full = inner.file.as_ref().is_some_and(|(_, length)| *length >= FILE_BYTES_MAX);
        if is_full || inner.file.is_none() {
            inner.file = None;
            if is_full {
                std::fs::rename(path, rotated(path))?;
            }
            inner.file = Some(open(path)?);
        }
        if let Some((file, length)) = &mut inner.file {
            file.write_all(&line)?;
            file.sync_data()?;
            *length += line.len() as u64;
        }
        Ok(())
    }

    /// The entry of this number, if it is still held.
    pub(crate) fn get(&self, id: &str) -> Option<Kept> {
        let inner = self.inner.lock();
        inner.entries.iter().find(|kept| kept.entry.id == id).cloned()
    }

    /// All that are held, newest first.
    pub(crate) fn entries(&self) -> Vec<AuditEntry> {
        self.inner.lock().entries.iter().rev().map(|kept| kept.entry.clone()).collect()
    }
}

impl Inner {
    fn load(&mut self, path: &Path) -> io::Result<()> {
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        for line in BufReader::new(file).split(b'\n') {
            // A line that a crash cut off, or of a later release, is left.
            if let Ok(kept) = serde_json::from_slice::<Kept>(&line?) {
                let number = number_of(&kept.entry.id).unwrap_or_default();
                self.next_id = self.next_id.max(number.saturating_add(1));
                self.hold(kept);
            }
        }
        Ok(())
    }

    fn hold(&mut self, kept: Kept) {
        if let Some(undone) = &kept.entry.undoes
            && let Some(entry) = self.entries.iter_mut().find(|it| it.entry.id == *undone)
            && kept.entry.outcome == Outcome::Done
        {
            entry.entry.undone_by = Some(kept.entry.id.clone());
            entry.entry.undoable = false;
        }
        let is_refused = |it: &Kept| it.entry.outcome == Outcome::Refused;
        if is_refused(&kept)
            && self.entries.iter().filter(|it| is_refused(it)).count() >= REFUSED_MAX
        {
            let oldest = self.entries.iter().position(is_refused);
            oldest.and_then(|at| self.entries.remove(at));
        }
        if self.entries.len() >= HELD_MAX {
            self.entries.pop_front();
        }
        self.entries.push_back(kept);
    }
}

fn rotated(path: &Path) -> PathBuf {
    path.with_extension("log.1")
}

fn open(path: &Path) -> io::Result<(File, u64)> {
    let mut options = OpenOptions::new();
    options.append(true).create(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(path)?;
    let length = file.metadata()?.len();
    // A line that was cut off must not swallow the next.
    if length > 0 {
        file.write_all(b"\n")?;
    }
    Ok((file, length))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::Role;
    use crate::values::action::Outcome;

    fn agent() -> AgentName {
        AgentName::node("loom-a")
    }

    fn id(number: u64) -> String {
        entry_id(&agent().tag(), number)
    }

    fn kept(summary: &str, undoes: Option<u64>) -> Kept {
        Kept {
            entry: AuditEntry {
                id: String::new(),
                at_ms: 1,
                who: "anna".into(),
                role: Role::Admin,
                from: "127.0.0.1".into(),
                action: None,
                summary: summary.into(),
                reason: String::new(),
                until_ms: None,
                outcome: Outcome::Done,
                error: None,
                undoes: undoes.map(id),
                undone_by: None,
                undoable: true,
            },
            steps: Vec::new(),
        }
    }

    #[test]
    fn entries_outlive_a_restart_and_a_line_that_was_cut_off() {
        let dir = tempfile::tempdir().unwrap();
        let log = AuditLog::open(dir.path(), agent()).unwrap();
        assert_eq!(log.append(kept("one", None)).id, id(1));
        assert_eq!(log.append(kept("two", Some(1))).id, id(2));
        assert_eq!(log.get(&id(1)).unwrap().entry.undone_by, Some(id(2)));
        drop(log);
        let path = dir.path().join(FILE);
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(b"{\"id\": 3, cut").unwrap();
        let log = AuditLog::open(dir.path(), agent()).unwrap();
        assert_eq!(log.get(&id(1)).unwrap().entry.undone_by, Some(id(2)));
        assert_eq!(log.append(kept("three", None)).id, id(3));
        drop(log);
        let log = AuditLog::open(dir.path(), agent()).unwrap();
        let summaries: Vec<_> = log.entries().into_iter().map(|it| it.summary).collect();
        assert_eq!(summaries, ["three", "two", "one"]);
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        }
    }

    #[test]
    fn entries_of_the_time_before_tags_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let mut old = serde_json::to_value(kept("old", None)).unwrap();
        old["id"] = 7.into();
        old["undone_by"] = 8.into();
        std::fs::write(dir.path().join(FILE), format!("{old}\n")).unwrap();
        let log = AuditLog::open(dir.path(), agent()).unwrap();
        assert_eq!(log.get("7").unwrap().entry.undone_by.as_deref(), Some("8"));
        assert_eq!(log.append(kept("new", None)).id, id(8));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn what_could_not_be_written_whole_does_not_glue_to_the_next_line() {
        let dir = tempfile::tempdir().unwrap();
        let log = AuditLog::open(dir.path(), agent()).unwrap();
        // A disk that is full takes the beginning of a line, and then nothing.
        let path = dir.path().join(FILE);
        OpenOptions::new().append(true).open(&path).unwrap().write_all(b"{\"id\": ").unwrap();
        let full = OpenOptions::new().append(true).open("/dev/full").unwrap();
        log.inner.lock().file = Some((full, 0));
        log.append(kept("lost", None));
        log.append(kept("kept", None));
        drop(log);
        let log = AuditLog::open(dir.path(), agent()).unwrap();
        let summaries: Vec<_> = log.entries().into_iter().map(|it| it.summary).collect();
        assert_eq!(summaries, ["kept"]);
    }

    #[test]
    fn refusals_do_not_push_out_what_can_be_undone() {
        let log = AuditLog::in_memory(agent());
        log.append(kept("done", None));
        for _ in 0..2 * HELD_MAX {
            let mut refused = kept("refused", None);
            refused.entry.outcome = Outcome::Refused;
            log.append(refused);
        }
        assert!(log.get(&id(1)).is_some());
        assert_eq!(log.entries().len(), REFUSED_MAX + 1);
    }

    #[test]
    fn a_full_file_makes_room_for_another_and_there_are_two() {
        let dir = tempfile::tempdir().unwrap();
        let log = AuditLog::open(dir.path(), agent()).unwrap();
        let text = "x".repeat(64 << 10);
        for _ in 0..200 {
            log.append(kept(&text, None));
        }
        let files: Vec<_> = std::fs::read_dir(dir.path()).unwrap().flatten().collect();
        assert_eq!(files.len(), 2);
        let total: u64 = files.iter().map(|it| it.metadata().unwrap().len()).sum();
        assert!(total < 2 * FILE_BYTES_MAX + (1 << 20), "{total}");
        assert_eq!(log.entries().len(), 200);
    }
}
