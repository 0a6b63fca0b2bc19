//! The long documents, here so that they can be read beside the code and their examples are compiled.

/// A page of `docs/` as a module. Its links to other pages are references, which the page itself defines for readers of the file. Here
/// the definitions come first, and so they win: they lead to the modules.
macro_rules! pages {
    ($($name:ident: $file:literal $(, $picture:literal)?;)*) => {$(
        #[doc = "[algorithm.md]: crate::documentation::algorithm"]
        #[doc = "[algorithm.md#extending-verifying-counting]: crate::documentation::algorithm#extending-verifying-counting"]
        #[doc = "[algorithm.md#how-it-is-tested]: crate::documentation::algorithm#how-it-is-tested"]
        #[doc = "[algorithm.md#lost-replies]: crate::documentation::algorithm#lost-replies"]
        #[doc = "[algorithm.md#several-keys-and-permits]: crate::documentation::algorithm#several-keys-and-permits"]
        #[doc = "[algorithm.md#watched-and-ttl]: crate::documentation::algorithm#watched-and-ttl"]
        #[doc = "[cli.md]: crate::documentation::cli"]
        #[doc = "[cli.md#checking-a-server]: crate::documentation::cli#checking-a-server"]
        #[doc = "[cli.md#compared-with-other-commands]: crate::documentation::cli#compared-with-other-commands"]
        #[doc = "[cli.md#cron-on-several-machines]: crate::documentation::cli#cron-on-several-machines"]
        #[doc = "[cli.md#if-the-lock-is-lost]: crate::documentation::cli#if-the-lock-is-lost"]
        #[doc = "[cli.md#looking-at-locks]: crate::documentation::cli#looking-at-locks"]
        #[doc = "[cli.md#removing-locks]: crate::documentation::cli#removing-locks"]
        #[doc = "[cli.md#ruby-and-shell-on-one-key]: crate::documentation::cli#ruby-and-shell-on-one-key"]
        #[doc = "[cli.schema.json]: crate::documentation::cli#json-output"]
        #[doc = "[comparison.md]: crate::documentation::comparison"]
        #[doc = "[cron.md]: crate::documentation::cron"]
        #[doc = "[cron.md#why-a-plain-lock-is-not-enough]: crate::documentation::cron#why-a-plain-lock-is-not-enough"]
        #[doc = "[design.md#how-do-threads-share-connections]: crate::documentation::design#how-do-threads-share-connections"]
        #[doc = "[design.md#why-do-the-permits-of-a-name-share-a-queue]: crate::documentation::design#why-do-the-permits-of-a-name-share-a-queue"]
        #[doc = "[from-ruby.md]: crate::documentation::from_ruby"]
        #[doc = "[from-ruby.md#traps-of-the-gem]: crate::documentation::from_ruby#traps-of-the-gem"]
        #[doc = "[from-ruby.md#which-protocol]: crate::documentation::from_ruby#which-protocol"]
        #[doc = "[holding.md]: crate::documentation::holding"]
        #[doc = "[holding.md#asking-the-server]: crate::documentation::holding#asking-the-server"]
        #[doc = "[holding.md#extending-a-lease]: crate::documentation::holding#extending-a-lease"]
        #[doc = "[holding.md#extending-while-the-work-runs]: crate::documentation::holding#extending-while-the-work-runs"]
        #[doc = "[holding.md#fencing-tokens]: crate::documentation::holding#fencing-tokens"]
        #[doc = "[holding.md#leaving-the-key-to-expire]: crate::documentation::holding#leaving-the-key-to-expire"]
        #[doc = "[holding.md#nested-calls]: crate::documentation::holding#nested-calls"]
        #[doc = "[holding.md#noticing-a-loss]: crate::documentation::holding#noticing-a-loss"]
        #[doc = "[holding.md#showing-the-holder]: crate::documentation::holding#showing-the-holder"]
        #[doc = "[limits.md]: crate::documentation::limits"]
        #[doc = "[limits.md#a-lease-ends]: crate::documentation::limits#a-lease-ends"]
        #[doc = "[limits.md#classic-and-watched-compared]: crate::documentation::limits#classic-and-watched-compared"]
        #[doc = "[limits.md#different-expirations-on-one-key]: crate::documentation::limits#different-expirations-on-one-key"]
        #[doc = "[limits.md#lost-replies]: crate::documentation::limits#lost-replies"]
        #[doc = "[limits.md#one-server]: crate::documentation::limits#one-server"]
        #[doc = "[limits.md#ruby-programs-on-the-same-keys]: crate::documentation::limits#ruby-programs-on-the-same-keys"]
        #[doc = "[limits.md#several-keys-and-permits]: crate::documentation::limits#several-keys-and-permits"]
        #[doc = "[limits.md#terms]: crate::documentation::limits#terms"]
        #[doc = "[limits.md#which-waiter-is-next]: crate::documentation::limits#which-waiter-is-next"]
        #[doc = "[operations.md]: crate::documentation::operations"]
        #[doc = "[operations.md#a-stuck-lock]: crate::documentation::operations#a-stuck-lock"]
        #[doc = "[operations.md#clocks]: crate::documentation::operations#clocks"]
        #[doc = "[operations.md#outcomes]: crate::documentation::operations#outcomes"]
        #[doc = "[performance.md]: crate::documentation::performance"]
        #[doc = "[performance.md#several-keys-permits-readers-and-writers]: crate::documentation::performance#several-keys-permits-readers-and-writers"]
        #[doc = "[servers.md]: crate::documentation::servers"]
        #[doc = "[servers.md#proxies-and-clusters]: crate::documentation::servers#proxies-and-clusters"]
        #[doc = "[servers.md#quirks-that-matter-to-locks]: crate::documentation::servers#quirks-that-matter-to-locks"]
        #[doc = "[servers.md#rights]: crate::documentation::servers#rights"]
        #[doc = "[several.md]: crate::documentation::several"]
        #[doc = "[several.md#permits]: crate::documentation::several#permits"]
        #[doc = "[several.md#readers-and-writers]: crate::documentation::several#readers-and-writers"]
        #[doc = "[several.md#what-the-guard-can-do]: crate::documentation::several#what-the-guard-can-do"]
        #[doc = "[threads.svg]: #plot"]
        #[doc = "[waiting.md]: crate::documentation::waiting"]
        #[doc = "[waiting.md#the-wait-queue]: crate::documentation::waiting#the-wait-queue"]
        #[doc = "[waiting.md#windows-for-pollers]: crate::documentation::waiting#windows-for-pollers"]
        #[doc = "[wire.md]: crate::documentation::wire"]
        #[doc = "[wire.md#several-keys-and-permits]: crate::documentation::wire#several-keys-and-permits"]
        #[doc = "[wire.md#what-a-holder-sends]: crate::documentation::wire#what-a-holder-sends"]
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
