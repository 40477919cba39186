//! Test cases as text. A script has one line per request and one per expected response; an indented line continues the line
//! before.
//!
//! ```text
//! POST configmaps {metadata: {name: a}, data: {k: v}}
//! 201 {metadata: {uid: $uid, resourceVersion: $first}}
//! PATCH-MERGE configmaps/a {data: {k: w}}
//! 200 {metadata: {uid: $uid, resourceVersion: $second}}
//! ASSERT $first < $second
//! WATCH configmaps?resourceVersion=$first
//! MODIFIED a {data: {k: w}}
//! GET configmaps/b
//! 404 NotFound: configmaps "b" not found
//! ```
//!
//! | | |
//! | --- | --- |
//! | path | a resource in the case's namespace, or any path that begins with `/` |
//! | methods | `GET POST PUT DELETE`, `PATCH-JSON PATCH-MERGE PATCH-STRATEGIC PATCH-APPLY`, `TABLE` and `META` (GET in that format), `WATCH` |
//! | `AS ann,staff` | before a method: the user and groups to impersonate |
//! | `UNTIL` | before a method: retry until the response matches, for eventually consistent results |
//! | body | YAML on one line; `$x + {..}` is a captured object merged with the given value |
//! | response | a status code; then nothing, a `{..}` that the body must contain, a `[a, b]` with the names of a list's items, `Reason: message`, or `$x` to capture the body |
//! | in a `{..}` | `_` matches anything, `ABSENT` nothing, `~text` a text that contains it, `$x` captures the value or compares with the captured one; lists are compared as a whole |
//! | watch | its events in order; `END` if no further event may follow |
//! | `ASSERT` | `$a < $b` or `$a != $b`, as numbers where they are |
//! | `$ns` | the namespace of the case |

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};

/// A test case.
#[derive(Clone, Debug)]
pub struct Case {
    pub name: String,
    pub script: String,
}

/// Creates a case.
pub fn case(name: &str, script: &str) -> Case {
    Case { name: name.to_owned(), script: script.to_owned() }
}

#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    Request(RequestStep),
    Watch(WatchStep),
    Assert { left: String, is_less: bool, right: String },
}

#[derive(Clone, Debug, PartialEq)]
pub struct RequestStep {
    pub line: String,
    /// The user, then groups; empty for the administrator.
    pub user: Vec<String>,
    /// The request is repeated until the response matches.
    pub retries_until_match: bool,
    pub method: &'static str,
    pub path: String,
    pub accept: &'static str,
    pub content_type: &'static str,
    pub body: Option<Body>,
    pub code: u16,
    pub expected: ExpectedResponse,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Body {
    Value(Value),
    /// A captured object merged with a value.
    Merged {
        captured: String,
        with: Value,
    },
}

#[derive(Clone, Debug, PartialEq)]
pub enum ExpectedResponse {
    Any,
    Contains(Value),
    Names(Vec<String>),
    Captured(String),
}

#[derive(Clone, Debug, PartialEq)]
pub struct WatchStep {
    pub line: String,
    pub path: String,
    pub events: Vec<ExpectedEvent>,
    /// No further event may follow.
    pub ends: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub struct ExpectedEvent {
    pub kind: String,
    pub part: Value,
}

const JSON: &str = "application/json";

/// Name in scripts, HTTP method, Accept header, and content type of the body.
const METHODS: &[(&str, &str, &str, &str)] = &[
    ("GET", "GET", JSON, JSON),
    ("POST", "POST", JSON, JSON),
    ("PUT", "PUT", JSON, JSON),
    ("DELETE", "DELETE", JSON, JSON),
    ("PATCH-JSON", "PATCH", JSON, "application/json-patch+json"),
    ("PATCH-MERGE", "PATCH", JSON, "application/merge-patch+json"),
    ("PATCH-STRATEGIC", "PATCH", JSON, "application/strategic-merge-patch+json"),
    ("PATCH-APPLY", "PATCH", JSON, "application/apply-patch+yaml"),
    ("TABLE", "GET", "application/json;as=Table;v=v1;g=meta.k8s.io", JSON),
    ("META", "GET", "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io", JSON),
    ("META-LIST", "GET", "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io", JSON),
];

const EVENTS: &[&str] = &["ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR"];

impl Case {
    /// The steps of the script.
    pub fn steps(&self) -> Result<Vec<Step>> {
        let mut steps: Vec<Step> = Vec::new();
        let mut expects_response = false;
        for line in join_continued_lines(&self.script) {
            let (word, rest) = line.split_once(' ').unwrap_or((&line, ""));
            let parsed = match word {
                "WATCH" => {
                    steps.push(Step::Watch(WatchStep {
                        line: line.clone(),
                        path: path(rest),
                        events: Vec::new(),
                        ends: false,
                    }));
                    Ok(())
                }
                "END" => last_watch(&mut steps).map(|watch| watch.ends = true),
                "ASSERT" => parse_assertion(rest).map(|step| steps.push(step)),
                _ if EVENTS.contains(&word) => parse_event(word, rest).and_then(|event| {
                    last_watch(&mut steps)?.events.push(event);
                    Ok(())
                }),
                _ if word.parse::<u16>().is_ok() => {
                    ensure!(
                        std::mem::take(&mut expects_response),
                        "{line}: a response without a request"
                    );
                    parse_expected_response(&mut steps, word, rest)
                }
                _ => {
                    ensure!(!expects_response, "{line}: the previous request has no response");
                    expects_response = true;
                    parse_request(&line, word, rest).map(|ask| steps.push(Step::Request(ask)))
                }
            };
            parsed.with_context(|| format!("{}: {line}", self.name))?;
        }
        ensure!(!expects_response, "{}: the last request has no response", self.name);
        Ok(steps)
    }
}

fn join_continued_lines(script: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for line in script.lines().filter(|line| !line.trim().is_empty()) {
        match lines.last_mut() {
            Some(last) if line.starts_with(' ') => {
                last.push(' ');
                last.push_str(line.trim());
            }
            _ => lines.push(line.trim().to_owned()),
        }
    }
    lines
}

fn last_watch(steps: &mut [Step]) -> Result<&mut WatchStep> {
    match steps.last_mut() {
        Some(Step::Watch(watch)) => Ok(watch),
        _ => bail!("there is no watch before it"),
    }
}

fn parse_request<'a>(line: &str, mut word: &'a str, mut rest: &'a str) -> Result<RequestStep> {
    let (mut user, mut retries_until_match) = (Vec::new(), false);
    loop {
        match word {
            "UNTIL" => retries_until_match = true,
            "AS" => {
                let (names, after) = rest.split_once(' ').context("no request")?;
                user = names.split(',').map(str::to_owned).collect();
                rest = after;
            }
            _ => break,
        }
        (word, rest) = rest.split_once(' ').context("no request")?;
    }
    let found = METHODS.iter().find(|(name, ..)| *name == word);
    let &(_, method, accept, content_type) = found.context("no such method")?;
    let (target, body) = rest.split_once(' ').unwrap_or((rest, ""));
    let body = match body.trim() {
        "" => None,
        text if text.starts_with('$') => {
            let (name, with) = text[1..].split_once(" + ").unwrap_or((&text[1..], "{}"));
            Some(Body::Merged { captured: name.to_owned(), with: yaml(with)? })
        }
        text => Some(Body::Value(yaml(text)?)),
    };
    let path = path(target);
    let (code, expected) = (0, ExpectedResponse::Any);
    let line = line.to_owned();
    Ok(RequestStep {
        line,
        user,
        retries_until_match,
        method,
        path,
        accept,
        content_type,
        body,
        code,
        expected,
    })
}

fn parse_expected_response(steps: &mut [Step], code: &str, rest: &str) -> Result<()> {
    let Some(Step::Request(ask)) = steps.last_mut() else { bail!("there is no request before it") };
    ask.code = code.parse()?;
    ask.expected = match rest.trim() {
        "" => ExpectedResponse::Any,
        text if text.starts_with('{') => ExpectedResponse::Contains(yaml(text)?),
        text if text.starts_with('$') => ExpectedResponse::Captured(text[1..].to_owned()),
        text if text.starts_with('[') => {
            ExpectedResponse::Names(serde_json::from_value(yaml(text)?).context("names of items")?)
        }
        text => {
            let (reason, message) = text.split_once(": ").unwrap_or((text, ""));
            let mut part = json!({"kind": "Status", "status": "Failure", "reason": reason});
            if !message.is_empty() {
                part["message"] = message.into();
            }
            ExpectedResponse::Contains(part)
        }
    };
    Ok(())
}

fn parse_event(kind: &str, rest: &str) -> Result<ExpectedEvent> {
    let at = rest.find('{').unwrap_or(rest.len());
    let (name, part) = (rest[..at].trim(), &rest[at..]);
    let mut part = if part.is_empty() { json!({}) } else { yaml(part)? };
    if !name.is_empty() {
        part["metadata"]["name"] = name.into();
    }
    Ok(ExpectedEvent { kind: kind.to_owned(), part })
}

fn parse_assertion(text: &str) -> Result<Step> {
    let words: Vec<&str> = text.split(' ').collect();
    let &[left, operator, right] = words.as_slice() else { bail!("not two values") };
    let is_less = match operator {
        "<" => true,
        "!=" => false,
        _ => bail!("neither < nor !="),
    };
    Ok(Step::Assert { left: left.to_owned(), is_less, right: right.to_owned() })
}

fn yaml(text: &str) -> Result<Value> {
    // `y` and `n` are strings, as in JSON.
    let options = serde_saphyr::options! { strict_booleans: true };
    serde_saphyr::from_str_with_options(text, options).with_context(|| format!("reading {text}"))
}

/// Groups and their resources; a star marks cluster-scoped resources.
const RESOURCES: &[(&str, &str)] = &[
    (
        "/api/v1",
        "configmaps secrets pods services serviceaccounts endpoints limitranges resourcequotas \
         persistentvolumeclaims podtemplates replicationcontrollers events *nodes *namespaces *persistentvolumes",
    ),
    ("/apis/apps/v1", "deployments replicasets statefulsets daemonsets controllerrevisions"),
    ("/apis/batch/v1", "jobs cronjobs"),
    ("/apis/policy/v1", "poddisruptionbudgets"),
    ("/apis/scheduling.k8s.io/v1", "*priorityclasses"),
    (
        "/apis/storage.k8s.io/v1",
        "*storageclasses *csidrivers *csinodes *volumeattachments csistoragecapacities",
    ),
    ("/apis/coordination.k8s.io/v1", "leases"),
    ("/apis/discovery.k8s.io/v1", "endpointslices"),
    ("/apis/node.k8s.io/v1", "*runtimeclasses"),
    ("/apis/rbac.authorization.k8s.io/v1", "roles rolebindings *clusterroles *clusterrolebindings"),
    ("/apis/networking.k8s.io/v1", "networkpolicies ingresses *ingressclasses"),
    ("/apis/autoscaling/v2", "horizontalpodautoscalers"),
    (
        "/apis/resource.k8s.io/v1",
        "*deviceclasses resourceclaims resourceclaimtemplates *resourceslices",
    ),
    ("/apis/certificates.k8s.io/v1", "*certificatesigningrequests"),
    ("/apis/apiextensions.k8s.io/v1", "*customresourcedefinitions"),
    // Of the CustomResourceDefinition that the case creates.
    ("/apis/$ns.example.com/v1", "crews"),
];

/// Whether a resource is cluster-scoped.
pub fn is_cluster_scoped(resource: &str) -> bool {
    let starred = format!("*{resource}");
    RESOURCES.iter().any(|(_, names)| names.split_whitespace().any(|it| it == starred))
}

fn path(text: &str) -> String {
    if text.starts_with('/') {
        return text.to_owned();
    }
    let end = text.find(['/', '?']).unwrap_or(text.len());
    let (resource, rest) = text.split_at(end);
    for (group, names) in RESOURCES {
        for name in names.split_whitespace() {
            if name == resource {
                return format!("{group}/namespaces/$ns/{text}");
            }
            if name.strip_prefix('*') == Some(resource) {
                return format!("{group}/{resource}{rest}");
            }
        }
    }
    text.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(script: &str) -> Result<Vec<Step>> {
        case("test", script).steps()
    }

    #[test]
    fn a_script_is_parsed() {
        let script = "
POST configmaps?dryRun=All {metadata: {name: a},
  data: {k: v}}
409 AlreadyExists: configmaps \"a\" already exists
WATCH nodes?x=1
ADDED a {spec: {}}
ERROR {code: 410}
END
PUT configmaps/a $obj + {data: {k: w}}
200 $obj
GET /api
200 [a, b]
ASSERT $a < $b
UNTIL AS ann,staff GET pods
200
";
        let steps = steps(script).expect("a valid script");
        let Step::Request(ask) = &steps[0] else { panic!("{:?}", steps[0]) };
        assert_eq!(ask.path, "/api/v1/namespaces/$ns/configmaps?dryRun=All");
        let body = json!({"metadata": {"name": "a"}, "data": {"k": "v"}});
        assert_eq!((ask.code, &ask.body), (409, &Some(Body::Value(body))));
        let want = json!({"kind": "Status", "status": "Failure", "reason": "AlreadyExists",
            "message": "configmaps \"a\" already exists"});
        assert_eq!(ask.expected, ExpectedResponse::Contains(want));
        let Step::Watch(watch) = &steps[1] else { panic!("{:?}", steps[1]) };
        assert_eq!((&*watch.path, watch.events.len(), watch.ends), ("/api/v1/nodes?x=1", 2, true));
        assert_eq!(watch.events[0].part, json!({"spec": {}, "metadata": {"name": "a"}}));
        let Step::Request(put) = &steps[2] else { panic!("{:?}", steps[2]) };
        assert!(matches!(&put.body, Some(Body::Merged { captured, .. }) if captured == "obj"));
        assert_eq!(put.expected, ExpectedResponse::Captured("obj".to_owned()));
        let Step::Request(last) = &steps[5] else { panic!("{:?}", steps[5]) };
        assert_eq!((last.retries_until_match, last.user.join(" ")), (true, "ann staff".to_owned()));
        assert_eq!(steps.len(), 6);
    }

    #[test]
    fn errors_in_scripts_are_reported() {
        let check = |script: &str, want: &str| {
            let error = format!("{:#}", steps(script).expect_err(script));
            assert!(error.contains(want), "{script}: {error}");
        };
        check("GET a", "the last request has no response");
        check("GET a\nGET b\n200", "the previous request has no response");
        check("200", "a response without a request");
        check("ADDED a", "there is no watch before it");
        check("FETCH a\n200", "no such method");
        check("AS ann\n200", "no request");
        check("ASSERT $a == $b", "neither < nor !=");
        check("POST a {b\n200", "reading {b");
    }
}
