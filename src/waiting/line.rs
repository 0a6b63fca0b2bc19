//! The line before each key: first come, first served among the threads of a process. Only its head talks to the server; the
//! others sleep until it is their turn. Where threads of a line wait in different ways, the first of each way looks for all that wait
//! as it does, at its own pace and by its own rules; news is for the very first.
//!
//! All of it stands under one mutex, and a thread that waits is parked outside of it. Why no wake-up gets lost:
//!
//! - Whatever a waiter waits for (that it is the head, news, a gift, the end of all waiting) is written under the mutex, and whoever
//!   writes it unparks the waiter's thread afterwards.
//! - A waiter looks at all of that under the mutex, then parks. What is written after it has looked is followed by an unpark, and
//!   an unpark that comes before the park makes that return at once.
//! - A waiter that leaves, for whatever reason, a panic included, takes itself out under the mutex; if it was a head, the
//!   next of its way becomes one, and is unparked; the first of the line gets the news that was not acted upon, and is unparked.
//!
//! Parking may also return for no reason, or because of an unpark that was meant for something else in the thread: every return is
//! followed by another look. An entry lives as long as somebody waits for the key or holds it.
//!
//! News also makes the line forget what was last seen of the key. A new head looks there first: where
//! nothing was seen he asks the server, and where something was, a holder will tell him or his sleep has an end.
//!
//! `tests/models` searches this file for lost wake-ups, with threads whose schedules a checker chooses.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::sync::{Mutex, MutexGuard, PoisonError, Thread, current};
use super::{Gift, Key, Sighting, Wish};

/// The lines of a locker.
#[derive(Debug, Default)]
pub(crate) struct Lines(Mutex<All>);

#[derive(Debug, Default)]
struct All {
    lines: HashMap<Key, Line>,
    /// Nobody waits any more.
    closed: bool,
    next_id: u64,
}

#[derive(Debug, Default)]
struct Line {
    /// How many threads of this process have the lock: more than one if a holder overran.
    holders: usize,
    /// What was last seen of the key, since the last news of it.
    sighting: Option<Sighting>,
    waiters: VecDeque<Waiter>,
}

#[derive(Debug)]
struct Waiter {
    id: u64,
    thread: Thread,
    wish: Wish,
    /// Whether it is asleep: one that is in the middle of a command is given nothing.
    asleep: bool,
    news: Option<News>,
    gift: Option<Gift>,
}

/// What a head gets to know of its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum News {
    /// Something happened to it: look.
    Changed,
    /// It was given back: ask for it.
    Freed,
}

/// How waiting for one's turn ended.
#[derive(Debug)]
pub(crate) enum Turn {
    /// It is ours to talk to the server. With what was last seen, unless that is no longer true.
    Ours(Option<Sighting>),
    Given(Gift, Hold),
    /// Whoever parks has had enough, or all waiting is over. With what was last seen, and how many are before us.
    Over {
        seen: Option<Sighting>,
        ahead: usize,
    },
}

/// How the sleep of a head ended.
#[derive(Debug)]
pub(crate) enum Woken {
    News(News),
    Given(Gift, Hold),
    /// Whoever parks has had enough, or all waiting is over.
    Over,
}

impl Lines {
    /// Goes to the end of the line.
    pub(crate) fn join(self: &Arc<Self>, key: &Key, wish: Wish) -> Place {
        let mut all = self.lock();
        let id = all.next_id;
        all.next_id += 1;
        let waiter = Waiter { id, thread: current(), wish, asleep: false, news: None, gift: None };
        all.lines.entry(key.clone()).or_default().waiters.push_back(waiter);
        drop(all);
        Place { lines: Arc::clone(self), key: key.clone(), id, left: false }
    }

    /// Notes a lock that was got without standing in the line.
    pub(crate) fn hold(self: &Arc<Self>, key: &Key, sighting: Sighting) -> Hold {
        let mut all = self.lock();
        let line = all.lines.entry(key.clone()).or_default();
        line.holders += 1;
        line.sighting = Some(sighting);
        drop(all);
        Hold::noted(self, key)
    }

    /// Lets the head of a line know something. Returns whether anybody waits there.
    pub(crate) fn tell(&self, key: &Key, news: News) -> bool {
        let mut all = self.lock();
        let Some(line) = all.lines.get_mut(key) else { return false };
        let head = line.tell(news);
        drop(all);
        unpark(head.as_ref());
        head.is_some()
    }

    /// Whether anybody waits for the key.
    pub(crate) fn is_waited_for(&self, key: &Key) -> bool {
        self.lock().lines.get(key).is_some_and(|line| !line.waiters.is_empty())
    }

    /// Ends all waiting, for good.
    pub(crate) fn close(&self) {
        let mut all = self.lock();
        all.closed = true;
        let waiters = all.lines.values().flat_map(|line| &line.waiters);
        let threads: Vec<Thread> = waiters.map(|waiter| waiter.thread.clone()).collect();
        drop(all);
        for thread in &threads {
            thread.unpark();
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.lock().closed
    }

    fn lock(&self) -> MutexGuard<'_, All> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl All {
    /// Takes somebody out of a line, and forgets that when nobody is left.
    fn leave<T>(&mut self, key: &Key, leave: impl FnOnce(&mut Line) -> T) -> Option<T> {
        let line = self.lines.get_mut(key)?;
        let came = leave(line);
        if line.holders == 0 && line.waiters.is_empty() {
            self.lines.remove(key);
        }
        Some(came)
    }
}

impl Line {
    /// Returns the thread that is to be unparked once the mutex is free.
    fn tell(&mut self, news: News) -> Option<Thread> {
        self.sighting = None;
        let head = self.waiters.front_mut()?;
        head.news = head.news.max(Some(news));
        Some(head.thread.clone())
    }

    fn position(&self, id: u64) -> Option<usize> {
        self.waiters.iter().position(|waiter| waiter.id == id)
    }

    /// Whether nobody before it waits as it does.
    fn is_head(&self, position: usize) -> bool {
        let wish = &self.waiters[position].wish;
        !self.waiters.range(..position).any(|before| before.wish.waits_as(wish))
    }

    /// Takes a waiter out. Returns it, and the thread of the next if that is a head now.
    fn remove(&mut self, id: u64) -> Option<(Waiter, Option<Thread>)> {
        let position = self.position(id)?;
        let was_head = self.is_head(position);
        let waiter = self.waiters.remove(position)?;
        let mut behind = self.waiters.range(position..);
        let next = behind.find(|next| was_head && next.wish.waits_as(&waiter.wish));
        let next = next.map(|next| next.thread.clone());
        Some((waiter, next))
    }
}

/// A place in the line before a key. Left when dropped.
#[derive(Debug)]
pub(crate) struct Place {
    lines: Arc<Lines>,
    key: Key,
    id: u64,
    left: bool,
}

impl Place {
    /// Waits until it is our turn. `park` puts the thread to sleep for a while, and says whether to go on waiting after that.
    pub(crate) fn turn(&mut self, park: impl FnMut() -> bool) -> Turn {
        let came = self.sleep_until(park, |line, position| {
            if !line.is_head(position) {
                return None;
            }
            line.waiters[position].news = None;
            Some(line.sighting.clone())
        });
        match came {
            Came::Given(gift, hold) => Turn::Given(gift, hold),
            Came::Other(sighting) => Turn::Ours(sighting),
            Came::Over { seen, ahead } => Turn::Over { seen, ahead },
        }
    }

    /// Sleeps as the head of the line, with what was seen last for those behind.
    pub(crate) fn sleep(&mut self, sighting: Sighting, park: impl FnMut() -> bool) -> Woken {
        let mut all = self.lines.lock();
        if let Some(line) = all.lines.get_mut(&self.key)
            && line.waiters.front().is_some_and(|waiter| waiter.news.is_none())
        {
            line.sighting = Some(sighting);
        }
        drop(all);
        match self.sleep_until(park, |line, position| line.waiters[position].news.take()) {
            Came::Given(gift, hold) => Woken::Given(gift, hold),
            Came::Other(news) => Woken::News(news),
            Came::Over { .. } => Woken::Over,
        }
    }

    /// Leaves the line with the lock, and with what others are to know of it. The next becomes the head.
    pub(crate) fn enter(mut self, sighting: Sighting) -> Hold {
        let mut all = self.lines.lock();
        let next = all.lines.get_mut(&self.key).and_then(|line| {
            line.holders += 1;
            line.sighting = Some(sighting);
            line.remove(self.id)?.1
        });
        drop(all);
        self.left = true;
        unpark(next.as_ref());
        Hold::noted(&self.lines, &self.key)
    }

    /// Parks until there is a gift, or what `other` looks for under the mutex, or enough is enough.
    fn sleep_until<T>(
        &mut self,
        mut park: impl FnMut() -> bool,
        mut other: impl FnMut(&mut Line, usize) -> Option<T>,
    ) -> Came<T> {
        let mut enough = false;
        loop {
            let mut all = self.lines.lock();
            let closed = all.closed;
            enough |= closed;
            let Some((line, position)) = all.lines.get_mut(&self.key).and_then(|line| {
                let position = line.position(self.id)?;
                Some((line, position))
            }) else {
                unreachable!("a place is in its line until it is left")
            };
            if let Some(gift) = line.waiters[position].gift.take() {
                line.sighting = Some(gift.sighting.clone());
                let next = line.remove(self.id).and_then(|(_, next)| next);
                drop(all);
                self.left = true;
                unpark(next.as_ref());
                return Came::Given(gift, Hold::noted(&self.lines, &self.key));
            }
            let came = if closed { None } else { other(line, position) };
            line.waiters[position].asleep = came.is_none() && !enough;
            match came {
                Some(came) => return Came::Other(came),
                None if enough => return Came::Over { seen: line.sighting.clone(), ahead: position },
                None => {}
            }
            drop(all);
            enough = !park();
        }
    }
}

/// How a sleep ended.
enum Came<T> {
    Given(Gift, Hold),
    Other(T),
    Over { seen: Option<Sighting>, ahead: usize },
}

impl Place {
    /// Leaves the line without the lock. Whoever is next gets the news that was not acted upon; if there is nobody, it is returned.
    pub(crate) fn leave(mut self) -> Option<News> {
        self.go()
    }

    fn go(&mut self) -> Option<News> {
        if self.left {
            return None;
        }
        self.left = true;
        let mut all = self.lines.lock();
        let (woken, news) = all.leave(&self.key, |line| {
            let (waiter, next) = line.remove(self.id)?;
            let lost = waiter.gift.map(|_| {
                line.holders -= 1;
                News::Changed
            });
            // What was not acted upon is for the first to act upon, who may wait in another way.
            let news = waiter.news.max(lost);
            let first = news.and_then(|news| line.tell(news));
            Some(([next, first.clone()], news.filter(|_| first.is_none())))
        })??;
        drop(all);
        woken.iter().flatten().for_each(Thread::unpark);
        news
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.go();
    }
}

/// A lock that a thread of this process has, as the line knows it. Those behind are told when it is dropped.
#[derive(Debug)]
pub(crate) struct Hold {
    lines: Arc<Lines>,
    key: Key,
    over: bool,
}

impl Hold {
    fn noted(lines: &Arc<Lines>, key: &Key) -> Self {
        Self { lines: Arc::clone(lines), key: key.clone(), over: false }
    }

    /// Returns who could be given the lock now, and what he wants.
    pub(crate) fn heir(&self) -> Option<(u64, Wish)> {
        let all = self.lines.lock();
        if all.closed {
            return None;
        }
        let head = all.lines.get(&self.key)?.waiters.front()?;
        (head.asleep && head.gift.is_none()).then_some((head.id, head.wish))
    }

    /// Passes the lock on, if the heir still waits; else returns itself.
    pub(crate) fn give(mut self, heir: u64, gift: &Gift) -> Option<Self> {
        let mut all = self.lines.lock();
        let head = all.lines.get_mut(&self.key).and_then(|line| line.waiters.front_mut());
        let Some(head) = head.filter(|head| head.id == heir && head.asleep && head.gift.is_none()) else {
            drop(all);
            return Some(self);
        };
        head.gift = Some(gift.clone());
        let thread = head.thread.clone();
        drop(all);
        self.over = true;
        thread.unpark();
        None
    }

    /// The lock is given back: lets the head know, unless a token will.
    pub(crate) fn end(mut self, news: News, by_token: bool) {
        self.give_up(news, by_token);
    }

    fn give_up(&mut self, news: News, by_token: bool) {
        self.over = true;
        let mut all = self.lines.lock();
        let head = all.leave(&self.key, |line| {
            line.holders -= 1;
            let told = by_token && line.waiters.front().is_some_and(|head| head.wish.takes_tokens());
            if told { None } else { line.tell(news) }
        });
        drop(all);
        unpark(head.flatten().as_ref());
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if !self.over {
            self.give_up(News::Changed, false);
        }
    }
}

fn unpark(thread: Option<&Thread>) {
    if let Some(thread) = thread {
        thread.unpark();
    }
}
