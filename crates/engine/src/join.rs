//! How a new node learns who it is: it asks a member, over a connection greeted with [`Purpose::Join`].
//!
//! The node sends its peer address and its disk, and the member answers with a [`JoinAnswer`]. Both are
//! JSON, after their length (4 bytes, little-endian).
//!
//! **Invariant: One disk per member.** Before it answers, the member records the disk through the log,
//! unless the joining member has one: so when a node starts, no other disk has taken part as its member,
//! nor ever will. The second voter of a cluster is the exception, since nothing can be recorded without it:
//! the first one keeps its claim in mind until both run and it is recorded. Whatever they decide until then, the
//! first one has it in its log.
//!
//! **Invariant: Bounded.** A message has at most [`BYTES_MAX`] bytes. A longer one is refused before it is
//! read.

use super::engine::Engine;
use super::shared::Shared;
use quoin_consensus::PeerStream;
use quoin_consensus::greeting::{Dialling, Greeting, Purpose, dial};
use quoin_core::View;
use quoin_core::system::{self, DiskClaim, Operation};
use quoin_tls::Keys;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;

/// Maximum bytes of a message.
const BYTES_MAX: usize = 1 << 20;
/// How long an answer may take: the one who answers proposes a command first.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);

/// What a member answers to a node that asks who it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinAnswer {
    /// The member that has the node's peer address, if any.
    pub member: Option<u64>,
    /// The disk of that member; 0 if it could not be recorded, because there is no leader.
    #[serde(default)]
    pub disk: u64,
    /// Peer addresses of all members, by id.
    pub peers: BTreeMap<u64, String>,
}

/// What a [`JoinAnswer`] means to the node that asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Joining {
    /// It is this member, and its disk is on record.
    Member(u64),
    /// It would be this member, whose disk is not on record: perhaps it has started before, or there is no leader. It
    /// may ask again.
    Unrecorded(u64),
    /// It would be this member, which another disk is recorded for: what that one had voted and acknowledged is not here.
    OtherDisk {
        /// The member.
        member: u64,
        /// Its disk.
        disk: u64,
    },
    /// It was not added, or the one that it asked does not know of it yet.
    NoMember,
}

impl JoinAnswer {
    /// What this means to a node on `disk`.
    ///
    /// **Invariant: One disk per member.** A node joins only as a member with its own disk on record.
    pub fn means_to(&self, disk: u64) -> Joining {
        match (self.member, self.disk) {
            (None, _) => Joining::NoMember,
            (Some(member), recorded) if recorded == disk => Joining::Member(member),
            (Some(member), 0) => Joining::Unrecorded(member),
            (Some(member), disk) => Joining::OtherDisk { member, disk },
        }
    }
}

/// What a node says that asks who it is.
#[derive(Serialize, Deserialize)]
struct Question {
    /// Where peers reach it.
    address: String,
    /// The number drawn when its data folder was made.
    disk: u64,
}

/// Asks the member at `address` which member has the peer address `own`, for a node on `disk`. Returns the
/// cluster's id and the answer.
///
/// # Errors
/// The member does not answer, or its answer cannot be decoded.
pub fn ask(address: &str, own: &str, disk: u64, keys: Option<&Keys>) -> io::Result<(u64, JoinAnswer)> {
    let (mut stream, who) = dial(address, &Greeting::of_nobody(Purpose::Join), Dialling { keys, name: "" })?;
    write_sized(&mut stream, &serde_json::to_vec(&Question { address: own.into(), disk })?)?;
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    Ok((who.cluster, serde_json::from_slice(&read_sized(&mut stream)?)?))
}

/// Answers a node that asks on a greeted connection. Blocks until its disk is recorded, or cannot be.
///
/// # Errors
/// The connection broke, or the question cannot be decoded.
pub(crate) fn answer(shared: &Arc<Shared>, runtime: &Handle, stream: &mut PeerStream) -> io::Result<()> {
    let question: Question = serde_json::from_slice(&read_sized(stream)?)?;
    let answer = runtime.block_on(answer_to(shared, &question.address, question.disk));
    write_sized(stream, &serde_json::to_vec(&answer)?)
}

/// The answer to a node at `address`, on `disk`. Returns once the disk is recorded, or cannot be.
pub(crate) async fn answer_to(shared: &Arc<Shared>, address: &str, disk: u64) -> JoinAnswer {
    let peers = shared.members.lock().clone();
    let member = peers.iter().find(|(_, known)| *known == address).map(|(id, _)| *id);
    let disk = match member {
        Some(id) => claim(shared, id, disk).await,
        None => 0,
    };
    JoinAnswer { member, disk, peers }
}

/// Records the disk of a member that has none, and returns the one that counts.
async fn claim(shared: &Arc<Shared>, member: u64, disk: u64) -> u64 {
    let known = || shared.disks.lock().get(&member).copied().unwrap_or(0);
    if known() == 0 && is_awaited(shared, member) {
        return *shared.disks.lock().entry(member).or_insert(disk);
    }
    if known() == 0 {
        let claim = Operation::ClaimDisk(DiskClaim { member, disk, new: true });
        if let Err(error) = Engine::new(Arc::clone(shared)).propose(claim.into_command()).await {
            tracing::warn!(member = format!("{member:016x}"), %error, "recording a joining node's disk");
        }
    }
    known()
}

/// Whether nothing can be recorded before `member` runs for the first time: it and this replica are the only voters.
fn is_awaited(shared: &Shared, member: u64) -> bool {
    let voters = shared.raft.borrow().voters.clone();
    let published = shared.published.load_full();
    let view = View::new(&*published.store, published.progress.sequence);
    // An error: then it is not known to be new.
    let members = system::members(view).unwrap_or_default();
    let is_new = members.iter().any(|known| known.id == member && known.name.is_empty());
    is_new && voters.len() == 2 && voters.contains(&shared.id) && voters.contains(&member)
}

pub(crate) fn write_sized(stream: &mut PeerStream, bytes: &[u8]) -> io::Result<()> {
    let length = u32::try_from(bytes.len()).map_err(io::Error::other)?;
    stream.write_all(&[&length.to_le_bytes(), bytes].concat())
}

pub(crate) fn read_sized(stream: &mut PeerStream) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > BYTES_MAX {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("a message of {length} bytes; at most {BYTES_MAX} are read"),
        ));
    }
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}
