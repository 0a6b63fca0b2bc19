use setnx_lock::locked;

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

#[locked(options = OPTIONS, expiration = "5s")]
fn options_with_another_lease() -> Outcome {
    Ok(())
}

#[locked(auto_extend = "20s")]
fn extended_to_less_than_the_default_lease() -> Outcome {
    Ok(())
}

#[locked(protocol = Redlock)]
fn an_unknown_protocol() -> Outcome {
    Ok(())
}

fn main() {}
