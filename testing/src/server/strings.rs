//! Commands on strings.

use super::call::{Call, not_an_integer, syntax_error, wrong_number};
use super::expiry::{End, Unit};
use super::keyspace::{Value, as_integer, wrong_type};
use super::reply::{Answer, OK, Refusal, Reply};
use super::version::ServerVersion;

use ServerVersion::{V2_0, V2_6};

pub(super) fn get(call: &mut Call<'_>) -> Answer {
    let key = call.word(1);
    Ok(Reply::bulk_or_nil(call.string(key)?.cloned()))
}

/// The condition of SET.
#[derive(Debug, Default)]
enum If {
    #[default]
    Any,
    Absent,
    Present,
    Equal(Vec<u8>),
}

impl If {
    fn is_met(&self, is_there: bool, old: Option<&Vec<u8>>) -> bool {
        match self {
            Self::Any => true,
            Self::Absent => !is_there,
            Self::Present => is_there,
            Self::Equal(value) => old == Some(value),
        }
    }
}

/// What the options of SET ask for.
#[derive(Debug, Default)]
struct Options {
    condition: If,
    returns_old: bool,
    keeps_end: bool,
    end: Option<(Unit, usize)>,
}

impl Options {
    fn parse(call: &mut Call<'_>) -> Result<Self, Refusal> {
        let version = call.version();
        let mut options = Self::default();
        let mut at = 3;
        while at < call.words.len() {
            let has_value = at + 1 < call.words.len();
            let is_new = version > V2_6;
            match (call.upper(at).as_str(), &options.condition) {
                ("NX", If::Any | If::Absent) => options.condition = If::Absent,
                ("XX", If::Any | If::Present) => options.condition = If::Present,
                ("GET", _) if is_new => options.returns_old = true,
                ("KEEPTTL", _) if is_new && options.end.is_none() => options.keeps_end = true,
                ("IFEQ", If::Any) if version.compares() && has_value => {
                    at += 1;
                    options.condition = If::Equal(call.word(at).to_vec());
                }
                (name, _) => {
                    let unit = Unit::of_option(name).filter(|unit| is_new || !unit.is_absolute());
                    let unit = unit.filter(|_| has_value && options.end.is_none() && !options.keeps_end);
                    at += 1;
                    options.end = Some((unit.ok_or_else(syntax_error)?, at));
                }
            }
            at += 1;
        }
        Ok(options)
    }
}

pub(super) fn set(call: &mut Call<'_>) -> Answer {
    let options = Options::parse(call)?;
    let (key, value) = (call.word(1), call.word(2));
    let end = options.end.map(|(unit, at)| End::parse(call, at, unit, "set")).transpose()?;
    let before = call.look_up(key).map(|entry| (entry.value.clone(), entry.expires));
    let old = match (&before, options.returns_old || matches!(options.condition, If::Equal(_))) {
        (Some((Value::String(old), _)), true) => Some(old.clone()),
        (Some(_), true) => return Err(wrong_type()),
        _ => None,
    };
    let is_met = options.condition.is_met(before.is_some(), old.as_ref());
    if is_met {
        let kept = before.and_then(|(_, expires)| expires).filter(|_| options.keeps_end);
        call.put(key, Value::String(value.to_vec()), end.map(|end| end.0).or(kept));
    }
    Ok(match (options.returns_old, is_met) {
        (true, _) => Reply::bulk_or_nil(old),
        (false, true) => OK,
        (false, false) => Reply::Nil,
    })
}

pub(super) fn setnx(call: &mut Call<'_>) -> Answer {
    let (key, value) = (call.word(1), call.word(2));
    let is_free = call.look_up_to_change(key).is_none();
    if is_free {
        call.put_string(key, value);
    }
    Ok(Reply::flag(is_free))
}

/// In 1.2 a value of another type is refused and overwritten all the same: measured on 1.1.94.
pub(super) fn getset(call: &mut Call<'_>) -> Answer {
    let (key, value) = (call.word(1), call.word(2));
    let old = call.string(key).map(Option::<&mut _>::cloned);
    if old.is_ok() || call.version() < V2_0 {
        call.put_string(key, value);
    }
    Ok(Reply::bulk_or_nil(old?))
}

pub(super) fn getdel(call: &mut Call<'_>) -> Answer {
    let key = call.word(1);
    let old = call.string(key)?.cloned();
    call.remove(key);
    Ok(Reply::bulk_or_nil(old))
}

pub(super) fn mget(call: &mut Call<'_>) -> Answer {
    let keys = call.arguments();
    let mut one = |key: &Vec<u8>| Reply::bulk_or_nil(call.string(key).ok().flatten().cloned());
    Ok(Reply::Array(keys.iter().map(&mut one).collect()))
}

fn pairs<'s>(call: &Call<'s>) -> Result<&'s [Vec<u8>], Refusal> {
    let pairs = call.arguments();
    if pairs.len() % 2 == 1 {
        return Err(wrong_number(&call.upper(0)));
    }
    Ok(pairs)
}

pub(super) fn mset(call: &mut Call<'_>) -> Answer {
    pairs(call)?.chunks(2).for_each(|pair| call.put_string(&pair[0], &pair[1]));
    Ok(OK)
}

pub(super) fn msetnx(call: &mut Call<'_>) -> Answer {
    let pairs = pairs(call)?;
    let is_free = !pairs.chunks(2).any(|pair| {
        // Measured: before 2.2 a key with a time to live is replaced.
        let entry = call.look_up(&pair[0]).map(|entry| entry.expires);
        entry.is_some_and(|expires| call.version() >= ServerVersion::V2_2 || expires.is_none())
    });
    if is_free {
        pairs.chunks(2).for_each(|pair| call.put_string(&pair[0], &pair[1]));
    }
    Ok(Reply::flag(is_free))
}

pub(super) fn incr(call: &mut Call<'_>) -> Answer {
    add(call, 1)
}

pub(super) fn decr(call: &mut Call<'_>) -> Answer {
    add(call, -1)
}

pub(super) fn incrby(call: &mut Call<'_>) -> Answer {
    let by = call.integer(2)?;
    add(call, by)
}

pub(super) fn decrby(call: &mut Call<'_>) -> Answer {
    let by = call.integer(2)?;
    let by = by.checked_neg().ok_or(Refusal::new("ERR decrement would overflow"))?;
    add(call, by)
}

fn add(call: &mut Call<'_>, by: i64) -> Answer {
    let key = call.word(1);
    let is_lenient = call.version() < V2_0;
    let (old, expires) = match call.look_up_to_change(key) {
        None => (0, None),
        Some(entry) => {
            let expires = entry.expires;
            let text = entry.value.string()?;
            let number = as_integer(text).or_else(|| is_lenient.then(|| leading_integer(text)));
            (number.ok_or_else(not_an_integer)?, expires)
        }
    };
    let overflows = || Refusal::new("ERR increment or decrement would overflow");
    let new = old.checked_add(by).ok_or_else(overflows)?;
    call.put(key, Value::String(new.to_string().into_bytes()), expires);
    Ok(Reply::Integer(new))
}

/// The number that a text begins with, or 0: measured on 1.1.94 and 1.3.6.
fn leading_integer(text: &[u8]) -> i64 {
    let text = String::from_utf8_lossy(text);
    let text = text.trim_start();
    let is_part = |(n, c): &(usize, char)| c.is_ascii_digit() || *n == 0 && ['+', '-'].contains(c);
    let number: String = text.chars().enumerate().take_while(is_part).map(|(_, c)| c).collect();
    number.parse().unwrap_or(0)
}

pub(super) fn append(call: &mut Call<'_>) -> Answer {
    let (key, more) = (call.word(1), call.word(2));
    let string = call.value_or(key, Value::String(Vec::new())).string()?;
    string.extend_from_slice(more);
    let length = string.len();
    call.changed(key);
    Ok(Reply::count(length))
}

fn set_until(call: &mut Call<'_>, unit: Unit, name: &str) -> Answer {
    let (key, value) = (call.word(1), call.word(3));
    let end = End::parse(call, 2, unit, name)?;
    call.put(key, Value::String(value.to_vec()), Some(end.0));
    Ok(OK)
}

pub(super) fn setex(call: &mut Call<'_>) -> Answer {
    set_until(call, Unit::Seconds, "setex")
}

pub(super) fn psetex(call: &mut Call<'_>) -> Answer {
    set_until(call, Unit::Millis, "psetex")
}

pub(super) fn strlen(call: &mut Call<'_>) -> Answer {
    let key = call.word(1);
    Ok(Reply::count(call.string(key)?.map_or(0, |string| string.len())))
}

pub(super) fn getrange(call: &mut Call<'_>) -> Answer {
    let key = call.word(1);
    let (first, last) = (call.integer(2)?, call.integer(3)?);
    let string = call.string(key)?.cloned().unwrap_or_default();
    if first < 0 && last < 0 && first > last {
        return Ok(Reply::bulk(""));
    }
    // Unlike in a list, an end before the start is the start.
    let length = i64::try_from(string.len()).unwrap_or(i64::MAX);
    let last = if last < 0 { last.saturating_add(length).max(0) } else { last };
    let range = super::lists::range(first, last, string.len());
    Ok(Reply::bulk(&string[range]))
}

/// Deletes a string if it has this value.
fn delete_equal(call: &mut Call<'_>, value: &[u8]) -> Answer {
    let key = call.word(1);
    let is_equal = call.string(key)?.is_some_and(|old| old == value);
    Ok(Reply::flag(is_equal && call.remove(key)))
}

pub(super) fn delifeq(call: &mut Call<'_>) -> Answer {
    delete_equal(call, call.word(2))
}

pub(super) fn delex(call: &mut Call<'_>) -> Answer {
    match call.words {
        [_, key] => Ok(Reply::flag(call.remove(key))),
        [_, _, condition, value] if condition.eq_ignore_ascii_case(b"IFEQ") => delete_equal(call, value),
        [_, _, _, _] => Err(Refusal::new("ERR Invalid condition. Use IFEQ, IFNE, IFDEQ, or IFDNE")),
        _ => Err(wrong_number("delex")),
    }
}
