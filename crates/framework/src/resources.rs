//! Resource amounts in the scheduler's units (upstream's `framework.Resource`).

use loadmaster_api::resource_names::{is_extended_resource_name, is_prefixed_native_resource_name};
use loadmaster_api::{ResourceList, Str};
use smallvec::SmallVec;

/// Name of the CPU resource.
pub const RESOURCE_CPU: &str = "cpu";
/// Name of the memory resource.
pub const RESOURCE_MEMORY: &str = "memory";
/// Name of the ephemeral-storage resource.
pub const RESOURCE_EPHEMERAL_STORAGE: &str = "ephemeral-storage";
/// Name of the resource that limits the number of pods.
pub const RESOURCE_PODS: &str = "pods";

/// Milli-CPU that a container without a CPU request counts as in scores (upstream's `DefaultMilliCPURequest`).
pub const DEFAULT_CPU_MILLI: i64 = 100;
/// Memory that a container without a memory request counts as in scores (upstream's `DefaultMemoryRequest`, 200 MiB).
pub const DEFAULT_MEMORY_BYTES: i64 = 200 * 1024 * 1024;

/// The requests of a pod or the allocatable resources of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Resources {
    /// Milli-CPU.
    pub cpu_milli: i64,
    /// Bytes of memory.
    pub memory_bytes: i64,
    /// Bytes of ephemeral storage.
    pub ephemeral_storage_bytes: i64,
    /// Allocatable number of pods; only set for nodes.
    pub pods: i64,
    /// Extended resources, huge pages and attachable volumes, sorted by name.
    pub scalars: SmallVec<[(Str, i64); 1]>,
}

impl Resources {
    /// Converts a resource list; names that are neither native nor scalar are dropped, as upstream does.
    pub fn from_resource_list(list: &ResourceList) -> Self {
        let mut all = Resources::default();
        for (name, quantity) in list.iter() {
            match name.as_str() {
                RESOURCE_CPU => all.cpu_milli = quantity.milli_value(),
                RESOURCE_MEMORY => all.memory_bytes = quantity.value(),
                RESOURCE_EPHEMERAL_STORAGE => all.ephemeral_storage_bytes = quantity.value(),
                RESOURCE_PODS => all.pods = quantity.value(),
                // The list is sorted, and so are the scalars.
                other if is_scalar_resource_name(other) => {
                    all.scalars.push((name.clone(), quantity.value()))
                }
                _ => {}
            }
        }
        all
    }

    /// The amount of a resource other than `pods`: milli-CPU for `cpu`, else bytes or a count; 0 when it is not listed.
    pub fn amount(&self, name: &str) -> i64 {
        match name {
            RESOURCE_CPU => self.cpu_milli,
            RESOURCE_MEMORY => self.memory_bytes,
            RESOURCE_EPHEMERAL_STORAGE => self.ephemeral_storage_bytes,
            other => self.scalar(other).unwrap_or(0),
        }
    }

    /// The amount of a scalar resource; `None` when it is not listed.
    pub fn scalar(&self, name: &str) -> Option<i64> {
        self.scalars.iter().find(|(known, _)| known.as_str() == name).map(|(_, amount)| *amount)
    }

    /// Adds to a scalar resource, which is listed afterwards. Wraps on overflow like upstream's sums, so that it can be reverted.
    pub fn add_scalar(&mut self, name: &Str, amount: i64) {
        match self.scalars.binary_search_by(|(known, _)| known.cmp(name)) {
            Ok(at) => self.scalars[at].1 = self.scalars[at].1.wrapping_add(amount),
            Err(at) => self.scalars.insert(at, (name.clone(), amount)),
        }
    }

    /// Adds (`sign` 1) or subtracts (`sign` -1) other resources.
    pub fn add_or_subtract(&mut self, other: &Resources, sign: i64) {
        let sum = |mine: i64, theirs: i64| mine.wrapping_add(sign.wrapping_mul(theirs));
        self.cpu_milli = sum(self.cpu_milli, other.cpu_milli);
        self.memory_bytes = sum(self.memory_bytes, other.memory_bytes);
        self.ephemeral_storage_bytes =
            sum(self.ephemeral_storage_bytes, other.ephemeral_storage_bytes);
        for (name, amount) in &other.scalars {
            self.add_scalar(name, sign.wrapping_mul(*amount));
        }
    }
}

/// An amount of a resource as a quantity, exactly: `500m` or `2` of CPU, `3Gi` or `1500` of bytes, else a number.
pub fn shown_amount(name: &str, amount: i64) -> String {
    if name == RESOURCE_CPU {
        let is_whole = amount % 1000 == 0;
        return if is_whole { (amount / 1000).to_string() } else { format!("{amount}m") };
    }
    let is_bytes = matches!(name, RESOURCE_MEMORY | RESOURCE_EPHEMERAL_STORAGE)
        || name.starts_with("hugepages-");
    let units = [(40, "Ti"), (30, "Gi"), (20, "Mi"), (10, "Ki")];
    let unit = units.iter().find(|(bits, _)| amount != 0 && amount % (1_i64 << bits) == 0);
    match unit.filter(|_| is_bytes) {
        Some((bits, unit)) => format!("{}{unit}", amount >> bits),
        None => amount.to_string(),
    }
}

/// Whether upstream treats this resource as a scalar: extended, huge pages, of a `kubernetes.io/` domain, or attachable
/// volumes (upstream's `IsScalarResourceName`).
pub fn is_scalar_resource_name(name: &str) -> bool {
    is_extended_resource_name(name)
        || name.starts_with("hugepages-")
        || is_prefixed_native_resource_name(name)
        || name.starts_with("attachable-volumes-")
}

#[cfg(test)]
mod tests {
    use loadmaster_api::resource_names::is_native_resource_name;

    use super::*;

    #[track_caller]
    fn check(name: &str, want: &str) {
        let all = [
            ("native", is_native_resource_name(name)),
            ("extended", is_extended_resource_name(name)),
            ("scalar", is_scalar_resource_name(name)),
        ];
        let found: Vec<&str> =
            all.iter().filter(|(_, holds)| *holds).map(|(kind, _)| *kind).collect();
        assert_eq!(found.join(" "), want, "{name}");
    }

    #[test]
    fn resource_name_kinds() {
        check("cpu", "native");
        check("pods", "native");
        check("gpu", "native");
        check("hugepages-2Mi", "native scalar");
        check("attachable-volumes-x", "native scalar");
        check("kubernetes.io/x", "native scalar");
        check("example.kubernetes.io/x", "native scalar");
        check("example.com/gpu", "extended scalar");
        check("requests.example.com/gpu", "");
        check("Example.com/gpu", "");
        check("example.com/", "");
        check("a/b/c", "");
        check(&format!("{}.com/x", "a".repeat(240)), "extended scalar");
        check(&format!("{}.com/x", "a".repeat(241)), "");
        check("deviceclass.resource.kubernetes.io/x", "native scalar");
    }

    #[track_caller]
    fn check_list(list: serde_json::Value, want: &str) {
        let list: ResourceList = crate::plugin_args::decode_json_value(&list).unwrap();
        let r = Resources::from_resource_list(&list);
        let found = format!(
            "cpu {} memory {} storage {} pods {} {:?}",
            r.cpu_milli, r.memory_bytes, r.ephemeral_storage_bytes, r.pods, r.scalars
        );
        assert_eq!(found, want);
    }

    #[test]
    fn resource_list_amounts() {
        check_list(serde_json::json!({}), "cpu 0 memory 0 storage 0 pods 0 []");
        check_list(
            serde_json::json!({"cpu": "1500m", "memory": "1Gi", "ephemeral-storage": "1k", "pods": 110}),
            "cpu 1500 memory 1073741824 storage 1000 pods 110 []",
        );
        check_list(
            serde_json::json!({"cpu": "0.1m", "memory": "100m", "a.com/b": "1500m", "hugepages-2Mi": 0, "gpu": 3}),
            r#"cpu 1 memory 1 storage 0 pods 0 [("a.com/b", 2), ("hugepages-2Mi", 0)]"#,
        );
        check_list(
            serde_json::json!({"cpu": "-1", "memory": "-1.5"}),
            "cpu -1000 memory -2 storage 0 pods 0 []",
        );
    }

    #[test]
    fn amounts_are_shown_exactly() {
        #[track_caller]
        fn check(name: &str, amount: i64, want: &str) {
            assert_eq!(shown_amount(name, amount), want);
        }
        check("cpu", 0, "0");
        check("cpu", 2000, "2");
        check("cpu", 1500, "1500m");
        check("cpu", -250, "-250m");
        check("memory", 0, "0");
        check("memory", 3 << 30, "3Gi");
        check("memory", (3 << 30) + 1024, "3145729Ki");
        check("memory", -(2 << 20), "-2Mi");
        check("ephemeral-storage", 1500, "1500");
        check("hugepages-2Mi", 4 << 20, "4Mi");
        check("example.com/gpu", 1024, "1024");
    }
}
