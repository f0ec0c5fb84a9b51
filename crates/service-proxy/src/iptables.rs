//! Services by iptables.
