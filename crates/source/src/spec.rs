//! The `--source` argument.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// Where to read from: `kube[:KUBECONFIG]`, `dir:PATH` or `brain:URL`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SourceSpec {
    /// The Kubernetes API: by this kubeconfig, or as a pod of the cluster, or by the default kubeconfig.
    Kube(Option<PathBuf>),
    /// A directory of manifests.
    Dir(PathBuf),
    /// Another telaio, or a KPNG server.
    Brain(String),
}

/// What is wrong with a `--source`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// No such kind of source.
    #[error("{0:?} is not a source; write kube, kube:KUBECONFIG, dir:PATH or brain:URL")]
    Unknown(String),
    /// A directory source without a directory.
    #[error("dir: needs a path, as in dir:/etc/telaio/manifests")]
    NoPath,
    /// A brain source without a usable URL.
    #[error(
        "brain: needs an http or https URL, as in brain:https://brain.example:12090, not {0:?}"
    )]
    BadUrl(String),
}

impl FromStr for SourceSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let (kind, rest) =
            text.split_once(':').map_or((text, None), |(kind, rest)| (kind, Some(rest)));
        match (kind, rest) {
            ("kube", None | Some("")) => Ok(Self::Kube(None)),
            ("kube", Some(path)) => Ok(Self::Kube(Some(path.into()))),
            ("dir", None | Some("")) => Err(SpecError::NoPath),
            ("dir", Some(path)) => Ok(Self::Dir(path.into())),
            ("brain", Some(url)) => {
                let valid = url.parse::<http::Uri>().is_ok_and(|uri| {
                    matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some()
                });
                if valid {
                    Ok(Self::Brain(url.to_owned()))
                } else {
                    Err(SpecError::BadUrl(url.to_owned()))
                }
            }
            _ => Err(SpecError::Unknown(text.to_owned())),
        }
    }
}

impl fmt::Display for SourceSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kube(None) => f.write_str("kube"),
            Self::Kube(Some(path)) => write!(f, "kube:{}", path.display()),
            Self::Dir(path) => write!(f, "dir:{}", path.display()),
            Self::Brain(url) => write!(f, "brain:{url}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_it_prints() {
        for text in ["kube", "kube:/etc/kubeconfig", "dir:/etc/telaio", "brain:https://b:12090"] {
            assert_eq!(text.parse::<SourceSpec>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn says_what_is_missing() {
        assert_eq!("dir:".parse::<SourceSpec>(), Err(SpecError::NoPath));
        assert!(matches!("brain:b:12090".parse::<SourceSpec>(), Err(SpecError::BadUrl(_))));
        assert!(matches!("file:/x".parse::<SourceSpec>(), Err(SpecError::Unknown(_))));
    }
}
