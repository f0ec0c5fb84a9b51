//! A stand-in for computenetwork.dll, and for `HNSCall` of vmcompute.dll: for tests under wine only.
//!
//! It keeps its objects in this process, by the rules of `telaio_hcn::FakeHcn`. What it adds is the
//! border: handles, texts of the task's allocator, error records, documents that are checked far more
//! strictly than HNS does (`strict`), and answers that are wrong on request. It counts what is open
//! and what is not freed (`memory`), so that leaks show.
//!
//! Tests steer it by one further function, `StandinControl` of `control`; those that run the agent as a process
//! of its own, by files in a directory (`field`).
#![cfg(windows)]
#![allow(unsafe_code, reason = "called by C's rules; each block says why it is sound")]

mod answer;
pub mod control;
pub mod exports;
mod field;
mod memory;
mod state;
mod strict;
