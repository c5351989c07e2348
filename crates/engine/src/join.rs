//! How a new node learns who it is: it asks a member, over a connection greeted with [`Purpose::Join`].
//!
//! The node sends its peer address, and the member answers with a [`JoinAnswer`] in JSON. Each message is its
//! length (4 bytes, little-endian) and that many bytes.
//!
//! **Invariant: Bounded.** A message has at most [`BYTES_MAX`] bytes. A longer one is refused before it is
//! read.

use quoin_consensus::greeting::{Greeting, Purpose, dial};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::TcpStream;

/// Maximum bytes of a message.
const BYTES_MAX: usize = 1 << 20;

/// What a member answers to a node that asks who it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinAnswer {
    /// The member that has the node's peer address, if any.
    pub member: Option<u64>,
    /// Peer addresses of all members, by id.
    pub peers: BTreeMap<u64, String>,
}

/// Asks the member at `address` which member has the peer address `own`. Returns the cluster's id and the
/// answer.
///
/// # Errors
/// The member does not answer, or its answer cannot be decoded.
pub fn ask(address: &str, own: &str) -> io::Result<(u64, JoinAnswer)> {
    let (mut stream, who) = dial(address, &Greeting::of_nobody(Purpose::Join))?;
    write_sized(&mut stream, own.as_bytes())?;
    Ok((who.cluster, serde_json::from_slice(&read_sized(&mut stream)?)?))
}

/// Answers a node that asks on a greeted connection.
///
/// # Errors
/// The connection broke, or the question is no address.
pub(crate) fn answer(stream: &mut TcpStream, peers: &BTreeMap<u64, String>) -> io::Result<()> {
    let address = String::from_utf8(read_sized(stream)?).map_err(io::Error::other)?;
    let member = peers.iter().find(|(_, known)| **known == address).map(|(id, _)| *id);
    write_sized(stream, &serde_json::to_vec(&JoinAnswer { member, peers: peers.clone() })?)
}

fn write_sized(stream: &mut TcpStream, bytes: &[u8]) -> io::Result<()> {
    let length = u32::try_from(bytes.len()).map_err(io::Error::other)?;
    stream.write_all(&[&length.to_le_bytes(), bytes].concat())
}

fn read_sized(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
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
