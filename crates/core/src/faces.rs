//! The list of faces.
//!
//! A new face touches its own folder, its adapter, and this file. Here it gets its number in [`Face`], its
//! arm in [`Command`] and [`Reply`], and its machine in [`Faces`]; the compiler asks for the rest. What it
//! keeps in memory for readers goes into [`Memory`], and its golden scripts into `VOCABULARIES`.
//!
//! No face depends on this file, so faces know neither each other nor their commands' envelope.

use crate::allowance::Allowance;
use crate::codec::{Malformed, Reader};
use crate::entry::Entry;
use crate::store::{StoreError, View};
use crate::tx::Tx;
use crate::types::{Progress, Stamp};
use crate::{auth, function, kv, ledger, route, system, table};
use bytes::{BufMut, Bytes, BytesMut};
use std::sync::Arc;

/// A face. Its number is in log entries, and begins its store keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Face {
    /// The cluster itself: members, compaction, alarms.
    System = system::FACE,
    /// Versioned keys.
    Kv = kv::FACE,
    /// Rules by network and address.
    Route = route::FACE,
    /// Accounts and transfers.
    Ledger = ledger::FACE,
    /// Lookup tables: versions, and changes over them.
    Table = table::FACE,
    /// Users and roles.
    Auth = auth::FACE,
    /// Libraries of functions in Lua.
    Function = function::FACE,
    /// No face: a command of one, and under which auth revision it was admitted. See [`Command::admitted`].
    Admitted = ADMITTED,
}

/// The number of the envelope around admitted commands.
const ADMITTED: u8 = 0xff;
/// Bytes that the envelope has besides the command's own: the auth revision, little-endian, and the face.
pub const ENVELOPE_BYTES: usize = 9;

impl TryFrom<u8> for Face {
    type Error = Malformed;

    fn try_from(number: u8) -> Result<Self, Malformed> {
        match number {
            system::FACE => Ok(Self::System),
            kv::FACE => Ok(Self::Kv),
            route::FACE => Ok(Self::Route),
            ledger::FACE => Ok(Self::Ledger),
            table::FACE => Ok(Self::Table),
            auth::FACE => Ok(Self::Auth),
            function::FACE => Ok(Self::Function),
            ADMITTED => Ok(Self::Admitted),
            _ => Err(Malformed { what: "face" }),
        }
    }
}

/// One command, encoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// The face that decodes it.
    pub face: Face,
    /// Its encoding, defined by the face's `command.rs`.
    pub bytes: Bytes,
}

impl Command {
    /// The command as admitted at an auth revision: what the user who asked for it may do was judged by the users and
    /// roles of then. **Invariant: Newest rights.**
    pub fn admitted(self, revision: u64) -> Self {
        let mut bytes = BytesMut::with_capacity(ENVELOPE_BYTES + self.bytes.len());
        bytes.put_u64_le(revision);
        bytes.put_u8(self.face as u8);
        bytes.put_slice(&self.bytes);
        Self { face: Face::Admitted, bytes: bytes.freeze() }
    }

    /// The command in the envelope, and the auth revision on it, if there is one.
    fn open(self) -> Result<(Self, Option<u64>), Malformed> {
        if self.face != Face::Admitted {
            return Ok((self, None));
        }
        let mut envelope = Reader::new(self.bytes, "admitted command");
        let revision = envelope.array().map(u64::from_le_bytes)?;
        let face = Face::try_from(envelope.byte()?)?;
        if face == Face::Admitted {
            return Err(envelope.malformed());
        }
        Ok((Self { face, bytes: envelope.rest() }, Some(revision)))
    }

    /// Whether it is something that a node does by itself, whoever its users are.
    fn is_upkeep(&self) -> bool {
        use system::Operation::{ClaimDisk, Expire, Introduce, RaiseAlarm, Tick};
        let bytes = || self.bytes.clone();
        match self.face {
            Face::System => matches!(
                system::decode(bytes()),
                Some(Tick(_) | Expire(_) | ClaimDisk(_) | Introduce(_) | RaiseAlarm(_))
            ),
            Face::Table => table::is_report(bytes()),
            _ => false,
        }
    }
}

impl auth::Operation {
    /// The encoded command.
    pub fn into_command(self) -> Command {
        Command { face: Face::Auth, bytes: self.into_bytes() }
    }
}

impl function::Operation {
    /// The encoded command.
    pub fn into_command(self) -> Command {
        Command { face: Face::Function, bytes: self.into_bytes() }
    }
}

impl system::Operation {
    /// The encoded command.
    pub fn into_command(self) -> Command {
        Command { face: Face::System, bytes: self.into_bytes() }
    }
}

impl kv::Operation {
    /// The encoded command.
    pub fn into_command(self) -> Command {
        Command { face: Face::Kv, bytes: self.into_bytes() }
    }
}

impl route::Operation {
    /// The encoded command.
    pub fn into_command(self) -> Command {
        Command { face: Face::Route, bytes: self.into_bytes() }
    }
}

impl ledger::Operation {
    /// The encoded command.
    pub fn into_command(self) -> Command {
        Command { face: Face::Ledger, bytes: self.into_bytes() }
    }
}

impl ledger::Transfers {
    /// The encoded command.
    pub fn into_command(self) -> Command {
        Command { face: Face::Ledger, bytes: self.into_bytes() }
    }
}

impl table::Operation {
    /// The encoded command.
    pub fn into_command(self) -> Command {
        Command { face: Face::Table, bytes: self.into_bytes() }
    }
}

/// The answer to a command.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// From [`system`].
    System(system::Reply),
    /// From [`kv`].
    Kv(kv::Reply),
    /// From [`route`].
    Route(route::Reply),
    /// From [`ledger`].
    Ledger(ledger::Reply),
    /// From [`table`].
    Table(table::Reply),
    /// From [`auth`]; the refusal of an old admission, whatever face the command was for.
    Auth(auth::Reply),
    /// From [`function`].
    Function(function::Reply),
}

/// What faces keep in memory for readers: derived from the store, changed by the machines, shared by
/// reference.
///
/// **Invariant: Derived (memory).** It is made from the store when a replica opens or takes a snapshot.
/// Readers see all of a command's effects or none, and a state at least as new as any they were told is
/// applied.
#[derive(Clone, Debug)]
pub struct Memory {
    /// The newest rules of the route face.
    pub routes: Arc<route::Table>,
    /// The route face's VPCs, by network.
    pub vpcs: Arc<route::Vpcs>,
    /// The tables' versions and changes.
    pub tables: Arc<table::Live>,
    /// Users and roles: those of the newest state alone, which is never changed, but replaced.
    pub auth: Arc<auth::Policy>,
    /// Libraries of functions: those of the newest state alone, which is never changed, but replaced.
    pub functions: Arc<function::Libraries>,
}

/// The machines of all faces. The system face has none: its state is the store's alone.
pub(crate) struct Faces {
    kv: kv::Machine,
    route: route::Machine,
    ledger: ledger::Machine,
    table: table::Machine,
    auth: auth::Machine,
    function: function::Machine,
}

impl Faces {
    /// The machines of a store that may hold state already, up to `progress`.
    pub(crate) fn open(view: View<'_>, progress: &Progress) -> Result<Self, StoreError> {
        Ok(Self {
            kv: kv::Machine::open(view)?,
            route: route::Machine::open(view, progress.revision)?,
            ledger: ledger::Machine::open(view, progress.stamp)?,
            table: table::Machine::open(view)?,
            auth: auth::Machine::open(view)?,
            function: function::Machine::open(view)?,
        })
    }

    pub(crate) fn memory(&self) -> Memory {
        Memory {
            routes: Arc::clone(self.route.table()),
            vpcs: Arc::clone(self.route.vpcs()),
            tables: Arc::clone(self.table.live()),
            auth: Arc::clone(self.auth.policy()),
            functions: Arc::clone(self.function.libraries()),
        }
    }

    /// See [`crate::Machines::set_ledger_cache_bytes`].
    pub(crate) fn set_ledger_cache_bytes(&mut self, bytes: usize) {
        self.ledger.set_cache_bytes(bytes);
    }

    /// See [`crate::Machines::warm`].
    pub(crate) fn warm(&mut self, view: View<'_>) -> bool {
        self.ledger.warm(view)
    }

    /// When the next lease, key, node or pending transfer may expire; never later than it does.
    pub(crate) fn next_deadline(&self) -> Option<Stamp> {
        let deadlines = [self.kv.next_deadline(), self.route.next_deadline(), self.ledger.next_deadline()];
        deadlines.into_iter().flatten().min()
    }

    /// Applies one command, unless it was admitted under other users and roles than those of now.
    pub(crate) fn apply(&mut self, tx: &mut Tx<'_>, command: Command) -> Result<Reply, StoreError> {
        let Ok((command, admitted)) = command.open() else {
            return Ok(Reply::Auth(self.auth.refuse(auth::Refusal::Malformed)));
        };
        if !self.auth.still_admits(admitted) && !command.is_upkeep() {
            return Ok(Reply::Auth(self.auth.refuse(auth::Refusal::OldRevision)));
        }
        self.run(tx, command)
    }

    /// Applies a command that goes with a change of who votes, which is made in any case.
    pub(crate) fn run(&mut self, tx: &mut Tx<'_>, command: Command) -> Result<Reply, StoreError> {
        let Ok((Command { face, bytes }, _)) = command.open() else {
            return Ok(Reply::Auth(self.auth.refuse(auth::Refusal::Malformed)));
        };
        Ok(match face {
            Face::System => Reply::System(system::apply(tx, bytes)?),
            Face::Kv => Reply::Kv(self.kv.apply(tx, bytes)?),
            Face::Route => Reply::Route(self.route.apply(tx, bytes)?),
            Face::Ledger => Reply::Ledger(self.ledger.apply(tx, bytes)?),
            Face::Table => Reply::Table(self.table.apply(tx, bytes)?),
            Face::Auth => Reply::Auth(self.auth.apply(tx, bytes)),
            Face::Function => Reply::Function(self.function.apply(tx, bytes)),
            Face::Admitted => Reply::Auth(self.auth.refuse(auth::Refusal::Malformed)),
        })
    }

    /// Lets what is due by the entry's stamp expire, within bounds per entry; the rest waits for the next
    /// entry. Each lease, key and node takes a revision of its own, all transfers take one together.
    pub(crate) fn expire(&mut self, entry: &mut Entry<'_>, allowed: Allowance) -> Result<(), StoreError> {
        self.kv.begin_entry(allowed);
        let (mut left, stamp) = (allowed.most, entry.progress().stamp);
        let due = self.kv.due(entry.view(), stamp, left)?;
        for (place, first) in due.iter().enumerate() {
            if !self.kv.has_room() {
                self.kv.put_off(&due[place..]);
                break;
            }
            entry.run(|tx| self.kv.expire(tx, first.clone()))?;
            left -= 1;
        }
        for due in self.route.due(entry.view(), stamp, left)? {
            entry.run(|tx| self.route.expire(tx, due))?;
        }
        let due = self.ledger.due(entry.view(), stamp, allowed.most)?;
        if !due.is_empty() {
            entry.run(|tx| self.ledger.expire(tx, due))?;
        }
        self.kv.begin_commands();
        Ok(())
    }
}

/// The faces' golden scripts. Scripts drive the machines of this file, so this is a circle, of test code
/// only.
#[cfg(any(test, feature = "testing"))]
pub(crate) const VOCABULARIES: &[crate::golden::Vocabulary] = &[
    kv::script::VOCABULARY,
    route::script::VOCABULARY,
    ledger::script::VOCABULARY,
    table::script::VOCABULARY,
    auth::script::VOCABULARY,
    function::script::VOCABULARY,
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::MemoryStore;
    use crate::{Batch, Machines, Store, Term};

    /// How many leases, keys and nodes an entry lets expire decides what its commands see, so all versions
    /// must agree. Entries with clients' commands let a thousand expire each, for which the clients waited.
    #[test]
    fn an_entry_lets_a_bounded_number_expire_over_kv_and_route_together() {
        let store = MemoryStore::new();
        let mut machines = Machines::open(&store).unwrap();
        let mut apply = |stamp, commands: &[Command]| {
            let index = machines.progress().index.next();
            let outcome =
                machines.apply(&store, index, Term(1), Batch::encode(Stamp(stamp), commands)).unwrap();
            (outcome.events, machines.next_deadline())
        };
        let mut commands = Vec::new();
        for number in 0..700u32 {
            let (key, ttl) = (Bytes::from(number.to_string()), Some(kv::Ttl::Milliseconds(100)));
            commands.push(kv::Operation::Put(kv::Put { key, ttl, ..Default::default() }).into_command());
            let (name, kind) = (Bytes::from(number.to_string()), route::ObjectKind::Node as u32);
            let put = route::PutObject { kind, name: name.clone(), ..Default::default() };
            commands.push(route::Operation::PutObject(put).into_command());
            let beat = route::Heartbeat { node: name, ttl_ms: 100, applied_revision: 1 };
            commands.push(route::Operation::Heartbeat(beat).into_command());
        }
        apply(1, &commands);
        assert_eq!(apply(100, &[]), (Vec::new(), Some(Stamp(101))));
        let faces = |events: Vec<crate::Event>| -> Vec<u8> {
            events.iter().flat_map(|event| &event.changes).map(|change| change.key[0]).collect()
        };
        // Beside a client's commands: a hundred, and one for each.
        let clients = vec![kv::Operation::LeaseKeepAlive(1).into_command(); 5];
        assert_eq!(faces(apply(101, &clients).0), vec![kv::FACE; 105]);
        // By itself: as many as the leader says.
        let expire = |most| [system::Operation::Expire(most).into_command()];
        let (events, deadline) = apply(101, &expire(900));
        assert_eq!(faces(events), [vec![kv::FACE; 595], vec![route::FACE; 305]].concat());
        assert_eq!(deadline, Some(Stamp(101)));
        let (events, deadline) = apply(101, &expire(u32::MAX));
        assert_eq!((faces(events), deadline), (vec![route::FACE; 395], None));
    }

    #[test]
    fn the_envelope_is_pinned_and_a_damaged_one_is_malformed() {
        let put = kv::Operation::Put(kv::Put { key: "k".into(), ..kv::Put::default() }).into_command();
        let admitted = put.clone().admitted(0x0102);
        assert_eq!(&admitted.bytes[..], b"\x02\x01\0\0\0\0\0\0\x01\x0a\x03\x0a\x01k");
        assert_eq!(admitted.clone().open(), Ok((put.clone(), Some(0x0102))));
        assert_eq!(put.clone().open(), Ok((put, None)));
        for length in 0..ENVELOPE_BYTES {
            let bytes = admitted.bytes.slice(..length);
            assert!(Command { face: Face::Admitted, bytes }.open().is_err(), "cut at {length}");
        }
        assert!(admitted.admitted(1).open().is_err(), "an envelope in another");
    }

    /// The entries of the expiry indexes, and all that was ever written to them.
    fn expiries(store: &MemoryStore, machines: &Machines) -> (usize, usize) {
        let of_index = |key: &[u8]| key[0] != system::FACE && key[1] == b'x';
        let view = View::new(store, machines.progress().sequence);
        let left =
            view.scan(b"", b"", crate::Order::Ascending).filter(|pair| of_index(&pair.as_ref().unwrap().0));
        (left.count(), store.dump().iter().filter(|(key, ..)| of_index(key)).count())
    }

    /// 100,000 renewals of one key left as many entries in the expiry index until their deadlines: 2.3 MB.
    /// Leases left theirs when they were revoked.
    #[test]
    fn what_expires_has_one_entry_that_renewing_does_not_write() {
        let store = MemoryStore::new();
        let mut machines = Machines::open(&store).unwrap();
        let apply = |machines: &mut Machines, stamp, commands: &[Command]| {
            let index = machines.progress().index.next();
            machines.apply(&store, index, Term(1), Batch::encode(Stamp(stamp), commands)).unwrap().events
        };
        let put = |ttl_ms: Option<u64>, lease| {
            let ttl = ttl_ms.map(kv::Ttl::Milliseconds);
            kv::Operation::Put(kv::Put { key: "k".into(), ttl, lease, ..kv::Put::default() }).into_command()
        };
        let beat = |ttl_ms| {
            let beat = route::Heartbeat { node: "n".into(), ttl_ms, applied_revision: 1 };
            route::Operation::Heartbeat(beat).into_command()
        };
        let node = route::PutObject { kind: 3, name: "n".into(), ..Default::default() };
        let grant = kv::LeaseGrant { id: 7, ttl_s: 1 };
        let keep_alive = kv::Operation::LeaseKeepAlive(7).into_command();
        let begin = [
            route::Operation::PutObject(node).into_command(),
            kv::Operation::LeaseGrant(grant).into_command(),
        ];
        apply(&mut machines, 1, &begin);
        for stamp in 1..=900 {
            apply(&mut machines, stamp, &[put(Some(1000), 0), beat(1000), keep_alive.clone()]);
        }
        assert_eq!(expiries(&store, &machines), (3, 3));

        // The entries come due too early, and are replaced by others at the deadlines of then.
        apply(&mut machines, 1001, &[]);
        assert_eq!((expiries(&store, &machines).0, machines.next_deadline()), (3, Some(Stamp(1900))));
        assert_eq!(apply(&mut machines, 1899, &[]), []);
        machines = Machines::open(&store).unwrap();
        apply(&mut machines, 1899, std::slice::from_ref(&keep_alive));
        // A shorter time to live moves them forward.
        apply(&mut machines, 1899, &[put(Some(10), 7), beat(10)]);
        assert_eq!((expiries(&store, &machines).0, machines.next_deadline()), (3, Some(Stamp(1900))));
        assert_eq!(apply(&mut machines, 1908, &[]), []);
        assert_eq!(apply(&mut machines, 1909, &[]).len(), 2);
        assert_eq!(expiries(&store, &machines).0, 1, "the lease's");

        apply(&mut machines, 1910, &[put(Some(100), 7), beat(100)]);
        assert_eq!(expiries(&store, &machines).0, 3);
        let revoke = kv::Operation::LeaseRevoke(7).into_command();
        let delete = route::DeleteObject { kind: 3, name: "n".into() };
        apply(&mut machines, 1911, &[revoke, route::Operation::DeleteObject(delete).into_command()]);
        assert_eq!(expiries(&store, &machines).0, 0);

        apply(&mut machines, 1912, &[put(Some(100), 0)]);
        apply(&mut machines, 1913, &[put(None, 0)]);
        assert_eq!(expiries(&store, &machines).0, 0);
        assert_eq!(apply(&mut machines, 5000, &[]), []);
    }

    /// A store of a version that left an entry at every deadline, and did not say where a lease's was.
    #[test]
    fn entries_of_earlier_versions_expire_nothing_too_early_and_do_not_stay() {
        let store = MemoryStore::new();
        let mut machines = Machines::open(&store).unwrap();
        let apply = |machines: &mut Machines, stamp, commands: &[Command]| {
            let index = machines.progress().index.next();
            machines.apply(&store, index, Term(1), Batch::encode(Stamp(stamp), commands)).unwrap().events
        };
        let put = kv::Put { key: "k".into(), ttl: Some(kv::Ttl::At(3000)), ..kv::Put::default() };
        let grant = kv::Operation::LeaseGrant(kv::LeaseGrant { id: 7, ttl_s: 2 });
        apply(&mut machines, 1000, &[kv::Operation::Put(put).into_command(), grant.into_command()]);
        // The key had a deadline at 2000 before; the lease was granted at 0, and kept alive at 1000.
        let at = machines.progress().sequence;
        let entry =
            |deadline, subject: &[u8]| crate::expiry::encode_key([kv::FACE, b'x'], Stamp(deadline), subject);
        let lease = [&b"l"[..], &7u64.to_be_bytes()].concat();
        store.put(&entry(2000, b"kk"), Bytes::new(), at);
        store.put(&entry(2000, &lease), Bytes::new(), at);
        store.delete(&entry(3000, &lease), at);
        machines = Machines::open(&store).unwrap();
        assert_eq!(expiries(&store, &machines).0, 3);
        assert_eq!(apply(&mut machines, 2000, &[]), []);
        assert_eq!((expiries(&store, &machines).0, machines.next_deadline()), (2, Some(Stamp(3000))));
        assert_eq!(apply(&mut machines, 3000, &[]).len(), 1, "the key; a lease without keys has no event");
        assert_eq!(expiries(&store, &machines).0, 0);
    }

    #[test]
    fn a_faces_number_is_read_back_and_an_unknown_one_is_refused() {
        let known: Vec<u8> = (0..=u8::MAX).filter(|number| Face::try_from(*number).is_ok()).collect();
        assert_eq!(known, [0, 1, 2, 3, 4, 5, 6, 255]);
        assert!(known.into_iter().all(|number| Face::try_from(number).unwrap() as u8 == number));
    }
}
