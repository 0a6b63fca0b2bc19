//! The gem's `key:` templates: which of them can be used unchanged.

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
