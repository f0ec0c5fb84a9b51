//! What people ask for: shown first, done, remembered, undone, and over in time.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::cast_precision_loss,
    reason = "what fails here fails the test"
)]

mod support;

use std::time::Duration;

use serde_json::{Value, json};
use support::{Imagined, Running, start, start_with};
use telaio_gui::AuditLog;

const ACTIONS: &str = "/api/v1/actions";

fn drain(pod: &str) -> Value {
    json!({"kind": "drain", "service": {"namespace": "ns-0", "name": "web-0000"}, "target": {"pod": pod}})
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

    let undo = format!("{ACTIONS}/{}/undo", done["id"]);
    let shown = server.post(&undo, &json!({"dry_run": true})).await;
    assert_eq!((shown.status, shown.json()["dry_run"].clone()), (200, json!(true)));
    assert_eq!(endpoint(&server, "10.0.0.2").await["drained"], true);
    let undone = server.post(&undo, &json!({})).await;
    assert_eq!(undone.status, 200, "{}", undone.body);
    assert_eq!(endpoint(&server, "10.0.0.2").await["drained"], false);
    assert_eq!(server.post(&undo, &json!({})).await.status, 409, "it was undone");
    // An undoing can be undone too.
    let again = format!("{ACTIONS}/{}/undo", undone.json()["id"]);
    assert_eq!(server.post(&again, &json!({})).await.status, 200);
    assert_eq!(endpoint(&server, "10.0.0.2").await["drained"], true);
}

#[tokio::test]
async fn a_weight_replaces_a_drain_and_undoing_brings_the_drain_back() {
    let server = start(Imagined::default()).await;
    act(&server, &json!({"action": drain("web-0000-1")})).await;
    let weight = json!({"kind": "weight", "service": {"namespace": "ns-0", "name": "web-0000"},
                        "target": {"pod": "web-0000-1"}, "weight": 5});
    let done = act(&server, &json!({"action": weight})).await;
    assert_eq!(endpoint(&server, "10.0.0.1").await["weight"], 5);
    server.post(&format!("{ACTIONS}/{}/undo", done["id"]), &json!({})).await;
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
    assert_eq!(server.post(&format!("{ACTIONS}/1/undo"), &json!({})).await.status, 409);
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
    server.post(&format!("{ACTIONS}/{}/undo", done["id"]), &json!({})).await;
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
    let resume = json!({"kind": "resume_route", "ingress": ingress});
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
    act(&server, &json!({"action": {"kind": "resync"}})).await;
    assert_eq!(server.json("/api/v1/audit").await["total"], 2);
    assert_eq!(
        server.post(&format!("{ACTIONS}/{}/undo", done["id"]), &json!({})).await.status,
        409
    );
    let lasting = json!({"action": {"kind": "resync"}, "for_s": 60});
    assert_eq!(server.post(ACTIONS, &lasting).await.status, 400, "it does not last");
}

#[tokio::test]
async fn what_ends_by_itself_is_removed_and_noted() {
    let server = start(Imagined::default()).await;
    act(&server, &json!({"action": drain("web-0000-1"), "for_s": 1})).await;
    assert_eq!(endpoint(&server, "10.0.0.1").await["drained"], true);
    for _ in 0..200 {
        if server.agent.overrides.lock().is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(endpoint(&server, "10.0.0.1").await["drained"], false);
    let audit = server.json("/api/v1/audit").await;
    assert_eq!(audit["items"][0]["outcome"], "expired", "{audit}");
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
    let log = || AuditLog::open(dir.path()).unwrap();
    let first = start_with(Imagined::default(), |it| it, log()).await;
    let done = act(&first, &json!({"action": drain("web-0000-2")})).await;
    let kept = first.agent.overrides.lock().clone();
    drop(first);
    let second = Imagined { overrides: kept.into(), ..Imagined::default() };
    let second = start_with(second, |it| it, log()).await;
    let undone = second.post(&format!("{ACTIONS}/{}/undo", done["id"]), &json!({})).await;
    assert_eq!(undone.status, 200, "{}", undone.body);
    assert!(second.agent.overrides.lock().is_empty());
}
