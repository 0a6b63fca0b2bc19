//! Clients that wait for an element of a list.

use std::time::Duration;

use super::Server;
use super::call::Call;
use super::client::ClientId;
use super::lists::{self, Side};
use super::reply::{Refusal, Reply};

/// What a client waits for: the first element in one of these lists.
#[derive(Clone, Debug)]
pub(super) struct Waiting {
    pub(super) client: ClientId,
    pub(super) database: usize,
    pub(super) keys: Vec<Vec<u8>>,
    pub(super) until: Option<Duration>,
    pub(super) what: What,
}

#[derive(Clone, Debug)]
pub(super) enum What {
    Pop(Side),
    MoveTo(Vec<u8>),
}

impl Waiting {
    /// Takes an element if there is one, and returns the reply.
    pub(super) fn look(&self, call: &mut Call<'_>) -> Result<Option<Reply>, Refusal> {
        self.look_at(&self.keys, call)
    }

    fn look_at(&self, keys: &[Vec<u8>], call: &mut Call<'_>) -> Result<Option<Reply>, Refusal> {
        for key in keys {
            let found = match &self.what {
                What::Pop(side) => {
                    let pair = |element| Reply::bulks([key.clone(), element]);
                    lists::popped(call, key, *side)?.map(pair)
                }
                What::MoveTo(to) => lists::moved(call, key, to)?.map(Reply::Bulk),
            };
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// The reply when nothing has come.
    pub(super) fn ended(&self) -> Reply {
        match self.what {
            What::Pop(_) => Reply::NilArray,
            What::MoveTo(_) => Reply::Nil,
        }
    }
}

impl Server {
    /// Gives what lists have by now to the clients that wait for it, in the order in which they came.
    pub(super) fn serve_waiting(&mut self) {
        let mut at = 0;
        while let Some(waiting) = self.waiting.get(at).cloned() {
            match self.served(&waiting) {
                Some(reply) => {
                    self.waiting.remove(at);
                    self.send(waiting.client, &reply);
                    // One that moves an element may serve another one before it.
                    at = 0;
                }
                None => at += 1,
            }
        }
    }

    fn served(&mut self, waiting: &Waiting) -> Option<Reply> {
        let here = self.client(waiting.client).database;
        self.client(waiting.client).database = waiting.database;
        let mut call = Call { server: self, id: waiting.client, words: &[], in_exec: false };
        // A key that is no list by now may become one.
        let is_list = |key: &&Vec<u8>| call.look_up(key).is_some_and(|entry| entry.value.list().is_ok());
        let lists: Vec<_> = waiting.keys.iter().filter(is_list).cloned().collect();
        let reply = waiting.look_at(&lists, &mut call);
        self.client(waiting.client).database = here;
        reply.unwrap_or_else(|refusal| Some(Reply::Error(refusal.0)))
    }

    /// Ends the waits whose time is over.
    pub(super) fn end_waits(&mut self) {
        let now = self.now;
        let (over, rest): (Vec<_>, Vec<_>) =
            self.waiting.drain(..).partition(|waiting| waiting.until.is_some_and(|until| until <= now));
        self.waiting = rest;
        for waiting in &over {
            self.send(waiting.client, &waiting.ended());
        }
    }
}
