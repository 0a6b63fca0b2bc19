//! The candidates of a run: those that were asked for and that work on this machine.

use crate::Failure;
use crate::candidates::Candidate;
use crate::options::Options;
use crate::peer::Peer;
use crate::server_under_test::ServerUnderTest;

/// Returns them with their versions; prints which do not work, and why.
pub(crate) fn choose(options: &Options) -> Result<Vec<Candidate>, Failure> {
    let all = Candidate::all();
    let names: Vec<_> = all.iter().map(|candidate| candidate.name).collect();
    if let Some(unknown) = options.candidates.iter().find(|name| !names.contains(&name.as_str())) {
        return Err(format!("no candidate {unknown}; there are {}", names.join(", ")).into());
    }
    let asked = |name: &str| options.candidates.is_empty() || options.candidates.iter().any(|n| n == name);
    let server = ServerUnderTest::start()?;
    let mut chosen = Vec::new();
    for mut candidate in all.into_iter().filter(|candidate| asked(candidate.name)) {
        match Peer::open(&candidate, &server.url(), 1) {
            Ok(peer) => {
                candidate.version.clone_from(&peer.version);
                chosen.push(candidate);
            }
            Err(failure) => println!("without {}: {failure}", candidate.name),
        }
    }
    Ok(chosen)
}
