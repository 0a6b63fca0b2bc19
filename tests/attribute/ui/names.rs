// What only the compiler knows: its message points at what the user wrote.

use setnx_lock::locked;

#[locked(key = "{team.id}", locker = POOL)]
fn unknown_variables() -> Result<(), setnx_lock::Error> {
    Ok(())
}

#[locked]
fn no_default_locker() -> Result<(), setnx_lock::Error> {
    Ok(())
}

fn main() {}
