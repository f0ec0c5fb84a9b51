//! The `telaio` binary.
fn main() {}
