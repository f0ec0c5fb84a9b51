use proptest::prelude::*;
use serde::Deserialize;

use super::block::read_block;
use super::yaml::read_all_yaml;
use super::*;

fn yaml(text: &str) -> Node<'_> {
    let (mut documents, error) = read_all_yaml(text, 1);
    assert_eq!(error, None);
    documents.remove(0)
}

#[test]
fn a_field_is_found_by_its_path() {
    let tree = yaml(
        "metadata:\n  name: a\n  labels:\n    a.b/c: d\nspec:\n  ports:\n  - port: 1\n\n  - port: 2\n    name: x\n",
    );
    for (path, line) in [
        ("", 1),
        ("metadata.name", 2),
        ("metadata.labels[a.b/c]", 4),
        ("spec.ports", 6),
        ("spec.ports[1]", 9),
        ("spec.ports[1].name", 10),
        ("spec.ports[1].missing", 9),
        ("spec.ports[7].port", 6),
        ("spec.type", 5),
        ("status.x", 1),
        ("spec.ports[[", 6),
    ] {
        assert_eq!(tree.line_of(path), line, "{path}");
    }
}

#[test]
fn aliases_and_merge_keys_are_resolved() {
    let tree = yaml(
        "base: &b {a: 1, b: 2}\nown:\n  <<: *b\n  b: 3\nboth:\n  <<: [*b, {c: 4}]\nsame: *b\n",
    );
    let get =
        |path: &[&str]| path.iter().try_fold(&tree, |node, key| node.get(key)).map(|n| &n.value);
    let plain = |text: &'static str| Value::Plain(Cow::Borrowed(text));
    assert_eq!(get(&["own", "a"]), Some(&plain("1")));
    assert_eq!(get(&["own", "b"]), Some(&plain("3")));
    assert_eq!(get(&["both", "c"]), Some(&plain("4")));
    assert_eq!(get(&["same", "b"]), Some(&plain("2")));
    assert_eq!(get(&["own", "<<"]), None);
}

#[test]
fn a_broken_document_leaves_those_before_it() {
    let (documents, error) = read_all_yaml("a: 1\n...\n---\nb: [\n", 10);
    assert_eq!(documents.len(), 1);
    assert_eq!(error.map(|error| error.line), Some(13));
}

#[test]
fn scalars_are_typed_as_kubernetes_types_them() {
    #[derive(Debug, PartialEq, Deserialize)]
    struct Typed {
        text: String,
        number: i64,
        flag: bool,
        nothing: Option<String>,
    }
    let read = |text: &str| Typed::deserialize(&yaml(text)).map_err(|problem| problem.to_string());
    assert_eq!(
        read("text: on\nnumber: 0x10\nflag: on\nnothing: ~\n"),
        Ok(Typed { text: "on".into(), number: 16, flag: true, nothing: None })
    );
    assert_eq!(
        read("text: '5'\nnumber: -3\nflag: False\nnothing: ''\n"),
        Ok(Typed { text: "5".into(), number: -3, flag: false, nothing: Some(String::new()) })
    );
    assert_eq!(
        read("text: 2020-01-01T00:00:00Z\nnumber: 010\nflag: true\n"),
        Err("number: the text \"010\" does not fit here; write a whole number".into())
    );
    assert_eq!(
        read("text: 1.5\nnumber: 1\nflag: true\n"),
        Err("text: the number 1.5 is not a text; write it in quotes, \"1.5\"".into())
    );
    assert_eq!(
        read("text: true\nnumber: 1\nflag: true\n"),
        Err("text: the truth value true is not a text; write it in quotes, \"true\"".into())
    );
    assert_eq!(
        read("text: {}\nnumber: 1\nflag: true\n"),
        Err("text: a mapping does not fit here; write a text".into())
    );
    assert_eq!(
        read("text: a\nnumber: 1\nflag: 'true'\n").unwrap_err().split(':').next(),
        Some("flag")
    );
}

#[test]
fn json_and_yaml_make_the_same_tree() {
    fn without_lines(node: Node<'_>) -> Node<'_> {
        let value = match node.value {
            Value::Sequence(items) => {
                Value::Sequence(items.into_iter().map(without_lines).collect())
            }
            Value::Mapping(entries) => Value::Mapping(
                entries
                    .into_iter()
                    .map(|entry| Entry { line: 0, value: without_lines(entry.value), ..entry })
                    .collect(),
            ),
            scalar => scalar,
        };
        Node { line: 0, value }
    }
    let text = "{\"a\": [1, -2, 3.5, true, null, \"x\\n\\u00e9\"], \"b\": {\"c\": {}, \"d\": []}}";
    let (documents, error) = read_json(text);
    assert_eq!(error, None);
    assert_eq!(documents[0].node, without_lines(yaml(text)));
}

#[test]
fn json_documents_know_where_they_begin() {
    let (documents, error) = read_json("\n{\"a\":\n1}\n\n{\"b\": 2} {\"c\": 3}\n{\n\"d\" 4}");
    let lines: Vec<u32> = documents.iter().map(|document| document.first_line).collect();
    assert_eq!(lines, [2, 5, 5]);
    assert_eq!(error.map(|error| error.line), Some(7));
}

#[test]
fn the_fast_reader_takes_what_manifests_are_made_of() {
    for text in [
        "a: 1\n",
        "---\na: 1\nb: c d e\n",
        "--- # head\n# comment\na:\n  b: \"q\" # comment\n  c: 'r'\n",
        "a:\n- b: 1\n  c: 2\n- b: 3\n\n- d\n-\n- e:\n  - f\nz: {}\n",
        "a:\n  - b: 1\n    c:\n      d: []\n  - e\nf:\ng: 10.0.0.1/8\n",
        "a:\n-   b: 1\n    c: 2\n",
        "a: -1\nb: ::\n".replace("b: ::\n", "").as_str(),
        "url: http://host:80/x#y\ntime: 2020-01-01T00:00:00Z\n",
        "- a\n- b: c\n",
        "a: b\nc:   d   \ne:   \nf: g",
    ] {
        assert!(check_fast_reader(text), "{text:?} is not read fast");
    }
}

#[test]
fn the_fast_reader_leaves_the_rest_alone() {
    for text in [
        "a: b: c\n",
        "a: [1]\n",
        "a: |\n  text\n",
        "a: &x b\n",
        "a: b\n  c\n",
        "a: 'it''s'\n",
        "a: \"x # y\"\n",
        "a: 'x' y\n",
        "a: 1\na: 2\n",
        "a:\tb\n",
        "a: b\r\n",
        "a: é\n",
        "- - a\n",
        "a: b\n- c\n",
        "a:\n    b: 1\n  c: 2\n",
        "a: 1\n---\nb: 2\n",
        "a: 1\n...\n",
        "<<: {a: b}\n",
        "\"a\": b\n",
        "? a\n: b\n",
        " a: 1\n",
        "just words\n",
        "a: %b\n",
        "a: b:\n",
        "",
    ] {
        assert_eq!(read_block(text, 1), None, "{text:?}");
    }
}

/// Lines that are likely to be taken, and now and then a trap.
fn yaml_line() -> impl Strategy<Value = String> {
    let indent = prop::sample::select(vec!["", "", "", "  ", "  ", "    ", " ", "      "]);
    let usual = prop::sample::select(vec![
        "a:",
        "b: 1",
        "c: x y",
        "- a: 1",
        "- b",
        "- c: 2",
        "d: \"q\"",
        "e: 's'",
        "f: {}",
        "g: []",
        "# c",
        "h: v # c",
        "",
        "i: http://x:1",
        "k-1: v",
        "l: a:b",
        "a.b/c: d",
        "m: ~",
        "n: null",
    ]);
    let traps = prop::sample::select(vec![
        "-",
        "- ",
        "j: -",
        "k: - x",
        "- - x",
        "- c:",
        "--- ",
        "---",
        "...",
        "o: #x",
        "p: a#b",
        "q: 'a # b'",
        "r: \"\"",
        "- {}",
        "-a",
        "-a: 1",
        "s : 1",
        "t:1",
        "u: a, b",
        "v: a]",
        "w: (x)",
        "x: @a",
        "y: `a",
        "z: a\\b",
        "_: 1",
        "0: 1",
        "1.5: x",
        "A: !x",
        "B: *x",
        "C: &x",
        "D: a: b",
        "E: a :b",
        "F: .",
        "G: ''",
        "H: '",
        "I: \"a\\n\"",
        "J: =",
        "K: <<",
        "- -1",
        "L: --",
        "M: -1",
        "N: a  #",
        "O:  # c",
        "P: a ",
        "Q: ^",
        "R: $",
        "S: +1",
        "T: /x",
    ]);
    (indent, prop_oneof![6 => usual, 1 => traps])
        .prop_map(|(indent, content)| format!("{indent}{content}"))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    #[test]
    fn the_fast_reader_agrees_with_the_full_one(lines in prop::collection::vec(yaml_line(), 1..9)) {
        check_fast_reader(&lines.join("\n"));
    }

    #[test]
    fn the_fast_reader_agrees_on_mutated_manifests(
        at in 0..400usize,
        with in prop::sample::select(vec![" ", "\n", ":", "-", "#", "'", "\"", "", "  ", "- ", ": ", "x", ","]),
        cut in 0..3usize,
    ) {
        let text = include_str!("testdata/service.yaml");
        let at = at % text.len();
        let end = (at + cut).min(text.len());
        check_fast_reader(&format!("{}{with}{}", &text[..at], &text[end..]));
    }
}
