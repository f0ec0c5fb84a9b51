//! The sets that a peer can ask for, beyond those that KPNG has.

use telaio_model::{Kind, Object, ObjectKey, ObjectRef};

use crate::error::{DecodeError, EncodeError};
use crate::proto::localv1;

/// The set that holds objects of this kind as JSON, if there is one.
pub fn set_of(kind: Kind) -> Option<localv1::Set> {
    Some(match kind {
        Kind::Ingress => localv1::Set::Ingresses,
        Kind::IngressClass => localv1::Set::IngressClasses,
        Kind::TlsSecret => localv1::Set::TlsSecrets,
        Kind::ConfigMap => localv1::Set::ConfigMaps,
        Kind::Namespace => localv1::Set::Namespaces,
        Kind::Pod => localv1::Set::Pods,
        Kind::NetworkPolicy => localv1::Set::NetworkPolicies,
        Kind::ServiceCidr => localv1::Set::ServiceCidrs,
        Kind::Node => localv1::Set::Nodes,
        Kind::Override => localv1::Set::Overrides,
        Kind::AuthSecret => localv1::Set::AuthSecrets,
        _ => return None,
    })
}

/// The kind whose objects this set holds as JSON, if it is such a set.
pub fn kind_of(set: localv1::Set) -> Option<Kind> {
    Kind::ALL.iter().copied().find(|kind| set_of(*kind) == Some(set))
}

/// The operation that sets an object of an extension set.
pub(crate) fn encode_object(object: &Object) -> Result<localv1::OpItem, EncodeError> {
    let object_ref = object.object_ref();
    let set = set_of(object_ref.kind).ok_or_else(|| EncodeError::NoSet(object_ref.to_string()))?;
    let json = serde_json::to_vec(object)
        .map_err(|source| EncodeError::Json { object: object_ref.to_string(), source })?;
    Ok(set_item(set, object_ref.key.to_string(), json.into()))
}

/// The operation that deletes an object of an extension set.
pub(crate) fn encode_delete(object_ref: &ObjectRef) -> Result<localv1::OpItem, EncodeError> {
    let set = set_of(object_ref.kind).ok_or_else(|| EncodeError::NoSet(object_ref.to_string()))?;
    Ok(delete_item(set, object_ref.key.to_string()))
}

/// The object of an extension set; it must be the one that its path names.
pub(crate) fn decode_object(kind: Kind, path: &str, bytes: &[u8]) -> Result<Object, DecodeError> {
    let object: Object = serde_json::from_slice(bytes)
        .map_err(|source| DecodeError::Json { path: path.to_owned(), source })?;
    if object.kind() != kind || *object.key() != ObjectKey::parse(path) {
        return Err(DecodeError::WrongObject {
            path: path.to_owned(),
            object: object.object_ref().to_string(),
        });
    }
    Ok(object)
}

pub(crate) fn set_item(set: localv1::Set, path: String, bytes: bytes::Bytes) -> localv1::OpItem {
    let reference = localv1::Ref { set: set.into(), path };
    item(localv1::op_item::Op::Set(localv1::Value { r#ref: Some(reference), bytes }))
}

pub(crate) fn delete_item(set: localv1::Set, path: String) -> localv1::OpItem {
    item(localv1::op_item::Op::Delete(localv1::Ref { set: set.into(), path }))
}

pub(crate) fn item(op: localv1::op_item::Op) -> localv1::OpItem {
    localv1::OpItem { op: Some(op) }
}

/// The end of a difference.
pub fn sync_item() -> localv1::OpItem {
    item(localv1::op_item::Op::Sync(localv1::EmptyOp {}))
}

/// The request to forget everything.
pub fn reset_item() -> localv1::OpItem {
    item(localv1::op_item::Op::Reset(localv1::EmptyOp {}))
}
