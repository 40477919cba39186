//! The trace of a run: a hash, so that two runs can be compared, and readable lines.

use std::fmt::{self, Debug, Write};

use loadmaster_engine::engine::{ApiObject, ApiServerCall, Effect, EngineEvent, Observation};

/// Receives the lines of a run.
pub type TraceLog<'a> = Option<&'a mut dyn FnMut(&str)>;

pub(super) struct Trace<'a> {
    hash: Fnv,
    log: TraceLog<'a>,
}

/// FNV-1a, which is the same on every platform.
struct Fnv(u64);

impl Write for Fnv {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        Ok(())
    }
}

impl<'a> Trace<'a> {
    pub fn new(log: TraceLog<'a>) -> Trace<'a> {
        Trace { hash: Fnv(0xcbf2_9ce4_8422_2325), log }
    }

    pub fn value(&self) -> u64 {
        self.hash.0
    }

    pub fn event(&mut self, at_ms: u64, event: &EngineEvent) {
        self.add(&(at_ms, event));
        if let Some(log) = &mut self.log {
            log(&format!("{at_ms:>8} < {}", event_line(event)));
        }
    }

    pub fn effect(&mut self, at_ms: u64, effect: &Effect) {
        self.add(effect);
        if let Some(log) = &mut self.log
            && let Some(line) = effect_line(effect)
        {
            log(&format!("{at_ms:>8} > {line}"));
        }
    }

    /// A line that is neither an event nor an effect.
    pub fn note(&mut self, at_ms: u64, what: fmt::Arguments<'_>) {
        self.add(&what);
        if let Some(log) = &mut self.log {
            log(&format!("{at_ms:>8} = {what}"));
        }
    }

    fn add(&mut self, what: &dyn Debug) {
        // Writing into a hash cannot fail.
        let _ = write!(self.hash, "{what:?}");
    }
}

fn event_line(event: &EngineEvent) -> String {
    match event {
        EngineEvent::Upsert(ApiObject::Pod(pod)) => {
            let mut line = format!("pod {} {}", pod.full_name(), pod.metadata.uid);
            let fields = [
                ("on", pod.spec.node_name.as_str()),
                ("nominated", pod.status.nominated_node_name.as_str()),
                ("phase", pod.status.phase.as_str()),
            ];
            for (word, value) in fields.into_iter().filter(|(_, value)| !value.is_empty()) {
                let _ = write!(line, ", {word} {value}");
            }
            if pod.metadata.deletion_timestamp.is_some() {
                line.push_str(", terminating");
            }
            line
        }
        EngineEvent::Upsert(ApiObject::Node(node)) => format!("node {}", node.name()),
        EngineEvent::Upsert(other) => format!("{other:?}"),
        other => format!("{other:?}"),
    }
}

fn effect_line(effect: &Effect) -> Option<String> {
    match effect {
        Effect::Call(call) => Some(call_line(call)),
        Effect::CallExtender(call) => Some(format!("call extender: {:?}", call.request)),
        Effect::RecordEvent(record) => {
            Some(format!("{} {}: {}", record.reason, record.regarding.name, record.note))
        }
        Effect::Observe(Observation::InternalError { message: what }) => {
            Some(format!("trouble: {what}"))
        }
        Effect::Observe(_) => None,
    }
}

/// An API call as one line.
pub(super) fn call_line(call: &ApiServerCall) -> String {
    let request = &call.request;
    let body = request.body.as_ref();
    let target = body.and_then(|body| body.pointer("/target/name").or_else(|| body.get("status")));
    let target = target.map_or(String::new(), |target| format!(" {target}"));
    let subresource = &request.subresource;
    format!("call {} {:?} {}/{subresource}{target}", call.id.0, request.verb, request.name)
}
