//! The gem's `key:` templates: which of them can be used unchanged.
//! Also the prefix of the keys, made from the class name the way the gem makes it.

/// The only thing that is filled into a template.
pub(super) const ID: &str = "#{id}";

/// Returns true if each `)` of a template follows its `(`, and none is left open: the gem reads a template as
/// `%(…)`.
pub(super) const fn pairs_parentheses(template: &str) -> bool {
    let template = template.as_bytes();
    let (mut n, mut open) = (0, 0_usize);
    while n < template.len() {
        match template[n] {
            b'(' => open += 1,
            b')' if open == 0 => return false,
            b')' => open -= 1,
            _ => {}
        }
        n += 1;
    }
    open == 0
}

/// Returns true if Ruby would replace nothing in a template except each `#{id}`.
pub(super) const fn has_only_id(template: &str) -> bool {
    let (template, id) = (template.as_bytes(), ID.as_bytes());
    let mut n = 0;
    while n < template.len() {
        if template[n] == b'\\' {
            return false;
        }
        if template[n] == b'#' && n + 1 < template.len() && matches!(template[n + 1], b'{' | b'@' | b'$') {
            let mut m = 0;
            while m < id.len() {
                if n + m >= template.len() || template[n + m] != id[m] {
                    return false;
                }
                m += 1;
            }
        }
        n += 1;
    }
    true
}

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

/// A class name in lower case, with an underscore before each capital that begins a
/// word: one that follows a lower-case letter or a digit, and the last of several if a
/// lower-case letter follows it. Only plain letters and digits count, as in the gem.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_contains_nothing_but_the_id() {
        for good in ["#{id}", "a#{id}b", "#id", "{id}", "#", "a#", "#{id}#{id}", "##{id}"] {
            assert!(has_only_id(good), "{good}");
        }
        for bad in [
            "#@id",
            "a#$x",
            "a\\t#{id}",
            "\\",
            "#{name}",
            "#{id",
            "#{",
            "#{ id }",
            "#{id}#{x}",
            "#{}",
            "#{id.to_s}",
        ] {
            assert!(!has_only_id(bad), "{bad}");
        }
    }

    #[test]
    fn parentheses_of_a_template_pair() {
        for good in ["", "a", "()", "(a)(b)", "((#{id}))"] {
            assert!(pairs_parentheses(good), "{good}");
        }
        for bad in ["(", ")", ")(", "foo)#{id}", "foo(#{id}", "(()"] {
            assert!(!pairs_parentheses(bad), "{bad}");
        }
    }
}
