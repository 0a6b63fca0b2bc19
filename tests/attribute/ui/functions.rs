use setnx_lock::locked;

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

#[locked]
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

