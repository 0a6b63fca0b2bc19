//! The arguments of the attribute, each with its name and its form. Knows which there are; does not know which fit together.

use proc_macro2::{Ident, Span};
use syn::ext::IdentExt as _;
use syn::parse::{Parse, ParseStream};
use syn::punctuated::Punctuated;
use syn::{Error, Expr, Result, Token, parenthesized};

use crate::syntax::nearest;

/// How an argument is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// `name`.
    Flag,
    /// `name = value`.
    Value,
    /// `name = value`, which is a duration.
    Duration,
    /// `name(value, …)`.
    List,
}

/// What an argument does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// A method of `LockOptions` has its name and takes its value.
    Option,
    /// Something else, that the attribute does itself.
    Own,
}

/// All arguments. Those of the role `Option` have the names of methods.
const KNOWN: [(&str, Form, Role); 27] = [
    ("locker", Form::Value, Role::Own),
    ("key", Form::Value, Role::Own),
    ("prefix", Form::Value, Role::Own),
    ("args", Form::List, Role::Own),
    ("expiration", Form::Duration, Role::Own),
    ("held_until_released", Form::Flag, Role::Own),
    ("options", Form::Value, Role::Own),
    ("on_contention", Form::Value, Role::Own),
    ("skip", Form::Flag, Role::Own),
    ("keep", Form::Flag, Role::Own),
    ("guard", Form::Value, Role::Own),
    ("timeout", Form::Duration, Role::Option),
    ("wait_forever", Form::Flag, Role::Option),
    ("max_attempts", Form::Value, Role::Option),
    ("poll_interval", Form::Duration, Role::Option),
    ("polling", Form::Value, Role::Option),
    ("protocol", Form::Value, Role::Option),
    ("hold_at_least", Form::Duration, Role::Option),
    ("auto_extend", Form::Duration, Role::Option),
    ("verify_every", Form::Duration, Role::Option),
    ("fenced", Form::Flag, Role::Option),
    ("reentrant", Form::Flag, Role::Option),
    ("holder_name", Form::Value, Role::Option),
    ("takeover_margin", Form::Duration, Role::Option),
    ("notify_waiters", Form::Flag, Role::Option),
    ("time_slice", Form::Duration, Role::Option),
    ("stealing_as_the_gem_does", Form::Flag, Role::Option),
];

/// An argument as it is written.
pub(crate) struct Argument {
    pub(crate) name: Ident,
    pub(crate) role: Role,
    pub(crate) value: Value,
}

pub(crate) enum Value {
    Flag,
    One(Expr),
    Duration(Expr),
    Many(Vec<Expr>),
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
        let Some((_, form, role)) = KNOWN.into_iter().find(|(known, ..)| *known == written) else {
            return Err(Error::new(name.span(), unknown(&written)));
        };
        let is_value = input.peek(Token![=]);
        let is_list = input.peek(syn::token::Paren);
        let value = match form {
            Form::Flag if is_value || is_list => {
                return Err(Error::new(
                    name.span(),
                    format!("`{written}` takes no value; write `{written}`"),
                ));
            }
            Form::Flag => Value::Flag,
            Form::Value | Form::Duration if !is_value => {
                return Err(Error::new(name.span(), lacking(&written)));
            }
            Form::Value | Form::Duration => {
                input.parse::<Token![=]>()?;
                if input.is_empty() || input.peek(Token![,]) {
                    return Err(Error::new(name.span(), lacking(&written)));
                }
                let value = input.parse()?;
                if form == Form::Duration { Value::Duration(value) } else { Value::One(value) }
            }
            Form::List if !is_list => return Err(Error::new(name.span(), lacking(&written))),
            Form::List => {
                let content;
                parenthesized!(content in input);
                if content.is_empty() {
                    return Err(Error::new(name.span(), lacking(&written)));
                }
                let values = Punctuated::<Expr, Token![,]>::parse_terminated(&content)?;
                Value::Many(values.into_iter().collect())
            }
        };
        Ok(Self { name, role, value })
    }
}

impl Arguments {
    /// Returns where the argument of this name stands.
    pub(crate) fn span(&self, name: &str) -> Option<Span> {
        self.0.iter().find(|argument| argument.name == name).map(|argument| argument.name.span())
    }
}

/// What to write where an argument lacks its value.
fn lacking(name: &str) -> String {
    let example = match name {
        "locker" => "locker = LOCKER",
        "key" => "key = \"team:{team.id}:trade\"",
        "prefix" => "prefix = \"trade\"",
        "args" => "args(team.id, kind)",
        "options" => "options = OPTIONS",
        "on_contention" => "on_contention = AppError::Busy",
        "guard" => "guard = held",
        "max_attempts" => "max_attempts = 3",
        "polling" => "polling = POLLING",
        "protocol" => "protocol = Auto",
        "holder_name" => "holder_name = \"worker-1\"",
        duration => return format!("`{duration}` needs a value, such as `{duration} = \"5s\"`"),
    };
    format!("`{name}` needs a value, such as `{example}`")
}

/// What is said of a name that is not known: the one that is most like it, or all.
fn unknown(name: &str) -> String {
    let known = KNOWN.map(|(known, ..)| known);
    match nearest(name, known) {
        Some(nearest) => format!("there is no argument `{name}`; did you mean `{nearest}`?"),
        None => format!("there is no argument `{name}`; there are: {}", known.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(arguments: &str) -> String {
        syn::parse_str::<Arguments>(arguments).err().unwrap().to_string()
    }

    #[test]
    fn arguments_are_read_in_their_forms() {
        let arguments =
            "locker = self.locker, key = \"k\", args(a, b.c(),), fenced, timeout = \"5s\", max_attempts = 2,";
        let Arguments(arguments) = syn::parse_str(arguments).unwrap();
        let names: Vec<String> = arguments.iter().map(|argument| argument.name.to_string()).collect();
        assert_eq!(names, ["locker", "key", "args", "fenced", "timeout", "max_attempts"]);
        assert!(matches!(&arguments[2].value, Value::Many(values) if values.len() == 2));
        assert!(matches!(&arguments[3].value, Value::Flag));
        assert!(matches!(&arguments[4].value, Value::Duration(_)));
    }

    #[test]
    fn each_known_argument_says_what_it_lacks() {
        for (name, form, _) in KNOWN {
            if form == Form::Flag {
                assert!(problem(&format!("{name} = true")).contains("takes no value"), "{name}");
                assert!(syn::parse_str::<Arguments>(name).is_ok());
            } else {
                assert!(
                    problem(name).contains(&format!("`{name}` needs a value, such as `{name}")),
                    "{name}"
                );
                assert!(problem(&format!("{name} = ")).contains("needs a value"), "{name}");
            }
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
            ("wait", "did you mean `wait_forever`?"),
            ("lease_time", "there are: locker, key,"),
            ("reentrent", "did you mean `reentrant`?"),
            ("x", "there are: locker, key,"),
            ("acquire_timeout", "there are: locker, key,"),
        ] {
            assert!(problem(name).contains(words), "{name}: {}", problem(name));
        }
        assert!(problem("key = a, r#key = b").contains("`key` is given twice"));
        assert!(problem("fenced, reentrant, fenced").contains("`fenced` is given twice"));
    }
}
