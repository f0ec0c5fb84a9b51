//! The name under which this machine is a node.

use crate::cli::NodeArgs;
use crate::exit::CommandError;

/// The longest name that Kubernetes takes.
const NAME_BYTES_MAX: usize = 253;

impl NodeArgs {
    /// The node that was named, or this host.
    pub(crate) fn name(&self) -> Result<String, CommandError> {
        match &self.node {
            Some(name) => Ok(name.clone()),
            None => parse(&host_name()).map_err(|error| {
                CommandError::bad_input(format!("the host's name: {error}; name it with --node"))
            }),
        }
    }
}

/// Reads a node's name, which is a DNS subdomain as Kubernetes has it.
pub(crate) fn parse(text: &str) -> Result<String, String> {
    let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let is_label = |label: &str| {
        !label.is_empty()
            && label.bytes().all(is_inner)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    if text.len() <= NAME_BYTES_MAX && text.split('.').all(is_label) {
        return Ok(text.to_owned());
    }
    Err(format!(
        "{text:?} is not the name of a node: at most {NAME_BYTES_MAX} lower-case letters, digits, - \
         and ., such as loom-a.example"
    ))
}

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
    use super::parse;

    #[test]
    fn a_node_has_a_name_that_kubernetes_could_have_given() {
        for good in ["loom-a", "a", "0", "ip-10-0-0-1.eu.example"] {
            assert_eq!(parse(good).as_deref(), Ok(good));
        }
        let long = "a".repeat(254);
        for bad in ["", "BAD NODE", "Loom", "a_b", "-a", "a-", "a..b", ".", "a.", "a\n", &long] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn the_host_name_is_never_empty_and_in_lower_case() {
        let name = super::host_name();
        assert!(!name.is_empty());
        assert_eq!(name, name.to_lowercase());
    }
}
