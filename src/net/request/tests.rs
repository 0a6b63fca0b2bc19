//! Commands for tests of how they are carried: what commands do is written above this layer.

use proto::values::Key;

use super::Request;
use crate::net::packed::{NewCommand, Packed};

type Form = for<'a> fn(&'a mut Packed) -> NewCommand<'a>;

/// Commands, of whose words KEY stands for the key.
#[derive(Clone, Copy, Debug)]
pub(in crate::net) struct TestCommand(&'static [(Form, &'static str)]);

pub(in crate::net) const GET: TestCommand = TestCommand(&[(Packed::bulk, "GET KEY")]);
pub(in crate::net) const SET_NX: TestCommand = TestCommand(&[(Packed::integer, "SETNX KEY 1")]);
pub(in crate::net) const SET: TestCommand = TestCommand(&[(Packed::okay, "SET KEY y")]);
pub(in crate::net) const DEL: TestCommand = TestCommand(&[(Packed::integer, "DEL KEY")]);
pub(in crate::net) const LPOP: TestCommand = TestCommand(&[(Packed::bulk, "LPOP list:{KEY}")]);
pub(in crate::net) const COUNT: TestCommand = TestCommand(&[(Packed::integer, "INCR counter:{KEY}")]);
pub(in crate::net) const COUNT_FOR: TestCommand =
    TestCommand(&[COUNT.0[0], (Packed::integer, "EXPIRE counter:{KEY} 7")]);

impl Request for TestCommand {
    fn name(&self) -> &'static str {
        self.0[0].1.split(' ').next().unwrap()
    }

    fn pack(&self, key: &Key, packed: &mut Packed) {
        for (n, (form, words)) in self.0.iter().enumerate() {
            let words = words.replace("KEY", &key.to_string());
            let packed = form(packed).words(&words.split(' ').map(str::as_bytes).collect::<Vec<_>>());
            if n > 0 {
                packed.must_succeed();
            }
        }
    }

    fn changes_counter(&self) -> bool {
        self.name() == "INCR"
    }
}
