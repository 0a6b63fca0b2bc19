//! One strip of the picture: a span of time from left to right, a lane for each worker, an axis below.

use std::time::Duration;

use svg::node::element::{Group, Polygon, Text};

use super::pen::{
    FAINT, HATCH, INK, LANE, LEFT, RED, RIGHT, WAIT, WINDOW, colour, cross, line, rect, tenths, text,
};
use crate::account::{Account, Turn};
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
/// The narrowest bar that is still seen.
const HAIR: f64 = 0.8;
/// About the width of a letter of the flags and inscriptions.
const LETTER: f64 = 7.2;
const MOST_TICKS: u32 = 13;

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

    /// Draws the lanes with all turns, the axis and the heading.
    pub(crate) fn draw(&self, heading: &str) -> Group {
        let mut strip = Group::new().add(text(heading, LEFT, self.top + 14.0, 15).set("font-weight", 600));
        for (number, pid) in (1..).zip(&self.account.pids) {
            let label =
                text(format!("worker {number} (pid {pid})"), LEFT - 12.0, self.lane(number) + 17.0, 14);
            let end = if number == self.account.death.worker { self.account.death.at } else { self.span.to };
            let (from, to) = (self.x(self.span.from), self.x(end));
            strip = strip.add(label.set("text-anchor", "end")).add(rect(
                from,
                self.lane(number),
                to - from,
                BAR,
                LANE,
            ));
        }
        let waits = self.turns(|turn| (turn.asked, turn.entered)).fold(Group::new(), |waits, turn| {
            let y = self.lane(turn.worker) + self.row(turn.thread);
            waits.add(line(self.x(turn.asked), y, self.x(turn.entered), y, WAIT).set("stroke-width", 1.2))
        });
        // On the whole run they would only be a grey veil.
        if self.is_close() {
            strip = strip.add(waits);
        }
        strip.add(self.bars()).add(self.axis())
    }

    fn bars(&self) -> Group {
        self.turns(|turn| (turn.entered, turn.left)).fold(Group::new(), |bars, turn| {
            let (from, to) = (self.x(turn.entered), self.x(turn.left));
            // A slit between the turns of two threads of one process, where there is room for it.
            let width = if to - from > 4.0 { to - from - HAIR } else { (to - from).max(HAIR) };
            bars.add(rect(from, self.lane(turn.worker), width, BAR, colour(turn.worker - 1)))
        })
    }

    fn axis(&self) -> Group {
        let y = self.lanes_end;
        let step = self.step();
        let decimals =
            if step < Duration::from_millis(100) { 2 } else { usize::from(step < Duration::from_secs(1)) };
        let mut axis = Group::new().add(line(LEFT, y, RIGHT, y, FAINT));
        let mut since = Duration::ZERO;
        while self.account.began.after(since) <= self.span.to {
            let at = self.account.began.after(since);
            if at >= self.span.from {
                let x = self.x(at);
                let label = text(format!("{:.decimals$} s", since.as_secs_f64()), x, y + 19.0, 12);
                axis = axis
                    .add(line(x, y, x, y + 5.0, FAINT))
                    .add(label.set("fill", FAINT).set("text-anchor", "middle"));
            }
            since += step;
        }
        axis
    }

    /// The dead worker's lease, from the kill to its end, and the kill.
    pub(crate) fn death_mark(&self) -> Group {
        let death = self.account.death;
        let y = self.lane(death.worker);
        let (killed, expiry) = (self.x(death.at), self.x(death.expiry));
        let mark = Group::new().add(rect(killed, y, expiry - killed, BAR, HATCH).set("stroke", RED));
        if self.span.meets(death.at, death.at) { mark.add(cross(killed, y + BAR / 2.0)) } else { mark }
    }

    /// A line through all lanes with words at its top, to its left or right.
    pub(crate) fn flag(&self, at: Moment, colour: &str, words: &str, anchor: &str) -> Group {
        let x = self.x(at);
        let beside = if anchor == "end" { x - 5.0 } else { x + 5.0 };
        let words = text(words, beside, self.top + FLAG, 13).set("text-anchor", anchor).set("fill", colour);
        let pole = line(x, self.top + FLAG - 11.0, x, self.lanes_end, colour).set("stroke-dasharray", "4 3");
        Group::new().add(pole).add(words)
    }

    /// Words in place of the flags.
    pub(crate) fn note(&self, words: &str) -> Text {
        text(words, LEFT, self.top + FLAG, 13).set("fill", FAINT)
    }

    /// Words within a lane, if they fit into the span.
    pub(crate) fn inscription(&self, worker: u16, span: Span, words: &str) -> Group {
        let (from, to) = (self.x(span.from), self.x(span.to));
        let width = words.chars().fold(24.0, |width, _| width + LETTER);
        let y = self.lane(worker);
        if width > to - from {
            return Group::new();
        }
        let words = text(words, f64::midpoint(from, to), y + 17.0, 13);
        Group::new()
            .add(rect(f64::midpoint(from, to) - width / 2.0, y + 4.0, width, BAR - 8.0, "#fdf0f0"))
            .add(words.set("text-anchor", "middle").set("fill", INK))
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

    /// The turns of which this part, from and to, is in sight.
    fn turns(&self, part: impl Fn(&Turn) -> (Moment, Moment)) -> impl Iterator<Item = &Turn> {
        self.account.turns.iter().filter(move |turn| {
            let (from, to) = part(turn);
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

    fn lane(&self, worker: u16) -> f64 {
        self.top + HEAD + PITCH * f64::from(worker - 1)
    }

    /// Where in a lane a thread's line is.
    fn row(&self, thread: u16) -> f64 {
        BAR * f64::from(thread) / f64::from(self.account.threads + 1)
    }

    /// The distance of the ticks: 1, 2 or 5 times a power of ten.
    fn step(&self) -> Duration {
        let least = self.span.length() / MOST_TICKS;
        let mut power = Duration::from_millis(1);
        loop {
            for factor in [1, 2, 5] {
                if power * factor >= least {
                    return power * factor;
                }
            }
            power *= 10;
        }
    }
}
