//! Arguments that are durations: a literal is read when the code is compiled, anything else is an expression.

use std::time::Duration;

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, quote_spanned};
use syn::{Error, Expr, Lit, LitStr, Result};

use crate::syntax::{literal, located};

const EXAMPLE: &str = "write for example \"15s\", \"500ms\" or \"2m 30s\"";

/// A duration as an argument gives it.
pub(crate) enum DurationArgument {
    /// Of a literal, which stands there.
    Known(Duration, Span),
    Unknown(Expr),
}

impl DurationArgument {
    pub(crate) fn of(name: &str, value: Expr) -> Result<Self> {
        match literal(&value) {
            Some(Lit::Str(text)) => Ok(Self::Known(duration(text)?, text.span())),
            Some(other) => Err(Error::new(
                other.span(),
                format!("`{name}` is a string with a unit, or an expression of type `Duration`; {EXAMPLE}"),
            )),
            None => Ok(Self::Unknown(value)),
        }
    }

    /// Returns the duration and where it stands, if it is known.
    pub(crate) fn known(&self) -> Option<(Duration, Span)> {
        match *self {
            Self::Known(duration, span) => Some((duration, span)),
            Self::Unknown(_) => None,
        }
    }
}

impl ToTokens for DurationArgument {
    fn to_tokens(&self, tokens: &mut TokenStream) {
        match self {
            Self::Known(duration, span) => tokens.extend(constant(*duration, *span)),
            Self::Unknown(expression) => expression.to_tokens(tokens),
        }
    }
}

/// An expression that makes this duration.
fn constant(duration: Duration, span: Span) -> TokenStream {
    let (seconds, nanos) = (duration.as_secs(), duration.subsec_nanos());
    let span = located(span);
    quote_spanned!(span=> ::core::time::Duration::new(#seconds, #nanos))
}

fn duration(literal: &LitStr) -> Result<Duration> {
    let text = literal.value();
    humantime::parse_duration(&text)
        .map_err(|error| Error::new(literal.span(), format!("{text:?} is no duration: {error}; {EXAMPLE}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use quote::quote;

    fn argument(tokens: TokenStream) -> Result<DurationArgument> {
        DurationArgument::of("timeout", syn::parse2(tokens).unwrap())
    }

    fn known(text: &str) -> Result<Duration> {
        argument(quote!(#text)).map(|argument| argument.known().unwrap().0)
    }

    #[test]
    fn literals_are_read_with_their_units() {
        for (text, millis) in
            [("15s", 15_000), ("500ms", 500), ("2m 30s", 150_000), ("1h", 3_600_000), ("0s", 0)]
        {
            assert_eq!(known(text).unwrap(), Duration::from_millis(millis), "{text}");
        }
    }

    #[test]
    fn what_is_no_duration_is_refused_with_an_example() {
        for text in ["", "15", "15 parsecs", "s", "-1s", "1s;", "99999999999999999999s"] {
            let error = known(text).err().unwrap().to_string();
            assert!(error.contains(&format!("{text:?}")) && error.contains("\"500ms\""), "{error}");
        }
        for tokens in [quote!(15), quote!(1.5), quote!(true), quote!('s'), quote!(b"5s")] {
            let error = argument(tokens).err().unwrap().to_string();
            assert!(error.contains("`timeout` is a string with a unit"), "{error}");
        }
    }

    #[test]
    fn expressions_are_left_as_they_are() {
        let tokens = quote!(Duration::from_secs(5));
        let argument = argument(tokens.clone()).unwrap();
        assert!(argument.known().is_none());
        assert_eq!(argument.to_token_stream().to_string(), tokens.to_string());
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in ".{0,20}") {
            let _ = known(&text);
        }

        #[test]
        fn what_is_written_is_what_is_meant(millis in 0..u64::from(u32::MAX)) {
            let duration = Duration::from_millis(millis);
            prop_assert_eq!(known(&humantime::format_duration(duration).to_string()).unwrap(), duration);
        }
    }
}
