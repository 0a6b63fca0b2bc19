//! Numbers as Ruby's `String#to_f` reads them: the longest numeric prefix, and never an error. Rust's own parser is no
//! substitute, and every redis-objects gem decides by this reading whether a lock has expired.

/// A number as Ruby's `String#to_f` finds it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Float {
    pub(super) value: f64,
    /// Whether the number was all there was, white space around it aside.
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
#[allow(clippy::float_cmp, reason = "the same double is what is asked for")]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The table was made by Ruby 3.1.
    #[test]
    fn reads_what_ruby_reads() {
        let table: &[(&str, f64)] = &[
            ("", 0.0),
            ("abc", 0.0),
            ("nan", 0.0),
            ("inf", 0.0),
            ("Infinity", 0.0),
            ("1_000.5", 1000.5),
            (".5", 0.5),
            ("-.5", -0.5),
            ("1e400", f64::INFINITY),
            ("-1e400", f64::NEG_INFINITY),
            ("1795154048.25:host:pid", 1_795_154_048.25),
            (" 12.5abc", 12.5),
            ("\t\n\u{b}\u{c}\r 7", 7.0),
            ("0x1A", 0.0),
            ("+7", 7.0),
            ("+-7", 0.0),
            ("+ 7", 0.0),
            ("2018-07-10 12:00:00", 2018.0),
            ("1.", 1.0),
            ("1.e5", 1.0),
            ("1e5", 100_000.0),
            ("1E+2", 100.0),
            ("1e-2x", 0.01),
            ("1e", 1.0),
            ("1e+", 1.0),
            ("1__0", 1.0),
            ("_1", 0.0),
            ("1_", 1.0),
            ("1_.5", 1.0),
            ("1._5", 1.0),
            ("1.5_5", 1.55),
            ("1e1_0", 1e10),
            ("1e_5", 1.0),
            ("1_e5", 1.0),
            ("00012", 12.0),
            ("1\u{0}2", 1.0),
            (".", 0.0),
            ("-", 0.0),
        ];
        for (text, expected) in table {
            let read = to_f(text.as_bytes()).value;
            assert!(read == *expected, "{text:?}: {read}, Ruby {expected}");
        }
    }

    #[test]
    fn tells_whether_the_number_was_all_there_was() {
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
