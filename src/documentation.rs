//! The long documents, here so that they can be read beside the code and their examples are compiled.

/// A page of `docs/` as a module. Its links to other pages are references, which the page itself defines for readers of the file. Here
/// the definitions come first, and so they win: they lead to the modules.
macro_rules! pages {
    ($($name:ident: $file:literal $(, $picture:literal)?;)*) => {$(
        #[doc = include_str!("documentation/links.txt")]
        #[doc = ""]
        #[doc = include_str!(concat!("../docs/", $file))]
        $(
            #[doc = "<a id=\"plot\"></a>"]
            #[doc = ""]
            #[doc = include_str!(concat!("../docs/", $picture))]
        )?
        #[allow(clippy::doc_markdown, reason = "names of products stand in the prose as they are written")]
        pub mod $name {}
    )*};
}

pages! {
    limits: "limits.md";
    holding: "holding.md";
    several: "several.md";
    cron: "cron.md";
    cli: "cli.md";
    operations: "operations.md";
    servers: "servers.md";
    from_ruby: "from-ruby.md";
    waiting: "waiting.md";
    performance: "performance.md", "threads.svg";
    comparison: "comparison.md";
    algorithm: "algorithm.md";
    wire: "wire.md";
    design: "design.md";
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub mod readme {}
