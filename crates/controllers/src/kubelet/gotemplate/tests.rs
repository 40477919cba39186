use serde_json::{Value, json};

use super::*;

struct Here;

impl TemplateFunctions for Here {
    fn call(&self, name: &str, arguments: &[Value]) -> Result<Value, String> {
        match name {
            "Now" => Ok("2026".into()),
            _ => Err(format!("{name} of {arguments:?}")),
        }
    }
}

#[track_caller]
fn check(text: &str, want: &str) {
    let root = json!({"name": "x", "n": 3, "list": ["a", "b"], "map": {"k": "v", "z": 1}, "empty": [],
        "deep": {"er": {"value": true}}, "items": [{"name": "p", "on": true}, {"name": "q"}]});
    let got = match GoTemplate::parse(text, &["Now", "Fail"]) {
        Ok(template) => template.render(&root, &Here),
        Err(error) => Err(error.to_string()),
    };
    assert_eq!(got.unwrap_or_else(|error| format!("! {error}")), want, "{text}");
}

#[test]
fn values() {
    check("a {{ .name }} {{.n}} {{ .deep.er.value }} {{ .none.at.all }}", "a x 3 true <no value>");
    check("{{ \"a\\\"b\" }}{{ `c\\d` }}{{ 5 }}{{ -1 }}{{ true }}", "a\"bc\\d5-1true");
    check("{{ $x := .n }}{{ $x }}{{ $x = 4 }}{{ $x }}{{ $.name }}", "34x");
    check("{{ $x := .deep }}{{ $x.er.value }} {{ (index .items 1).name }}", "true q");
    check("a  {{- \" b\" -}}  c{{/* nothing */}} {{- /* less */ -}} d", "a bcd");
    check("{{ .name | printf \"%s-%v%%\" \"a\" }} {{ print .n .name }}", "a-x% 3x");
    check(
        "{{ Now | Quote }} {{ .n | Quote }} {{ Quote .map }}",
        r#""2026" "3" "{\"k\":\"v\",\"z\":1}""#,
    );
    check("x:\n{{ YAML .map 1 }}", "x:\n  {\"k\":\"v\",\"z\":1}");
}

#[test]
fn functions() {
    check(
        "{{ or .none \"d\" }} {{ or .name \"d\" }} {{ and .name .none }} {{ and 1 2 }}",
        "d x <no value> 2",
    );
    check(
        "{{ eq .name \"x\" }}{{ eq .n 1 2 3 }}{{ eq .none \"x\" }}{{ ne .n 3.0 }}",
        "truetruefalsefalse",
    );
    check("{{ lt 1 2 }}{{ ge \"a\" \"b\" }}{{ not .empty }}{{ len .list }}", "truefalsetrue2");
    check(
        "{{ index .map \"k\" }}{{ index .list 1 }}{{ index .none 0 }}{{ index .list 9 }}",
        "vb<no value><no value>",
    );
    check(
        "{{ add1 .n }} {{ add 1 2 3 }} {{ sub 5 2 }} {{ default 7 .none }} {{ default 7 .n }}",
        "4 6 3 7 3",
    );
    check("{{ (dict \"a\" .n).a }} {{ list 1 \"b\" }}", "3 [1,\"b\"]");
    check("{{ lt .name 1 }}", "! lt: cannot compare x and 1");
    check("{{ add .name }}", "! add: x is no integer");
    check("{{ Fail 1 }}", "! Fail of [Number(1)]");
}

#[test]
fn blocks() {
    check("{{ if .name }}y{{ else }}n{{ end }}{{ if .none }}y{{ end }}", "y");
    check("{{ if .none }}a{{ else if eq .n 3 }}b{{ else }}c{{ end }}!", "b!");
    check("{{ range .list }}<{{ . }}>{{ else }}none{{ end }}", "<a><b>");
    check("{{ range .empty }}x{{ else }}none{{ end }}{{ range .none }}x{{ end }}", "none");
    check(
        "{{ range $i, $x := .items }}{{ $i }}{{ $x.name }}{{ .on }} {{ end }}",
        "0ptrue 1q<no value> ",
    );
    check("{{ range $k, $v := .map }}{{ $k }}={{ $v }};{{ end }}", "k=v;z=1;");
    check("{{ range $x := .list }}{{ $x }}{{ end }}", "ab");
    check("{{ range .items }}{{ if not .on }}{{ break }}{{ end }}{{ .name }}{{ end }}", "p");
    check("{{ range .items }}{{ if .on }}{{ continue }}{{ end }}{{ .name }}{{ end }}", "q");
    check(
        "{{ with .deep }}{{ .er.value }}{{ $.n }}{{ else }}no{{ end }}{{ with .none }}{{ else }}no{{ end }}",
        "true3no",
    );
    check("{{ with $d := .deep }}{{ $d.er.value }}{{ end }}", "true");
    // Variables end with their block; setting one reaches out of it.
    check(
        "{{ $a := 1 }}{{ if true }}{{ $a := 2 }}{{ end }}{{ $a }}{{ if true }}{{ $a = 3 }}{{ end }}{{ $a }}",
        "13",
    );
    check(
        "{{ define \"t\" }}[{{ .a }}{{ $.b }}]{{ end }}{{ range .list }}{{ template \"t\" dict \"a\" . \"b\" $.n }}{{ end }}",
        "[a3][b3]",
    );
    check(
        "{{ define \"t\" }}{{ template \"t\" . }}{{ end }}{{ template \"t\" . }}",
        "! template \"t\" calls itself too often",
    );
    check(
        "{{ define \"t\" }}{{ if lt . 30 }}{{ template \"t\" add1 . }}{{ template \"t\" add1 . }}{{ end }}{{ end }}{{ template \"t\" 0 }}",
        "! more than 1000000 steps",
    );
    // A value that doubles, and one that nests.
    let doubles = "{{ $x = print $x $x }}".repeat(60);
    check(&format!("{{{{ $x := .name }}}}{doubles}"), "! more than 1000000 steps");
    let nests = "{{ $x = list $x }}".repeat(300);
    check(&format!("{{{{ $x := .name }}}}{nests}"), "! a value of more than 200 levels");
}

#[test]
fn invalid_go_templates() {
    check("{{ if .a }}", "! line 1: if without end");
    check("a\n\n{{ .name", "! line 3: an action without }}");
    check("a\n{{ end }}", "! line 2: an end without a beginning");
    check("\n{{ Unknown .a }}", "! line 2: there is no function \"Unknown\"");
    check("{{ or (Sprig) 1 }}", "! line 1: there is no function \"Sprig\"");
    check("{{ }}", "! line 1: an empty action");
    check(
        "{{ .a .b }}",
        "! line 1: unexpected Field { name: \"b\", glued: false }: only functions take arguments",
    );
    check("{{ ( .a }}", "! line 1: expected )");
    check("{{ .a | .b }}", "! line 1: expected a function behind |");
    check("{{ .a ? }}", "! line 1: unexpected '?'");
    check("{{ \"a }}", "! line 1: an action without }}");
    check("{{ $x }}", "! there is no variable $x");
    check(
        &format!("{}{}", "{{ if 1 }}".repeat(99), "{{ end }}".repeat(99)),
        "! line 1: nested too deeply",
    );
    check(
        &format!("{{{{ if 0 }}}}{}{{{{ end }}}}", "{{ else if 0 }}".repeat(20_000)),
        "! line 1: nested too deeply",
    );
    check(
        &format!("{{{{ {}1{} }}}}", "(".repeat(99), ")".repeat(99)),
        "! line 1: nested too deeply",
    );
}
