//! A test plugin that holds pods at Permit, and whose PreBind makes an API request and waits for its result.
//!
//! Permit allows a pod, makes it wait, or rejects it, by the seed of the run; while it runs for one pod, it also allows or rejects pods
//! that wait. PreBind of pods with `app: db` creates an Attachment and waits until a controller has made it ready.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use loadmaster_api::Str;
use loadmaster_framework::api_calls::{ApiRequest, ObjectRef, PluginStep, PluginStepInput, Verb};
use loadmaster_framework::extension_points::PreBindPreFlight;
use loadmaster_framework::{
    ActionType, ClusterEvent, Cx, EventResource, ExtensionPoints, Gvr, NodeInfo, ObjectSlot,
    Permit, PermitResult, PluginDef, PluginError, PodInfo, PreBind, Rejection, SerialCx,
    WatchRequirement,
};
use loadmaster_stdx::Rng;
use serde::Deserialize;
use serde_json::{Value, json};

use super::plugin_calls::{self, PluginCall};
use crate::fake_api_server::WatchedKind;

pub(super) const NAME: &str = "Holding";
pub(super) const HOLDING: PluginDef = PluginDef { name: NAME, build, args: None };

/// Pods with this value of the label `app` need an attachment.
const APP_WITH_ATTACHMENT: &str = "db";

/// How long PreBind waits for a change of its attachment.
const ATTACHMENT_TIMEOUT: Duration = Duration::from_secs(20);

thread_local! {
    /// Decides at Permit on this thread; without it every pod is allowed.
    static HOLD_RNG: RefCell<Option<Rng>> = const { RefCell::new(None) };
}

/// From now on Permit decides by this random stream, or allows every pod.
pub(super) fn set_hold_rng(rng: Option<Rng>) {
    HOLD_RNG.set(rng);
}

#[derive(Deserialize)]
struct Attachment {
    #[serde(default)]
    ready: bool,
}

struct HoldingPlugin {
    attachments: ObjectSlot<Attachment>,
}

fn build(points: &mut ExtensionPoints, _: &Value) -> Result<(), PluginError> {
    let (group, resource) = WatchedKind::Attachment.group_resource();
    let kind = Gvr::new(group, "v1", resource);
    let plugin =
        Arc::new(HoldingPlugin { attachments: points.watch(kind, WatchRequirement::Optional) });
    points.permit = Some(plugin.clone());
    points.pre_bind = Some(plugin);
    // Pods that Permit rejected.
    let added = ClusterEvent::new(EventResource::AssignedPod, ActionType::ADD);
    points.register_event(added, None);
    Ok(())
}

impl Permit for HoldingPlugin {
    fn permit(
        &self,
        mut cx: SerialCx<'_>,
        pod: &Arc<PodInfo>,
        _: NodeInfo<'_>,
    ) -> Result<PermitResult, Rejection> {
        let waiting = cx.waiting_pods().iter().map(|waiting| waiting.pod.uid.clone());
        let waiting: Vec<Box<str>> = waiting.collect();
        HOLD_RNG.with_borrow_mut(|rng| {
            let Some(rng) = rng else { return Ok(PermitResult::Allow) };
            for uid in waiting {
                match rng.below(6) {
                    0 | 1 => {
                        cx.allow_waiting_pod(NAME, &uid);
                        plugin_calls::record(PluginCall::Allowed { uid });
                    }
                    2 => {
                        cx.reject_waiting_pod(NAME, &uid, format!("rejected by {}", pod.name));
                    }
                    _ => {}
                }
            }
            match rng.below(6) {
                0..=2 => Ok(PermitResult::Allow),
                3 | 4 => {
                    let timeout = Duration::from_secs(*rng.pick(&[1, 5, 30, 90]));
                    plugin_calls::record(PluginCall::Held { uid: pod.uid.clone(), timeout });
                    Ok(PermitResult::Wait(timeout))
                }
                _ => Err(Rejection::unschedulable("rejected at Permit")),
            }
        })
    }
}

/// The name of a pod's attachment.
pub(super) fn attachment_name(pod_uid: &str) -> Str {
    Str::new(&format!("of-{pod_uid}"))
}

impl HoldingPlugin {
    /// Creates the attachment. It may exist, if an earlier response was lost.
    fn create(&self, pod: &PodInfo) -> PluginStep<()> {
        let kind = self.attachments.kind();
        let name = attachment_name(&pod.uid);
        PluginStep::Call(ApiRequest {
            verb: Verb::Create,
            group: kind.group.clone(),
            version: kind.version.clone(),
            resource: kind.resource.clone(),
            namespace: Str::default(),
            name: name.clone(),
            subresource: Str::default(),
            body: Some(json!({"metadata": {"name": name.as_str()}, "ready": false})),
        })
    }

    /// Waits until the attachment is ready, which it may be already.
    fn wait(&self, cx: &SerialCx<'_>, pod: &PodInfo) -> PluginStep<()> {
        let name = attachment_name(&pod.uid);
        if cx.objects(&self.attachments).get("", &name).is_some_and(|it| it.ready) {
            return PluginStep::Done(());
        }
        let kind = self.attachments.kind();
        let object = ObjectRef {
            group: kind.group.clone(),
            resource: kind.resource.clone(),
            namespace: Str::default(),
            name: name.clone(),
        };
        plugin_calls::record(PluginCall::Waits {
            uid: pod.uid.clone(),
            attachment: name,
            timeout: ATTACHMENT_TIMEOUT,
        });
        PluginStep::Wait { on: vec![object], until: cx.now().mono.after(ATTACHMENT_TIMEOUT) }
    }
}

impl PreBind for HoldingPlugin {
    fn pre_flight(&self, _: Cx<'_>, pod: &PodInfo, _: &str) -> Result<PreBindPreFlight, Rejection> {
        let app = pod.template.labels.get("app");
        Ok(match app.is_some_and(|app| *app == APP_WITH_ATTACHMENT) {
            true => PreBindPreFlight::Work { parallel: false },
            false => PreBindPreFlight::Skip,
        })
    }

    fn pre_bind(
        &self,
        cx: SerialCx<'_>,
        pod: &Arc<PodInfo>,
        _: &str,
        input: PluginStepInput<'_>,
    ) -> PluginStep<()> {
        let failed = |message: String| PluginStep::Fail(Rejection::unschedulable(message));
        if !matches!(input, PluginStepInput::Start | PluginStepInput::Reply(_)) {
            plugin_calls::record(PluginCall::Resumed { uid: pod.uid.clone() });
        }
        match input {
            PluginStepInput::Start => self.create(pod),
            PluginStepInput::Reply(Ok(_) | Err((409, _))) => self.wait(&cx, pod),
            PluginStepInput::Reply(Err((_, message))) => failed(message.to_owned()),
            PluginStepInput::Changed(Some(_)) => self.wait(&cx, pod),
            PluginStepInput::Changed(None) => failed("the attachment was deleted".to_owned()),
            PluginStepInput::Deadline => failed("the attachment is not ready".to_owned()),
            PluginStepInput::Cancelled => PluginStep::Done(()),
            PluginStepInput::ExtendersReplied(_) => failed("PreBind called no extender".to_owned()),
        }
    }
}
