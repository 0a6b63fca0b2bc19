//! The pages for users, here so that they can be read with the code and their examples are compiled.

/// Includes a page of `docs/` as a module. A page links to others by references, which it defines at its end for
/// readers of the file. `links.txt` comes first, and so its definitions win: they lead to the modules.
macro_rules! pages {
    ($($name:ident: $file:literal;)*) => {$(
        #[doc = include_str!("documentation/links.txt")]
        #[doc = ""]
        #[doc = include_str!(concat!("../docs/", $file))]
        #[allow(clippy::doc_markdown, reason = "names of products stand in the prose as they are written")]
        pub mod $name {}
    )*};
}

pages! {
    guide: "guide.md";
    several: "several.md";
    limits: "limits.md";
    from_ruby: "from-ruby.md";
    servers: "servers.md";
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub mod readme {}

#[cfg(all(doctest, feature = "macros"))]
#[doc = include_str!("../macros/src/example.md")]
pub mod attribute {}
