use super::*;

fn read(bytes: &[u8]) -> LockState {
    LockState::of_value(Some(bytes))
}

#[test]
fn a_state_is_displayed_in_words() {
    let until = |micros: u64| LockState::Until { expiry: Expiry(Wall(micros)), holder: None };
    assert_eq!(until(1_532_000_016_492_303).to_string(), "expired at 2018-07-19T11:33:36.492Z");
    assert_eq!(
        until(32_503_680_000_492_303).to_string(),
        "held until 3000-01-01T00:00:00.492Z at the latest"
    );
    assert!(until(u64::MAX).to_string().contains("after the year 262142"));
    let expired = read(b"1532000016.5000000000000001:1532000000:worker:7").to_string();
    assert_eq!(expired, "expired at 2018-07-19T11:33:36.500Z, last held by worker:7");
    let held = read(b"9999999999.5000000000000001:1532000000:worker:7").to_string();
    let (by, until) = held.split_once(", ").unwrap();
    assert!(by.starts_with("held by worker:7 for "), "{held}");
    assert_eq!(until, "until 2286-11-20T17:46:39.500Z at the latest");
    assert_eq!(read(b"\x00oops").to_string(), "held with a value that no lock writes: \"\\u{0}oops\"");
    assert_eq!(format!("{:?}", read(b"abc")), "Unreadable(\"abc\")");
    let holder = read(b"1795157376.4923038374650192:1795157361:worker:7").holder().cloned().unwrap();
    assert_eq!((holder.name(), holder.since().timestamp()), ("worker:7", 1_795_157_361));
}

#[test]
fn data_of_other_programs_is_no_time_and_says_what_it_looks_like() {
    for (text, form) in [
        ("1531999999-4a5b-11e8", "a number with text behind it"),
        ("1795154048.25:host:pid", "a number with text behind it"),
        ("1795157376.49230383746501921:name", "a number with text behind it"),
        ("1531999999000", "a time in milliseconds"),
        ("1531999999000000", "a time in microseconds"),
        ("1531999999000000000", "a time in nanoseconds"),
        ("10000000000", "a number and not a time"),
        ("10000000000.5", "a number and not a time"),
        ("20180719113336", "a number and not a time"),
        ("0000000000020180719113336", "a number and not a time"),
        ("1531999999000000000000000.5", "a number and not a time"),
        ("1795154048.", "a number with text behind it"),
        ("1795154048.5\n", "a number with text behind it"),
    ] {
        let state = read(text.as_bytes());
        assert_eq!(state, LockState::Unreadable(text.as_bytes().into()), "{text:?}");
        assert!(state.to_string().ends_with(&format!(", which looks like {form}")), "{text:?}: {state}");
    }
}

#[test]
fn a_smaller_number_with_text_looks_like_nothing() {
    assert_eq!(read(b"0000000001abc").looks_like(), None);
}

proptest::proptest! {
    #[test]
    fn any_value_is_displayed(bytes: Vec<u8>) {
        assert_ne!(read(&bytes).to_string(), "");
    }
}

#[test]
fn a_holder_is_displayed_with_how_long_it_has_held_the_lock() {
    let shown = |since: Wall| Holder(Named { name: "worker:7".into(), since }).to_string();
    let ago = |seconds: u64| shown(clock::now().wall.before(Duration::from_secs(seconds)));
    assert!(["worker:7 for 5 s", "worker:7 for 6 s"].contains(&ago(5).as_str()), "{}", ago(5));
    assert_eq!(ago(750), "worker:7 for 12 min");
    assert_eq!(ago(7510), "worker:7 for 2 h 5 min");
    assert_eq!(ago(2 * 86_400 + 3 * 3600 + 10), "worker:7 for 2 d 3 h");
    assert_eq!(
        shown(clock::now().wall.after(Duration::from_secs(60))),
        "worker:7 for 0 s",
        "its clock is ahead"
    );
}
