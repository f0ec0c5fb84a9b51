//! What people ask for: shown first, done, remembered, undone, and over in time.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::cast_precision_loss,
    reason = "what fails here fails the test"
)]

mod support;

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use serde_json::{Value, json};
use support::{ADMIN, Imagined, READ, Running, log, start, start_with, this_agent};
use telaio_gui::{AgentName, AuditLog, GuiSettings};
use telaio_model::{ObjectKey, Override};

const ACTIONS: &str = "/api/v1/actions";

fn drain(pod: &str) -> Value {
    json!({"kind": "drain", "service": {"namespace": "ns-0", "name": "web-0000"}, "target": {"pod": pod}})
}

/// Where an action is undone.
fn undo(done: &Value) -> String {
    format!("{ACTIONS}/{}/undo", done["id"].as_str().unwrap())
}

async fn act(server: &Running, request: &Value) -> Value {
    let answer = server.post(ACTIONS, request).await;
    assert_eq!(answer.status, 200, "{request}: {}", answer.body);
    answer.json()
}

async fn endpoint(server: &Running, address: &str) -> Value {
    let detail = server.json("/api/v1/services/ns-0/web-0000").await;
    let all = detail["endpoint_items"].as_array().unwrap();
    all.iter().find(|it| it["address"] == address).cloned().unwrap_or(Value::Null)
}

#[tokio::test]
async fn a_drain_is_shown_done_remembered_and_undone() {
    let server = start(Imagined::default()).await;
    let request =
        json!({"action": drain("web-0000-2"), "dry_run": true, "reason": "disk", "by": "anna"});
    let shown = act(&server, &request).await;
    assert_eq!(
        (&shown["dry_run"], &shown["touches_total"], &shown["id"]),
        (&json!(true), &json!(1), &Value::Null)
    );
    assert_eq!(shown["touches"][0]["before"], "ready, weight 1");
    assert_eq!(server.json("/api/v1/overrides").await["total"], 0, "nothing was done");
    assert_eq!(server.json("/api/v1/audit").await["total"], 0);

    let mut request = request;
    request["dry_run"] = json!(false);
    let done = act(&server, &request).await;
    assert_eq!(endpoint(&server, "10.0.0.2").await["drained"], true);
    let listed = server.json("/api/v1/overrides").await;
    let item = &listed["items"][0];
    assert_eq!(
        (&item["by"], &item["reason"], &item["managed"]),
        (&json!("anna (admin)"), &json!("disk"), &json!(true))
    );
    assert_eq!(item["touches"], 1);
    let entry = server.json("/api/v1/audit").await["items"][0].clone();
    assert_eq!(
        (&entry["id"], &entry["outcome"], &entry["from"]),
        (&done["id"], &json!("done"), &json!("127.0.0.1"))
    );

    let path = undo(&done);
    let shown = server.post(&path, &json!({"dry_run": true})).await;
    assert_eq!((shown.status, shown.json()["dry_run"].clone()), (200, json!(true)));
    assert_eq!(endpoint(&server, "10.0.0.2").await["drained"], true);
    let undone = server.post(&path, &json!({})).await;
    assert_eq!(undone.status, 200, "{}", undone.body);
    assert_eq!(endpoint(&server, "10.0.0.2").await["drained"], false);
    assert_eq!(server.post(&path, &json!({})).await.status, 409, "it was undone");
    // An undoing can be undone too.
    let again = undo(&undone.json());
    assert_eq!(server.post(&again, &json!({})).await.status, 200);
    assert_eq!(endpoint(&server, "10.0.0.2").await["drained"], true);
}

#[tokio::test]
async fn a_weight_replaces_a_drain_and_undoing_brings_the_drain_back() {
    let server = start(Imagined::default()).await;
    let first = act(&server, &json!({"action": drain("web-0000-1")})).await;
    let weight = json!({"kind": "weight", "service": {"namespace": "ns-0", "name": "web-0000"},
                        "target": {"pod": "web-0000-1"}, "weight": 5});
    let done = act(&server, &json!({"action": weight})).await;
    assert_eq!(endpoint(&server, "10.0.0.1").await["weight"], 5);
    server.post(&undo(&done), &json!({})).await;
    assert_eq!(endpoint(&server, "10.0.0.1").await["drained"], true);
    let undrain = json!({"kind": "undrain", "service": {"namespace": "ns-0", "name": "web-0000"},
                         "target": {"address": "10.0.0.1"}});
    act(&server, &json!({"action": undrain})).await;
    assert_eq!(
        endpoint(&server, "10.0.0.1").await["drained"],
        false,
        "by address, though drained by pod"
    );
    // The first was changed since: undoing it would undo more than itself.
    assert_eq!(server.post(&undo(&first), &json!({})).await.status, 409);
}

#[tokio::test]
async fn undoing_hands_on_what_was_seen_and_fails_where_another_agent_was_quicker() {
    let server = start(Imagined::default()).await;
    let done = act(&server, &json!({"action": drain("web-0000-1")})).await;
    let ours = server.agent.overrides.lock().values().next().cloned().unwrap();
    let theirs = Override { by: "bob".into(), ..Override::clone(&ours) };
    server.agent.unread.lock().insert(ours.meta.key.clone(), Arc::new(theirs));
    let refused = server.post(&undo(&done), &json!({})).await;
    assert_eq!(refused.status, 409, "{}", refused.body);
    assert!(refused.body.contains("was changed meanwhile"), "{}", refused.body);
    assert_eq!(endpoint(&server, "10.0.0.1").await["drained"], true);
    let entry = server.json("/api/v1/audit").await["items"][0].clone();
    assert_eq!(entry["outcome"], "failed", "{entry}");
    server.agent.unread.lock().clear();
    assert_eq!(server.post(&undo(&done), &json!({})).await.status, 200, "it can still be undone");
}

#[tokio::test]
async fn the_last_endpoint_is_warned_about() {
    let server = start(Imagined::default()).await;
    for pod in ["web-0000-1", "web-0000-2"] {
        act(&server, &json!({"action": drain(pod)})).await;
    }
    let shown = act(&server, &json!({"action": drain("web-0000-3"), "dry_run": true})).await;
    assert!(shown["warnings"][0].as_str().unwrap().contains("nobody is left"), "{shown}");
}

#[tokio::test]
async fn backends_are_added_and_removed_by_hand() {
    let server = start(Imagined::default()).await;
    let service = json!({"namespace": "ns-0", "name": "web-0000"});
    let add = json!({"kind": "add_backend", "service": service, "address": "10.9.9.9", "port": 81});
    act(&server, &json!({"action": add})).await;
    assert_eq!(endpoint(&server, "10.9.9.9").await["added"], true);
    assert_eq!(server.post(ACTIONS, &json!({"action": add})).await.status, 409, "it is there");
    let remove = |address: &str| json!({"action": {"kind": "remove_backend", "service": service, "target": {"address": address}}});
    act(&server, &remove("10.9.9.9")).await;
    assert_eq!(endpoint(&server, "10.9.9.9").await, Value::Null);
    let done = act(&server, &remove("10.0.0.3")).await;
    assert_eq!(endpoint(&server, "10.0.0.3").await["removed"], true);
    server.post(&undo(&done), &json!({})).await;
    assert_eq!(endpoint(&server, "10.0.0.3").await["removed"], false);
    for bad in ["127.0.0.1", "0.0.0.0", "224.0.0.1", "web"] {
        let add = json!({"kind": "add_backend", "service": service, "address": bad});
        assert_eq!(server.post(ACTIONS, &json!({"action": add})).await.status, 400, "{bad}");
    }
}

#[tokio::test]
async fn routes_are_paused_and_resumed() {
    let server = start(Imagined::default()).await;
    let ingress = json!({"namespace": "ns-0", "name": "shop"});
    let pause = json!({"kind": "pause_route", "ingress": ingress, "host": "shop.example"});
    let done = act(&server, &json!({"action": pause, "for_s": 600})).await;
    assert_eq!((&done["touches_total"], &done["override"]["action"]), (&json!(1), &json!("pause")));
    assert!(done["until_ms"].as_i64().unwrap() > 0);
    let resume = json!({"kind": "resume_route", "ingress": ingress, "host": "SHOP.example"});
    act(&server, &json!({"action": resume})).await;
    assert_eq!(server.json("/api/v1/overrides").await["total"], 0);
    assert_eq!(server.post(ACTIONS, &json!({"action": resume})).await.status, 404, "not paused");
    let other = json!({"kind": "pause_route", "ingress": ingress, "host": "other.example"});
    assert_eq!(server.post(ACTIONS, &json!({"action": other})).await.status, 404);
}

#[tokio::test]
async fn purging_and_syncing_are_noted_and_cannot_be_undone() {
    let server = start(Imagined::default()).await;
    let purge = json!({"kind": "purge_cache", "what": {"host": "shop.example"}});
    let done = act(&server, &json!({"action": purge})).await;
    assert_eq!((&done["purged"], &done["undoable"]), (&json!(7), &json!(false)));
    assert!(done["warnings"].to_string().contains("this node only"), "{done}");
    act(&server, &json!({"action": {"kind": "resync"}})).await;
    assert_eq!(server.json("/api/v1/audit").await["total"], 2);
    assert_eq!(server.post(&undo(&done), &json!({})).await.status, 409);
    let lasting = json!({"action": {"kind": "resync"}, "for_s": 60});
    assert_eq!(server.post(ACTIONS, &lasting).await.status, 400, "it does not last");
}

/// Waits until something holds.
async fn comes_true(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..1200 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("never: {what}");
}

#[tokio::test]
async fn what_ends_by_itself_is_removed_and_noted_once() {
    let server = start(Imagined::default()).await;
    act(&server, &json!({"action": drain("web-0000-1"), "for_s": 1})).await;
    assert_eq!(endpoint(&server, "10.0.0.1").await["drained"], true);
    let overrides = || server.agent.overrides.lock().is_empty();
    comes_true("it is removed", overrides).await;
    assert_eq!(endpoint(&server, "10.0.0.1").await["drained"], false);
    for _ in 0..200 {
        let audit = server.json("/api/v1/audit").await;
        if audit["total"] != 1 {
            assert_eq!(audit["items"][0]["outcome"], "expired", "{audit}");
            assert_eq!(audit["total"], 2, "{audit}");
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("the end is not noted");
}

/// An override that has ended.
async fn over(server: &Running) -> (ObjectKey, Arc<Override>) {
    act(server, &json!({"action": drain("web-0000-1")})).await;
    let (key, decided) = server.agent.overrides.lock().pop_first().unwrap();
    (key, Arc::new(Override { until_s: Some(1), ..Override::clone(&decided) }))
}

#[tokio::test]
async fn where_nothing_can_be_removed_it_is_tried_less_and_less_often() {
    let server = start(Imagined::default()).await;
    let (key, ended) = over(&server).await;
    server.agent.forbidden.store(true, SeqCst);
    server.agent.overrides.lock().insert(key, ended);
    let ticks = || server.agent.figures_asked.load(SeqCst);
    let begun = ticks();
    comes_true("a hundred ticks", || ticks() > begun + 100).await;
    let tried = server.agent.removals.load(SeqCst);
    assert!((1..=20).contains(&tried), "{tried} times in {} ticks", ticks() - begun);
    assert_eq!(server.json("/api/v1/audit").await["total"], 1, "only the drain");
}

#[tokio::test]
async fn nobody_waits_for_what_has_ended_to_be_removed() {
    let server = start(Imagined::default()).await;
    let (key, ended) = over(&server).await;
    server.agent.removing_hangs.store(true, SeqCst);
    server.agent.overrides.lock().insert(key, ended);
    comes_true("an attempt", || server.agent.removals.load(SeqCst) > 0).await;
    // It hangs for as long as this runs, and what people want is done meanwhile.
    let done = act(&server, &json!({"action": drain("web-0000-2")})).await;
    assert_eq!(endpoint(&server, "10.0.0.2").await["drained"], true);
    assert_eq!(server.post(&undo(&done), &json!({})).await.status, 200);
    let purge = json!({"kind": "purge_cache", "what": {"host": "shop.example"}});
    assert_eq!(act(&server, &json!({"action": purge})).await["purged"], 7);
}

#[tokio::test]
async fn what_decides_nothing_waits_for_nobody_who_decides() {
    let server = start(Imagined::default()).await;
    let done = act(&server, &json!({"action": drain("web-0000-1")})).await;
    server.agent.deciding_hangs.store(true, SeqCst);
    let deciding = async {
        server.post(ACTIONS, &json!({"action": drain("web-0000-2")})).await;
    };
    let asking = async {
        comes_true("a decision that hangs", || server.agent.decisions.load(SeqCst) == 2).await;
        act(&server, &json!({"action": drain("web-0000-3"), "dry_run": true})).await;
        let shown = server.post(&undo(&done), &json!({"dry_run": true})).await;
        assert_eq!(shown.status, 200, "{}", shown.body);
        act(&server, &json!({"action": {"kind": "resync"}})).await;
        let purge = json!({"kind": "purge_cache", "what": {"host": "shop.example"}});
        act(&server, &json!({"action": purge})).await;
    };
    tokio::select! {
        () = deciding => panic!("the decision should hang"),
        () = asking => {}
    }
}

#[tokio::test]
async fn what_another_agent_has_removed_is_not_noted_here() {
    let server = start(Imagined::default()).await;
    let (key, ended) = over(&server).await;
    // What is read is behind what is written: somebody has drained it anew.
    server.agent.behind.lock().push(ended);
    comes_true("an attempt", || server.agent.removals.load(SeqCst) > 0).await;
    let anew = act(&server, &json!({"action": drain("web-0000-1")})).await;
    comes_true("another attempt", || server.agent.removals.load(SeqCst) > 1).await;
    assert!(server.agent.overrides.lock().contains_key(&key), "the new drain stands");
    let audit = server.json("/api/v1/audit").await;
    assert_eq!((&audit["total"], &audit["items"][0]["id"]), (&json!(2), &anew["id"]), "{audit}");
}

#[tokio::test]
async fn clocks_differ_so_what_has_ended_stays_for_a_while() {
    let slow = |settings| GuiSettings { ended_grace: Duration::from_hours(1), ..settings };
    let server = start_with(Imagined::default(), slow, log()).await;
    act(&server, &json!({"action": drain("web-0000-1"), "for_s": 1})).await;
    comes_true("its end", || {
        let overrides = server.agent.overrides.lock();
        overrides.values().all(|it| !it.is_active(telaio_gui::agent::now_ms() / 1000))
    })
    .await;
    let ticks = || server.agent.figures_asked.load(SeqCst);
    let begun = ticks();
    comes_true("ten ticks", || ticks() > begun + 10).await;
    assert_eq!(server.agent.removals.load(SeqCst), 0);
    assert_eq!(endpoint(&server, "10.0.0.1").await["drained"], false, "it counts no more");
    assert_eq!(server.json("/api/v1/overrides").await["total"], 0);
    // People can remove it by its name at any time.
    let key = server.agent.overrides.lock().keys().next().cloned().unwrap();
    let name = json!({"namespace": key.namespace, "name": key.name});
    act(&server, &json!({"action": {"kind": "remove_override", "name": name}})).await;
    assert!(server.agent.overrides.lock().is_empty());
}

#[tokio::test]
async fn an_entry_of_another_agent_is_not_undone_here_and_is_said_to_be_there() {
    let one = start(Imagined::default()).await;
    let other = AuditLog::in_memory(AgentName::node("node-2"));
    let two = start_with(Imagined::default(), |it| it, other).await;
    let first = act(&one, &json!({"action": drain("web-0000-1")})).await;
    let second = act(&two, &json!({"action": drain("web-0000-2")})).await;
    let refused = one.post(&undo(&second), &json!({})).await;
    assert_eq!(refused.status, 404, "{}", refused.body);
    let message = refused.json()["message"].as_str().unwrap().to_owned();
    assert!(message.contains("the node node-2") && message.contains("node-1"), "{message}");
    assert_eq!(endpoint(&one, "10.0.0.1").await["drained"], true, "nothing else was undone");
    let audit = one.json("/api/v1/audit").await;
    let entry = &audit["items"][0];
    assert_eq!(entry["outcome"], "refused", "{audit}");
    assert!(entry["summary"].as_str().unwrap().contains(second["id"].as_str().unwrap()));
    // A node that nobody knows, a bare number, and what is none.
    let strange = AgentName::node("elsewhere").tag();
    for (id, wanted) in [
        (format!("{strange}-1"), "another agent"),
        ("1".to_owned(), "begins with a tag"),
        ("x-1".to_owned(), "is no number"),
        (format!("{}-99", this_agent().tag()), "has no entry"),
    ] {
        let refused = one.post(&format!("{ACTIONS}/{id}/undo"), &json!({})).await;
        assert_eq!(refused.status, 404, "{}", refused.body);
        assert!(refused.body.contains(wanted), "{id}: {}", refused.body);
    }
    assert_eq!(one.post(&undo(&first), &json!({})).await.status, 200);
    assert_eq!(one.post(&undo(&first), &json!({})).await.status, 409);
    assert_eq!(one.json("/api/v1/audit").await["items"][0]["outcome"], "refused");
}

#[tokio::test]
async fn who_may_only_look_and_tries_to_act_is_noted_and_not_without_end() {
    let server = start(Imagined::default()).await;
    let json = "Content-Type: application/json\r\n";
    for _ in 0..30 {
        let body = r#"{"action": {"kind": "resync"}}"#;
        assert_eq!(server.send("POST", ACTIONS, READ, json, body).await.status, 403);
    }
    let audit = server.json("/api/v1/audit").await;
    let entry = &audit["items"][0];
    assert_eq!((&entry["who"], &entry["outcome"]), (&json!("read-only"), &json!("refused")));
    assert!(audit["total"].as_u64().unwrap() <= 20, "{audit}");
    let done = server.send("POST", ACTIONS, ADMIN, json, r#"{"action": {"kind": "resync"}}"#).await;
    assert_eq!(done.status, 200);
}

#[tokio::test]
async fn taking_back_is_exact_and_shows_what_goes() {
    let server = start(Imagined::default()).await;
    let service = json!({"namespace": "ns-0", "name": "web-0000"});
    let of = |kind: &str, target: Value| json!({"action": {"kind": kind, "service": service, "target": target}});
    act(&server, &of("drain", json!({"node": "node-1"}))).await;
    let address = json!({"address": "10.0.0.1"});
    let refused = server.post(ACTIONS, &of("undrain", address.clone())).await;
    assert_eq!(refused.status, 404, "{}", refused.body);
    assert!(refused.body.contains("what runs on node-1"), "{}", refused.body);
    act(&server, &of("drain", address.clone())).await;
    let mut preview = of("undrain", address);
    preview["dry_run"] = json!(true);
    let shown = act(&server, &preview).await;
    assert!(shown["touches"][0]["after"].as_str().unwrap().contains("still: drain what runs on"));
    assert_eq!(shown["touches"][1]["kind"], "override", "{shown}");
    preview["dry_run"] = json!(false);
    act(&server, &preview).await;
    let left = server.json("/api/v1/overrides").await;
    assert_eq!(
        (&left["total"], &left["items"][0]["target"]),
        (&json!(1), &json!({"node": "node-1"}))
    );
    act(&server, &of("undrain", json!({"node": "node-1"}))).await;

    let ingress = json!({"namespace": "ns-0", "name": "shop"});
    let of = |kind: &str, host: Value, path: Value| json!({"action": {"kind": kind, "ingress": ingress, "host": host, "path": path}});
    let (host, path, any) = (json!("shop.example"), json!("/"), Value::Null);
    act(&server, &of("pause_route", host.clone(), path.clone())).await;
    let refused = server.post(ACTIONS, &of("resume_route", any.clone(), any.clone())).await;
    assert_eq!(refused.status, 404, "{}", refused.body);
    assert!(refused.body.contains("host shop.example, path /"), "{}", refused.body);
    act(&server, &of("pause_route", any.clone(), any.clone())).await;
    let resumed = act(&server, &of("resume_route", any.clone(), any)).await;
    assert!(resumed["touches"][0]["after"].as_str().unwrap().contains("still: pause"), "{resumed}");
    assert_eq!(resumed["touches"][1]["kind"], "override", "{resumed}");
    assert_eq!(server.json("/api/v1/overrides").await["total"], 1, "the narrower one stands");
    act(&server, &of("resume_route", host, path)).await;
    assert_eq!(server.json("/api/v1/overrides").await["total"], 0);
}

#[tokio::test]
async fn refusals_say_why_and_are_noted() {
    let server = start(Imagined::default()).await;
    let nobody = json!({"action": drain("nobody")});
    let refused = server.post(ACTIONS, &nobody).await;
    assert_eq!(refused.status, 404);
    let message = refused.json()["message"].as_str().unwrap().to_owned();
    assert!(message.contains("web-0000-1"), "{message}");
    assert_eq!(server.json("/api/v1/audit").await["items"][0]["outcome"], "refused");
    for bad in [
        json!({}),
        json!({"action": {"kind": "fly"}}),
        json!({"action": drain("web-0000-1"), "for_s": 0}),
        json!({"action": drain("web-0000-1"), "for_s": 1, "until_ms": 1}),
        json!({"action": drain("web-0000-1"), "until_ms": 1}),
        json!({"action": drain("web-0000-1"), "reason": "two\nlines"}),
        json!({"action": drain("web-0000-1"), "surprise": 1}),
    ] {
        assert_eq!(server.post(ACTIONS, &bad).await.status, 400, "{bad}");
    }
    let elsewhere =
        Imagined { read_only: Some("decide at the brain".into()), ..Imagined::default() };
    let server = start(elsewhere).await;
    let refused = server.post(ACTIONS, &json!({"action": drain("web-0000-1")})).await;
    assert_eq!(
        (refused.status, refused.json()["message"].as_str()),
        (503, Some("decide at the brain"))
    );
    assert_eq!(server.json("/api/v1/whoami").await["read_only_because"], "decide at the brain");
}

#[tokio::test]
async fn an_action_can_be_undone_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let log = || AuditLog::open(dir.path(), this_agent()).unwrap();
    let first = start_with(Imagined::default(), |it| it, log()).await;
    let done = act(&first, &json!({"action": drain("web-0000-2")})).await;
    let kept = first.agent.overrides.lock().clone();
    drop(first);
    let second = Imagined { overrides: kept.into(), ..Imagined::default() };
    let second = start_with(second, |it| it, log()).await;
    let undone = second.post(&undo(&done), &json!({})).await;
    assert_eq!(undone.status, 200, "{}", undone.body);
    assert!(second.agent.overrides.lock().is_empty());
}
