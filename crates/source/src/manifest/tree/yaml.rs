//! YAML into trees.

use std::borrow::Cow;
use std::collections::HashMap;

use granit_parser::{Event, Parser, ScalarStyle, Tag};

use super::super::check::Quoted;
use super::block::read_block;
use super::{
    ALIASED_VALUES_MAX, DEPTH_MAX, Entry, Node, SyntaxError, VALUES_MAX, Value, duplicate_key,
};

/// The key by which a mapping takes the entries of others.
const MERGE_KEY: &str = "<<";

/// Reads the documents of `text`, which begins on `first_line` of its file.
///
/// Documents that parse come first; the error, if there is one, ends the list.
pub(crate) fn read_yaml(text: &str, first_line: u32) -> (Vec<Node<'_>>, Option<SyntaxError>) {
    match read_block(text, first_line) {
        Some(document) => (vec![document], None),
        None => read_all_yaml(text, first_line),
    }
}

/// The same by a parser of all of YAML.
pub(super) fn read_all_yaml(text: &str, first_line: u32) -> (Vec<Node<'_>>, Option<SyntaxError>) {
    let mut documents = Vec::new();
    let mut builder = Builder::new(first_line);
    for event in Parser::new_from_str(text) {
        let (event, span) = match event {
            Ok(event) => event,
            Err(error) => {
                let line = builder.line(error.marker().line());
                let message = format!("is not valid YAML: {}", error.info());
                return (documents, Some(SyntaxError::new(line, message)));
            }
        };
        let line = builder.line(span.start.line());
        match builder.take(event, line) {
            Ok(Some(document)) => documents.push(document),
            Ok(None) => {}
            Err(error) => return (documents, Some(error)),
        }
    }
    (documents, None)
}

/// Checks that the fast reader, if it takes the text, reads the same as the full one; says whether it
/// does take it.
pub(crate) fn check_fast_reader(text: &str) -> bool {
    let Some(fast) = read_block(text, 1) else { return false };
    let (documents, error) = read_all_yaml(text, 1);
    assert_eq!(error, None, "only the fast reader accepts {text:?}");
    assert_eq!(documents, [fast], "the readers differ on {text:?}");
    true
}

/// A collection that has begun and not ended.
enum Open<'a> {
    Sequence { line: u32, anchor: usize, items: Vec<Node<'a>> },
    Mapping { line: u32, anchor: usize, entries: Vec<Entry<'a>>, key: Option<(Cow<'a, str>, u32)> },
}

/// Makes trees of parser events.
struct Builder<'a> {
    /// The line of the file before the text.
    lines_before: u32,
    open: Vec<Open<'a>>,
    anchors: HashMap<usize, Node<'a>>,
    values: usize,
    aliased_values: usize,
}

impl<'a> Builder<'a> {
    fn new(first_line: u32) -> Self {
        Self {
            lines_before: first_line - 1,
            open: Vec::new(),
            anchors: HashMap::new(),
            values: 0,
            aliased_values: 0,
        }
    }

    /// The line of the file of a line of the text.
    fn line(&self, line: usize) -> u32 {
        u32::try_from(line).unwrap_or(u32::MAX).max(1).saturating_add(self.lines_before)
    }

    /// Takes one event; gives a document when it is complete.
    fn take(&mut self, event: Event<'a>, line: u32) -> Result<Option<Node<'a>>, SyntaxError> {
        match event {
            Event::DocumentStart(..) => {
                self.anchors.clear();
                self.values = 0;
                self.aliased_values = 0;
                Ok(None)
            }
            Event::Scalar(text, style, anchor, tag) => {
                self.count(1, line)?;
                let is_text = style != ScalarStyle::Plain || has_core_tag(tag.as_deref(), "str");
                let value = if is_text { Value::Text(text) } else { Value::Plain(text) };
                self.complete(Node { line, value }, anchor)
            }
            Event::SequenceStart(_, anchor, _) => {
                self.begin(Open::Sequence { line, anchor, items: Vec::new() }, line)
            }
            Event::MappingStart(_, anchor, _) => {
                self.begin(Open::Mapping { line, anchor, entries: Vec::new(), key: None }, line)
            }
            Event::SequenceEnd | Event::MappingEnd => self.end(),
            Event::Alias(anchor) => self.alias(anchor, line),
            Event::Nothing
            | Event::StreamStart
            | Event::StreamEnd
            | Event::DocumentEnd
            | Event::Comment(..) => Ok(None),
        }
    }

    fn count(&mut self, values: usize, line: u32) -> Result<(), SyntaxError> {
        self.values += values;
        if self.values > VALUES_MAX {
            let message = format!("holds more than {VALUES_MAX} values; split it");
            return Err(SyntaxError::new(line, message));
        }
        Ok(())
    }

    fn begin(&mut self, open: Open<'a>, line: u32) -> Result<Option<Node<'a>>, SyntaxError> {
        self.count(1, line)?;
        if self.open.len() >= DEPTH_MAX {
            return Err(too_deep(line));
        }
        self.open.push(open);
        Ok(None)
    }

    fn end(&mut self) -> Result<Option<Node<'a>>, SyntaxError> {
        let (node, anchor) = match self.open.pop() {
            Some(Open::Sequence { line, anchor, items }) => {
                (Node { line, value: Value::Sequence(items) }, anchor)
            }
            Some(Open::Mapping { line, anchor, mut entries, .. }) => {
                merge(&mut entries)?;
                if let Some(entry) = duplicate_key(&entries) {
                    let message =
                        format!("the key {} is there twice; remove one", Quoted(&entry.key));
                    return Err(SyntaxError::new(entry.line, message));
                }
                (Node { line, value: Value::Mapping(entries) }, anchor)
            }
            None => return Ok(None),
        };
        self.complete(node, anchor)
    }

    /// Puts a complete value where it belongs.
    fn complete(&mut self, node: Node<'a>, anchor: usize) -> Result<Option<Node<'a>>, SyntaxError> {
        if anchor != 0 {
            self.alias_budget(node.size(), node.line)?;
            self.anchors.insert(anchor, node.clone());
        }
        match self.open.last_mut() {
            None => return Ok(Some(node)),
            Some(Open::Sequence { items, .. }) => items.push(node),
            Some(Open::Mapping { entries, key, .. }) => match key.take() {
                Some((key, line)) => entries.push(Entry { key, line, value: node }),
                None => match node.value {
                    Value::Plain(text) | Value::Text(text) => *key = Some((text, node.line)),
                    Value::Sequence(_) | Value::Mapping(_) => {
                        let message = "a key must be a text, not a list or mapping";
                        return Err(SyntaxError::new(node.line, message));
                    }
                },
            },
        }
        Ok(None)
    }

    fn alias(&mut self, anchor: usize, line: u32) -> Result<Option<Node<'a>>, SyntaxError> {
        let Some(node) = self.anchors.get(&anchor) else {
            return Err(SyntaxError::new(line, "an alias stands within what it stands for"));
        };
        let (size, depth) = (node.size(), node.depth());
        let node = Node { line, value: node.value.clone() };
        self.alias_budget(size, line)?;
        self.count(size, line)?;
        if self.open.len() + depth > DEPTH_MAX {
            return Err(too_deep(line));
        }
        self.complete(node, 0)
    }

    /// Every copy for an anchor or an alias counts, so copying stays within the bound.
    fn alias_budget(&mut self, size: usize, line: u32) -> Result<(), SyntaxError> {
        self.aliased_values += size;
        if self.aliased_values > ALIASED_VALUES_MAX {
            let message =
                format!("aliases make more than {ALIASED_VALUES_MAX} values; write them out");
            return Err(SyntaxError::new(line, message));
        }
        Ok(())
    }
}

fn too_deep(line: u32) -> SyntaxError {
    SyntaxError::new(line, format!("is nested deeper than {DEPTH_MAX} levels"))
}

fn has_core_tag(tag: Option<&Tag>, suffix: &str) -> bool {
    tag.is_some_and(|tag| tag.is_yaml_core_schema_tag(suffix))
}

/// Replaces `<<` by the entries of the mappings it names; the mapping's own entries win.
fn merge(entries: &mut Vec<Entry<'_>>) -> Result<(), SyntaxError> {
    let Some(at) = entries.iter().position(|entry| entry.key == MERGE_KEY) else { return Ok(()) };
    let merged = entries.remove(at);
    let sources = match merged.value.value {
        Value::Mapping(_) => vec![merged.value],
        Value::Sequence(items) => items,
        Value::Plain(_) | Value::Text(_) => Vec::new(),
    };
    if sources.is_empty() {
        return Err(SyntaxError::new(merged.line, "<< needs a mapping, or a list of mappings"));
    }
    for source in sources {
        let Value::Mapping(source) = source.value else {
            return Err(SyntaxError::new(merged.line, "<< needs a mapping, or a list of mappings"));
        };
        for entry in source {
            if !entries.iter().any(|own| own.key == entry.key) {
                entries.push(entry);
            }
        }
    }
    Ok(())
}
