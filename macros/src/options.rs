//! The options of the lock: which arguments fit together, and the expression that makes the options of them.

use std::time::Duration;

use proc_macro2::{Ident, Span, TokenStream};
use quote::{ToTokens as _, quote, quote_spanned};
use syn::spanned::Spanned as _;
use syn::{Error, Expr, ExprPath, Lit, Result};

use crate::arguments::{Argument, Arguments, Role, Value};
use crate::duration::DurationArgument;
use crate::syntax::{literal, located, number};

/// The expiration unless one is given.
const DEFAULT_EXPIRATION: Duration = Duration::from_secs(30);

/// What the library accepts at most: ten years.
const LONGEST: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

const SHORTEST: Duration = Duration::from_millis(1);

/// The longest name of a holder, in bytes.
const LONGEST_NAME: usize = 256;

const PROTOCOLS: [&str; 4] = ["Classic", "Watched", "Ttl", "Auto"];

/// What the options begin with.
enum Base {
    Expiring(DurationArgument),
    HeldUntilReleased,
    Given(Expr),
}

/// Returns the expression that makes the options.
pub(crate) fn options(arguments: &Arguments) -> Result<TokenStream> {
    exclusive(arguments)?;
    let mut base = Base::Expiring(DurationArgument::Known(DEFAULT_EXPIRATION, Span::call_site()));
    let mut durations = Vec::new();
    let mut calls = TokenStream::new();
    for Argument { name, role, value } in &arguments.0 {
        let written = name.to_string();
        let value = match value {
            Value::Duration(value) => {
                let duration = DurationArgument::of(&written, value.clone())?;
                durations.extend(duration.known().map(|(duration, span)| (written.clone(), duration, span)));
                if written == "expiration" {
                    base = Base::Expiring(duration);
                    continue;
                }
                duration.to_token_stream()
            }
            Value::One(value) if written == "options" => {
                base = Base::Given(value.clone());
                continue;
            }
            Value::One(value) if *role == Role::Option => one(&written, value)?,
            Value::Flag if written == "held_until_released" => {
                base = Base::HeldUntilReleased;
                continue;
            }
            Value::Flag | Value::One(_) | Value::Many(_) => TokenStream::new(),
        };
        if *role == Role::Option {
            // The method of this name; what the user's editor shows there is its documentation.
            let method = Ident::new(&written, name.span());
            calls.extend(quote!(.#method(#value)));
        }
    }
    limits(&durations)?;
    fitting(arguments, &base, &durations)?;
    let base = match base {
        Base::Expiring(expiration) => quote!(::setnx_lock::LockOptions::expiring_after(#expiration)),
        Base::HeldUntilReleased => quote!(::setnx_lock::LockOptions::held_until_released()),
        Base::Given(options) => quote!(::core::convert::identity::<::setnx_lock::LockOptions>(#options)),
    };
    Ok(quote!(#base #calls))
}

/// Refuses arguments that exclude each other, at the second of them.
fn exclusive(arguments: &Arguments) -> Result<()> {
    for (one, other, why) in [
        ("expiration", "held_until_released", "a lock either expires or is held until it is released"),
        ("options", "expiration", "the options have an expiration, or none, already"),
        ("options", "held_until_released", "the options have an expiration, or none, already"),
        ("timeout", "wait_forever", "a wait either ends or does not"),
        ("poll_interval", "polling", "polling has an interval already"),
        ("keep", "hold_at_least", "a lock that is kept is left to expire after its whole lease anyway"),
        (
            "keep",
            "held_until_released",
            "a lock that is kept and does not expire would have to be cleared by hand; give it an `expiration`",
        ),
        ("skip", "on_contention", "a call that is skipped has no error to convert"),
        ("key", "prefix", "a key is complete; write `prefix = \"…\", args(…)`, or `key = \"…\"` alone"),
        ("key", "args", "a key is complete; write `{…}` in it, or `prefix = \"…\"` instead"),
    ] {
        if let (Some(one_span), Some(other_span)) = (arguments.span(one), arguments.span(other)) {
            let position = |name: &str| arguments.0.iter().position(|argument| argument.name == name);
            let span = if position(one) < position(other) { other_span } else { one_span };
            return Err(Error::new(span, format!("`{one}` and `{other}` exclude each other: {why}")));
        }
    }
    Ok(())
}

/// Returns the expression of an option that is no duration.
fn one(name: &str, value: &Expr) -> Result<TokenStream> {
    match name {
        "protocol" => return protocol(value),
        "max_attempts" if number(value) == Some(0) => {
            return Err(Error::new(
                value.span(),
                "with `max_attempts = 0` the lock would never be acquired; give at least 1",
            ));
        }
        "holder_name" => {
            if let Some(Lit::Str(text)) = literal(value) {
                let problem = match text.value().len() {
                    0 => "the holder's name is empty; give what tells people which process it is",
                    length if length > LONGEST_NAME => {
                        "the holder's name is longer than 256 bytes; give a shorter one"
                    }
                    _ => return Ok(value.to_token_stream()),
                };
                return Err(Error::new(text.span(), problem));
            }
        }
        _ => {}
    }
    Ok(value.to_token_stream())
}

fn protocol(value: &Expr) -> Result<TokenStream> {
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
    Ok(quote_spanned!(located(value.span())=> ::setnx_lock::Protocol::#variant))
}

/// Refuses durations that the library accepts in no lock.
fn limits(durations: &[(String, Duration, Span)]) -> Result<()> {
    for (name, duration, span) in durations {
        let problem = match name.as_str() {
            "expiration" if *duration < SHORTEST => {
                "the expiration is below a millisecond, so the lease would be over before the reply came; give the longest time the work \
                 can take"
            }
            "expiration" if *duration > LONGEST => {
                "the expiration is over ten years; for a lock that never expires, use `held_until_released`"
            }
            "poll_interval" | "verify_every" if *duration < SHORTEST => {
                "below a millisecond the server would be kept busy; give some milliseconds at least"
            }
            "poll_interval" if *duration > LONGEST => {
                "a pause of more than ten years looks at nothing; give some seconds at most"
            }
            "takeover_margin" if *duration > LONGEST => {
                "the takeover margin is over ten years; some seconds make up for clocks"
            }
            "auto_extend" if *duration > LONGEST => {
                "over ten years a worker that hangs would hold the lock for ever; give the longest time that the work may ever take"
            }
            _ => continue,
        };
        return Err(Error::new(*span, problem));
    }
    Ok(())
}

/// Refuses what does not fit the expiration.
fn fitting(arguments: &Arguments, base: &Base, durations: &[(String, Duration, Span)]) -> Result<()> {
    if matches!(base, Base::HeldUntilReleased) {
        for (name, why) in [
            ("auto_extend", "such a lock never expires"),
            ("hold_at_least", "the key would have to be left to expire"),
            ("holder_name", "the name is kept for as long as the lease"),
            ("takeover_margin", "such a lock takes nothing over"),
        ] {
            if let Some(span) = arguments.span(name) {
                return Err(Error::new(span, format!("`{name}` needs an `expiration`: {why}")));
            }
        }
        let is_ttl = |argument: &&Argument| match &argument.value {
            Value::One(value) if argument.name == "protocol" => {
                protocol(value).is_ok_and(|tokens| tokens.to_string().ends_with("Ttl"))
            }
            _ => false,
        };
        if let Some(argument) = arguments.0.iter().find(is_ttl) {
            let problem = "the protocol Ttl needs an `expiration`: the server is to free the lock";
            return Err(Error::new(argument.name.span(), problem));
        }
    }
    let Base::Expiring(DurationArgument::Known(expiration, _)) = base else { return Ok(()) };
    let source = if arguments.span("expiration").is_some() { "" } else { ", 30s unless given" };
    for (name, duration, span) in durations {
        let problem = match name.as_str() {
            "hold_at_least" if duration > expiration => {
                format!(
                    "`hold_at_least` is longer than the expiration{source}, after which the lock is not held anyway; give less, or a longer \
                     `expiration`"
                )
            }
            "auto_extend" if duration < expiration => {
                format!(
                    "`auto_extend` allows less time in all than the expiration{source}; give the longest time that the work may ever take, \
                     or a shorter `expiration`"
                )
            }
            _ => continue,
        };
        return Err(Error::new(*span, problem));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options_of(arguments: &str) -> Result<String> {
        let arguments = syn::parse_str(arguments).unwrap();
        options(&arguments).map(|tokens| tokens.to_string().replace(' ', ""))
    }

    #[test]
    fn options_are_calls_in_the_order_of_the_arguments() {
        for (arguments, expected) in [
            ("", "expiring_after(::core::time::Duration::new(30u64,0u32))"),
            ("expiration = \"1500ms\"", "expiring_after(::core::time::Duration::new(1u64,500000000u32))"),
            ("expiration = LEASE", "expiring_after(LEASE)"),
            ("held_until_released, fenced", "held_until_released().fenced()"),
            ("options = BASE, reentrant", "identity::<::setnx_lock::LockOptions>(BASE).reentrant()"),
            ("wait_forever, expiration = A, max_attempts = 3", "(A).wait_forever().max_attempts(3)"),
            ("expiration = A, protocol = Ttl", "(A).protocol(::setnx_lock::Protocol::Ttl)"),
            ("expiration = A, protocol = \"ttl\"", "(A).protocol(::setnx_lock::Protocol::Ttl)"),
            ("expiration = A, protocol = Protocol::Auto", "(A).protocol(::setnx_lock::Protocol::Auto)"),
            ("locker = L, key = \"k\", skip, keep, guard = g, expiration = A", "(A)"),
        ] {
            let tokens = options_of(arguments).unwrap();
            assert!(tokens.ends_with(expected), "{arguments}: {tokens}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for (arguments, words) in [
            ("expiration = \"0s\"", "below a millisecond"),
            ("expiration = \"999us\"", "below a millisecond"),
            ("expiration = \"11years\"", "over ten years"),
            ("expiration = \"1s\", held_until_released", "exclude each other"),
            ("options = O, expiration = \"1s\"", "exclude each other"),
            ("options = O, held_until_released", "exclude each other"),
            ("timeout = \"1s\", wait_forever", "exclude each other"),
            ("polling = P, poll_interval = \"1s\"", "exclude each other"),
            ("keep, hold_at_least = \"1s\"", "exclude each other"),
            ("keep, held_until_released", "cleared by hand"),
            ("skip, on_contention = E", "exclude each other"),
            ("key = \"k\", args(a)", "exclude each other"),
            ("key = \"k\", prefix = \"p\"", "exclude each other"),
            ("max_attempts = 0", "at least 1"),
            ("holder_name = \"\"", "is empty"),
            ("protocol = Fast", "one of Classic, Watched, Ttl, Auto"),
            ("protocol = ttl", "one of Classic, Watched, Ttl, Auto"),
            ("protocol = 1", "one of Classic, Watched, Ttl, Auto"),
            ("protocol = \"fast\"", "one of Classic, Watched, Ttl, Auto"),
            ("poll_interval = \"0s\"", "below a millisecond"),
            ("verify_every = \"0s\"", "below a millisecond"),
            ("takeover_margin = \"11years\"", "over ten years"),
            ("auto_extend = \"11years\"", "over ten years"),
            ("auto_extend = \"10s\"", "30s unless given"),
            ("hold_at_least = \"31s\"", "30s unless given"),
            ("expiration = \"5s\", hold_at_least = \"6s\"", "longer than the expiration,"),
            ("expiration = \"5s\", auto_extend = \"4s\"", "than the expiration;"),
            ("held_until_released, auto_extend = \"1m\"", "needs an `expiration`"),
            ("held_until_released, hold_at_least = T", "needs an `expiration`"),
            ("held_until_released, holder_name = N", "needs an `expiration`"),
            ("held_until_released, takeover_margin = \"1s\"", "needs an `expiration`"),
            ("held_until_released, protocol = \"TTL\"", "needs an `expiration`"),
        ] {
            let error = options_of(arguments).err().unwrap().to_string();
            assert!(error.contains(words), "{arguments}: {error}");
        }
        let long = format!("holder_name = {:?}", "n".repeat(257));
        assert!(options_of(&long).err().unwrap().to_string().contains("256 bytes"));
    }

    #[test]
    fn what_only_the_program_knows_is_left_to_it() {
        for arguments in [
            "expiration = A, hold_at_least = \"1h\"",
            "options = O, auto_extend = \"1s\"",
            "options = O, hold_at_least = \"1h\", protocol = Ttl",
            "max_attempts = N",
            "holder_name = NAME",
            "timeout = \"0s\"",
        ] {
            options_of(arguments).unwrap();
        }
    }
}
