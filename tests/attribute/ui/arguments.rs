use setnx_lock::locked;

#[locked(timout = "5s")]
fn a_name_that_is_nearly_known() -> Result<(), setnx_lock::Error> {
    Ok(())
}

#[locked(lock_at_most_for = "5s")]
fn an_unknown_name() -> Result<(), setnx_lock::Error> {
    Ok(())
}

#[locked(key = "a", key = "b")]
fn given_twice() -> Result<(), setnx_lock::Error> {
    Ok(())
}

#[locked(reentrant)]
fn a_flag_with_a_value() -> Result<(), setnx_lock::Error> {
    Ok(())
}

#[locked(timeout)]
fn a_duration_without_a_value() -> Result<(), setnx_lock::Error> {
    Ok(())
}

#[locked(timeout = "5s", on_contention = )]
fn a_value_that_is_missing() -> Result<(), setnx_lock::Error> {
    Ok(())
}

#[locked(key())]
fn no_arguments_for_the_key() -> Result<(), setnx_lock::Error> {
    Ok(())
}

#[locked(guard = self.held)]
fn a_guard_that_is_no_name() -> Result<(), setnx_lock::Error> {
    Ok(())
}

#[locked("team")]
fn a_value_without_a_name() -> Result<(), setnx_lock::Error> {
    Ok(())
}

#[locked(key = "a" guard = held)]
fn no_comma() -> Result<(), setnx_lock::Error> {
    Ok(())
}

// Called, without an error here: the functions are still there.
fn main() {
    let _ = given_twice();
}
