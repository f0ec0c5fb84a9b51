//! Configurations and requests, without a kernel.

use super::*;

fn parse(text: &str) -> Result<Config, Fault> {
    Config::parse(text)
}

/// A call with these variables.
fn call(command: &str, variables: &[(&str, &str)], text: &str) -> Fault {
    let env = |name: &str| match name {
        "CNI_COMMAND" => Some(command.to_owned()),
        name => {
            variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        }
    };
    run(&env, text).unwrap_err()
}

#[test]
fn what_is_no_json_and_what_is_no_configuration_have_codes_of_their_own() {
    assert_eq!(parse("{").unwrap_err().code, 6);
    assert_eq!(parse("").unwrap_err().code, 6);
    for text in ["[]", r#"{"name": 7}"#, r#"{"name": "n", "ipam": 7}"#, r#"{"name": "../n"}"#] {
        assert_eq!(parse(text).unwrap_err().code, 7, "{text}");
    }
    assert_eq!(call("ADD", &[], r#"{"cniVersion": "9.0.0", "name": "n"}"#).code, 1);
    assert_eq!(call("NOTHING", &[], r#"{"cniVersion": "1.0.0", "name": "n"}"#).code, 4);
}

#[test]
fn keys_without_a_value_are_as_good_as_none() {
    let config = parse(
        r#"{"cniVersion": "1.0.0", "name": "n", "isGateway": null, "mtu": null, "ipam": {"type": "host-local",
            "ranges": [[{"subnet": "10.1.0.0/24", "rangeStart": null}]], "routes": null}, "runtimeConfig": null}"#,
    )
    .unwrap();
    let sets = config.ranges().unwrap();
    assert_eq!(sets[0][0].first.to_string(), "10.1.0.1");
    let network = config.network(&sets).unwrap();
    assert_eq!(
        (network.mode, network.mtu, network.bridge.as_str()),
        (crate::Mode::Bridged, None, "cni0")
    );
}

#[test]
fn the_environment_is_checked_before_anything_is_done() {
    let text = r#"{"cniVersion": "1.0.0", "name": "n", "stateDir": "/nowhere/at/all",
                   "ipam": {"type": "host-local", "subnet": "10.1.0.0/24"}}"#;
    let good = [("CNI_CONTAINERID", "a"), ("CNI_IFNAME", "eth0"), ("CNI_NETNS", "/nowhere")];
    for (bad, value) in [
        ("CNI_CONTAINERID", "-a"),
        ("CNI_CONTAINERID", "a b"),
        ("CNI_IFNAME", ".."),
        ("CNI_IFNAME", "a:b"),
        ("CNI_NETNS", ""),
        ("CNI_ARGS", "without-a-value"),
    ] {
        let mut variables = vec![(bad, value)];
        variables.extend(good.iter().filter(|(name, _)| *name != bad));
        let fault = call("ADD", &variables, text);
        assert_eq!(fault.code, 4, "{bad}={value}: {fault}");
        assert!(fault.message.contains(bad), "{fault}");
    }
}

#[test]
fn a_fault_is_printed_as_the_specification_wants_it() {
    let fault = Fault::new(11, "later");
    let expected = json!({"cniVersion": "0.4.0", "code": 11, "msg": "later", "details": ""});
    assert_eq!(fault.to_json(&asked_version(r#"{"cniVersion": "0.4.0"}"#)), expected);
    assert_eq!(asked_version("{"), "1.0.0", "whatever is wrong");
}
