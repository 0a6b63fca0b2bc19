//! The long documents, here so that they can be read beside the code and their examples are compiled.

/// A page of `docs/` as a module. Its links to other pages are references, which the page itself defines for readers of the file. Here
/// the definitions come first, and so they win: they lead to the modules.
macro_rules! pages {
    ($($name:ident: $file:literal $(, $picture:literal)?;)*) => {$(
        #[doc = "[algorithm.md]: crate::documentation::algorithm"]
        #[doc = "[algorithm.md#how-it-is-tested]: crate::documentation::algorithm#how-it-is-tested"]
        #[doc = "[algorithm.md#lost-replies]: crate::documentation::algorithm#lost-replies"]
        #[doc = "[algorithm.md#watched-and-ttl]: crate::documentation::algorithm#watched-and-ttl"]
        #[doc = "[design.md#how-are-commands-of-several-threads-pipelined-and-why-by-default]: crate::documentation::design#how-are-commands-of-several-threads-pipelined-and-why-by-default"]
        #[doc = "[from-ruby.md]: crate::documentation::from_ruby"]
        #[doc = "[from-ruby.md#traps-of-the-gem]: crate::documentation::from_ruby#traps-of-the-gem"]
        #[doc = "[from-ruby.md#which-protocol]: crate::documentation::from_ruby#which-protocol"]
        #[doc = "[limits.md]: crate::documentation::limits"]
        #[doc = "[limits.md#classic-and-watched-compared]: crate::documentation::limits#classic-and-watched-compared"]
        #[doc = "[limits.md#terms]: crate::documentation::limits#terms"]
        #[doc = "[operations.md]: crate::documentation::operations"]
        #[doc = "[operations.md#clocks]: crate::documentation::operations#clocks"]
        #[doc = "[operations.md#outcomes]: crate::documentation::operations#outcomes"]
        #[doc = "[performance.md]: crate::documentation::performance"]
        #[doc = "[servers.md]: crate::documentation::servers"]
        #[doc = "[servers.md#rights]: crate::documentation::servers#rights"]
        #[doc = "[threads.svg]: #plot"]
        #[doc = "[waiting.md]: crate::documentation::waiting"]
        #[doc = "[wire.md]: crate::documentation::wire"]
        #[doc = ""]
        #[doc = include_str!(concat!("../docs/", $file))]
        $(
            #[doc = "<a id=\"plot\"></a>"]
            #[doc = ""]
            #[doc = include_str!(concat!("../docs/", $picture))]
        )?
        pub mod $name {}
    )*};
}

pages! {
    limits: "limits.md";
    operations: "operations.md";
    servers: "servers.md";
    from_ruby: "from-ruby.md";
    waiting: "waiting.md";
    performance: "performance.md", "threads.svg";
    algorithm: "algorithm.md";
    wire: "wire.md";
    design: "design.md";
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub mod readme {}
