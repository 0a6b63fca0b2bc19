//! The prefix of a declared lock's keys, made from the class name the way the gem makes it.

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Prefix {
    /// Made of a class name.
    Class { name: &'static str, modern: bool },
    /// Given as it is.
    Given(&'static str),
}

impl Prefix {
    pub(super) fn text(self) -> String {
        match self {
            Prefix::Given(prefix) => prefix.to_owned(),
            Prefix::Class { name, modern: true } => underscored(&name.replace("::", "__")),
            Prefix::Class { name, modern: false } => {
                underscored(name.rsplit_once("::").map_or(name, |(_, last)| last))
            }
        }
    }
}

/// A class name in lower case, with an underscore before each capital that begins a word: one that follows a lower-case letter
/// or a digit, and the last of several if a lower-case letter follows it. Only plain letters and digits count, as in the gem.
fn underscored(name: &str) -> String {
    let mut text = String::with_capacity(name.len() + 4);
    let mut before = ' ';
    let mut rest = name.chars().peekable();
    while let Some(c) = rest.next() {
        let begins_a_word = c.is_ascii_uppercase()
            && (before.is_ascii_lowercase()
                || before.is_ascii_digit()
                || before.is_ascii_uppercase() && rest.peek().is_some_and(char::is_ascii_lowercase));
        if begins_a_word {
            text.push('_');
        }
        text.extend(c.to_lowercase());
        before = c;
    }
    text
}
