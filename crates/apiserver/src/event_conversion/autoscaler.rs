//! HorizontalPodAutoscalers of `autoscaling/v1`, which are stored as `autoscaling/v2`. As in kube-apiserver, annotations have what v1 has no
//! fields for; here they have it in the form of v2.

use serde_json::{Map, Value, json};

use crate::object::{members_mut, meta_mut};

/// Annotations of v1, and the fields of v2 that they contain.
const ANNOTATIONS: [(&str, &str, &str); 4] = [
    ("autoscaling.alpha.kubernetes.io/metrics", "spec", "metrics"),
    ("autoscaling.alpha.kubernetes.io/behavior", "spec", "behavior"),
    ("autoscaling.alpha.kubernetes.io/current-metrics", "status", "currentMetrics"),
    ("autoscaling.alpha.kubernetes.io/conditions", "status", "conditions"),
];

/// Fields of v1 for the utilization of CPU; where v2 has them: part, list, and field of a metric.
const CPU: [(&str, &str, &str, &str); 2] = [
    ("targetCPUUtilizationPercentage", "spec", "metrics", "target"),
    ("currentCPUUtilizationPercentage", "status", "currentMetrics", "current"),
];

/// Converts from v2.
pub(super) fn to_v1(value: &mut Value) {
    value["apiVersion"] = "autoscaling/v1".into();
    for (field, part, list, inner) in CPU {
        let Some(part) = part_mut(value, part) else { continue };
        let Some(Value::Array(metrics)) = part.get_mut(list) else { continue };
        let utilization = |it: &Value| {
            let is_cpu = it["type"] == "Resource" && it["resource"]["name"] == "cpu";
            it["resource"][inner]["averageUtilization"].as_i64().filter(|_| is_cpu)
        };
        let found = metrics.iter().enumerate().find_map(|(at, it)| Some((at, utilization(it)?)));
        if let Some((at, percent)) = found {
            metrics.remove(at);
            part.insert(field.to_owned(), percent.into());
        }
    }
    for (annotation, part, field) in ANNOTATIONS {
        let rest = part_mut(value, part).and_then(|it| it.remove(field));
        if let Some(rest) = rest.filter(|it| !it.is_null() && *it != json!([])) {
            annotations(value).insert(annotation.to_owned(), rest.to_string().into());
        }
    }
}

/// Converts from v1. An annotation that cannot be read is dropped, as upstream does.
pub(super) fn to_v2(value: &mut Value) {
    value["apiVersion"] = "autoscaling/v2".into();
    for (annotation, part, field) in ANNOTATIONS {
        if value["metadata"]["annotations"][annotation].is_null() {
            continue;
        }
        let text = annotations(value).remove(annotation);
        let rest = text.and_then(|text| serde_json::from_str(text.as_str()?).ok());
        if let (Some(part), Some(rest @ (Value::Array(_) | Value::Object(_)))) =
            (part_mut(value, part), rest)
        {
            part.insert(field.to_owned(), rest);
        }
    }
    if value["metadata"]["annotations"] == json!({}) {
        meta_mut(value).remove("annotations");
    }
    for (field, part, list, inner) in CPU {
        let Some(part) = part_mut(value, part) else { continue };
        let Some(percent) = part.remove(field).filter(|it| !it.is_null()) else { continue };
        let mut utilization = json!({"averageUtilization": percent});
        if inner == "target" {
            utilization["type"] = "Utilization".into();
        }
        let metric = json!({"type": "Resource", "resource": {"name": "cpu", inner: utilization}});
        match part.get_mut(list) {
            Some(Value::Array(metrics)) => metrics.push(metric),
            _ => drop(part.insert(list.to_owned(), json!([metric]))),
        }
    }
}

fn part_mut<'v>(value: &'v mut Value, part: &str) -> Option<&'v mut Map<String, Value>> {
    value.get_mut(part)?.as_object_mut()
}

fn annotations(value: &mut Value) -> &mut Map<String, Value> {
    members_mut(meta_mut(value).entry("annotations").or_insert_with(|| json!({})))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpu(inner: &str, mut utilization: Value) -> Value {
        if inner == "target" {
            utilization["type"] = "Utilization".into();
        }
        json!({"type": "Resource", "resource": {"name": "cpu", inner: utilization}})
    }

    #[test]
    fn an_autoscaler_survives_the_way_through_v1() {
        let memory = json!({"type": "Resource", "resource": {"name": "memory", "target": {"type": "AverageValue", "averageValue": "1Gi"}}});
        let v2 = json!({"apiVersion": "autoscaling/v2", "metadata": {"name": "a", "annotations": {"x": "y"}},
            "spec": {"maxReplicas": 3, "metrics": [memory, cpu("target", json!({"averageUtilization": 70}))],
                "behavior": {"scaleUp": {"selectPolicy": "Max"}}},
            "status": {"currentReplicas": 1, "currentMetrics": [cpu("current", json!({"averageUtilization": 20}))],
                "conditions": [{"type": "AbleToScale", "status": "True"}]}});
        let mut value = v2.clone();
        to_v1(&mut value);
        assert_eq!(value["spec"], json!({"maxReplicas": 3, "targetCPUUtilizationPercentage": 70}));
        assert_eq!(
            value["status"],
            json!({"currentReplicas": 1, "currentCPUUtilizationPercentage": 20})
        );
        let annotation =
            &value["metadata"]["annotations"]["autoscaling.alpha.kubernetes.io/metrics"];
        assert_eq!(annotation.as_str(), Some(&*json!([memory]).to_string()));
        to_v2(&mut value);
        assert_eq!(value, v2);
    }

    #[test]
    fn annotations_that_cannot_be_read_are_dropped() {
        let (metrics, behavior) = (ANNOTATIONS[0].0, ANNOTATIONS[1].0);
        let mut value = json!({"metadata": {"annotations": {metrics: "?", behavior: "1"}},
            "spec": {"maxReplicas": 1}});
        to_v2(&mut value);
        let want =
            json!({"apiVersion": "autoscaling/v2", "metadata": {}, "spec": {"maxReplicas": 1}});
        assert_eq!(value, want);
    }
}
