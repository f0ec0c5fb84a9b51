//! The host compute network for real: computenetwork.dll.
//!
//! The library is loaded when it is first needed, from the system's directory only: a program that has
//! other things to do starts on a Windows without containers, and nobody slips a library of that name
//! in. Every call's code and error record become an [`HcnError`] with the object's name. Texts that HNS
//! hands over are freed and handles are closed on every path. A text that is longer than
//! [`ANSWER_CHARS_MAX`] or not UTF-16 is an error.

#![allow(
    unsafe_code,
    reason = "calls into the system's libraries; each block says why it is sound"
)]

mod interfaces;
mod library;
mod text;
mod watch;

use std::ffi::c_void;
use std::path::Path;
use std::ptr::null_mut;

use serde::Deserialize;
use serde_json::Value;
use windows_sys::Win32::System::Com::CoCreateGuid;
use windows_sys::core::GUID;

use self::library::{Close, Library, Modify, Open, Properties};
use self::text::{TaskText, WideText};
use crate::{
    Call, DocumentError, Endpoint, EndpointPolicy, Guid, Hcn, HcnError, HnsVersion, Hresult,
    Listener, LoadBalancer, Network, NetworkPolicy, ObjectKind, Operation, PolicyChange, Query,
    Reason, Watch, record_text, schema,
};

pub use self::interfaces::{Interface, interfaces};
pub use self::text::ANSWER_CHARS_MAX;

/// The host compute network of this machine.
#[derive(Debug)]
pub struct WindowsHcn {
    library: Library,
}

impl WindowsHcn {
    /// By the system's own libraries.
    pub fn system() -> Result<Self, HcnError> {
        Library::system().map(|library| Self { library })
    }

    /// By the library at this path, which stands for all of the system's: for tests.
    pub fn at(path: &Path) -> Result<Self, HcnError> {
        Library::at(path).map(|library| Self { library })
    }

    /// The identities that an enumeration gives.
    fn ids(&self, kind: ObjectKind, query: &Query) -> Result<Vec<Guid>, HcnError> {
        let call = Call::new(Operation::Enumerate, kind, "");
        let enumerate = match kind {
            ObjectKind::Network => self.library.enumerate_networks,
            ObjectKind::Endpoint => self.library.enumerate_endpoints,
            _ => self.library.enumerate_load_balancers,
        };
        let query = WideText::of(&query.document());
        let mut answer = TaskText::none();
        // SAFETY: the query is a text with an end, and the two places for texts outlive the call.
        checked(&call, |record| unsafe { enumerate(query.as_ptr(), answer.place(), record) })?;
        let answer = read(&call, &answer)?;
        schema::shaped(answer).map_err(|error| bad_answer(call, error))
    }

    fn open(&self, call: &Call, id: Guid) -> Result<Handle, HcnError> {
        let calls = self.calls(call.kind);
        let mut raw = null_mut();
        // SAFETY: the identity and the places outlive the call.
        checked(call, |record| unsafe { (calls.open)(&raw_guid(id), &raw mut raw, record) })?;
        Handle::new(call, raw, calls)
    }

    /// What an object is like.
    fn get(&self, kind: ObjectKind, id: Guid) -> Result<(Call, Value), HcnError> {
        let call = Call::of(Operation::Query, kind, id);
        let object = self.open(&call, id)?;
        let document = object.properties(&call)?;
        Ok((call, document))
    }

    /// What has just been made. If that cannot be learnt, it is removed again: nobody would know of it.
    fn made<T>(
        &self,
        call: &Call,
        id: Guid,
        raw: *mut c_void,
        read: impl FnOnce(&Value) -> Result<T, DocumentError>,
    ) -> Result<T, HcnError> {
        let learn = || {
            let object = Handle::new(call, raw, self.calls(call.kind))?;
            let document = object.properties(call)?;
            read(&document).map_err(|error| bad_answer(call.clone(), error))
        };
        learn().inspect_err(|_| drop(self.delete(call.kind, id)))
    }

    fn modify(&self, call: &Call, id: Guid, document: &Value) -> Result<(), HcnError> {
        let object = self.open(call, id)?;
        let settings = WideText::of(document);
        let modify = object.calls.modify;
        // SAFETY: the handle is open, the settings are a text with an end, the place outlives the call.
        checked(call, |record| unsafe { modify(object.raw, settings.as_ptr(), record) })
    }

    fn delete(&self, kind: ObjectKind, id: Guid) -> Result<(), HcnError> {
        let call = Call::of(Operation::Delete, kind, id);
        let delete = match kind {
            ObjectKind::Network => self.library.delete_network,
            ObjectKind::Endpoint => self.library.delete_endpoint,
            _ => self.library.delete_load_balancer,
        };
        // SAFETY: the identity and the place outlive the call.
        checked(&call, |record| unsafe { delete(&raw_guid(id), record) })
    }

    fn calls(&self, kind: ObjectKind) -> ObjectCalls {
        let library = &self.library;
        match kind {
            ObjectKind::Network => ObjectCalls {
                open: library.open_network,
                properties: library.query_network_properties,
                modify: library.modify_network,
                close: library.close_network,
            },
            ObjectKind::Endpoint => ObjectCalls {
                open: library.open_endpoint,
                properties: library.query_endpoint_properties,
                modify: library.modify_endpoint,
                close: library.close_endpoint,
            },
            _ => ObjectCalls {
                open: library.open_load_balancer,
                properties: library.query_load_balancer_properties,
                modify: library.modify_load_balancer,
                close: library.close_load_balancer,
            },
        }
    }
}

/// What can be done to one object of a kind.
#[derive(Clone, Copy)]
struct ObjectCalls {
    open: Open,
    properties: Properties,
    modify: Modify,
    close: Close,
}

/// An open object; dropping it closes it.
struct Handle {
    raw: *mut c_void,
    calls: ObjectCalls,
}

impl Handle {
    fn new(call: &Call, raw: *mut c_void, calls: ObjectCalls) -> Result<Self, HcnError> {
        if raw.is_null() {
            return Err(bad_answer(call.clone(), "success, but no handle"));
        }
        Ok(Self { raw, calls })
    }

    /// The object's document.
    fn properties(&self, call: &Call) -> Result<Value, HcnError> {
        let query = WideText::of(&Query::All.document());
        let mut answer = TaskText::none();
        let properties = self.calls.properties;
        // SAFETY: the handle is open, the query a text with an end, the places outlive the call.
        checked(call, |record| unsafe {
            properties(self.raw, query.as_ptr(), answer.place(), record)
        })?;
        read(call, &answer)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // What a failed close leaves behind nobody can close.
        // SAFETY: the handle came from the matching open or create and is closed this once.
        unsafe { (self.calls.close)(self.raw) };
    }
}

/// Makes a call with a place for its error record; code and record become an error.
fn checked(call: &Call, make: impl FnOnce(*mut *mut u16) -> i32) -> Result<(), HcnError> {
    let mut record = TaskText::none();
    let code = make(record.place());
    // An error record that cannot be read must not hide the error.
    let record = record.read().unwrap_or_else(Some).unwrap_or_default();
    if code < 0 {
        return Err(call.clone().failed_with(Hresult(code.cast_unsigned()), record_text(&record)));
    }
    // Older versions report some failures by the record alone.
    match failure_in(&record) {
        Some(hresult) => Err(call.clone().failed_with(hresult, record_text(&record))),
        None => Ok(()),
    }
}

/// The code in an error record that reports a failure.
fn failure_in(record: &str) -> Option<Hresult> {
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Record {
        #[serde(default)]
        success: Option<bool>,
        #[serde(default)]
        error_code: u32,
    }
    let record: Record = serde_json::from_str(record).ok()?;
    (record.success == Some(false) || record.error_code != 0).then_some(Hresult(record.error_code))
}

/// An answer's document.
fn read(call: &Call, answer: &TaskText) -> Result<Value, HcnError> {
    let text = answer.read().map_err(|why| bad_answer(call.clone(), why))?;
    let text = text.ok_or_else(|| bad_answer(call.clone(), "success, but no document"))?;
    schema::parse(&text).map_err(|error| bad_answer(call.clone(), error))
}

#[allow(clippy::needless_pass_by_value, reason = "callers are done with what they hand over")]
fn bad_answer(call: Call, why: impl ToString) -> HcnError {
    call.failed(Reason::BadAnswer(why.to_string()))
}

/// The identity that was asked for, or a new one: what fails half-way has to be found again.
fn identity(call: &Call, asked: Option<Guid>) -> Result<Guid, HcnError> {
    if let Some(asked) = asked.filter(|id| !id.is_nil()) {
        return Ok(asked);
    }
    let mut guid = GUID::from_u128(0);
    // SAFETY: the place outlives the call.
    let code = unsafe { CoCreateGuid(&raw mut guid) };
    if code < 0 {
        return Err(call.clone().failed_with(Hresult(code.cast_unsigned()), "no new identity"));
    }
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&guid.data1.to_be_bytes());
    bytes[4..6].copy_from_slice(&guid.data2.to_be_bytes());
    bytes[6..8].copy_from_slice(&guid.data3.to_be_bytes());
    bytes[8..].copy_from_slice(&guid.data4);
    Ok(Guid::from_bytes(bytes))
}

/// The identity as Windows lays it out.
fn raw_guid(id: Guid) -> GUID {
    GUID::from_u128(u128::from_be_bytes(id.to_bytes()))
}

impl Hcn for WindowsHcn {
    fn version(&self) -> Result<HnsVersion, HcnError> {
        #[derive(Deserialize)]
        #[serde(rename_all = "PascalCase")]
        struct Response {
            success: bool,
            #[serde(default)]
            error: String,
            output: Option<HnsVersion>,
        }
        let call = Call::new(Operation::Query, ObjectKind::Service, "");
        let [method, path, body] = ["GET", "/globals/version", ""].map(WideText::from_str);
        let mut answer = TaskText::none();
        // SAFETY: three texts with an end; the place outlives the call.
        checked(&call, |_| unsafe {
            (self.library.hns_call)(method.as_ptr(), path.as_ptr(), body.as_ptr(), answer.place())
        })?;
        let response: Response = schema::shaped(read(&call, &answer)?)
            .map_err(|error| bad_answer(call.clone(), error))?;
        match response {
            Response { success: true, output: Some(version), .. } => Ok(version),
            Response { error, .. } => Err(bad_answer(call, format!("no version: {error}"))),
        }
    }

    fn network_ids(&self, query: &Query) -> Result<Vec<Guid>, HcnError> {
        self.ids(ObjectKind::Network, query)
    }

    fn network(&self, id: Guid) -> Result<Network, HcnError> {
        let (call, document) = self.get(ObjectKind::Network, id)?;
        Network::from_document(&document).map_err(|error| bad_answer(call, error))
    }

    fn create_network(&self, network: &Network) -> Result<Network, HcnError> {
        let call = Call::new(Operation::Create, ObjectKind::Network, &network.name);
        let id = identity(&call, network.id)?;
        let settings = WideText::of(&Network { id: Some(id), ..network.clone() }.to_document());
        let mut raw = null_mut();
        // SAFETY: identity, settings and places outlive the call; the settings are a text with an end.
        checked(&call, |record| unsafe {
            let create = self.library.create_network;
            create(&raw_guid(id), settings.as_ptr(), &raw mut raw, record)
        })?;
        self.made(&call, id, raw, Network::from_document)
    }

    fn modify_network(
        &self,
        id: Guid,
        change: &PolicyChange<NetworkPolicy>,
    ) -> Result<(), HcnError> {
        let call = Call::of(Operation::Modify, ObjectKind::Network, id);
        self.modify(&call, id, &change.document())
    }

    fn delete_network(&self, id: Guid) -> Result<(), HcnError> {
        self.delete(ObjectKind::Network, id)
    }

    fn endpoint_ids(&self, query: &Query) -> Result<Vec<Guid>, HcnError> {
        self.ids(ObjectKind::Endpoint, query)
    }

    fn endpoint(&self, id: Guid) -> Result<Endpoint, HcnError> {
        let (call, document) = self.get(ObjectKind::Endpoint, id)?;
        Endpoint::from_document(&document).map_err(|error| bad_answer(call, error))
    }

    fn create_endpoint(&self, endpoint: &Endpoint) -> Result<Endpoint, HcnError> {
        let call = Call::new(Operation::Create, ObjectKind::Endpoint, endpoint.label());
        let network = self.open_network_of(&call, endpoint.network)?;
        let id = identity(&call, endpoint.id)?;
        let settings = WideText::of(&Endpoint { id: Some(id), ..endpoint.clone() }.to_document());
        let mut raw = null_mut();
        // SAFETY: the network is open; identity, settings and places outlive the call.
        checked(&call, |record| unsafe {
            let create = self.library.create_endpoint;
            create(network.raw, &raw_guid(id), settings.as_ptr(), &raw mut raw, record)
        })?;
        self.made(&call, id, raw, Endpoint::from_document)
    }

    fn modify_endpoint(
        &self,
        id: Guid,
        change: &PolicyChange<EndpointPolicy>,
    ) -> Result<(), HcnError> {
        let call = Call::of(Operation::Modify, ObjectKind::Endpoint, id);
        self.modify(&call, id, &change.document())
    }

    fn delete_endpoint(&self, id: Guid) -> Result<(), HcnError> {
        self.delete(ObjectKind::Endpoint, id)
    }

    fn load_balancer_ids(&self, query: &Query) -> Result<Vec<Guid>, HcnError> {
        self.ids(ObjectKind::LoadBalancer, query)
    }

    fn load_balancer(&self, id: Guid) -> Result<LoadBalancer, HcnError> {
        let (call, document) = self.get(ObjectKind::LoadBalancer, id)?;
        LoadBalancer::from_document(&document).map_err(|error| bad_answer(call, error))
    }

    fn create_load_balancer(&self, load_balancer: &LoadBalancer) -> Result<LoadBalancer, HcnError> {
        let call = Call::new(Operation::Create, ObjectKind::LoadBalancer, load_balancer.label());
        let id = identity(&call, load_balancer.id)?;
        let wanted = LoadBalancer { id: Some(id), ..load_balancer.clone() };
        let settings = WideText::of(&wanted.to_document());
        let mut raw = null_mut();
        // SAFETY: identity, settings and places outlive the call; the settings are a text with an end.
        checked(&call, |record| unsafe {
            let create = self.library.create_load_balancer;
            create(&raw_guid(id), settings.as_ptr(), &raw mut raw, record)
        })?;
        self.made(&call, id, raw, LoadBalancer::from_document)
    }

    fn modify_load_balancer(&self, id: Guid, wanted: &LoadBalancer) -> Result<(), HcnError> {
        let name = format!("{} {id}", wanted.label());
        let call = Call::new(Operation::Modify, ObjectKind::LoadBalancer, name);
        let wanted = LoadBalancer { id: Some(id), ..wanted.clone() };
        self.modify(&call, id, &wanted.to_document())
    }

    fn delete_load_balancer(&self, id: Guid) -> Result<(), HcnError> {
        self.delete(ObjectKind::LoadBalancer, id)
    }

    fn watch(&self, listener: Listener) -> Result<Watch, HcnError> {
        watch::begin(&self.library, listener)
    }
}

impl WindowsHcn {
    /// The network that an endpoint is to be on. That it is missing is about the endpoint's reference.
    fn open_network_of(&self, call: &Call, network: Guid) -> Result<Handle, HcnError> {
        let open = Call { kind: ObjectKind::Network, ..call.clone() };
        self.open(&open, network).map_err(|error| {
            let reason = match error.reason {
                Reason::NotFound => Reason::MissingDependency(ObjectKind::Network),
                other => other,
            };
            HcnError { call: call.clone(), reason, ..error }
        })
    }
}
