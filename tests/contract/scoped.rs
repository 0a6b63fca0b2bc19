//! The block form: `with` and `try_with`.

use std::time::Duration;
use std::{io, panic, thread};

use setnx_lock::Error;

use crate::support::{Outcome, Target, expiring, tests};

pub(super) const TESTS: super::Tests = tests![
    with_returns_what_its_body_returns,
    with_does_not_merge_the_result_of_its_body,
    a_panic_in_the_body_releases_the_lock,
    an_error_of_the_body_releases_the_lock_and_is_returned,
    a_nested_with_is_refused,
];

fn with_returns_what_its_body_returns(target: &Target) -> Outcome {
    let key = target.key("with");
    let lock = target.lock(&key, expiring().timeout(Duration::ZERO));
    let value = lock.with(|held| {
        assert_eq!(held.key(), &key.key);
        key.value()
    })?;
    assert!(value.is_some(), "the lock is held while the body runs");
    assert_eq!(key.value(), None);

    let held = target.lock(&key, expiring()).lock()?;
    let refused = lock.with(|_| unreachable!("another holder has the lock"));
    assert!(matches!(refused, Err(Error::Timeout { .. })), "{refused:?}");
    // As a statement: the outcome of a release may be ignored.
    held.release()?;
    assert_eq!(lock.with(|_| 42)?, 42);
    Ok(())
}

fn with_does_not_merge_the_result_of_its_body(target: &Target) -> Outcome {
    let key = target.key("with-result");
    let lock = target.lock(&key, expiring().timeout(Duration::ZERO));
    let read: Result<io::Result<String>, Error> = lock.with(|_| io::read_to_string("text".as_bytes()));
    assert_eq!(read??, "text");
    let failed: Result<io::Result<()>, Error> = lock.with(|_| Err(io::Error::other("went wrong")));
    assert_eq!(failed?.map_err(|error| error.to_string()), Err("went wrong".into()));
    assert_eq!(key.value(), None);
    Ok(())
}

fn a_panic_in_the_body_releases_the_lock(target: &Target) -> Outcome {
    let key = target.key("panic");
    let lock = target.lock(&key, expiring());
    // Unwinds as a panic does, without a message that would look like a failure.
    let unwind = || -> Result<(), Error> { panic::resume_unwind(Box::new("on purpose")) };
    assert!(panic::catch_unwind(|| lock.with(|_| unwind())).is_err());
    assert_eq!(key.value(), None);
    assert!(panic::catch_unwind(|| lock.try_with(|_| unwind())).is_err());
    assert_eq!(key.value(), None);
    lock.with(|_| ())?;
    Ok(())
}

fn an_error_of_the_body_releases_the_lock_and_is_returned(target: &Target) -> Outcome {
    #[derive(Debug, PartialEq)]
    enum Mine {
        Body(&'static str),
        Lock(String),
    }
    impl From<Error> for Mine {
        fn from(error: Error) -> Self {
            Mine::Lock(error.to_string())
        }
    }

    let key = target.key("error");
    let lock = target.lock(&key, expiring().timeout(Duration::ZERO));
    let failed: Result<(), Mine> = lock.try_with(|held| {
        assert_eq!(held.key(), &key.key);
        assert!(key.value().is_some());
        Err(Mine::Body("went wrong"))
    });
    assert_eq!(failed, Err(Mine::Body("went wrong")));
    assert_eq!(key.value(), None);
    assert_eq!(lock.try_with(|_| Ok::<_, Mine>(42)), Ok(42));

    let _held = target.lock(&key, expiring()).lock()?;
    let refused: Result<(), Mine> = lock.try_with(|_| unreachable!("another holder has the lock"));
    assert!(matches!(refused, Err(Mine::Lock(text)) if text.contains("not acquired without waiting")));
    Ok(())
}

fn a_nested_with_is_refused(target: &Target) -> Outcome {
    let key = target.key("nested");
    let lock = target.lock(&key, expiring().wait_forever());
    let other = target.lock(&target.key("nested-other"), expiring());
    lock.try_with(|_| {
        let error = lock.lock().expect_err("it would wait for itself");
        assert!(matches!(&error, Error::Nested { key: named, .. } if *named == key.key), "{error}");
        assert!(matches!(lock.clone().with(|_| ()), Err(Error::Nested { .. })));
        assert!(matches!(lock.clone().try_with(|_| Ok(())), Err(Error::Nested { .. })));
        thread::scope(|scope| scope.spawn(|| assert!(lock.try_lock().unwrap().is_none())).join()).unwrap();
        other.with(|_| ())
    })?;
    lock.with(|_| ())?;
    Ok(())
}
