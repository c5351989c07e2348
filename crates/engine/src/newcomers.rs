//! Members that this replica has not heard of yet: it was away while they were added, or joins and has no member
//! records. One of them may be the leader, without whom it never hears of them. So the members that it knows are
//! asked.
//!
//! **Invariant: One disk per member.** A replica that knows no others asks the newcomer itself whether it is the
//! member that the newcomer knows. The only founder of a cluster has nobody to ask when it starts: if it has lost
//! its disk, this is how it hears of that. Others do not ask, or anybody who reaches them could end them.

use super::join;
use super::shared::Shared;
use quoin_consensus::greeting::{DialError, Purpose};

/// The pause between questions: nobody who dials makes this node dial its peers more often.
const PAUSE_MS: u64 = 500;

/// Whether a member that this replica knows says that `newcomer` is one too. Then the newcomer is dialled, at the
/// address that the member says, until the member list here says otherwise. False also if others asked just now.
/// A replica that knows no others ends if the newcomer, which says that it is at `claimed`, knows it on another disk.
/// Blocks for as long as connecting takes.
pub(crate) fn ask_about(shared: &Shared, newcomer: u64, claimed: &str) -> bool {
    let Some(transport) = shared.transport_if_set() else { return false };
    // Held while asking: one asks at a time.
    let Some(mut asked) = shared.asked_about_newcomers.try_lock() else { return false };
    if asked.is_some_and(|at_ms| shared.now_ms().saturating_sub(at_ms) < PAUSE_MS) {
        return false;
    }
    let peers = transport.peers();
    let address = peers.values().find_map(|peer| {
        // A question of nobody's address: it records no disk.
        let (cluster, answer) = join::ask(peer, "", 0, transport.keys()).ok()?;
        answer.peers.get(&newcomer).filter(|_| cluster == shared.cluster).cloned()
    });
    if peers.is_empty()
        && let Err(DialError::Refused { text, forever: true }) =
            transport.dial_at(claimed, newcomer, Purpose::Found)
    {
        shared.cast_out(&text);
    }
    *asked = Some(shared.now_ms());
    let Some(address) = address else { return false };
    tracing::info!(member = format!("{newcomer:016x}"), address, "heard of a new member from another one");
    transport.meet(newcomer, address);
    true
}
