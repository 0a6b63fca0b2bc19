//! Servers, networks, clocks and processes that fail: the call ends with a correct outcome, nothing is sent twice, and
//! the key is held, or free after its lease.
//!
//! | file | what it tests |
//! |---|---|
//! | `asked_first` | the answer to the first command of a call |
//! | `clocks` | clocks that differ, or are set while a lock is held |
//! | `cluster` | a cluster whose slots move and whose nodes fail |
//! | `debts` | calls that end in doubt, and locks that nobody wants |
//! | `failed_releases` | releases that fail, and are tried again |
//! | `handing_over` | locks that go to other processes |
//! | `keeping` | leases that a thread extends, while processes and servers fail |
//! | `leading` | processes of which one leads |
//! | `losers` | values that gems write over those of holders |
//! | `numbers` | fencing tokens over failovers |
//! | `older_servers` | a server that comes back older |
//! | `permit_faults` | what the server refuses of permits, readers and writers |
//! | `refusals` | what the server or the library refuses |
//! | `refused_for_now` | what a server refuses for a time |
//! | `server_check` | the check of the role and version on each new connection |
//! | `servers_and_networks` | servers and networks that fail |
//! | `several_faults` | what the server refuses of several keys, and calls that are interrupted |
//! | `shared_connections` | many threads on a few connections that are killed, a server that stops, keys that are overwritten |
//! | `slow_callbacks` | observers and `on_loss` that take their time |
//! | `sockets` | replies that come in pieces, are too long, or are interrupted by a signal |
//! | `stress` | no two leases are valid at once under kills and delays |
//! | `transaction_faults` | faults of the protocols with WATCH |
//! | `unreachable` | how long calls retry |
//! | `went_back` | a server that has lost its last writes |
//!
//! Faults at every command, with all threads and processes that there are, are the simulation's: `tests/simulate`. Here
//! is what only real sockets, servers and processes show, and the words. A test that injects a fault asserts that it
//! has happened, and says with which outcomes the call may end.

pub(crate) mod asked_first;
pub(crate) mod clocks;
pub(crate) mod cluster;
pub(crate) mod debts;
pub(crate) mod failed_releases;
pub(crate) mod forks;
pub(crate) mod handing_over;
pub(crate) mod keeping;
pub(crate) mod leading;
pub(crate) mod losers;
pub(crate) mod numbers;
pub(crate) mod older_servers;
pub(crate) mod permit_faults;
pub(crate) mod refusals;
pub(crate) mod refused_for_now;
pub(crate) mod server_check;
pub(crate) mod servers_and_networks;
pub(crate) mod several_faults;
pub(crate) mod shared_connections;
pub(crate) mod slow_callbacks;
pub(crate) mod sockets;
pub(crate) mod stacks;
pub(crate) mod stress;
pub(crate) mod time_limits;
pub(crate) mod transaction_faults;
pub(crate) mod unreachable;
pub(crate) mod went_back;

use libtest_mimic::Trial;

pub(crate) fn trials() -> Vec<Trial> {
    [
        asked_first::trials(),
        clocks::trials(),
        cluster::trials(),
        debts::trials(),
        failed_releases::trials(),
        forks::trials(),
        handing_over::trials(),
        keeping::trials(),
        leading::trials(),
        losers::trials(),
        numbers::trials(),
        older_servers::trials(),
        went_back::trials(),
        permit_faults::trials(),
        refusals::trials(),
        refused_for_now::trials(),
        server_check::trials(),
        servers_and_networks::trials(),
        several_faults::trials(),
        shared_connections::trials(),
        slow_callbacks::trials(),
        sockets::trials(),
        stacks::trials(),
        stress::trials(),
        transaction_faults::trials(),
        time_limits::trials(),
        unreachable::trials(),
    ]
    .into_iter()
    .flatten()
    .collect()
}
