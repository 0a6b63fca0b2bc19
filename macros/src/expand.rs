//! What the attribute expands to: a lock that is acquired before the body and ended by the drop of a local variable, so that the body
//! stays the body of the function.

use proc_macro2::{Ident, Span, TokenStream};
use quote::{quote, quote_spanned};
use syn::spanned::Spanned as _;
use syn::{Error, Expr, Result};

use crate::arguments::{Argument, Arguments, Value};
use crate::function::{Function, Shape};
use crate::key::{self, Key, Prefix};
use crate::options;
use crate::syntax::located;

/// Where the lock comes from, and what is done with it.
struct Plan {
    locker: Expr,
    key: Key,
    options: TokenStream,
    contention: Contention,
    keeps: bool,
    guard: Option<Ident>,
}

/// What happens when another holder has the lock.
enum Contention {
    /// The lock's error is converted.
    Error,
    /// A function of the user converts it.
    Converted(Expr),
    Skipped(Span),
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
    let shape = function.shape()?;
    let failures = plan.failures(&function, shape)?;
    let name = &function.signature.ident;
    let (scope, error) = (local("scope"), local("error"));
    let Plan { locker, key, options, keeps, guard, .. } = &plan;
    let locker = quote_spanned!(located(locker.span())=> &#locker);
    let key = key.expression(name);
    let guard = guard.as_ref().map(
        |guard| quote!(let #guard: &::setnx_lock::LockGuard = ::setnx_lock::__macros::Scope::guard(&#scope);),
    );
    let lock = local("lock");
    // Two statements, so that what the arguments borrow is free while the lock is waited for.
    let before = quote! {
        let #lock = ::setnx_lock::Lock::new(#locker, #key, #options);
        let #scope = match ::setnx_lock::__macros::Scope::enter(#lock, #keeps) {
            ::core::result::Result::Ok(#scope) => #scope,
            ::core::result::Result::Err(#error) => { #failures }
        };
        #guard
    };
    Ok(match shape {
        Shape::ResultOfOther | Shape::ResultOrAlias => function.around(&before, &scope),
        // They cannot show a loss, which is in the log.
        Shape::Option | Shape::OptionOfResult => function.beginning_with(&before),
    })
}

/// A name that the body does not see.
fn local(name: &str) -> Ident {
    Ident::new(name, Span::mixed_site())
}

impl Plan {
    fn of(arguments: &Arguments) -> Result<Self> {
        let options = options::options(arguments)?;
        let mut plan = Self {
            // The compiler names this macro where there is no `LOCKER`.
            locker: syn::parse_quote!(::setnx_lock::__declare_a_static_LOCKER_or_add_the_argument_locker!()),
            key: Key::Joined(None, Vec::new()),
            options,
            contention: Contention::Error,
            keeps: false,
            guard: None,
        };
        for Argument { name, value, .. } in &arguments.0 {
            match (name.to_string().as_str(), value) {
                ("locker", Value::One(value)) => plan.locker = value.clone(),
                ("key", Value::One(value)) => plan.key = Key::of(value.clone())?,
                ("prefix", Value::One(value)) => {
                    if let Key::Joined(prefix, _) = &mut plan.key {
                        *prefix = Some(Prefix::of(value.clone())?);
                    }
                }
                ("args", Value::Many(values)) => {
                    if let Key::Joined(_, arguments) = &mut plan.key {
                        arguments.clone_from(values);
                    }
                }
                ("on_contention", Value::One(value)) => {
                    plan.contention = Contention::Converted(value.clone());
                }
                ("skip", _) => plan.contention = Contention::Skipped(name.span()),
                ("keep", _) => plan.keeps = true,
                ("guard", Value::One(value)) => plan.guard = Some(guard_name(value)?),
                _ => {}
            }
        }
        Ok(plan)
    }

    /// Returns the statements that return from the function if the lock was not acquired.
    fn failures(&self, function: &Function, shape: Shape) -> Result<TokenStream> {
        let at = located(function.return_span());
        // A conversion that is missing is reported at the return type.
        let error = Ident::new("error", at);
        if let Contention::Skipped(span) = self.contention {
            if shape == Shape::ResultOfOther {
                return Err(Error::new(
                    span,
                    "`skip` needs a return type that can say that nothing was done: `Result<Option<T>, E>`, `Option<T>` or \
                     `Option<Result<T, E>>`",
                ));
            }
        } else if shape == Shape::Option {
            return Err(Error::new(
                function.return_span(),
                "an `Option` does not show the lock's error; return a `Result`, or add `skip` for `None` while another holder has the lock",
            ));
        }
        let none = quote_spanned!(at=> ::core::option::Option::None);
        let failed = |error: TokenStream| {
            let failed = quote_spanned!(at=> ::core::result::Result::Err(#error));
            match shape {
                Shape::OptionOfResult => quote_spanned!(at=> ::core::option::Option::Some(#failed)),
                _ => failed,
            }
        };
        let is_contention = quote!(::setnx_lock::Error::is_contention(&#error));
        let converted = failed(quote_spanned!(at=> ::core::convert::From::from(#error)));
        Ok(match &self.contention {
            Contention::Error => quote_spanned!(at=> return #converted;),
            Contention::Converted(conversion) => {
                let by_user = failed(quote!(::setnx_lock::__macros::converted(#error, #conversion)));
                quote_spanned!(at=> if #is_contention { return #by_user; } return #converted;)
            }
            Contention::Skipped(_) if shape == Shape::Option => {
                let name = key::qualified(&function.signature.ident);
                quote_spanned! {at=>
                    if !#is_contention {
                        ::setnx_lock::__macros::report_skipped(#name, &#error);
                    }
                    return #none;
                }
            }
            Contention::Skipped(_) => {
                let skipped = match shape {
                    Shape::OptionOfResult => none,
                    _ => quote_spanned!(at=> ::core::result::Result::Ok(#none)),
                };
                quote_spanned!(at=> if #is_contention { return #skipped; } return #converted;)
            }
        })
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
