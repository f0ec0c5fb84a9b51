//! The layers, their order, and what is refused. The environment's layer is tested with the real
//! binary, for a process has but one.

use std::time::Duration;

use super::*;
use crate::cli::{Command, RunArgs};

fn load(config: Option<(&str, &str)>, args: &[&str]) -> Result<Cli, SettingsError> {
    let dir = tempfile::tempdir().unwrap();
    let mut all: Vec<OsString> = vec!["telaio".into()];
    all.extend(args.iter().map(OsString::from));
    if let Some((name, text)) = config {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        all.push("--config".into());
        all.push(path.into());
    }
    Settings::load(all).map(|(_, cli)| cli)
}

fn run(cli: &Cli) -> &RunArgs {
    match &cli.command {
        Command::Run(args) => args,
        other => panic!("not run: {other:?}"),
    }
}

fn message(config: (&str, &str), args: &[&str]) -> String {
    load(Some(config), args).unwrap_err().to_string()
}

#[test]
fn a_flag_wins_over_the_file_and_the_file_over_the_default() {
    let file = ("c.toml", "min-sync-period = \"20ms\"\nnode = \"from-file\"\n");
    let settings = load(Some(file), &["run", "--node", "from-flag"]).unwrap();
    assert_eq!(run(&settings).min_sync_period, Duration::from_millis(20));
    assert_eq!(run(&settings).node.node.as_deref(), Some("from-flag"));
    assert_eq!(run(&settings).sync_period, Duration::from_secs(30));
}

#[test]
fn yaml_and_toml_say_the_same() {
    let toml =
        "source = \"dir:/m\"\nonce = true\nservice-cidr = [\"10.0.0.0/8\", \"fd00::/108\"]\n";
    let yaml = "source: dir:/m\nonce: true\nservice-cidr: [10.0.0.0/8, \"fd00::/108\"]\n";
    let toml = load(Some(("c.toml", toml)), &["run"]).unwrap();
    let yaml = load(Some(("c.yaml", yaml)), &["run"]).unwrap();
    for settings in [&toml, &yaml] {
        let args = run(settings);
        assert_eq!(args.source.source.as_ref().unwrap().to_string(), "dir:/m");
        assert!(args.once);
        assert_eq!(args.source.service_cidr.len(), 2);
    }
}

#[test]
fn a_list_may_be_a_text_with_commas() {
    let file = ("c.toml", "service-cidr = \"10.0.0.0/8,fd00::/108\"");
    let settings = load(Some(file), &["run"]).unwrap();
    assert_eq!(run(&settings).source.service_cidr.len(), 2);
}

#[test]
fn a_flag_without_and_with_a_value() {
    assert!(run(&load(None, &["run", "--once"]).unwrap()).once);
    assert!(!run(&load(None, &["run", "--once=false"]).unwrap()).once);
    let file = ("c.toml", "once = true");
    assert!(!run(&load(Some(file), &["run", "--once=false"]).unwrap()).once);
}

#[test]
fn an_unknown_key_is_refused_with_the_nearest_name() {
    let text = message(("c.toml", "min_sync_perod = \"1s\""), &["run"]);
    assert!(text.contains("c.toml: min_sync_perod:"), "{text}");
    assert!(text.contains("did you mean min-sync-period?"), "{text}");
    let text = message(("c.yaml", "zzz: 1"), &["run"]);
    assert!(!text.contains("did you mean"), "{text}");
}

#[test]
fn the_file_cannot_name_another_file() {
    assert!(message(("c.toml", "config = \"d.toml\""), &["run"]).contains("no such setting"));
}

#[test]
fn a_key_of_another_command_is_taken_and_not_used() {
    let file = ("c.toml", "sync-period = \"1m\"\nadmin-listen = \"127.0.0.1:1\"");
    let settings = load(Some(file), &["status"]).unwrap();
    let Command::Status(args) = &settings.command else { panic!("not status") };
    assert_eq!(args.admin_listen.port(), 1);
}

#[test]
fn a_wrong_value_names_file_and_key() {
    for (line, reason) in [
        ("min-sync-period = 10", "is not a time"),
        ("once = \"perhaps\"", "value was not a boolean"),
        ("admin-listen = \"here\"", "invalid socket address"),
        ("source = \"file:/x\"", "is not a source"),
        ("log-level = \"loud\"", "is not a level"),
        ("log-format = \"xml\"", "invalid value"),
        ("planes = [[\"services\"]]", "must be a text"),
        ("node = [\"a\", \"b\"]", "takes one value"),
        ("node = []", "must be a text"),
        ("node = { name = \"a\" }", "must be a text"),
    ] {
        let text = message(("c.toml", line), &["run"]);
        let key = line.split(' ').next().unwrap();
        assert!(text.contains(&format!("c.toml: {key}: ")), "{text}");
        assert!(text.contains(reason), "{text}");
    }
}

#[test]
fn a_broken_file_names_the_line() {
    let text = message(("c.toml", "node = \"a\"\nsource = \n"), &["run"]);
    assert!(text.contains("line 2"), "{text}");
    let text = message(("c.yaml", "node: a\nsource: [\n"), &["run"]);
    assert!(text.contains("c.yaml"), "{text}");
}

#[test]
fn empty_files_change_nothing_and_strange_ones_are_refused() {
    for empty in [("c.toml", ""), ("c.yaml", ""), ("c.yml", "# nothing yet\n---\n")] {
        assert!(load(Some(empty), &["run"]).is_ok(), "{empty:?}");
    }
    assert!(message(("c.ini", "a=b"), &["run"]).contains("ends in .toml, .yaml or .yml"));
    assert!(message(("c.toml", &"#".repeat(2 << 20)), &["run"]).contains("longer than"));
    let missing =
        Settings::load(["telaio", "run", "--config", "/nonexistent.toml"].map(Into::into).into());
    assert!(missing.unwrap_err().to_string().contains("/nonexistent.toml"));
}

#[test]
fn a_reload_says_what_changed_and_flags_stay() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("c.toml");
    std::fs::write(&path, "log-level = \"info\"\nnode = \"a\"\nsync-period = \"1m\"").unwrap();
    let args = ["telaio", "run", "--node", "b", "--config", path.to_str().unwrap()];
    let (mut settings, _) = Settings::load(args.map(Into::into).into()).unwrap();

    std::fs::write(&path, "log-level = \"debug\"\nnode = \"c\"\nadmin-listen = \"127.0.0.1:1\"")
        .unwrap();
    let (new, changed) = settings.reload().unwrap();
    assert_eq!(changed, ["admin-listen", "log-level", "sync-period"]);
    assert_eq!(run(&new).node.node.as_deref(), Some("b"));

    std::fs::write(&path, "log-level = \"loud\"").unwrap();
    assert!(settings.reload().is_err());
}

#[test]
fn every_option_has_an_environment_variable_of_its_name() {
    let command = command();
    for sub in command.get_subcommands() {
        for arg in sub.get_arguments() {
            let Some(name) = option_name(arg) else { continue };
            let variable = format!("TELAIO_{}", name.to_uppercase().replace('-', "_"));
            assert_eq!(arg.get_env().unwrap(), variable.as_str());
        }
    }
}
