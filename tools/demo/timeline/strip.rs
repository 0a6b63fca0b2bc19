//! One strip of the picture: a span of time from left to right, a lane for each worker, an axis below.

use std::time::Duration;

use svg::node::element::{Group, Polygon, Text};

use super::pen::{HATCH, LANE, LEFT, RED, RIGHT, WAIT, WINDOW, colour, cross};
use crate::account::{Account, Acquisition, Victim};
use crate::drawing::{FAINT, line, rect, tenths, text, tick_distance};
use crate::moment::Moment;

/// From a strip's top to its lanes: the heading, and the words of the flags.
const HEAD: f64 = 44.0;
const FLAG: f64 = 36.0;
/// From one lane to the next, and how much of it is filled.
const PITCH: f64 = 30.0;
const BAR: f64 = 24.0;
/// Below the lanes: the axis, and the room up to the next strip.
const AXIS: f64 = 28.0;
const GAP: f64 = 30.0;
/// The narrowest bar that is still visible.
const HAIR: f64 = 0.8;
/// About the width of a letter of the flags and inscriptions.
const LETTER: f64 = 7.2;
const MOST_TICKS: f64 = 13.0;

/// A span of time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub(crate) from: Moment,
    pub(crate) to: Moment,
}

impl Span {
    fn meets(self, from: Moment, to: Moment) -> bool {
        from <= self.to && to >= self.from
    }

    fn length(self) -> Duration {
        self.to.since(self.from)
    }
}

/// A strip and its place.
#[derive(Debug)]
pub(crate) struct Strip<'a> {
    account: &'a Account,
    span: Span,
    top: f64,
    lanes_end: f64,
}

impl<'a> Strip<'a> {
    pub(crate) fn new(account: &'a Account, span: Span, top: f64) -> Self {
        let lanes_end = account.pids.iter().fold(top + HEAD, |y, _| y + PITCH);
        Self { account, span, top, lanes_end }
    }

    pub(crate) fn bottom(&self) -> f64 {
        self.lanes_end + AXIS
    }

    pub(crate) fn next_top(&self) -> f64 {
        self.bottom() + GAP
    }

    /// Draws the lanes with all acquisitions, the axis and the heading.
    pub(crate) fn draw(&self, heading: &str) -> Group {
        let mut strip = Group::new().add(text(heading, LEFT, self.top + 14.0, 15).set("font-weight", 600));
        for (number, pid) in (1..).zip(&self.account.pids) {
            let label =
                text(format!("worker {number} (pid {pid})"), LEFT - 12.0, self.lane(number) + 17.0, 14);
            let crash = self.account.crash;
            let end = if crash.is_of(number) { crash.at } else { self.span.to };
            let (from, to) = (self.x(self.span.from), self.x(end));
            strip = strip.add(label.set("text-anchor", "end")).add(rect(
                from,
                self.lane(number),
                to - from,
                BAR,
                LANE,
            ));
        }
        if self.account.crash.victim == Victim::Master {
            strip = strip.add(self.without_master());
        }
        // On the strip of the whole run they would cover everything in grey.
        if self.is_close() {
            strip = strip.add(self.waits());
        }
        strip.add(self.bars()).add(self.axis())
    }

    fn waits(&self) -> Group {
        self.visible(|one| (one.asked, one.entered)).fold(Group::new(), |waits, one| {
            let y = self.lane(one.worker) + self.row(one.thread);
            waits.add(line((self.x(one.asked), y), (self.x(one.entered), y), WAIT, 1.2))
        })
    }

    fn bars(&self) -> Group {
        self.visible(|one| (one.entered, one.left)).fold(Group::new(), |bars, one| {
            let (from, to) = (self.x(one.entered), self.x(one.left));
            // A gap between the bars of two threads of one process, where there is room for it.
            let width = if to - from > 4.0 { to - from - HAIR } else { (to - from).max(HAIR) };
            bars.add(rect(from, self.lane(one.worker), width, BAR, colour(one.worker)))
        })
    }

    fn axis(&self) -> Group {
        let y = self.lanes_end;
        let step = self.step();
        let decimals =
            if step < Duration::from_millis(100) { 2 } else { usize::from(step < Duration::from_secs(1)) };
        let mut axis = Group::new().add(line((LEFT, y), (RIGHT, y), FAINT, 1.5));
        let mut since = Duration::ZERO;
        while self.account.began.after(since) <= self.span.to {
            let at = self.account.began.after(since);
            if at >= self.span.from {
                let x = self.x(at);
                let label = text(format!("{:.decimals$} s", since.as_secs_f64()), x, y + 19.0, 12);
                axis = axis
                    .add(line((x, y), (x, y + 5.0), FAINT, 1.5))
                    .add(label.set("fill", FAINT).set("text-anchor", "middle"));
            }
            since += step;
        }
        axis
    }

    /// The time from the kill of the master until the next one grants locks.
    fn without_master(&self) -> Group {
        let crash = self.account.crash;
        let (from, to, top) = (self.x(crash.at), self.x(crash.expiry), self.lane(1));
        let shade = rect(from, top, to - from, self.lanes_end - top, HATCH);
        let kill = line((from, top), (from, self.lanes_end), RED, 1.5);
        if self.span.meets(crash.at, crash.expiry) { Group::new().add(shade).add(kill) } else { Group::new() }
    }

    /// The lock of the crashed worker, from the kill to the expiry, and the kill.
    pub(crate) fn crash_mark(&self) -> Group {
        let crash = self.account.crash;
        let Victim::Worker(worker) = crash.victim else { return Group::new() };
        let y = self.lane(worker);
        let (killed, expiry) = (self.x(crash.at), self.x(crash.expiry));
        let mark = Group::new().add(rect(killed, y, expiry - killed, BAR, HATCH).set("stroke", RED));
        if self.span.meets(crash.at, crash.at) { mark.add(cross(killed, y + BAR / 2.0)) } else { mark }
    }

    /// A line through all lanes with words at its top, to its left or right.
    pub(crate) fn flag(&self, at: Moment, colour: &str, words: &str, anchor: &str) -> Group {
        let x = self.x(at);
        let beside = if anchor == "end" { x - 5.0 } else { x + 5.0 };
        let words = text(words, beside, self.top + FLAG, 13).set("text-anchor", anchor).set("fill", colour);
        let pole = line((x, self.top + FLAG - 11.0), (x, self.lanes_end), colour, 1.5);
        Group::new().add(pole.set("stroke-dasharray", "4 3")).add(words)
    }

    /// Words in place of the flags.
    pub(crate) fn note(&self, words: &str) -> Text {
        text(words, LEFT, self.top + FLAG, 13).set("fill", FAINT)
    }

    /// Words within a lane, if they fit into the span.
    pub(crate) fn inscription(&self, worker: u32, span: Span, words: &str) -> Group {
        let (from, to) = (self.x(span.from), self.x(span.to));
        let width = words.chars().fold(24.0, |width, _| width + LETTER);
        let y = self.lane(worker);
        if width > to - from {
            return Group::new();
        }
        let words = text(words, f64::midpoint(from, to), y + 17.0, 13);
        Group::new()
            .add(rect(f64::midpoint(from, to) - width / 2.0, y + 4.0, width, BAR - 8.0, "#fdf0f0"))
            .add(words.set("text-anchor", "middle"))
    }

    /// The part of this strip that `closer` shows, spread to its width.
    pub(crate) fn window(&self, closer: &Strip<'_>) -> Group {
        let (from, to) = (self.x(closer.span.from), self.x(closer.span.to));
        let (top, middle, bottom) = (self.top + HEAD - 4.0, self.bottom(), closer.lanes_end);
        let corners = [
            (from, top),
            (to, top),
            (to, self.lanes_end),
            (RIGHT, middle + 16.0),
            (RIGHT, bottom),
            (LEFT, bottom),
            (LEFT, middle + 16.0),
            (from, self.lanes_end),
        ];
        let points: Vec<_> = corners.map(|(x, y)| format!("{},{}", tenths(x), tenths(y))).into();
        Group::new().add(Polygon::new().set("points", points.join(" ")).set("fill", WINDOW))
    }

    /// Returns the acquisitions of which this part, from and to, is visible.
    fn visible(&self, part: impl Fn(&Acquisition) -> (Moment, Moment)) -> impl Iterator<Item = &Acquisition> {
        self.account.acquisitions.iter().filter(move |acquisition| {
            let (from, to) = part(acquisition);
            self.span.meets(from, to)
        })
    }

    /// Whether the strip shows less than the whole run.
    fn is_close(&self) -> bool {
        self.span.from > self.account.began
    }

    fn x(&self, at: Moment) -> f64 {
        let share = at.since(self.span.from).as_secs_f64() / self.span.length().as_secs_f64();
        LEFT + (RIGHT - LEFT) * share.min(1.0)
    }

    fn lane(&self, worker: u32) -> f64 {
        self.top + HEAD + PITCH * f64::from(worker - 1)
    }

    /// Returns where in a lane a thread's line is.
    fn row(&self, thread: u32) -> f64 {
        BAR * f64::from(thread) / f64::from(self.account.threads + 1)
    }

    /// The distance of the ticks.
    fn step(&self) -> Duration {
        let distance = tick_distance(self.span.length().as_secs_f64() / MOST_TICKS);
        Duration::from_secs_f64(distance).max(Duration::from_millis(1))
    }
}
