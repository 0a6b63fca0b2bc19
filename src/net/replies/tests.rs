//! What the replies to a look at a key come to.

use super::*;
use crate::net::errors::RefusalKind;

/// What the replies come to of what looks whether a key holds what is expected.
fn looked(without_ttl: bool, mut replies: Vec<Value>) -> ReadReply {
    read_look(without_ttl, &mut replies)
}

#[test]
fn what_is_looked_for_is_the_value_and_whether_it_has_a_time_to_live() {
    let x = || Value::BulkString(b"x".to_vec());
    let found = |value: Option<&[u8]>| Ok(Ok(Reply::Bulk(value.map(<[u8]>::to_vec))));
    assert_eq!(looked(false, vec![Value::Okay, x(), Value::Okay]), found(Some(b"x")));
    let with_ttl = |value, left| looked(true, vec![Value::Okay, value, Value::Int(left), Value::Okay]);
    assert_eq!(with_ttl(x(), NO_TTL), found(Some(b"x")));
    assert_eq!(with_ttl(Value::Nil, -2), found(None));
    assert_eq!(with_ttl(x(), -2), found(None), "its time ended behind GET");
    assert_eq!(
        with_ttl(x(), 700),
        Ok(Ok(Reply::Expiring(Box::new((b"x".to_vec(), Duration::from_millis(700))))))
    );
    let refused = redis::parse_redis_value(b"-NOPERM no\r\n").unwrap();
    let outcome = looked(true, vec![Value::Okay, x(), refused, Value::Okay]);
    assert!(matches!(outcome, Ok(Err(refusal)) if refusal.kind() == RefusalKind::NotPermitted));
}

#[test]
fn replies_to_a_look_that_have_another_form_are_an_error() {
    let (okay, nil, one) = (|| Value::Okay, || Value::Nil, || Value::Int(1));
    for replies in [
        vec![nil()],
        vec![okay(), nil()],
        vec![okay(), nil(), nil()],
        vec![one(), nil(), okay()],
        vec![okay(), one(), okay()],
        vec![okay(), nil(), okay(), okay()],
    ] {
        assert!(looked(false, replies.clone()).is_err(), "{replies:?}");
    }
    assert!(looked(true, vec![okay(), nil(), okay()]).is_err());
}
