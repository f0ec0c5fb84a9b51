//! A file system for a kernel that has no other: an archive that it unpacks into memory when it starts.
//!
//! The format is cpio's "newc". What always holds: a directory comes before what is in it, and nothing
//! comes twice. Files are where they are on the host, and links stay links, for there are programs that
//! do what they are called.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

const DIRECTORY: u32 = 0o040_755;
const LINK: u32 = 0o120_777;
const FILE: u32 = 0o100_000;
/// The name that ends an archive.
const END: &str = "TRAILER!!!";
/// Links can go in circles.
const LINKS_MAX: usize = 16;

/// An archive that is being written.
pub(super) struct Initramfs<W> {
    out: W,
    /// What is in it.
    paths: BTreeSet<PathBuf>,
}

impl<W: Write> Initramfs<W> {
    /// An archive with nothing in it.
    pub(super) fn new(out: W) -> Self {
        Self { out, paths: BTreeSet::new() }
    }

    /// A directory, and those that it is in.
    pub(super) fn directory(&mut self, path: &Path) -> io::Result<()> {
        let Some(parent) = path.parent() else { return Ok(()) };
        if self.paths.contains(path) {
            return Ok(());
        }
        self.directory(parent)?;
        self.entry(path, DIRECTORY, &[])
    }

    /// A link.
    pub(super) fn link(&mut self, path: &Path, to: &Path) -> io::Result<()> {
        self.put(path, LINK, to.as_os_str().as_bytes())
    }

    /// A file with the content and the permissions of one of the host's.
    pub(super) fn file(&mut self, path: &Path, of: &Path) -> io::Result<()> {
        let mode = fs::metadata(of)?.permissions().mode() & 0o777;
        self.put(path, FILE | mode, &fs::read(of)?)
    }

    /// A file of the host's, where it is there, with the links that lead to it; where it is in the end.
    pub(super) fn take(&mut self, path: &Path) -> io::Result<PathBuf> {
        let mut path = path.to_owned();
        for _ in 0..LINKS_MAX {
            let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { break };
            // The directories are real ones here.
            let parent = parent.canonicalize()?;
            let here = parent.join(name);
            if !here.is_symlink() {
                self.file(&here, &here)?;
                return Ok(here);
            }
            let to = fs::read_link(&here)?;
            self.link(&here, &to)?;
            path = parent.join(to);
        }
        Err(io::Error::other(format!("{} leads nowhere", path.display())))
    }

    /// What is in a directory of the host's, and in those below.
    pub(super) fn take_tree(&mut self, path: &Path) -> io::Result<()> {
        self.directory(path)?;
        for entry in fs::read_dir(path)? {
            let path = entry?.path();
            if path.is_symlink() {
                self.link(&path, &fs::read_link(&path)?)?;
            } else if path.is_dir() {
                self.take_tree(&path)?;
            } else {
                self.file(&path, &path)?;
            }
        }
        Ok(())
    }

    /// The libraries that these programs of the host's are linked with, and what loads them.
    pub(super) fn take_libraries(&mut self, programs: &[PathBuf]) -> io::Result<()> {
        // It fails if one of them needs none, and lists those of the others all the same.
        let listed = Command::new("ldd").args(programs).output()?.stdout;
        let listed = String::from_utf8_lossy(&listed).into_owned();
        let words =
            listed.lines().filter(|line| line.starts_with('\t')).flat_map(str::split_whitespace);
        let paths: BTreeSet<&Path> =
            words.map(Path::new).filter(|path| path.is_absolute()).collect();
        for path in paths {
            self.take(path)?;
        }
        Ok(())
    }

    /// Ends the archive.
    pub(super) fn finish(mut self) -> io::Result<()> {
        self.entry(Path::new(END), 0, &[])?;
        self.out.flush()
    }

    fn put(&mut self, path: &Path, mode: u32, content: &[u8]) -> io::Result<()> {
        if self.paths.contains(path) {
            return Ok(());
        }
        self.directory(path.parent().unwrap_or(Path::new("/")))?;
        self.entry(path, mode, content)
    }

    fn entry(&mut self, path: &Path, mode: u32, content: &[u8]) -> io::Result<()> {
        self.paths.insert(path.to_owned());
        let name = path.strip_prefix("/").unwrap_or(path).as_os_str().as_bytes();
        let length = |length: usize| u32::try_from(length).map_err(io::Error::other);
        // Number, mode, owner, group, links, time, length, device, device of what it is, length of the
        // name with its end, checksum. No two numbers may be the same, or they would be one file.
        let number = length(self.paths.len())?;
        let (content_length, name_length) = (length(content.len())?, length(name.len() + 1)?);
        let fields = [number, mode, 0, 0, 1, 0, content_length, 0, 0, 0, 0, name_length, 0];
        let mut head = b"070701".to_vec();
        for field in fields {
            write!(head, "{field:08x}")?;
        }
        head.extend(name);
        head.push(0);
        for part in [&head[..], content] {
            self.out.write_all(part)?;
            self.out.write_all(&[0; 3][..part.len().wrapping_neg() % 4])?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_has_each_directory_once_and_before_what_is_in_it() {
        let mut bytes = Vec::new();
        let mut archive = Initramfs::new(&mut bytes);
        archive.link(Path::new("/a/b/one"), Path::new("two")).unwrap();
        archive.link(Path::new("/a/b/three"), Path::new("one")).unwrap();
        archive.link(Path::new("/a/b/one"), Path::new("again")).unwrap();
        archive.finish().unwrap();
        assert_eq!(bytes.len() % 4, 0);
        let text = String::from_utf8(bytes).unwrap();
        let names: Vec<&str> = text
            .split("070701")
            .skip(1)
            .map(|entry| entry[104..].split('\0').next().unwrap())
            .collect();
        assert_eq!(names, ["a", "a/b", "a/b/one", "a/b/three", END]);
        assert!(text.contains("a/b/one\0\0\0two\0"), "{text:?}");
    }
}
