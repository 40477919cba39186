//! Names of resources: which kinds of them there are.

use crate::selector::label_key_errors;

/// Whether a resource is extended: it has a domain of its own and is not a quota name (upstream's `IsExtendedResourceName`).
pub fn is_extended_resource_name(name: &str) -> bool {
    if is_native_resource_name(name) || name.starts_with("requests.") {
        return false;
    }
    is_qualified_name(&format!("requests.{name}"))
}

/// Whether a resource has no domain or one of `kubernetes.io` (upstream's `IsNativeResource`).
pub fn is_native_resource_name(name: &str) -> bool {
    !name.contains('/') || is_prefixed_native_resource_name(name)
}

/// Whether a resource has a domain of `kubernetes.io` (upstream's `IsPrefixedNativeResource`).
pub fn is_prefixed_native_resource_name(name: &str) -> bool {
    name.contains("kubernetes.io/")
}

/// Whether the text is a `[prefix/]name` as labels and resources spell it: prefix a DNS subdomain, name up to 63 of
/// `[A-Za-z0-9._-]`.
pub fn is_qualified_name(text: &str) -> bool {
    label_key_errors(text).is_empty()
}
