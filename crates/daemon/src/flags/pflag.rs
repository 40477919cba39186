//! Parsers of flag values, with the syntax and error messages of Go's pflag library.

use std::net::IpAddr;
use std::num::IntErrorKind;

use loadmaster_api::quantity::Quantity;

/// A bool: `true`, `1`, `t` and so on.
pub(super) fn boolean(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err(format!("strconv.ParseBool: parsing {text:?}: invalid syntax")),
    }
}

/// An integer: decimal, or with the prefixes `0x`, `0o` and `0b`.
pub(super) fn integer<T: TryFrom<i64>>(text: &str) -> Result<T, String> {
    let fail = |why: &str| format!("strconv.ParseInt: parsing {text:?}: {why}");
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", text.strip_prefix('+').unwrap_or(text)),
    };
    let (base, digits) = match digits.get(..2) {
        Some("0x" | "0X") => (16, &digits[2..]),
        Some("0o" | "0O") => (8, &digits[2..]),
        Some("0b" | "0B") => (2, &digits[2..]),
        _ => (10, digits),
    };
    if digits.starts_with(['+', '-']) {
        return Err(fail("invalid syntax"));
    }
    let number = i64::from_str_radix(&format!("{sign}{digits}"), base);
    let number = number.map_err(|error| match error.kind() {
        IntErrorKind::PosOverflow | IntErrorKind::NegOverflow => fail("value out of range"),
        _ => fail("invalid syntax"),
    })?;
    T::try_from(number).map_err(|_| fail("value out of range"))
}

/// A log verbosity.
pub(super) fn level(text: &str) -> Result<u32, String> {
    let fail = |why: &str| format!("strconv.ParseUint: parsing {text:?}: {why}");
    let level: u32 = match text.parse::<u64>() {
        Ok(level) => level.try_into().map_err(|_| fail("value out of range"))?,
        Err(_) => return Err(fail("invalid syntax")),
    };
    if level > i32::MAX as u32 {
        return Err(format!("Invalid value: {level}: Must be <= {}", i32::MAX));
    }
    Ok(level)
}

/// A floating-point number.
pub(super) fn float(text: &str) -> Result<f32, String> {
    text.parse().map_err(|_| format!("strconv.ParseFloat: parsing {text:?}: invalid syntax"))
}

/// An IP address; blank means all interfaces.
pub(super) fn address(text: &str) -> Result<IpAddr, String> {
    match text.trim() {
        "" => Ok(IpAddr::from([0, 0, 0, 0])),
        trimmed => trimmed.parse().map_err(|_| format!("failed to parse IP: {text:?}")),
    }
}

/// A number of bytes: `512`, `3M`, `5Mi`.
pub(super) fn bytes(text: &str) -> Result<u64, String> {
    let quantity = Quantity::parse(text).map_err(|error| error.to_string())?;
    u64::try_from(quantity.value()).map_err(|_| "must not be negative".to_owned())
}

/// One `pattern=N` of `--vmodule`.
pub(super) fn file_level(text: &str) -> Result<(String, u32), String> {
    if text.is_empty() {
        return Ok((String::new(), 0));
    }
    let (pattern, level) = text
        .split_once('=')
        .filter(|(_, level)| !level.contains('='))
        .ok_or_else(|| format!("{text:?} does not have the pattern=N format"))?;
    if pattern.is_empty() {
        return Err(format!("{text:?} has an empty pattern"));
    }
    let level =
        level.parse().map_err(|_| format!("parsing verbosity in {text:?}: not a number"))?;
    Ok((pattern.to_owned(), level))
}

/// Certificate and key files with their domain patterns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedCertKey {
    /// PEM file of the certificate and its chain.
    pub cert_file: String,
    /// PEM file of the key.
    pub key_file: String,
    /// Host names, `*.` patterns or IP addresses; if empty, those of the certificate.
    pub names: Vec<String>,
}

/// `cert,key` or `cert,key:name,name`.
pub(super) fn named_cert_key(text: &str) -> Result<NamedCertKey, String> {
    let (files, names) = match text.split_once(':') {
        Some((files, names)) => (files, Some(names)),
        None => (text, None),
    };
    let (cert_file, key_file) = files
        .split_once(',')
        .map(|(cert, key)| (cert.trim(), key.trim()))
        .filter(|(cert, key)| !cert.is_empty() && !key.is_empty() && !key.contains(','))
        .ok_or("expected comma separated certificate and key file paths")?;
    let names = names.into_iter().flat_map(|names| names.split(',')).map(str::trim);
    let names: Vec<String> = names.map(str::to_owned).collect();
    if names.iter().any(String::is_empty) {
        return Err("empty domain patterns are not allowed".to_owned());
    }
    Ok(NamedCertKey { cert_file: cert_file.to_owned(), key_file: key_file.to_owned(), names })
}

/// `key=value`, or several, quoted and separated by commas: `"a,b=c,d","e=f"`. With a single `=`, commas
/// are part of key and value.
pub(super) fn pairs(text: &str) -> Result<Vec<(String, String)>, String> {
    let fields = match text.matches('=').count() {
        0 => return Err(format!("{text} must be formatted as key=value")),
        1 => vec![text.trim_matches('"').to_owned()],
        _ => split_quoted(text),
    };
    let pair = |field: String| match field.split_once('=') {
        Some((key, value)) => Ok((key.to_owned(), value.to_owned())),
        None => Err(format!("{field} must be formatted as key=value")),
    };
    fields.into_iter().map(pair).collect()
}

/// Splits at commas; a field in double quotes may contain commas, and `""` for a quote.
fn split_quoted(text: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut quoted = false;
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        let Some(field) = fields.last_mut() else { break };
        match c {
            '"' if quoted && rest.peek() == Some(&'"') => field.push(rest.next().unwrap_or('"')),
            '"' if quoted || field.is_empty() => quoted = !quoted,
            ',' if !quoted => fields.push(String::new()),
            _ => field.push(c),
        }
    }
    fields
}

#[cfg(test)]
mod tests {
    use std::fmt::Debug;

    use super::*;

    #[track_caller]
    fn check<T: Debug>(got: Result<T, String>, want: &str) {
        let got = got.map_or_else(|error| format!("error: {error}"), |value| format!("{value:?}"));
        assert_eq!(got, want);
    }

    #[test]
    fn scalars() {
        check(boolean("T"), "true");
        check(boolean("maybe"), r#"error: strconv.ParseBool: parsing "maybe": invalid syntax"#);
        check(integer::<u16>("10259"), "10259");
        check(integer::<i32>("-0x10"), "-16");
        check(integer::<i32>("0x-1"), r#"error: strconv.ParseInt: parsing "0x-1": invalid syntax"#);
        check(integer::<i32>("x"), r#"error: strconv.ParseInt: parsing "x": invalid syntax"#);
        check(
            integer::<i32>("2147483648"),
            r#"error: strconv.ParseInt: parsing "2147483648": value out of range"#,
        );
        check(
            integer::<i64>("9223372036854775808"),
            r#"error: strconv.ParseInt: parsing "9223372036854775808": value out of range"#,
        );
        check(level("9"), "9");
        check(level("-1"), r#"error: strconv.ParseUint: parsing "-1": invalid syntax"#);
        check(level("2147483648"), "error: Invalid value: 2147483648: Must be <= 2147483647");
        check(float("0.5"), "0.5");
        check(float("x"), r#"error: strconv.ParseFloat: parsing "x": invalid syntax"#);
        check(address(""), "0.0.0.0");
        check(address("::1"), "::1");
        check(address("localhost"), r#"error: failed to parse IP: "localhost""#);
        check(bytes("5Ki"), "5120");
        check(bytes("-1"), "error: must not be negative");
    }

    #[test]
    fn compounds() {
        check(file_level("queue*=4"), r#"("queue*", 4)"#);
        check(file_level("x"), r#"error: "x" does not have the pattern=N format"#);
        check(
            named_cert_key("a.crt,a.key:*.foo.com,foo.com"),
            r#"NamedCertKey { cert_file: "a.crt", key_file: "a.key", names: ["*.foo.com", "foo.com"] }"#,
        );
        check(
            named_cert_key("a"),
            "error: expected comma separated certificate and key file paths",
        );
        check(named_cert_key("a,b:"), "error: empty domain patterns are not allowed");
        check(pairs("m,l=v1,v2"), r#"[("m,l", "v1,v2")]"#);
        check(pairs(r#""m,l=v1,v2","n,k=v""#), r#"[("m,l", "v1,v2"), ("n,k", "v")]"#);
        check(pairs("m"), "error: m must be formatted as key=value");
    }
}
