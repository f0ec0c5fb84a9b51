//! How the path of a rule is compared: by the form that requests are compared in.

use telaio_http_proxy::head::target::{TargetError, route_path};
use telaio_http_proxy::table::{PathMatch, REGEX_MARK};
use telaio_model::{IngressPath, PathType};

use crate::annotations::values;

/// A path as a regular expression: from the beginning, without regard to case.
pub(crate) fn regex_pattern(path: &str) -> String {
    format!("{REGEX_MARK}{path}")
}

/// How a path is compared that is no regular expression. A slash at the end of a prefix makes no
/// difference, so that two Ingresses that differ in it want the same.
pub(crate) fn literal(path: &IngressPath) -> Result<PathMatch, TargetError> {
    let text = route_path(&path.path)?;
    Ok(match path.path_type {
        PathType::Exact => PathMatch::Exact(text.into()),
        PathType::Prefix | PathType::ImplementationSpecific => match text.trim_end_matches('/') {
            "" => PathMatch::Prefix("/".into()),
            bare => PathMatch::Prefix(bare.into()),
        },
    })
}

/// The other way to read a path: a prefix as a regular expression, or the reverse.
pub(crate) fn other_reading(path: &IngressPath, matched: &PathMatch) -> Option<PathMatch> {
    match matched {
        PathMatch::Exact(_) => None,
        PathMatch::Regex(_) => literal(path).ok(),
        PathMatch::Prefix(_) => {
            let pattern = regex_pattern(&path.path);
            values::regex(&pattern).ok().map(|_| PathMatch::Regex(pattern.into()))
        }
    }
}
