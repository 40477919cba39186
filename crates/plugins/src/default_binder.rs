//! DefaultBinder: binds the pod to its node with a request to the pod's `binding` subresource.
//!
//! | | |
//! | --- | --- |
//! | extension points | Bind |
//! | woken by | no event |
//! | upstream | `plugins/defaultbinder`, 1.36 |
//! | deviations | none |
//! | cost | one API request per pod |

use std::sync::Arc;

use loadmaster_api::Str;
use loadmaster_framework::api_calls::{ApiRequest, PluginStep, PluginStepInput, Verb};
use loadmaster_framework::extension_points::BindResult;
use loadmaster_framework::{
    Bind, ExtensionPoints, Failure, PluginDef, PluginError, PodInfo, Rejection, SerialCx,
};
use serde_json::{Value, json};

pub const NAME: &str = "DefaultBinder";

pub const DEF: PluginDef = PluginDef { name: NAME, build, args: None };

struct DefaultBinder;

fn build(points: &mut ExtensionPoints, _args: &Value) -> Result<(), PluginError> {
    points.bind = Some(Arc::new(DefaultBinder));
    Ok(())
}

impl Bind for DefaultBinder {
    fn bind(
        &self,
        _cx: SerialCx<'_>,
        pod: &Arc<PodInfo>,
        node: &str,
        input: PluginStepInput<'_>,
    ) -> PluginStep<BindResult> {
        match input {
            PluginStepInput::Start => PluginStep::Call(binding(pod, node)),
            PluginStepInput::Reply(Ok(_)) => PluginStep::Done(BindResult::Done),
            PluginStepInput::Reply(Err((_, message))) => failed(message.to_owned()),
            // This plugin never waits and calls no extender, and a request in flight cannot be cancelled.
            PluginStepInput::Changed(_)
            | PluginStepInput::ExtendersReplied(_)
            | PluginStepInput::Deadline
            | PluginStepInput::Cancelled => failed("binding was cancelled".to_owned()),
        }
    }
}

fn failed(text: String) -> PluginStep<BindResult> {
    PluginStep::Fail(Rejection::Failed(Failure::new(text)))
}

/// The `v1` Binding of a pod. The UID prevents that a newer pod of the same name is bound.
fn binding(pod: &PodInfo, node: &str) -> ApiRequest {
    let namespace = &pod.template.namespace;
    ApiRequest {
        verb: Verb::Create,
        group: Str::default(),
        version: Str::new("v1"),
        resource: Str::new("pods"),
        namespace: namespace.clone(),
        name: Str::new(&pod.name),
        subresource: Str::new("binding"),
        body: Some(json!({
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": &*pod.name, "namespace": namespace.as_str(), "uid": &*pod.uid},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        })),
    }
}

#[cfg(test)]
mod tests {
    use loadmaster_framework::testkit::PluginTestBench;
    use loadmaster_framework::{CycleState, PluginStates};

    use super::*;

    #[test]
    fn bind_makes_one_request_and_returns_its_result() {
        let mut bench = PluginTestBench::new(&DEF, json!({})).unwrap();
        let pod = bench
            .parse_pod(json!({"metadata": {"name": "web", "namespace": "shop", "uid": "u1"}}))
            .unwrap();
        let pod = Arc::new(pod);
        let (mut cycle, mut states) = (CycleState::default(), PluginStates::default());
        let mut bind = |input: PluginStepInput<'_>| {
            let cx = SerialCx { world: &bench.world, cycle: &mut cycle, states: &mut states };
            DefaultBinder.bind(cx, &pod, "a", input)
        };
        let PluginStep::Call(request) = bind(PluginStepInput::Start) else {
            panic!("no request was made")
        };
        assert_eq!(request.verb, Verb::Create);
        assert_eq!((request.resource.as_str(), request.subresource.as_str()), ("pods", "binding"));
        assert_eq!((request.namespace.as_str(), request.name.as_str()), ("shop", "web"));
        let body = request.body.unwrap();
        assert_eq!(body["metadata"]["uid"], "u1");
        assert_eq!(body["target"]["name"], "a");
        assert!(matches!(
            bind(PluginStepInput::Reply(Ok(&Value::Null))),
            PluginStep::Done(BindResult::Done)
        ));
        let PluginStep::Fail(rejection) = bind(PluginStepInput::Reply(Err((409, "already bound"))))
        else {
            panic!("binding did not fail")
        };
        assert_eq!(rejection.message(), "already bound");
    }
}
