//! The name under which this machine is a node.

/// The host's name, the default for `--node`: what a kubelet would register as.
pub(crate) fn host_name() -> String {
    let raw = if cfg!(windows) {
        std::env::var("COMPUTERNAME").unwrap_or_default()
    } else {
        std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default()
    };
    let name = raw.trim().to_lowercase();
    if name.is_empty() { "localhost".to_owned() } else { name }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_host_name_is_never_empty_and_in_lower_case() {
        let name = super::host_name();
        assert!(!name.is_empty());
        assert_eq!(name, name.to_lowercase());
    }
}
