//! What the other files need of the syntax tree: literals, and the spans of what is generated.

use proc_macro2::Span;
use syn::{Expr, Lit};

/// A span for generated code that errors are reported at. Its names
/// are not those of the user, and the lints see that it is generated.
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

/// How like a known name another must be to be taken for it.
const ALIKE: f64 = 0.8;

/// The known name that another was probably meant to be.
pub(crate) fn nearest<T: AsRef<str>>(name: &str, known: impl IntoIterator<Item = T>) -> Option<T> {
    let name = name.to_lowercase();
    let likeness = |known: &T| match strsim::osa_distance(&name, known.as_ref()) {
        0 | 1 => 1.0,
        _ => strsim::jaro_winkler(&name, known.as_ref()),
    };
    let nearest = known.into_iter().max_by(|one, other| likeness(one).total_cmp(&likeness(other)));
    nearest.filter(|nearest| likeness(nearest) >= ALIKE)
}
