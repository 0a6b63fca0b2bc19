use setnx_lock_macros::locked;

type Outcome = Result<(), setnx_lock::Error>;

#[locked(expiration = "15")]
fn a_duration_without_a_unit() -> Outcome {
    Ok(())
}

#[locked(timeout = 5)]
fn a_number_for_a_duration() -> Outcome {
    Ok(())
}

#[locked(expiration = "0s")]
fn no_lease() -> Outcome {
    Ok(())
}

#[locked(expiration = "900us")]
fn hardly_a_lease() -> Outcome {
    Ok(())
}

#[locked(expiration = "11years")]
fn a_lease_without_end() -> Outcome {
    Ok(())
}

#[locked(held_until_released, expiration = "5s")]
fn both_kinds_of_lease() -> Outcome {
    Ok(())
}

#[locked(options = OPTIONS, expiration = "5s")]
fn options_with_another_lease() -> Outcome {
    Ok(())
}

#[locked(timeout = "5s", wait_forever)]
fn two_ends_of_a_wait() -> Outcome {
    Ok(())
}

#[locked(poll_interval = "5ms", polling = POLLING)]
fn two_ways_of_polling() -> Outcome {
    Ok(())
}

#[locked(poll_interval = "0s")]
fn polling_without_a_pause() -> Outcome {
    Ok(())
}

#[locked(max_attempts = 0)]
fn no_attempt() -> Outcome {
    Ok(())
}

#[locked(hold_at_least = "20s", expiration = "10s")]
fn held_longer_than_the_lease() -> Outcome {
    Ok(())
}

#[locked(auto_extend = "20s")]
fn extended_to_less_than_the_default_lease() -> Outcome {
    Ok(())
}

#[locked(held_until_released, holder_name = "me")]
fn a_name_without_a_lease() -> Outcome {
    Ok(())
}

#[locked(held_until_released, protocol = Ttl)]
fn ttl_without_a_lease() -> Outcome {
    Ok(())
}

#[locked(protocol = Redlock)]
fn an_unknown_protocol() -> Outcome {
    Ok(())
}

#[locked(keep, hold_at_least = "1s")]
fn kept_and_held_at_least() -> Outcome {
    Ok(())
}

#[locked(keep, held_until_released)]
fn kept_for_ever() -> Outcome {
    Ok(())
}

fn main() {}
