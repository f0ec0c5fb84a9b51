//! The demo's cluster: the examples in a directory of their own, and the changes made to it.

use std::path::Path;

use anyhow::{Context, Result};
use tempfile::TempDir;

macro_rules! example {
    ($name:literal) => {
        ($name, include_str!(concat!("../../../../../examples/", $name)))
    };
}

/// The manifests of `examples/`.
const EXAMPLES: &[(&str, &str)] = &[
    example!("dns.yaml"),
    example!("frontend.yaml"),
    example!("nodes.yaml"),
    example!("orders.yaml"),
    example!("override.yaml"),
    example!("public.yaml"),
    example!("web.yaml"),
];

/// The nodes of the examples.
pub(super) const NODES: [&str; 2] = ["loom-a", "loom-b"];

/// A directory with the examples; gone with this value.
#[derive(Debug)]
pub(super) struct Stage {
    dir: TempDir,
}

impl Stage {
    /// Writes the examples into a new directory.
    pub(super) fn set() -> Result<Self> {
        let dir = tempfile::Builder::new()
            .prefix("telaio-demo-")
            .tempdir()
            .context("cannot make a directory for the demo")?;
        let stage = Self { dir };
        for sub in [stage.manifests(), stage.state()] {
            std::fs::create_dir(&sub).with_context(|| format!("cannot make {}", sub.display()))?;
        }
        for (name, text) in EXAMPLES {
            stage.write(name, text)?;
        }
        Ok(stage)
    }

    /// Where the manifests are.
    pub(super) fn manifests(&self) -> std::path::PathBuf {
        self.dir.path().join("manifests")
    }

    /// Where the source remembers the addresses that it gave.
    pub(super) fn state(&self) -> std::path::PathBuf {
        self.dir.path().join("state")
    }

    /// All that it has made.
    pub(super) fn root(&self) -> &Path {
        self.dir.path()
    }

    fn write(&self, name: &str, text: &str) -> Result<()> {
        let path = self.manifests().join(name);
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
    }

    /// Makes the change, and says what it is.
    pub(super) fn apply(&self, change: &Change) -> Result<()> {
        match change.edit {
            Edit::Replace { file, from, to } => {
                let text = example(file).replace(from, to);
                self.write(file, &text)
            }
            Edit::Remove { file } => {
                let path = self.manifests().join(file);
                std::fs::remove_file(&path)
                    .with_context(|| format!("cannot remove {}", path.display()))
            }
        }
    }
}

fn example(name: &str) -> &'static str {
    EXAMPLES.iter().find(|(file, _)| *file == name).map_or("", |(_, text)| text)
}

/// A change that the demo makes by itself.
#[derive(Debug, Clone, Copy)]
pub(super) struct Change {
    /// What it is, for people.
    pub(super) what: &'static str,
    edit: Edit,
    /// What every node must see then: a service and a part of one of its lines.
    pub(super) expected: (&'static str, &'static str),
}

#[derive(Debug, Clone, Copy)]
enum Edit {
    Replace { file: &'static str, from: &'static str, to: &'static str },
    Remove { file: &'static str },
}

/// The changes, in order.
pub(super) const CHANGES: &[Change] = &[
    Change {
        what: "the pod web-2 becomes ready (web.yaml is edited)",
        edit: Edit::Replace {
            file: "web.yaml",
            from: "conditions: { ready: false }",
            to: "conditions: { ready: true }",
        },
        expected: ("shop/web", "10.244.1.11:8080"),
    },
    Change {
        what: "the maintenance of public-2 is over (override.yaml is removed)",
        edit: Edit::Remove { file: "override.yaml" },
        expected: ("shop/public", "10.244.2.30:8443"),
    },
];

/// What a node must see at first: the node, a service, a part of one of its lines.
pub(super) const EXPECTED_AT_FIRST: &[(&str, &str, &str)] = &[
    ("loom-a", "shop/web", "10.96.0.10:80/TCP → 10.244.1.10:8080, 10.244.2.10:8080"),
    ("loom-b", "shop/web", "10.96.0.10:80/TCP → 10.244.1.10:8080, 10.244.2.10:8080"),
    ("loom-a", "shop/frontend", "node port 30080/TCP → 10.244.1.20:8000"),
    ("loom-b", "shop/frontend", "node port 30080/TCP → dropped"),
    ("loom-a", "kube-system/dns", "10.96.0.53:53/UDP → 10.244.1.53:5353"),
    ("loom-b", "kube-system/dns", "10.96.0.53:53/UDP → 10.244.2.53:5353"),
    (
        "loom-b",
        "shop/public",
        "192.0.2.80:443/TCP from 203.0.113.0/24, 198.51.100.7/32 → 10.244.1.30:8443",
    ),
    ("loom-a", "shop/orders", ":7000/TCP → 10.244.1.70:7070, 10.244.2.70:7171"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_example_is_in_the_demo() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
        let mut files: Vec<String> = std::fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| Path::new(name).extension().is_some_and(|end| end == "yaml"))
            .collect();
        files.sort();
        assert_eq!(files, EXAMPLES.iter().map(|(name, _)| *name).collect::<Vec<_>>());
    }

    #[test]
    fn every_change_changes_something_and_nothing_is_left() {
        let stage = Stage::set().unwrap();
        let root = stage.root().to_owned();
        for change in CHANGES {
            let before = content(&stage);
            stage.apply(change).unwrap();
            assert_ne!(content(&stage), before, "{}", change.what);
        }
        drop(stage);
        assert!(!root.exists());
    }

    fn content(stage: &Stage) -> Vec<(String, String)> {
        let mut files: Vec<_> = std::fs::read_dir(stage.manifests())
            .unwrap()
            .map(|entry| entry.unwrap())
            .map(|e| {
                (e.file_name().into_string().unwrap(), std::fs::read_to_string(e.path()).unwrap())
            })
            .collect();
        files.sort();
        files
    }
}
