//! The loop of a thread that waits for others. It talks to no checker's primitives itself, so the models compile it as it is.

use std::ops::ControlFlow;

/// Looks for a result, and parks after each look that finds none. `look` returns the result, or what it waits for; `park` spends some
/// time on that, ended by an unpark, and returns whether to go on. If not, the next look gets what was waited for as its argument.
///
/// A write that happens after a look is followed by an unpark, which makes the next park return at once; and parking may return for no
/// reason. So each park is followed by a look.
pub(crate) fn park_until<R, S: Copy>(
    mut look: impl FnMut(Option<S>) -> ControlFlow<R, S>,
    mut park: impl FnMut(S) -> bool,
) -> R {
    let mut given_up = None;
    loop {
        match look(given_up) {
            ControlFlow::Break(result) => return result,
            ControlFlow::Continue(awaited) => given_up = (!park(awaited)).then_some(awaited),
        }
    }
}
