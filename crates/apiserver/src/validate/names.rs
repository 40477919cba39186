//! Validates names.

const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric \
    characters, '-' or '.', and must start and end with an alphanumeric character (e.g. \
    'example.com', regex used for validation is \
    '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";

const LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters \
    or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', \
    regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";

const DNS1035: &str = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', \
    start with an alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or \
    'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')";

/// Validates a DNS-1123 subdomain, the name of most objects.
pub fn subdomain(name: &str) -> Vec<String> {
    let mut complaints = too_long(name, 253);
    if !name.split('.').all(is_label) {
        complaints.push(SUBDOMAIN.to_owned());
    }
    complaints
}

/// Validates a DNS-1123 label, the name of a namespace, a service or a container.
pub(super) fn label_name(name: &str) -> Vec<String> {
    let mut complaints = too_long(name, 63);
    if !is_label(name) {
        let has_dots = name.split('.').all(is_label);
        complaints.push(if has_dots { "must not contain dots" } else { LABEL }.to_owned());
    }
    complaints
}

/// Validates a DNS-1035 label, which begins with a letter, such as the name of a resource.
pub fn dns1035(name: &str) -> Vec<String> {
    let mut complaints = too_long(name, 63);
    if !is_label(name) || !name.starts_with(|c: char| c.is_ascii_lowercase()) {
        complaints.push(DNS1035.to_owned());
    }
    complaints
}

/// Validates a name that only has to be a valid path segment.
pub(super) fn path_segment(name: &str) -> Vec<String> {
    if matches!(name, "." | "..") {
        return vec![format!("may not be '{name}'")];
    }
    let bad = ["/", "%"].iter().filter(|part| name.contains(**part));
    bad.map(|part| format!("may not contain '{part}'")).collect()
}

fn too_long(name: &str, len_max: usize) -> Vec<String> {
    if name.len() > len_max {
        vec![format!("must be no more than {len_max} bytes")]
    } else {
        Vec::new()
    }
}

fn is_label(text: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = text.as_bytes();
    bytes.first().is_some_and(|it| is_word(*it))
        && bytes.last().is_some_and(|it| is_word(*it))
        && bytes.iter().all(|it| is_word(*it) || *it == b'-')
}
