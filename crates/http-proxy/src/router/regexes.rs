//! A host's regular expressions, by what every path that they match begins with: of ten thousand a
//! request tries those that it can be for.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::compiled::Compiled;
use super::paths::Paths;

#[derive(Debug, Clone, Default)]
pub(super) struct Regexes {
    /// By the length of the beginning, then by the beginning in lower case.
    by_length: BTreeMap<usize, Paths>,
}

impl Regexes {
    /// How many pieces are not the other's.
    #[cfg(test)]
    pub(super) fn own_pieces(&self, other: &Self) -> usize {
        let none = Paths::default();
        let of = |length| other.by_length.get(length).unwrap_or(&none);
        self.by_length.iter().map(|(length, paths)| paths.own_pieces(of(length))).sum()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_length.is_empty()
    }

    pub(super) fn add(&mut self, compiled: Arc<Compiled>) {
        let beginning = beginning(compiled.route.path.written());
        self.by_length.entry(beginning.len()).or_default().add(&beginning, compiled);
    }

    pub(super) fn remove(&mut self, old: &Compiled) {
        let beginning = beginning(old.route.path.written());
        let Some(paths) = self.by_length.get_mut(&beginning.len()) else { return };
        paths.remove(&beginning, old);
        if paths.is_empty() {
            self.by_length.remove(&beginning.len());
        }
    }

    /// The first in order that matches a path, if it comes before `other`.
    pub(super) fn find<'a>(
        &'a self,
        path: &str,
        other: Option<&'a Arc<Compiled>>,
        fits: impl Fn(&Compiled) -> bool,
    ) -> Option<&'a Arc<Compiled>> {
        let lower = path.to_ascii_lowercase();
        let mut best = other;
        for (length, paths) in self.by_length.range(..=lower.len()) {
            let Some(routes) = lower.get(..*length).and_then(|it| paths.get(it)) else { continue };
            let bar = best;
            let mut better =
                routes.iter().take_while(|own| bar.is_none_or(|bar| own.rank() < bar.rank()));
            if let Some(found) = better.find(|own| own.matches_path(path) && fits(own)) {
                best = Some(found);
            }
        }
        best
    }
}

/// What every path begins with that the expression matches, in lower case; less than there is where it
/// is not plain to see.
fn beginning(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/_-%~!@&=:;,'\"<> ".contains(c);
    let end = text.find(|c| !plain(c)).unwrap_or(text.len());
    // An alternative to all of it begins with something else. Within a group it is no such; what stands
    // in a class or is escaped may look like a group's bracket.
    if text.contains('|') {
        let mut depth = 0_usize;
        for c in text.chars() {
            match c {
                '(' => depth += 1,
                ')' => depth = depth.saturating_sub(1),
                '|' if depth == 0 => return String::new(),
                '\\' | '[' => return String::new(),
                _ => {}
            }
        }
    }
    let mut found = text[..end].to_ascii_lowercase();
    if text[end..].starts_with(['?', '*', '{']) {
        found.pop();
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_beginning_is_what_no_match_is_without() {
        for (text, wanted) in [
            ("/Shop(/|$)(.*)", "/shop"),
            ("/a/b-c%20", "/a/b-c%20"),
            ("/ab?c", "/a"),
            ("/ab*", "/a"),
            ("/ab{0,2}", "/a"),
            ("/ab+", "/ab"),
            ("/a|/b", ""),
            ("(/a|/b)", ""),
            ("/a[(]|/b", ""),
            ("/a\\(|/b", ""),
            ("/a[bc]", "/a"),
            ("/a.b", "/a"),
            ("/ü", "/"),
            ("", ""),
        ] {
            assert_eq!(beginning(text), wanted, "{text}");
            // And by the expression itself: whatever it matches begins so.
            let regex = regex::Regex::new(&format!("(?i)^(?:{text})")).unwrap();
            for path in ["/", "/a", "/ab", "/abb", "/b", "/shop", "/a(", "/A/B-C%20", "/ü", "/axb"]
            {
                let begins = path.to_ascii_lowercase().starts_with(wanted);
                assert!(begins || !regex.is_match(path), "{text} {path}");
            }
        }
    }
}
