use expect_test::{Expect, expect};
use serde_json::json;

use super::*;

fn of_spec(spec: Value) -> StructuralSchema {
    let schema = json!({"type": "object", "properties": {"spec": spec}});
    StructuralSchema::read(&schema).expect("a schema")
}

/// What a rule without a schema gives.
#[track_caller]
fn check(rule: &str, want: &str) {
    let program = ENV.compile(rule).unwrap_or_else(|error| panic!("{rule}: {error}"));
    let (_, typing) = typing::check_expression_type(program.expression(), Vec::new());
    assert!(typing.complaints.is_empty(), "{rule}: {:?}", typing.complaints);
    let mut run = CelEvaluation::new(Vec::new(), N_STEPS_MAX);
    let got = match run.eval(program.expression()) {
        Ok(Val::Bool(it)) => it.to_string(),
        Ok(other) => format!("{other:?}"),
        Err(failure) => failure.to_string(),
    };
    assert_eq!(got, want, "{rule}");
}

#[test]
fn operators() {
    for rule in [
        "1 + 2 * 3 == 7",
        "7 / 2 == 3 && 7 % 2 == 1",
        "-7 / 2 == -3",
        "1 < 1.5 && 2u > 1",
        "'a' + 'b' == 'ab'",
        "[1] + [2] == [1, 2]",
        "1 in [1, 2] && !(3 in [1, 2])",
        "'a' in {'a': 1}",
        "{'a': 1}.a == 1 && {'a': 1}['a'] == 1",
        "has({'a': 1}.a) && !has({'a': 1}.b)",
        "true || 1 / 0 == 1",
        "1 / 0 == 1 || true",
        "!(false && 1 / 0 == 1)",
        "true ? true : 1 / 0 == 1",
        "type(1) == int && type('') == string && type(1) != uint",
        "duration('1h') + duration('30m') == duration('90m')",
        "timestamp('2026-01-02T03:04:05Z') + duration('1h') > timestamp('2026-01-02T04:04:04Z')",
        "timestamp('2026-01-02T03:04:05Z').getMonth() == 0",
        "string(duration('-1500ms')) == '-1.5s' && string(duration('-500ms')) == '-0.5s'",
        "duration('90m').getHours() == 1",
        "int('3') == 3 && double(3) == 3.0 && string(3) == '3' && uint(3) == 3u",
        "b'abc' == bytes('abc') && size(b'abc') == 3",
        "dyn(1) == 1",
    ] {
        check(rule, "true");
    }
    check("1 / 0 == 1", "division by zero");
    check("1 % 0 == 1", "modulus by zero");
    check("9223372036854775807 + 1 == 0", "integer overflow");
    check("[1][3] == 1", "index out of bounds: 3");
    check("{'a': 1}.b == 1", "no such key: b");
    check("dyn(1) + dyn('a') == 1", "no such overload");
}

#[test]
fn macros() {
    for rule in [
        "[1, 2, 3].all(x, x > 0) && ![1, 2, 3].all(x, x > 1)",
        "[1, 2, 3].exists(x, x > 2) && [1, 2, 3].exists_one(x, x > 2)",
        "[1, 2, 3].map(x, x * 2) == [2, 4, 6]",
        "[1, 2, 3].map(x, x > 1, x * 2) == [4, 6]",
        "[1, 2, 3].filter(x, x > 1) == [2, 3]",
        "{'a': 1, 'b': 2}.all(k, k in ['a', 'b'])",
        "{'a': 1}.all(k, v, k == 'a' && v == 1)",
        "[5, 6].exists(i, v, i == 1 && v == 6)",
        "[5, 6].transformList(i, v, i + v) == [5, 7]",
        "{'a': 1}.transformMap(k, v, v + 1) == {'a': 2}",
        "[3, 1, 2].sortBy(x, -x) == [3, 2, 1]",
        "[1, 'a', 2].exists(x, x == 2)",
        "[0, 1].exists(x, 1 / x == 1)",
        "![0, 2].all(x, 1 / x == 1)",
    ] {
        check(rule, "true");
    }
    check("[0, 1].all(x, 1 / x == 1)", "division by zero");
}

#[test]
fn texts() {
    for rule in [
        "'abc'.contains('b') && 'abc'.startsWith('a') && 'abc'.endsWith('c')",
        "'abc'.matches('^a.c$') && !'abc'.matches('x')",
        "'äbc'.size() == 3 && 'äbc'.charAt(0) == 'ä'",
        "'abcb'.indexOf('b') == 1 && 'abcb'.lastIndexOf('b') == 3 && 'abc'.indexOf('x') == -1",
        "['a', 'b'].join('-') == 'a-b' && ['a', 'b'].join() == 'ab'",
        "'a-b-c'.split('-') == ['a', 'b', 'c'] && 'a-b-c'.split('-', 2) == ['a', 'b-c']",
        "'abc'.substring(1) == 'bc' && 'abc'.substring(1, 2) == 'b'",
        "'aXbX'.replace('X', '-') == 'a-b-' && 'aXbX'.replace('X', '-', 1) == 'a-bX'",
        "' a '.trim() == 'a' && 'Ab'.lowerAscii() == 'ab' && 'Ab'.upperAscii() == 'AB'",
        "'%s has %d of %.2f'.format(['a', 3, 1.5]) == 'a has 3 of 1.50'",
        "'abc 123'.find('[0-9]+') == '123' && 'abc'.find('[0-9]+') == ''",
        "'1 2 3'.findAll('[0-9]') == ['1', '2', '3'] && '1 2 3'.findAll('[0-9]', 2) == ['1', '2']",
    ] {
        check(rule, "true");
    }
    check("'abc'.substring(4) == ''", "index out of range: 4");
}

#[test]
fn lists_and_sets() {
    for rule in [
        "[1, 2, 3].sum() == 6 && [1.5, 2.5].sum() == 4.0",
        "[3, 1].min() == 1 && [3, 1].max() == 3",
        "[1, 2, 2].isSorted() && ![2, 1].isSorted()",
        "[1, 2, 1].indexOf(1) == 0 && [1, 2, 1].lastIndexOf(1) == 2 && [1].indexOf(5) == -1",
        "[1, 2, 3].slice(1, 3) == [2, 3] && [[1], [2]].flatten() == [1, 2]",
        "[2, 1, 2].distinct() == [2, 1] && [2, 1].sort() == [1, 2] && [1, 2].reverse() == [2, 1]",
        "lists.range(3) == [0, 1, 2]",
        "sets.contains([1, 2], [2]) && sets.equivalent([1, 1], [1]) && !sets.intersects([1], [2])",
    ] {
        check(rule, "true");
    }
    check("[].max() == 1", "max called on empty list");
}

#[test]
fn optionals() {
    for rule in [
        "{'a': 1}.?a.hasValue() && !{'a': 1}.?b.hasValue()",
        "{'a': 1}.?b.orValue(2) == 2",
        "{'a': {'b': 1}}.?a.?b.value() == 1 && !{'a': {'b': 1}}.?x.?b.hasValue()",
        "[1][?0].value() == 1 && ![1][?3].hasValue()",
        "optional.of(1).optMap(x, x + 1) == optional.of(2)",
        "optional.none().or(optional.of(1)).value() == 1",
        "[?{'a': 1}.?b, 2] == [2]",
    ] {
        check(rule, "true");
    }
    check("optional.none().value() == 1", "optional.none() dereference");
}

#[test]
fn kubernetes_functions() {
    for rule in [
        "quantity('1Gi').isGreaterThan(quantity('1G')) && quantity('200M').compareTo(quantity('0.2G')) == 0",
        "quantity('50k').add(quantity('20k')) == quantity('70k') && quantity('50k').sub(20000) == quantity('30k')",
        "quantity('50k').asInteger() == 50000 && !quantity('0.5').isInteger() && sign(quantity('-1')) == -1",
        "isQuantity('1.5Gi') && !isQuantity('three')",
        "url('https://a.example:80/p?x=1&x=2').getHost() == 'a.example:80'",
        "url('https://a.example:80/p?x=1&x=2').getPort() == '80' && url('https://[::1]:80/').getHostname() == '::1'",
        "url('https://a.example/p?x=1&x=2').getQuery() == {'x': ['1', '2']} && !isURL('nowhere')",
        "ip('10.0.0.1').family() == 4 && isIP('::1') && !isIP('10.0.0') && ip('127.0.0.1').isLoopback()",
        "cidr('10.0.0.0/8').containsIP('10.1.2.3') && !cidr('10.0.0.0/8').containsIP(ip('11.0.0.1'))",
        "cidr('10.0.0.0/8').containsCIDR('10.1.0.0/16') && cidr('10.1.2.3/8').masked() == cidr('10.0.0.0/8')",
        "cidr('10.0.0.0/8').prefixLength() == 8 && string(cidr('10.0.0.0/8').ip()) == '10.0.0.0' && !isCIDR('10.0.0.0/33')",
        "ip.isCanonical('::1') && !ip.isCanonical('0::1')",
    ] {
        check(rule, "true");
    }
}

#[test]
fn evaluation_has_a_cost_limit() {
    let nested = "lists.range(1000).all(a, lists.range(1000).all(b, lists.range(1000).all(c, a + b + c >= 0)))";
    check(nested, "operation cancelled: actual cost limit exceeded");
    check(
        "lists.range(200000).distinct().size() == 1",
        "operation cancelled: actual cost limit exceeded",
    );
    check("lists.range(2000000000).size() == 1", "operation cancelled: actual cost limit exceeded");
    // What stops at once has not gone over all of a long list before.
    check("[lists.range(15000)].all(l, l.all(a, l.exists(b, true)))", "true");
    // A pattern is compiled once; one that is another each time is not for nothing.
    check("lists.range(5000).all(a, 'a'.matches('^[a-z]$'))", "true");
    check(
        "lists.range(5000).all(a, 'a'.matches('a|' + string(a)))",
        "operation cancelled: actual cost limit exceeded",
    );
}

#[track_caller]
fn refused(spec: Value, rule: &str, want: &Expect) {
    let schema = of_spec(spec);
    match compile_expression(rule, RequiredResultType::Bool, &schema, true, false) {
        Ok(_) => want.assert_eq("compiles"),
        Err(text) => want.assert_eq(&text),
    }
}

#[test]
fn rules_are_checked_against_the_schema() {
    let spec = json!({"type": "object", "properties": {"n": {"type": "integer"}, "s": {"type": "string"},
        "any": {"x-kubernetes-int-or-string": true}, "l": {"type": "array", "items": {"type": "string"}},
        "m": {"type": "object", "additionalProperties": {"type": "integer"}}}});
    let compiles = expect!["compiles"];
    refused(spec.clone(), "self.spec.n > 1 && self.metadata.name != ''", &compiles);
    refused(spec.clone(), "self.spec.any == 1 || self.spec.any == 'a'", &compiles);
    refused(spec.clone(), "self.spec.m.all(k, self.spec.m[k] > 1 && k.size() < 3)", &compiles);
    refused(spec.clone(), "self.spec.l.map(x, x.size()).sum() > 1", &compiles);
    refused(
        spec.clone(),
        "self.spec.missing > 1",
        &expect![[r#"
            compilation failed: ERROR: <input>:1:10: undefined field 'missing'
             | self.spec.missing > 1
             | .........^"#]],
    );
    refused(
        spec.clone(),
        "self.spec.n == 'a'",
        &expect![[r#"
            compilation failed: ERROR: <input>:1:13: found no matching overload for '_==_' applied to '(int, string)'
             | self.spec.n == 'a'
             | ............^"#]],
    );
    refused(
        spec.clone(),
        "other.x",
        &expect![[r#"
            compilation failed: ERROR: <input>:1:1: undeclared reference to 'other' (in container '')
             | other.x
             | ^"#]],
    );
    refused(
        spec.clone(),
        "self.spec.s.frobnicate()",
        &expect![[r#"
            compilation failed: ERROR: <input>:1:23: undeclared reference to 'frobnicate' (in container '')
             | self.spec.s.frobnicate()
             | ......................^"#]],
    );
    refused(spec, "self.spec.n", &expect!["cel expression must evaluate to a bool"]);
}

#[track_caller]
fn messages(spec: Value, value: Value, old: Option<Value>, want: &Expect) {
    let schema = of_spec(spec);
    let rules = Rules::compile(&schema);
    let object = |spec: Value| json!({"kind": "K", "metadata": {"name": "a"}, "spec": spec});
    let causes = rules.check(&schema, &object(value), old.map(object).as_ref());
    let lines: Vec<String> =
        causes.iter().map(|it| format!("{}: {}", it.field, it.message)).collect();
    want.assert_eq(&lines.join("\n"));
}

#[test]
fn rules_reject_objects() {
    let spec = json!({"type": "object", "properties": {"min": {"type": "integer"}, "max": {"type": "integer"}},
        "x-kubernetes-validations": [
            {"rule": "self.min <= self.max", "messageExpression": "'min %d is more than max %d'.format([self.min, self.max])"},
            {"rule": "self.max < 10", "message": "too much", "reason": "FieldValueForbidden", "fieldPath": ".max"},
            {"rule": "self.min >= oldSelf.min", "message": "min only grows"}]});
    messages(spec.clone(), json!({"min": 1, "max": 2}), None, &expect![""]);
    messages(
        spec.clone(),
        json!({"min": 20, "max": 12}),
        None,
        &expect![[r#"
            spec: Invalid value: min 20 is more than max 12
            spec.max: Forbidden: too much"#]],
    );
    messages(
        spec.clone(),
        json!({"min": 1, "max": 2}),
        Some(json!({"min": 2, "max": 2})),
        &expect!["spec: Invalid value: min only grows"],
    );
    messages(
        spec.clone(),
        json!({"min": 2, "max": 12}),
        Some(json!({"min": 2, "max": 12})),
        &expect![""],
    );
    messages(
        spec,
        json!({"max": 2}),
        None,
        &expect![[
            r#"spec: Invalid value: "object": no such key: min evaluating rule: self.min <= self.max"#
        ]],
    );
}

#[test]
fn list_entries_are_correlated_by_key() {
    let spec = json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["n"],
        "items": {"type": "object", "properties": {"n": {"type": "string"}, "v": {"type": "integer"}},
            "x-kubernetes-validations": [{"rule": "self.v == oldSelf.v", "message": "fixed"}]}});
    let (a, b) = (json!({"n": "a", "v": 1}), json!({"n": "b", "v": 2}));
    messages(spec.clone(), json!([b, a]), Some(json!([a, b])), &expect![""]);
    let changed = json!({"n": "a", "v": 3});
    messages(
        spec,
        json!([b, changed]),
        Some(json!([a, b])),
        &expect!["spec[1]: Invalid value: fixed"],
    );
}

#[test]
fn an_optional_old_self_may_be_absent() {
    let spec = json!({"type": "integer", "x-kubernetes-validations": [
        {"rule": "oldSelf.hasValue() || self == 1", "message": "starts at 1", "optionalOldSelf": true}]});
    messages(spec.clone(), json!(2), None, &expect!["spec: Invalid value: 2: starts at 1"]);
    messages(spec.clone(), json!(1), None, &expect![""]);
    messages(spec, json!(2), Some(json!(1)), &expect![""]);
}

#[test]
fn no_expression_is_nested_too_deeply() {
    let schema = StructuralSchema::read(&json!({"type": "object"})).expect("a schema");
    let compiled =
        |text: String| compile_expression(&text, RequiredResultType::Bool, &schema, true, false);
    let many = |n: usize| {
        [
            format!("1{} > 1", "+1".repeat(n)),
            format!("'a'{} == 'a'", ".trim()".repeat(n)),
            format!("dyn([1]){}.hasValue()", "[?0]".repeat(n)),
            format!("dyn([1]){} == 1", "[0]".repeat(n)),
            format!("r'\\' != ''{}", " + ''".repeat(n)),
        ]
    };
    for text in many(200) {
        assert!(compiled(text.clone()).is_ok(), "{text}: {:?}", compiled(text.clone()));
    }
    for text in many(50_000).into_iter().chain([format!("'{}", "+1".repeat(20_000))]) {
        let messages = compiled(text).map(drop);
        let want = "compilation failed: ERROR: <input>:-1:0: expression ";
        assert!(messages.as_ref().is_err_and(|it| it.starts_with(want)), "{messages:?}");
    }
    assert!(compiled(format!("true{}", " && true".repeat(10_000))).is_ok());
}
