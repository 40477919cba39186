//! Decoding arbitrary bytes never panics, neither as a request nor as a response; what is decoded is encoded so that it decodes to
//! the same again. The fuzz target `extender_messages` runs [`check`], too.

use std::collections::BTreeMap;
use std::sync::Arc;

use loadmaster_api::Str;
use loadmaster_config::v1;
use loadmaster_extender::chain::NodeLookup;
use loadmaster_extender::messages::{
    ExtenderArgs, ExtenderBindingArgs, ExtenderFilterResult, ExtenderPreemptionArgs, MetaPod,
    MetaVictims, NamedObject, decode_message,
};
use loadmaster_extender::{
    Extender, ExtenderOperation, ExtenderResponse, ExtenderScores, Extenders, FilterChain,
    NodeNames, PreemptChain, RemainingNodes,
};
use loadmaster_extender_server::Object;
use serde::Serialize;
use serde::de::DeserializeOwned;

const NODES: [&str; 3] = ["n1", "n2", "n3"];

/// Decodes the bytes as each message, and handles the decoded messages.
pub fn check(bytes: &[u8]) {
    check_request::<ExtenderArgs<Object, Object>>(bytes);
    check_request::<ExtenderPreemptionArgs<Object>>(bytes);
    check_request::<ExtenderBindingArgs>(bytes);
    let configs =
        [v1::Extender::default(), v1::Extender { ignorable: true, ..by_name() }, by_name()];
    let nodes = || Arc::new(NODES.iter().map(|name| Str::new(name)).collect::<NodeNames>());
    let operations = [
        ExtenderOperation::Filter(nodes()),
        ExtenderOperation::Prioritize(nodes()),
        ExtenderOperation::Preempt(victims()),
        ExtenderOperation::Bind("n1".into()),
    ];
    for operation in &operations {
        for extender in Extenders::new(&configs).iter() {
            let by_name = extender.node_cache_capable;
            let Ok(response) = ExtenderResponse::decode(operation, by_name, bytes) else {
                continue;
            };
            handle_response(extender, &nodes(), response, bytes);
        }
    }
}

fn victims() -> BTreeMap<String, MetaVictims> {
    let victims = MetaVictims { pods: vec![MetaPod { uid: "u".into() }], ..Default::default() };
    [("n1".to_owned(), victims)].into()
}

fn by_name() -> v1::Extender {
    v1::Extender { node_cache_capable: true, weight: i64::MAX, ..v1::Extender::default() }
}

/// Decodes a request as a server does.
fn check_request<T: Default + Serialize + DeserializeOwned>(bytes: &[u8]) {
    let Ok(request) = decode_message::<T>(bytes) else { return };
    let text = serde_json::to_vec(&request).unwrap_or_default();
    let again = decode_message::<T>(&text).ok().and_then(|again| serde_json::to_vec(&again).ok());
    assert_eq!(again.as_deref(), Some(&*text), "{}", String::from_utf8_lossy(bytes));
}

/// Handles a response as a scheduler does. A response decoded in the order of the request means the same as one decoded name by
/// name.
fn handle_response(
    extender: &Extender,
    nodes: &Arc<NodeNames>,
    response: ExtenderResponse,
    bytes: &[u8],
) {
    match response {
        ExtenderResponse::Filter(response) => drop(filter(extender, nodes, (None, response))),
        ExtenderResponse::FilterInOrder(remaining, response) => {
            let by_name = (None, decode_message(bytes).expect("it was decoded before"));
            assert_eq!(
                filter(extender, nodes, (Some(remaining), response)),
                filter(extender, nodes, by_name)
            );
        }
        ExtenderResponse::Prioritize(response) => {
            let mut scores = ExtenderScores::new(nodes.clone());
            scores.add(extender, &response);
            let is_named = |name: &str| response.iter().any(|it| it.host == name);
            let named: Vec<bool> = scores.iter().map(|(_, is_named)| is_named).collect();
            assert_eq!(named, NODES.map(is_named));
        }
        ExtenderResponse::PrioritizeInOrder(response) => {
            let (mut in_order, mut by_name) =
                (ExtenderScores::new(nodes.clone()), ExtenderScores::new(nodes.clone()));
            in_order.add_in_order(extender, &response);
            by_name.add(extender, &decode_message(bytes).expect("it was decoded before"));
            assert!(in_order.iter().eq(by_name.iter()));
        }
        ExtenderResponse::Preempt(response) => {
            let mut chain = PreemptChain::new(victims(), vec![0]);
            let handled = chain.handle_response(extender, Ok(response), &OneNode);
            assert!(handled.is_ok() || !extender.ignorable);
            assert!(chain.victims().iter().all(|(node, it)| node == "n1" && !it.pods.is_empty()));
        }
        ExtenderResponse::Bind(_) => {}
    }
}

/// The indices of the remaining nodes, or the error that fails the attempt.
fn filter(
    extender: &Extender,
    nodes: &Arc<NodeNames>,
    response: (Option<RemainingNodes>, ExtenderFilterResult<NamedObject>),
) -> Result<Vec<usize>, String> {
    let mut chain = FilterChain::new(nodes.clone(), vec![0]);
    let handled = chain.handle_response(extender, Ok(response));
    assert!(handled.is_ok() || !extender.ignorable);
    handled.map_err(|error| error.to_string())?;
    let remaining = match chain.finish().0 {
        RemainingNodes::All => (0..NODES.len()).collect(),
        RemainingNodes::Indices(indices) => indices,
    };
    assert!(remaining.is_sorted() && remaining.iter().all(|at| *at < NODES.len()), "{remaining:?}");
    Ok(remaining)
}

/// Node n1 with pod u.
struct OneNode;

impl NodeLookup for OneNode {
    fn has_pod(&self, node: &str, uid: &str) -> Option<bool> {
        (node == "n1").then_some(uid == "u")
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::{Index, select};

    use super::check;

    const MESSAGES: [&str; 8] = [
        r#"{"Pod":{"metadata":{"name":"p","uid":"u"}},"Nodes":{"metadata":{},"items":[{"metadata":{"name":"n1"}}]},"NodeNames":null}"#,
        r#"{"Pod":null,"Nodes":null,"NodeNames":["n1","n2"]}"#,
        r#"{"Nodes":null,"nodenames":["n2","n1"],"FailedNodes":{"n3":"no"},"FailedAndUnresolvableNodes":null,"Error":""}"#,
        r#"[{"Host":"n1","Score":10},{"host":"n3","Score":-9223372036854775808}]"#,
        r#"{"NodeNameToVictims":{"n1":{"Pods":[{"metadata":{}}],"NumPDBViolations":1}},"NodeNameToMetaVictims":null}"#,
        r#"{"NodeNameToMetaVictims":{"n1":{"Pods":[{"UID":"u"}],"NumPDBViolations":0}}}"#,
        r#"{"PodName":"p","PodNamespace":"d","PodUID":"u","Node":"n1"}"#,
        r#"{"Error":"it is \u0000 bro\u212aen"} {"#,
    ];

    /// Texts that change the meaning of a message.
    const PIECES: [&str; 16] = [
        "null", "{}", "[]", "[", "}", ",", ":", "\"", "1e400", "-0", "\"n1\"", "\\ud800",
        "\u{212a}", "ſ", "\u{feff}", "\0",
    ];

    #[derive(Clone, Debug)]
    struct Edit {
        at: Index,
        n_cut: usize,
        piece: Vec<u8>,
    }

    fn edit() -> impl Strategy<Value = Edit> {
        let piece = prop_oneof![
            select(&PIECES).prop_map(|piece| piece.as_bytes().to_vec()),
            select(&MESSAGES).prop_map(|piece| piece.as_bytes().to_vec()),
            vec(any::<u8>(), 0..4),
        ];
        (any::<Index>(), 0_usize..12, piece).prop_map(|(at, n_cut, piece)| Edit {
            at,
            n_cut,
            piece,
        })
    }

    proptest! {
        #[test]
        fn arbitrary_bytes(bytes in vec(any::<u8>(), 0..200)) {
            check(&bytes);
        }

        #[test]
        fn damaged_messages(message in select(&MESSAGES), edits in vec(edit(), 0..6)) {
            let mut bytes = message.as_bytes().to_vec();
            for Edit { at, n_cut, piece } in edits {
                let at = at.index(bytes.len() + 1);
                let end = (at + n_cut).min(bytes.len());
                bytes.splice(at..end, piece);
            }
            check(&bytes);
        }
    }

    #[test]
    fn valid_messages() {
        MESSAGES.iter().for_each(|message| check(message.as_bytes()));
    }
}
