//! Taking operations from a peer: what cannot be is left out and told, the rest goes on.

use std::collections::BTreeMap;
use std::sync::Arc;

use telaio_api::DecodeError;
use telaio_api::proto::localv1::{OpItem, op_item};

use super::connect::ConnectError;
use crate::{Problem, Status};

/// How many operations one difference may have: some ten times the largest cluster we know of.
pub(super) const OPS_MAX: usize = 8_000_000;
/// How many items that were left out are remembered.
const LEFT_OUT_MAX: usize = 1_000;

/// Decodes what a peer sends.
#[derive(Debug)]
pub(super) struct Taking {
    url: String,
    status: Arc<Status>,
    /// What was left out, by the path of the item.
    left_out: BTreeMap<String, Problem>,
    changed: bool,
    /// Operations since the last complete state.
    ops: usize,
}

impl Taking {
    pub(super) fn new(url: &str, status: Arc<Status>) -> Self {
        Self { url: url.to_owned(), status, left_out: BTreeMap::new(), changed: false, ops: 0 }
    }

    /// Decodes one operation; `None` for one that is not for us, or cannot be. Fails only where the
    /// stream itself makes no sense, or has no end.
    pub(super) fn take<Op>(
        &mut self,
        item: OpItem,
        decode: fn(OpItem) -> Result<Option<Op>, DecodeError>,
    ) -> Result<Option<Op>, ConnectError> {
        self.ops += 1;
        if self.ops > OPS_MAX {
            return Err(ConnectError::TooMuch { url: self.url.clone(), max: OPS_MAX });
        }
        if !self.left_out.is_empty() {
            self.changed |= path_of(&item).is_some_and(|path| self.left_out.remove(path).is_some());
        }
        match decode(item) {
            Ok(op) => Ok(op),
            Err(error) => match error.path() {
                Some(path) => {
                    self.leave_out(path.to_owned(), &error);
                    Ok(None)
                }
                None => Err(ConnectError::Protocol { url: self.url.clone(), source: error }),
            },
        }
    }

    fn leave_out(&mut self, path: String, error: &DecodeError) {
        tracing::warn!(brain = self.url, %error, "an object is left out");
        if self.left_out.len() < LEFT_OUT_MAX {
            let problem = Problem {
                origin: self.url.clone(),
                object: Some(path.clone()),
                field: None,
                message: error.to_string(),
            };
            self.left_out.insert(path, problem);
            self.changed = true;
        }
    }

    /// A new connection: everything will be sent again.
    pub(super) fn restart(&mut self) {
        self.changed |= !self.left_out.is_empty();
        self.left_out.clear();
        self.ops = 0;
    }

    /// A state is complete: tells what of it was left out.
    pub(super) fn complete(&mut self) {
        self.ops = 0;
        if std::mem::take(&mut self.changed) {
            self.status.set_problems(&self.url, self.left_out.values().cloned().collect());
        }
    }
}

fn path_of(item: &OpItem) -> Option<&str> {
    match item.op.as_ref()? {
        op_item::Op::Set(value) => value.r#ref.as_ref().map(|it| it.path.as_str()),
        op_item::Op::Delete(reference) => Some(&reference.path),
        op_item::Op::Sync(_) | op_item::Op::Reset(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use telaio_api::local::{decode_op, encode_op};
    use telaio_api::proto::localv1::{Ref, Set, Value};
    use telaio_model::{ObjectKey, Op};

    use super::*;

    fn item(path: &str, bytes: &'static [u8]) -> OpItem {
        let reference = Ref { set: Set::ServicesSet.into(), path: path.to_owned() };
        let value = Value { r#ref: Some(reference), bytes: bytes.into() };
        OpItem { op: Some(op_item::Op::Set(value)) }
    }

    #[test]
    fn an_item_that_cannot_be_is_left_out_and_told_until_it_is_mended() {
        let status = Arc::new(Status::default());
        let mut taking = Taking::new("http://brain", Arc::clone(&status));
        assert!(taking.take(item("default/web", b"\xff"), decode_op).unwrap().is_none());
        let gone = Op::DeleteService(ObjectKey::new("default", "db"));
        assert_eq!(taking.take(encode_op(&gone).unwrap(), decode_op).unwrap(), Some(gone));
        taking.complete();
        let problems = status.problems();
        assert_eq!(problems.len(), 1);
        assert_eq!(problems[0].object.as_deref(), Some("default/web"));
        let web_gone = Op::DeleteService(ObjectKey::new("default", "web"));
        assert!(taking.take(encode_op(&web_gone).unwrap(), decode_op).unwrap().is_some());
        taking.complete();
        assert_eq!(status.problems(), []);
    }

    #[test]
    fn a_stream_that_makes_no_sense_is_refused() {
        let mut taking = Taking::new("http://brain", Arc::default());
        assert!(taking.take(OpItem { op: None }, decode_op).is_err());
    }
}
