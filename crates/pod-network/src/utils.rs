//! Small things that callers of the library need to know.

use crate::names;

/// The name of an instance's network namespace, as `ip netns` lists it.
///
/// ```
/// use telaio_pod_network::utils::get_namespace_name;
///
/// let instance_id = "instance";
/// let namespace_name = get_namespace_name(instance_id.to_string());
/// println!("Namespace of {}: {}", instance_id, namespace_name);
/// assert_eq!(namespace_name, "telaio-i-instance");
/// ```
pub fn get_namespace_name(instance_id: impl AsRef<str>) -> String {
    names::namespace(instance_id.as_ref())
}
