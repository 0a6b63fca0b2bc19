//! The ids of declared locks, printed as Ruby prints them.

use std::borrow::Cow;

/// An id of a [`DeclaredLock`](crate::DeclaredLock): an integer, a string or a float.
///
/// A float is printed the way Ruby prints it: `7.0`, where Rust prints `7`. For other types, pass the text that
/// Ruby prints for `#{id}`.
pub trait LockId {
    /// Returns the id as it appears in the key.
    fn to_key_part(&self) -> Cow<'_, str>;
}

macro_rules! integers {
    ($($integer:ty),*) => {$(
        impl LockId for $integer {
            fn to_key_part(&self) -> Cow<'_, str> {
                self.to_string().into()
            }
        }
    )*};
}
integers!(i8, i16, i32, i64, i128, isize, u8, u16, u32, u64, u128, usize);

impl LockId for str {
    fn to_key_part(&self) -> Cow<'_, str> {
        self.into()
    }
}

impl LockId for String {
    fn to_key_part(&self) -> Cow<'_, str> {
        self.as_str().into()
    }
}

impl LockId for Cow<'_, str> {
    fn to_key_part(&self) -> Cow<'_, str> {
        self.as_ref().into()
    }
}

impl<T: LockId + ?Sized> LockId for &T {
    fn to_key_part(&self) -> Cow<'_, str> {
        (**self).to_key_part()
    }
}

impl LockId for f64 {
    /// Prints like Ruby's `Float#to_s`: the shortest digits that read back the same, with an exponent below 0.0001,
    /// from 1e15 on for whole numbers, and from 1e16 on for all.
    fn to_key_part(&self) -> Cow<'_, str> {
        if self.is_nan() {
            return "NaN".into();
        }
        if self.is_infinite() {
            return if *self > 0.0 { "Infinity" } else { "-Infinity" }.into();
        }
        let is_plain = match self.abs() {
            size if size < 1e15 => size == 0.0 || size >= 1e-4,
            size => size < 1e16 && self.fract() != 0.0,
        };
        if is_plain {
            return format!("{self:?}").into();
        }
        let text = format!("{self:e}");
        let Some((digits, exponent)) = text.split_once('e') else {
            unreachable!("it is written with an exponent")
        };
        let digits = if digits.contains('.') { digits.to_owned() } else { format!("{digits}.0") };
        let (sign, exponent) = exponent.strip_prefix('-').map_or(("+", exponent), |exponent| ("-", exponent));
        format!("{digits}e{sign}{exponent:0>2}").into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_printed_as_ruby_prints_them() {
        let table = [
            (7.0, "7.0"),
            (-0.0, "-0.0"),
            (0.1, "0.1"),
            (0.0001, "0.0001"),
            (0.000_099, "9.9e-05"),
            (1e-10, "1.0e-10"),
            (1e14, "100000000000000.0"),
            (1_234_567_890_123_456.0, "1.234567890123456e+15"),
            (1_278_069_994_411_036.5, "1278069994411036.5"),
            (1e15, "1.0e+15"),
            (1e16, "1.0e+16"),
            (1.5e300, "1.5e+300"),
            (f64::NAN, "NaN"),
            (f64::NEG_INFINITY, "-Infinity"),
        ];
        for (float, text) in table {
            assert_eq!(float.to_key_part(), text);
        }
        assert_eq!((7_u64.to_key_part(), (-7).to_key_part()), ("7".into(), "-7".into()));
        assert_eq!(("a:b".to_key_part(), String::new().to_key_part()), ("a:b".into(), "".into()));
    }
}
