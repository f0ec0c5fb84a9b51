//! The Kubernetes source against an API server.
//!
//! [`behaviour`] runs on the test API server always, and also on a real cluster when
//! `TELAIO_TEST_KUBECONFIG` names a kubeconfig for one, in namespaces of its own that it removes.
//! [`on_the_test_server_only`] needs a server that fails on demand, or a cluster of its own.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking, also in its helpers"
)]

mod behaviour;
mod cluster;
mod on_the_test_server_only;
mod watched;
