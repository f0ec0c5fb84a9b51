//! Takes whatever bytes a peer may send. Tests and the fuzz target share it.

use prost::Message as _;
use telaio_api::global::GlobalOp;
use telaio_api::proto::localv1::{OpItem, Ref, Set, Value, op_item};
use telaio_api::{global, local};
use telaio_model::{Kind, Op};

/// Takes an operation as both clients do: it may be refused, and must not panic. What is understood
/// can be sent on, and then says the same again.
pub(crate) fn take(item: OpItem) {
    if let Ok(Some(op)) = local::decode_op(item.clone())
        && let Ok(again) = local::encode_op(&op)
    {
        let again = local::decode_op(again);
        // A path with empty parts can name an object that cannot be; it names none that is.
        let same = again.is_ok_and(|again| again.as_ref() == Some(&op));
        assert!(same || matches!(op, Op::DeleteObject(_)), "{op:?}");
    }
    if let Ok(Some(op)) = global::decode_op(item)
        && let Ok(again) = global::encode_op(&op)
    {
        let again = global::decode_op(again);
        let same = again.is_ok_and(|again| again.as_ref() == Some(&op));
        assert!(same || matches!(op, GlobalOp::DeleteObject(_)), "{op:?}");
    }
}

/// Takes bytes as a whole operation, and as the content of an operation on the set that the first
/// byte chooses.
pub(crate) fn take_bytes(bytes: &[u8]) {
    if let Ok(item) = OpItem::decode(bytes) {
        take(item);
    }
    let Some((choice, content)) = bytes.split_first() else { return };
    let kpng = [
        (Set::ServicesSet, "a/b"),
        (Set::EndpointsSet, "a/b/c"),
        (Set::GlobalServiceInfos, "a|b||"),
        (Set::GlobalEndpointInfos, "a|b|c|d"),
        (Set::GlobalNodeInfos, "|a||"),
    ];
    let ours = Kind::ALL.iter().filter_map(|kind| telaio_api::sets::set_of(*kind));
    let sets: Vec<_> = kpng.into_iter().chain(ours.map(|set| (set, "a/b"))).collect();
    let (set, path) = sets[usize::from(*choice) % sets.len()];
    let r#ref = Some(Ref { set: set.into(), path: path.into() });
    let value = Value { r#ref, bytes: content.to_vec().into() };
    take(OpItem { op: Some(op_item::Op::Set(value)) });
}
