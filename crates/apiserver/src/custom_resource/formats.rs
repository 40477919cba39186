//! Formats of strings, as upstream's `strfmt` checks them. A format that is not listed is not checked.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::LazyLock;

use base64::Engine as _;
use regex::Regex;

static PATTERNS: LazyLock<Vec<(&'static str, Regex)>> = LazyLock::new(|| {
    let patterns = [
        ("bsonobjectid", r"^[0-9a-fA-F]{24}$"),
        (
            "hostname",
            r"^([a-zA-Z0-9\p{S}\p{L}]((-?[a-zA-Z0-9\p{S}\p{L}]{0,62})?)|([a-zA-Z0-9\p{S}\p{L}](([a-zA-Z0-9-\p{S}\p{L}]{0,61}[a-zA-Z0-9\p{S}\p{L}])?)(\.)){1,}([a-zA-Z\p{L}]){2,63})$",
        ),
        ("uuid", r"(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}$"),
        ("uuid3", r"(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?3[0-9a-f]{3}-?[0-9a-f]{4}-?[0-9a-f]{12}$"),
        ("uuid4", r"(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?4[0-9a-f]{3}-?[89ab][0-9a-f]{3}-?[0-9a-f]{12}$"),
        ("uuid5", r"(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?5[0-9a-f]{3}-?[89ab][0-9a-f]{3}-?[0-9a-f]{12}$"),
        ("ssn", r"^\d{3}[- ]?\d{2}[- ]?\d{4}$"),
        ("hexcolor", r"^#?([0-9a-fA-F]{3}|[0-9a-fA-F]{6})$"),
        (
            "rgbcolor",
            r"^rgb\(\s*(0|[1-9]\d?|1\d\d?|2[0-4]\d|25[0-5])\s*,\s*(0|[1-9]\d?|1\d\d?|2[0-4]\d|25[0-5])\s*,\s*(0|[1-9]\d?|1\d\d?|2[0-4]\d|25[0-5])\s*\)$",
        ),
        (
            "mac",
            r"^([0-9a-fA-F]{2}[:-]){5}[0-9a-fA-F]{2}$|^([0-9a-fA-F]{2}[:-]){7}[0-9a-fA-F]{2}$|^([0-9a-fA-F]{4}\.){2}[0-9a-fA-F]{4}$",
        ),
        ("email", r"^[^@\s<>]+@[^@\s<>]+$"),
        (
            "creditcard",
            r"^(?:4[0-9]{12}(?:[0-9]{3})?|5[1-5][0-9]{14}|6(?:011|5[0-9][0-9])[0-9]{12}|3[47][0-9]{13}|3(?:0[0-5]|[68][0-9])[0-9]{11}|(?:2131|1800|35\d{3})\d{11})$",
        ),
        ("datetime", r"(?i)^\d{4}-\d{2}-\d{2}[t ]\d{2}:\d{2}:\d{2}(\.\d+)?(z|[+-]\d{2}:\d{2})$"),
        ("date", r"^\d{4}-\d{2}-\d{2}$"),
        (
            "duration",
            r"^\s*[-+]?(\d+(\.\d+)?\s*(ns|us|µs|ms|s|m|h|d|w|nano|micro|milli|sec|min|hour|day|week|second|minute|millisecond|microsecond|nanosecond)s?\s*)+$",
        ),
        ("k8sshortname", r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"),
        ("k8slongname", r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"),
    ];
    let compiled = |(name, text)| Regex::new(text).ok().map(|it| (name, it));
    patterns.into_iter().filter_map(compiled).collect()
});

/// Formats checked by other means than a pattern.
const OTHERS: [&str; 9] =
    ["uri", "ipv4", "ipv6", "cidr", "isbn", "isbn10", "isbn13", "byte", "password"];

/// Whether strings of a format are checked.
pub fn is_known(format: &str) -> bool {
    let name = format.replace('-', "");
    OTHERS.contains(&name.as_str()) || PATTERNS.iter().any(|(it, _)| *it == name)
}

/// Whether a text has a format.
pub fn has_format(format: &str, text: &str) -> bool {
    let name = format.replace('-', "");
    let matches =
        || PATTERNS.iter().find(|(it, _)| *it == name).is_none_or(|(_, it)| it.is_match(text));
    match name.as_str() {
        "ipv4" => text.parse::<Ipv4Addr>().is_ok(),
        "ipv6" => text.parse::<Ipv6Addr>().is_ok(),
        "cidr" => is_cidr(text),
        "uri" => text.starts_with('/') || text.split_once(':').is_some_and(|it| is_scheme(it.0)),
        "isbn10" => is_isbn10(text),
        "isbn13" => is_isbn13(text),
        "isbn" => is_isbn10(text) || is_isbn13(text),
        "byte" => base64::engine::general_purpose::STANDARD.decode(text).is_ok(),
        "date" => text.parse::<jiff::civil::Date>().is_ok() && matches(),
        "datetime" => text.parse::<jiff::Timestamp>().is_ok() && matches(),
        "creditcard" => {
            let digits: String = text.chars().filter(char::is_ascii_digit).collect();
            PATTERNS.iter().any(|(it, pattern)| *it == name && pattern.is_match(&digits))
        }
        "k8slongname" => text.len() <= 253 && matches(),
        _ => matches(),
    }
}

pub fn is_cidr(text: &str) -> bool {
    let Some((address, bits)) = text.split_once('/') else { return false };
    let bits: u8 = match bits.parse() {
        Ok(bits) => bits,
        Err(_) => return false,
    };
    address.parse::<Ipv4Addr>().is_ok() && bits <= 32
        || address.parse::<Ipv6Addr>().is_ok() && bits <= 128
}

fn is_scheme(text: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
    text.starts_with(|c: char| c.is_ascii_alphabetic()) && text.chars().all(is_part)
}

fn is_isbn10(text: &str) -> bool {
    let digits: Vec<u32> = text
        .chars()
        .filter(|c| !"- ".contains(*c))
        .map(|c| if c == 'X' { 10 } else { c.to_digit(10).unwrap_or(99) })
        .collect();
    let sum: u32 = digits.iter().zip((1..=10).rev()).map(|(digit, weight)| digit * weight).sum();
    digits.len() == 10 && digits.iter().all(|it| *it <= 10) && sum.is_multiple_of(11)
}

fn is_isbn13(text: &str) -> bool {
    let digits: Vec<u32> =
        text.chars().filter(|c| !"- ".contains(*c)).map(|c| c.to_digit(10).unwrap_or(99)).collect();
    let sum: u32 =
        digits.iter().zip([1, 3].iter().cycle()).map(|(digit, weight)| digit * weight).sum();
    digits.len() == 13 && digits.iter().all(|it| *it < 10) && sum.is_multiple_of(10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_have_formats() {
        let cases = [
            ("date-time", "2026-01-02T03:04:05Z", true),
            ("date-time", "2026-01-02T03:04:05.123+01:00", true),
            ("date-time", "2026-01-02", false),
            ("date-time", "2026-13-02T03:04:05Z", false),
            ("date", "2026-02-30", false),
            ("ipv4", "10.0.0.1", true),
            ("ipv4", "10.0.0", false),
            ("ipv6", "::1", true),
            ("cidr", "10.0.0.0/33", false),
            ("cidr", "fd00::/64", true),
            ("uuid", "c0ffee00-0000-4000-8000-000000000000", true),
            ("uuid", "c0ffee", false),
            ("byte", "aGk=", true),
            ("byte", "a", false),
            ("uri", "https://example.com/a", true),
            ("uri", "example", false),
            ("email", "a@b.c", true),
            ("hostname", "a.example", true),
            ("hostname", "-a", false),
            ("isbn", "978-0321751041", true),
            ("duration", "3h30m", true),
            ("duration", "soon", false),
            ("mac", "01:02:03:04:05:06", true),
            ("k8s-short-name", "a-b", true),
            ("k8s-short-name", "A", false),
            ("unheard-of", "anything", true),
        ];
        for (format, text, want) in cases {
            assert_eq!(has_format(format, text), want, "{format} {text}");
        }
        assert!(PATTERNS.len() == 17 && !is_known("unheard-of") && is_known("date-time"));
    }
}
