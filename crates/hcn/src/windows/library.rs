//! The functions of computenetwork.dll, found by name.
//!
//! Their types are held against windows-sys' declarations by the compiler; only `HNSCall` of
//! vmcompute.dll, which tells HNS's version, has none there.

use std::ffi::{CStr, c_void};
use std::os::windows::ffi::OsStrExt as _;
use std::path::Path;
use std::ptr::null_mut;

use windows_sys::Win32::Foundation::{GetLastError, HMODULE};
use windows_sys::Win32::System::HostComputeNetwork::{self as declared, HCN_NOTIFICATION_CALLBACK};
use windows_sys::Win32::System::LibraryLoader::{
    GetProcAddress, LOAD_LIBRARY_SEARCH_DLL_LOAD_DIR, LOAD_LIBRARY_SEARCH_SYSTEM32, LoadLibraryExW,
};
use windows_sys::core::{GUID, HRESULT, PCWSTR, PWSTR};

use crate::{Call, HcnError, Hresult, ObjectKind, Operation, Reason};

pub(super) type Enumerate = unsafe extern "system" fn(PCWSTR, *mut PWSTR, *mut PWSTR) -> HRESULT;
pub(super) type Open =
    unsafe extern "system" fn(*const GUID, *mut *mut c_void, *mut PWSTR) -> HRESULT;
pub(super) type Create =
    unsafe extern "system" fn(*const GUID, PCWSTR, *mut *mut c_void, *mut PWSTR) -> HRESULT;
pub(super) type CreateEndpoint = unsafe extern "system" fn(
    *const c_void,
    *const GUID,
    PCWSTR,
    *mut *mut c_void,
    *mut PWSTR,
) -> HRESULT;
pub(super) type Modify = unsafe extern "system" fn(*const c_void, PCWSTR, *mut PWSTR) -> HRESULT;
pub(super) type Properties =
    unsafe extern "system" fn(*const c_void, PCWSTR, *mut PWSTR, *mut PWSTR) -> HRESULT;
pub(super) type Delete = unsafe extern "system" fn(*const GUID, *mut PWSTR) -> HRESULT;
pub(super) type Close = unsafe extern "system" fn(*const c_void) -> HRESULT;
pub(super) type Register = unsafe extern "system" fn(
    HCN_NOTIFICATION_CALLBACK,
    *const c_void,
    *mut *mut c_void,
) -> HRESULT;
pub(super) type Unregister = unsafe extern "system" fn(*const c_void) -> HRESULT;
/// Method, path, body and place for the answer, as of a web server.
pub(super) type HnsCall = unsafe extern "system" fn(PCWSTR, PCWSTR, PCWSTR, *mut PWSTR) -> HRESULT;

macro_rules! library {
    ($($field:ident: $type:ty = $name:ident,)*) => {
        /// The functions. The library is never unloaded, so they stay valid.
        #[derive(Debug)]
        pub(super) struct Library {
            $(pub(super) $field: $type,)*
            pub(super) hns_call: HnsCall,
        }

        // A function whose declaration differs from our type does not compile. Nothing is linked by it.
        $(const _: $type = declared::$name;)*

        impl Library {
            fn of(network: HMODULE, compute: HMODULE) -> Result<Self, HcnError> {
                let name = |name: &'static str| format!("{name}\0");
                Ok(Self {
                    $($field: {
                        let function = find(network, &name(stringify!($name)))?;
                        // SAFETY: the function of that name has this type, as held against above.
                        unsafe { std::mem::transmute::<*const c_void, $type>(function) }
                    },)*
                    hns_call: {
                        let function = find(compute, "HNSCall\0")?;
                        // SAFETY: the type that everybody calls it with; Windows declares it nowhere.
                        unsafe { std::mem::transmute::<*const c_void, HnsCall>(function) }
                    },
                })
            }
        }
    };
}

library! {
    enumerate_networks: Enumerate = HcnEnumerateNetworks,
    open_network: Open = HcnOpenNetwork,
    create_network: Create = HcnCreateNetwork,
    modify_network: Modify = HcnModifyNetwork,
    query_network_properties: Properties = HcnQueryNetworkProperties,
    delete_network: Delete = HcnDeleteNetwork,
    close_network: Close = HcnCloseNetwork,
    enumerate_endpoints: Enumerate = HcnEnumerateEndpoints,
    open_endpoint: Open = HcnOpenEndpoint,
    create_endpoint: CreateEndpoint = HcnCreateEndpoint,
    modify_endpoint: Modify = HcnModifyEndpoint,
    query_endpoint_properties: Properties = HcnQueryEndpointProperties,
    delete_endpoint: Delete = HcnDeleteEndpoint,
    close_endpoint: Close = HcnCloseEndpoint,
    enumerate_load_balancers: Enumerate = HcnEnumerateLoadBalancers,
    open_load_balancer: Open = HcnOpenLoadBalancer,
    create_load_balancer: Create = HcnCreateLoadBalancer,
    modify_load_balancer: Modify = HcnModifyLoadBalancer,
    query_load_balancer_properties: Properties = HcnQueryLoadBalancerProperties,
    delete_load_balancer: Delete = HcnDeleteLoadBalancer,
    close_load_balancer: Close = HcnCloseLoadBalancer,
    register_service_callback: Register = HcnRegisterServiceCallback,
    unregister_service_callback: Unregister = HcnUnregisterServiceCallback,
}

impl Library {
    /// The system's own.
    pub(super) fn system() -> Result<Self, HcnError> {
        let load = |name: &str| load(Path::new(name), LOAD_LIBRARY_SEARCH_SYSTEM32);
        Self::of(load("computenetwork.dll")?, load("vmcompute.dll")?)
    }

    /// One that stands for both of the system's.
    pub(super) fn at(path: &Path) -> Result<Self, HcnError> {
        let module = load(path, LOAD_LIBRARY_SEARCH_DLL_LOAD_DIR | LOAD_LIBRARY_SEARCH_SYSTEM32)?;
        Self::of(module, module)
    }
}

fn call(name: impl Into<String>) -> Call {
    Call::new(Operation::Query, ObjectKind::Service, name)
}

fn load(path: &Path, flags: u32) -> Result<HMODULE, HcnError> {
    let wide: Vec<u16> = path.as_os_str().encode_wide().chain([0]).collect();
    // SAFETY: a text with an end; the library's start-up code is Windows' own, or the test's.
    let module = unsafe { LoadLibraryExW(wide.as_ptr(), null_mut(), flags) };
    if module.is_null() {
        // SAFETY: reads this thread's last error.
        let code = unsafe { GetLastError() };
        return Err(HcnError {
            call: call(path.display().to_string()),
            reason: Reason::Unsupported,
            hresult: Some(Hresult(0x8007_0000 | (code & 0xffff))),
            record: "the library cannot be loaded: is the Containers feature of Windows installed?"
                .into(),
        });
    }
    Ok(module)
}

/// A function's address; its name ends with a zero.
fn find(module: HMODULE, name: &str) -> Result<*const c_void, HcnError> {
    let missing = || {
        let name = name.trim_end_matches('\0').to_owned();
        HcnError { record: "no such function".into(), ..call(name).failed(Reason::Unsupported) }
    };
    let name = CStr::from_bytes_with_nul(name.as_bytes()).map_err(|_| missing())?;
    // SAFETY: the module is loaded and the name has an end.
    let function = unsafe { GetProcAddress(module, name.as_ptr().cast()) };
    function.map(|function| function as *const c_void).ok_or_else(missing)
}
