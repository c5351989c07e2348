//! Members that this replica has not heard of yet: it was away while they were added, or joins and has no member
//! records. One of them may be the leader, without whom it never hears of them. So the members that it knows are
//! asked.

use super::join;
use super::shared::Shared;

/// The pause between questions: nobody who dials makes this node dial its peers more often.
const PAUSE_MS: u64 = 500;

/// Whether a member that this replica knows says that `newcomer` is one too. Then the newcomer is dialled, at the
/// address that the member says, until the member list here says otherwise. False also if others asked just now.
/// Blocks for as long as connecting takes.
pub(crate) fn ask_about(shared: &Shared, newcomer: u64) -> bool {
    let Some(transport) = shared.transport_if_set() else { return false };
    // Held while asking: one asks at a time.
    let Some(mut asked) = shared.asked_about_newcomers.try_lock() else { return false };
    if asked.is_some_and(|at_ms| shared.now_ms().saturating_sub(at_ms) < PAUSE_MS) {
        return false;
    }
    let address = transport.peers().into_values().find_map(|peer| {
        // A question of nobody's address: it records no disk.
        let (cluster, answer) = join::ask(&peer, "", 0).ok()?;
        answer.peers.get(&newcomer).filter(|_| cluster == shared.cluster).cloned()
    });
    *asked = Some(shared.now_ms());
    let Some(address) = address else { return false };
    tracing::info!(member = format!("{newcomer:016x}"), address, "heard of a new member from another one");
    transport.meet(newcomer, address);
    true
}
