//! The options of the lock: which arguments fit together, and the expression that makes the options of them.

use std::time::Duration;

use proc_macro2::{Ident, Span, TokenStream};
use quote::{quote, quote_spanned};
use syn::spanned::Spanned as _;
use syn::{Error, Expr, ExprPath, Lit, Path, Result};

use crate::arguments::{Argument, Arguments};
use crate::duration::DurationArgument;
use crate::syntax::{literal, located};

/// The expiration unless one is given.
const DEFAULT_EXPIRATION: Duration = Duration::from_secs(30);

/// What the library accepts: a millisecond to ten years.
const MIN: Duration = Duration::from_millis(1);
const MAX: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

const PROTOCOLS: [&str; 4] = ["Classic", "Watched", "Ttl", "Auto"];

/// Returns the expression that makes the options; the library has this path.
pub(crate) fn options(arguments: &Arguments, library: &Path) -> Result<TokenStream> {
    if let (Some(span), Some(_)) = (arguments.span("expiration"), arguments.span("options")) {
        let problem =
            "`options` and `expiration` exclude each other: the options have an expiration, or none, already";
        return Err(Error::new(span, problem));
    }
    let mut expiration = DurationArgument::Known(DEFAULT_EXPIRATION, Span::call_site());
    let (mut given, mut auto_extend, mut calls) = (None, None, TokenStream::new());
    for Argument { name, value } in &arguments.0 {
        let written = name.to_string();
        let value = match written.as_str() {
            "expiration" => {
                expiration = DurationArgument::of(&written, value.clone())?;
                continue;
            }
            "options" => {
                given = Some(value);
                continue;
            }
            "protocol" => protocol(value, library)?,
            "timeout" | "auto_extend" => {
                let duration = DurationArgument::of(&written, value.clone())?;
                if written == "auto_extend" {
                    auto_extend = duration.known();
                }
                quote!(#duration)
            }
            _ => continue,
        };
        // The method of this name; what the user's editor shows there is its documentation.
        let method = Ident::new(&written, name.span());
        calls.extend(quote!(.#method(#value)));
    }
    let known = if given.is_some() { None } else { expiration.known() };
    limits(known, auto_extend, arguments.span("expiration").is_some())?;
    Ok(match given {
        Some(options) => quote!(::core::convert::identity::<#library::LockOptions>(#options) #calls),
        None => quote!(#library::LockOptions::expiring_after(#expiration) #calls),
    })
}

fn protocol(value: &Expr, library: &Path) -> Result<TokenStream> {
    let written = match value {
        Expr::Path(ExprPath { path, qself: None, .. }) => {
            path.segments.last().map(|segment| segment.ident.to_string())
        }
        _ => match literal(value) {
            Some(Lit::Str(text)) => Some(text.value()),
            _ => None,
        },
    };
    let is_text = literal(value).is_some();
    let named = |protocol: &&str| {
        written
            .as_ref()
            .is_some_and(|written| written == protocol || is_text && written.eq_ignore_ascii_case(protocol))
    };
    let Some(protocol) = PROTOCOLS.into_iter().find(named) else {
        return Err(Error::new(value.span(), format!("a protocol is one of {}", PROTOCOLS.join(", "))));
    };
    let variant = Ident::new(protocol, located(value.span()));
    Ok(quote_spanned!(located(value.span())=> #library::Protocol::#variant))
}

/// Refuses durations that the library accepts in no lock, or not together.
fn limits(
    expiration: Option<(Duration, Span)>,
    auto_extend: Option<(Duration, Span)>,
    is_given: bool,
) -> Result<()> {
    let problem = match (expiration, auto_extend) {
        (Some((expiration, span)), _) if expiration < MIN => (
            span,
            "the expiration is below a millisecond, so the lease would be over before the reply came; give the longest time the work \
             can take",
        ),
        (Some((expiration, span)), _) if expiration > MAX => (
            span,
            "the expiration is over ten years; for a lock that never expires, use `options = LockOptions::without_expiration()`",
        ),
        (_, Some((at_most, span))) if at_most > MAX => (
            span,
            "over ten years a worker that hangs would hold the lock for ever; give the longest time that the work may ever take",
        ),
        (Some((expiration, _)), Some((at_most, span))) if at_most < expiration => (
            span,
            if is_given {
                "`auto_extend` allows less time in total than the expiration; give the longest time that the work may ever take, or a \
                 shorter `expiration`"
            } else {
                "`auto_extend` allows less time in total than the expiration, 30s unless given; give the longest time that the work may \
                 ever take, or a shorter `expiration`"
            },
        ),
        _ => return Ok(()),
    };
    Err(Error::new(problem.0, problem.1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options_of(arguments: &str) -> Result<String> {
        let arguments: Arguments = syn::parse_str(arguments).unwrap();
        options(&arguments, &arguments.library()?).map(|tokens| tokens.to_string().replace(' ', ""))
    }

    #[test]
    fn options_are_calls_in_the_order_of_the_arguments() {
        for (arguments, expected) in [
            ("", "expiring_after(::core::time::Duration::new(30u64,0u32))"),
            ("expiration = \"1500ms\"", "expiring_after(::core::time::Duration::new(1u64,500000000u32))"),
            ("expiration = LEASE", "expiring_after(LEASE)"),
            ("options = BASE, timeout = T", "identity::<::setnx_lock::LockOptions>(BASE).timeout(T)"),
            ("timeout = T, expiration = A, auto_extend = B", "(A).timeout(T).auto_extend(B)"),
            ("expiration = A, protocol = Ttl", "(A).protocol(::setnx_lock::Protocol::Ttl)"),
            ("expiration = A, protocol = \"ttl\"", "(A).protocol(::setnx_lock::Protocol::Ttl)"),
            ("expiration = A, protocol = Protocol::Auto", "(A).protocol(::setnx_lock::Protocol::Auto)"),
            ("locker = L, key = \"k\", guard = g, expiration = A", "(A)"),
        ] {
            let tokens = options_of(arguments).unwrap();
            assert!(tokens.ends_with(expected), "{arguments}: {tokens}");
        }
    }

    #[test]
    fn what_is_invalid_is_refused() {
        for (arguments, words) in [
            ("expiration = \"0s\"", "below a millisecond"),
            ("expiration = \"999us\"", "below a millisecond"),
            ("expiration = \"11years\"", "over ten years"),
            ("options = O, expiration = \"1s\"", "exclude each other"),
            ("protocol = Fast", "one of Classic, Watched, Ttl, Auto"),
            ("protocol = ttl", "one of Classic, Watched, Ttl, Auto"),
            ("protocol = 1", "one of Classic, Watched, Ttl, Auto"),
            ("protocol = \"fast\"", "one of Classic, Watched, Ttl, Auto"),
            ("auto_extend = \"11years\"", "over ten years"),
            ("auto_extend = \"10s\"", "30s unless given"),
            ("expiration = \"5s\", auto_extend = \"4s\"", "than the expiration;"),
        ] {
            let error = options_of(arguments).err().unwrap().to_string();
            assert!(error.contains(words), "{arguments}: {error}");
        }
    }

    #[test]
    fn what_only_the_program_knows_is_left_to_it() {
        for arguments in
            ["expiration = A, auto_extend = \"1s\"", "options = O, auto_extend = \"1s\"", "timeout = \"0s\""]
        {
            options_of(arguments).unwrap();
        }
    }
}
