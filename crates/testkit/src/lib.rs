//! What Telaio's tests stand on. Nothing of this is ever part of the binary.
//!
//! [`apiserver`] is a Kubernetes API server small enough to start in a test and honest enough to
//! test a client with: real HTTP, real watches, and faults on demand. [`netns`] is a cluster of network
//! namespaces with real packets between them; on a [`machine`] files are apart as well. [`guest`] is a kernel of its own, for what the host's lacks.

pub mod apiserver;
pub mod guest;
pub mod machine;
pub mod netns;
