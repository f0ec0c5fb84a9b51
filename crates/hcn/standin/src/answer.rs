//! Answers: right ones, and on request every kind of wrong one.

use serde::Deserialize;
use serde_json::{Value, json};
use telaio_hcn::{HcnError, Hresult};
use windows_sys::core::{HRESULT, PWSTR};

use crate::memory;

/// How an answer is to be wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(crate) enum Wrong {
    /// Cut off in the middle.
    Truncated,
    /// With members that nobody knows, names in another case and nulls. Harmless.
    Unknown,
    /// Far too long.
    Huge,
    /// With half a character in it.
    InvalidUtf16,
    /// Success, but there is none.
    Absent,
    /// JSON of another type.
    OtherType,
    /// An object with nothing in it.
    Empty,
    /// Of another schema version.
    OtherVersion,
    /// Success, but the error record reports a failure.
    FailureInRecord,
    /// Success, but no handle.
    NoHandle,
    /// Failure with this code; the call does nothing.
    Code(u32),
    /// Failure with this code, and the error record is not UTF-16.
    InvalidRecord(u32),
}

const HUGE_CHARS: usize = 20 * 1024 * 1024;
const HALF_A_CHARACTER: u16 = 0xD800;

/// The units of an answer.
pub(crate) fn units(document: &Value, wrong: Option<Wrong>) -> Option<Vec<u16>> {
    let text = match wrong {
        Some(Wrong::Unknown) => with_unknown(document).to_string(),
        Some(Wrong::OtherType) => "42".to_owned(),
        Some(Wrong::Empty) => "{}".to_owned(),
        Some(Wrong::OtherVersion) => {
            let mut document = document.clone();
            document["SchemaVersion"] = json!({"Major": 3, "Minor": 1});
            document.to_string()
        }
        Some(Wrong::Absent) => return None,
        _ => document.to_string(),
    };
    let mut units: Vec<u16> = text.encode_utf16().collect();
    match wrong {
        Some(Wrong::Truncated) => units.truncate(units.len() / 2),
        Some(Wrong::InvalidUtf16) => units.insert(units.len() / 2, HALF_A_CHARACTER),
        Some(Wrong::Huge) => units.resize(HUGE_CHARS, u16::from(b' ')),
        _ => {}
    }
    Some(units)
}

fn with_unknown(document: &Value) -> Value {
    let Value::Object(members) = document else { return document.clone() };
    let mut odd: serde_json::Map<_, _> =
        members.iter().map(|(name, value)| (name.to_ascii_lowercase(), value.clone())).collect();
    odd.insert("Health".into(), json!({"LastErrorCode": 0, "Extra": {"Nested": [1, null]}}));
    odd.insert("Dns".into(), Value::Null);
    odd.insert("Zebra".into(), json!("é\u{1F993}"));
    Value::Object(odd)
}

/// Puts an answer where the caller wants it.
///
/// # Safety
/// `place` is null or writable.
pub(crate) unsafe fn put(place: *mut PWSTR, units: Option<&[u16]>) {
    if !place.is_null() {
        let text = units.map_or(std::ptr::null_mut(), memory::hand_out);
        // SAFETY: the caller's word.
        unsafe { *place = text };
    }
}

/// Puts the error record, and gives the code.
///
/// # Safety
/// `record` is null or writable.
pub(crate) unsafe fn fail(
    record: *mut PWSTR,
    hresult: Hresult,
    says: &str,
    wrong: Option<Wrong>,
) -> HRESULT {
    let document = json!({"Success": false, "Error": format!("{says} "), "ErrorCode": hresult.0});
    // SAFETY: the caller's word.
    unsafe { put(record, units(&document, wrong).as_deref()) };
    hresult.0.cast_signed()
}

/// An error's code.
pub(crate) fn code(error: &HcnError) -> Hresult {
    error.hresult.unwrap_or(Hresult(0x8000_FFFF))
}
