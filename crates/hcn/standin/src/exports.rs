//! The functions of computenetwork.dll, and `HNSCall`.

use std::ffi::c_void;

use serde_json::{Value, json};
use telaio_hcn::{
    Endpoint, Guid, Hcn as _, HcnError, Hresult, LoadBalancer, Network, ObjectKind, PolicyChange,
    Query, RequestType,
};
use windows_sys::Win32::System::HostComputeNetwork::HCN_NOTIFICATION_CALLBACK;
use windows_sys::core::{GUID, HRESULT, PCWSTR, PWSTR};

use crate::answer::{self, Wrong};
use crate::state::{self, Callback, Function};
use crate::{field, strict};

const INVALID_HANDLE: Hresult = Hresult(0x8007_0006);
const INVALID_JSON: Hresult = Hresult(0x803B_001B);
const USED_AFTER_UNLOAD: Hresult = Hresult(0x803B_0031);
const NOT_FOUND: Hresult = Hresult(0x8007_0490);
/// The longest document that is taken.
const SETTINGS_CHARS_MAX: usize = 1024 * 1024;

/// A refusal: code and words.
struct Refused(Hresult, String);

impl From<HcnError> for Refused {
    fn from(error: HcnError) -> Self {
        Self(answer::code(&error), error.record)
    }
}

fn invalid(why: String) -> Refused {
    Refused(INVALID_JSON, why)
}

/// Reads a text of the caller's as a document; strictly UTF-16 and JSON.
///
/// # Safety
/// `text` is null or has an end.
unsafe fn document(text: PCWSTR) -> Result<Value, Refused> {
    if text.is_null() {
        return Err(invalid("no document".into()));
    }
    // SAFETY: the caller's word.
    let length = (0..SETTINGS_CHARS_MAX).find(|at| unsafe { *text.add(*at) } == 0);
    let length = length.ok_or_else(|| invalid("too long".into()))?;
    // SAFETY: that many units were read just now.
    let units = unsafe { std::slice::from_raw_parts(text, length) };
    let text = String::from_utf16(units).map_err(|error| invalid(error.to_string()))?;
    serde_json::from_str(&text).map_err(|error| invalid(error.to_string()))
}

/// # Safety
/// `id` is readable.
unsafe fn guid(id: *const GUID) -> Guid {
    // SAFETY: the caller's word.
    let id = unsafe { *id };
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&id.data1.to_be_bytes());
    bytes[4..6].copy_from_slice(&id.data2.to_be_bytes());
    bytes[6..8].copy_from_slice(&id.data3.to_be_bytes());
    bytes[8..].copy_from_slice(&id.data4);
    Guid::from_bytes(bytes)
}

/// The object behind a handle.
fn opened(kind: ObjectKind, handle: *const c_void) -> Result<Guid, Refused> {
    state::with(|state| match state.handles.get(&handle.addr()) {
        Some(open) if open.kind != kind => Err(Refused(INVALID_HANDLE, "of another kind".into())),
        Some(open) if open.run != state.run => {
            Err(Refused(USED_AFTER_UNLOAD, "from before the restart".into()))
        }
        Some(open) => Ok(open.id),
        None => Err(Refused(INVALID_HANDLE, "not open".into())),
    })
}

/// Makes a call: wrong on request, its error as code and record.
///
/// # Safety
/// `record` is null or writable.
unsafe fn call<T>(
    function: Function,
    kind: ObjectKind,
    record: *mut PWSTR,
    act: impl FnOnce() -> Result<T, Refused>,
    deliver: impl FnOnce(T, Option<Wrong>),
) -> HRESULT {
    field::begin(function);
    state::enter(function, kind);
    // SAFETY: the caller's word; what is not filled in must not be read.
    unsafe { answer::put(record, None) };
    let wrong = state::with(|state| state.wrong(function, kind));
    let failure = match wrong {
        Some(Wrong::Code(code)) => Some((code, None, code.cast_signed())),
        Some(Wrong::InvalidRecord(code)) => {
            Some((code, Some(Wrong::InvalidUtf16), code.cast_signed()))
        }
        Some(Wrong::FailureInRecord) => Some((NOT_FOUND.0, None, 0)),
        _ => None,
    };
    if let Some((code, wrong, returned)) = failure {
        let says = "a failure that the test asked for.";
        // SAFETY: the caller's word.
        unsafe { answer::fail(record, Hresult(code), says, wrong) };
        return returned;
    }
    match act() {
        Ok(answer) => {
            field::changed(function);
            deliver(answer, wrong);
            0
        }
        // SAFETY: the caller's word.
        Err(Refused(code, says)) => unsafe { answer::fail(record, code, &says, None) },
    }
}

/// # Safety
/// The texts have an end and the places are writable.
unsafe fn enumerate(
    kind: ObjectKind,
    query: PCWSTR,
    place: *mut PWSTR,
    record: *mut PWSTR,
) -> HRESULT {
    let act = || {
        // SAFETY: the caller's word.
        let document = unsafe { document(query) }?;
        strict::query(&document).map_err(invalid)?;
        let query = read_query(&document);
        let hcn = state::with(|state| state.hcn.clone());
        let ids = match kind {
            ObjectKind::Network => hcn.network_ids(&query)?,
            ObjectKind::Endpoint => hcn.endpoint_ids(&query)?,
            _ => hcn.load_balancer_ids(&query)?,
        };
        // In upper case, as some versions do.
        Ok(json!(ids.iter().map(|id| id.to_string().to_uppercase()).collect::<Vec<_>>()))
    };
    // SAFETY: the caller's word.
    unsafe {
        answer::put(place, None);
        call(Function::Enumerate, kind, record, act, |document, wrong| {
            answer::put(place, answer::units(&document, wrong).as_deref());
        })
    }
}

fn read_query(document: &Value) -> Query {
    let filter = document.get("Filter").and_then(Value::as_str).unwrap_or("{}");
    let filter: Value = serde_json::from_str(filter).unwrap_or_default();
    let id = |name| filter.get(name)?.as_str()?.parse().ok();
    if let Some(id) = id("ID") {
        Query::Id(id)
    } else if let Some(network) = id("VirtualNetwork") {
        Query::OnNetwork(network)
    } else if let Some(name) = filter.get("Name").and_then(Value::as_str) {
        Query::Name(name.to_owned())
    } else {
        Query::All
    }
}

/// # Safety
/// `id` is readable, the places are writable.
unsafe fn open(
    kind: ObjectKind,
    id: *const GUID,
    place: *mut *mut c_void,
    record: *mut PWSTR,
) -> HRESULT {
    let act = || {
        // SAFETY: the caller's word.
        let id = unsafe { guid(id) };
        let hcn = state::with(|state| state.hcn.clone());
        match kind {
            ObjectKind::Network => drop(hcn.network(id)?),
            ObjectKind::Endpoint => drop(hcn.endpoint(id)?),
            _ => drop(hcn.load_balancer(id)?),
        }
        Ok(id)
    };
    // SAFETY: the caller's word.
    unsafe {
        *place = std::ptr::null_mut();
        call(Function::Open, kind, record, act, |id, wrong| {
            if wrong != Some(Wrong::NoHandle) {
                *place = state::with(|state| state.open(kind, id));
            }
        })
    }
}

/// # Safety
/// `network` is null for what is on no network; `id` is readable, the settings have an end, the places
/// are writable.
unsafe fn create(
    kind: ObjectKind,
    network: *const c_void,
    id: *const GUID,
    settings: PCWSTR,
    place: *mut *mut c_void,
    record: *mut PWSTR,
) -> HRESULT {
    let act = || {
        // SAFETY: the caller's word.
        let (id, document) = unsafe { (guid(id), document(settings)?) };
        state::with(|state| state.documents.insert((Function::Create, kind), document.clone()));
        strict::settings(kind, &document).map_err(invalid)?;
        if document.get("ID") != Some(&json!(id)) {
            return Err(invalid("the document is of another object".into()));
        }
        let hcn = state::with(|state| state.hcn.clone());
        let unreadable = |error: telaio_hcn::DocumentError| invalid(error.to_string());
        match kind {
            ObjectKind::Network => {
                hcn.create_network(&Network::from_document(&document).map_err(unreadable)?)?;
            }
            ObjectKind::Endpoint => {
                let endpoint = Endpoint::from_document(&document).map_err(unreadable)?;
                if opened(ObjectKind::Network, network)? != endpoint.network {
                    return Err(invalid("the document is of another network".into()));
                }
                hcn.create_endpoint(&endpoint)?;
            }
            _ => {
                let wanted = LoadBalancer::from_document(&document).map_err(unreadable)?;
                hcn.create_load_balancer(&wanted)?;
            }
        }
        Ok(id)
    };
    // SAFETY: the caller's word.
    unsafe {
        *place = std::ptr::null_mut();
        call(Function::Create, kind, record, act, |id, wrong| {
            if wrong != Some(Wrong::NoHandle) {
                *place = state::with(|state| state.open(kind, id));
            }
        })
    }
}

/// # Safety
/// The settings have an end, the place is writable.
unsafe fn modify(
    kind: ObjectKind,
    handle: *const c_void,
    settings: PCWSTR,
    record: *mut PWSTR,
) -> HRESULT {
    let act = || {
        let id = opened(kind, handle)?;
        // SAFETY: the caller's word.
        let document = unsafe { document(settings) }?;
        state::with(|state| state.documents.insert((Function::Modify, kind), document.clone()));
        strict::modification(kind, &document).map_err(invalid)?;
        let hcn = state::with(|state| state.hcn.clone());
        match kind {
            ObjectKind::Network => hcn.modify_network(id, &change(&document)?)?,
            ObjectKind::Endpoint => hcn.modify_endpoint(id, &change(&document)?)?,
            _ => {
                let wanted = LoadBalancer::from_document(&document)
                    .map_err(|error| invalid(error.to_string()))?;
                hcn.modify_load_balancer(id, &wanted)?;
            }
        }
        Ok(())
    };
    // SAFETY: the caller's word.
    unsafe { call(Function::Modify, kind, record, act, |(), _| {}) }
}

fn change<P: serde::de::DeserializeOwned>(document: &Value) -> Result<PolicyChange<P>, Refused> {
    let read = || -> Result<_, serde_json::Error> {
        let request: RequestType = serde_json::from_value(document["RequestType"].clone())?;
        let policies = serde_json::from_value(document["Settings"]["Policies"].clone())?;
        Ok(PolicyChange { request, policies })
    };
    read().map_err(|error| invalid(error.to_string()))
}

/// # Safety
/// The query has an end, the places are writable.
unsafe fn properties(
    kind: ObjectKind,
    handle: *const c_void,
    query: PCWSTR,
    place: *mut PWSTR,
    record: *mut PWSTR,
) -> HRESULT {
    let act = || {
        let id = opened(kind, handle)?;
        // SAFETY: the caller's word.
        strict::query(&unsafe { document(query) }?).map_err(invalid)?;
        let hcn = state::with(|state| state.hcn.clone());
        Ok(match kind {
            ObjectKind::Network => hcn.network(id)?.to_document(),
            ObjectKind::Endpoint => hcn.endpoint(id)?.to_document(),
            _ => hcn.load_balancer(id)?.to_document(),
        })
    };
    // SAFETY: the caller's word.
    unsafe {
        answer::put(place, None);
        call(Function::Properties, kind, record, act, |document, wrong| {
            answer::put(place, answer::units(&document, wrong).as_deref());
        })
    }
}

/// # Safety
/// `id` is readable, the place is writable.
unsafe fn delete(kind: ObjectKind, id: *const GUID, record: *mut PWSTR) -> HRESULT {
    let act = || {
        // SAFETY: the caller's word.
        let id = unsafe { guid(id) };
        let hcn = state::with(|state| state.hcn.clone());
        match kind {
            ObjectKind::Network => hcn.delete_network(id)?,
            ObjectKind::Endpoint => hcn.delete_endpoint(id)?,
            _ => hcn.delete_load_balancer(id)?,
        }
        Ok(())
    };
    // SAFETY: the caller's word.
    unsafe { call(Function::Delete, kind, record, act, |(), _| {}) }
}

fn close(kind: ObjectKind, handle: *const c_void) -> HRESULT {
    state::with(|state| match state.handles.remove(&handle.addr()) {
        Some(open) if open.kind == kind => 0,
        _ => {
            state.strays += 1;
            INVALID_HANDLE.0.cast_signed()
        }
    })
}

macro_rules! exports {
    ($($kind:ident: $enumerate:ident $open:ident $modify:ident $properties:ident $delete:ident $close:ident;)*) => {
        $(
            #[doc = "Which there are."]
            #[unsafe(no_mangle)]
            pub unsafe extern "system" fn $enumerate(
                query: PCWSTR, place: *mut PWSTR, record: *mut PWSTR,
            ) -> HRESULT {
                // SAFETY: the caller's word.
                unsafe { enumerate(ObjectKind::$kind, query, place, record) }
            }

            #[doc = "Opens one."]
            #[unsafe(no_mangle)]
            pub unsafe extern "system" fn $open(
                id: *const GUID, place: *mut *mut c_void, record: *mut PWSTR,
            ) -> HRESULT {
                // SAFETY: the caller's word.
                unsafe { open(ObjectKind::$kind, id, place, record) }
            }

            #[doc = "Changes one."]
            #[unsafe(no_mangle)]
            pub unsafe extern "system" fn $modify(
                handle: *const c_void, settings: PCWSTR, record: *mut PWSTR,
            ) -> HRESULT {
                // SAFETY: the caller's word.
                unsafe { modify(ObjectKind::$kind, handle, settings, record) }
            }

            #[doc = "What one is like."]
            #[unsafe(no_mangle)]
            pub unsafe extern "system" fn $properties(
                handle: *const c_void, query: PCWSTR, place: *mut PWSTR, record: *mut PWSTR,
            ) -> HRESULT {
                // SAFETY: the caller's word.
                unsafe { properties(ObjectKind::$kind, handle, query, place, record) }
            }

            #[doc = "Removes one."]
            #[unsafe(no_mangle)]
            pub unsafe extern "system" fn $delete(id: *const GUID, record: *mut PWSTR) -> HRESULT {
                // SAFETY: the caller's word.
                unsafe { delete(ObjectKind::$kind, id, record) }
            }

            #[doc = "Closes one."]
            #[unsafe(no_mangle)]
            pub unsafe extern "system" fn $close(handle: *const c_void) -> HRESULT {
                close(ObjectKind::$kind, handle)
            }
        )*
    };
}

exports! {
    Network: HcnEnumerateNetworks HcnOpenNetwork HcnModifyNetwork HcnQueryNetworkProperties
        HcnDeleteNetwork HcnCloseNetwork;
    Endpoint: HcnEnumerateEndpoints HcnOpenEndpoint HcnModifyEndpoint HcnQueryEndpointProperties
        HcnDeleteEndpoint HcnCloseEndpoint;
    LoadBalancer: HcnEnumerateLoadBalancers HcnOpenLoadBalancer HcnModifyLoadBalancer
        HcnQueryLoadBalancerProperties HcnDeleteLoadBalancer HcnCloseLoadBalancer;
}

/// Makes a network.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn HcnCreateNetwork(
    id: *const GUID,
    settings: PCWSTR,
    place: *mut *mut c_void,
    record: *mut PWSTR,
) -> HRESULT {
    // SAFETY: the caller's word.
    unsafe { create(ObjectKind::Network, std::ptr::null(), id, settings, place, record) }
}

/// Makes an endpoint.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn HcnCreateEndpoint(
    network: *const c_void,
    id: *const GUID,
    settings: PCWSTR,
    place: *mut *mut c_void,
    record: *mut PWSTR,
) -> HRESULT {
    // SAFETY: the caller's word.
    unsafe { create(ObjectKind::Endpoint, network, id, settings, place, record) }
}

/// Makes a load balancer.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn HcnCreateLoadBalancer(
    id: *const GUID,
    settings: PCWSTR,
    place: *mut *mut c_void,
    record: *mut PWSTR,
) -> HRESULT {
    // SAFETY: the caller's word.
    unsafe { create(ObjectKind::LoadBalancer, std::ptr::null(), id, settings, place, record) }
}

/// Tells of notifications.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn HcnRegisterServiceCallback(
    function: HCN_NOTIFICATION_CALLBACK,
    context: *const c_void,
    place: *mut *mut c_void,
) -> HRESULT {
    let act = || {
        // Whoever is not running registers nobody.
        state::with(|state| state.hcn.version())?;
        Ok(())
    };
    // SAFETY: the caller's word.
    unsafe {
        call(Function::Register, ObjectKind::Service, std::ptr::null_mut(), act, |(), _| {
            *place = state::with(|state| {
                let handle = state.callbacks.keys().last().map_or(0x100, |last| last + 0x10);
                state.callbacks.insert(handle, Callback { function, context: context.addr() });
                std::ptr::without_provenance_mut(handle)
            });
        })
    }
}

/// Tells no more.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn HcnUnregisterServiceCallback(handle: *const c_void) -> HRESULT {
    state::with(|state| {
        if state.callbacks.remove(&handle.addr()).is_some() {
            return 0;
        }
        state.strays += 1;
        INVALID_HANDLE.0.cast_signed()
    })
}

/// The older interface, of vmcompute.dll: only HNS's version is asked of it.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn HNSCall(
    _method: PCWSTR,
    _path: PCWSTR,
    _body: PCWSTR,
    place: *mut PWSTR,
) -> HRESULT {
    let act = || {
        let version = state::with(|state| state.hcn.clone()).version()?;
        Ok(json!({"Success": true, "Output": version}))
    };
    // SAFETY: the caller's word.
    unsafe {
        answer::put(place, None);
        call(
            Function::Version,
            ObjectKind::Service,
            std::ptr::null_mut(),
            act,
            |document, wrong| {
                answer::put(place, answer::units(&document, wrong).as_deref());
            },
        )
    }
}
