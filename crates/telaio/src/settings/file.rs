//! The configuration file: flat keys, TOML or YAML by its ending.

use std::io::Read;
use std::path::{Path, PathBuf};

use std::collections::BTreeMap;

use clap::Arg;
use serde_json::Value;

use crate::kube_proxy_config::is_kube_proxy_config;

/// A configuration is short; what is longer was named by mistake.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// What is wrong with a configuration file.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FileError {
    /// It cannot be read.
    #[error("{}: {error}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// Its ending says neither TOML nor YAML.
    #[error("{}: a configuration file ends in .toml, .yaml or .yml", path.display())]
    UnknownFormat {
        /// The file.
        path: PathBuf,
    },
    /// It is kube-proxy's.
    #[error("{}: is a KubeProxyConfiguration: give it with --kube-proxy-config", path.display())]
    KubeProxys {
        /// The file.
        path: PathBuf,
    },
    /// It is longer than any configuration.
    #[error("{}: longer than {FILE_BYTES_MAX} bytes, which no configuration is", path.display())]
    TooLong {
        /// The file.
        path: PathBuf,
    },
    /// It is not TOML or YAML with keys at its top.
    #[error("{}: {message}", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// What and where.
        message: String,
    },
    /// No option has this name.
    #[error("{}: {key}: there is no such setting{hint}", path.display())]
    UnknownKey {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
        /// The nearest known name, if one is near.
        hint: String,
    },
    /// The option does not take this value.
    #[error("{}: {key}: {message}", path.display())]
    BadValue {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
        /// What is wrong and what would be right.
        message: String,
    },
}

impl FileError {
    /// An unknown key, with the nearest of the known ones.
    pub(crate) fn unknown_key(path: &Path, key: &str, known: &[String]) -> Self {
        // Writers of YAML and of kube-proxy's configuration think in other cases.
        let plain = key.to_lowercase().replace('_', "-");
        let hint = known
            .iter()
            .map(|name| (strsim::jaro_winkler(&plain, name), name))
            .filter(|(likeness, _)| *likeness > 0.8)
            .max_by(|one, other| one.0.total_cmp(&other.0))
            .map(|(_, name)| format!("; did you mean {name}?"))
            .unwrap_or_default();
        Self::UnknownKey { path: path.to_owned(), key: key.to_owned(), hint }
    }
}

/// One key of a file with its values as an option would get them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    /// The option.
    pub(crate) key: String,
    pub(crate) values: Vec<String>,
    /// What sets it, as the file calls it.
    pub(crate) name: String,
}

impl Entry {
    /// Whether the option takes the values: asked of clap, with a command of this one option.
    pub(crate) fn check(&self, path: &Path, arg: &Arg) -> Result<(), FileError> {
        let alone = Arg::new(arg.get_id().clone())
            .long(self.key.clone())
            .num_args(1)
            .action(clap::ArgAction::Append)
            .value_parser(arg.get_value_parser().clone());
        let alone = match arg.get_value_delimiter() {
            Some(delimiter) => alone.value_delimiter(delimiter),
            None => alone,
        };
        let bad = |message: String| FileError::BadValue {
            path: path.to_owned(),
            key: self.name.clone(),
            message,
        };
        if self.values.len() > 1 && arg.get_value_delimiter().is_none() {
            return Err(bad("takes one value, not a list".into()));
        }
        let given = self.values.iter().map(|value| format!("--{}={value}", self.key));
        clap::Command::new("file")
            .no_binary_name(true)
            .arg(alone)
            .try_get_matches_from(given)
            .map(drop)
            .map_err(|error| bad(first_line(&error)))
    }
}

/// Clap's message without its frame ("error: …", usage, tips).
fn first_line(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let line = text.lines().next().unwrap_or_default();
    line.strip_prefix("error: ").unwrap_or(line).to_owned()
}

/// The entries of the file, by key.
pub(crate) fn read(path: &Path) -> Result<Vec<Entry>, FileError> {
    let text = read_text(path)?;
    if is_kube_proxy_config(&text) {
        return Err(FileError::KubeProxys { path: path.to_owned() });
    }
    let syntax = |message: String| FileError::Syntax { path: path.to_owned(), message };
    let table: BTreeMap<String, Value> = match path.extension().and_then(|end| end.to_str()) {
        Some("toml") => toml::from_str(&text).map_err(|error| syntax(error.to_string()))?,
        Some("yaml" | "yml") if text.lines().all(is_blank_in_yaml) => BTreeMap::new(),
        Some("yaml" | "yml") => {
            serde_saphyr::from_str(&text).map_err(|error| syntax(error.to_string()))?
        }
        _ => return Err(FileError::UnknownFormat { path: path.to_owned() }),
    };
    table.into_iter().map(|(key, value)| entry(path, key, value)).collect()
}

/// A YAML file of nothing but remarks is a null, not a map; to us it is an empty configuration.
fn is_blank_in_yaml(line: &str) -> bool {
    let line = line.trim();
    line.is_empty() || line.starts_with('#') || line == "---"
}

/// The text of a file that is not longer than a configuration.
pub(crate) fn read_text(path: &Path) -> Result<String, FileError> {
    let unreadable = |error| FileError::Unreadable { path: path.to_owned(), error };
    let file = std::fs::File::open(path).map_err(unreadable)?;
    let mut text = String::new();
    file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(unreadable)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(FileError::TooLong { path: path.to_owned() });
    }
    Ok(text)
}

fn entry(path: &Path, key: String, value: Value) -> Result<Entry, FileError> {
    let values = match value {
        Value::Array(items) => items.into_iter().map(scalar).collect(),
        other => scalar(other).map(|text| vec![text]),
    };
    match values {
        Some(values) if !values.is_empty() => Ok(Entry { name: key.clone(), key, values }),
        _ => Err(FileError::BadValue {
            path: path.to_owned(),
            key,
            message: "must be a text, a number, true or false, or a list of those".into(),
        }),
    }
}

fn scalar(value: Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(flag) => Some(flag.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}
