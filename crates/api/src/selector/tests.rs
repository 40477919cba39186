use expect_test::{Expect, expect};

use super::*;
use crate::pod::PreferredSchedulingTerm;

/// `a=1 b=2` as labels.
fn labels(text: &str) -> Labels {
    let pairs = text.split_whitespace().filter_map(|pair| pair.split_once('='));
    pairs.map(|(key, value)| (key, Str::new(value))).collect()
}

/// `a In 1,2; b Exists` as requirements.
fn requirements(text: &str) -> Vec<Requirement> {
    let requirement = |part: &str| {
        let mut words = part.trim().splitn(3, ' ').map(Str::new);
        let (key, operator) = (words.next().unwrap(), words.next().unwrap_or_default());
        let values = words.next().map(|list| list.split(',').map(Str::new).collect());
        Requirement { key, operator, values: values.unwrap_or_default() }
    };
    text.split(';').filter(|part| !part.trim().is_empty()).map(requirement).collect()
}

/// `a Exists @ metadata.name In n1` as a term: label expressions, then field expressions.
fn term(text: &str) -> NodeSelectorTerm {
    let (expressions, fields) = text.split_once('@').unwrap_or((text, ""));
    NodeSelectorTerm {
        match_expressions: requirements(expressions),
        match_fields: requirements(fields),
    }
}

/// Terms apart by `|`.
fn node_selector(text: &str) -> NodeSelector {
    NodeSelector { node_selector_terms: text.split('|').map(term).collect() }
}

fn label_selector(match_labels: &str, match_expressions: &str) -> LabelSelector {
    LabelSelector {
        match_labels: labels(match_labels),
        match_expressions: requirements(match_expressions),
    }
}

/// Which of the objects, labels apart by `|`, are selected.
#[track_caller]
fn check(match_labels: &str, match_expressions: &str, objects: &str, want: &Expect) {
    let compiled = Selector::new(Some(&label_selector(match_labels, match_expressions)));
    want.assert_eq(&match compiled {
        Ok(selector) => {
            let matches = |object| if selector.matches(&labels(object)) { 'y' } else { '-' };
            objects.split('|').map(matches).collect()
        }
        Err(error) => error.to_string(),
    });
}

#[test]
fn label_selectors() {
    let objects = " | a=1 | a=2 | a=3 b=1 | b=1 | a=";
    check("", "", objects, &expect!["yyyyyy"]);
    check("a=1", "", objects, &expect!["-y----"]);
    check("a=3 b=1", "", objects, &expect!["---y--"]);
    check("a=", "", objects, &expect!["-----y"]);
    check("", "a In 1,2", objects, &expect!["-yy---"]);
    check("", "a NotIn 1,2", objects, &expect!["y--yyy"]);
    check("", "a NotIn 1", objects, &expect!["y-yyyy"]);
    check("", "a Exists", objects, &expect!["-yyy-y"]);
    check("", "a DoesNotExist", objects, &expect!["y---y-"]);
    check("b=1", "a Exists; a NotIn 1", objects, &expect!["---y--"]);
    check("", "a In 1; a NotIn 1", objects, &expect!["------"]);
}

#[test]
fn faulty_label_selectors() {
    check(
        "",
        "a In",
        "",
        &expect![
            "values: Invalid value: null: for 'in', 'notin' operators, values set can't be empty"
        ],
    );
    check(
        "",
        "a Exists 1",
        "",
        &expect![[
            r#"values: Invalid value: ["1"]: values set must be empty for exists and does not exist"#
        ]],
    );
    check("", "a Gt 1", "", &expect![[r#""Gt" is not a valid label selector operator"#]]);
    check("", "a in 1", "", &expect![[r#""in" is not a valid label selector operator"#]]);
    check(
        "-a=1",
        "",
        "",
        &expect![[
            r#"key: Invalid value: "-a": name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"#
        ]],
    );
    check(
        "a=-1",
        "",
        "",
        &expect![[
            r#"values[0][a]: Invalid value: "-1": a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"#
        ]],
    );
    check(
        "",
        "/ In x_,.,",
        "",
        &expect![[
            r#"[key: Invalid value: "/": prefix part must be non-empty; name part must be non-empty; name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]'), values[0][/]: Invalid value: "x_": a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?'), values[1][/]: Invalid value: ".": a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')]"#
        ]],
    );
    check(
        "",
        "a/b/c Exists",
        "",
        &expect![[
            r#"key: Invalid value: "a/b/c": a valid label key must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]') with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"#
        ]],
    );
    check(
        "",
        "A.b/c Exists",
        "",
        &expect![[
            r#"key: Invalid value: "A.b/c": prefix part a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"#
        ]],
    );
    check(
        &format!("{}=1", "x".repeat(64)),
        "",
        "",
        &expect![[
            r#"key: Invalid value: "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx": name part must be no more than 63 bytes"#
        ]],
    );
}

#[test]
fn absent_is_not_empty() {
    let absent = Selector::new(None).unwrap();
    assert!(absent.is_nothing() && !absent.is_empty() && !absent.matches(&labels("a=1")));
    assert_eq!(absent, Selector::nothing());
    let empty = Selector::new(Some(&LabelSelector::default())).unwrap();
    assert!(empty.is_empty() && !empty.is_nothing() && empty.matches(&labels("a=1")));
    assert_eq!(empty, Selector::from_pairs(&Labels::default()));
}

#[test]
fn order_of_keys_and_values_does_not_matter() {
    let compiled = |text| Selector::new(Some(&label_selector("", text))).unwrap();
    assert_eq!(compiled("a In 1,2; b Exists"), compiled("b Exists; a In 2,1,2"));
    assert_eq!(compiled("a In 1"), Selector::from_pairs(&labels("a=1")));
    assert_ne!(compiled("a In 1"), compiled("a NotIn 1"));
}

#[test]
fn requirements_are_added() {
    let added = |selector: Selector, operator| {
        selector.with_requirement("hash".into(), operator, [Str::new("1"), Str::new("2")])
    };
    let narrowed = added(Selector::from_pairs(&labels("zone=a")), SetOperator::In);
    assert!(narrowed.matches(&labels("hash=2 zone=a")));
    assert!(!narrowed.matches(&labels("zone=a")));
    assert_eq!(narrowed.keys().map(Str::as_str).collect::<Vec<_>>(), ["hash", "zone"]);
    let without = added(Selector::everything(), SetOperator::NotIn);
    assert!(without.matches(&labels("")) && !without.matches(&labels("hash=1")));
    assert_eq!(added(Selector::nothing(), SetOperator::NotIn), Selector::nothing());
}

/// Which of the nodes (`name a=1 ...`, apart by `|`) are selected; or why the selector is faulty.
#[track_caller]
fn check_node(selector: &str, nodes: &str, want: &Expect) {
    let affinity = required_node_affinity(&Labels::default(), Some(&node_selector(selector)));
    let mut marks = String::new();
    for node in nodes.split('|') {
        let (name, pairs) = node.trim().split_once(' ').unwrap_or((node.trim(), ""));
        marks += &match affinity.matches(&labels(pairs), name) {
            Ok(matches) => (if matches { "y" } else { "-" }).to_owned(),
            Err(error) => format!("\n{error}\n"),
        };
    }
    want.assert_eq(&marks);
}

#[test]
fn node_selectors() {
    let nodes = "n1 | n2 a=5 | n3 a=7 b=x | n4 a=x | n5 a=-1";
    check_node("", nodes, &expect!["-----"]);
    check_node("a Exists", nodes, &expect!["-yyyy"]);
    check_node("a Gt 5", nodes, &expect!["--y--"]);
    check_node("a Lt 7", nodes, &expect!["-y--y"]);
    check_node("a Gt 5; b In x,y | a NotIn 5,7,x", nodes, &expect!["y-y-y"]);
    check_node("@ metadata.name In n2", nodes, &expect!["-y---"]);
    check_node("@ metadata.name NotIn n2", nodes, &expect!["y-yyy"]);
    check_node(
        "a Exists @ metadata.name NotIn n2; metadata.name NotIn n3",
        nodes,
        &expect!["---yy"],
    );
    check_node("@ metadata.name In n2 | | a DoesNotExist", nodes, &expect!["yy---"]);
    check_node("@ other NotIn n2", nodes, &expect!["yyyyy"]);
}

#[test]
fn a_faulty_term_is_reported_unless_another_matches() {
    check_node(
        "a Gt x | b Exists",
        "n1 a=1 | n2 b=1",
        &expect![[r#"

        nodeSelectorTerms[0].matchExpressions[0].values[0]: Invalid value: "x": for 'Gt', 'Lt' operators, the value must be an integer
        y"#]],
    );
    check_node(
        "a Gt 1,2; -b Exists 1",
        "n1",
        &expect![[r#"

        [nodeSelectorTerms[0].matchExpressions[0].values: Invalid value: ["1","2"]: for 'Gt', 'Lt' operators, exactly one value is required, nodeSelectorTerms[0].matchExpressions[1].key: Invalid value: "-b": name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]'), nodeSelectorTerms[0].matchExpressions[1].values: Invalid value: ["1"]: values set must be empty for exists and does not exist]
    "#]],
    );
    check_node(
        "a In | a gt 1 @ metadata.name In n1,n2; metadata.name Exists",
        "n1",
        &expect![[r#"

        [nodeSelectorTerms[0].matchExpressions[0].values: Invalid value: null: for 'in', 'notin' operators, values set can't be empty, nodeSelectorTerms[1].matchExpressions[0].operator: Unsupported value: "gt": supported values: "In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", nodeSelectorTerms[1].matchFields[0].values: Invalid value: ["n1","n2"]: must have one element, nodeSelectorTerms[1].matchFields[1].operator: Unsupported value: "Exists": supported values: "In", "NotIn"]
    "#]],
    );
    check_node(
        "| a Gt -1",
        "n1",
        &expect![[r#"

        nodeSelectorTerms[1].matchExpressions[0].values[0][a]: Invalid value: "-1": a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')
    "#]],
    );
}

#[test]
fn node_selector_and_affinity_must_both_match() {
    let both = required_node_affinity(&labels("a=1"), Some(&node_selector("b Exists | c In")));
    assert_eq!(both.matches(&labels("a=1 b=1"), "n"), Ok(true));
    assert_eq!(both.matches(&labels("b=1"), "n"), Ok(false));
    assert!(both.matches(&labels("a=1"), "n").is_err());
    let neither = required_node_affinity(&Labels::default(), None);
    assert_eq!(neither.matches(&Labels::default(), "n"), Ok(true));
    let no_terms = required_node_affinity(&Labels::default(), Some(&NodeSelector::default()));
    assert_eq!(no_terms.matches(&Labels::default(), "n"), Ok(false));
}

#[test]
fn strict_selectors_reject_any_invalid_term() {
    let faulty = CompiledNodeSelector::strict(&node_selector("a Exists | b In"));
    expect!["nodeSelectorTerms[1].matchExpressions[0].values: Invalid value: null: for 'in', 'notin' operators, values set can't be empty"].assert_eq(&faulty.unwrap_err().to_string());
    assert!(CompiledNodeSelector::strict(&node_selector("a Exists")).is_ok());
}

#[test]
fn preferred_terms_add_up() {
    let terms = |texts: &[(i32, &str)]| {
        let term = |(weight, text): &(i32, &str)| PreferredSchedulingTerm {
            weight: *weight,
            preference: term(text),
        };
        texts.iter().map(term).collect::<Vec<_>>()
    };
    let preferred = PreferredNodeTerms::new(&terms(&[
        (1, "a Exists"),
        (10, "a In 1 @ metadata.name In n1"),
        (100, ""),
        (0, "faulty In"),
    ]));
    let preferred = preferred.unwrap();
    assert_eq!(preferred.score(&labels("a=1"), "n1"), 11);
    assert_eq!(preferred.score(&labels("a=1"), "n2"), 1);
    assert_eq!(preferred.score(&labels(""), "n1"), 0);
    assert!(PreferredNodeTerms::new(&terms(&[(5, ""), (0, "a Exists")])).unwrap().is_empty());
    let faulty =
        PreferredNodeTerms::new(&terms(&[(1, "a Exists"), (1, "b In; c in 1"), (1, "d In")]));
    expect![[r#"[[1].matchExpressions[0].values: Invalid value: null: for 'in', 'notin' operators, values set can't be empty, [1].matchExpressions[1].operator: Unsupported value: "in": supported values: "In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", [2].matchExpressions[0].values: Invalid value: null: for 'in', 'notin' operators, values set can't be empty]"#]].assert_eq(&faulty.unwrap_err().to_string());
}

#[test]
fn a_single_term() {
    assert_eq!(CompiledNodeTerm::new(&term("")), Ok(None));
    let compiled = CompiledNodeTerm::new(&term("a Exists @ metadata.name In n1")).unwrap().unwrap();
    assert!(compiled.matches(&labels("a=1"), "n1") && !compiled.matches(&labels("a=1"), "n2"));
    // Upstream looks at no field of a node that has none.
    assert!(compiled.matches(&labels("a=1"), ""));
    let faulty = CompiledNodeTerm::new(&term("@ metadata.name In n1,n2"));
    expect![[r#"matchFields[0].values: Invalid value: ["n1","n2"]: must have one element"#]]
        .assert_eq(&faulty.unwrap_err().to_string());
}

#[test]
fn names_a_selector_narrows_to() {
    let check = |selector: &str, want: &Expect| {
        let names = node_selector(selector).field_names();
        want.assert_eq(&names.map_or("all".into(), |names| names.join(" ")));
    };
    check("a Exists", &expect!["all"]);
    check("@ metadata.name In n1", &expect!["n1"]);
    check("@ metadata.name In n2 | a Exists @ metadata.name In n1,n2", &expect!["n1 n2"]);
    check("@ metadata.name In n2 | a Exists", &expect!["all"]);
    check("@ metadata.name In n2 |", &expect!["all"]);
    check("@ metadata.name In n1,n2; metadata.name In n3,n2", &expect!["n2"]);
    check("@ metadata.name In n1; metadata.name In n2", &expect![]);
    check("@ metadata.name NotIn n1", &expect!["all"]);
    check("@ other In n1", &expect!["all"]);
    assert_eq!(NodeSelector::default().field_names(), None);
}
