//! What instances may reach and be reached by: NetworkPolicy.
