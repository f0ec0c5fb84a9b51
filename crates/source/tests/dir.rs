//! The directory source, live: every way in which files change.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "helpers of tests")]
#![cfg(unix)]

use std::collections::BTreeMap;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use telaio_model::{Batch, Object, ObjectChange, ObjectRef};
use telaio_source::dir::{DirOptions, DirSource};
use telaio_source::{BATCH_QUEUE_MAX, Status};
use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// How long a test waits for what must come; far more than it ever takes.
const PATIENCE: Duration = Duration::from_secs(20);

/// A running source and all that it has said.
struct Running {
    status: Arc<Status>,
    batches: mpsc::Receiver<Batch>,
    objects: BTreeMap<ObjectRef, Object>,
    batches_seen: usize,
    task: JoinHandle<()>,
}

impl Running {
    fn start(root: &Path) -> Self {
        Self::start_with(root, DirOptions::default())
    }

    fn start_with(root: &Path, options: DirOptions) -> Self {
        let status = Arc::new(Status::default());
        let (tx, batches) = mpsc::channel(BATCH_QUEUE_MAX);
        let task = tokio::spawn(DirSource::new(root, options, status.clone()).run(tx));
        Self { status, batches, objects: BTreeMap::new(), batches_seen: 0, task }
    }

    /// Takes the next batch; every change in it must be a real one.
    async fn next(&mut self) -> Batch {
        let batch = tokio::time::timeout(PATIENCE, self.batches.recv());
        let batch = batch.await.expect("a batch must come").expect("the source must go on");
        self.batches_seen += 1;
        for change in &batch.changes {
            match change.clone() {
                ObjectChange::Set(object) => {
                    let before = self.objects.insert(object.object_ref(), object.clone());
                    assert_ne!(before, Some(object), "an object was sent without a change");
                }
                ObjectChange::Delete(object) => {
                    assert!(self.objects.remove(&object).is_some(), "{object} was deleted twice");
                }
            }
        }
        batch
    }

    /// Takes batches until the objects are these.
    async fn until(&mut self, expected: &[&str]) {
        while self.names() != expected {
            let seen = self.batches_seen;
            self.next().await;
            assert!(seen < 100, "there is no end of batches: {:?}", self.names());
        }
    }

    fn names(&self) -> Vec<String> {
        self.objects.keys().map(|object| object.key.to_string()).collect()
    }

    /// Waits until the problems are as wanted; they come without a batch.
    async fn until_problems(&self, wanted: impl Fn(&[String]) -> bool) {
        let poll = async {
            loop {
                let problems: Vec<_> =
                    self.status.problems().iter().map(ToString::to_string).collect();
                if wanted(&problems) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let problems = || self.status.problems();
        tokio::time::timeout(PATIENCE, poll)
            .await
            .unwrap_or_else(|_| panic!("problems are {:?}", problems()));
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn namespace(name: &str) -> String {
    format!("apiVersion: v1\nkind: Namespace\nmetadata:\n  name: {name}\n")
}

fn root() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("manifests");
    std::fs::create_dir(&root).unwrap();
    (dir, root)
}

/// Replaces a file as editors do: a new one, renamed over the old one.
fn replace(path: &Path, text: &str) {
    let new = path.with_file_name(".new~");
    std::fs::write(&new, text).unwrap();
    std::fs::rename(new, path).unwrap();
}

#[tokio::test]
async fn an_empty_directory_syncs() {
    let (_dir, root) = root();
    let mut running = Running::start(&root);
    assert_eq!(running.next().await, Batch { changes: vec![], synced: true });
    assert!(running.status.is_connected());
}

#[tokio::test]
async fn files_come_change_and_go() {
    let (_dir, root) = root();
    std::fs::write(root.join("a.yaml"), namespace("a")).unwrap();
    let mut running = Running::start(&root);
    assert!(running.next().await.synced);
    running.until(&["a"]).await;
    std::fs::write(root.join("b.yaml"), namespace("b")).unwrap();
    running.until(&["a", "b"]).await;
    replace(&root.join("b.yaml"), &namespace("c"));
    running.until(&["a", "c"]).await;
    std::fs::rename(root.join("a.yaml"), root.join("a.txt")).unwrap();
    running.until(&["c"]).await;
    std::fs::remove_file(root.join("b.yaml")).unwrap();
    running.until(&[]).await;
}

#[tokio::test]
async fn a_file_written_in_two_strokes_is_read_when_it_is_closed() {
    use std::io::Write as _;
    let (_dir, root) = root();
    let path = root.join("a.yaml");
    std::fs::write(&path, namespace("a")).unwrap();
    let mut running = Running::start(&root);
    running.until(&["a"]).await;
    // Opening truncates: for a moment the file is empty, which must not delete anything.
    let mut file = std::fs::File::create(&path).unwrap();
    file.write_all(namespace("a").as_bytes()).unwrap();
    file.write_all(b"---\n").unwrap();
    file.write_all(namespace("b").as_bytes()).unwrap();
    drop(file);
    let batch = running.next().await;
    assert_eq!(batch.changes.len(), 1, "{batch:?}");
    running.until(&["a", "b"]).await;
}

#[tokio::test]
async fn a_file_that_becomes_empty_keeps_its_objects_until_it_is_removed() {
    let (_dir, root) = root();
    let path = root.join("a.yaml");
    std::fs::write(&path, namespace("a")).unwrap();
    let mut running = Running::start(&root);
    running.until(&["a"]).await;
    std::fs::write(&path, "").unwrap();
    running
        .until_problems(|problems| problems.len() == 1 && problems[0].contains("is empty"))
        .await;
    assert_eq!(running.names(), ["a"]);
    std::fs::remove_file(&path).unwrap();
    running.until(&[]).await;
}

#[tokio::test]
async fn saving_a_file_without_a_change_sends_nothing() {
    let (_dir, root) = root();
    std::fs::write(root.join("a.yaml"), namespace("a")).unwrap();
    let mut running = Running::start(&root);
    running.until(&["a"]).await;
    let commented = format!("# a comment\n{}", namespace("a"));
    replace(&root.join("a.yaml"), &commented);
    replace(&root.join("b.yaml"), &namespace("b"));
    let batch = running.next().await;
    assert_eq!(batch.changes.len(), 1, "{batch:?}");
    running.until(&["a", "b"]).await;
}

#[tokio::test]
async fn a_broken_file_keeps_its_last_good_objects_until_it_is_mended() {
    let (_dir, root) = root();
    let path = root.join("a.yaml");
    std::fs::write(&path, format!("{}---\n{}", namespace("a"), namespace("b"))).unwrap();
    let mut running = Running::start(&root);
    running.until(&["a", "b"]).await;
    replace(&path, &format!("{}---\n{}", namespace("a"), namespace("B_ad")));
    running
        .until_problems(|problems| {
            problems.len() == 1 && problems[0].contains("a.yaml:9: Namespace B_ad: metadata.name: ")
        })
        .await;
    assert_eq!(running.names(), ["a", "b"]);
    replace(&path, &format!("{}---\n{}", namespace("a"), namespace("good")));
    running.until(&["a", "good"]).await;
    running.until_problems(<[String]>::is_empty).await;
}

#[tokio::test]
async fn a_file_that_was_never_good_serves_its_valid_objects() {
    let (_dir, root) = root();
    let path = root.join("a.yaml");
    std::fs::write(&path, format!("{}---\n{}", namespace("a"), namespace("B_ad"))).unwrap();
    let mut running = Running::start(&root);
    running.until(&["a"]).await;
    assert_eq!(running.status.problems().len(), 1);
    replace(&path, &format!("{}---\n{}", namespace("c"), namespace("B_ad")));
    running.until(&["c"]).await;
    std::fs::remove_file(&path).unwrap();
    running.until(&[]).await;
    running.until_problems(<[String]>::is_empty).await;
}

#[tokio::test]
async fn a_second_declaration_takes_over_when_the_first_goes() {
    let (_dir, root) = root();
    let labelled = |value: &str| format!("{}  labels: {{by: {value}}}\n", namespace("a"));
    std::fs::write(root.join("1.yaml"), labelled("first")).unwrap();
    std::fs::write(root.join("2.yaml"), labelled("second")).unwrap();
    let mut running = Running::start(&root);
    running.until(&["a"]).await;
    let by = |running: &Running| match running.objects.values().next() {
        Some(Object::Namespace(namespace)) => namespace.meta.labels.get("by").unwrap().to_string(),
        other => panic!("{other:?}"),
    };
    assert_eq!(by(&running), "first");
    assert_eq!(running.status.problems().len(), 1);
    std::fs::remove_file(root.join("1.yaml")).unwrap();
    running.next().await;
    assert_eq!(by(&running), "second");
    running.until_problems(<[String]>::is_empty).await;
}

#[tokio::test]
async fn a_new_subdirectory_is_read_with_what_is_in_it_at_once() {
    let (_dir, root) = root();
    let mut running = Running::start(&root);
    running.next().await;
    for round in 0..5 {
        let sub = root.join(format!("x/y/z{round}"));
        std::fs::create_dir_all(&sub).unwrap();
        std::fs::write(sub.join("a.yaml"), namespace(&format!("a{round}"))).unwrap();
    }
    running.until(&["a0", "a1", "a2", "a3", "a4"]).await;
    std::fs::write(root.join("x/y/z3/b.yaml"), namespace("b")).unwrap();
    running.until(&["a0", "a1", "a2", "a3", "a4", "b"]).await;
    std::fs::remove_dir_all(root.join("x/y")).unwrap();
    running.until(&[]).await;
    std::fs::create_dir_all(root.join("x/y")).unwrap();
    std::fs::write(root.join("x/y/c.yaml"), namespace("c")).unwrap();
    running.until(&["c"]).await;
}

#[tokio::test]
async fn a_renamed_directory_is_still_watched() {
    let (_dir, root) = root();
    std::fs::create_dir(root.join("old")).unwrap();
    std::fs::write(root.join("old/a.yaml"), namespace("a")).unwrap();
    let mut running = Running::start(&root);
    running.until(&["a"]).await;
    std::fs::rename(root.join("old"), root.join("new")).unwrap();
    std::fs::write(root.join("new/b.yaml"), namespace("b")).unwrap();
    running.until(&["a", "b"]).await;
    std::fs::write(root.join("new/a.yaml"), namespace("c")).unwrap();
    running.until(&["b", "c"]).await;
}

/// Swaps what a ConfigMap volume shows, as the kubelet does.
fn mount(root: &Path, version: &str, files: &[(&str, &str)]) {
    let data = root.join(format!("..{version}"));
    std::fs::create_dir(&data).unwrap();
    for (name, text) in files {
        std::fs::write(data.join(name), text).unwrap();
    }
    symlink(format!("..{version}"), root.join("..data_tmp")).unwrap();
    let before = std::fs::read_link(root.join("..data")).ok();
    std::fs::rename(root.join("..data_tmp"), root.join("..data")).unwrap();
    for (name, _) in files {
        if std::fs::symlink_metadata(root.join(name)).is_err() {
            symlink(format!("..data/{name}"), root.join(name)).unwrap();
        }
    }
    if let Some(before) = before {
        std::fs::remove_dir_all(root.join(before)).unwrap();
    }
}

#[tokio::test]
async fn a_mounted_config_map_is_followed_through_swaps() {
    let (_dir, root) = root();
    mount(&root, "2026_01", &[("a.yaml", &namespace("a")), ("b.yaml", &namespace("b"))]);
    let mut running = Running::start(&root);
    running.until(&["a", "b"]).await;
    mount(&root, "2026_02", &[("a.yaml", &namespace("a")), ("b.yaml", &namespace("c"))]);
    running.until(&["a", "c"]).await;
    mount(&root, "2026_03", &[("a.yaml", &namespace("d")), ("b.yaml", &namespace("e"))]);
    running.until(&["d", "e"]).await;
}

#[tokio::test]
async fn a_linked_file_is_followed_to_where_it_lies() {
    let (dir, root) = root();
    let elsewhere = dir.path().join("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    std::fs::write(elsewhere.join("real.yaml"), namespace("a")).unwrap();
    symlink("../elsewhere/real.yaml", root.join("link.yaml")).unwrap();
    let mut running = Running::start(&root);
    running.until(&["a"]).await;
    std::fs::write(elsewhere.join("real.yaml"), namespace("b")).unwrap();
    running.until(&["b"]).await;
    replace(&elsewhere.join("real.yaml"), &namespace("c"));
    running.until(&["c"]).await;
}

#[tokio::test]
async fn a_root_that_is_a_link_can_be_swapped() {
    let dir = tempfile::tempdir().unwrap();
    for (version, name) in [("v1", "a"), ("v2", "b"), ("v3", "c")] {
        std::fs::create_dir(dir.path().join(version)).unwrap();
        std::fs::write(dir.path().join(version).join("x.yaml"), namespace(name)).unwrap();
    }
    let root = dir.path().join("current");
    let point_to = |version: &str| {
        symlink(version, dir.path().join("next")).unwrap();
        std::fs::rename(dir.path().join("next"), &root).unwrap();
    };
    point_to("v1");
    let mut running = Running::start(&root);
    running.until(&["a"]).await;
    point_to("v2");
    running.until(&["b"]).await;
    // The new directory is watched, the old one is not.
    std::fs::write(dir.path().join("v1/y.yaml"), namespace("old")).unwrap();
    std::fs::write(dir.path().join("v2/y.yaml"), namespace("new")).unwrap();
    running.until(&["b", "new"]).await;
    point_to("v3");
    running.until(&["c"]).await;
}

#[tokio::test]
async fn a_root_that_is_not_there_yet_is_picked_up_when_it_comes() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("a/b/manifests");
    let mut running = Running::start(&root);
    running.until_problems(|problems| problems.len() == 1).await;
    assert!(!running.status.is_synced());
    std::fs::create_dir_all(&root).unwrap();
    std::fs::write(root.join("a.yaml"), namespace("a")).unwrap();
    running.until(&["a"]).await;
    running.until_problems(<[String]>::is_empty).await;
    assert!(running.status.is_connected());
}

#[tokio::test]
async fn what_a_lost_root_held_stands_until_it_comes_back() {
    let (dir, root) = root();
    std::fs::write(root.join("a.yaml"), namespace("a")).unwrap();
    let mut running = Running::start(&root);
    running.until(&["a"]).await;
    std::fs::rename(&root, dir.path().join("away")).unwrap();
    running.until_problems(|problems| problems.len() == 1).await;
    assert!(!running.status.is_connected());
    assert_eq!(running.names(), ["a"]);
    std::fs::create_dir(&root).unwrap();
    std::fs::write(root.join("b.yaml"), namespace("b")).unwrap();
    running.until(&["b"]).await;
    running.until_problems(<[String]>::is_empty).await;
}

#[tokio::test]
async fn a_root_that_is_a_file_is_watched_too() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("all.yaml");
    std::fs::write(&root, namespace("a")).unwrap();
    let mut running = Running::start(&root);
    running.until(&["a"]).await;
    replace(&root, &namespace("b"));
    running.until(&["b"]).await;
}

fn service(name: &str, spec: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata:\n  name: {name}\nspec:\n  ports: [{{port: 80}}]\n{spec}"
    )
}

fn pod(name: &str, ip: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\n  labels: {{app: web}}\n  \
         annotations: {{telaio.dev/ip: \"{ip}\"}}\n"
    )
}

fn with_cidr(state_dir: Option<PathBuf>) -> DirOptions {
    DirOptions {
        service_cidrs: vec!["10.96.0.0/16".parse().unwrap()],
        state_dir,
        ..DirOptions::default()
    }
}

fn addresses(running: &Running) -> BTreeMap<String, String> {
    let services = running.objects.values().filter_map(|object| match object {
        Object::Service(service) => Some((
            service.meta.key.name.to_string(),
            service.cluster_ips.iter().map(ToString::to_string).collect::<Vec<_>>().join(","),
        )),
        _ => None,
    });
    services.collect()
}

#[tokio::test]
async fn addresses_are_the_same_after_a_restart() {
    let (dir, root) = root();
    let state = dir.path().join("state");
    for name in ["a", "b", "c"] {
        std::fs::write(root.join(format!("{name}.yaml")), service(name, "")).unwrap();
    }
    let mut running = Running::start_with(&root, with_cidr(Some(state.clone())));
    running.until(&["default/a", "default/b", "default/c"]).await;
    let before = addresses(&running);
    drop(running);
    // Somebody chose for b an address that it would not get by itself; that must survive.
    let file = state.join("allocations.json");
    let saved = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, saved.replace(&before["b"], "10.96.7.7")).unwrap();
    let mut running = Running::start_with(&root, with_cidr(Some(state)));
    running.until(&["default/a", "default/b", "default/c"]).await;
    let after = addresses(&running);
    assert_eq!((&after["a"], &after["c"]), (&before["a"], &before["c"]));
    assert_eq!(after["b"], "10.96.7.7");
}

#[tokio::test]
async fn a_damaged_state_is_reported_and_laid_aside() {
    let (dir, root) = root();
    let state = dir.path().join("state");
    std::fs::create_dir(&state).unwrap();
    std::fs::write(state.join("allocations.json"), "{\"version\": 1, \"serv").unwrap();
    std::fs::write(root.join("a.yaml"), service("a", "")).unwrap();
    let mut running = Running::start_with(&root, with_cidr(Some(state.clone())));
    running.until(&["default/a"]).await;
    running
        .until_problems(|problems| problems.len() == 1 && problems[0].contains("is damaged"))
        .await;
    assert!(state.join("allocations.json.unusable").exists());
    assert!(state.join("allocations.json").exists());
}

#[tokio::test]
async fn a_service_gets_its_endpoints_from_the_instances_that_match() {
    let (_dir, root) = root();
    std::fs::write(root.join("web.yaml"), service("web", "  selector: {app: web}\n")).unwrap();
    std::fs::write(root.join("web-1.yaml"), pod("web-1", "10.0.0.1")).unwrap();
    let mut running = Running::start_with(&root, with_cidr(None));
    running.next().await;
    let endpoints = |running: &Running| -> Vec<String> {
        let slices = running.objects.values().filter_map(|object| match object {
            Object::EndpointSlice(slice) => Some(slice),
            _ => None,
        });
        slices.flat_map(|slice| &slice.endpoints).map(|e| e.address.to_string()).collect()
    };
    assert_eq!(endpoints(&running), ["10.0.0.1"]);
    std::fs::write(root.join("web-2.yaml"), pod("web-2", "10.0.0.2")).unwrap();
    running.next().await;
    assert_eq!(endpoints(&running), ["10.0.0.1", "10.0.0.2"]);
    std::fs::remove_file(root.join("web-1.yaml")).unwrap();
    running.next().await;
    assert_eq!(endpoints(&running), ["10.0.0.2"]);
}

#[tokio::test]
async fn the_source_ends_when_nobody_listens() {
    let (_dir, root) = root();
    let status = Arc::new(Status::default());
    let (tx, mut batches) = mpsc::channel(1);
    let task = tokio::spawn(DirSource::new(&root, DirOptions::default(), status).run(tx));
    assert!(batches.recv().await.unwrap().synced);
    drop(batches);
    tokio::time::timeout(PATIENCE, task).await.expect("the source must end").unwrap();
}

#[test]
fn addresses_of_services_that_are_gone_serve_those_that_are_new() {
    let (_dir, root) = root();
    let state = tempfile::tempdir().unwrap();
    let options = || DirOptions {
        // Room for very few.
        service_cidrs: vec!["10.7.0.0/30".parse().unwrap()],
        state_dir: Some(state.path().to_owned()),
        ..DirOptions::default()
    };
    let load = || {
        let status = Arc::new(Status::default());
        let batch = DirSource::new(&root, options(), Arc::clone(&status)).load_once();
        assert_eq!(status.problems(), [], "{batch:?}");
        batch
    };
    let names = |first: char| [format!("{first}-1"), format!("{first}-2")];
    for first in ['a', 'b'] {
        let texts = names(first).map(|name| service(&name, ""));
        std::fs::write(root.join("all.yaml"), texts.join("---\n")).unwrap();
        assert_eq!(load().changes.len(), 2, "the services {first} get addresses");
    }
}

#[test]
fn a_service_that_was_a_name_gets_its_endpoints_when_it_becomes_one() {
    let (_dir, root) = root();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let path = root.join("web.yaml");
    let selector = "  selector: {app: web}\n";
    let external = format!("  type: ExternalName\n  externalName: db.example\n{selector}");
    std::fs::write(&path, service("web", &external)).unwrap();
    std::fs::write(root.join("pod.yaml"), pod("web-1", "10.0.0.1")).unwrap();
    runtime.block_on(async {
        let mut running = Running::start_with(&root, with_cidr(None));
        let slices = |running: &Running| {
            running.objects.values().filter(|it| matches!(it, Object::EndpointSlice(_))).count()
        };
        running.next().await;
        assert_eq!(slices(&running), 0);
        replace(&path, &service("web", selector));
        while slices(&running) == 0 {
            running.next().await;
        }
    });
}
