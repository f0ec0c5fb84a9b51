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
    let set = |it: &Override| (it.meta.key.clone(), Some(it.clone()));
    writer.write(all().iter().map(set).collect()).await.unwrap();
    let text = std::fs::read_to_string(&file).unwrap();
    assert_eq!(text.matches("\n---\n").count(), all().len(), "{text}");
    let gone = |it: &Override| (it.meta.key.clone(), None);
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
        tasks.spawn(async move { writer.write(vec![(it.meta.key.clone(), Some(it))]).await });
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
    let error = writer.write(vec![(it.meta.key.clone(), Some(it))]).await.unwrap_err();
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
    writer
        .write(all().iter().map(|it| (it.meta.key.clone(), Some(it.clone()))).collect())
        .await
        .unwrap();
    // Somebody decides anew about one before it is removed.
    let (seen, anew) = (all(), Override { until_s: None, ..all().remove(0) });
    writer.write(vec![(anew.meta.key.clone(), Some(anew.clone()))]).await.unwrap();
    let removed = writer.remove_seen(seen.clone()).await.unwrap();
    let others: Vec<ObjectKey> = seen[1..].iter().map(|it| it.meta.key.clone()).collect();
    assert_eq!(removed, others);
    let text = std::fs::read_to_string(dir.path().join(FILE)).unwrap();
    assert!(text.contains("\"drain\"") && !text.contains("\"pause\""), "{text}");
    assert_eq!(writer.remove_seen(seen).await.unwrap(), [], "others were quicker");
    assert_eq!(writer.remove_seen(vec![anew]).await.unwrap().len(), 1);
    assert!(!dir.path().join(FILE).exists());
}
