//! A list that is read in chunks has the same result as one that is read as a whole.

use super::*;

/// The result of reading a text, with the origin of every object.
fn read_result(text: &str, chunk_bytes: usize) -> String {
    match Snapshot::read_cut(&[Document::new("f", text)], chunk_bytes) {
        Ok(snapshot) => format!("{} {:?}", describe(&snapshot), snapshot.pods),
        Err(error) => error.to_string(),
    }
}

/// The texts of a list of pods, in the ways that programs write them.
fn lists() -> [String; 6] {
    let pod = |nth: usize| {
        let spec = r#"{"nodeSelector":{"b":"},{"},"tolerations":[{"key":"x"},{"key":"y"}]}"#;
        format!(
            r#"{{"apiVersion":"v1","kind":"Pod","metadata":{{"name":"p{nth}"}},"spec":{spec}}}"#
        )
    };
    let skipped =
        r#"{"apiVersion":"v1","kind":"Secret","metadata":{"name":"p0"},"data":{"a":"\"},{\"ä"}}"#;
    let mut all: Vec<String> = (0..9).map(pod).collect();
    all.insert(4, skipped.to_owned());
    let compact = format!(r#"{{"apiVersion":"v1","items":[{}],"kind":"List"}}"#, all.join(","));
    let value: Value = serde_json::from_str(&compact).unwrap();
    let pretty = serde_json::to_string_pretty(&value).unwrap();
    let bare: Vec<String> =
        (0..9).map(|nth| format!(r#"{{"metadata":{{"name":"b{nth}"}}}}"#)).collect();
    let bare = bare.join(", ");
    [
        format!(
            "{pretty}\n{{\"apiVersion\":\"v1\",\"kind\":\"Node\",\"metadata\":{{\"name\":\"n\"}}}}"
        ),
        compact,
        pretty,
        format!(r#"{{"kind":"PodList","apiVersion":"v1","metadata":{{}},"items":[{bare}]}}"#),
        format!(r#"{{"apiVersion":"v1","items":[{bare}],"kind":"PodList"}}"#),
        format!(r#"{{"apiVersion":"v1","kind":"Pod","metadata":{{"name":"p"}},"items":[{bare}]}}"#),
    ]
}

#[test]
fn long_lists_are_split() {
    let mut cut = Vec::new();
    for text in lists() {
        let mut loader = Loader::new();
        cut.push(split::read(&mut loader, 0, &Document::new("f", text.as_str()), 100));
        for chunk_bytes in [1, 100, 300] {
            assert_eq!(read_result(&text, chunk_bytes), read_result(&text, usize::MAX));
        }
    }
    assert_eq!(cut, [true, true, true, true, false, false]);
}

/// A valid text with a piece cut out, doubled or replaced.
fn mutated() -> impl Strategy<Value = String> {
    let yaml = "apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: Node\n  metadata: {name: a, labels: {a.b/c: d}}\n  status:\n    capacity: {cpu: 4, memory: 8Gi}\n- apiVersion: v1\n  kind: Pod\n  metadata:\n    name: b\n  spec:\n    nodeName: a\n    containers:\n    - resources: &r\n        requests: {cpu: 100m}\n    - resources: *r\n---\nkind: Secret\napiVersion: v1\n";
    let texts = [KUBECTL.to_owned(), yaml.to_owned()];
    let pieces = vec![
        "",
        "{",
        "}",
        "[",
        "]",
        "\"",
        ",",
        ":",
        "null",
        "5",
        "\n",
        "---\n",
        "\u{feff}",
        "ä",
        "\"items\":",
        "&a ",
        "*r",
        "\\",
    ];
    (
        prop::sample::select(texts.to_vec()),
        any::<prop::sample::Index>(),
        0..40usize,
        prop::sample::select(pieces),
    )
        .prop_map(|(text, at, len, piece)| {
            let bytes = text.as_bytes();
            let start = at.index(bytes.len());
            let end = (start + len).min(bytes.len());
            let mutated = [&bytes[..start], piece.as_bytes(), &bytes[end..]].concat();
            String::from_utf8_lossy(&mutated).into_owned()
        })
}

proptest! {
    #[test]
    fn no_text_panics(text in prop_oneof![4 => mutated(), 1 => any::<String>()]) {
        if let Err(error) = read(&[&text]) {
            let located = error.located_error().unwrap();
            prop_assert!(located.line >= 1 && located.column >= 1 && !located.text.is_empty());
        }
    }

    #[test]
    fn split_lists_read_as_whole_ones(
        text in prop::sample::select(lists().to_vec()),
        at in any::<prop::sample::Index>(),
        len in 0..12usize,
        piece in prop::sample::select(vec!["", "", "{", "}", "[", "]", "\"", ",", "},{", "null", "\n", "ä", "\\", "x"]),
        chunk_bytes in 1..400usize,
    ) {
        let start = at.index(text.len());
        let end = (start + len).min(text.len());
        let mutated = [&text.as_bytes()[..start], piece.as_bytes(), &text.as_bytes()[end..]].concat();
        let mutated = String::from_utf8_lossy(&mutated);
        prop_assert_eq!(read_result(&mutated, chunk_bytes), read_result(&mutated, usize::MAX));
    }

    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
        if let Ok(document) = Document::from_reader("f", &bytes[..], None) {
            let _ = Snapshot::read(&[document]);
        }
    }
}
