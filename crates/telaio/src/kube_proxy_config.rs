//! `--kube-proxy-config FILE`: a KubeProxyConfiguration, read as settings of ours.
//!
//! Every field that kube-proxy has stands in one [table](fields), with what becomes of it here: an
//! option of ours, nothing because it says what we do anyway, or a warning because it has no equal.
//! The options that it sets then are a layer of [`settings`](crate::settings), above the defaults and
//! below everything else.
//!
//! What always holds:
//! - a field that says nothing (null, empty, the zero that kubeadm writes out) changes nothing;
//! - a field of kube-proxy's that has no equal, and one that kube-proxy does not have either, is
//!   named in a warning of its own and the rest is used;
//! - a value that cannot be is an error that names file and field;
//! - as in kube-proxy, the fields of a mode that is not chosen say nothing.

mod fields;

use std::net::IpAddr;
use std::path::Path;

use serde_json::{Map, Value};

use crate::settings::{Entry, FileError};
use fields::{Becomes, Field, Mode, Shape};

/// What the file must say that it is.
const KIND: &str = "KubeProxyConfiguration";
/// The group that it must be of; versions of it differ in a few fields, and all are known.
const API_GROUP: &str = "kubeproxy.config.k8s.io/";

/// A KubeProxyConfiguration in our terms.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct KubeProxyConfig {
    /// The options that it sets, each with the field that does so.
    pub(crate) entries: Vec<Entry>,
    /// What is not used, and why.
    pub(crate) warnings: Vec<String>,
}

/// Whether a text is such a configuration, to tell whoever gave it for a configuration of ours.
pub(crate) fn is_kube_proxy_config(text: &str) -> bool {
    let says_so = |line: &str| {
        let plain = line.replace(['"', '\'', ' '], "");
        !plain.starts_with('#') && plain.contains(&format!("kind:{KIND}"))
    };
    text.lines().any(says_so)
}

impl KubeProxyConfig {
    /// Reads the file; YAML and JSON alike, whatever its name.
    pub(crate) fn read(path: &Path) -> Result<Self, FileError> {
        let text = crate::settings::read_text(path)?;
        let tree: Value = serde_saphyr::from_str(&text).map_err(|error| FileError::Syntax {
            path: path.to_owned(),
            message: error.to_string(),
        })?;
        Reader::new(path).read(tree)
    }
}

/// A configuration that is being read.
struct Reader<'a> {
    path: &'a Path,
    mode: Mode,
    config: KubeProxyConfig,
}

impl<'a> Reader<'a> {
    fn new(path: &'a Path) -> Self {
        Self { path, mode: Mode::Iptables, config: KubeProxyConfig::default() }
    }

    fn read(mut self, tree: Value) -> Result<KubeProxyConfig, FileError> {
        let Value::Object(top) = tree else {
            return Err(FileError::Syntax {
                path: self.path.to_owned(),
                message: format!("is not a {KIND}"),
            });
        };
        self.check_kind(&top)?;
        self.mode = self.read_mode(&top)?;
        self.take_fields("", &top)?;
        self.derive_defaults(&top);
        Ok(self.config)
    }

    fn bad(&self, field: &str, message: impl Into<String>) -> FileError {
        let (path, key) = (self.path.to_owned(), field.to_owned());
        FileError::BadValue { path, key, message: message.into() }
    }

    fn check_kind(&self, top: &Map<String, Value>) -> Result<(), FileError> {
        match top.get("kind").and_then(Value::as_str) {
            Some(KIND) => {}
            Some("ConfigMap") => {
                let hint = "expected KubeProxyConfiguration, not a ConfigMap: give what is in its \
                            data, config.conf";
                return Err(self.bad("kind", hint));
            }
            _ => return Err(self.bad("kind", format!("expected {KIND}"))),
        }
        match top.get("apiVersion").and_then(Value::as_str) {
            Some(version) if version.starts_with(API_GROUP) => Ok(()),
            _ => Err(self.bad("apiVersion", format!("expected {API_GROUP}v1alpha1"))),
        }
    }

    /// The mode decides which group of fields counts. Without one kube-proxy takes iptables, and on
    /// Windows the only one that it has there.
    fn read_mode(&self, top: &Map<String, Value>) -> Result<Mode, FileError> {
        let unnamed = if cfg!(windows) { Mode::Kernelspace } else { Mode::Iptables };
        match top.get("mode") {
            None | Some(Value::Null) => Ok(unnamed),
            Some(Value::String(mode)) => match mode.as_str() {
                "" => Ok(unnamed),
                "iptables" => Ok(Mode::Iptables),
                "nftables" => Ok(Mode::Nftables),
                "ipvs" => Ok(Mode::Ipvs),
                "kernelspace" => Ok(Mode::Kernelspace),
                _ => Err(self.bad(
                    "mode",
                    format!(
                        "{mode:?} is no mode; expected iptables, ipvs, nftables or kernelspace"
                    ),
                )),
            },
            Some(_) => Err(self.bad("mode", "expected a text")),
        }
    }

    fn take_fields(&mut self, parent: &str, object: &Map<String, Value>) -> Result<(), FileError> {
        for (name, value) in object {
            let path = if parent.is_empty() { name.clone() } else { format!("{parent}.{name}") };
            match (fields::find(&path), value) {
                (Some(field), value) => self.take(field, &path, value)?,
                (None, Value::Object(inner)) if fields::is_group(&path) => {
                    self.take_fields(&path, inner)?;
                }
                (None, Value::Null) => {}
                (None, _) if fields::is_group(&path) => {
                    return Err(self.bad(&path, "expected a map of fields"));
                }
                (None, _) => self.warn(&path, value, "kube-proxy has no such field that we know"),
            }
        }
        Ok(())
    }

    fn warn(&mut self, field: &str, value: &Value, why: &str) {
        let file = self.path.display();
        self.config.warnings.push(format!("{file}: {field}: {value} is not used: {why}"));
    }

    fn take(&mut self, field: &Field, path: &str, value: &Value) -> Result<(), FileError> {
        if says_nothing(field, value) {
            return Ok(());
        }
        let values = texts(field.shape, value).map_err(|expected| {
            self.bad(path, format!("{value} cannot be: expected {expected}"))
        })?;
        if !field.modes.contain(self.mode) {
            return Ok(());
        }
        match field.becomes {
            Becomes::Option(option) => {
                let values = values.iter().map(|text| prepare(path, text)).collect();
                self.set(option, values, path);
            }
            Becomes::Nothing => {}
            Becomes::Warning(why) => self.warn(path, value, why),
        }
        Ok(())
    }

    fn set(&mut self, option: &str, values: Vec<String>, field: &str) {
        self.config.entries.push(Entry { key: option.to_owned(), values, name: field.to_owned() });
    }

    fn sets(&self, option: &str) -> bool {
        self.config.entries.iter().any(|entry| entry.key == option)
    }

    /// What kube-proxy does where these fields are left out, and we would not by ourselves.
    fn derive_defaults(&mut self, top: &Map<String, Value>) {
        if self.mode == Mode::Nftables && !self.sets("nodeport-addresses") {
            self.set("nodeport-addresses", vec!["primary".into()], "nodePortAddresses");
        }
        let bind_address = top.get("bindAddress").and_then(Value::as_str);
        if let Some(Ok(IpAddr::V6(_))) = bind_address.map(str::parse) {
            for (option, address, field) in [
                ("healthz-bind-address", "::", "healthzBindAddress"),
                ("metrics-bind-address", "::1", "metricsBindAddress"),
            ] {
                if !self.sets(option) {
                    self.set(option, vec![address.into()], field);
                }
            }
        }
    }
}

/// Whether a field is as if it were left out.
fn says_nothing(field: &Field, value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => {
            let is_zero = matches!(text.as_str(), "0" | "0s")
                && matches!(field.shape, Shape::Time | Shape::Any)
                && !field.zero_counts;
            text.is_empty()
                || is_zero
                // "Any address" is how kube-proxy writes that it was not told one.
                || (field.path == "bindAddress" && matches!(text.as_str(), "0.0.0.0" | "::"))
        }
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.values().all(|value| says_nothing(field, value)),
        Value::Bool(flag) => !flag && !field.zero_counts,
        Value::Number(number) => number.as_f64() == Some(0.0) && !field.zero_counts,
    }
}

/// The values of a field as an option gets them; or what it should have been.
fn texts(shape: Shape, value: &Value) -> Result<Vec<String>, &'static str> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    match (shape, value) {
        (Shape::Text | Shape::Time, Value::String(text)) => Ok(vec![text.clone()]),
        (Shape::Bool, Value::Bool(flag)) => Ok(vec![flag.to_string()]),
        (Shape::Whole, Value::Number(number)) if number.is_i64() => Ok(vec![number.to_string()]),
        (Shape::List, Value::Array(items)) => {
            items.iter().map(text).collect::<Option<_>>().ok_or("a list of texts")
        }
        (Shape::Any, _) => Ok(Vec::new()),
        (Shape::Text, _) => Err("a text"),
        (Shape::Time, _) => Err("a time such as 30s"),
        (Shape::Bool, _) => Err("true or false"),
        (Shape::Whole, _) => Err("a whole number"),
        (Shape::List, _) => Err("a list of texts"),
    }
}

/// kube-proxy is lenient about the case of its node's name, and spaces in lists of networks.
fn prepare(field: &str, text: &str) -> String {
    match field {
        "hostnameOverride" => text.trim().to_lowercase(),
        "clusterCIDR" => text.replace(' ', ""),
        _ => text.trim().to_owned(),
    }
}

#[cfg(test)]
mod tests;
