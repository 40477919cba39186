//! DefaultBinder: writes the pod's node into the API server through the pod's `binding` subresource.
//!
//! | | |
//! | --- | --- |
//! | extension points | Bind |
//! | woken by | nothing |
//! | upstream | `plugins/defaultbinder`, 1.36 |
//! | deviations | none |
//! | cost | one API call a pod |

use std::sync::Arc;

use loadmaster_api::Str;
use loadmaster_framework::points::Bound;
use loadmaster_framework::request::{ApiRequest, Input, Step, Verb};
use loadmaster_framework::{
    Bind, Failure, PluginDef, PluginError, PodInfo, Points, Rejection, SerialCx,
};
use serde_json::{Value, json};

pub const NAME: &str = "DefaultBinder";

pub const DEF: PluginDef = PluginDef { name: NAME, build, args: None };

struct DefaultBinder;

fn build(points: &mut Points, _args: &Value) -> Result<(), PluginError> {
    points.bind = Some(Arc::new(DefaultBinder));
    Ok(())
}

impl Bind for DefaultBinder {
    fn bind(
        &self,
        _cx: SerialCx<'_>,
        pod: &Arc<PodInfo>,
        node: &str,
        input: Input<'_>,
    ) -> Step<Bound> {
        match input {
            Input::Start => Step::Call(binding(pod, node)),
            Input::Reply(Ok(_)) => Step::Done(Bound::Done),
            Input::Reply(Err((_, message))) => failed(message.to_owned()),
            // It never waits nor asks extenders, and a call that is under way cannot be taken back.
            Input::Changed(_) | Input::Extended(_) | Input::Deadline | Input::Cancelled => {
                failed("binding was given up".to_owned())
            }
        }
    }
}

fn failed(text: String) -> Step<Bound> {
    Step::Fail(Rejection::Failed(Failure::new(text)))
}

/// The `v1` Binding of a pod. The UID keeps a pod of the same name that came later from being bound.
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
    use loadmaster_framework::testkit::Bench;
    use loadmaster_framework::{CycleState, PluginStates};

    use super::*;

    #[test]
    fn one_call_and_its_answer() {
        let mut bench = Bench::new(&DEF, json!({})).unwrap();
        let pod = bench
            .pod(json!({"metadata": {"name": "web", "namespace": "shop", "uid": "u1"}}))
            .unwrap();
        let pod = Arc::new(pod);
        let (mut cycle, mut states) = (CycleState::default(), PluginStates::default());
        let mut bind = |input: Input<'_>| {
            let cx = SerialCx { world: &bench.world, cycle: &mut cycle, states: &mut states };
            DefaultBinder.bind(cx, &pod, "a", input)
        };
        let Step::Call(request) = bind(Input::Start) else { panic!("a call is made") };
        assert_eq!(request.verb, Verb::Create);
        assert_eq!((request.resource.as_str(), request.subresource.as_str()), ("pods", "binding"));
        assert_eq!((request.namespace.as_str(), request.name.as_str()), ("shop", "web"));
        let body = request.body.unwrap();
        assert_eq!(body["metadata"]["uid"], "u1");
        assert_eq!(body["target"]["name"], "a");
        assert!(matches!(bind(Input::Reply(Ok(&Value::Null))), Step::Done(Bound::Done)));
        let Step::Fail(rejection) = bind(Input::Reply(Err((409, "already bound")))) else {
            panic!("it fails")
        };
        assert_eq!(rejection.message(), "already bound");
    }
}
