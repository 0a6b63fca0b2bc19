use setnx_lock::locked;

#[locked(key = "")]
fn an_empty_key(id: u8) -> Result<u8, setnx_lock::Error> {
    Ok(id)
}

#[locked(key = "team:{id")]
fn a_brace_that_is_not_closed(id: u8) -> Result<u8, setnx_lock::Error> {
    Ok(id)
}

#[locked(key = "team:id}")]
fn a_brace_that_closes_nothing(id: u8) -> Result<u8, setnx_lock::Error> {
    Ok(id)
}

#[locked(key = "team:{}")]
fn nothing_between_braces(id: u8) -> Result<u8, setnx_lock::Error> {
    Ok(id)
}

#[locked(key = "team:{team.}")]
fn no_expression(id: u8) -> Result<u8, setnx_lock::Error> {
    Ok(id)
}

#[locked(key = "{id:.*}")]
fn a_precision_of_another_argument(id: f32) -> Result<f32, setnx_lock::Error> {
    Ok(id)
}

#[locked(key = 7)]
fn a_number(id: u8) -> Result<u8, setnx_lock::Error> {
    Ok(id)
}

#[locked(key = "{idd}:{ID}")]
fn nearly_a_parameter((id, _): (u8, u8)) -> Result<u8, setnx_lock::Error> {
    Ok(id)
}

#[locked(key = "team:{ids.0:?}")]
fn a_part_of_nearly_a_parameter(id: (u8, u8)) -> Result<u8, setnx_lock::Error> {
    Ok(id.0)
}

fn main() {}
