//! How tests steer the stand-in.

use serde::Deserialize;
use serde_json::{Value, json};
use telaio_hcn::{HnsVersion, ObjectKind};
use windows_sys::Win32::System::Console::CTRL_BREAK_EVENT;
use windows_sys::Win32::System::HostComputeNetwork::HcnNotificationServiceDisconnect;
use windows_sys::Win32::System::LibraryLoader::{GetModuleHandleW, GetProcAddress};

use crate::answer::Wrong;
use crate::field::Objects;
use crate::memory;
use crate::state::{self, Callback, Function, Misbehaviour, State};

/// What tests ask for.
#[derive(Clone, Deserialize)]
pub(crate) enum Command {
    /// An empty one of this version; nothing is wrong.
    Reset { version: HnsVersion },
    /// Calls are answered wrongly.
    Misbehave { function: Function, kind: ObjectKind, wrong: Wrong, times: u32 },
    /// The next such call waits.
    Hold { function: Function, kind: ObjectKind },
    /// Waiting calls go on.
    Release,
    /// HNS stops, or starts with its objects.
    Running { running: bool },
    /// HNS restarts: everything is gone.
    Restart,
    /// Somebody else makes these.
    Fill { objects: Objects },
    /// The console of this process gets Ctrl-Break.
    Interrupt,
    /// What is open and what was called.
    Report,
}

/// Does what the command (JSON as UTF-8) asks for and writes a report (likewise) into the answer; its
/// length, or zero if the command is not understood or the answer too small.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn StandinControl(
    command: *const u8,
    command_bytes: usize,
    answer: *mut u8,
    answer_bytes: usize,
) -> usize {
    // SAFETY: the test's word for both.
    let (command, answer) = unsafe {
        (
            std::slice::from_raw_parts(command, command_bytes),
            std::slice::from_raw_parts_mut(answer, answer_bytes),
        )
    };
    let Ok(command) = serde_json::from_slice(command) else { return 0 };
    obey(command);
    let report = report().to_string();
    match answer.get_mut(..report.len()) {
        Some(answer) => answer.copy_from_slice(report.as_bytes()),
        None => return 0,
    }
    report.len()
}

pub(crate) fn obey(command: Command) {
    match command {
        Command::Reset { version } => state::with(|state| {
            // What is still open stays counted: a leak of the test before must show.
            let handles = std::mem::take(&mut state.handles);
            *state = State::new(version);
            state.handles = handles;
        }),
        Command::Misbehave { function, kind, wrong, times } => state::with(|state| {
            state.misbehaviour.push(Misbehaviour { function, kind, wrong, times });
        }),
        Command::Hold { function, kind } => {
            state::with(|state| state.held = Some((function, kind)));
        }
        Command::Release => state::release(),
        Command::Running { running } => {
            state::with(|state| state.hcn.set_running(running));
            if !running {
                tell_disconnected();
            }
        }
        Command::Restart => {
            state::with(|state| {
                state.run += 1;
                state.hcn.restart();
            });
            tell_disconnected();
        }
        Command::Fill { objects } => objects.make(&state::with(|state| state.hcn.clone())),
        Command::Interrupt => interrupt(),
        Command::Report => {}
    }
}

/// What Windows does when somebody presses Ctrl-Break: a thread that goes through the process's handlers. There
/// need not be a console for that.
fn interrupt() {
    type CtrlRoutine = unsafe extern "system" fn(usize) -> u32;
    let library: Vec<u16> = "kernelbase.dll\0".encode_utf16().collect();
    // SAFETY: both names have an end.
    let found = unsafe {
        GetProcAddress(GetModuleHandleW(library.as_ptr()), c"CtrlRoutine".as_ptr().cast())
    };
    let Some(found) = found else { return };
    std::thread::spawn(move || {
        // SAFETY: the function of that name takes the event where a thread has its argument.
        unsafe {
            std::mem::transmute::<unsafe extern "system" fn() -> isize, CtrlRoutine>(found)(
                CTRL_BREAK_EVENT as usize,
            )
        }
    });
}

fn tell_disconnected() {
    // Without the lock: who is told may call.
    let callbacks: Vec<Callback> = state::with(|state| state.callbacks.values().copied().collect());
    for callback in callbacks {
        if let Some(function) = callback.function {
            let context = std::ptr::without_provenance(callback.context);
            let notification = HcnNotificationServiceDisconnect.cast_unsigned();
            // SAFETY: the function was registered with this context and not yet unregistered.
            unsafe { function(notification, context, 0, std::ptr::null()) };
        }
    }
}

pub(crate) fn report() -> Value {
    let objects = Objects::read(&state::with(|state| state.hcn.clone()));
    state::with(|state| {
        let calls: serde_json::Map<_, _> = state
            .entered
            .iter()
            .map(|((function, kind), n)| (format!("{function:?}{kind:?}"), json!(n)))
            .collect();
        let documents: serde_json::Map<_, _> = state
            .documents
            .iter()
            .map(|((function, kind), document)| (format!("{function:?}{kind:?}"), document.clone()))
            .collect();
        json!({
            "handles": state.handles.len(),
            "texts": memory::live_texts(),
            "strays": state.strays,
            "callbacks": state.callbacks.len(),
            "waiting": state.waiting,
            "calls": calls,
            "documents": documents,
            "objects": objects,
        })
    })
}
