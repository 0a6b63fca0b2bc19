//! The picture of a run: the whole of it on top, below it the time from the kill to the takeover, and below that the
//! acquisitions after the takeover one by one. Says what is drawn and where; `strip.rs` draws.

mod pen;
mod strip;

use std::time::Duration;

use svg::Document;
use svg::node::element::{Definitions, Group, Line, Pattern};

use crate::account::{Account, Acquisition, Victim};
use crate::drawing::{INK, line, rect, sheet, text};
use crate::moment::Moment;
use crate::report::{Report, millis, seconds};
use pen::{HATCH, RED, WAIT, WIDTH, colour, cross};
use strip::{Span, Strip};

/// What the second strip shows before the kill and after the takeover.
const AROUND: Duration = Duration::from_millis(300);
/// What the third strip shows before the expiry, after it, and at least after a late takeover.
const BEFORE_EXPIRY: Duration = Duration::from_millis(25);
const AFTER_EXPIRY: Duration = Duration::from_millis(125);
const AFTER_TAKEOVER: Duration = Duration::from_millis(60);

const NOTE: &str = "every bar is one acquisition; what is shaded is shown larger below";
const LEGEND: f64 = 136.0;
const FIRST_STRIP: f64 = 168.0;

/// Draws the picture.
pub(crate) fn draw(account: &Account, report: &Report) -> Document {
    let crash = account.crash;
    let taken = account.takeover().map_or(crash.expiry, |takeover| takeover.entered);
    let whole = Span { from: account.began, to: account.ended };
    let gap = Span { from: crash.at.before(AROUND), to: taken.after(AROUND) };
    let after = Span {
        from: crash.expiry.before(BEFORE_EXPIRY),
        to: crash.expiry.after(AFTER_EXPIRY).max(taken.after(AFTER_TAKEOVER)),
    };

    let whole = Strip::new(account, whole, FIRST_STRIP);
    let gap = Strip::new(account, gap, whole.next_top());
    let after = Strip::new(account, after, gap.next_top());

    let strips = Group::new()
        .add(whole.window(&gap))
        .add(gap.window(&after))
        .add(whole.draw("The whole run").add(whole.note(NOTE)).add(whole.crash_mark()))
        .add(gap.draw("From the kill to the takeover").add(gap_marks(&gap, account)))
        .add(
            after
                .draw("The takeover and the acquisitions after it, one by one")
                .add(takeover_mark(&after, account)),
        );

    sheet(WIDTH, after.bottom() + 16.0)
        .add(hatch())
        .add(header(account, report))
        .add(legend(account))
        .add(strips)
}

fn header(account: &Account, report: &Report) -> Group {
    let killed = match account.crash.victim {
        Victim::Worker(_) => "its holder",
        Victim::Master => "the master of its server",
    };
    let title = report.without_holder.map_or_else(
        || format!("One lock: {killed} is killed, and no process gets it any more"),
        |time| format!("One lock: {killed} is killed, and no process gets it for {}", seconds(time)),
    );
    let sentences = [
        "Each lane is a process. A coloured bar is the time for which one of its threads had the lock: no two bars may overlap.".to_owned(),
        match account.crash.victim {
            Victim::Worker(worker) => format!(
                "Worker {worker} was killed while it had the lock. The others waited until the lock expired; then one took over."
            ),
            Victim::Master => "Sentinels made a replica the master. It granted no lock until all that the old master had granted were over.".to_owned(),
        },
    ];
    let takeover = report.takeover.map_or_else(
        || "no takeover".to_owned(),
        |late| format!("the next holder {} ms after it could be", millis(late)),
    );
    let figures = format!(
        "{} processes × {} threads, {} acquisitions, {} overlaps, {} lost updates, {takeover}",
        account.pids.len(),
        account.threads,
        report.acquisitions,
        report.overlaps,
        report.lost_updates
    );
    let colour = if report.problems().is_empty() { INK } else { RED };
    let mut header = Group::new().add(text(title, 20.0, 38.0, 22).set("font-weight", 600));
    for (sentence, y) in sentences.into_iter().zip([64.0, 84.0]) {
        header = header.add(text(sentence, 20.0, y, 15));
    }
    header.add(text(figures, 20.0, 110.0, 15).set("font-weight", 600).set("fill", colour))
}

/// A bar of each worker's colour, and the other marks.
fn legend(account: &Account) -> Group {
    let y = LEGEND;
    let shaded = match account.crash.victim {
        Victim::Worker(_) => "has crashed, and its lock has not expired: no process can have it",
        Victim::Master => "no master, or one that grants no locks yet",
    };
    let (mut legend, mut x) = (Group::new(), 20.0);
    for worker in (1..).zip(&account.pids).map(|(worker, _)| worker) {
        legend = legend.add(rect(x, y - 11.0, 7.0, 14.0, colour(worker)));
        x += 10.0;
    }
    legend
        .add(text("has the lock", x + 4.0, y, 14))
        .add(line((x + 116.0, y - 4.0), (x + 146.0, y - 4.0), WAIT, 1.5))
        .add(text("waits for it", x + 153.0, y, 14))
        .add(cross(x + 260.0, y - 4.0))
        .add(text("is killed (SIGKILL)", x + 275.0, y, 14))
        .add(rect(x + 425.0, y - 11.0, 30.0, 14.0, HATCH).set("stroke", RED))
        .add(text(shaded, x + 462.0, y, 14))
}

/// The kill, the lease that goes on after it, and the expiry.
fn gap_marks(strip: &Strip<'_>, account: &Account) -> Group {
    let crash = account.crash;
    let Victim::Worker(victim) = crash.victim else { return failover_marks(strip, account) };
    let killed = format!("worker {victim} is killed");
    let over = account.takeover().map_or_else(
        || "it expires, and no process takes over".to_owned(),
        |takeover| {
            format!(
                "it expires; worker {} takes over {} ms later",
                takeover.worker,
                late(takeover.entered, crash.expiry)
            )
        },
    );
    let lease = format!("the lease of {} goes on", humantime::format_duration(account.expiration));
    strip
        .crash_mark()
        .add(strip.flag(crash.at, RED, &killed, "start"))
        .add(strip.flag(crash.expiry, INK, &over, "end"))
        .add(strip.inscription(victim, Span { from: crash.at, to: crash.lease_end }, &lease))
        .add(strip.inscription(
            victim,
            Span { from: crash.lease_end, to: crash.expiry },
            "and a second more, for clock differences",
        ))
}

/// The kill of the master, the next one, and when that grants locks.
fn failover_marks(strip: &Strip<'_>, account: &Account) -> Group {
    let crash = account.crash;
    let over = account.takeover().map_or_else(
        || "no process gets the lock".to_owned(),
        |next| format!("worker {} has the lock {} ms later", next.worker, late(next.entered, crash.expiry)),
    );
    Group::new()
        .add(strip.flag(crash.at, RED, "the master is killed", "start"))
        .add(strip.flag(crash.lease_end, INK, "a replica is the master, and settles", "end"))
        .add(strip.flag(crash.expiry, INK, &over, "end"))
}

fn takeover_mark(strip: &Strip<'_>, account: &Account) -> Group {
    let expiry = account.crash.expiry;
    let words = match account.crash.victim {
        Victim::Worker(_) => "the lock expires",
        Victim::Master => "the master has settled",
    };
    let marks = strip.crash_mark().add(strip.flag(expiry, INK, words, "end"));
    match account.takeover() {
        Some(Acquisition { worker, entered, .. }) => {
            let words = format!("worker {worker} gets the lock {} ms later", late(*entered, expiry));
            marks.add(strip.flag(*entered, colour(*worker), &words, "start"))
        }
        None => marks,
    }
}

fn late(moment: Moment, expiry: Moment) -> String {
    millis(moment.since(expiry))
}

/// The pattern of a lease whose holder has crashed.
fn hatch() -> Definitions {
    let stripe = Line::new().set("x1", 0).set("y1", 0).set("x2", 0).set("y2", 7);
    let pattern = Pattern::new()
        .set("id", "crashed")
        .set("width", 7)
        .set("height", 7)
        .set("patternUnits", "userSpaceOnUse")
        .set("patternTransform", "rotate(45)")
        .add(rect(0.0, 0.0, 7.0, 7.0, "#fdf0f0"))
        .add(stripe.set("stroke", "#efb5b5").set("stroke-width", 3));
    Definitions::new().add(pattern)
}
