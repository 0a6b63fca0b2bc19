//! The attribute of the crate setnx-lock.

mod arguments;
mod duration;
mod expand;
mod function;
mod key;
mod options;
mod syntax;

use proc_macro::TokenStream;

/// TODO
#[proc_macro_attribute]
pub fn locked(arguments: TokenStream, item: TokenStream) -> TokenStream {
    expand::expand(arguments.into(), &item.into()).into()
}
