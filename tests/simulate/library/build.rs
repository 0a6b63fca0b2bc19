//! Has `src/system.rs` take everything from the simulation.

fn main() {
    println!("cargo::rustc-cfg=simulate");
    // No simulation has any of them.
    println!("cargo::rustc-check-cfg=cfg(feature, values(\"macros\", \"tls-native-tls\", \"tls-rustls\"))");
    println!("cargo::rerun-if-changed=build.rs");
}
