//! `telaio status`: asks a running agent or brain how it is.

use std::fmt::Write as _;
use std::io::Write;
use std::time::Duration;

use anyhow::Context;

use crate::cli::{Output, StatusArgs};
use crate::exit::CommandError;
use crate::http_get::AdminClient;
use crate::monitor::{Report, SyncSummary};
use crate::plain;
use crate::servers::STATUS_PATH;

/// Prints the state of the agent at the admin address.
pub(crate) fn status(args: &StatusArgs, out: &mut impl Write) -> Result<(), CommandError> {
    let client = AdminClient::new(&args.client)?;
    let body = client.run(&http::Method::GET, STATUS_PATH, String::new())?;
    let report: Report = serde_json::from_str(&body).context("the answer is not a status")?;
    let text = match args.output {
        Output::Json => body,
        Output::Text => summary(&report),
    };
    out.write_all(text.as_bytes()).map_err(|error| CommandError::Failed(error.into()))
}

/// The state for people.
fn summary(report: &Report) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: &str| {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{name:<10}{}", plain::line(value));
    };
    let health = if report.healthy { "healthy" } else { "not healthy" };
    line(
        "telaio",
        &format!(
            "{} {}, process {}, up {}, {health}",
            report.version,
            report.command,
            report.pid,
            time(report.uptime_s)
        ),
    );
    if let Some(node) = &report.node {
        line("node", node);
    }
    if let Some(backend) = &report.backend {
        line("backend", &format!("{backend} ({})", report.planes.join(", ")));
    }
    let source = &report.source;
    let contact = match (source.connected, source.state_age_s) {
        (true, _) => "in touch".to_owned(),
        (false, Some(age)) => format!("OUT OF TOUCH for {}; the last state stands", time(age)),
        (false, None) => "no contact yet".to_owned(),
    };
    let complete = if source.synced { "" } else { ", first state not complete" };
    line("source", &format!("{}: {contact}{complete}", source.spec));
    if let Some(store) = &report.store {
        line(
            "state",
            &format!(
                "revision {}: {} services, {} endpoints, {} other objects; followed by {}",
                store.revision, store.services, store.endpoints, store.objects, store.watchers
            ),
        );
    }
    if let Some(sync) = &report.sync {
        line("sync", &sync_line(sync));
    }
    #[cfg(target_os = "linux")]
    if let Some(pods) = &report.pods {
        for (name, value) in pods_lines(pods) {
            line(name, &value);
        }
    }
    if source.problem_count > 0 {
        line("problems", &source.problem_count.to_string());
        for problem in &source.problems {
            line("", problem);
        }
        if source.problem_count > source.problems.len() {
            line("", "…");
        }
    }
    text
}

/// Networks, instances and what else there is of the pods plane.
#[cfg(target_os = "linux")]
fn pods_lines(pods: &crate::pods::PodsReport) -> Vec<(&'static str, String)> {
    let mut lines = vec![(
        "pods",
        format!(
            "{} instances, {} other nodes, {} policies; plugin {}",
            pods.instance_count,
            pods.peers.len(),
            pods.policies,
            pods.cni
        ),
    )];
    for network in &pods.networks {
        let subnets = network.subnets.join(", ");
        lines.push(("", format!("network {} on {}: {subnets}", network.name, network.bridge)));
    }
    for instance in &pods.instances {
        let addresses = instance.addresses.join(", ");
        let mut text = format!(
            "instance {} ({} on {}): {addresses}",
            instance.id, instance.interface, instance.network
        );
        if !instance.ports.is_empty() {
            // Writing to a String cannot fail.
            let _ = write!(text, "; ports {}", instance.ports.join(", "));
        }
        lines.push(("", text));
    }
    if pods.instance_count > pods.instances.len() {
        lines.push(("", "…".to_owned()));
    }
    lines.extend(pods.problems.iter().map(|problem| ("", problem.clone())));
    lines
}

fn sync_line(sync: &SyncSummary) -> String {
    let mut text = match sync.last_age_s {
        Some(age) => format!("last {} ago", time(age)),
        None => "never".to_owned(),
    };
    // Writing to a String cannot fail.
    let _ =
        write!(text, "; {} syncs, {} failed, {} changes", sync.syncs, sync.failures, sync.changes);
    if let Some(age) = sync.pending_age_s {
        let _ = write!(text, "; a change has waited for {}", time(age));
    }
    if let Some(error) = &sync.last_error {
        let _ = write!(text, "; last error: {error}");
    }
    text
}

/// A time as people say it: the two largest units.
fn time(seconds: f64) -> String {
    if seconds < 10.0 {
        return format!("{seconds:.1} s");
    }
    let whole = Duration::from_secs_f64(seconds.min(1e12)).as_secs();
    let (days, hours, minutes) = (whole / 86_400, whole / 3600 % 24, whole / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{whole} s"),
        (0, 0, _) => format!("{minutes} min {} s", whole % 60),
        (0, _, _) => format!("{hours} h {minutes} min"),
        _ => format!("{days} d {hours} h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::monitor::{SourceReport, StoreReport};

    fn report() -> Report {
        Report {
            version: "0.1.0".into(),
            command: "run".into(),
            pid: 42,
            uptime_s: 3_725.0,
            node: Some("loom-a".into()),
            planes: vec!["services".into()],
            backend: Some("view".into()),
            healthy: true,
            source: SourceReport {
                spec: "dir:/m".into(),
                connected: true,
                synced: true,
                state_age_s: Some(0.0),
                problem_count: 0,
                problems: vec![],
            },
            store: Some(StoreReport {
                revision: 7,
                services: 5,
                endpoints: 9,
                objects: 3,
                watchers: 1,
            }),
            sync: Some(SyncSummary {
                syncs: 3,
                failures: 0,
                changes: 6,
                last_age_s: Some(1.25),
                pending_age_s: None,
                last_error: None,
            }),
            #[cfg(target_os = "linux")]
            pods: None,
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn the_pods_plane_shows_networks_instances_addresses_and_ports() {
        use crate::pods::{InstanceReport, NetworkReport, PodsReport};
        let mut report = report();
        report.pods = Some(PodsReport {
            networks: vec![NetworkReport {
                name: "loom-a".into(),
                bridge: "tlb-loom-a".into(),
                subnets: vec!["10.244.1.0/24".into()],
            }],
            ways: vec![],
            tunnel: None,
            instances: vec![InstanceReport {
                id: "web".into(),
                network: "loom-a".into(),
                interface: "eth0".into(),
                addresses: vec!["10.244.1.2".into()],
                ports: vec!["80/tcp → 8080".into()],
                pod: None,
            }],
            instance_count: 2,
            peers: vec!["loom-b".into()],
            policies: 3,
            cni: "installed".into(),
            problems: vec![],
        });
        let text = summary(&report);
        let (_, pods) = text.split_once("pods ").unwrap();
        insta::assert_snapshot!(pods, @r"
             2 instances, 1 other nodes, 3 policies; plugin installed
                  network loom-a on tlb-loom-a: 10.244.1.0/24
                  instance web (eth0 on loom-a): 10.244.1.2; ports 80/tcp → 8080
                  …
        ");
    }

    #[test]
    fn a_healthy_agent_is_a_few_lines() {
        insta::assert_snapshot!(summary(&report()), @r#"
        telaio    0.1.0 run, process 42, up 1 h 2 min, healthy
        node      loom-a
        backend   view (services)
        source    dir:/m: in touch
        state     revision 7: 5 services, 9 endpoints, 3 other objects; followed by 1
        sync      last 1.2 s ago; 3 syncs, 0 failed, 6 changes
        "#);
    }

    #[test]
    fn trouble_is_said_plainly() {
        let mut report = report();
        report.healthy = false;
        report.source.connected = false;
        report.source.synced = false;
        report.source.state_age_s = Some(90_000.0);
        report.source.problem_count = 2;
        report.source.problems = vec!["web.yaml:3: Service a/b: spec.ports: is empty".into()];
        report.sync = Some(SyncSummary {
            syncs: 1,
            failures: 1,
            changes: 0,
            last_age_s: None,
            pending_age_s: Some(75.0),
            last_error: Some("no permission".into()),
        });
        insta::assert_snapshot!(summary(&report), @r#"
        telaio    0.1.0 run, process 42, up 1 h 2 min, not healthy
        node      loom-a
        backend   view (services)
        source    dir:/m: OUT OF TOUCH for 1 d 1 h; the last state stands, first state not complete
        state     revision 7: 5 services, 9 endpoints, 3 other objects; followed by 1
        sync      never; 1 syncs, 1 failed, 0 changes; a change has waited for 1 min 15 s; last error: no permission
        problems  2
                  web.yaml:3: Service a/b: spec.ports: is empty
                  …
        "#);
    }

    #[test]
    fn times_have_two_units() {
        let said: Vec<_> = [0.04, 59.9, 61.0, 7_322.0, 200_000.0].map(time).into_iter().collect();
        assert_eq!(said, ["0.0 s", "59 s", "1 min 1 s", "2 h 2 min", "2 d 7 h"]);
    }
}
