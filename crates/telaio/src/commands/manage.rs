//! `telaio drain`, `undrain`, `weight`, `purge`, `overrides`: what the page does, from the command line.
//!
//! At a terminal each action is shown first and asked for once, as on the page; in a pipe or a script
//! there is nobody to ask, so it is done.

use std::io::{BufRead, IsTerminal, Read as _, Write};

use anyhow::Context;
use serde::de::DeserializeOwned;
use telaio_gui::values::action::{
    Action, ActionRequest, ActionResult, AuditEntry, OverrideItem, Purge, Target, UndoRequest,
};
use telaio_gui::values::service::{EndpointItem, ServiceDetail};
use telaio_gui::values::{Key, Page};

use crate::cli::{
    AdminClientArgs, DecisionArgs, EndpointActionArgs, Output, OverridesArgs, OverridesCommand,
    PurgeArgs, TargetArgs, WeightArgs,
};
use crate::exit::CommandError;
use crate::http_get::AdminClient;
use crate::plain;

/// Where actions go.
const ACTIONS: &str = "/api/v1/actions";
/// How long the answer to a question may be.
const ANSWER_BYTES_MAX: u64 = 1024;
/// How many endpoints an error names.
const NAMED_MAX: usize = 8;

/// `telaio drain`.
pub(crate) fn drain(args: &EndpointActionArgs, out: &mut impl Write) -> Result<(), CommandError> {
    let (service, target) = meant(&args.service, &args.target, &args.decision.client)?;
    act(&Action::Drain { service, target }, &args.decision, out)
}

/// `telaio undrain`.
pub(crate) fn undrain(args: &EndpointActionArgs, out: &mut impl Write) -> Result<(), CommandError> {
    let (service, target) = meant(&args.service, &args.target, &args.decision.client)?;
    act(&Action::Undrain { service, target }, &args.decision, out)
}

/// `telaio weight`.
pub(crate) fn weight(args: &WeightArgs, out: &mut impl Write) -> Result<(), CommandError> {
    let (backend, weight) = match args.words.as_slice() {
        [weight] => (None, weight),
        [backend, weight] => (Some(backend.clone()), weight),
        _ => return Err(CommandError::bad_input("write: telaio weight SERVICE BACKEND WEIGHT")),
    };
    let weight = weight.parse().map_err(|_| {
        CommandError::bad_input(format!("{weight:?} is no weight; write a number from 0 to 65535"))
    })?;
    let target = TargetArgs {
        backend,
        address: args.address.clone(),
        pod: args.pod.clone(),
        on_node: args.on_node.clone(),
    };
    let named = [&target.backend, &target.address, &target.pod, &target.on_node];
    if named.iter().filter(|it| it.is_some()).count() != 1 {
        return Err(CommandError::bad_input(
            "name the endpoints once: telaio weight SERVICE BACKEND WEIGHT, or with --address, \
             --pod or --on-node",
        ));
    }
    let (service, target) = meant(&args.service, &target, &args.decision.client)?;
    act(&Action::Weight { service, target, weight }, &args.decision, out)
}

/// `telaio purge`.
pub(crate) fn purge(args: &PurgeArgs, out: &mut impl Write) -> Result<(), CommandError> {
    let what = &args.what;
    let what = match (&what.url, &what.prefix, &what.host) {
        (Some(url), ..) => Purge::Key(url.clone()),
        (_, Some(prefix), _) => Purge::Prefix(prefix.clone()),
        (.., host) => Purge::Host(host.clone().unwrap_or_default()),
    };
    let decision = DecisionArgs {
        dry_run: args.dry_run,
        yes: args.yes,
        reason: args.reason.clone(),
        lasts: None,
        output: args.output,
        client: args.client.clone(),
    };
    act(&Action::PurgeCache { what }, &decision, out)
}

/// `telaio overrides`.
pub(crate) fn overrides(args: &OverridesArgs, out: &mut impl Write) -> Result<(), CommandError> {
    match &args.command {
        OverridesCommand::List { output, client } => list(*output, client, out),
        OverridesCommand::Audit { output, client } => audit(*output, client, out),
        OverridesCommand::Add { service, address, port, on_node, weight, decision } => {
            let action = Action::AddBackend {
                service: key(service),
                address: address.clone(),
                port: *port,
                node: on_node.clone(),
                weight: *weight,
            };
            act(&action, decision, out)
        }
        OverridesCommand::Remove { service, target: which, decision } => {
            let (service, target) = meant(service, which, &decision.client)?;
            act(&Action::RemoveBackend { service, target }, decision, out)
        }
        OverridesCommand::Pause { ingress, host, path, decision } => {
            let (ingress, host, path) = (key(ingress), host.clone(), path.clone());
            act(&Action::PauseRoute { ingress, host, path, retry_after_s: None }, decision, out)
        }
        OverridesCommand::Resume { ingress, host, path, decision } => {
            let (ingress, host, path) = (key(ingress), host.clone(), path.clone());
            act(&Action::ResumeRoute { ingress, host, path }, decision, out)
        }
        OverridesCommand::Delete { name, decision } => {
            act(&Action::RemoveOverride { name: key(name) }, decision, out)
        }
        OverridesCommand::Undo { id, decision } => {
            let request =
                |dry_run| UndoRequest { dry_run, reason: decision.reason.clone(), by: who() };
            ask(&format!("{ACTIONS}/{id}/undo"), &request, decision, out)
        }
        OverridesCommand::Resync { decision } => act(&Action::Resync, decision, out),
    }
}

/// `NAMESPACE/NAME`, or a name in the namespace default.
fn key(text: &str) -> Key {
    let (namespace, name) = text.split_once('/').unwrap_or(("default", text));
    Key::new(namespace, name)
}

/// The service, and which of its endpoints are meant. What a bare word is, an address apart, only the
/// agent knows.
fn meant(
    service: &str,
    args: &TargetArgs,
    client: &AdminClientArgs,
) -> Result<(Key, Target), CommandError> {
    let service = key(service);
    let target = match (&args.backend, &args.address, &args.pod, &args.on_node) {
        (Some(word), ..) if word.parse::<std::net::IpAddr>().is_ok() => {
            Target::Address(word.clone())
        }
        (Some(word), ..) => named(&service, word, client)?,
        (_, Some(address), ..) => Target::Address(address.clone()),
        (_, _, Some(pod), _) => Target::Pod(pod.clone()),
        (.., node) => Target::Node(node.clone().unwrap_or_default()),
    };
    Ok((service, target))
}

/// The pod or the node of this name among a service's endpoints.
fn named(service: &Key, word: &str, client: &AdminClientArgs) -> Result<Target, CommandError> {
    let path = format!("/api/v1/services/{}/{}", service.namespace, service.name);
    let answer = AdminClient::new(client)?.run(&http::Method::GET, &path, String::new())?;
    let detail: ServiceDetail = read(&answer)?;
    choose(service, word, &detail.endpoint_items)
}

fn choose(service: &Key, word: &str, all: &[EndpointItem]) -> Result<Target, CommandError> {
    let is_pod = all.iter().any(|it| it.pod.as_deref() == Some(word));
    let is_node = all.iter().any(|it| it.node.as_deref() == Some(word));
    match (is_pod, is_node) {
        (true, false) => Ok(Target::Pod(word.to_owned())),
        (false, true) => Ok(Target::Node(word.to_owned())),
        (true, true) => Err(CommandError::bad_input(format!(
            "{word} is the name of a pod and of a node; say --pod {word} or --on-node {word}"
        ))),
        (false, false) => {
            let name = |it: &EndpointItem| it.pod.clone().unwrap_or_else(|| it.address.clone());
            let has: Vec<String> = all.iter().take(NAMED_MAX).map(name).collect();
            let more = if all.len() > NAMED_MAX { ", …" } else { "" };
            Err(CommandError::bad_input(format!(
                "service {service} has no endpoint of the address, pod or node {word:?}; it has: {}{more}",
                has.join(", ")
            )))
        }
    }
}

/// Who asks, for the audit log: whoever became root, or the user.
fn who() -> Option<String> {
    ["SUDO_USER", "USER", "USERNAME"].iter().find_map(|name| std::env::var(name).ok())
}

fn act(action: &Action, decision: &DecisionArgs, out: &mut impl Write) -> Result<(), CommandError> {
    let request = |dry_run| ActionRequest {
        action: action.clone(),
        dry_run,
        reason: decision.reason.clone(),
        for_s: decision.lasts.map(|time| time.as_secs()),
        until_ms: None,
        by: who(),
    };
    ask(ACTIONS, &request, decision, out)
}

fn ask<T: serde::Serialize>(
    path: &str,
    request: &impl Fn(bool) -> T,
    decision: &DecisionArgs,
    out: &mut impl Write,
) -> Result<(), CommandError> {
    let client = AdminClient::new(&decision.client)?;
    let post = |dry_run| -> Result<String, CommandError> {
        let body = serde_json::to_string(&request(dry_run)).map_err(anyhow::Error::from)?;
        client.run(&http::Method::POST, path, body)
    };
    let somebody_is_there = std::io::stdin().is_terminal() && std::io::stderr().is_terminal();
    if somebody_is_there && !decision.dry_run && !decision.yes {
        let preview: ActionResult = read(&post(true)?)?;
        let text = text_of(&preview, &decision.client);
        if !agreed(&text, &mut std::io::stdin().lock(), &mut std::io::stderr())? {
            return Err(CommandError::failed("nothing was done"));
        }
    }
    let answer = post(decision.dry_run)?;
    let text = match decision.output {
        Output::Json => answer,
        Output::Text => text_of(&read::<ActionResult>(&answer)?, &decision.client),
    };
    out.write_all(text.as_bytes()).map_err(|error| CommandError::Failed(error.into()))
}

/// Shows what an action would touch and asks whether to do it. Only a yes is one.
fn agreed(
    preview: &str,
    input: &mut impl BufRead,
    out: &mut impl Write,
) -> Result<bool, CommandError> {
    let mut asking = || -> std::io::Result<bool> {
        write!(out, "{preview}Do it? [y/N] ")?;
        out.flush()?;
        let mut line = String::new();
        input.take(ANSWER_BYTES_MAX).read_line(&mut line)?;
        Ok(matches!(line.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
    };
    asking().map_err(|error| CommandError::Failed(error.into()))
}

fn read<T: DeserializeOwned>(answer: &str) -> Result<T, CommandError> {
    Ok(serde_json::from_str(answer).context("the answer is not what was expected")?)
}

fn text_of(result: &ActionResult, client: &AdminClientArgs) -> String {
    let mut lines = Vec::new();
    let did = if result.dry_run { "would" } else { "done:" };
    lines.push(format!("{did} {}", result.summary));
    for touch in &result.touches {
        lines.push(format!("  {}: {} → {}", touch.object, touch.before, touch.after));
    }
    if result.touches_total > result.touches.len() {
        lines.push(format!("  … {} in all", result.touches_total));
    }
    lines.extend(result.warnings.iter().map(|warning| format!("  note: {warning}")));
    if let Some(purged) = result.purged {
        let urls = if purged == 1 { "URL was" } else { "URLs were" };
        lines.push(format!("  {purged} {urls} forgotten by this node's cache"));
    }
    if let Some(until) = result.until_ms.and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok()) {
        lines.push(format!("  until {}", until.strftime("%Y-%m-%d %H:%M:%S UTC")));
    }
    if let (Some(id), true) = (&result.id, result.undoable) {
        let address = match client.admin_listen {
            crate::cli::ADMIN_ADDRESS => String::new(),
            address => format!(" --admin-listen {address}"),
        };
        lines.push(format!("  to undo it: telaio overrides undo {id}{address}"));
    }
    lines.iter().flat_map(|line| [plain::line(line), "\n".into()]).collect()
}

fn list(output: Output, args: &AdminClientArgs, out: &mut impl Write) -> Result<(), CommandError> {
    let client = AdminClient::new(args)?;
    let answer = client.run(&http::Method::GET, "/api/v1/overrides?limit=1000", String::new())?;
    let text = match output {
        Output::Json => answer,
        Output::Text => {
            let page: Page<OverrideItem> = read(&answer)?;
            match page.items.as_slice() {
                [] => "nothing is overridden\n".to_owned(),
                items => items.iter().map(override_line).collect(),
            }
        }
    };
    out.write_all(text.as_bytes()).map_err(|error| CommandError::Failed(error.into()))
}

/// An override in one line, whatever stands in it.
fn override_line(it: &OverrideItem) -> String {
    let until = it.until_ms.and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    let until = until.map(|at| format!(", until {}", at.strftime("%Y-%m-%d %H:%M UTC")));
    let reason = if it.reason.is_empty() { String::new() } else { format!(": {}", it.reason) };
    let line = format!(
        "{}/{}  {} (by {}{}{reason})",
        it.namespace,
        it.name,
        it.summary,
        if it.by.is_empty() { "nobody who said so" } else { &it.by },
        until.unwrap_or_default()
    );
    format!("{}\n", plain::line(&line))
}

fn audit(output: Output, args: &AdminClientArgs, out: &mut impl Write) -> Result<(), CommandError> {
    let client = AdminClient::new(args)?;
    let answer = client.run(&http::Method::GET, "/api/v1/audit", String::new())?;
    let text = match output {
        Output::Json => answer,
        Output::Text => {
            let page: Page<AuditEntry> = read(&answer)?;
            page.items.iter().map(audit_line).collect()
        }
    };
    out.write_all(text.as_bytes()).map_err(|error| CommandError::Failed(error.into()))
}

/// An entry of the audit log in one line, whatever stands in it.
fn audit_line(it: &AuditEntry) -> String {
    let at = jiff::Timestamp::from_millisecond(it.at_ms).unwrap_or_default();
    let error = it.error.as_ref().map(|error| format!(": {error}"));
    let line = format!(
        "{:>8}  {}  {}  {} ({}){}",
        it.id,
        at.strftime("%Y-%m-%d %H:%M:%S"),
        it.who,
        it.summary,
        format!("{:?}", it.outcome).to_lowercase(),
        error.unwrap_or_default()
    );
    format!("{}\n", plain::line(&line))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(pod: &str, node: &str) -> EndpointItem {
        serde_json::from_value(serde_json::json!({
            "address": "10.0.0.1", "ports": [], "pod": pod, "node": node, "zone": null, "local": true,
            "ready": true, "serving": true, "terminating": false, "weight": 1, "drained": false,
            "added": false, "removed": false, "used": true, "overrides": [], "counters": null,
        }))
        .unwrap()
    }

    #[test]
    fn only_a_yes_is_one() {
        for (said, wanted) in [
            ("y\n", true),
            ("Yes\n", true),
            ("\n", false),
            ("", false),
            ("no\n", false),
            ("yy\n", false),
        ] {
            let mut out = Vec::new();
            assert_eq!(agreed("would drain\n", &mut said.as_bytes(), &mut out).unwrap(), wanted);
            assert_eq!(String::from_utf8(out).unwrap(), "would drain\nDo it? [y/N] ");
        }
    }

    #[test]
    fn a_bare_word_is_the_pod_or_the_node_of_that_name_and_never_guessed() {
        let all = [endpoint("web-1", "loom-a"), endpoint("loom-b", "loom-b")];
        let service = Key::new("shop", "web");
        let of = |word: &str| choose(&service, word, &all);
        assert_eq!(of("web-1").unwrap(), Target::Pod("web-1".into()));
        assert_eq!(of("loom-a").unwrap(), Target::Node("loom-a".into()));
        assert!(of("loom-b").unwrap_err().to_string().contains("--on-node loom-b"));
        assert!(of("web-9").unwrap_err().to_string().contains("it has: web-1, loom-b"));
    }

    #[test]
    fn what_objects_say_does_nothing_to_a_terminal_and_stays_on_its_line() {
        let evil = "disk\u{1b}[2J\u{9b}1A\nshop/web  all is well";
        let item = serde_json::json!({
            "namespace": "shop", "name": "a", "action": "drain", "service": null, "target": null,
            "weight": null, "ingress": null, "host": null, "path": null, "summary": evil, "by": evil,
            "reason": evil, "since_ms": null, "until_ms": null, "managed": false, "touches": 0,
        });
        let entry = serde_json::json!({
            "id": "kf4m-1", "at_ms": 0, "who": evil, "role": "admin", "from": "", "action": null,
            "summary": evil, "reason": evil, "until_ms": null, "outcome": "failed", "error": evil,
            "undoes": null, "undone_by": null, "undoable": false,
        });
        let said = override_line(&serde_json::from_value(item).unwrap());
        let noted = audit_line(&serde_json::from_value(entry).unwrap());
        for line in [said, noted] {
            assert!(line.contains(r"disk\u001b[2J\u009b1A\u000ashop"), "{line}");
            assert_eq!(line.chars().filter(|it| it.is_control()).collect::<String>(), "\n");
        }
    }
}
