//! HCN's JSON documents, schema version 2: what they all have in common.
//!
//! What is sent has `SchemaVersion` 2.0 and leaves out what is empty, zero or left to HNS, as every
//! program in the field does. What is received is read with mercy where mercy is safe: names in any
//! case, `null` as absent, an empty string as no value, unknown members ignored. What is missing or of a
//! wrong type is a [`DocumentError`].

use std::fmt::Display;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A document that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DocumentError {
    /// Not JSON at all, or cut off.
    #[error("not valid JSON: {0}")]
    Json(String),
    /// A member is missing or of a wrong type.
    #[error("not what the schema says: {0}")]
    Shape(String),
    /// A member without which the object means nothing.
    #[error("{0} is missing")]
    Missing(&'static str),
    /// Of another schema version than 2.
    #[error("schema version {major}.{minor}, not 2.x")]
    SchemaVersion {
        /// The major version that it has.
        major: u32,
        /// The minor version that it has.
        minor: u32,
    },
}

/// The version of a document's schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct SchemaVersion {
    major: u32,
    minor: u32,
}

impl SchemaVersion {
    pub(crate) const V2: Self = Self { major: 2, minor: 0 };
}

#[derive(Serialize)]
struct Versioned<'a, T> {
    #[serde(flatten)]
    settings: &'a T,
    #[serde(rename = "SchemaVersion")]
    schema_version: SchemaVersion,
}

/// The document of an object.
pub(crate) fn to_document<T: Serialize>(settings: &T) -> Value {
    // Plain values with string keys: there is nothing in them that JSON cannot say.
    serde_json::to_value(Versioned { settings, schema_version: SchemaVersion::V2 })
        .unwrap_or_default()
}

/// Reads an answer's text.
pub(crate) fn parse(text: &str) -> Result<Value, DocumentError> {
    serde_json::from_str(text).map_err(|error| DocumentError::Json(error.to_string()))
}

/// Reads an object's document.
pub(crate) fn from_document<T: DeserializeOwned>(document: &Value) -> Result<T, DocumentError> {
    let document = canonical(document);
    if let Some(version) = document.get("SchemaVersion") {
        let version: SchemaVersion = shaped(version.clone())?;
        if version.major != SchemaVersion::V2.major {
            let SchemaVersion { major, minor } = version;
            return Err(DocumentError::SchemaVersion { major, minor });
        }
    }
    shaped(document)
}

/// Reads one part of a document.
pub(crate) fn shaped<T: DeserializeOwned>(value: Value) -> Result<T, DocumentError> {
    serde_json::from_value(value).map_err(|error| DocumentError::Shape(error.to_string()))
}

/// The names of the schema, as they are sent.
const NAMES: &[&str] = &[
    "Action",
    "DestinationPrefix",
    "Destinations",
    "Direction",
    "DistributedRouterMacAddress",
    "DistributionType",
    "Dns",
    "EndMacAddress",
    "Exceptions",
    "ExternalPort",
    "Flags",
    "FrontendVIPs",
    "HostComputeEndpoints",
    "HostComputeNamespace",
    "HostComputeNetwork",
    "ID",
    "InternalPort",
    "IpAddress",
    "IpAddressPrefix",
    "Ipams",
    "IpConfigurations",
    "IsolationId",
    "LocalAddresses",
    "LocalPorts",
    "MacAddress",
    "MacPool",
    "Major",
    "Metric",
    "Minor",
    "Name",
    "NeedEncap",
    "NextHop",
    "Options",
    "Owner",
    "Policies",
    "PortMappings",
    "PrefixLength",
    "Priority",
    "Protocol",
    "Protocols",
    "ProviderAddress",
    "Ranges",
    "RemoteAddresses",
    "RemotePorts",
    "Routes",
    "RuleType",
    "SchemaVersion",
    "Search",
    "ServerList",
    "Settings",
    "SourceVIP",
    "StartMacAddress",
    "Subnets",
    "Suffix",
    "Type",
    "VIP",
    "VirtualIP",
];

/// The document with the schema's names in the schema's case and without `null`s. The inside of a
/// policy's settings is left alone: an unknown policy is kept verbatim.
///
/// HNS itself is indifferent to case and its versions differ in it (`ID`, `Id`).
pub(crate) fn canonical(value: &Value) -> Value {
    match value {
        Value::Object(members) => Value::Object(
            members
                .iter()
                .filter(|(_, value)| !value.is_null())
                .map(|(name, value)| {
                    let known = NAMES.iter().find(|known| known.eq_ignore_ascii_case(name));
                    let name = known.map_or_else(|| name.clone(), |known| (*known).to_owned());
                    let value = if name == "Settings" { value.clone() } else { canonical(value) };
                    (name, value)
                })
                .collect(),
        ),
        Value::Array(items) => Value::Array(items.iter().map(canonical).collect()),
        other => other.clone(),
    }
}

/// For members that are text or absent, where an empty text also means absent.
pub(crate) mod text_or_none {
    use super::Display;
    use serde::de::Error as _;
    use serde::{Deserialize, Deserializer, Serializer};
    use std::str::FromStr;

    #[allow(clippy::ref_option, reason = "serde's calling convention")]
    pub(crate) fn serialize<T: Display, S: Serializer>(
        value: &Option<T>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => serializer.collect_str(value),
            None => serializer.serialize_str(""),
        }
    }

    pub(crate) fn deserialize<'de, T, D>(deserializer: D) -> Result<Option<T>, D::Error>
    where
        T: FromStr,
        T::Err: Display,
        D: Deserializer<'de>,
    {
        let text = String::deserialize(deserializer)?;
        if text.is_empty() {
            return Ok(None);
        }
        text.parse().map(Some).map_err(|error| D::Error::custom(format!("{text:?}: {error}")))
    }
}

/// For lists that HCN writes as one text with commas.
pub(crate) mod comma_list {
    use super::Display;
    use serde::de::Error as _;
    use serde::{Deserialize, Deserializer, Serializer};
    use std::str::FromStr;

    pub(crate) fn serialize<T: Display, S: Serializer>(
        items: &[T],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let items: Vec<_> = items.iter().map(ToString::to_string).collect();
        serializer.serialize_str(&items.join(","))
    }

    pub(crate) fn deserialize<'de, T, D>(deserializer: D) -> Result<Vec<T>, D::Error>
    where
        T: FromStr,
        T::Err: Display,
        D: Deserializer<'de>,
    {
        let text = String::deserialize(deserializer)?;
        text.split(',')
            .map(str::trim)
            .filter(|item| !item.is_empty())
            .map(|item| {
                item.parse().map_err(|error| D::Error::custom(format!("{item:?}: {error}")))
            })
            .collect()
    }
}

/// Whether a number is the one that stands for "not said".
#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde's calling convention")]
pub(crate) fn is_zero<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn names_are_sorted_and_differ_in_more_than_case() {
        let lower: Vec<_> = NAMES.iter().map(|name| name.to_ascii_lowercase()).collect();
        let mut sorted = lower.clone();
        sorted.sort();
        sorted.dedup();
        assert_eq!(lower, sorted);
    }

    #[test]
    fn case_and_nulls_are_evened_out_but_settings_are_not_touched() {
        let given = json!({"Id": "x", "POLICIES": [{"type": "New", "settings": {"id": null}}], "name": null});
        let wanted = json!({"ID": "x", "Policies": [{"Type": "New", "Settings": {"id": null}}]});
        assert_eq!(canonical(&given), wanted);
    }
}
