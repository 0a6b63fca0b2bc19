//! The function that the attribute is on: what stands before its body, and what its return type can say.

use proc_macro2::{Delimiter, Group, Ident, Span, TokenStream, TokenTree};
use quote::{ToTokens as _, quote, quote_spanned};
use syn::ext::IdentExt as _;
use syn::parse::{Parse, ParseStream};
use syn::spanned::Spanned as _;
use syn::{
    Attribute, Error, FnArg, GenericArgument, Path, PathArguments, Result, ReturnType, Signature, Token,
    Type, Visibility, braced,
};

use crate::syntax::located;

/// A function with a body, whose statements are left unread.
pub(crate) struct Function {
    pub(crate) attributes: Vec<Attribute>,
    pub(crate) visibility: Visibility,
    pub(crate) signature: Signature,
    pub(crate) body: Group,
}

/// Keywords and types are among the names, which does no harm: they are no variables.
fn collect_names(pattern: TokenStream, names: &mut Vec<String>) {
    for token in pattern {
        match token {
            TokenTree::Ident(name) => names.push(name.unraw().to_string()),
            TokenTree::Group(group) => collect_names(group.stream(), names),
            TokenTree::Punct(_) | TokenTree::Literal(_) => {}
        }
    }
}

/// Returns whether `impl Trait` stands somewhere in a type.
fn names_impl(ty: TokenStream) -> bool {
    ty.into_iter().any(|token| match token {
        TokenTree::Ident(word) => word == "impl",
        TokenTree::Group(group) => names_impl(group.stream()),
        TokenTree::Punct(_) | TokenTree::Literal(_) => false,
    })
}

/// How a return type says that the lock was not acquired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// `Option<Result<…>>`.
    OptionOfResult,
    Option,
    /// A `Result` of something else than an `Option`.
    ResultOfOther,
    /// A `Result<Option<…>>`, or a name that may stand for it, or for another `Result`.
    ResultOrAlias,
}

impl Function {
    /// Reads the item that the attribute is on.
    pub(crate) fn of(item: TokenStream) -> Result<Self> {
        let is_function =
            item.clone().into_iter().any(|token| matches!(token, TokenTree::Ident(word) if word == "fn"));
        let span = item.clone();
        let function: Self = syn::parse2(item).map_err(|error| {
            if is_function {
                error
            } else {
                Error::new_spanned(span, "`#[locked]` goes on a function or a method")
            }
        })?;
        let Signature { asyncness, constness, .. } = &function.signature;
        if let Some(keyword) = asyncness {
            return Err(Error::new_spanned(
                keyword,
                "`#[locked]` does not go on an async function: locks block the thread, and a future may move to another one between two \
                 steps; put it on a blocking function, and call that in the runtime's pool for blocking work",
            ));
        }
        if let Some(keyword) = constness {
            return Err(Error::new_spanned(
                keyword,
                "`#[locked]` does not go on a const function: a lock is acquired when the program runs",
            ));
        }
        Ok(function)
    }

    /// Returns the names in the patterns of the parameters, without `self`.
    pub(crate) fn parameters(&self) -> Vec<String> {
        let mut names = Vec::new();
        for input in &self.signature.inputs {
            if let FnArg::Typed(typed) = input {
                collect_names(typed.pat.to_token_stream(), &mut names);
            }
        }
        names
    }

    /// Returns how the return type says that the lock was not acquired.
    pub(crate) fn shape(&self) -> Result<Shape> {
        let ty = match &self.signature.output {
            ReturnType::Default => return Err(Error::new_spanned(&self.signature.ident, RETURNS_NOTHING)),
            ReturnType::Type(_, ty) => unwrapped(ty),
        };
        match ty {
            Type::Never(_) => Err(Error::new_spanned(ty, RETURNS_NOTHING)),
            Type::Tuple(tuple) if tuple.elems.is_empty() => Err(Error::new_spanned(ty, RETURNS_NOTHING)),
            Type::Path(path) => Ok(shape(&path.path)),
            Type::Macro(_) => Ok(Shape::ResultOrAlias),
            _ => Err(Error::new_spanned(
                ty,
                "this return type cannot say that the lock was not acquired; return a `Result` of it, whose error has \
                 `From<setnx_lock::Error>`, or an `Option` of it with `skip`",
            )),
        }
    }

    /// Where the return type stands.
    pub(crate) fn return_span(&self) -> Span {
        match &self.signature.output {
            ReturnType::Default => self.signature.ident.span(),
            ReturnType::Type(_, ty) => ty.span(),
        }
    }

    /// Returns the function with these statements before its body, and the end of the scope after it.
    pub(crate) fn around(&self, before: &TokenStream, scope: &Ident) -> TokenStream {
        let Self { attributes, visibility, signature, body } = self;
        let output = &signature.output;
        // A closure cannot name an `impl Trait`, and finds out by itself.
        let output = if names_impl(output.to_token_stream()) { TokenStream::new() } else { quote!(#output) };
        let at = located(body.span());
        let mut inner = Group::new(Delimiter::Brace, body.stream());
        inner.set_span(at);
        let returned = Ident::new("returned", Span::mixed_site());
        let inner = quote_spanned!(at=> || #output #inner);
        let mut outer = Group::new(
            Delimiter::Brace,
            quote! {
                #before
                let #returned = ::setnx_lock::__macros::run(#inner);
                ::setnx_lock::__macros::Scope::leave(#scope, #returned)
            },
        );
        outer.set_span(body.span());
        quote!(#(#attributes)* #visibility #signature #outer)
    }

    /// Returns the function with these statements before its body.
    pub(crate) fn beginning_with(&self, statements: &TokenStream) -> TokenStream {
        let Self { attributes, visibility, signature, body } = self;
        // A span of this crate, and so of its edition: what the last expression of the body borrows ends before the lock is released, in
        // each edition of the user's crate.
        let mut inner = Group::new(Delimiter::Brace, body.stream());
        inner.set_span(located(body.span()));
        let mut outer = Group::new(Delimiter::Brace, quote!(#statements #inner));
        outer.set_span(body.span());
        quote!(#(#attributes)* #visibility #signature #outer)
    }
}

const RETURNS_NOTHING: &str = "this function returns nothing, and cannot say that the lock was not acquired; return `Result<(), E>`, where `E` has \
     `From<setnx_lock::Error>`, or `Option<()>` with `skip`";

impl Parse for Function {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let mut attributes = Attribute::parse_outer(input)?;
        let visibility = input.parse()?;
        let signature = input.parse()?;
        if input.peek(Token![;]) {
            return Err(input.error(
                "`#[locked]` goes on a function with a body: put it on the implementations of this one",
            ));
        }
        let content;
        let brace = braced!(content in input);
        for mut inner in Attribute::parse_inner(&content)? {
            inner.style = syn::AttrStyle::Outer;
            attributes.push(inner);
        }
        let mut body = Group::new(Delimiter::Brace, content.parse()?);
        body.set_span(brace.span.join());
        Ok(Self { attributes, visibility, signature, body })
    }
}

/// The type inside parentheses, and inside the invisible group that a macro puts around it.
fn unwrapped(ty: &Type) -> &Type {
    match ty {
        Type::Paren(inner) => unwrapped(&inner.elem),
        Type::Group(inner) => unwrapped(&inner.elem),
        _ => ty,
    }
}

fn shape(path: &Path) -> Shape {
    let argument = first_argument(path);
    let is_option = |path: &Path| ends_with(path, "Option");
    if is_option(path) {
        return if argument.is_some_and(|inner| ends_with(inner, "Result")) {
            Shape::OptionOfResult
        } else {
            Shape::Option
        };
    }
    let has_arguments =
        path.segments.last().is_some_and(|segment| !matches!(segment.arguments, PathArguments::None));
    if ends_with(path, "Result") && has_arguments && !argument.is_some_and(is_option) {
        Shape::ResultOfOther
    } else {
        Shape::ResultOrAlias
    }
}

fn ends_with(path: &Path, name: &str) -> bool {
    path.segments.last().is_some_and(|segment| segment.ident == name)
}

/// The path that is the first argument of a generic type, if that is one.
fn first_argument(path: &Path) -> Option<&Path> {
    let PathArguments::AngleBracketed(arguments) = &path.segments.last()?.arguments else { return None };
    let types = arguments.args.iter().filter_map(|argument| match argument {
        GenericArgument::Type(ty) => Some(unwrapped(ty)),
        _ => None,
    });
    match types.into_iter().next()? {
        Type::Path(path) => Some(&path.path),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quote::ToTokens as _;

    fn function(item: &str) -> Result<Function> {
        Function::of(item.parse().unwrap())
    }

    #[test]
    fn return_types_are_told_apart() {
        for (ty, shape) in [
            ("Result<(), E>", Shape::ResultOfOther),
            ("std::result::Result<Vec<Option<u8>>, E>", Shape::ResultOfOther),
            ("io::Result<(u8, u8)>", Shape::ResultOfOther),
            ("Result<Option<()>, E>", Shape::ResultOrAlias),
            ("(Result<core::option::Option<u8>>)", Shape::ResultOrAlias),
            ("crate::Result", Shape::ResultOrAlias),
            ("Outcome", Shape::ResultOrAlias),
            ("Answer<u8>", Shape::ResultOrAlias),
            ("Option<u8>", Shape::Option),
            ("std::option::Option<&'a str>", Shape::Option),
            ("Option<Result<u8, E>>", Shape::OptionOfResult),
            ("Option<anyhow::Result<()>>", Shape::OptionOfResult),
        ] {
            assert_eq!(function(&format!("fn f() -> {ty} {{}}")).unwrap().shape().unwrap(), shape, "{ty}");
        }
    }

    #[test]
    fn types_that_say_nothing_are_refused() {
        for (output, words) in [
            ("", "returns nothing"),
            ("-> ()", "returns nothing"),
            ("-> !", "returns nothing"),
            ("-> (u8, u8)", "cannot say"),
            ("-> &str", "cannot say"),
            ("-> impl Future<Output = ()>", "cannot say"),
        ] {
            let error =
                function(&format!("fn f() {output} {{}}")).unwrap().shape().err().unwrap().to_string();
            assert!(error.contains(words), "{output}: {error}");
        }
    }

    #[test]
    fn only_functions_with_a_body_that_run_on_one_thread_are_accepted() {
        for (item, words) in [
            ("async fn f() {}", "locks block the thread"),
            ("const fn f() {}", "when the program runs"),
            ("fn f();", "with a body"),
            ("struct S;", "goes on a function"),
            ("impl S { }", "goes on a function"),
            ("static S: u8 = 1;", "goes on a function"),
        ] {
            let error = function(item).err().unwrap().to_string();
            assert!(error.contains(words), "{item}: {error}");
        }
    }

    #[test]
    fn what_stands_before_the_body_stays() {
        for head in [
            "pub unsafe fn f () -> R",
            "extern \"C\" fn f () -> R",
            "pub (crate) unsafe extern \"C\" fn f < 'a , T : A > (& 'a self , T (x) : T) -> R where T : B",
        ] {
            let tokens = function(&format!("{head} {{}}")).unwrap().beginning_with(&TokenStream::new());
            assert!(tokens.to_string().starts_with(head), "{tokens}");
        }
    }

    #[test]
    fn attributes_in_the_body_move_before_the_function() {
        let function = function("/// Doc.\npub fn f() -> R { #![allow(dead_code)] body() }").unwrap();
        assert_eq!(function.attributes.len(), 2);
        assert_eq!(function.body.stream().to_string(), "body ()");
        let tokens = function.beginning_with(&quote!(first();)).to_string();
        assert!(tokens.contains("# [allow (dead_code)] pub fn f () -> R {"), "{tokens}");
        assert!(function.signature.output.to_token_stream().to_string().contains('R'));
    }
}
