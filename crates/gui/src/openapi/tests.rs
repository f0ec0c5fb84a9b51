//! Makes the document from the types. `TELAIO_BLESS=1 cargo test -p telaio-gui openapi` writes it.

use schemars::{JsonSchema, Schema, SchemaGenerator, generate::SchemaSettings};
use serde_json::{Map, Value, json};

use super::DOCUMENT;
use crate::values::action::{ActionRequest, ActionResult, AuditEntry, OverrideItem};
use crate::values::ingress::{CertificateItem, RouteItem};
use crate::values::map::TrafficMap;
use crate::values::overview::{History, Overview};
use crate::values::pods::{InstanceItem, NetworkItem, PeerItem, PodsSummary};
use crate::values::service::{NodeItem, Rules, ServiceDetail, ServiceItem};
use crate::values::stream::{EventPage, Message};
use crate::values::trace::TraceAnswer;
use crate::values::{Page, Problem, Whoami};

struct Writer {
    schemas: SchemaGenerator,
    paths: Map<String, Value>,
}

/// A parameter: name, type, what it is.
type Param = (&'static str, &'static str, &'static str);

const PAGED: &[Param] = &[
    ("offset", "integer", "How many to leave out; 0 unless said otherwise."),
    ("limit", "integer", "How many to give: 1 to 1000, 100 unless said otherwise."),
];

impl Writer {
    fn schema<T: JsonSchema>(&mut self) -> Schema {
        self.schemas.subschema_for::<T>()
    }

    fn put(&mut self, method: &str, path: &str, operation: Value) {
        let entry = self.paths.entry(path.to_owned()).or_insert_with(|| json!({}));
        entry[method] = operation;
    }

    fn operation(
        &mut self,
        summary: &str,
        path: &str,
        params: &[Param],
        content: &str,
        answer: &Value,
    ) -> Value {
        let problem = self.schema::<Problem>();
        let in_path = path.split('{').skip(1).filter_map(|rest| rest.split_once('}'));
        let mut parameters: Vec<Value> = in_path
            .map(|(name, _)| {
                json!({"name": name, "in": "path", "required": true, "schema": {"type": "string"}})
            })
            .collect();
        parameters.extend(params.iter().map(|(name, kind, what)| {
            json!({"name": name, "in": "query", "description": what, "schema": {"type": kind}})
        }));
        json!({
            "summary": summary,
            "parameters": parameters,
            "responses": {
                "200": {"description": "The answer.", "content": {content: {"schema": answer}}},
                "default": {
                    "description": "It could not be answered; the body says why.",
                    "content": {"application/json": {"schema": problem}},
                },
            },
        })
    }

    fn get<T: JsonSchema>(&mut self, path: &str, summary: &str, params: &[Param]) {
        let answer = json!(self.schema::<T>());
        let operation = self.operation(summary, path, params, "application/json", &answer);
        self.put("get", path, operation);
    }

    fn list<T: JsonSchema>(&mut self, path: &str, summary: &str, filters: &[Param]) {
        let params: Vec<Param> = filters.iter().chain(PAGED).copied().collect();
        self.get::<Page<T>>(path, summary, &params);
    }

    fn post<B: JsonSchema, T: JsonSchema>(&mut self, path: &str, summary: &str) {
        let (body, answer) = (json!(self.schema::<B>()), json!(self.schema::<T>()));
        let mut operation = self.operation(summary, path, &[], "application/json", &answer);
        operation["requestBody"] =
            json!({"required": true, "content": {"application/json": {"schema": body}}});
        self.put("post", path, operation);
    }
}

const Q: Param = ("q", "string", "Only those in which this text occurs, whatever its case.");
const NAMESPACE: Param = ("namespace", "string", "Only those of this namespace.");
const STATE: Param = ("state", "string", "Only those of this state: ok, idle, warning or error.");

fn document() -> Value {
    let settings = SchemaSettings::draft2020_12()
        .with(|it| it.definitions_path = "/components/schemas".into());
    let mut to = Writer { schemas: settings.into_generator(), paths: Map::new() };
    reads(&mut to);
    to.post::<ActionRequest, ActionResult>(
        "/api/v1/actions",
        "Does something, or with dry_run says what it would touch. Needs the role admin.",
    );
    to.post::<crate::values::action::UndoRequest, ActionResult>(
        "/api/v1/actions/{id}/undo",
        "Undoes an action of the audit log. Needs the role admin.",
    );
    let problem = "Bearer token: printed at the first start, kept in the state directory.";
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Telaio's admin API",
            "version": "1",
            "description": "See a node's network, and manage it. Times are milliseconds since 1970, \
                rates are per second. Fields are only ever added.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "security": [{"token": []}],
        "paths": to.paths,
        "components": {
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "description": problem},
            },
            "schemas": to.schemas.take_definitions(true),
        },
    })
}

fn reads(to: &mut Writer) {
    to.get::<Whoami>("/api/v1/whoami", "Who asks, and what they may do.", &[]);
    to.get::<Value>("/api/v1/status", "What telaio status shows.", &[]);
    to.get::<Value>("/api/v1/openapi.json", "This document; needs no token.", &[]);
    to.get::<Overview>("/api/v1/overview", "How everything is.", &[]);
    to.get::<History>(
        "/api/v1/history",
        "The charts' figures since the start.",
        &[("since_ms", "integer", "Only samples that ended after this time.")],
    );
    to.list::<ServiceItem>(
        "/api/v1/services",
        "The services, ordered by name.",
        &[
            Q,
            NAMESPACE,
            STATE,
            ("type", "string", "Only those of this type."),
            ("overridden", "boolean", "Only those that an override touches, or does not."),
            ("sort", "string", "name, rate or errors; the latter two largest first."),
        ],
    );
    to.get::<ServiceDetail>(
        "/api/v1/services/{namespace}/{name}",
        "A service with its endpoints.",
        &[],
    );
    to.get::<Rules>(
        "/api/v1/services/{namespace}/{name}/rules",
        "The rules that stand for a service.",
        &[],
    );
    to.list::<NodeItem>("/api/v1/nodes", "The cluster's nodes.", &[Q]);
    to.list::<RouteItem>(
        "/api/v1/routes",
        "The routes of the ingress, ordered by host and path.",
        &[
            Q,
            NAMESPACE,
            STATE,
            ("host", "string", "Only those of this host."),
            ("sort", "string", "name, rate or errors; the latter two largest first."),
        ],
    );
    to.list::<CertificateItem>(
        "/api/v1/certificates",
        "The certificates of the ingress, those that end first at the top.",
        &[Q, STATE],
    );
    to.get::<PodsSummary>("/api/v1/pods", "The pods plane.", &[]);
    to.list::<NetworkItem>("/api/v1/networks", "Networks of instances.", &[Q]);
    to.list::<InstanceItem>(
        "/api/v1/instances",
        "Instances on this node.",
        &[Q, ("network", "string", "Only those of this network.")],
    );
    to.list::<PeerItem>("/api/v1/peers", "Other nodes, and how they are reached.", &[Q]);
    to.get::<TrafficMap>(
        "/api/v1/map",
        "The traffic map.",
        &[
            Q,
            NAMESPACE,
            (
                "collapse",
                "string",
                "namespace: one vertex in place of a namespace's services. \
                none: never. auto (unless said otherwise): where there are more than the limit.",
            ),
            ("endpoints", "boolean", "With endpoints and nodes; true unless said otherwise."),
            (
                "limit",
                "integer",
                "How many services at most: 1 to 1000, 200 unless said otherwise.",
            ),
        ],
    );
    to.get::<TraceAnswer>(
        "/api/v1/trace",
        "What a packet or a request will meet.",
        &[
            ("from", "string", "Where a packet comes from: an IP address."),
            ("to", "string", "Where it wants to: IP:PORT or [IPv6]:PORT."),
            ("proto", "string", "tcp unless said otherwise, udp or sctp."),
            ("iface", "string", "The interface that it comes in by."),
            ("kernel", "boolean", "Follow the rules that the kernel has now."),
            ("url", "string", "A URL, instead of a packet."),
        ],
    );
    events(to);
    to.list::<OverrideItem>("/api/v1/overrides", "The overrides in force.", &[Q, NAMESPACE]);
    to.list::<AuditEntry>("/api/v1/audit", "What was done, newest first.", &[Q]);
}

fn events(to: &mut Writer) {
    to.get::<EventPage>(
        "/api/v1/events",
        "What changed, newest first.",
        &[
            Q,
            NAMESPACE,
            ("kind", "string", "Only those of this kind, such as Service."),
            ("before", "integer", "Only those before this one."),
            ("limit", "integer", "How many to give: 1 to 1000, 100 unless said otherwise."),
        ],
    );
    let path = "/api/v1/events/stream";
    let message = json!(to.schema::<Message>());
    let stream = to.operation(
        "A stream of server-sent events, to be read by fetch with the Authorization header. The \
         field event names the message, data is its content; comments keep the connection alive.",
        path,
        &[(
            "topics",
            "string",
            "Only these messages, separated by commas; all unless said otherwise.",
        )],
        "text/event-stream",
        &message,
    );
    to.put("get", path, stream);
}

#[test]
fn the_document_is_what_the_types_say() {
    let text = serde_json::to_string_pretty(&document()).unwrap() + "\n";
    if std::env::var_os("TELAIO_BLESS").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/openapi.json");
        std::fs::write(path, &text).unwrap();
    } else {
        let hint = "run TELAIO_BLESS=1 cargo test -p telaio-gui openapi";
        assert!(DOCUMENT == text, "openapi.json is not what the types say: {hint}");
    }
}
