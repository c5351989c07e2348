//! How a connection between replicas begins: the dialler says who it is and whom it wants, and is told
//! whether it is welcome. So a misconfigured replica is refused with an explanation instead of corrupting a
//! cluster.
//!
//! **Bytes.** All integers are little-endian. A greeting is the magic `QUOINPR3`; u64 purpose, cluster,
//! from, to, incarnation and disk; and the dialler's address, a u16 length before it. That of the version
//! before has the magic `QUOINPR2` and no disk; it is answered, as from a member without a disk. The
//! answer is the u64 verdict; u64 cluster, id and incarnation of the process that answers; and the
//! address of the rival that runs as the dialler's member, a u16 length before it. It is empty for other
//! verdicts.
//!
//! With TLS the greeting comes within it, and each side's certificate must be that of the member that it says it is
//! (`quoin_tls::Certificate::is_of`) before anything else is read or believed.
//!
//! An *incarnation* is a number drawn when a process starts. It tells two processes with the same id apart.

use crate::stream::PeerStream;
use bytes::Buf;
use quoin_tls::Keys;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

const MAGIC: &[u8; 8] = b"QUOINPR3";
/// Of greetings without a disk.
const MAGIC_2: &[u8; 8] = b"QUOINPR2";
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
pub(crate) const GREETING_TIMEOUT: Duration = Duration::from_secs(5);
/// Asking who holds an id is given less time: a dialler waits for the outcome.
const IDENTIFY_TIMEOUT: Duration = Duration::from_secs(2);
/// A connection that takes no bytes for this long is closed and made again.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum bytes of an address.
const ADDRESS_MAX: usize = 512;

/// Who dials whom, and what for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Greeting {
    /// What the connection is for.
    pub purpose: Purpose,
    /// The dialler's cluster; 0 if it does not know it yet.
    pub cluster: u64,
    /// The dialler's member; 0 if it has no id yet.
    pub from: u64,
    /// The member that is meant; 0 for whoever answers.
    pub to: u64,
    /// The dialler's process; 0 if it has no id yet.
    pub incarnation: u64,
    /// The disk that the dialler's member runs on; 0 if it has no id yet.
    pub disk: u64,
    /// Where peers reach the dialler.
    pub address: String,
}

/// What a connection is for. The numbers are on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Purpose {
    /// Messages for the groups of the node, as frames.
    Frames = 1,
    /// One snapshot.
    Snapshot = 2,
    /// A node that was added and starts for the first time asks who it is.
    Join = 3,
    /// The dialler only wants to know who answers.
    Identify = 4,
    /// A founder that takes part for the first time asks how far the cluster is.
    Found = 5,
    /// One file, for a member that lacks it.
    Files = 6,
}

impl Purpose {
    /// Whether only members may have such a connection.
    pub(crate) fn is_of_a_member(self) -> bool {
        !matches!(self, Self::Join | Self::Identify)
    }
}

/// The answer to a greeting. The numbers are on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Verdict {
    /// The connection may be used.
    Welcome = 0,
    /// The dialler belongs to another cluster.
    OtherCluster = 1,
    /// The dialler wants another node: an address is wrong.
    OtherNode = 2,
    /// The dialler is this very process: an address is wrong.
    Oneself = 3,
    /// The dialler has been removed from the cluster.
    Removed = 4,
    /// Another process runs as the dialler's member.
    Duplicate = 5,
    /// The dialler's member is known to run on another disk.
    OtherDisk = 6,
    /// The node that answers knows no such member, or not yet: it may be about to apply its addition.
    Unknown = 7,
    /// The node that answers speaks TLS alone. Said without TLS, and without saying who answers.
    NeedsTls = 8,
    /// The dialler's certificate is not that of the member that it says it is.
    OtherCertificate = 9,
}

impl Verdict {
    /// Those after which retrying cannot help, here or elsewhere: the dialler must not run.
    pub const FINAL: [Self; 3] = [Self::Removed, Self::Duplicate, Self::OtherDisk];
}

/// The answer to a greeting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) verdict: u64,
    /// The process that answers.
    pub(crate) who: Who,
    /// Address of the process that runs as the dialler's member, for [`Verdict::Duplicate`].
    pub(crate) rival: String,
}

/// A process and the member it runs as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Who {
    /// The cluster's id.
    pub cluster: u64,
    /// The member's id.
    pub id: u64,
    /// The process's incarnation.
    pub incarnation: u64,
}

/// Why a peer was not reached.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DialError {
    /// Nothing answers, or not as a peer does.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The peer refuses this node.
    #[error("{text}")]
    Refused {
        /// Why, and what to do.
        text: String,
        /// Retrying cannot help, here or elsewhere: this node must not run.
        forever: bool,
    },
}

impl From<DialError> for io::Error {
    fn from(error: DialError) -> Self {
        match error {
            DialError::Io(error) => error,
            refused => Self::new(io::ErrorKind::ConnectionRefused, refused),
        }
    }
}

impl Greeting {
    /// The greeting of a node that has no id yet, or only wants to know who answers.
    pub fn of_nobody(purpose: Purpose) -> Self {
        Self { purpose, cluster: 0, from: 0, to: 0, incarnation: 0, disk: 0, address: String::new() }
    }

    fn encode(&self) -> Vec<u8> {
        let purpose = self.purpose as u64;
        let numbers = [purpose, self.cluster, self.from, self.to, self.incarnation, self.disk];
        [&MAGIC[..], &numbers.map(u64::to_le_bytes).concat(), &sized(&self.address)].concat()
    }

    /// Reads a greeting. Other bytes are [`io::ErrorKind::InvalidData`], as soon as they are seen.
    pub(crate) fn read(stream: &mut impl Read) -> io::Result<Self> {
        let mut magic = [0; 8];
        stream.read_exact(&mut magic)?;
        let length = match &magic {
            MAGIC => 48,
            MAGIC_2 => 40,
            [0x16, 3, ..] => {
                return Err(invalid(
                    "the peer speaks TLS, and this node has no certificates (tls.peer_cert_file)",
                ));
            }
            _ => return Err(invalid("wrong magic")),
        };
        let mut bytes = [0; 48];
        stream.read_exact(&mut bytes[..length])?;
        let mut rest = &bytes[..];
        let purpose = match rest.get_u64_le() {
            1 => Purpose::Frames,
            2 => Purpose::Snapshot,
            3 => Purpose::Join,
            4 => Purpose::Identify,
            5 => Purpose::Found,
            6 => Purpose::Files,
            _ => return Err(invalid("unknown purpose")),
        };
        let (cluster, from) = (rest.get_u64_le(), rest.get_u64_le());
        let (to, incarnation, disk) = (rest.get_u64_le(), rest.get_u64_le(), rest.get_u64_le());
        Ok(Self { purpose, cluster, from, to, incarnation, disk, address: read_sized(stream)? })
    }
}

impl Answer {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let numbers = [self.verdict, self.who.cluster, self.who.id, self.who.incarnation];
        [&numbers.map(u64::to_le_bytes).concat()[..], &sized(&self.rival)].concat()
    }

    fn read(stream: &mut impl Read) -> io::Result<Self> {
        let mut bytes = [0; 32];
        stream.read_exact(&mut bytes)?;
        let mut rest = &bytes[..];
        let verdict = rest.get_u64_le();
        let who = Who { cluster: rest.get_u64_le(), id: rest.get_u64_le(), incarnation: rest.get_u64_le() };
        Ok(Self { verdict, who, rival: read_sized(stream)? })
    }
}

/// A text after its length. A text longer than [`ADDRESS_MAX`] is not an address and counts as empty.
fn sized(text: &str) -> Vec<u8> {
    let text = if text.len() <= ADDRESS_MAX { text } else { "" };
    [&(text.len() as u16).to_le_bytes()[..], text.as_bytes()].concat()
}

fn read_sized(stream: &mut impl Read) -> io::Result<String> {
    let mut length = [0; 2];
    stream.read_exact(&mut length)?;
    let length = usize::from(u16::from_le_bytes(length));
    if length > ADDRESS_MAX {
        return Err(invalid("an address is too long"));
    }
    let mut text = vec![0; length];
    stream.read_exact(&mut text)?;
    String::from_utf8(text).map_err(|_| invalid("an address is not valid UTF-8"))
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("not a greeting: {what}"))
}

/// How a node reaches its peers.
#[derive(Clone, Copy, Default)]
pub struct Dialling<'a> {
    /// With these, over TLS.
    pub keys: Option<&'a Keys>,
    /// The name of the member that is meant; empty if it is not known, or if whoever answers is meant.
    pub name: &'a str,
}

/// Connects, greets, and reads the answer.
///
/// # Errors
/// Nothing answers in time, or the peer refuses. The text says why.
pub fn dial(
    address: &str,
    greeting: &Greeting,
    dialling: Dialling<'_>,
) -> Result<(PeerStream, Who), DialError> {
    dial_within(address, greeting, dialling, CONNECT_TIMEOUT)
}

/// [`dial`], giving up if there is no connection after `connect_timeout`.
///
/// # Errors
/// See [`dial`].
pub(crate) fn dial_within(
    address: &str,
    greeting: &Greeting,
    dialling: Dialling<'_>,
    connect_timeout: Duration,
) -> Result<(PeerStream, Who), DialError> {
    let (stream, answer) = greet(address, greeting, dialling, connect_timeout, GREETING_TIMEOUT)?;
    let (cluster, id) = (answer.who.cluster, answer.who.id);
    let text = match answer.verdict {
        0 => return Ok((stream, answer.who)),
        1 => format!(
            "{address} belongs to cluster {cluster:016x}, this node to {:016x}: check the peer addresses and data \
             folders; founders of a restored cluster must all have restored the same file",
            greeting.cluster
        ),
        2 => format!("{address} is member {id:016x}, not {:016x}: check the peer addresses", greeting.to),
        3 => format!("{address} is this node itself: check the peer addresses"),
        4 => format!(
            "member {:016x} was removed from cluster {cluster:016x}: delete its data folder before adding it anew \
             (quoin cluster add), and then start it with --join",
            greeting.from
        ),
        5 => format!(
            "another node runs as member {:016x}, reached at {}: two nodes have one name and cluster, or \
            copies of one data folder; stop the wrong one",
            greeting.from, answer.rival
        ),
        6 => format!(
            "member {:016x} of cluster {cluster:016x} is already bootstrapped on another disk than {:016x}, which \
            this data folder is on: what it voted and acknowledged there is not here. Put the old data \
            folder back, or delete this one, remove the member and add it anew (quoin cluster add), and then \
            start it with --join",
            greeting.from, greeting.disk
        ),
        7 => format!(
            "{address} does not know member {:016x} of cluster {cluster:016x} yet: if that lasts, add this node to the \
             cluster first (quoin cluster add), or, if {address} was away for long, remove that node and add it anew",
            greeting.from
        ),
        8 => format!("{address} speaks TLS alone, and this node has no certificates: set tls.peer_cert_file"),
        9 => format!(
            "{address} does not take this node's certificate for that of member {:016x}: it must name \
             quoin://node/NAME with the member's name, or its host; quoin cert show prints what it names",
            greeting.from
        ),
        other => format!("{address} answered {other}: it is not a peer of this version"),
    };
    let forever = Verdict::FINAL.iter().any(|verdict| *verdict as u64 == answer.verdict);
    Err(DialError::Refused { text, forever })
}

/// Asks which process answers at `address`.
///
/// # Errors
/// Nothing answers in time.
pub fn identify(address: &str, keys: Option<&Keys>) -> io::Result<Who> {
    let (greeting, dialling) = (Greeting::of_nobody(Purpose::Identify), Dialling { keys, name: "" });
    Ok(greet(address, &greeting, dialling, CONNECT_TIMEOUT, IDENTIFY_TIMEOUT)?.1.who)
}

fn greet(
    address: &str,
    greeting: &Greeting,
    dialling: Dialling<'_>,
    connect_timeout: Duration,
    patience: Duration,
) -> io::Result<(PeerStream, Answer)> {
    let resolved = address
        .to_socket_addrs()?
        .next()
        .ok_or_else(|| io::Error::other(format!("{address} resolves to no address")))?;
    let socket = TcpStream::connect_timeout(&resolved, connect_timeout)?;
    socket.set_nodelay(true)?;
    socket.set_read_timeout(Some(patience))?;
    socket.set_write_timeout(Some(WRITE_TIMEOUT))?;
    let mut stream = PeerStream::dialled(socket, dialling.keys, resolved, Instant::now() + patience)?;
    if let Some(certificate) = stream.certificate()?
        && !certificate.is_of(dialling.name, address)
    {
        let (named, name) = (certificate.described(), dialling.name);
        let wanted = if name.is_empty() { address.to_owned() } else { format!("node {name}") };
        return Err(io::Error::other(format!(
            "the certificate at {address} is that of {named}, not of {wanted}: check the peer addresses and certificates"
        )));
    }
    stream.set_read_timeout(Some(patience))?;
    stream.write_all(&greeting.encode())?;
    let answer = Answer::read(&mut stream)?;
    Ok((stream, answer))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn greeting() -> Greeting {
        let address = "h:1".to_string();
        Greeting {
            purpose: Purpose::Frames,
            cluster: 0x0102,
            from: 3,
            to: 4,
            incarnation: 5,
            disk: 6,
            address,
        }
    }

    #[test]
    fn greeting_and_answer_layouts_are_pinned() {
        let hex = |bytes: Vec<u8>| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let zeros = "00000000000000";
        let numbers = format!("01{zeros}0201{}03{zeros}04{zeros}05{zeros}", &zeros[2..]);
        assert_eq!(hex(greeting().encode()), format!("51554f494e505233{numbers}06{zeros}0300683a31"));
        let before = [&b"QUOINPR2"[..], &greeting().encode()[8..48], &greeting().encode()[56..]].concat();
        assert_eq!(Greeting::read(&mut &before[..]).unwrap(), Greeting { disk: 0, ..greeting() });
        let who = Who { cluster: 1, id: 2, incarnation: 3 };
        let answer = Answer { verdict: 5, who, rival: "r".into() };
        assert_eq!(hex(answer.encode()), format!("05{zeros}01{zeros}02{zeros}03{zeros}010072"));
        assert_eq!(Greeting::read(&mut &greeting().encode()[..]).unwrap(), greeting());
        assert_eq!(Answer::read(&mut &answer.encode()[..]).unwrap(), answer);
    }

    #[test]
    fn other_bytes_are_told_from_a_greeting_that_is_cut_short() {
        let whole = greeting().encode();
        for end in 0..whole.len() {
            let error = Greeting::read(&mut &whole[..end]).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "cut at {end}");
        }
        for (place, byte) in [(0, b'X'), (7, b'1'), (8, 9), (57, 9)] {
            let mut broken = whole.clone();
            broken[place] = byte;
            let error = Greeting::read(&mut &broken[..]).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "byte {place}");
        }
    }
}
