//! Reading and parsing files, on all cores.

use std::fs::File;
use std::io::{self, Read as _};
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::Problem;
use crate::manifest::{Context, FILE_BYTES_MAX, FileContent, Format, read_file_content, too_large};

/// Fewer files than this are not worth a further thread.
const FILES_PER_THREAD_MIN: usize = 32;

/// What came of reading a file.
pub(super) struct Loaded {
    /// What it holds; `None` for one that has gone meanwhile.
    pub(super) content: Option<FileContent>,
    /// The system would not let it be read, which may pass without the file changing.
    pub(super) read_failed: bool,
}

/// Reads files, in the order given.
pub(super) fn load(paths: Vec<Arc<Path>>, ctx: &Context) -> Vec<(Arc<Path>, Loaded)> {
    let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let threads = paths.len().div_ceil(FILES_PER_THREAD_MIN).clamp(1, cores);
    if threads == 1 {
        return paths.into_iter().map(|path| (read(&path, ctx), path)).map(swap).collect();
    }
    let next = AtomicUsize::new(0);
    let work = || {
        let mut contents = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(path) = paths.get(index) else { return contents };
            contents.push((index, read(path, ctx)));
        }
    };
    let mut contents: Vec<(usize, Loaded)> = std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
        let mut contents = work();
        for other in others {
            match other.join() {
                Ok(more) => contents.extend(more),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        contents
    });
    contents.sort_unstable_by_key(|(index, _)| *index);
    paths.into_iter().zip(contents.into_iter().map(|(_, content)| content)).collect()
}

fn swap<A, B>((a, b): (A, B)) -> (B, A) {
    (b, a)
}

fn read(path: &Path, ctx: &Context) -> Loaded {
    let name = path.display().to_string();
    let problem = |problem| Some(FileContent { objects: Vec::new(), problems: vec![problem] });
    let mut read_failed = false;
    let content = match read_bytes(path) {
        Ok(Ok(bytes)) => {
            let format = Format::of(path).unwrap_or(Format::Yaml);
            Some(read_file_content(&name, &bytes, format, ctx))
        }
        Ok(Err(size_bytes)) => problem(too_large(&name, size_bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => {
            read_failed = true;
            let message = format!("cannot be read: {error}");
            problem(Problem { origin: name, object: None, field: None, message })
        }
    };
    Loaded { content, read_failed }
}

/// The bytes of a file, or its size if that is too large.
fn read_bytes(path: &Path) -> io::Result<Result<Vec<u8>, u64>> {
    let file = File::open(path)?;
    let size_bytes = file.metadata()?.len();
    if size_bytes > FILE_BYTES_MAX {
        return Ok(Err(size_bytes));
    }
    let mut bytes = Vec::with_capacity(size_bytes as usize);
    // The file may grow while it is read.
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    let size_bytes = bytes.len() as u64;
    Ok(if size_bytes > FILE_BYTES_MAX { Err(size_bytes) } else { Ok(bytes) })
}
