use telaio_model::overrides::{LABEL_MANAGED_BY, MANAGED_BY};
use telaio_model::{AddedEndpoint, Meta, Object};

use super::*;
use crate::intern::Interner;
use crate::manifest::{Context, Format, read_file_content};

fn decided(name: &str, target: OverrideTarget, action: OverrideAction) -> Override {
    let mut meta = Meta::named(ObjectKey::new("shop", name));
    meta.labels.insert(LABEL_MANAGED_BY.into(), MANAGED_BY.into());
    Override {
        meta,
        object: ObjectKey::new("shop", "web"),
        target,
        action,
        by: "anna".into(),
        reason: "a \"reason\": # with odd --- text".into(),
        since_s: Some(1_700_000_000),
        until_s: Some(1_900_000_000),
    }
}

fn all() -> Vec<Override> {
    let address = || OverrideTarget::Address("10.0.0.9".parse().unwrap());
    let added = AddedEndpoint { port: Some(81), node: Some("n1".into()), weight: Some(2) };
    let routes = |host: Option<&str>| OverrideTarget::Routes {
        host: host.map(Into::into),
        path: host.map(|_| "/a".into()),
    };
    vec![
        decided("a", OverrideTarget::Pod("p".into()), OverrideAction::Drain),
        decided("b", OverrideTarget::Node("n1".into()), OverrideAction::Weight(7)),
        decided("c", address(), OverrideAction::Remove),
        decided("d", address(), OverrideAction::Add(added)),
        decided("e", address(), OverrideAction::Add(AddedEndpoint::default())),
        decided("f", routes(None), OverrideAction::Pause { retry_after_s: 5 }),
        decided("g", routes(Some("a.example")), OverrideAction::Pause { retry_after_s: 60 }),
    ]
}

/// Something new.
fn set(it: &Override) -> Change {
    Change { key: it.meta.key.clone(), before: None, after: Some(it.clone()) }
}

fn replace(before: &Override, after: &Override) -> Change {
    Change { before: Some(before.clone()), ..set(after) }
}

fn gone(it: &Override) -> Change {
    Change { key: it.meta.key.clone(), before: Some(it.clone()), after: None }
}

#[test]
fn what_is_written_is_read_back() {
    let ctx = Context::cluster(Interner::default());
    for decided in all() {
        let text = manifest(&decided).to_string();
        let content = read_file_content("x", text.as_bytes(), Format::Yaml, &ctx);
        assert_eq!(content.problems, [], "{text}");
        let Object::Override(read) = &content.objects[0].object else { panic!("{text}") };
        assert_eq!(**read, decided, "{text}");
        assert!(read.is_managed());
    }
}

#[tokio::test]
async fn a_directory_keeps_overrides_in_one_file() {
    let dir = tempfile::tempdir().unwrap();
    let writer = OverrideWriter::dir(dir.path());
    let file = dir.path().join(FILE);
    writer.write(all().iter().map(set).collect()).await.unwrap();
    let text = std::fs::read_to_string(&file).unwrap();
    assert_eq!(text.matches("\n---\n").count(), all().len(), "{text}");
    writer.write(all()[1..].iter().map(gone).collect()).await.unwrap();
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(text.contains("\"drain\"") && !text.contains("\"pause\""), "{text}");
    writer.write(vec![gone(&all()[0])]).await.unwrap();
    assert!(!file.exists(), "no overrides, no file");

    std::fs::write(&file, "kind: [").unwrap();
    let error = writer.write(vec![set(&all()[0])]).await.unwrap_err().to_string();
    assert!(error.contains("mend the file"), "{error}");
}

#[tokio::test]
async fn writers_at_the_same_time_lose_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    for i in 0..16 {
        let writer = OverrideWriter::dir(dir.path());
        let it = decided(&format!("o{i}"), OverrideTarget::Pod("p".into()), OverrideAction::Drain);
        tasks.spawn(async move { writer.write(vec![set(&it)]).await });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap().unwrap();
    }
    let text = std::fs::read_to_string(dir.path().join(FILE)).unwrap();
    assert_eq!(text.matches("\n---\n").count(), 16);
}

#[tokio::test]
async fn what_cannot_be_written_says_what_to_do() {
    let writer = OverrideWriter::dir("/no/such/directory");
    let it = all().remove(0);
    let error = writer.write(vec![set(&it)]).await.unwrap_err();
    assert!(error.to_string().contains("name a directory"), "{error}");
    let nowhere = OverrideWriter::Nowhere("decide at the brain".into());
    assert_eq!(nowhere.write(vec![]).await.unwrap_err().to_string(), "decide at the brain");
}

#[tokio::test]
async fn what_has_ended_is_removed_only_as_it_was_seen() {
    let dir = tempfile::tempdir().unwrap();
    let writer = OverrideWriter::dir(dir.path());
    let nothing = writer.remove_seen(all()).await.unwrap();
    assert!(nothing.is_empty() && std::fs::read_dir(dir.path()).unwrap().next().is_none());
    writer.write(all().iter().map(set).collect()).await.unwrap();
    // Somebody decides anew about one before it is removed.
    let (seen, anew) = (all(), Override { until_s: None, ..all().remove(0) });
    writer.write(vec![replace(&all()[0], &anew)]).await.unwrap();
    let removed = writer.remove_seen(seen.clone()).await.unwrap();
    let others: Vec<ObjectKey> = seen[1..].iter().map(|it| it.meta.key.clone()).collect();
    assert_eq!(removed, others);
    let text = std::fs::read_to_string(dir.path().join(FILE)).unwrap();
    assert!(text.contains("\"drain\"") && !text.contains("\"pause\""), "{text}");
    assert_eq!(writer.remove_seen(seen).await.unwrap(), [], "others were quicker");
    assert_eq!(writer.remove_seen(vec![anew]).await.unwrap().len(), 1);
    assert!(!dir.path().join(FILE).exists());
}

#[tokio::test]
async fn what_another_agent_decided_since_it_was_seen_is_not_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    let (one, other) = (OverrideWriter::dir(dir.path()), OverrideWriter::dir(dir.path()));
    let seen = all().remove(0);
    one.write(vec![set(&seen)]).await.unwrap();
    let theirs =
        Override { by: "bob".into(), action: OverrideAction::Weight(3), ..all().remove(0) };
    other.write(vec![replace(&seen, &theirs)]).await.unwrap();
    let kept = std::fs::read_to_string(dir.path().join(FILE)).unwrap();

    // Undoing, deciding anew, and deciding as if there were nothing; and beside what could be done.
    let anew = Override { until_s: None, ..seen.clone() };
    for change in [gone(&seen), replace(&seen, &anew), set(&anew)] {
        let error = one.write(vec![set(&all()[1]), change]).await.unwrap_err();
        assert!(matches!(&error, WriteError::Changed { now: Some(_), .. }), "{error}");
        assert!(error.to_string().contains("bob decided anew"), "{error}");
        assert_eq!(std::fs::read_to_string(dir.path().join(FILE)).unwrap(), kept, "all or none");
    }
    one.write(vec![gone(&theirs)]).await.unwrap();
    let error = other.write(vec![replace(&theirs, &anew)]).await.unwrap_err().to_string();
    assert!(error.contains("somebody took it back"), "{error}");
}

#[tokio::test]
async fn what_has_ended_is_in_nobodys_way() {
    let dir = tempfile::tempdir().unwrap();
    let writer = OverrideWriter::dir(dir.path());
    let ended = Override { until_s: Some(1), ..all().remove(0) };
    writer.write(vec![set(&ended)]).await.unwrap();
    writer.write(vec![set(&all()[0])]).await.unwrap();
    writer.write(vec![replace(&all()[0], &ended)]).await.unwrap();
    writer.write(vec![gone(&ended)]).await.unwrap();
    writer.write(vec![gone(&ended)]).await.unwrap();
    assert!(!dir.path().join(FILE).exists());
}

#[tokio::test]
async fn taking_back_what_stands_in_a_manifest_fails_and_names_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let writer = OverrideWriter::dir(dir.path());
    let below = dir.path().join("team");
    std::fs::create_dir(&below).unwrap();
    std::fs::write(dir.path().join("broken.yaml"), "kind: [").unwrap();
    for it in [all().remove(0), Override { until_s: Some(1), ..all().remove(0) }] {
        std::fs::write(below.join("decided.yaml"), manifest(&it).to_string()).unwrap();
        let error = writer.write(vec![gone(&it)]).await.unwrap_err();
        assert!(matches!(&error, WriteError::Elsewhere { .. }), "{error}");
        let wanted = below.join("decided.yaml").display().to_string();
        assert!(error.to_string().contains(&wanted), "{error}");
    }
}
