//! Files that replicas give each other over the peer port: those of tables, for a replica whose published source is
//! gone or damaged.
//!
//! After the greeting the asker sends where to begin (u64), and the file's name after its length (u16). The answer is
//! the file's length (u64), or [`NOT_HERE`] or [`BUSY`], then its bytes from there on. All integers are little-endian.
//!
//! **Invariant: Bounded.** A replica lends [`LENT_AT_ONCE_MAX`] files at once; whoever asks beyond is told to ask
//! another, or again. A side that hears nothing for [`SILENCE_MAX`] gives up. How fast the bytes are taken is the
//! asker's to bound.
//!
//! What is deliberately absent: which files there are, and whether they are whole. The node says the one, see
//! [`Engine::lend_files`]; the asker checks the other.

use super::engine::Engine;
use super::shared::Shared;
use quoin_consensus::PeerStream;
use quoin_consensus::greeting::Purpose;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Maximum files that are lent at once.
const LENT_AT_ONCE_MAX: usize = 8;
/// Maximum bytes of a file's name.
const NAME_MAX: usize = 1024;
/// How long a side may hear nothing.
const SILENCE_MAX: Duration = Duration::from_secs(30);
const NOT_HERE: u64 = u64::MAX;
const BUSY: u64 = u64::MAX - 1;

/// Opens a file that may be lent, by its name.
type Opener = Box<dyn Fn(&str) -> io::Result<File> + Send + Sync>;

/// What a replica lends.
#[derive(Default)]
pub(crate) struct Lending {
    opener: OnceLock<Opener>,
    under_way: AtomicUsize,
}

/// A file of another replica, from the place that was asked for on.
pub struct Lent {
    /// Bytes of the whole file.
    pub length: u64,
    /// The bytes.
    pub bytes: PeerStream,
}

impl Engine {
    /// Lends other replicas the files that `open` opens, by their names. Names are a peer's: `open` checks them.
    pub fn lend_files(&self, open: impl Fn(&str) -> io::Result<File> + Send + Sync + 'static) {
        let set = self.shared.lending.opener.set(Box::new(open));
        assert!(set.is_ok(), "a node lends one kind of files");
    }

    /// Asks `member` for its file `name`, from offset `from` on. Blocks its thread.
    ///
    /// # Errors
    /// The member does not answer, does not have the file ([`io::ErrorKind::NotFound`]), or lends too many
    /// ([`io::ErrorKind::ResourceBusy`]).
    pub fn borrow_file(&self, member: u64, name: &str, from: u64) -> io::Result<Lent> {
        let mut stream = self.shared.transport().dial(member, Purpose::Files)?;
        stream.set_read_timeout(Some(SILENCE_MAX))?;
        let length = u16::try_from(name.len()).map_err(io::Error::other)?;
        stream.write_all(&[&from.to_le_bytes(), &length.to_le_bytes()[..], name.as_bytes()].concat())?;
        let mut answer = [0; 8];
        stream.read_exact(&mut answer)?;
        match u64::from_le_bytes(answer) {
            NOT_HERE => Err(io::Error::new(io::ErrorKind::NotFound, "it does not have the file")),
            BUSY => Err(io::Error::new(io::ErrorKind::ResourceBusy, "it lends too many files already")),
            length => Ok(Lent { length, bytes: stream }),
        }
    }
}

/// Answers a replica that asks for a file.
pub(crate) fn lend(shared: &Shared, stream: &mut PeerStream) -> io::Result<()> {
    stream.set_read_timeout(Some(SILENCE_MAX))?;
    stream.set_write_timeout(Some(SILENCE_MAX))?;
    let (from, name) = read_question(stream)?;
    let lending = &shared.lending;
    let is_one_too_many = lending.under_way.fetch_add(1, Ordering::Relaxed) >= LENT_AT_ONCE_MAX;
    let lent = if is_one_too_many {
        stream.write_all(&BUSY.to_le_bytes())
    } else {
        send(lending.opener.get(), from, &name, stream)
    };
    lending.under_way.fetch_sub(1, Ordering::Relaxed);
    lent
}

fn read_question(stream: &mut impl Read) -> io::Result<(u64, String)> {
    let (mut from, mut length) = ([0; 8], [0; 2]);
    stream.read_exact(&mut from)?;
    stream.read_exact(&mut length)?;
    let length = usize::from(u16::from_le_bytes(length));
    let invalid = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
    if length > NAME_MAX {
        return Err(invalid(format!("a file's name of {length} bytes, at most {NAME_MAX}")));
    }
    let mut name = vec![0; length];
    stream.read_exact(&mut name)?;
    let name = String::from_utf8(name).map_err(|error| invalid(error.to_string()))?;
    Ok((u64::from_le_bytes(from), name))
}

fn send(opener: Option<&Opener>, from: u64, name: &str, stream: &mut PeerStream) -> io::Result<()> {
    let opened = opener.and_then(|open| open(name).ok());
    let Some(mut file) = opened else { return stream.write_all(&NOT_HERE.to_le_bytes()) };
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(from.min(length)))?;
    stream.write_all(&length.to_le_bytes())?;
    // No more than was announced, even if the file grows.
    let mut file = file.take(length.saturating_sub(from));
    let sent = match stream.as_plain() {
        // On Linux the kernel copies.
        Some(mut socket) => io::copy(&mut file, &mut socket)?,
        None => io::copy(&mut file, stream)?,
    };
    tracing::debug!(name, from, sent, "lent a file to another replica");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_is_read_and_a_name_without_end_is_refused() {
        let question = |length: u16, name: &[u8]| {
            read_question(&mut &[&7u64.to_le_bytes()[..], &length.to_le_bytes(), name].concat()[..])
        };
        assert_eq!(question(3, b"a/b").unwrap(), (7, "a/b".into()));
        assert_eq!(question(3, b"a").unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!(question(u16::MAX, b"").unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert_eq!(question(1, b"\xff").unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
