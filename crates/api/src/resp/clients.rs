//! The open connections of a node, for CLIENT LIST and CLIENT KILL.
//!
//! A connection says of itself what changes seldom: nothing here is touched by its requests.

use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Instant;
use tokio::task::AbortHandle;

/// What a connection says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Words {
    /// What CLIENT SETNAME said.
    pub(super) name: Bytes,
    /// Name and version of the client's library, as CLIENT SETINFO said.
    pub(super) library: (Bytes, Bytes),
    /// Of the protocol; 0 until something is said.
    pub(super) version: u8,
}

/// What ends a connection's task; empty for a moment after it began.
pub(super) type Ending = Arc<OnceLock<AbortHandle>>;

/// An open connection.
struct Connection {
    address: String,
    since: Instant,
    words: Words,
    abort: Ending,
}

/// See the module.
#[derive(Default)]
pub(super) struct Clients(Mutex<BTreeMap<u64, Connection>>);

/// A connection's place in the list, until it is dropped.
pub(super) struct Listed {
    clients: Arc<Clients>,
    id: u64,
}

impl Drop for Listed {
    fn drop(&mut self) {
        self.clients.0.lock().remove(&self.id);
    }
}

impl Listed {
    pub(super) fn say(&self, words: Words) {
        if let Some(connection) = self.clients.0.lock().get_mut(&self.id) {
            connection.words = words;
        }
    }

    /// How others see the connection.
    pub(super) fn line(&self) -> String {
        self.clients.0.lock().get(&self.id).map(|connection| connection.line(self.id)).unwrap_or_default()
    }
}

impl Connection {
    fn line(&self, id: u64) -> String {
        let Words { name, library, version } = &self.words;
        format!(
            "id={id} addr={} name={} age={} db=0 lib-name={} lib-ver={} resp={}\n",
            self.address,
            name.escape_ascii(),
            self.since.elapsed().as_secs(),
            library.0.escape_ascii(),
            library.1.escape_ascii(),
            (*version).max(2),
        )
    }
}

/// Which connections CLIENT KILL ends: those that fit all of it.
#[derive(Clone, Debug, Default)]
pub(super) struct Victims<'a> {
    pub(super) id: Option<u64>,
    pub(super) address: Option<&'a [u8]>,
    /// Not this one.
    pub(super) spared: Option<u64>,
}

impl Clients {
    /// Lists a connection, which `abort` ends.
    pub(super) fn list(self: &Arc<Self>, id: u64, address: &str, abort: Ending) -> Listed {
        let (words, since) = (Words::default(), Instant::now());
        let connection = Connection { address: address.to_owned(), since, words, abort };
        self.0.lock().insert(id, connection);
        Listed { clients: Arc::clone(self), id }
    }

    /// The lines of all connections, or of `ids`; at most `bytes_max` bytes.
    pub(super) fn lines(&self, ids: Option<&[u64]>, bytes_max: usize) -> Option<String> {
        let connections = self.0.lock();
        let mut lines = String::new();
        for (id, connection) in connections.iter().filter(|(id, _)| ids.is_none_or(|ids| ids.contains(id))) {
            lines += &connection.line(*id);
            if lines.len() > bytes_max {
                return None;
            }
        }
        Some(lines)
    }

    /// Ends connections at once, whatever they wait for, but for `own`. Returns how many are to end, and whether `own` is
    /// among them.
    pub(super) fn kill(&self, victims: &Victims<'_>, own: u64) -> (usize, bool) {
        let connections = self.0.lock();
        let fits = |id: &u64, connection: &Connection| {
            victims.id.is_none_or(|wanted| wanted == *id)
                && victims.address.is_none_or(|wanted| wanted == connection.address.as_bytes())
                && victims.spared != Some(*id)
        };
        let (mut count, mut own_too) = (0, false);
        for (id, connection) in connections.iter().filter(|(id, connection)| fits(id, connection)) {
            count += 1;
            own_too |= *id == own;
            if *id != own
                && let Some(abort) = connection.abort.get()
            {
                abort.abort();
            }
        }
        (count, own_too)
    }
}
