//! The key of the lock: a literal with expressions in braces, another expression, or the function's name.

use proc_macro2::{Ident, Span, TokenStream};
use quote::{ToTokens as _, quote, quote_spanned};
use syn::ext::IdentExt as _;
use syn::{Error, Expr, Lit, LitStr, Result};

use crate::syntax::{literal, located, nearest};

/// Where the key comes from.
pub(crate) enum Key {
    /// A literal, with what stands in its braces.
    Formatted(Template),
    /// An expression that converts into a key.
    Computed(Expr),
    /// The path of the function.
    Default,
}

/// A literal in the syntax of `format!`, whose expressions have become arguments.
pub(crate) struct Template {
    format: String,
    arguments: Vec<Expr>,
    span: Span,
}

impl Key {
    /// The key of `key = …`.
    pub(crate) fn of(value: Expr) -> Result<Self> {
        match literal(&value) {
            Some(Lit::Str(text)) if text.value().is_empty() => Err(Error::new(
                text.span(),
                "the key is empty; give it the name of what it protects, such as \"team:{team.id}:trade\"",
            )),
            Some(Lit::Str(text)) => Template::of(text).map(Self::Formatted),
            Some(other @ (Lit::Int(_) | Lit::Float(_) | Lit::Bool(_) | Lit::Char(_))) => {
                Err(Error::new(other.span(), "a key is a string, such as \"team:{team.id}:trade\""))
            }
            _ => Ok(Self::Computed(value)),
        }
    }

    /// Refuses a name in braces that is none of the function's parameters, and like one. The compiler would suggest to
    /// put the parameter in the place of the whole literal.
    pub(crate) fn check_names(&self, parameters: &[String]) -> Result<()> {
        let Self::Formatted(template) = self else { return Ok(()) };
        for name in template.arguments.iter().filter_map(variable).map(|name| name.unraw().to_string()) {
            // Constants and statics are in upper case.
            if parameters.contains(&name) || name == "self" || name.starts_with(char::is_uppercase) {
                continue;
            }
            if let Some(parameter) = nearest(&name, parameters) {
                let problem = format!("`{name}` in the key is no parameter; did you mean `{{{parameter}}}`?");
                return Err(Error::new(template.span, problem));
            }
        }
        Ok(())
    }

    /// The expression that makes it.
    pub(crate) fn expression(&self, function: &Ident) -> TokenStream {
        match self {
            Self::Formatted(template) => template.expression(),
            Self::Computed(expression) => expression.to_token_stream(),
            Self::Default => qualified(function),
        }
    }
}

/// The path of the function's module and its name.
fn qualified(function: &Ident) -> TokenStream {
    let name = function.unraw().to_string();
    quote!(::core::concat!(::core::module_path!(), "::", #name))
}

impl Template {
    /// Reads the literal: `{{` and `}}` are braces, and between single braces stands an expression, with a colon and a
    /// format behind it perhaps.
    fn of(literal: &LitStr) -> Result<Self> {
        let (text, span) = (literal.value(), literal.span());
        let (mut format, mut arguments) = (String::new(), Vec::new());
        let mut rest = text.as_str();
        while let Some(at) = rest.find(['{', '}']) {
            let (before, tail) = rest.split_at(at);
            format.push_str(before);
            rest = if let Some(rest) = tail.strip_prefix("{{").or_else(|| tail.strip_prefix("}}")) {
                format.push_str(&tail[..2]);
                rest
            } else if let Some(content) = tail.strip_prefix('{') {
                let (placeholder, rest) = Placeholder::of(content, span)?;
                format.push('{');
                format.push_str(placeholder.format);
                format.push('}');
                arguments.push(placeholder.expression);
                rest
            } else {
                return Err(Error::new(
                    span,
                    "a `}` in the key closes nothing; for the character itself, write `}}`",
                ));
            };
        }
        format.push_str(rest);
        Ok(Self { format, arguments, span })
    }

    fn expression(&self) -> TokenStream {
        let Self { format, arguments, span } = self;
        let format = LitStr::new(format, *span);
        let at = located(*span);
        quote_spanned!(at=> ::std::format!(#format #(, #arguments)*))
    }
}

/// What stands between single braces.
struct Placeholder<'a> {
    expression: Expr,
    /// With the colon; empty if there is none.
    format: &'a str,
}

impl<'a> Placeholder<'a> {
    /// Reads a placeholder behind its opening brace, and returns what follows its
    /// closing one. An expression may contain braces and strings itself, so the
    /// placeholder ends at the first brace before which there is a complete one.
    fn of(content: &'a str, span: Span) -> Result<(Self, &'a str)> {
        let ends = || content.match_indices('}').map(|(at, _)| at);
        for end in ends() {
            if let Some(placeholder) = Self::within(&content[..end], span)? {
                return Ok((placeholder, &content[end + 1..]));
            }
        }
        let Some(end) = ends().next() else {
            return Err(Error::new(
                span,
                "a `{` in the key is not closed; for the character itself, write `{{`",
            ));
        };
        let inner = &content[..end];
        Err(Error::new(
            span,
            if inner.split(':').next().is_some_and(|expression| expression.trim().is_empty()) {
                "`{}` in the key names nothing; write an expression between the braces, such as `{team.id}`"
                    .to_owned()
            } else {
                format!(
                    "`{{{inner}}}` in the key is no expression; write one such as `{{team.id}}`, with a format behind a colon perhaps: \
                     `{{id:>05}}`"
                )
            },
        ))
    }

    /// The placeholder that is all of this text, if it is one.
    fn within(text: &'a str, span: Span) -> Result<Option<Self>> {
        if let Some(expression) = expression(text, span) {
            return Ok(Some(Self { expression, format: "" }));
        }
        for (at, _) in text.match_indices(':') {
            let is_path = text[at + 1..].starts_with(':') || text[..at].ends_with(':');
            if let Some(expression) = expression(&text[..at], span).filter(|_| !is_path) {
                let format = &text[at..];
                if format.contains(".*") {
                    return Err(Error::new(
                        span,
                        "a precision of `.*` in the key takes two arguments, and there is one; write a number, or `.name$`",
                    ));
                }
                // An opening brace is no part of a format.
                return Ok((!format.contains('{')).then_some(Self { expression, format }));
            }
        }
        Ok(None)
    }
}

/// The variable that an expression is, or a part of.
fn variable(expression: &Expr) -> Option<&Ident> {
    match expression {
        Expr::Path(path) => path.path.get_ident(),
        Expr::Field(field) => variable(&field.base),
        Expr::MethodCall(call) => variable(&call.receiver),
        Expr::Index(index) => variable(&index.expr),
        _ => None,
    }
}

fn expression(text: &str, span: Span) -> Option<Expr> {
    let text = text.trim();
    if text.is_empty() {
        return None;
    }
    LitStr::new(text, span).parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn template(text: &str) -> Result<(String, Vec<String>)> {
        let template = Template::of(&LitStr::new(text, Span::call_site()))?;
        let arguments = template.arguments.iter().map(|argument| argument.to_token_stream().to_string());
        Ok((template.format, arguments.map(|text| text.replace(' ', "")).collect()))
    }

    #[test]
    fn expressions_become_arguments() {
        for (text, format, arguments) in [
            ("plain", "plain", &[][..]),
            ("team:{team.id}:trade", "team:{}:trade", &["team.id"]),
            ("{self.name}", "{}", &["self.name"]),
            ("{a}{b}", "{}{}", &["a", "b"]),
            ("{ a }", "{}", &["a"]),
            ("{team.id()}:{ids[0]}", "{}:{}", &["team.id()", "ids[0]"]),
            ("{orders::KIND}:{Kind::of(x)}", "{}:{}", &["orders::KIND", "Kind::of(x)"]),
            ("{<T as Named>::NAME}", "{}", &["<TasNamed>::NAME"]),
            ("{{{id}}}", "{{{}}}", &["id"]),
            ("{{}}", "{{}}", &[]),
            ("{{id}}", "{{id}}", &[]),
            ("{if a { 1 } else { 2 }}", "{}", &["ifa{1}else{2}"]),
            ("{map[\"}\"]}:x", "{}:x", &["map[\"}\"]"]),
            ("{a + 1}", "{}", &["a+1"]),
            ("{größe}", "{}", &["größe"]),
        ] {
            let arguments: Vec<String> = arguments.iter().map(ToString::to_string).collect();
            assert_eq!(template(text).unwrap(), (format.to_owned(), arguments), "{text}");
        }
    }

    #[test]
    fn a_format_stands_behind_a_colon() {
        for (text, format, argument) in [
            ("{id:>05}", "{:>05}", "id"),
            ("{id:?}", "{:?}", "id"),
            ("{id:#x}", "{:#x}", "id"),
            ("{a::b:?}", "{:?}", "a::b"),
            ("{x.y(|z: u8| z):width$}", "{:width$}", "x.y(|z:u8|z)"),
            ("{S { a: 1 }:?}", "{:?}", "S{a:1}"),
            ("{id:*>5}", "{:*>5}", "id"),
            ("{id:}", "{:}", "id"),
        ] {
            assert_eq!(template(text).unwrap(), (format.to_owned(), vec![argument.to_owned()]), "{text}");
        }
    }

    #[test]
    fn what_is_no_key_is_refused() {
        for (text, words) in [
            ("{", "is not closed"),
            ("a{b", "is not closed"),
            ("a}b", "closes nothing"),
            ("{a}}", "closes nothing"),
            ("{}", "names nothing"),
            ("{ }", "names nothing"),
            ("{:?}", "names nothing"),
            ("{team.}", "`{team.}` in the key is no expression"),
            ("{a b}", "no expression"),
            ("{1 +}", "no expression"),
            ("{a:.*}", "two arguments"),
        ] {
            let error = template(text).err().unwrap().to_string();
            assert!(error.contains(words), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "[{}:a.()\"' é]{0,16}") {
            let _ = template(&text);
        }

        #[test]
        fn text_with_its_braces_doubled_has_no_arguments(text in ".{0,16}") {
            let doubled = text.replace('{', "{{").replace('}', "}}");
            prop_assert_eq!(template(&doubled).unwrap(), (doubled, Vec::new()));
        }
    }
}
