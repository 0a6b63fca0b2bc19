//! Numbers as Ruby's `String#to_f` reads them: the longest numeric prefix, and never an error. Rust's own parser is no
//! substitute, and every redis-objects gem decides by this reading whether a lock has expired.

/// A number as Ruby's `String#to_f` finds it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Float {
    pub(super) value: f64,
    /// True if the text is a number and nothing else, apart from white space around it.
    pub(super) whole: bool,
}

/// Reads the longest numeric prefix, never fails: `""` and `abc` are 0, `1_000.5` is 1000.5, ` 12.5abc` is 12.5.
/// No hexadecimal, no `nan`, no `inf`; `1e400` is infinite.
pub(super) fn to_f(bytes: &[u8]) -> Float {
    let space = |b: &u8| matches!(b, b' ' | b'\t'..=b'\r');
    let text = &bytes[bytes.iter().take_while(|b| space(b)).count()..];
    let mut number = String::with_capacity(text.len());
    let mut at = 0;
    if let Some(sign @ (b'+' | b'-')) = text.first() {
        number.push(char::from(*sign));
        at = 1;
    }
    let mut digits = take_digits(text, &mut at, &mut number);
    if text.get(at) == Some(&b'.') && text.get(at + 1).is_some_and(u8::is_ascii_digit) {
        number.push('.');
        at += 1;
        digits += take_digits(text, &mut at, &mut number);
    }
    if digits == 0 {
        return Float { value: 0.0, whole: false };
    }
    take_exponent(text, &mut at, &mut number);
    // What was collected is of a form that Rust reads, and reads to the nearest double, as Ruby does.
    let value = number.parse().unwrap_or(0.0);
    Float { value, whole: text[at..].iter().all(space) }
}

/// Takes digits, and single underscores between them; returns how many digits.
fn take_digits(text: &[u8], at: &mut usize, number: &mut String) -> usize {
    let start = number.len();
    while let Some(b) = text.get(*at) {
        let between = *b == b'_' && number.len() > start && text.get(*at + 1).is_some_and(u8::is_ascii_digit);
        if b.is_ascii_digit() {
            number.push(char::from(*b));
        } else if !between {
            break;
        }
        *at += 1;
    }
    number.len() - start
}

/// Takes `e`, a sign and digits, or leaves all of it where there are no digits.
fn take_exponent(text: &[u8], at: &mut usize, number: &mut String) {
    if !matches!(text.get(*at), Some(b'e' | b'E')) {
        return;
    }
    let mut exponent = String::from("e");
    let mut ahead = *at + 1;
    if let Some(sign @ (b'+' | b'-')) = text.get(ahead) {
        exponent.push(char::from(*sign));
        ahead += 1;
    }
    if take_digits(text, &mut ahead, &mut exponent) > 0 {
        number.push_str(&exponent);
        *at = ahead;
    }
}

#[cfg(test)]
#[allow(clippy::float_cmp, reason = "exactly the same double is expected")]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The rows of a file that Ruby wrote: bits of a float, and text.
    fn golden(file: &str) -> impl Iterator<Item = (u64, Vec<u8>)> + '_ {
        file.lines().filter(|line| !line.starts_with('#')).map(|line| {
            let (bits, text) = line.split_once('\t').expect("two columns");
            (u64::from_str_radix(bits, 16).expect("bits"), unescaped(text))
        })
    }

    /// Text in which odd bytes are written as `\x1f`.
    fn unescaped(text: &str) -> Vec<u8> {
        let mut parts = text.split("\\x");
        let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
        for part in parts {
            let (code, rest) = part.split_at(2);
            bytes.push(u8::from_str_radix(code, 16).expect("a byte"));
            bytes.extend_from_slice(rest.as_bytes());
        }
        bytes
    }

    #[test]
    fn reads_what_ruby_reads() {
        let file = include_str!("../../../compat/golden/to_f.tsv");
        let mut rows = 0;
        for (bits, text) in golden(file) {
            let read = to_f(&text).value;
            let expected = f64::from_bits(bits);
            assert_eq!(read.to_bits(), bits, "{}: {read}, Ruby {expected}", text.escape_ascii());
            rows += 1;
        }
        assert!(rows > 90, "{rows} rows");
        // As Ruby up to 3.3; later versions read an exponent behind a bare point. No known writer writes that.
        assert!(to_f(b"1.e5").value == 1.0);
    }

    #[test]
    fn reads_every_point_in_time_that_ruby_writes_without_loss() {
        let file = include_str!("../../../compat/golden/floats.tsv");
        for (bits, text) in golden(file) {
            assert_eq!(to_f(&text).value.to_bits(), bits, "{}", text.escape_ascii());
            assert!(to_f(&text).whole);
        }
        assert!(golden(file).count() > 250);
    }

    #[test]
    fn a_text_that_is_more_than_a_number_is_not_whole() {
        for text in ["1", " 1.5\n", "1e3", "+7"] {
            assert!(to_f(text.as_bytes()).whole, "{text:?}");
        }
        for text in ["", " ", "1 2", "1.", "1e", "abc", "1:host"] {
            assert!(!to_f(text.as_bytes()).whole, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn agrees_with_rust_where_rust_reads_plain_numbers(number in any::<f64>().prop_filter("finite", |f| f.is_finite())) {
            prop_assert_eq!(to_f(format!("{number:?}").as_bytes()).value, number);
            prop_assert_eq!(to_f(format!("{number}").as_bytes()).value, number);
        }

        #[test]
        fn a_suffix_that_is_no_number_changes_nothing(number in 0.0..4e9_f64, suffix in "[:;#a-df-z ][ -~]*") {
            prop_assert_eq!(to_f(format!("{number:?}{suffix}").as_bytes()).value, number);
        }

        #[test]
        fn any_bytes_are_read(bytes: Vec<u8>) {
            prop_assert!(!to_f(&bytes).value.is_nan());
        }
    }
}
