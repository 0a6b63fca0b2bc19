//! Commands for tests of how they are carried: what commands do is written above this layer.

use proto::values::Key;

use super::packed::Packed;
use super::request::Request;

type Form = for<'a> fn(&'a mut Packed) -> &'a mut Packed;

/// Commands, of whose words KEY stands for the key.
#[derive(Clone, Copy, Debug)]
pub(super) struct TestCommand(&'static [(Form, &'static str)]);

pub(super) const GET: TestCommand = TestCommand(&[(Packed::bulk, "GET KEY")]);
pub(super) const SET_NX: TestCommand = TestCommand(&[(Packed::integer, "SETNX KEY 1")]);
pub(super) const SET: TestCommand = TestCommand(&[(Packed::okay, "SET KEY y")]);
pub(super) const DEL: TestCommand = TestCommand(&[(Packed::integer, "DEL KEY")]);
pub(super) const LPOP: TestCommand = TestCommand(&[(Packed::bulk, "LPOP list:{KEY}")]);
pub(super) const COUNT: TestCommand = TestCommand(&[(Packed::integer, "INCR counter:{KEY}")]);
pub(super) const COUNT_FOR: TestCommand =
    TestCommand(&[COUNT.0[0], (|packed| packed.integer().judges(), "EXPIRE counter:{KEY} 7")]);

impl Request for TestCommand {
    fn name(&self) -> &'static str {
        self.0[0].1.split(' ').next().unwrap()
    }

    fn pack(&self, key: &Key, packed: &mut Packed) {
        for (form, words) in self.0 {
            let words = words.replace("KEY", &key.to_string());
            form(packed).words(&words.split(' ').map(str::as_bytes).collect::<Vec<_>>());
        }
    }

    fn counts(&self) -> bool {
        self.name() == "INCR"
    }
}
