//! No bytes panic the readers of messages, on either side; what they take they write so that it reads the same again. The fuzz target
//! `extender` runs [`check`], too.

use std::collections::BTreeMap;
use std::sync::Arc;

use loadmaster_api::Str;
use loadmaster_config::v1;
use loadmaster_extender::chain::Nodes;
use loadmaster_extender::messages::{
    ExtenderArgs, ExtenderBindingArgs, ExtenderFilterResult, ExtenderPreemptionArgs, MetaPod,
    MetaVictims, Named, read,
};
use loadmaster_extender::{
    Answer, Extender, Extenders, Filtering, Left, NodeNames, Preempting, Question, Scores,
};
use loadmaster_extender_server::Object;
use serde::Serialize;
use serde::de::DeserializeOwned;

const ASKED: [&str; 3] = ["n1", "n2", "n3"];

/// Reads them as each message there is, and goes on with what comes out.
pub fn check(bytes: &[u8]) {
    check_question::<ExtenderArgs<Object, Object>>(bytes);
    check_question::<ExtenderPreemptionArgs<Object>>(bytes);
    check_question::<ExtenderBindingArgs>(bytes);
    let configs =
        [v1::Extender::default(), v1::Extender { ignorable: true, ..by_name() }, by_name()];
    let nodes = || Arc::new(ASKED.iter().map(|name| Str::new(name)).collect::<NodeNames>());
    let questions = [
        Question::Filter(nodes()),
        Question::Prioritize(nodes()),
        Question::Preempt(victims()),
        Question::Bind("n1".into()),
    ];
    for question in &questions {
        for extender in Extenders::new(&configs).iter() {
            let by_name = extender.node_cache_capable;
            let Ok(answer) = Answer::read(question, by_name, bytes) else { continue };
            take(extender, &nodes(), answer, bytes);
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

/// What a server does with a body.
fn check_question<T: Default + Serialize + DeserializeOwned>(bytes: &[u8]) {
    let Ok(question) = read::<T>(bytes) else { return };
    let text = serde_json::to_vec(&question).unwrap_or_default();
    let again = read::<T>(&text).ok().and_then(|again| serde_json::to_vec(&again).ok());
    assert_eq!(again.as_deref(), Some(&*text), "{}", String::from_utf8_lossy(bytes));
}

/// What a scheduler does with an answer. What is read in the order of the question means what it means name by name.
fn take(extender: &Extender, nodes: &Arc<NodeNames>, answer: Answer, bytes: &[u8]) {
    match answer {
        Answer::Filter(answer) => drop(filter(extender, nodes, (None, answer))),
        Answer::Left(left, answer) => {
            let slowly = (None, read(bytes).expect("it was read already"));
            assert_eq!(
                filter(extender, nodes, (Some(left), answer)),
                filter(extender, nodes, slowly)
            );
        }
        Answer::Prioritize(answer) => {
            let mut scores = Scores::new(nodes.clone());
            scores.add(extender, &answer);
            let is_named = |name: &str| answer.iter().any(|it| it.host == name);
            let named: Vec<bool> = scores.by_place().map(|(_, is_named)| is_named).collect();
            assert_eq!(named, ASKED.map(is_named));
        }
        Answer::Scores(answer) => {
            let (mut fast, mut slow) = (Scores::new(nodes.clone()), Scores::new(nodes.clone()));
            fast.add_in_order(extender, &answer);
            slow.add(extender, &read(bytes).expect("it was read already"));
            assert!(fast.by_place().eq(slow.by_place()));
        }
        Answer::Preempt(answer) => {
            let mut preempting = Preempting::new(victims(), vec![0]);
            let taken = preempting.answered(extender, Ok(answer), &OneNode);
            assert!(taken.is_ok() || !extender.ignorable);
            assert!(
                preempting.victims().iter().all(|(node, it)| node == "n1" && !it.pods.is_empty())
            );
        }
        Answer::Bind(_) => {}
    }
}

/// Which nodes are left, by place, or why the attempt fails.
fn filter(
    extender: &Extender,
    nodes: &Arc<NodeNames>,
    answer: (Option<Left>, ExtenderFilterResult<Named>),
) -> Result<Vec<usize>, String> {
    let mut filtering = Filtering::new(nodes.clone(), vec![0]);
    let taken = filtering.answered(extender, Ok(answer));
    assert!(taken.is_ok() || !extender.ignorable);
    taken.map_err(|error| error.to_string())?;
    let left = match filtering.finish().0 {
        Left::All => (0..ASKED.len()).collect(),
        Left::At(places) => places,
    };
    assert!(left.is_sorted() && left.iter().all(|at| *at < ASKED.len()), "{left:?}");
    Ok(left)
}

/// n1 with pod u.
struct OneNode;

impl Nodes for OneNode {
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

    /// Pieces that change what a message means.
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
        fn any_bytes(bytes in vec(any::<u8>(), 0..200)) {
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
    fn messages_as_they_are() {
        MESSAGES.iter().for_each(|message| check(message.as_bytes()));
    }
}
