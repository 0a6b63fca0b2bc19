//! The arguments of the attribute, each with its name and its
//! value. Knows which there are; does not know which fit together.

use proc_macro2::{Ident, Span};
use syn::ext::IdentExt as _;
use syn::parse::{Parse, ParseStream};
use syn::punctuated::Punctuated;
use syn::spanned::Spanned as _;
use syn::{Error, Expr, ExprPath, Lit, Path, Result, Token};

use crate::syntax::{literal, nearest};

/// All arguments, each with an example.
const KNOWN: [(&str, &str); 10] = [
    ("locker", "locker = LOCKER"),
    ("key", "key = \"team:{team.id}:trade\""),
    ("expiration", "expiration = \"15s\""),
    ("timeout", "timeout = \"5s\""),
    ("protocol", "protocol = Auto"),
    ("auto_extend", "auto_extend = \"10m\""),
    ("on_contention", "on_contention = AppError::Busy"),
    ("guard", "guard = held"),
    ("options", "options = OPTIONS"),
    ("crate", "crate = my_name_of_setnx_lock"),
];

/// An argument as it is written.
pub(crate) struct Argument {
    pub(crate) name: Ident,
    pub(crate) value: Expr,
}

/// The arguments in their order, none of them twice.
pub(crate) struct Arguments(pub(crate) Vec<Argument>);

impl Parse for Arguments {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let arguments = Punctuated::<Argument, Token![,]>::parse_terminated(input)?;
        let mut found: Vec<Argument> = Vec::new();
        for argument in arguments {
            if found.iter().any(|other| other.name == argument.name) {
                let problem = format!("`{}` is given twice", argument.name);
                return Err(Error::new(argument.name.span(), problem));
            }
            found.push(argument);
        }
        Ok(Self(found))
    }
}

impl Parse for Argument {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let Ok(name) = Ident::parse_any(input) else {
            return Err(input.error("arguments have names, such as `key = \"team:{team.id}:trade\"`"));
        };
        let name = name.unraw();
        let written = name.to_string();
        let Some((_, example)) = KNOWN.into_iter().find(|(known, _)| *known == written) else {
            return Err(Error::new(name.span(), unknown(&written)));
        };
        let lacking = || Error::new(name.span(), format!("`{written}` needs a value, such as `{example}`"));
        if !input.peek(Token![=]) {
            return Err(lacking());
        }
        input.parse::<Token![=]>()?;
        if input.is_empty() || input.peek(Token![,]) {
            return Err(lacking());
        }
        Ok(Self { value: input.parse()?, name })
    }
}

impl Arguments {
    /// Returns the path of the library: the argument `crate`, for a dependency with another name.
    pub(crate) fn library(&self) -> Result<Path> {
        let given = self.0.iter().find(|argument| argument.name == "crate");
        let Some(Argument { value, .. }) = given else { return Ok(syn::parse_quote!(::setnx_lock)) };
        match literal(value) {
            Some(Lit::Str(text)) => text.parse_with(Path::parse_mod_style),
            _ => match value {
                Expr::Path(ExprPath { path, qself: None, .. }) => Ok(path.clone()),
                _ => Err(Error::new(
                    value.span(),
                    "`crate` is a path, such as `crate = my_name_of_setnx_lock`",
                )),
            },
        }
    }

    /// Returns where the argument of this name stands.
    pub(crate) fn span(&self, name: &str) -> Option<Span> {
        self.0.iter().find(|argument| argument.name == name).map(|argument| argument.name.span())
    }
}

/// What is said of a name that is not known: the one that is most like it, or all.
fn unknown(name: &str) -> String {
    let known = KNOWN.map(|(known, _)| known);
    match nearest(name, known) {
        Some(nearest) => format!("there is no argument `{name}`; did you mean `{nearest}`?"),
        None => {
            let known = known.join(", ");
            format!(
                "there is no argument `{name}`; there are: {known}; for a method of `LockOptions` write `options = LockOptions::…`"
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(arguments: &str) -> String {
        syn::parse_str::<Arguments>(arguments).err().unwrap().to_string()
    }

    #[test]
    fn arguments_are_read_in_their_order() {
        let arguments = "locker = self.locker, key = \"k\", timeout = \"5s\", guard = held,";
        let Arguments(arguments) = syn::parse_str(arguments).unwrap();
        let names: Vec<String> = arguments.iter().map(|argument| argument.name.to_string()).collect();
        assert_eq!(names, ["locker", "key", "timeout", "guard"]);
    }

    #[test]
    fn the_library_may_have_another_name() {
        for (arguments, expected) in [
            ("", "::setnx_lock"),
            ("crate = locks", "locks"),
            ("crate = \"locks\"", "locks"),
            ("crate = crate::facade::locks", "crate::facade::locks"),
        ] {
            let library = syn::parse_str::<Arguments>(arguments).unwrap().library().unwrap();
            assert_eq!(quote::quote!(#library).to_string().replace(' ', ""), expected);
        }
        for arguments in ["crate = 1", "crate = f()", "crate = \"1\""] {
            assert!(syn::parse_str::<Arguments>(arguments).unwrap().library().is_err(), "{arguments}");
        }
    }

    #[test]
    fn each_known_argument_says_what_it_lacks() {
        for (name, _) in KNOWN {
            let words = format!("`{name}` needs a value, such as `{name} = ");
            assert!(problem(name).contains(&words), "{name}");
            assert!(problem(&format!("{name} = ")).contains(&words), "{name}");
            assert!(problem(&format!("{name}(1)")).contains(&words), "{name}");
        }
    }

    #[test]
    fn names_that_are_not_known_lead_to_known_ones() {
        for (name, words) in [
            ("timout", "did you mean `timeout`?"),
            ("Key", "did you mean `key`?"),
            ("kye", "did you mean `key`?"),
            ("expire", "did you mean `expiration`?"),
            ("expires", "did you mean `expiration`?"),
            ("lease_time", "there are: locker, key,"),
            ("reentrant", "write `options = LockOptions::…`"),
            ("x", "there are: locker, key,"),
            ("acquire_timeout", "there are: locker, key,"),
        ] {
            assert!(problem(name).contains(words), "{name}: {}", problem(name));
        }
        assert!(problem("key = a, r#key = b").contains("`key` is given twice"));
    }
}
