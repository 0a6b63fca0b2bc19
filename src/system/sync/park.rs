//! The loop of a thread that waits for others. It talks to no
//! checker's primitives itself, so the models compile it as it is.

/// Looks for a result, and parks after each look that finds none. `park` puts the thread to sleep until an unpark or
/// for some time, and returns whether to go on. If not, the next look is told, and has to find a result.
///
/// A write that happens after a look is followed by an unpark, which makes the next park return at once; and parking
/// may return for no reason. So each park is followed by a look.
pub(crate) fn park_until<R>(mut look: impl FnMut(bool) -> Option<R>, mut park: impl FnMut() -> bool) -> R {
    let mut over = false;
    loop {
        if let Some(result) = look(over) {
            return result;
        }
        over = !park();
    }
}
