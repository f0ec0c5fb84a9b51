//! Texts that cross the border: UTF-16 with a zero at the end, both ways strictly.

use std::ptr::null_mut;

use serde_json::Value;
use windows_sys::Win32::System::Com::CoTaskMemFree;

/// The longest answer that is read, in UTF-16 units: identities of 400,000 objects. HNS has no reason
/// for more, and a broken one must not make us hold all memory.
pub const ANSWER_CHARS_MAX: usize = 16 * 1024 * 1024;

/// A text that goes out.
pub(super) struct WideText(Vec<u16>);

impl WideText {
    /// A document. JSON has no zero in it: it is written as an escape.
    pub(super) fn of(document: &Value) -> Self {
        Self::from_str(&document.to_string())
    }

    /// A text without a zero in it; it would end there.
    pub(super) fn from_str(text: &str) -> Self {
        Self(text.encode_utf16().chain([0]).collect())
    }

    pub(super) fn as_ptr(&self) -> *const u16 {
        self.0.as_ptr()
    }
}

/// A text that comes in, from the task's allocator; dropping it frees it.
pub(super) struct TaskText(*mut u16);

impl TaskText {
    pub(super) const fn none() -> Self {
        Self(null_mut())
    }

    /// Where a call puts it. Given to one call only.
    pub(super) fn place(&mut self) -> *mut *mut u16 {
        &raw mut self.0
    }

    /// The text, if the call gave one.
    pub(super) fn read(&self) -> Result<Option<String>, String> {
        if self.0.is_null() {
            return Ok(None);
        }
        let mut length = 0;
        // SAFETY: HCN gives texts that end with a zero; nothing behind the first zero is looked at.
        while unsafe { *self.0.add(length) } != 0 {
            length += 1;
            if length > ANSWER_CHARS_MAX {
                return Err(format!("longer than {ANSWER_CHARS_MAX} characters"));
            }
        }
        // SAFETY: that many units were read just now, and nobody else has the text.
        let units = unsafe { std::slice::from_raw_parts(self.0, length) };
        String::from_utf16(units).map(Some).map_err(|_| "not valid UTF-16".to_owned())
    }
}

impl Drop for TaskText {
    fn drop(&mut self) {
        // SAFETY: null, or a text that a call handed over to us, freed this once.
        unsafe { CoTaskMemFree(self.0.cast()) };
    }
}
