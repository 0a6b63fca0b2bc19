use setnx_lock_macros::locked;

#[locked]
async fn asynchronous() -> Result<(), setnx_lock::Error> {
    Ok(())
}

#[locked]
const fn constant() -> Result<(), setnx_lock::Error> {
    Ok(())
}

#[locked]
struct NoFunction;

trait Work {
    #[locked]
    fn without_a_body(&self) -> Result<(), setnx_lock::Error>;
}

#[locked]
fn nothing() {}

#[locked(skip)]
fn unit() -> () {}

#[locked]
fn never() -> ! {
    panic!()
}

#[locked]
fn a_tuple() -> (u8, u8) {
    (1, 2)
}

#[locked]
fn an_option() -> Option<u8> {
    None
}

#[locked(skip)]
fn skips_without_an_option() -> Result<u8, setnx_lock::Error> {
    Ok(1)
}

#[locked(skip, on_contention = Busy)]
fn skips_and_converts() -> Result<Option<u8>, setnx_lock::Error> {
    Ok(None)
}

fn main() {}
