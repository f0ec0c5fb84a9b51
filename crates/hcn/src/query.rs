//! Which objects to enumerate: HCN's `HostComputeQuery`.

use serde_json::{Value, json};

use crate::Guid;
use crate::schema::SchemaVersion;

/// Which objects are wanted.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Query {
    /// All.
    #[default]
    All,
    /// The one with this identity.
    Id(Guid),
    /// Those with this name.
    Name(String),
    /// The endpoints of this network.
    OnNetwork(Guid),
}

impl Query {
    /// The document of the enumerate call. The filter is a document of its own, as text.
    pub fn document(&self) -> Value {
        let filter = match self {
            Self::All => None,
            Self::Id(id) => Some(json!({ "ID": id })),
            Self::Name(name) => Some(json!({ "Name": name })),
            // HNS filters by the names of schema version 1.
            Self::OnNetwork(network) => Some(json!({ "VirtualNetwork": network })),
        };
        let mut document = json!({ "SchemaVersion": SchemaVersion::V2 });
        if let Some(filter) = filter {
            document["Filter"] = Value::String(filter.to_string());
        }
        document
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_filter_is_json_within_a_text() {
        let document = Query::Name("a\"b".into()).document();
        assert_eq!(document["SchemaVersion"], json!({"Major": 2, "Minor": 0}));
        assert_eq!(document["Filter"], json!(r#"{"Name":"a\"b"}"#));
        assert_eq!(Query::All.document().get("Filter"), None);
    }
}
