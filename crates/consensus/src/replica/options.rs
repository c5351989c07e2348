//! Bounds and timing of a replica.

/// Bounds and timing of a replica. Ticks are the driver's.
#[derive(Clone, Debug)]
pub struct Options {
    /// Ticks without a leader before an election. Each replica draws its own timeout between one and two of
    /// these.
    pub election_ticks: usize,
    /// Ticks between a leader's heartbeats.
    pub heartbeat_ticks: usize,
    /// Maximum commands in one batch. Forwarded commands are not split and may exceed it.
    pub batch_commands_max: usize,
    /// Bytes after which a batch takes no more commands. A larger command still goes.
    pub batch_bytes_max: usize,
    /// Maximum batches of this leader that are being written at once. Further proposals wait and form the
    /// next batch.
    pub batches_in_flight_max: usize,
    /// Maximum commands that followers have forwarded and this leader has not proposed yet. A forward beyond it is
    /// refused as busy.
    pub forwarded_commands_max: usize,
    /// Maximum bytes of them, likewise.
    pub forwarded_bytes_max: usize,
    /// Maximum bytes of entries in one message to a follower. A larger entry still goes, alone.
    pub message_bytes_max: u64,
    /// Maximum unanswered messages to a follower.
    pub messages_in_flight_max: usize,
    /// Seeds the election timeouts, together with the id and the term. This process's read rounds, forwards and
    /// clock are numbered from it. It must differ at every start, or answers to an earlier process of this member
    /// are taken for answers to this one.
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            election_ticks: 10,
            heartbeat_ticks: 2,
            batch_commands_max: 4096,
            batch_bytes_max: 1 << 20,
            batches_in_flight_max: 2,
            forwarded_commands_max: 100_000,
            forwarded_bytes_max: 256 << 20,
            message_bytes_max: 1 << 20,
            messages_in_flight_max: 128,
            seed: 0,
        }
    }
}

/// Ticks after which a waiting client is told that its command or read was not done, or may not have been.
pub const GIVE_UP_TICKS: u64 = 100;
/// Likewise for a forwarded command that is paced: the leader may have others before it.
pub(super) const PACED_GIVE_UP_TICKS: u64 = 10 * GIVE_UP_TICKS;
