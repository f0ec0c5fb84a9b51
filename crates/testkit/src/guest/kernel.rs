//! The kernel's process: how it starts, and how it surely ends.

use std::io::{self, PipeReader, Read as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// How much of what the kernel says is kept: the end of it.
const CONSOLE_BYTES_MAX: usize = 64 << 10;

/// How it ended.
pub(super) struct End {
    /// It was ended, for taking too long.
    pub(super) is_too_late: bool,
    /// The end of what it said.
    pub(super) console: String,
}

/// Runs a kernel until it powers off or the time is over. Then no process of it is left.
pub(super) fn run(mut command: Command, time_max: Duration) -> io::Result<End> {
    let (reader, writer) = io::pipe()?;
    command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
    let mut running = Running(command.spawn()?);
    // It has copies of the pipe's end, which would never come.
    drop(command);
    let (sender, console) = mpsc::sync_channel(1);
    thread::spawn(move || sender.send(read_tail(reader)));
    let in_time = console.recv_timeout(time_max);
    let is_too_late = in_time.is_err();
    let tail = in_time.unwrap_or_else(|_| {
        running.end();
        // The pipe ends when the last process of the kernel has.
        console.recv().unwrap_or_default()
    });
    Ok(End { is_too_late, console: String::from_utf8_lossy(&tail).into_owned() })
}

/// A program that is a kernel, so that it surely ends; `own` is a directory for what it makes for itself:
/// its memory, its control socket.
pub(super) fn contained(program: &Path, own: &Path) -> Command {
    // In a process namespace of its own everything goes with its first process. That one is ended
    // when `unshare` does, and `unshare` when we do, even if we are killed. The kernel must not be
    // it: it breaks down by a signal, to which a first process is deaf.
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--", "unshare"]);
    command.args(["--pid", "--net", "--fork", "--kill-child=KILL", "--"]);
    command.args(["sh", "-c", "\"$@\"; exit $?", "sh"]).arg(program);
    command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("TMPDIR", own);
    command
}

/// The process, ended with the value.
struct Running(Child);

impl Running {
    fn end(&mut self) {
        // It may have ended already, as it should.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

/// Reads to the end, and keeps the end.
fn read_tail(mut reader: PipeReader) -> Vec<u8> {
    let mut tail = Vec::new();
    let mut part = [0; 4096];
    while let Ok(length @ 1..) = reader.read(&mut part) {
        tail.extend_from_slice(&part[..length]);
        let surplus = tail.len().saturating_sub(CONSOLE_BYTES_MAX);
        tail.drain(..surplus);
    }
    tail
}
