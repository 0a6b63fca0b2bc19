//! What the attribute expands to: a lock that is acquired before the body, and ended after it. The body runs as a
//! closure, so that a loss that the end finds out becomes the function's error.

use proc_macro2::{Ident, Span, TokenStream};
use quote::{quote, quote_spanned};
use syn::spanned::Spanned as _;
use syn::{Error, Expr, Path, Result};

use crate::arguments::{Argument, Arguments};
use crate::function::Function;
use crate::key::Key;
use crate::options;
use crate::syntax::located;

/// Where the lock comes from, and what is done with it.
struct Plan {
    /// The path of the library.
    library: Path,
    locker: Expr,
    key: Key,
    options: TokenStream,
    /// What the user converts a contention error with.
    on_contention: Option<Expr>,
    guard: Option<Ident>,
}

/// Expands the attribute. After an error the function is left as it is, so that no errors follow where it is called.
pub(crate) fn expand(arguments: TokenStream, item: &TokenStream) -> TokenStream {
    expanded(arguments, item.clone()).unwrap_or_else(|error| {
        let error = error.into_compile_error();
        quote!(#error #item)
    })
}

fn expanded(arguments: TokenStream, item: TokenStream) -> Result<TokenStream> {
    let function = Function::of(item)?;
    let plan = Plan::of(&syn::parse2(arguments)?)?;
    plan.key.check_names(&function.parameters())?;
    function.check_return_type()?;
    let (scope, error) = (local("scope"), local("error"));
    let failure = plan.failure(&error, located(function.return_span()));
    let Plan { library, locker, key, options, guard, .. } = &plan;
    let locker = quote_spanned!(located(locker.span())=> &#locker);
    let key = key.expression(&function.signature.ident);
    let guard = guard
        .as_ref()
        .map(|guard| quote!(let #guard: &#library::LockGuard = #library::__macros::Scope::guard(&#scope);));
    let lock = local("lock");
    // Two statements, so that what the arguments borrow is free while the lock is waited for.
    let before = quote! {
        let #lock = #library::Lock::new(#locker, #key, #options);
        let #scope = match #library::__macros::Scope::enter(#lock) {
            ::core::result::Result::Ok(#scope) => #scope,
            ::core::result::Result::Err(#error) => { #failure }
        };
        #guard
    };
    Ok(function.around(&before, &scope, library))
}

/// A name that the body does not see.
fn local(name: &str) -> Ident {
    Ident::new(name, Span::mixed_site())
}

impl Plan {
    fn of(arguments: &Arguments) -> Result<Self> {
        let library = arguments.library()?;
        let mut plan = Self {
            // The compiler names this macro where there is no `LOCKER`.
            locker: syn::parse_quote!(#library::__declare_a_static_LOCKER_or_add_the_argument_locker!()),
            key: Key::Default,
            options: options::options(arguments, &library)?,
            library,
            on_contention: None,
            guard: None,
        };
        for Argument { name, value } in &arguments.0 {
            match name.to_string().as_str() {
                "locker" => plan.locker = value.clone(),
                "key" => plan.key = Key::of(value.clone())?,
                "on_contention" => plan.on_contention = Some(value.clone()),
                "guard" => plan.guard = Some(guard_name(value)?),
                _ => {}
            }
        }
        Ok(plan)
    }

    /// Returns the statements that return from the function if the lock was not acquired. A conversion that is missing
    /// is reported at the return type.
    fn failure(&self, error: &Ident, at: Span) -> TokenStream {
        let failed = |error| quote_spanned!(at=> return ::core::result::Result::Err(#error););
        let otherwise = failed(quote_spanned!(at=> ::core::convert::From::from(#error)));
        let Some(conversion) = &self.on_contention else { return otherwise };
        let library = &self.library;
        let by_user = failed(quote!(#library::__macros::converted(#error, #conversion)));
        quote_spanned!(at=> if #library::Error::is_contention(&#error) { #by_user } #otherwise)
    }
}

/// The name that the body sees the guard by.
fn guard_name(value: &Expr) -> Result<Ident> {
    match value {
        Expr::Path(path) if path.attrs.is_empty() && path.qself.is_none() => path.path.get_ident().cloned(),
        Expr::Group(group) => return guard_name(&group.expr),
        _ => None,
    }
    .filter(|name| name != "self")
    .ok_or_else(|| Error::new(value.span(), "`guard` is the name of a variable, such as `guard = held`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program whose dependency has another name knows none of this name.
    #[test]
    fn what_it_expands_to_names_the_library_as_the_program_does() {
        let function = quote!(
            fn f(id: u64) -> Result<(), Error> {
                Ok(())
            }
        );
        for arguments in [
            quote!(crate = locks),
            quote!(crate = locks, protocol = Auto, timeout = "1s", guard = held, on_contention = busy),
            quote!(crate = locks, options = BASE, key = "{id}", locker = L),
        ] {
            let expanded = expand(arguments.clone(), &function).to_string();
            assert!(
                expanded.contains("locks ::") && !expanded.contains("setnx_lock"),
                "{arguments}: {expanded}"
            );
        }
        assert!(expand(TokenStream::new(), &function).to_string().contains(":: setnx_lock :: Lock"));
    }
}
