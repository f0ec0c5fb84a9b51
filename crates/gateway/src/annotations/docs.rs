//! The page of annotations, printed from the table: `docs/annotations.md`.

use std::fmt::Write as _;

use super::table::{GROUPS, NGINX, OURS, REFUSED, Row};

/// What stands above the tables.
const INTRODUCTION: &str = "\
# Annotations of an Ingress
Every annotation of this page is read as `telaio.dev/NAME`. Those with a mark in the column *nginx* are
also read as `nginx.ingress.kubernetes.io/NAME`, so that Ingresses made for ingress-nginx go on working;
where both stand, ours wins. `telaio migrate` says for each Ingress of a cluster or directory what is
honoured, what differs and what is refused.

A value that cannot be read is left out with a warning on the Ingress, and the rest of it holds. The
exception are annotations marked with a *key*: they keep somebody out, so while one cannot be read (or the
Secret that it names is not there) the routes of its Ingress answer 403 to everybody.

Secrets and ConfigMaps must be in the Ingress's own namespace. Of Secrets only those of type
`kubernetes.io/tls`, and the entries `auth` and `ca.crt` of those of type `Opaque`, are ever kept;
ConfigMaps only if they have the label `telaio.dev/config`.

What ingress-nginx's ConfigMap sets for all Ingresses is not read; what there is of it here is a flag
(docs/ingress.md). One thing that it does unasked is not done: it sends `Strict-Transport-Security:
max-age=31536000; includeSubDomains` with every answer by TLS. Ingresses whose clients shall go on getting it
name a ConfigMap with that header in `custom-headers`.

This page is printed from the table that the annotations are read with; a test keeps it so.
";

/// The whole page.
pub fn docs_page() -> String {
    let mut page = INTRODUCTION.to_owned();
    for (heading, rows) in GROUPS {
        // Writing to a string cannot fail.
        let _ =
            write!(page, "\n## {heading}\n| name | nginx | expects | does |\n|---|---|---|---|\n");
        let mut rows = rows.to_vec();
        rows.sort_by_key(|row| row.name);
        for row in rows {
            write_row(&mut page, &row);
        }
    }
    page.push_str("\n## Refused\n| name | why | instead |\n|---|---|---|\n");
    let mut refused = REFUSED.to_vec();
    refused.sort_by_key(|refused| refused.name);
    for row in refused {
        let taken = row.taken.map_or_else(String::new, |value| format!(" (`{value}` is taken)"));
        let (why, instead) = (cell(row.why), cell(row.instead));
        let _ = writeln!(page, "| `{}`{taken} | {why} | {instead} |", row.name);
    }
    let _ = write!(
        page,
        "\nAn annotation with the prefix `{OURS}` or `{NGINX}` that is on no list has no effect, and a \
         warning says so.\n"
    );
    page
}

fn write_row(page: &mut String, row: &Row) {
    let nginx = if row.nginx { "✓" } else { "" };
    let key = if row.guard { " *key*" } else { "" };
    let differs = match row.differs {
        Some(differs) => format!(" Different from ingress-nginx: {}.", cell(differs)),
        None => String::new(),
    };
    let (expects, does) = (cell(row.expects), cell(row.does));
    let _ = writeln!(page, "| `{}`{key} | {nginx} | {expects} | {does}{differs} |", row.name);
}

/// A text within a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}
