//! Key presses, as terminals send them.

/// A key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    End,
    Enter,
    Escape,
    Backspace,
    Char(char),
    /// Ctrl-C, Ctrl-D, or the end of the input.
    Interrupt,
}

/// What keys without a character send.
const SEQUENCES: [(&str, Key); 12] = [
    ("\x1b[A", Key::Up),
    ("\x1bOA", Key::Up),
    ("\x1b[B", Key::Down),
    ("\x1bOB", Key::Down),
    ("\x1b[5~", Key::PageUp),
    ("\x1b[6~", Key::PageDown),
    ("\x1b[H", Key::Home),
    ("\x1bOH", Key::Home),
    ("\x1b[1~", Key::Home),
    ("\x1b[F", Key::End),
    ("\x1bOF", Key::End),
    ("\x1b[4~", Key::End),
];

/// The keys in bytes that were read together. Unknown ones are skipped.
pub(super) fn parse(bytes: &[u8]) -> Vec<Key> {
    let text = String::from_utf8_lossy(bytes);
    let mut rest = &*text;
    let mut keys = Vec::new();
    while let Some(first) = rest.chars().next() {
        if let Some((sequence, key)) = SEQUENCES.iter().find(|(it, _)| rest.starts_with(it)) {
            keys.push(*key);
            rest = &rest[sequence.len()..];
        } else if let Some(unknown) = rest.strip_prefix("\x1b[") {
            let end = unknown.find(|c: char| ('@'..='~').contains(&c));
            rest = end.map_or("", |end| &unknown[end + 1..]);
        } else {
            rest = &rest[first.len_utf8()..];
            match first {
                '\x1b' => keys.push(Key::Escape),
                '\r' | '\n' => keys.push(Key::Enter),
                '\x7f' | '\x08' => keys.push(Key::Backspace),
                '\x03' | '\x04' => keys.push(Key::Interrupt),
                first if first.is_control() => {}
                first => keys.push(Key::Char(first)),
            }
        }
    }
    keys
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_keys() {
        #[track_caller]
        fn check(bytes: &[u8], want: &[Key]) {
            assert_eq!(parse(bytes), want, "{bytes:?}");
        }
        check(b"", &[]);
        check("aä/".as_bytes(), &[Key::Char('a'), Key::Char('ä'), Key::Char('/')]);
        check(b"\x1b[A\x1bOB\x1b[5~", &[Key::Up, Key::Down, Key::PageUp]);
        check(b"\x1b", &[Key::Escape]);
        check(b"\x1b[1;5Cx\x1b[", &[Key::Char('x')]);
        check(
            b"\r\x7f\x03\x00\xff",
            &[Key::Enter, Key::Backspace, Key::Interrupt, Key::Char('\u{fffd}')],
        );
    }
}
