//! The whole view of one node, made as it is taken, and the differences that watchers give.
//!
//! A joining watcher of a large cluster never holds its view: services are looked at one by one. When
//! a brain comes back, all nodes join at once; then each service is put into wire form once per zone
//! and shared by all nodes that see it alike, and let go when the last of them has what it needs.

use std::sync::Arc;

use parking_lot::Mutex;
use telaio_api::proto::localv1::OpItem;
use telaio_api::{EncodeError, local};
use telaio_model::Op;

use crate::diff::{CLASSES_MAX, Class, class_of};
use crate::state::ServiceState;
use crate::store::{Joining, Snapshot};
use crate::view::{NodeContext, ServiceView, Wants, service_alone, service_view};

/// The operations of one difference, made one by one as they are taken, and ended by `Sync`.
#[derive(Debug)]
pub struct LocalDiff(Form);

#[derive(Debug)]
enum Form {
    Part(std::vec::IntoIter<Op>),
    Whole(Box<WholeView>),
}

impl LocalDiff {
    /// Some operations.
    pub(crate) fn part(mut ops: Vec<Op>) -> Self {
        ops.push(Op::Sync);
        Self(Form::Part(ops.into_iter()))
    }

    /// Everything.
    pub(crate) fn whole(view: WholeView) -> Self {
        Self(Form::Whole(Box::new(view)))
    }

    /// The operations in wire form: the same ones in the same order, with work shared where it can be.
    pub fn into_wire(self) -> impl Iterator<Item = Result<OpItem, EncodeError>> + Send {
        let mut form = self.0;
        std::iter::from_fn(move || match &mut form {
            Form::Part(ops) => ops.next().map(|op| local::encode_op(&op)),
            Form::Whole(whole) => whole.next_wire(),
        })
    }
}

impl Iterator for LocalDiff {
    type Item = Op;

    fn next(&mut self) -> Option<Op> {
        match &mut self.0 {
            Form::Part(ops) => ops.next(),
            Form::Whole(whole) => whole.next_op(),
        }
    }
}

/// A service ready for the wire, for all nodes of a class.
#[derive(Debug)]
struct WireView {
    service: OpItem,
    named: Vec<OpItem>,
    anonymous: Vec<OpItem>,
}

impl WireView {
    fn new(view: &ServiceView) -> Result<Self, EncodeError> {
        let (mut named, mut anonymous) = (Vec::new(), Vec::new());
        for endpoint in view.endpoints.values() {
            let list = if endpoint.is_named() { &mut named } else { &mut anonymous };
            list.push(local::encode_op(&Op::SetEndpoint(Arc::clone(endpoint)))?);
        }
        let service = local::encode_op(&Op::SetService(Arc::clone(&view.service)))?;
        Ok(Self { service, named, anonymous })
    }
}

/// The wire forms of one service that joining watchers share; `None` for a class that does not see it.
#[derive(Debug, Default)]
pub(crate) struct WireCache(Mutex<Vec<(Class, Option<Arc<WireView>>)>>);

impl WireCache {
    pub(crate) fn clear(&self) {
        *self.0.lock() = Vec::new();
    }
}

/// The whole view, in the order of every difference: services, named endpoints, anonymous endpoints,
/// other objects. Only services that have anonymous endpoints take the third round.
#[derive(Debug)]
pub(crate) struct WholeView {
    snapshot: Arc<Snapshot>,
    node: NodeContext,
    wants: Wants,
    joining: Joining,
    round: Round,
    index: usize,
    /// What goes next, last first.
    pending: Vec<Step>,
    with_anonymous: Vec<usize>,
}

/// An operation, perhaps already in wire form.
#[derive(Debug)]
enum Step {
    Op(Op),
    Wire(OpItem),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Round {
    Reset,
    Services,
    Named,
    Anonymous,
    Objects,
    Done,
}

impl WholeView {
    pub(crate) fn new(
        snapshot: Arc<Snapshot>,
        node: NodeContext,
        wants: Wants,
        joining: Joining,
    ) -> Self {
        Self {
            snapshot,
            node,
            wants,
            joining,
            round: Round::Reset,
            index: 0,
            pending: Vec::new(),
            with_anonymous: Vec::new(),
        }
    }

    fn next_op(&mut self) -> Option<Op> {
        loop {
            match self.pending.pop() {
                Some(Step::Op(op)) => return Some(op),
                // Made for the wire only, and nobody switches half-way.
                Some(Step::Wire(_)) => {}
                None if self.fill(false) => {}
                None => return None,
            }
        }
    }

    fn next_wire(&mut self) -> Option<Result<OpItem, EncodeError>> {
        loop {
            match self.pending.pop() {
                Some(Step::Op(op)) => return Some(local::encode_op(&op)),
                Some(Step::Wire(item)) => return Some(Ok(item)),
                None if self.fill(true) => {}
                None => return None,
            }
        }
    }

    fn begin(&mut self, round: Round) {
        self.round = round;
        self.index = 0;
    }

    /// Fills `pending` with what one service or object gives in this round; false at the end.
    fn fill(&mut self, for_wire: bool) -> bool {
        let index = self.index;
        self.index += 1;
        match self.round {
            Round::Reset => {
                self.pending.push(Step::Op(Op::Reset));
                self.begin(Round::Services);
            }
            Round::Services if index < self.snapshot.services.len() => {
                self.fill_service(index, for_wire);
            }
            Round::Services => self.begin(Round::Named),
            Round::Named if index < self.snapshot.services.len() => {
                self.fill_endpoints(index, for_wire);
            }
            Round::Named => self.begin(Round::Anonymous),
            Round::Anonymous if index < self.with_anonymous.len() => {
                self.fill_endpoints(self.with_anonymous[index], for_wire);
            }
            Round::Anonymous => self.begin(Round::Objects),
            Round::Objects if index < self.snapshot.objects.len() => {
                let object = &self.snapshot.objects[index];
                if self.wants.kinds.contains(&object.kind()) {
                    self.pending.push(Step::Op(Op::SetObject(object.clone())));
                }
            }
            Round::Objects => {
                self.pending.push(Step::Op(Op::Sync));
                self.begin(Round::Done);
            }
            Round::Done => return false,
        }
        true
    }

    fn fill_service(&mut self, index: usize, for_wire: bool) {
        let state = &self.snapshot.services[index];
        let step = match self.shared(state, for_wire) {
            Some(shared) => shared.map(|view| Step::Wire(view.service.clone())),
            None => service_alone(state, &self.node, &self.wants)
                .map(|service| Step::Op(Op::SetService(service))),
        };
        self.pending.extend(step);
    }

    /// The named or the anonymous endpoints of a service, as the round asks.
    fn fill_endpoints(&mut self, index: usize, for_wire: bool) {
        let state = &self.snapshot.services[index];
        let named = self.round == Round::Named;
        let others = match self.shared(state, for_wire) {
            Some(None) => false,
            Some(Some(view)) => {
                let (these, others) = if named {
                    (&view.named, &view.anonymous)
                } else {
                    (&view.anonymous, &view.named)
                };
                self.pending.extend(these.iter().rev().cloned().map(Step::Wire));
                !others.is_empty()
            }
            None => {
                let view = service_view(state, &self.node, &self.wants);
                let endpoints = view.iter().flat_map(|view| view.endpoints.values().rev());
                let (these, others): (Vec<_>, Vec<_>) =
                    endpoints.partition(|endpoint| endpoint.is_named() == named);
                let op = |endpoint: &Arc<_>| Step::Op(Op::SetEndpoint(Arc::clone(endpoint)));
                self.pending.extend(these.into_iter().map(op));
                !others.is_empty()
            }
        };
        if named && others {
            self.with_anonymous.push(index);
        }
    }

    /// The wire form that is shared with others: `None` where there is no sharing, `Some(None)` where
    /// the service is not seen.
    #[allow(clippy::option_option, reason = "the two are different answers")]
    fn shared(&self, state: &ServiceState, for_wire: bool) -> Option<Option<Arc<WireView>>> {
        if !for_wire || !self.joining.in_a_crowd() || state.concerns(&self.node.name) {
            return None;
        }
        let class = class_of(&self.node, &self.wants);
        // Held while it is made: the others would only do the same work beside it.
        let mut known = state.wire.0.lock();
        if let Some((_, view)) = known.iter().find(|(other, _)| *other == class) {
            return Some(view.clone());
        }
        if known.len() >= CLASSES_MAX {
            return None;
        }
        let view = match service_view(state, &self.node, &self.wants) {
            Some(view) => Some(Arc::new(WireView::new(&view).ok()?)),
            None => None,
        };
        known.push((class, view.clone()));
        self.joining.left_something();
        Some(view)
    }
}
