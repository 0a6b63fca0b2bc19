//! The picture of a run: the whole of it on top, below it the time from the kill to the takeover, and below that the
//! turns after the takeover one by one. Says what is drawn and where; `strip.rs` draws.

mod pen;
mod strip;

use std::time::Duration;

use svg::Document;
use svg::node::element::{Definitions, Group, Line, Pattern};

use crate::account::Account;
use crate::moment::Moment;
use crate::report::{Report, millis};
use pen::{HATCH, INK, RED, WAIT, WIDTH, cross, line, rect, text};
use strip::{Span, Strip};

/// What the second strip shows before the kill and after the takeover.
const AROUND: Duration = Duration::from_millis(300);
/// What the third strip shows before the lease's end, after it, and at least after a late takeover.
const LAST_WAIT: Duration = Duration::from_millis(25);
const TURNS: Duration = Duration::from_millis(125);
const LATE_TURNS: Duration = Duration::from_millis(60);

const NOTE: &str = "every line is one turn; what is shaded is shown larger below";
const FIRST_STRIP: f64 = 168.0;

/// Draws the picture.
pub(crate) fn draw(account: &Account, report: &Report) -> Document {
    let death = account.death;
    let taken = account.takeover().map_or(death.expiry, |turn| turn.entered);
    let whole = Span { from: account.began, to: account.ended };
    let gap = Span { from: death.at.before(AROUND), to: taken.after(AROUND) };
    let turns = Span {
        from: death.expiry.before(LAST_WAIT),
        to: death.expiry.after(TURNS).max(taken.after(LATE_TURNS)),
    };

    let whole = Strip::new(account, whole, FIRST_STRIP);
    let gap = Strip::new(account, gap, whole.next_top());
    let turns = Strip::new(account, turns, gap.next_top());
    let height = turns.bottom() + 16.0;

    let strips = Group::new()
        .add(whole.window(&gap))
        .add(gap.window(&turns))
        .add(whole.draw("The whole run").add(whole.note(NOTE)).add(whole.death_mark()))
        .add(gap.draw("From the kill to the takeover").add(gap_marks(&gap, account)))
        .add(
            turns.draw("The takeover and the turns after it, one by one").add(takeover_mark(&turns, account)),
        );

    Document::new()
        .set("viewBox", format!("0 0 {WIDTH} {height}"))
        .set("width", WIDTH)
        .set("height", height)
        .set("font-family", "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif")
        .set("fill", INK)
        .add(hatch())
        .add(rect(0.0, 0.0, WIDTH, height, "white"))
        .add(header(account, report))
        .add(legend())
        .add(strips)
}

fn header(account: &Account, report: &Report) -> Group {
    let processes = account.pids.len();
    let threads = account.threads;
    let dead = account.death.worker;
    let plural = if threads == 1 { "thread" } else { "threads" };
    let title = format!(
        "One lock, {processes} processes of {threads} {plural}: one is killed while it holds the lock"
    );
    let sentence = [
        "Each lane is a process, and a coloured bar is the time that one of its threads had the lock: no two bars may stand".to_owned(),
        format!("at the same moment, and when worker {dead} was killed, the others had to wait until the lock had expired; then one took over."),
    ];
    let takeover = report.takeover.map_or_else(
        || "nobody took over".to_owned(),
        |late| format!("taken over {} ms after expiry", millis(late)),
    );
    let figures = format!(
        "{} turns, {} overlaps, {} lost updates, {takeover}",
        report.acquisitions, report.overlaps, report.lost_updates
    );
    let colour = if report.problems().is_empty() { INK } else { RED };
    let mut header = Group::new().add(text(title, 20.0, 38.0, 22).set("font-weight", 600));
    for (sentence, y) in sentence.into_iter().zip([64.0, 84.0]) {
        header = header.add(text(sentence, 20.0, y, 15));
    }
    header.add(text(figures, 20.0, 110.0, 15).set("font-weight", 600).set("fill", colour))
}

fn legend() -> Group {
    let y = 136.0;
    let bars = [(20.0, 0), (30.0, 1), (40.0, 2)];
    let mut legend = Group::new();
    for (x, worker) in bars {
        legend = legend.add(rect(x, y - 11.0, 7.0, 14.0, pen::colour(worker)));
    }
    legend
        .add(text("has the lock", 54.0, y, 14))
        .add(line(176.0, y - 4.0, 206.0, y - 4.0, WAIT))
        .add(text("waits for it", 213.0, y, 14))
        .add(cross(330.0, y - 4.0))
        .add(text("is killed (SIGKILL)", 345.0, y, 14))
        .add(rect(515.0, y - 11.0, 30.0, 14.0, HATCH).set("stroke", RED))
        .add(text("is dead, but the lock has not expired: nobody can have it", 552.0, y, 14))
}

/// The kill, the lease that outlives it, and its end.
fn gap_marks(strip: &Strip<'_>, account: &Account) -> Group {
    let death = account.death;
    let killed = format!("worker {} is killed", death.worker);
    let over = account.takeover().map_or_else(
        || "it expires, and nobody takes over".to_owned(),
        |turn| {
            format!(
                "it expires; worker {} takes over {} ms later",
                turn.worker,
                late(turn.entered, death.expiry)
            )
        },
    );
    let lease = format!("the lease of {} goes on", humantime::format_duration(account.expiration));
    strip
        .death_mark()
        .add(strip.flag(death.at, RED, &killed, "start"))
        .add(strip.flag(death.expiry, INK, &over, "end"))
        .add(strip.inscription(death.worker, Span { from: death.at, to: death.promised }, &lease))
        .add(strip.inscription(
            death.worker,
            Span { from: death.promised, to: death.expiry },
            "and a second more, for clocks that differ",
        ))
}

fn takeover_mark(strip: &Strip<'_>, account: &Account) -> Group {
    let expiry = account.death.expiry;
    let marks = strip.death_mark().add(strip.flag(expiry, INK, "the lock expires", "end"));
    match account.takeover() {
        Some(turn) => {
            let words = format!("worker {} takes over {} ms later", turn.worker, late(turn.entered, expiry));
            marks.add(strip.flag(turn.entered, pen::colour(turn.worker - 1), &words, "start"))
        }
        None => marks,
    }
}

fn late(moment: Moment, expiry: Moment) -> String {
    millis(moment.since(expiry))
}

/// The pattern of the dead lease.
fn hatch() -> Definitions {
    let stripe = Line::new().set("x1", 0).set("y1", 0).set("x2", 0).set("y2", 7);
    let pattern = Pattern::new()
        .set("id", "dead")
        .set("width", 7)
        .set("height", 7)
        .set("patternUnits", "userSpaceOnUse")
        .set("patternTransform", "rotate(45)")
        .add(rect(0.0, 0.0, 7.0, 7.0, "#fdf0f0"))
        .add(stripe.set("stroke", "#efb5b5").set("stroke-width", 3));
    Definitions::new().add(pattern)
}
