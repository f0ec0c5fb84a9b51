//! A log in a file, of a bounded size.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use parking_lot::Mutex;
use tracing_subscriber::fmt::MakeWriter;

/// How large the file may grow; the one before it is kept, so twice that is on disk.
const BYTES_MAX: u64 = 10 << 20;

/// A log file. At its largest size it becomes `FILE.1`, and is begun anew.
#[derive(Debug, Clone)]
pub(super) struct LogFile(Arc<Mutex<Open>>);

#[derive(Debug)]
struct Open {
    path: PathBuf,
    file: File,
    bytes: u64,
    bytes_max: u64,
}

impl LogFile {
    /// Goes on where the last run ended.
    pub(super) fn open(path: &Path) -> Result<Self> {
        Self::bounded(path, BYTES_MAX)
    }

    fn bounded(path: &Path, bytes_max: u64) -> Result<Self> {
        let failed = || format!("cannot write the log to {} (--log-file)", path.display());
        if let Some(directory) = path.parent() {
            std::fs::create_dir_all(directory).with_context(failed)?;
        }
        let (file, bytes) = begin(path).with_context(failed)?;
        let open = Open { path: path.to_owned(), file, bytes, bytes_max };
        Ok(Self(Arc::new(Mutex::new(open))))
    }
}

fn begin(path: &Path) -> io::Result<(File, u64)> {
    let file = OpenOptions::new().create(true).append(true).open(path)?;
    let bytes = file.metadata()?.len();
    Ok((file, bytes))
}

impl Open {
    fn turn_over(&mut self) -> io::Result<()> {
        let mut kept = self.path.clone().into_os_string();
        kept.push(".1");
        // If that fails, somebody reads it perhaps: the file grows on, and it is tried again.
        if std::fs::rename(&self.path, kept).is_ok() {
            (self.file, self.bytes) = begin(&self.path)?;
        } else {
            self.bytes = 0;
        }
        Ok(())
    }
}

/// One line, or a part of one.
#[derive(Debug)]
pub(super) struct LogWriter(LogFile);

impl Write for LogWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut open = self.0.0.lock();
        if open.bytes >= open.bytes_max {
            open.turn_over()?;
        }
        let written = open.file.write(line)?;
        open.bytes += u64::try_from(written).unwrap_or_default();
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.0.lock().file.flush()
    }
}

impl MakeWriter<'_> for LogFile {
    type Writer = LogWriter;

    fn make_writer(&self) -> LogWriter {
        LogWriter(self.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_file_is_kept_and_begun_anew_and_the_next_run_goes_on() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("logs/telaio.log");
        let write = |text: &str| {
            let log = LogFile::bounded(&path, 8).unwrap();
            log.make_writer().write_all(text.as_bytes()).unwrap();
        };
        let read = |name: &str| std::fs::read_to_string(dir.path().join("logs").join(name));
        write("one\n");
        write("three\n");
        assert_eq!(read("telaio.log").unwrap(), "one\nthree\n");
        assert!(read("telaio.log.1").is_err());
        write("four\n");
        assert_eq!(read("telaio.log").unwrap(), "four\n");
        assert_eq!(read("telaio.log.1").unwrap(), "one\nthree\n");
    }

    #[test]
    fn a_place_that_cannot_be_written_is_named_with_the_flag() {
        let dir = tempfile::tempdir().unwrap();
        let error = LogFile::open(dir.path()).unwrap_err().to_string();
        assert!(error.contains("--log-file"), "{error}");
    }
}
