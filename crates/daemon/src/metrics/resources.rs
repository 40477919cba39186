//! `/metrics/resources`: requests and limits of all pods, one series per pod and resource. From upstream's
//! `pkg/scheduler/metrics/resources`, 1.36.

use super::text_format::{Number, escape, head};

/// Requests and limits of one pod. The caller omits terminated pods.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodResources {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub pod: String,
    /// Its node; empty while it is pending.
    pub node: String,
    /// `spec.schedulerName`.
    pub scheduler: String,
    /// `spec.priority`.
    pub priority: Option<i32>,
    /// Requests by resource, overhead included; cores for cpu.
    pub requests: Vec<(String, f64)>,
    /// Limits by resource.
    pub limits: Vec<(String, f64)>,
}

/// The text of the endpoint; amounts of zero are omitted.
pub fn resource_metrics_text(pods: &[PodResources]) -> String {
    let mut out = String::new();
    family(
        &mut out,
        pods,
        "kube_pod_resource_limit",
        "[STABLE] Resources limit for workloads on the cluster, broken down by pod. This shows the resource usage the scheduler and kubelet expect per pod for resources along with the unit for the resource if any.",
        |pod| &pod.limits,
    );
    family(
        &mut out,
        pods,
        "kube_pod_resource_request",
        "[STABLE] Resources requested by workloads on the cluster, broken down by pod. This shows the resource usage the scheduler and kubelet expect per pod for resources along with the unit for the resource if any.",
        |pod| &pod.requests,
    );
    out
}

fn family(
    out: &mut String,
    pods: &[PodResources],
    name: &str,
    help: &str,
    amounts: impl Fn(&PodResources) -> &Vec<(String, f64)>,
) {
    let mut is_first = true;
    for pod in pods {
        for (resource, amount) in amounts(pod).iter().filter(|(_, amount)| *amount != 0.0) {
            if std::mem::take(&mut is_first) {
                // Writing to a string cannot fail.
                let _ = head(out, name, help, "gauge");
            }
            let priority = pod.priority.map(|it| it.to_string()).unwrap_or_default();
            out.push_str(&format!(
                "{name}{{namespace=\"{}\",node=\"{}\",pod=\"{}\",priority=\"{priority}\",resource=\"{}\",scheduler=\"{}\",unit=\"{}\"}} {}\n",
                escape(&pod.namespace),
                escape(&pod.node),
                escape(&pod.pod),
                escape(resource),
                escape(&pod.scheduler),
                unit(resource),
                Number(*amount),
            ));
        }
    }
}

fn unit(resource: &str) -> &'static str {
    match resource {
        "cpu" => "cores",
        "memory" | "storage" | "ephemeral-storage" => "bytes",
        _ if resource.starts_with("hugepages-") => "bytes",
        _ if resource.starts_with("attachable-volumes-") => "integer",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_one_pod() {
        let pod = PodResources {
            namespace: "ns".into(),
            pod: "web".into(),
            node: "a".into(),
            scheduler: "default-scheduler".into(),
            priority: Some(7),
            requests: vec![("cpu".into(), 0.5), ("memory".into(), 2.0e9), ("pods".into(), 0.0)],
            limits: vec![("example.com/gpu".into(), 1.0)],
        };
        let text = resource_metrics_text(&[pod]);
        let series: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(
            series,
            [
                r#"kube_pod_resource_limit{namespace="ns",node="a",pod="web",priority="7",resource="example.com/gpu",scheduler="default-scheduler",unit=""} 1"#,
                r#"kube_pod_resource_request{namespace="ns",node="a",pod="web",priority="7",resource="cpu",scheduler="default-scheduler",unit="cores"} 0.5"#,
                r#"kube_pod_resource_request{namespace="ns",node="a",pod="web",priority="7",resource="memory",scheduler="default-scheduler",unit="bytes"} 2e+09"#,
            ]
        );
        assert_eq!(text.matches("# TYPE").count(), 2);
        assert_eq!(resource_metrics_text(&[]), "");
    }
}
