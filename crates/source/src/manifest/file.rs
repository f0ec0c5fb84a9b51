//! A file of manifests: bytes into objects and problems.
//!
//! What always holds: any bytes give an answer, never a panic; every problem names the file and the
//! line, and the object and field where they are known; one broken document does not hide the
//! others.
//!
//! ```
//! use telaio_source::intern::Interner;
//! use telaio_source::manifest::{Context, Format, read_file_content};
//!
//! let text = "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: Shop\n";
//! let ctx = Context::directory(Interner::default());
//! let content = read_file_content("shop.yaml", text.as_bytes(), Format::Yaml, &ctx);
//! assert!(content.problems[0].to_string().starts_with("shop.yaml:4: Namespace Shop: metadata.name: "));
//! ```

use std::cell::OnceCell;
use std::ffi::OsStr;
use std::path::Path;

use telaio_model::{FieldError, Object};

use super::check::Quoted;
use super::kinds::{is_cluster_wide, is_skipped};
use super::tree::{FieldProblem, Node, SyntaxError, Value, line_breaks, read_json, read_yaml};
use super::{
    ConfigMap, Context, EndpointSlice, Ingress, IngressClass, Manifest, Namespace, NetworkPolicy,
    Node as NodeManifest, Override, Pod, Secret, Service, ServiceAllocation, ServiceCidr,
};
use crate::Problem;

/// The largest file that is read.
pub const FILE_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// How many problems of one file are told one by one.
const PROBLEMS_PER_FILE_MAX: usize = 100;

/// How a file is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// YAML, which JSON also is.
    Yaml,
    /// JSON, which is read several times faster when it is known to be.
    Json,
}

impl Format {
    /// The format by the file's name, if it is the name of a manifest.
    pub fn of(path: &Path) -> Option<Self> {
        match path.extension().and_then(OsStr::to_str) {
            Some("yaml" | "yml") => Some(Self::Yaml),
            Some("json") => Some(Self::Json),
            _ => None,
        }
    }
}

/// An object with its place in the file.
#[derive(Debug, Clone, PartialEq)]
pub struct FoundObject {
    /// The object.
    pub object: Object,
    /// The line on which it begins.
    pub line: u32,
    /// For a Service: what it leaves to a control plane, if that is anything in particular.
    pub allocation: Option<Box<ServiceAllocation>>,
}

/// What a file holds.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct FileContent {
    /// The objects that are right, in the order of the file.
    pub objects: Vec<FoundObject>,
    /// What is not.
    pub problems: Vec<Problem>,
}

/// Reads the bytes of a file; `name` is what the problems call it.
pub fn read_file_content(name: &str, bytes: &[u8], format: Format, ctx: &Context) -> FileContent {
    let mut reader = Reader { name, ctx, content: FileContent::default(), problems_untold: 0 };
    match text_of(bytes) {
        // Cut off before the first byte was written, far more often than meant: whoever wants to
        // have no objects removes the file, or leaves a comment in it.
        Ok(text) if text.trim().is_empty() => reader.syntax(&SyntaxError {
            line: 1,
            message: "is empty; write a manifest, or remove the file".to_owned(),
        }),
        Ok(text) if format == Format::Json => reader.read_json(text),
        Ok(text) => reader.read_yaml(text),
        Err(error) => reader.syntax(&error),
    }
    reader.finish()
}

/// The problem of a file that is larger than [`FILE_BYTES_MAX`].
pub fn too_large(name: &str, size_bytes: u64) -> Problem {
    Problem {
        origin: name.to_owned(),
        object: None,
        field: None,
        message: format!(
            "has {size_bytes} bytes and is not read; split it into files of at most {} MiB",
            FILE_BYTES_MAX / (1024 * 1024)
        ),
    }
}

/// The text of a file, if it is one.
fn text_of(bytes: &[u8]) -> Result<&str, SyntaxError> {
    const UTF8_MARK: [u8; 3] = [0xEF, 0xBB, 0xBF];
    const UTF16_MARKS: [[u8; 2]; 2] = [[0xFF, 0xFE], [0xFE, 0xFF]];
    let is_utf16 = UTF16_MARKS.iter().any(|mark| bytes.starts_with(mark));
    let bytes = bytes.strip_prefix(&UTF8_MARK).unwrap_or(bytes);
    let nul = bytes.iter().position(|byte| *byte == 0);
    let (at, message) = match (nul, std::str::from_utf8(bytes)) {
        _ if is_utf16 => (0, "is UTF-16; save it as UTF-8"),
        (Some(at), _) => (at, "has a NUL byte, so it is not a text; remove it or rename the file"),
        (None, Err(fault)) => {
            (fault.valid_up_to(), "is not UTF-8, so it is not a text; save it as UTF-8")
        }
        (None, Ok(text)) => return Ok(text),
    };
    Err(SyntaxError { line: 1 + line_breaks(&bytes[..at]), message: message.to_owned() })
}

/// The YAML documents of a text, each with the line it begins on.
///
/// A line that begins with `---` can stand nowhere but between documents, so cutting there before
/// parsing is sound, and keeps a broken document from taking the rest of the file with it.
fn yaml_documents(text: &str) -> impl Iterator<Item = (&str, u32)> {
    let mut rest = Some(text);
    let mut line = 1;
    std::iter::from_fn(move || {
        let text = rest?;
        let cut = text.match_indices("\n---").map(|(at, _)| at + 1).find(|at| {
            matches!(text.as_bytes().get(at + 3), None | Some(b' ' | b'\t' | b'\r' | b'\n'))
        });
        let (document, after) = match cut {
            Some(at) => (&text[..at], Some(&text[at..])),
            None => (text, None),
        };
        rest = after;
        let first_line = line;
        line += line_breaks(document.as_bytes());
        Some((document, first_line))
    })
}

/// Directives stand before the `---` of their document; what they say does not matter here.
fn is_only_directives(document: &str) -> bool {
    document.starts_with('%')
        && document.lines().all(|line| line.trim().is_empty() || line.starts_with(['%', '#']))
}

struct Reader<'r> {
    name: &'r str,
    ctx: &'r Context,
    content: FileContent,
    problems_untold: usize,
}

/// A document, and how to find the line of one of its fields.
struct Document<'d> {
    node: &'d Node<'d>,
    /// The text and its first line, for a tree without lines.
    source: Option<(&'d str, u32)>,
    /// The tree with lines, made when the first one is asked for.
    with_lines: OnceCell<Vec<Node<'d>>>,
}

impl<'d> Document<'d> {
    fn new(node: &'d Node<'d>, source: Option<(&'d str, u32)>) -> Self {
        Self { node, source, with_lines: OnceCell::new() }
    }

    /// The line of the field at `path`, from the root of the document.
    fn line_of(&self, path: &str) -> u32 {
        let Some((text, first_line)) = self.source else { return self.node.line_of(path) };
        let documents = self.with_lines.get_or_init(|| read_yaml(text, first_line).0);
        documents.first().map_or(first_line, |root| root.line_of(path))
    }
}

/// Where in a document an object stands: all of it, or an item of a list.
#[derive(Clone, Copy)]
struct Place<'p, 'd> {
    document: &'p Document<'d>,
    prefix: &'p str,
    /// `kind` and `apiVersion` of items that carry none, from their list.
    inherited: Option<(&'p str, &'p str)>,
}

impl Place<'_, '_> {
    fn line_of(&self, path: &str) -> u32 {
        self.document.line_of(&self.full_path(path))
    }

    fn full_path(&self, path: &str) -> String {
        let separator = if self.prefix.is_empty() || path.is_empty() { "" } else { "." };
        format!("{}{separator}{path}", self.prefix)
    }
}

impl Reader<'_> {
    fn finish(mut self) -> FileContent {
        if self.problems_untold > 0 {
            let message = format!("{} more problems are not listed", self.problems_untold);
            let origin = self.name.to_owned();
            self.content.problems.push(Problem { origin, object: None, field: None, message });
        }
        self.content
    }

    fn read_yaml(&mut self, text: &str) {
        for (text, first_line) in yaml_documents(text) {
            if is_only_directives(text) {
                continue;
            }
            let (documents, error) = read_yaml(text, first_line);
            for node in &documents {
                self.read_document(&Document::new(node, None));
            }
            if let Some(error) = error {
                self.syntax(&error);
            }
        }
    }

    fn read_json(&mut self, text: &str) {
        let (documents, error) = read_json(text);
        for document in &documents {
            let source = Some((document.text, document.first_line));
            self.read_document(&Document::new(&document.node, source));
        }
        if let Some(error) = error {
            self.syntax(&error);
        }
    }

    fn read_document(&mut self, document: &Document<'_>) {
        if !document.node.is_null() {
            self.read_node(document.node, Place { document, prefix: "", inherited: None });
        }
    }

    /// Reads an object or a list of them.
    fn read_node(&mut self, node: &Node<'_>, place: Place<'_, '_>) {
        if !matches!(node.value, Value::Mapping(_)) {
            self.problem(
                node,
                place,
                "",
                "is not a manifest; write a mapping with apiVersion, kind and metadata",
            );
            return;
        }
        let own = |key| node.get_str(key).filter(|text| !text.is_empty());
        let (inherited_kind, inherited_version) = place.inherited.unzip();
        let kind = own("kind").or(inherited_kind);
        let api_version = own("apiVersion").or(inherited_version);
        let (kind, api_version) = match (kind, api_version) {
            (Some(kind), Some(api_version)) => (kind, api_version),
            (None, _) => {
                self.problem(
                    node,
                    place,
                    "kind",
                    "is missing; write what it is, such as kind: Service",
                );
                return;
            }
            (_, None) => {
                self.problem(
                    node,
                    place,
                    "apiVersion",
                    "is missing; write it, such as apiVersion: v1",
                );
                return;
            }
        };
        match kind.strip_suffix("List") {
            Some(item_kind) => self.read_list(node, place, item_kind, api_version),
            None => self.read_object(node, place, kind, api_version),
        }
    }

    fn read_list(
        &mut self,
        node: &Node<'_>,
        place: Place<'_, '_>,
        item_kind: &str,
        api_version: &str,
    ) {
        let items = match node.get("items") {
            None => return,
            Some(items) if items.is_null() => return,
            Some(items) => items,
        };
        let Value::Sequence(items) = &items.value else {
            self.problem(node, place, "items", "is not a list; write one");
            return;
        };
        // The items of a ServiceList need not say that they are Services; those of a List must.
        let inherited = (!item_kind.is_empty()).then_some((item_kind, api_version));
        for (i, item) in items.iter().enumerate() {
            let prefix = place.full_path(&format!("items[{i}]"));
            let place = Place { document: place.document, prefix: &prefix, inherited };
            self.read_node(item, place);
        }
    }

    fn read_object(
        &mut self,
        node: &Node<'_>,
        place: Place<'_, '_>,
        kind: &str,
        api_version: &str,
    ) {
        macro_rules! by_kind {
            ($($manifest:ty),* $(,)?) => {
                match kind {
                    Service::KIND_NAME => self.read_service(node, place, api_version),
                    $(<$manifest>::KIND_NAME => self.read_manifest::<$manifest>(node, place, api_version),)*
                    _ => self.read_unknown(node, place, kind, api_version, &[
                        Service::KIND_NAME, $(<$manifest>::KIND_NAME,)*
                    ]),
                }
            };
        }
        by_kind!(
            EndpointSlice,
            NodeManifest,
            Ingress,
            IngressClass,
            Secret,
            ConfigMap,
            Namespace,
            Pod,
            NetworkPolicy,
            ServiceCidr,
            Override,
        );
    }

    fn read_unknown(
        &mut self,
        node: &Node<'_>,
        place: Place<'_, '_>,
        kind: &str,
        api_version: &str,
        known: &[&str],
    ) {
        if is_skipped(kind) && !api_version.starts_with("telaio.dev/") {
            tracing::debug!(file = self.name, kind, api_version, "skipped a kind that is not ours");
            return;
        }
        let hint = match known.iter().find(|known| known.eq_ignore_ascii_case(kind)) {
            Some(known) => format!("; write {known}"),
            None => "; remove it from the directory if it is right elsewhere".to_owned(),
        };
        let message =
            format!("the kind {} of {} is not known{hint}", Quoted(kind), Quoted(api_version));
        self.problem(node, place, "kind", message);
    }

    fn read_service(&mut self, node: &Node<'_>, place: Place<'_, '_>, api_version: &str) {
        let Some(manifest) = self.deserialize::<Service>(node, place, api_version) else { return };
        match manifest.allocation() {
            Ok(allocation) => {
                // Most leave nothing in particular.
                let is_particular = allocation != ServiceAllocation::default();
                let allocation = is_particular.then(|| Box::new(allocation));
                self.convert(manifest, node, place, allocation);
            }
            Err(mut errors) => {
                errors.extend(manifest.into_model(self.ctx).err().unwrap_or_default());
                self.field_errors(node, place, errors);
            }
        }
    }

    fn read_manifest<M: Manifest>(
        &mut self,
        node: &Node<'_>,
        place: Place<'_, '_>,
        api_version: &str,
    ) {
        if let Some(manifest) = self.deserialize::<M>(node, place, api_version) {
            self.convert(manifest, node, place, None);
        }
    }

    fn deserialize<M: Manifest>(
        &mut self,
        node: &Node<'_>,
        place: Place<'_, '_>,
        api_version: &str,
    ) -> Option<M> {
        if api_version != M::API_VERSION {
            let message = format!(
                "{} is not read for the kind {}; write {}",
                Quoted(api_version),
                M::KIND_NAME,
                M::API_VERSION
            );
            self.problem(node, place, "apiVersion", message);
            return None;
        }
        match M::deserialize(node) {
            Ok(manifest) => Some(manifest),
            Err(FieldProblem { path, line, message }) => {
                let line = line.filter(|line| *line != 0).unwrap_or_else(|| place.line_of(&path));
                self.add(line, object_name(self.ctx, node, place), Some(path), message);
                None
            }
        }
    }

    fn convert<M: Manifest>(
        &mut self,
        manifest: M,
        node: &Node<'_>,
        place: Place<'_, '_>,
        allocation: Option<Box<ServiceAllocation>>,
    ) {
        match manifest.into_model(self.ctx) {
            Ok(None) => {}
            Ok(Some(value)) => {
                // Lines of JSON objects are looked up only when there is something wrong with them.
                let line = match place.document.source {
                    Some((_, first_line)) => first_line,
                    None => node.line,
                };
                self.content.objects.push(FoundObject { object: value.into(), line, allocation });
            }
            Err(errors) => self.field_errors(node, place, errors),
        }
    }

    fn field_errors(&mut self, node: &Node<'_>, place: Place<'_, '_>, errors: Vec<FieldError>) {
        for error in errors {
            self.problem(node, place, &error.path, error.message);
        }
    }

    fn problem(
        &mut self,
        node: &Node<'_>,
        place: Place<'_, '_>,
        path: &str,
        message: impl Into<String>,
    ) {
        if self.content.problems.len() >= PROBLEMS_PER_FILE_MAX {
            self.problems_untold += 1;
            return;
        }
        let line = place.line_of(path);
        let field = (!path.is_empty()).then(|| path.to_owned());
        self.add(line, object_name(self.ctx, node, place), field, message.into());
    }

    fn syntax(&mut self, error: &SyntaxError) {
        self.add(error.line, None, None, error.message.clone());
    }

    fn add(&mut self, line: u32, object: Option<String>, field: Option<String>, message: String) {
        if self.content.problems.len() >= PROBLEMS_PER_FILE_MAX {
            self.problems_untold += 1;
            return;
        }
        let origin = format!("{}:{line}", self.name);
        self.content.problems.push(Problem { origin, object, field, message });
    }
}

/// `Service shop/web`, as far as the document says.
fn object_name(ctx: &Context, node: &Node<'_>, place: Place<'_, '_>) -> Option<String> {
    let kind = node.get_str("kind").or(place.inherited.map(|(kind, _)| kind))?;
    let metadata = node.get("metadata");
    let text = |key| metadata.and_then(|metadata| metadata.get_str(key)).unwrap_or_default();
    Some(match (text("namespace"), text("name")) {
        (_, "") => kind.to_owned(),
        ("", name) if is_cluster_wide(kind) => format!("{kind} {name}"),
        ("", name) => format!("{kind} {}/{name}", ctx.default_namespace),
        (namespace, name) => format!("{kind} {namespace}/{name}"),
    })
}
