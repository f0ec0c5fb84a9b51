//! Whatever is sent arrives: model to wire and back, field by field, and whatever bytes come, nothing
//! worse than an error.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod support;
#[path = "support/take.rs"]
mod take;

use proptest::prelude::*;
use proptest::sample::Index;
use prost::Message as _;
use support::{config, global_op, local_op};
use take::{take, take_bytes};
use telaio_api::proto::globalv1::{Node, NodeInfo, ServiceInfo};
use telaio_api::proto::localv1::{OpItem, Ref, Set, Value, op_item};
use telaio_api::{global, local};
use telaio_model::{Kind, Object, Op};

/// Through the bytes, as a peer would get it.
fn over_the_wire(item: &OpItem) -> OpItem {
    OpItem::decode(item.encode_to_vec().as_slice()).unwrap()
}

/// A change to some bytes: one flipped, cut off, put in twice, or replaced by an extreme.
#[derive(Debug, Clone)]
enum Harm {
    Flip(Index, u8),
    Cut(Index),
    Insert(Index, u8),
    Extreme(Index, bool),
}

fn harm() -> impl Strategy<Value = Harm> {
    prop_oneof![
        (any::<Index>(), 1..=u8::MAX).prop_map(|(at, bits)| Harm::Flip(at, bits)),
        any::<Index>().prop_map(Harm::Cut),
        (any::<Index>(), any::<u8>()).prop_map(|(at, byte)| Harm::Insert(at, byte)),
        (any::<Index>(), any::<bool>()).prop_map(|(at, ones)| Harm::Extreme(at, ones)),
    ]
}

fn do_harm(bytes: &mut Vec<u8>, harms: &[Harm]) {
    for harm in harms {
        let count = bytes.len();
        if count == 0 {
            return;
        }
        match harm {
            Harm::Flip(at, bits) => bytes[at.index(count)] ^= bits,
            Harm::Cut(at) => bytes.truncate(at.index(count)),
            Harm::Insert(at, byte) => bytes.insert(at.index(count), *byte),
            Harm::Extreme(at, ones) => bytes[at.index(count)] = if *ones { 0xff } else { 0 },
        }
    }
}

fn value_mut(item: &mut OpItem) -> Option<&mut Value> {
    match &mut item.op {
        Some(op_item::Op::Set(value)) => Some(value),
        _ => None,
    }
}

proptest! {
    #![proptest_config(config(512))]

    #[test]
    fn an_operation_of_the_local_api_arrives_as_it_was_sent(op in local_op()) {
        let item = over_the_wire(&local::encode_op(&op).unwrap());
        prop_assert_eq!(local::decode_op(item).unwrap(), Some(op));
    }

    #[test]
    fn an_operation_of_the_global_api_arrives_as_it_was_sent(op in global_op()) {
        let item = over_the_wire(&global::encode_op(&op).unwrap());
        prop_assert_eq!(global::decode_op(item).unwrap(), Some(op));
    }

    #[test]
    fn what_is_sent_names_itself_alike_when_set_and_when_deleted(op in local_op()) {
        let path = |item: OpItem| match item.op {
            Some(op_item::Op::Set(value)) => value.r#ref,
            Some(op_item::Op::Delete(it)) => Some(it),
            _ => None,
        };
        let delete = match &op {
            Op::SetService(it) => Op::DeleteService(it.key.clone()),
            Op::SetEndpoint(it) => Op::DeleteEndpoint(it.key.clone()),
            Op::SetObject(it) => Op::DeleteObject(it.object_ref()),
            _ => return Ok(()),
        };
        let (set, delete) = (local::encode_op(&op).unwrap(), local::encode_op(&delete).unwrap());
        prop_assert_eq!(path(set), path(delete));
    }

    #[test]
    fn harmed_operations_are_errors_at_worst(
        op in local_op(),
        raw in global_op(),
        harms in proptest::collection::vec(harm(), 1..6),
    ) {
        for mut item in [local::encode_op(&op).unwrap(), global::encode_op(&raw).unwrap()] {
            let mut bytes = item.encode_to_vec();
            do_harm(&mut bytes, &harms);
            if let Ok(item) = OpItem::decode(bytes.as_slice()) {
                take(item);
            }
            if let Some(value) = value_mut(&mut item) {
                let mut bytes = value.bytes.to_vec();
                do_harm(&mut bytes, &harms);
                value.bytes = bytes.into();
                take(item);
            }
        }
    }

    #[test]
    fn any_bytes_in_any_set_are_errors_at_worst(
        set in prop_oneof![any::<i32>(), 0..20_i32, 98..122_i32],
        path in prop_oneof!["\\PC{0,12}", "[a-z|/]{0,12}", "a/b/c", "a\\|b\\|c\\|d"],
        bytes in proptest::collection::vec(any::<u8>(), 0..64),
        has_ref in proptest::bool::weighted(0.9),
    ) {
        let r#ref = has_ref.then_some(Ref { set, path });
        take(OpItem { op: r#ref.clone().map(op_item::Op::Delete) });
        take(OpItem { op: Some(op_item::Op::Set(Value { r#ref, bytes: bytes.clone().into() })) });
        take_bytes(&bytes);
    }
}

#[test]
fn an_operation_without_content_is_an_error() {
    assert!(local::decode_op(OpItem { op: None }).is_err());
    let bare = OpItem { op: Some(op_item::Op::Set(Value::default())) };
    assert!(local::decode_op(bare).is_err());
}

#[test]
fn an_operation_on_a_set_of_a_newer_release_is_passed_over() {
    for set in [0, 3, 9, 13, 99, 109, 5_000, i32::MAX] {
        let r#ref = Ref { set, path: "a/b".into() };
        let delete = OpItem { op: Some(op_item::Op::Delete(r#ref.clone())) };
        let value = Value { r#ref: Some(r#ref), bytes: b"\xff".as_slice().into() };
        let set = OpItem { op: Some(op_item::Op::Set(value)) };
        assert_eq!(local::decode_op(delete.clone()).unwrap(), None);
        assert_eq!(local::decode_op(set.clone()).unwrap(), None);
        assert_eq!(global::decode_op(delete).unwrap(), None);
        assert_eq!(global::decode_op(set).unwrap(), None);
    }
}

#[test]
fn an_object_under_another_name_is_refused() {
    let meta = telaio_model::Meta::named(telaio_model::ObjectKey::cluster("a"));
    let object: Object = telaio_model::Namespace { meta }.into();
    let mut item = local::encode_op(&Op::SetObject(object)).unwrap();
    value_mut(&mut item).unwrap().r#ref.as_mut().unwrap().path = "b".into();
    assert!(local::decode_op(item.clone()).is_err());
    value_mut(&mut item).unwrap().r#ref = Some(Ref { set: Set::Pods.into(), path: "a".into() });
    assert!(local::decode_op(item).is_err());
}

#[test]
fn a_service_or_node_under_another_name_is_refused() {
    let item = |set: Set, path: &str, bytes: Vec<u8>| {
        let r#ref = Some(Ref { set: set.into(), path: path.into() });
        OpItem { op: Some(op_item::Op::Set(Value { r#ref, bytes: bytes.into() })) }
    };
    let service = telaio_api::proto::localv1::Service {
        namespace: "kube-system".into(),
        name: "dns".into(),
        r#type: "ClusterIP".into(),
        ..Default::default()
    };
    let local = item(Set::ServicesSet, "default/web", service.encode_to_vec());
    assert!(local::decode_op(local).is_err());
    let info = ServiceInfo { hash: 1, service: Some(service) };
    let raw = item(Set::GlobalServiceInfos, "default|web||", info.encode_to_vec());
    assert!(global::decode_op(raw).is_err());
    let node = Node { name: "n1".into(), ..Node::default() };
    let info = NodeInfo { hash: 1, node: Some(node) };
    let raw = item(Set::GlobalNodeInfos, "|n2||", info.encode_to_vec());
    assert!(global::decode_op(raw).is_err());
}

#[test]
fn a_path_that_names_no_service_or_endpoint_is_refused() {
    for path in ["", "/", "web", "/web", "default/", "default/web/x"] {
        let r#ref = Ref { set: Set::ServicesSet.into(), path: path.into() };
        assert!(local::decode_op(OpItem { op: Some(op_item::Op::Delete(r#ref)) }).is_err());
    }
    for path in ["", "//", "default/web", "default/web/", "/web/x", "default//x"] {
        let r#ref = Ref { set: Set::EndpointsSet.into(), path: path.into() };
        assert!(local::decode_op(OpItem { op: Some(op_item::Op::Delete(r#ref)) }).is_err());
    }
    for path in ["", "|||", "a|b|c", "a|b|c|d|e"] {
        for set in [Set::GlobalServiceInfos, Set::GlobalEndpointInfos, Set::GlobalNodeInfos] {
            let r#ref = Ref { set: set.into(), path: path.into() };
            assert!(global::decode_op(OpItem { op: Some(op_item::Op::Delete(r#ref)) }).is_err());
        }
    }
}

#[test]
fn every_kind_beside_services_and_endpoints_has_a_set() {
    for kind in Kind::ALL {
        let set = telaio_api::sets::set_of(*kind);
        let expected = !matches!(kind, Kind::Service | Kind::EndpointSlice);
        assert_eq!(set.is_some(), expected, "{kind}");
        if let Some(set) = set {
            assert!(i32::from(set) >= 100);
            assert_eq!(telaio_api::sets::kind_of(set), Some(*kind));
        }
    }
}
