//! The manifests that come with us are as the agent takes them.

use serde_json::{Value, json};

use crate::support::run_args;

/// The objects of a manifest.
pub(crate) fn manifest(name: &str) -> Vec<Value> {
    let path = format!("{}/../../deploy/{name}", env!("CARGO_MANIFEST_DIR"));
    serde_saphyr::from_multiple(&std::fs::read_to_string(path).unwrap()).unwrap()
}

#[test]
fn the_daemonset_upgrades_without_a_gap_and_its_flags_are_ours() {
    let objects = manifest("ingress-daemonset.yaml");
    let [daemonset] = objects.as_slice() else { panic!("{objects:?}") };
    assert_eq!(daemonset["kind"], "DaemonSet");
    let spec = &daemonset["spec"];
    let surge = json!({"maxSurge": 1, "maxUnavailable": 0});
    assert_eq!(spec["updateStrategy"]["rollingUpdate"], surge);
    assert!(spec["minReadySeconds"].as_u64() > Some(0));
    assert_eq!(spec["selector"]["matchLabels"], spec["template"]["metadata"]["labels"]);
    let pod = &spec["template"]["spec"];
    assert_eq!(pod["hostNetwork"], true);
    let container = &pod["containers"][0];
    assert!(container["ports"].is_null(), "they would keep a second pod from the node");
    let volume = &pod["volumes"][0];
    assert!(volume["hostPath"]["path"].is_string());
    assert_eq!(container["volumeMounts"][0]["name"], volume["name"]);

    // Whose account it is, and where, stands in the other manifest.
    let account = &pod["serviceAccountName"];
    let namespace = &daemonset["metadata"]["namespace"];
    let has_account = manifest("ingress-rbac.yaml").iter().any(|object| {
        object["kind"] == "ServiceAccount"
            && object["metadata"]["name"] == *account
            && object["metadata"]["namespace"] == *namespace
    });
    assert!(has_account, "{account} in {namespace}");

    let args = container["args"].as_array().unwrap().iter();
    let args: Vec<_> = args.map(|it| it.as_str().unwrap().replace("$(NODE_NAME)", "a")).collect();
    let of = |name: &str| args.iter().find_map(|it| it.strip_prefix(name)).unwrap().to_owned();
    assert_eq!(json!(of("--state-dir=")), container["volumeMounts"][0]["mountPath"]);
    assert!(args.contains(&"--wait-after-takeover".to_owned()));
    let grace = pod["terminationGracePeriodSeconds"].as_u64().unwrap();
    let drain: u64 = of("--drain-timeout=").strip_suffix('m').unwrap().parse().unwrap();
    assert!(grace > drain * 60, "{grace} s for requests of {drain} minutes");
    // What is read last is the first that is wrong.
    let ended = run_args(args.iter().map(String::as_str).chain(["--no-such-flag"]));
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.stderr.contains("unexpected argument '--no-such-flag'"), "{ended:?}");
}
