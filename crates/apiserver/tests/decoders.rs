//! No bytes from outside bring the server down: random ones, and valid ones that were changed at random. The same functions
//! are the fuzz targets of `fuzz/`.

#[path = "decoders/mod.rs"]
mod decoders;

use loadmaster_stdx::Rng;

/// Mutations of each seed in the normal tests; fuzzing continues from there.
const N_CHANGES: usize = 400;

/// Bytes that mean something to one of the decoders.
const WORDS: &[&str] = &[
    "\"",
    "{",
    "}",
    "[",
    "]",
    ":",
    ",",
    "null",
    "-1",
    "1e999",
    "\\u0000",
    "\\ud800",
    "metadata",
    "$patch",
    "$setElementOrder/",
    "/",
    "~1",
    "..",
    "(",
    ")",
    " in ",
    "!=",
    "\u{7f}\u{ff}",
    "9223372036854775808",
];

/// One of a few changes: a byte, a cut, a copy of a part, a word.
fn change(bytes: &mut Vec<u8>, rng: &mut Rng) {
    let at = rng.below(bytes.len() as u64 + 1) as usize;
    match rng.below(5) {
        0 if at < bytes.len() => bytes[at] = rng.next_u64() as u8,
        1 => bytes.truncate(at),
        2 => {
            let part: Vec<u8> = bytes[at..].iter().copied().take(20).collect();
            let to = rng.below(bytes.len() as u64 + 1) as usize;
            bytes.splice(to..to, part);
        }
        3 => {
            let end = (at + 1 + rng.below(8) as usize).min(bytes.len());
            bytes.drain(at..end.max(at));
        }
        _ => {
            let word = rng.pick(WORDS).bytes();
            bytes.splice(at..at, word);
        }
    }
}

/// Tries valid inputs behind every first byte there is a choice for, changed again and again, and random bytes.
fn run(name: &str, decode: fn(&[u8]), valid: &[&[u8]]) {
    let rng = Rng::new(7).split(name);
    for (nth, input) in valid.iter().enumerate() {
        let mut rng = rng.split(&nth.to_string());
        for first in 0..10 {
            let whole = [&[first], *input].concat();
            decode(&whole);
            for _ in 0..N_CHANGES / 10 {
                let mut bytes = whole.clone();
                for _ in 0..=rng.below(4) {
                    change(&mut bytes, &mut rng);
                }
                decode(&bytes);
            }
        }
    }
    let mut rng = rng.split("random");
    for _ in 0..N_CHANGES {
        let bytes: Vec<u8> = (0..rng.below(60)).map(|_| rng.next_u64() as u8).collect();
        decode(&bytes);
    }
}

const POD: &[u8] = br#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"p","labels":{"a":"b"}},"spec":{"nodeSelector":{"x":"y"},"containers":[{"name":"c","image":"i","ports":[{"containerPort":80}],"resources":{"requests":{"cpu":"500m","memory":"1Gi"}}}],"tolerations":[{"key":"k","operator":"Exists"}]}}"#;

#[test]
fn objects_in_json_and_yaml() {
    run(
        "json",
        decoders::json_body,
        &[POD, b"metadata: {name: a}\ndata:\n  k: |\n    text\n", b"{}"],
    );
}

#[test]
fn objects_in_protobuf() {
    // Messages within messages, as a pod's: metadata with a name and labels, spec with a container.
    let pod = b"\x0a\x0d\x0a\x01p\x5a\x08\x0a\x01a\x12\x03b b\x12\x0a\x12\x08\x0a\x01c\x12\x03i:1";
    run("protobuf", decoders::protobuf, &[pod, POD]);
}

#[test]
fn patches() {
    run(
        "patch",
        decoders::patch,
        &[
            b"\x00[{\"op\":\"add\",\"path\":\"/metadata/labels\",\"value\":{\"a\":\"b\"}},{\"op\":\"test\",\"path\":\"/spec/x~1y/0\",\"value\":1}]",
            b"\x01{\"metadata\":{\"labels\":{\"a\":null,\"b\":\"c\"}},\"spec\":{\"containers\":[{\"name\":\"c\"}]}}",
            b"\x02{\"spec\":{\"template\":{\"spec\":{\"containers\":[{\"name\":\"c\",\"$patch\":\"delete\"},{\"$patch\":\"replace\"}],\"$setElementOrder/containers\":[{\"name\":\"c\"}]}}}}",
            b"\x03{\"metadata\":{\"$deleteFromPrimitiveList/finalizers\":[\"x\"],\"$retainKeys\":[\"a\"]}}",
        ],
    );
}

#[test]
fn selectors() {
    run(
        "selectors",
        decoders::selectors,
        &[
            b"a=b,c!=d,e in (f,g),!h,i notin (j)",
            b"metadata.name=a,spec.nodeName!=b,status.phase==c",
            b"eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6NSwic3RhcnQiOiJhXHUwMDAwIn0",
            b"18446744073709551615",
            b"resourceVersion=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=1",
            br#"{"matchLabels":{"a":"b"},"matchExpressions":[{"key":"c","operator":"In","values":["d","e"]},{"key":"f","operator":"DoesNotExist"}]}"#,
        ],
    );
}

#[test]
fn paths() {
    run(
        "paths",
        decoders::paths,
        &[
            b"/apis/apps/v1/namespaces/default/deployments/a/scale?x=%41",
            b".spec.list[?(@.name == 'x')].value[0:2]['a.b']",
            b"self.size > 1 && self.text.matches('^a+$') || has(self.size)",
            b"namespaces/default/pods/a/status",
        ],
    );
}

#[test]
fn field_paths() {
    run(
        "fields",
        decoders::fields,
        &[
            br#"{"f:spec":{".":{},"f:list":{"k:{\"name\":\"a\",\"port\":1}":{".":{},"f:x":{}},"v:\"<\"":{},"i:3":{}}}}"#,
            b"{\"spec\":{\"replicas\":1,\"template\":{\"spec\":{\"containers\":[{\"name\":\"c\",\"ports\":[{\"containerPort\":1}]}]}}}}\n{\"spec\":{\"replicas\":2}}\n{\"metadata\":{\"finalizers\":[\"a\"]}}",
        ],
    );
}

#[test]
fn rules_of_definitions() {
    run(
        "rules",
        decoders::rules,
        &[
            b"self.size > 1 && self.text.matches('^a+$') || has(self.flag)\n'is ' + string(self.size)\n.spec.list[?(@.n==2)].name",
            b"self.list.all(it, it.n > 0) && self.time < timestamp('2027-01-01T00:00:00Z')\n\n..name\n{\"size\":-1,\"map\":{\"a\":\"b\"}}",
        ],
    );
}

#[test]
fn schemas_of_definitions() {
    run(
        "schemas",
        decoders::schemas,
        &[br#"{"type":"object","properties":{"a":{"type":"array","items":{"type":"object","properties":{"n":{"type":"integer","default":3,"nullable":true}}}},"b":{"type":"string","pattern":"^a","format":"date","enum":["a"]}},"additionalProperties":false}
{"a":[{},{"n":null}],"b":"a","c":1}"#,
        br#"{"type":"object","x-kubernetes-preserve-unknown-fields":true,"properties":{"a":{"x-kubernetes-int-or-string":true}}}
{"a":"1","b":{"c":[null]}}"#],
    );
}

#[test]
fn journals() {
    // A change of an object, as the journal writes it.
    let change =
        b"\x12\x28\x0a\x01t\x12\x01k\x18\x02\x22\x1c{\"metadata\":{\"a\":\"2\"},\"x\":1}\x28\x12";
    run("journal", decoders::journal, &[change, b"\x12\x00\xff\x1a"]);
}

#[test]
fn accounts() {
    run(
        "accounts",
        decoders::accounts,
        &[
            b"eyJhbGciOiJFUzI1NiJ9.eyJpc3MiOiJhIn0.c2ln",
            b"t,ann,1,\"a,b\"\n\"u\",bob,2",
            b"{apiVersion: audit.k8s.io/v1, kind: Policy, rules: [{level: None, users: [a]}]}",
            b"-----BEGIN PRIVATE KEY-----\nMIGH\n-----END PRIVATE KEY-----",
        ],
    );
}
