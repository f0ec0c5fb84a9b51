//! A brain and its nodes over mutual TLS, with files as an operator has them.

#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod support;

use support::authority::{Authority, flag};
use support::{Agent, dir_source, examples, run_args};

#[test]
fn a_node_proves_its_name_and_gets_its_own_view_only() {
    let authority = Authority::new();
    let mut args =
        vec!["brain".to_owned(), dir_source(&examples()), "--api-listen=127.0.0.1:0".to_owned()];
    args.extend(authority.flags("brain", &["localhost", "127.0.0.1"]));
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let brain = Agent::start(&args);
    let entry = brain.wait_log("serving the Global and Local API");
    assert_eq!(entry["tls"], true);
    let port = entry["api"].as_str().unwrap().rsplit(':').next().unwrap().to_owned();

    let render = |scheme: &str, node: &str, flags: &[String]| {
        let source = format!("--source=brain:{scheme}://localhost:{port}");
        let args = ["render".to_owned(), source, format!("--node={node}"), "--timeout=20s".into()];
        run_args(args.iter().chain(flags))
    };
    let ours = authority.flags("loom-b", &[]);
    let direct = run_args(["render", &dir_source(&examples()), "--node=loom-b"]);
    let seen = render("https", "loom-b", &ours);
    assert_eq!((seen.code, &seen.stdout), (Some(0), &direct.stdout), "{seen:?}");

    let other = render("https", "loom-a", &ours);
    assert_eq!(other.code, Some(1), "{other:?}");
    assert!(other.stderr.contains("not for node"), "{other:?}");

    let nobody = render("https", "loom-b", &ours[2..]);
    assert_eq!(nobody.code, Some(1), "{nobody:?}");
    let stranger = render("https", "loom-b", &Authority::new().flags("loom-b", &[]));
    assert_eq!(stranger.code, Some(1), "{stranger:?}");
    assert_eq!(render("http", "loom-b", &[]).code, Some(1));
}

#[test]
fn files_that_do_not_fit_are_refused_before_anything_starts() {
    let source = dir_source(&examples());
    let ended = run_args(["brain", &source, "--tls-cert=/nonexistent.pem"]);
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.stderr.contains("--tls-cert and --tls-key belong together"), "{ended:?}");
    let ended = run_args(["render", "--source=brain:https://localhost:1", "--node=loom-a"]);
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.stderr.contains("--tls-ca"), "{ended:?}");
}

#[test]
fn files_that_hold_something_else_are_named_before_anything_listens() {
    let authority = Authority::new();
    let [cert, key, ca]: [String; 3] = authority.flags("brain", &[]).try_into().unwrap();
    let [_, other_key, _]: [String; 3] = authority.flags("other", &[]).try_into().unwrap();
    let written = |name: &str, text: &str| {
        let path = authority.dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let nonsense = written("nonsense.pem", "nonsense");
    let begin = "-----BEGIN CERTIFICATE-----";
    let broken = written("broken.pem", &format!("{begin}\n???\n-----END CERTIFICATE-----\n"));
    let hollow = written("hollow.pem", &format!("{begin}\nAAAA\n-----END CERTIFICATE-----\n"));
    for (given, flag_and_file) in [
        ([flag("--tls-cert", &nonsense), key.clone(), ca.clone()], "--tls-cert nonsense.pem"),
        ([flag("--tls-cert", &broken), key.clone(), ca.clone()], "--tls-cert broken.pem"),
        ([flag("--tls-cert", &hollow), key.clone(), ca.clone()], "--tls-cert hollow.pem"),
        ([cert.clone(), flag("--tls-key", &nonsense), ca.clone()], "--tls-key nonsense.pem"),
        ([cert.clone(), other_key, ca.clone()], "--tls-key other.key"),
        ([cert.clone(), key.clone(), flag("--tls-ca", &nonsense)], "--tls-ca nonsense.pem"),
        ([cert.clone(), key.clone(), flag("--tls-ca", &hollow)], "--tls-ca hollow.pem"),
    ] {
        let (flag, file) = flag_and_file.split_once(' ').unwrap();
        let said = format!("{flag} {}: ", authority.dir.path().join(file).display());
        let serve = ["brain".to_owned(), dir_source(&examples())];
        let ask = ["render".to_owned(), "--source=brain:https://localhost:1".to_owned()];
        for command in [serve, ask] {
            let ended = run_args(command.iter().chain(&given));
            assert_eq!(ended.code, Some(2), "{ended:?}");
            assert!(ended.stderr.contains(&said), "no {said} in {ended:?}");
            assert!(!ended.stderr.contains("listening"), "{ended:?}");
        }
    }
}

#[test]
fn files_given_for_a_brain_in_the_clear_are_refused() {
    let flags = Authority::new().flags("loom-a", &[]);
    for command in ["render", "run"] {
        let state = tempfile::tempdir().unwrap();
        let mut args = vec![command.to_owned(), "--source=brain:http://localhost:1".to_owned()];
        args.push(flag("--state-dir", state.path()));
        let ended = run_args(args.iter().chain(&flags));
        assert_eq!(ended.code, Some(2), "{ended:?}");
        assert!(ended.stderr.contains("write https"), "{ended:?}");
    }
}

#[test]
fn the_admin_api_has_tls_where_it_is_asked_for_and_must_have_it_beyond_loopback() {
    let authority = Authority::new();
    let flags = authority.flags("admin", &["127.0.0.1"]);
    let of = |name: &str| flags.iter().find_map(|it| it.strip_prefix(name)).unwrap().to_owned();
    let (certificate, key) = (of("--tls-cert="), of("--tls-key="));
    let agent = Agent::start(&[
        "run",
        "--node=loom-a",
        &dir_source(&examples()),
        &format!("--admin-tls-cert={certificate}"),
        &format!("--admin-tls-key={key}"),
    ]);
    let address = format!("--admin-listen={}", agent.admin);
    let state = format!("--state-dir={}", agent.state.path().display());
    let authority = format!("--admin-tls-ca={}", of("--tls-ca="));
    let told = run_args(["status", &address, &state, &authority]);
    assert_eq!(told.code, Some(0), "{told:?}");
    assert!(told.stdout.contains("loom-a"), "{told:?}");
    let plain = run_args(["status", &address, &state]);
    assert_eq!(plain.code, Some(1), "nothing is told in the clear: {plain:?}");

    let state = tempfile::tempdir().unwrap();
    let refused = run_args([
        "run",
        "--node=loom-a",
        &dir_source(&examples()),
        "--admin-listen=0.0.0.0:0",
        "--metrics-bind-address=127.0.0.1:0",
        "--healthz-bind-address=127.0.0.1:0",
        &format!("--state-dir={}", state.path().display()),
    ]);
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(refused.stderr.contains("--admin-tls-cert"), "{refused:?}");
}
