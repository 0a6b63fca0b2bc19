//! What the other files need of the syntax tree: literals, and the spans of what is generated.

use proc_macro2::Span;
use syn::{Expr, Lit};

/// A span for generated code that errors are reported at. Its names are not those of the user, and the lints see that it is generated.
pub(crate) fn located(span: Span) -> Span {
    Span::mixed_site().located_at(span)
}

/// The literal that an expression is, also inside the invisible group that a macro puts around it.
pub(crate) fn literal(expression: &Expr) -> Option<&Lit> {
    match expression {
        Expr::Lit(literal) => Some(&literal.lit),
        Expr::Group(group) => literal(&group.expr),
        _ => None,
    }
}

/// The number that an expression is, if it is a literal.
pub(crate) fn number(expression: &Expr) -> Option<u64> {
    match literal(expression)? {
        Lit::Int(number) => number.base10_parse().ok(),
        _ => None,
    }
}
