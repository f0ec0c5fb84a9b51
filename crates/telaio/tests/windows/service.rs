//! The agent as a service, by the scripts that are handed out with it.

use std::path::PathBuf;
use std::process::Command;

use serde_json::json;

use crate::place::{Ended, Place, eventually, run};

/// Tells the stand-in in a service where its directory is: services inherit no environment.
struct Told;

impl Told {
    const FILE: &str = r"C:\telaio-standin.txt";

    fn of(place: &Place) -> Self {
        std::fs::write(Self::FILE, place.directory("hns").to_str().unwrap()).unwrap();
        Self
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        drop(std::fs::remove_file(Self::FILE));
        // Also when a test fails half-way.
        sc(&["stop", "telaio"]);
        sc(&["delete", "telaio"]);
    }
}

/// What the zip has in it, unpacked.
fn unpacked() -> PathBuf {
    let named =
        std::env::var_os("TELAIO_TEST_DIST").expect("TELAIO_TEST_DIST names what was packed");
    // As this Windows sees it.
    PathBuf::from(named)
}

/// Windows' own program for services.
fn sc(args: &[&str]) -> Ended {
    run(Command::new("sc.exe").args(args))
}

fn script(place: &Place, name: &str) -> Command {
    let mut command = Command::new("cmd.exe");
    let path = unpacked().join(name);
    command.arg("/c").arg(path).env("ProgramFiles", place.directory("programs"));
    command.envs(place.environment());
    command
}

#[test]
fn it_is_installed_from_what_is_packed_serves_stops_and_goes() {
    let place = Place::new();
    let _told = Told::of(&place);
    std::fs::create_dir(place.directory("programs")).unwrap();
    let ended = run(&mut script(&place, "install.cmd"));
    assert_eq!(ended.code, Some(2), "without options: {ended:?}");
    let options = place.run_options();
    let ended = run(script(&place, "install.cmd").args(&options));
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stdout.contains("installed the service telaio"), "{ended:?}");
    let log = place.directory("state").join("telaio.log");
    eventually("a service that runs", || {
        std::fs::read_to_string(&log).ok().filter(|text| text.contains("the agent runs"))
    });
    eventually("services", || place.places().contains("10.96.0.10:80").then_some(()));
    let second = run(place.telaio().args(["service", "install"]).args(&options));
    assert_eq!(second.code, Some(1), "{second:?}");
    assert!(second.stderr.contains("cannot install the service telaio"), "{second:?}");
    place.ask(&json!("Report"));

    let ended = sc(&["stop", "telaio"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let text = eventually("the end of the service", || {
        std::fs::read_to_string(&log).ok().filter(|text| text.contains("what is programmed stays"))
    });
    assert!(text.contains("the service is stopped"), "{text}");
    assert!(place.places().contains("10.96.0.10:80"));

    let ended = run(&mut script(&place, "uninstall.cmd"));
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(place.places().is_empty(), "{:?}", place.places());
    assert!(!place.directory("programs").join("telaio/telaio.exe").exists());
    let ended = run(place.telaio().args(["service", "uninstall"]));
    assert!(ended.stdout.contains("there is no service telaio"), "{ended:?}");
}

#[test]
fn options_that_cannot_be_are_refused_when_the_service_is_installed() {
    let place = Place::new();
    for (options, said) in [
        (vec!["--source=dir:manifests"], "manifests is a relative path"),
        (vec!["--sauce=dir:manifests"], "unexpected argument"),
        (vec![], "--source"),
    ] {
        let ended = run(place.telaio().args(["service", "install"]).args(&options));
        assert_eq!(ended.code, Some(2), "{options:?}: {ended:?}");
        assert!(ended.stderr.contains(said), "{options:?}: {ended:?}");
    }
    let ended = run(place.telaio().args(["service", "work", "--once"]));
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("only Windows starts this"), "{ended:?}");
}
