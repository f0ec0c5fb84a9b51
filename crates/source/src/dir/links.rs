//! Which directory entries a path depends on, symbolic links included.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};

/// More links than any kernel follows.
const LINKS_MAX: usize = 40;

/// An entry of a directory; when it is replaced, what depends on it must be looked at again.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct DirEntryName {
    /// The directory, free of links.
    pub(super) dir: PathBuf,
    /// The name in it.
    pub(super) name: OsString,
}

/// The entries by which `path` is what it is: every link on the way, and the last entry, or the
/// first one that is missing.
///
/// For `file.yaml -> ..data/file.yaml` and `..data -> ..2026_01`, as Kubernetes mounts a ConfigMap,
/// these are `file.yaml`, `..data` and `..2026_01/file.yaml`.
pub(super) fn entries_behind(path: &Path) -> Vec<DirEntryName> {
    let mut entries = Vec::new();
    let Ok(absolute) = std::path::absolute(path) else { return entries };
    let mut current = PathBuf::new();
    let mut rest: VecDeque<OsString> = VecDeque::new();
    push_front(&mut rest, &absolute);
    let mut links = 0;
    while let Some(part) = rest.pop_front() {
        match Path::new(&part).components().next() {
            Some(Component::ParentDir) => {
                current.pop();
                continue;
            }
            Some(Component::Normal(_)) => {}
            _ => {
                current.push(part);
                continue;
            }
        }
        let next = current.join(&part);
        let entry = DirEntryName { dir: current.clone(), name: part };
        match std::fs::symlink_metadata(&next) {
            Ok(metadata) if metadata.is_symlink() && links < LINKS_MAX => {
                links += 1;
                entries.push(entry);
                let Ok(target) = std::fs::read_link(&next) else { break };
                push_front(&mut rest, &target);
                if target.is_absolute() {
                    current = PathBuf::new();
                }
            }
            Ok(_) => {
                if rest.is_empty() {
                    entries.push(entry);
                }
                current = next;
            }
            Err(_) => {
                entries.push(entry);
                break;
            }
        }
    }
    entries
}

/// Puts the parts of `path` before the rest.
fn push_front(rest: &mut VecDeque<OsString>, path: &Path) {
    for component in path.components().rev() {
        if component != Component::CurDir {
            rest.push_front(component.as_os_str().to_owned());
        }
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn every_link_on_the_way_counts() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        std::fs::create_dir(root.join("..1")).unwrap();
        std::fs::write(root.join("..1/a.yaml"), "").unwrap();
        symlink("..1", root.join("..data")).unwrap();
        symlink("..data/a.yaml", root.join("a.yaml")).unwrap();
        let entry = |dir: &Path, name: &str| DirEntryName { dir: dir.into(), name: name.into() };
        assert_eq!(
            entries_behind(&root.join("a.yaml")),
            [entry(&root, "a.yaml"), entry(&root, "..data"), entry(&root.join("..1"), "a.yaml")]
        );
        assert_eq!(entries_behind(&root.join("no/such")), [entry(&root, "no")]);
    }

    #[test]
    fn a_loop_of_links_ends() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        symlink("b", root.join("a")).unwrap();
        symlink("a", root.join("b")).unwrap();
        assert!(entries_behind(&root.join("a")).len() <= LINKS_MAX + 1);
    }
}
