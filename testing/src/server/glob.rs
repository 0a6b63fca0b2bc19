//! Patterns of keys and channels: `*`, `?`, `[a-z]`, `[^a-z]` and `\`.

/// Returns true if the pattern matches the whole text.
pub(crate) fn matches(pattern: &[u8], text: &[u8]) -> bool {
    match (pattern.split_first(), text.split_first()) {
        (None, _) => text.is_empty(),
        (Some((b'*', rest)), _) => (0..=text.len()).any(|skipped| matches(rest, &text[skipped..])),
        (Some(_), None) => false,
        (Some((b'?', rest)), Some((_, left))) => matches(rest, left),
        (Some((b'[', set)), Some((byte, left))) => {
            let (is_in, rest) = in_set(set, *byte);
            is_in && matches(rest, left)
        }
        (Some((b'\\', [escaped, rest @ ..])), Some((byte, left))) => escaped == byte && matches(rest, left),
        (Some((expected, rest)), Some((byte, left))) => expected == byte && matches(rest, left),
    }
}

/// Returns true if the set that begins here has the byte, and what follows the set.
fn in_set(mut set: &[u8], byte: u8) -> (bool, &[u8]) {
    let negated = set.first() == Some(&b'^');
    if negated {
        set = &set[1..];
    }
    let mut found = false;
    loop {
        match set {
            [] => return (found != negated, set),
            [b']', rest @ ..] => return (found != negated, rest),
            [b'\\', escaped, rest @ ..] => {
                found |= *escaped == byte;
                set = rest;
            }
            [first, b'-', last, rest @ ..] => {
                found |= (*first.min(last)..=*first.max(last)).contains(&byte);
                set = rest;
            }
            [one, rest @ ..] => {
                found |= *one == byte;
                set = rest;
            }
        }
    }
}
