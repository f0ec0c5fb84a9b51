//! Heads, bodies and whole connections.
