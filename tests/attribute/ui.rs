//! What is wrong is said where it stands, in words for the user. `TRYBUILD=overwrite cargo test --package
//! setnx-lock-attribute --test ui` writes the expected messages anew.

#[test]
fn errors_point_at_what_is_wrong() {
    trybuild::TestCases::new().compile_fail("ui/*.rs");
}
