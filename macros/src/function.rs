//! The function that the attribute is on: what stands before its body, and what its return type can say.

use proc_macro2::{Delimiter, Group, Ident, Span, TokenStream, TokenTree};
use quote::{ToTokens as _, quote, quote_spanned};
use syn::ext::IdentExt as _;
use syn::parse::{Parse, ParseStream};
use syn::spanned::Spanned as _;
use syn::{Attribute, Error, FnArg, Path, Result, ReturnType, Signature, Token, Type, Visibility, braced};

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

    /// Refuses a return type that cannot say that the lock was not acquired, or was lost. A name other than those of
    /// the standard library may stand for a `Result`.
    pub(crate) fn check_return_type(&self) -> Result<()> {
        let ty = match &self.signature.output {
            ReturnType::Default => return Err(Error::new_spanned(&self.signature.ident, NO_RESULT)),
            ReturnType::Type(_, ty) => unwrapped(ty),
        };
        let is_result = match ty {
            Type::Path(path) => path.path.segments.last().is_some_and(|segment| segment.ident != "Option"),
            Type::Macro(_) => true,
            _ => false,
        };
        if is_result { Ok(()) } else { Err(Error::new_spanned(ty, NO_RESULT)) }
    }

    /// Where the return type stands.
    pub(crate) fn return_span(&self) -> Span {
        match &self.signature.output {
            ReturnType::Default => self.signature.ident.span(),
            ReturnType::Type(_, ty) => ty.span(),
        }
    }

    /// Returns the function with these statements before its body, and
    /// the end of the scope after it. `library`: the path of the library.
    pub(crate) fn around(&self, before: &TokenStream, scope: &Ident, library: &Path) -> TokenStream {
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
                let #returned = #library::__macros::run(#inner);
                #library::__macros::Scope::leave(#scope, #returned)
            },
        );
        outer.set_span(body.span());
        quote!(#(#attributes)* #visibility #signature #outer)
    }
}

const NO_RESULT: &str = "this return type cannot say that the lock was not acquired or was lost; return a `Result` whose error has \
     `From<setnx_lock::Error>`";

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

#[cfg(test)]
mod tests {
    use super::*;

    fn library() -> Path {
        syn::parse_quote!(::setnx_lock)
    }
    use quote::ToTokens as _;

    fn function(item: &str) -> Result<Function> {
        Function::of(item.parse().unwrap())
    }

    #[test]
    fn results_and_names_that_may_stand_for_them_are_accepted() {
        for ty in [
            "Result<(), E>",
            "std::result::Result<Vec<Option<u8>>, E>",
            "(io::Result<u8>)",
            "Outcome",
            "Answer<u8>",
        ] {
            function(&format!("fn f() -> {ty} {{}}")).unwrap().check_return_type().unwrap();
        }
    }

    #[test]
    fn types_that_show_no_error_are_refused() {
        for output in
            ["", "-> ()", "-> !", "-> (u8, u8)", "-> &str", "-> impl Future<Output = ()>", "-> Option<u8>"]
        {
            let error =
                function(&format!("fn f() {output} {{}}")).unwrap().check_return_type().err().unwrap();
            assert!(error.to_string().contains("cannot say"), "{output}: {error}");
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
            let tokens = function(&format!("{head} {{}}")).unwrap().around(
                &TokenStream::new(),
                &Ident::new("scope", Span::call_site()),
                &library(),
            );
            assert!(tokens.to_string().starts_with(head), "{tokens}");
        }
    }

    #[test]
    fn attributes_in_the_body_move_before_the_function() {
        let function = function("/// Doc.\npub fn f() -> R { #![allow(dead_code)] body() }").unwrap();
        assert_eq!(function.attributes.len(), 2);
        assert_eq!(function.body.stream().to_string(), "body ()");
        let tokens = function
            .around(&quote!(first();), &Ident::new("scope", Span::call_site()), &library())
            .to_string();
        assert!(tokens.contains("# [allow (dead_code)] pub fn f () -> R {"), "{tokens}");
        assert!(function.signature.output.to_token_stream().to_string().contains('R'));
    }
}
