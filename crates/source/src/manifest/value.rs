//! How single values of a manifest are read.

use serde::{Deserialize, Deserializer};

/// Reads `null` as the value of a field that was left out.
///
/// The API server sends `"endpoints": null` for an empty list, and people leave `ports:` empty.
pub(crate) fn nullable<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// A port by number or by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IntOrString {
    /// A number, not yet checked.
    Int(i64),
    /// A name.
    String(String),
}

impl<'de> Deserialize<'de> for IntOrString {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;

        impl serde::de::Visitor<'_> for Visitor {
            type Value = IntOrString;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a number or a name")
            }

            fn visit_i64<E>(self, value: i64) -> Result<IntOrString, E> {
                Ok(IntOrString::Int(value))
            }

            fn visit_u64<E>(self, value: u64) -> Result<IntOrString, E> {
                Ok(IntOrString::Int(i64::try_from(value).unwrap_or(i64::MAX)))
            }

            fn visit_str<E>(self, value: &str) -> Result<IntOrString, E> {
                Ok(IntOrString::String(value.to_owned()))
            }

            fn visit_string<E>(self, value: String) -> Result<IntOrString, E> {
                Ok(IntOrString::String(value))
            }
        }

        deserializer.deserialize_any(Visitor)
    }
}
