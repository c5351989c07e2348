//! A transfer, and the command that carries many of them.
//!
//! After the two bytes that begin each command (`command.rs`):
//!
//! ```text
//! u8 wishes (1 = answer with balances, 2 = keyed, 4 = fenced), u16 count, little-endian, then each transfer:
//!    u8    kind in the low 3 bits (0 single, 1 pending, 2 post, 3 void, 4 expired: in the journal only, 5 revert),
//!          or 7 if there are further flags, then flags: 0x08 linked to the next, 0x10 currency, 0x20 timeout,
//!          0x40 code, 0x80 texts
//!    if there are further flags: varint, kind in the low 3 bits, then at least one of the options, see options.rs, or of
//!          0x100, 0x200, 0x400 user data of 128, 64, 32 bits, 0x800 metadata
//!    u128  id
//!    single, pending: u128 debit account, u128 credit account, varint amount
//!    post: u128 id of the pending transfer, varint amount, 0 for all of it;   void, expired: u128 its id
//!    revert: u128 id of the transfer to revert
//!    by the flags: 8 bytes currency, varint timeout in ms, varint code, bytes reference, bytes user data
//!    by the further flags: varints of user data, bytes metadata, see extra.rs
//! if keyed: u128 key, u128 fingerprint
//! if fenced: u128 stream, varint number, varint number of the batch before it, see fence.rs
//! ```
//!
//! Ids are 16 bytes, big-endian, as in a UUID. Varints are LEB128, up to 128 bits. There is one way to encode
//! a transfer, so equal contents are equal bytes. Versions before this one refuse kind 7.

use super::command::{TRANSFERS, VERSION};
use super::currency::Currency;
use super::extra::{EXTRAS, Extra};
use super::fence::Fence;
use super::options::{OPTIONS, Options};
use super::times::{TIMES, Times};
use crate::codec::{self, Malformed, Reader};
use bytes::Bytes;

/// Maximum transfers in one command.
pub const TRANSFERS_MAX: usize = 8190;
/// Maximum bytes of a transfer's reference, and of its user data.
pub const REFERENCE_BYTES_MAX: usize = 256;

const HEADER: usize = 5;
const WISH_BALANCES: u8 = 1;
const KEYED: u8 = 2;
const FENCED: u8 = 4;

/// The bits of the kind.
const KIND: u8 = 0x07;
/// The kind follows, with further flags.
const FURTHER: u8 = 7;
const LINKED: u8 = 0x08;
const CURRENCY: u8 = 0x10;
const TIMEOUT: u8 = 0x20;
const CODE: u8 = 0x40;
const TEXTS: u8 = 0x80;

/// One transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer<'a> {
    /// Chosen by the client, one for each thing to happen.
    pub id: u128,
    /// What to do.
    pub kind: Kind,
    /// Succeeds or fails together with the next transfer of the command.
    pub linked: bool,
    /// The currency that the client expects; refused if the accounts have another.
    pub currency: Option<Currency>,
    /// Its purpose, as a number of the client's choice.
    pub code: u32,
    /// Its purpose, as text.
    pub reference: &'a str,
    /// Any text.
    pub user_data: &'a str,
    /// How else it is done.
    pub options: Options,
    /// Further numbers and texts of the client's.
    pub extra: Extra<'a>,
    /// The client's times.
    pub times: Times,
}

/// What a transfer does. Amounts are in minor units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are the words of double-entry book-keeping")]
pub enum Kind {
    /// Moves an amount at once.
    Single { debit: u128, credit: u128, amount: u128 },
    /// Reserves an amount until it is posted or voided, or expires `timeout_ms` after the batch's stamp (0:
    /// never).
    Pending { debit: u128, credit: u128, amount: u128, timeout_ms: u64 },
    /// Moves the amount that a pending transfer reserved, or a part of it; the rest is released.
    Post { pending: u128, amount: Option<u128> },
    /// Releases the amount that a pending transfer reserved.
    Void { pending: u128 },
    /// Moves back what a single transfer or a post has moved. Once for each.
    Revert { reverted: u128 },
    /// The expiry of a pending transfer. In the journal only: nobody can ask for it.
    Expired { pending: u128 },
}

impl<'a> Transfer<'a> {
    /// A transfer without options.
    pub fn new(id: u128, kind: Kind) -> Self {
        let (options, extra) = (Options::default(), Extra::default());
        Self {
            id,
            kind,
            linked: false,
            currency: None,
            code: 0,
            reference: "",
            user_data: "",
            options,
            extra,
            times: Times::default(),
        }
    }

    /// Whether accounts and amount cannot be told from the transfer alone: the journal says what it moved.
    pub(super) fn is_resolved(&self) -> bool {
        !matches!(self.kind, Kind::Single { .. } | Kind::Pending { .. }) || self.options.is_balancing()
    }

    /// As [`Self::is_resolved`], of a transfer as it is encoded.
    pub(super) fn is_resolved_raw(raw: &[u8]) -> Result<bool, Malformed> {
        let mut reader = Reader::new(raw, "transfer");
        let Head { tag, further, .. } = Head::decode_from(&mut reader)?;
        Ok(tag > 1 || Options::of(further).is_balancing())
    }

    /// Whether `other` asks for the same. Without a currency the accounts' own is meant.
    pub fn same_content(&self, other: &Transfer<'_>) -> bool {
        let agree = self.currency.is_none() || other.currency.is_none() || self.currency == other.currency;
        agree && *self == Transfer { currency: self.currency, ..*other }
    }

    pub(super) fn encode_into(&self, out: &mut Vec<u8>) {
        let (tag, timeout_ms) = match self.kind {
            Kind::Single { .. } => (0, 0),
            Kind::Pending { timeout_ms, .. } => (1, timeout_ms),
            Kind::Post { .. } => (2, 0),
            Kind::Void { .. } => (3, 0),
            Kind::Expired { .. } => (4, 0),
            Kind::Revert { .. } => (5, 0),
        };
        let flag = |wanted: bool, flag: u8| if wanted { flag } else { 0 };
        let texts = !self.reference.is_empty() || !self.user_data.is_empty();
        let flags = flag(self.linked, LINKED)
            | flag(self.currency.is_some(), CURRENCY)
            | flag(timeout_ms > 0, TIMEOUT)
            | flag(self.code > 0, CODE)
            | flag(texts, TEXTS);
        match self.options.bits() | self.extra.bits() | self.times.bits() {
            0 => out.push(tag | flags),
            further => {
                out.push(FURTHER | flags);
                codec::put_varint(out, further | u64::from(tag));
            }
        }
        out.extend_from_slice(&self.id.to_be_bytes());
        match self.kind {
            Kind::Single { debit, credit, amount } | Kind::Pending { debit, credit, amount, .. } => {
                out.extend_from_slice(&debit.to_be_bytes());
                out.extend_from_slice(&credit.to_be_bytes());
                codec::put_varint_u128(out, amount);
            }
            Kind::Post { pending, amount } => {
                out.extend_from_slice(&pending.to_be_bytes());
                codec::put_varint_u128(out, amount.unwrap_or(0));
            }
            Kind::Void { pending: other }
            | Kind::Expired { pending: other }
            | Kind::Revert { reverted: other } => out.extend_from_slice(&other.to_be_bytes()),
        }
        if let Some(currency) = self.currency {
            out.extend_from_slice(&currency.to_bytes());
        }
        if timeout_ms > 0 {
            codec::put_varint(out, timeout_ms);
        }
        if self.code > 0 {
            codec::put_varint(out, self.code.into());
        }
        if texts {
            codec::put_bytes(out, self.reference.as_bytes());
            codec::put_bytes(out, self.user_data.as_bytes());
        }
        self.extra.encode_into(out);
        self.times.encode_into(out);
    }

    pub(super) fn decode_from(from: &mut Reader<&'a [u8]>) -> Result<Self, Malformed> {
        let Head { flags, tag, further } = Head::decode_from(from)?;
        let options = Options::of(further);
        let id = from.u128()?;
        let mut kind = match tag {
            0 => Kind::Single { debit: from.u128()?, credit: from.u128()?, amount: from.varint_u128()? },
            1 => Kind::Pending {
                debit: from.u128()?,
                credit: from.u128()?,
                amount: from.varint_u128()?,
                timeout_ms: 0,
            },
            2 => Kind::Post {
                pending: from.u128()?,
                amount: Some(from.varint_u128()?).filter(|amount| *amount > 0),
            },
            3 => Kind::Void { pending: from.u128()? },
            4 => Kind::Expired { pending: from.u128()? },
            5 => Kind::Revert { reverted: from.u128()? },
            _ => return Err(from.malformed()),
        };
        let (single, pending) = (matches!(kind, Kind::Single { .. }), matches!(kind, Kind::Pending { .. }));
        if options.is_balancing() && !single && !pending || options.is_closing() && !pending {
            return Err(from.malformed());
        }
        let currency = if flags & CURRENCY != 0 {
            Some(Currency::from_bytes(from.array()?).ok_or_else(|| from.malformed())?)
        } else {
            None
        };
        if flags & TIMEOUT != 0 {
            let Kind::Pending { timeout_ms, .. } = &mut kind else { return Err(from.malformed()) };
            *timeout_ms = from.varint()?;
        }
        let code = if flags & CODE != 0 { from.varint()? } else { 0 };
        let (mut reference, mut user_data) = ("", "");
        if flags & TEXTS != 0 {
            reference = from.text()?;
            user_data = from.text()?;
        }
        let code = u32::try_from(code).map_err(|_| from.malformed())?;
        let extra = if further == 0 { Extra::default() } else { Extra::decode_from(from, further)? };
        let times = if further & TIMES == 0 { Times::default() } else { Times::decode_from(from, further)? };
        let linked = flags & LINKED != 0;
        Ok(Self { id, kind, linked, currency, code, reference, user_data, options, extra, times })
    }
}

/// What an encoded transfer begins with.
struct Head {
    flags: u8,
    /// Its kind.
    tag: u8,
    further: u64,
}

impl Head {
    fn decode_from(from: &mut Reader<&[u8]>) -> Result<Self, Malformed> {
        let flags = from.byte()?;
        let (tag, further) = match flags & KIND {
            FURTHER => {
                let bits = from.varint()?;
                let further = bits & !u64::from(KIND);
                if further == 0 || further & !(OPTIONS | EXTRAS | TIMES) != 0 {
                    return Err(from.malformed());
                }
                (bits as u8 & KIND, further)
            }
            tag => (tag, 0),
        };
        Ok(Self { flags, tag, further })
    }
}

/// What makes a request that creates several things one request: a client's key for it, and its content. The
/// same key with other content is refused. Both are digests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// The key, which is not zero. Among the ids of transfers it stands for the request.
    pub id: u128,
    /// Of all that the request asks for.
    pub fingerprint: u128,
}

/// A command of transfers, encoded one after the other.
#[derive(Debug)]
pub struct Transfers {
    out: Vec<u8>,
    count: u16,
    /// They are imported.
    imports: bool,
    key: Option<Key>,
    fence: Option<Fence>,
}

impl Transfers {
    /// An empty command. With `balances`, each transfer is answered with both accounts' balances after it.
    pub fn new(balances: bool) -> Self {
        let wishes = if balances { WISH_BALANCES } else { 0 };
        Self { out: vec![VERSION, TRANSFERS, wishes, 0, 0], count: 0, imports: false, key: None, fence: None }
    }

    /// How many transfers there are.
    pub fn len(&self) -> usize {
        self.count.into()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Bytes so far.
    pub fn bytes(&self) -> usize {
        self.out.len()
    }

    /// The transfers, encoded: what a fingerprint is made of.
    pub fn content(&self) -> &[u8] {
        &self.out[HEADER..]
    }

    /// Makes them one request with this key.
    pub fn set_key(&mut self, key: Key) {
        self.key = Some(key);
    }

    /// Makes them a batch at this place of a stream.
    pub fn set_fence(&mut self, fence: Fence) {
        self.fence = Some(fence);
    }

    /// Whether they must be a command of their own.
    pub fn is_whole(&self) -> bool {
        self.key.is_some() || self.fence.is_some() || self.imports
    }

    /// Adds a transfer.
    ///
    /// # Panics
    /// There are [`TRANSFERS_MAX`] already.
    pub fn push(&mut self, transfer: &Transfer<'_>) {
        assert!(self.len() < TRANSFERS_MAX, "callers bound a command's transfers");
        transfer.encode_into(&mut self.out);
        self.imports |= transfer.times.imported;
        self.count += 1;
    }

    /// Adds all transfers of another command after these.
    ///
    /// # Panics
    /// They would be more than [`TRANSFERS_MAX`], or one of the two must be a command of its own.
    pub fn append(&mut self, other: &Self) {
        assert!(self.len() + other.len() <= TRANSFERS_MAX, "callers bound a command's transfers");
        assert!(!self.is_whole() && !other.is_whole(), "callers keep such commands apart");
        self.out[2] |= other.out[2];
        self.out.extend_from_slice(&other.out[HEADER..]);
        self.count += other.count;
    }

    pub(crate) fn into_bytes(mut self) -> Bytes {
        self.out[3..HEADER].copy_from_slice(&self.count.to_le_bytes());
        if let Some(key) = self.key {
            self.out[2] |= KEYED;
            self.out.extend_from_slice(&key.id.to_be_bytes());
            self.out.extend_from_slice(&key.fingerprint.to_be_bytes());
        }
        if let Some(fence) = self.fence {
            self.out[2] |= FENCED;
            self.out.extend_from_slice(&fence.stream.to_be_bytes());
            codec::put_varint(&mut self.out, fence.number);
            codec::put_varint(&mut self.out, fence.after);
        }
        self.out.into()
    }
}

/// A command of transfers, decoded.
pub(super) struct Decoded<'c> {
    /// Whether balances are wanted.
    pub(super) balances: bool,
    /// The transfers, each with its own bytes.
    pub(super) members: Vec<(Transfer<'c>, &'c [u8])>,
    pub(super) key: Option<Key>,
    pub(super) fence: Option<Fence>,
}

/// Takes a command of transfers apart.
///
/// # Errors
/// It is none of this version, or has more transfers than a command may.
pub(super) fn decode(bytes: &[u8]) -> Result<Decoded<'_>, Malformed> {
    let mut reader = Reader::new(bytes, "ledger command");
    let (_version_and_kind, wishes) = (reader.array::<2>()?, reader.byte()?);
    let count = usize::from(u16::from_le_bytes(reader.array()?));
    if count > TRANSFERS_MAX {
        return Err(reader.malformed());
    }
    let mut members = Vec::with_capacity(count);
    for _ in 0..count {
        let before = reader.clone().rest();
        let transfer = Transfer::decode_from(&mut reader)?;
        members.push((transfer, &before[..before.len() - reader.len()]));
    }
    let key = if wishes & KEYED != 0 {
        Some(Key { id: reader.u128()?, fingerprint: reader.u128()? })
    } else {
        None
    };
    let fence = if wishes & FENCED != 0 {
        Some(Fence { stream: reader.u128()?, number: reader.varint()?, after: reader.varint()? })
    } else {
        None
    };
    let zero = key.is_some_and(|key| key.id == 0) || fence.is_some_and(|fence| fence.number == 0);
    if zero || !reader.is_empty() {
        return Err(reader.malformed());
    }
    Ok(Decoded { balances: wishes & WISH_BALANCES != 0, members, key, fence })
}

#[cfg(test)]
mod tests {
    use super::super::Metadata;
    use super::*;

    #[test]
    fn layout_is_pinned() {
        let mut transfers = Transfers::new(true);
        let eur = "EUR".parse().unwrap();
        transfers.push(&Transfer {
            linked: true,
            currency: Some(eur),
            ..Transfer::new(1, Kind::Single { debit: 2, credit: 3, amount: 300 })
        });
        let pending = Kind::Pending { debit: 2, credit: 3, amount: 1 << 70, timeout_ms: 1000 };
        transfers.push(&Transfer { code: 7, reference: "r", user_data: "u", ..Transfer::new(4, pending) });
        transfers.push(&Transfer::new(5, Kind::Post { pending: 4, amount: None }));
        transfers.push(&Transfer::new(6, Kind::Void { pending: 4 }));
        let command = transfers.into_command();
        let mut golden = vec![1, 1, 1, 4, 0];
        let id = |out: &mut Vec<u8>, ids: &[u8]| {
            ids.iter().for_each(|n| out.extend([&[0; 15][..], &[*n]].concat()))
        };
        golden.push(0x18);
        id(&mut golden, &[1, 2, 3]);
        golden.extend(b"\xac\x02EUR\0\0\0\0\0");
        golden.push(0xe1);
        id(&mut golden, &[4, 2, 3]);
        golden.extend(b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01\xe8\x07\x07\x01r\x01u");
        golden.push(2);
        id(&mut golden, &[5, 4]);
        golden.push(0);
        golden.push(3);
        id(&mut golden, &[6, 4]);
        assert_eq!(&command.bytes[..], &golden[..]);
        let decoded = decode(&command.bytes).unwrap();
        assert!(decoded.balances && decoded.key.is_none());
        let transfers: Vec<_> = decoded.members.iter().map(|(transfer, _)| *transfer).collect();
        assert_eq!(
            (transfers[0].currency, transfers[1].kind, transfers[1].reference),
            (Some(eur), pending, "r")
        );
        for length in 0..golden.len() {
            assert!(decode(&golden[..length]).is_err(), "cut at {length}");
        }
        assert!(decode(&[&golden[..], b"more"].concat()).is_err());
    }

    #[test]
    fn layout_of_closing_and_times_is_pinned() {
        let mut transfers = Transfers::new(false);
        let options = Options { closing_debit: true, ..Options::default() };
        let pending = Kind::Pending { debit: 2, credit: 3, amount: 0, timeout_ms: 0 };
        let times = Times { client_ms: 300, settle_ms: 5, imported: true };
        let void = Kind::Void { pending: 1 };
        let wanted = [
            Transfer {
                options,
                times: Times { client_ms: 0, imported: false, ..times },
                ..Transfer::new(1, pending)
            },
            Transfer { times, reference: "r", ..Transfer::new(4, void) },
        ];
        wanted.iter().for_each(|transfer| transfers.push(transfer));
        assert!(transfers.is_whole());
        let id = |n: u8| [&[0; 15][..], &[n]].concat();
        let golden = [
            &[1, 1, 0, 2, 0, 0x07, 0xa1, 0x40][..],
            &[id(1), id(2), id(3)].concat(),
            &[0, 5, 0x87, 0x83, 0x61],
            &[id(4), id(1)].concat(),
            b"\x01r\x00\xac\x02\x05",
        ]
        .concat();
        assert_eq!(&transfers.into_command().bytes[..], &golden[..]);
        let decoded = decode(&golden).unwrap().members;
        assert_eq!(decoded.iter().map(|(transfer, _)| *transfer).collect::<Vec<_>>(), wanted);
        for length in 0..golden.len() {
            assert!(decode(&golden[..length]).is_err(), "cut at {length}");
        }
        // A time of zero; an import without a time; a single transfer that closes.
        for (place, byte) in [(golden.len() - 1, 0), (60, 0x41), (6, 0xa0)] {
            let mut other = golden.clone();
            other[place] = byte;
            assert!(decode(&other).is_err(), "{place}");
        }
    }

    #[test]
    fn layout_of_options_and_reverts_is_pinned() {
        let mut transfers = Transfers::new(false);
        let options = Options { balancing_credit: true, ..Options::default() };
        let single = Kind::Single { debit: 2, credit: 3, amount: 0 };
        let both = Options { balancing_debit: true, ..options };
        let pending = Kind::Pending { debit: 2, credit: 3, amount: 9, timeout_ms: 0 };
        let revert = Kind::Revert { reverted: 1 };
        let wanted = [
            Transfer { options, linked: true, ..Transfer::new(1, single) },
            Transfer { options: both, ..Transfer::new(4, pending) },
            Transfer::new(5, revert),
        ];
        wanted.iter().for_each(|transfer| transfers.push(transfer));
        let id = |n: u8| [&[0; 15][..], &[n]].concat();
        let golden = [
            &[1, 1, 0, 3, 0, 0x0f, 0x10][..],
            &[id(1), id(2), id(3)].concat(),
            &[0, 0x07, 0x19],
            &[id(4), id(2), id(3)].concat(),
            &[9, 5],
            &[id(5), id(1)].concat(),
        ]
        .concat();
        assert_eq!(&transfers.into_command().bytes[..], &golden[..]);
        let decoded = decode(&golden).unwrap().members;
        assert_eq!(decoded.iter().map(|(transfer, _)| *transfer).collect::<Vec<_>>(), wanted);
        for length in 0..golden.len() {
            assert!(decode(&golden[..length]).is_err(), "cut at {length}");
        }
        // No options, unknown ones, and ones that this kind of transfer cannot have.
        for options in [0x00, 0x78, 0x12] {
            let mut other = golden.clone();
            other[6] = options;
            assert!(decode(&other).is_err(), "{options:#x}");
        }
    }

    #[test]
    fn layout_of_what_is_the_clients_is_pinned() {
        let texts = [("a", "x"), ("bc", "")].map(|(name, text)| (name.to_owned(), text.to_owned()));
        let metadata = Metadata::encode(&texts.into());
        let metadata = Metadata::encoded(&metadata);
        let extra = Extra { user_data_128: 300, user_data_64: 5, user_data_32: 6, metadata };
        let transfer = Transfer { code: 9, extra, ..Transfer::new(6, Kind::Void { pending: 4 }) };
        let mut transfers = Transfers::new(false);
        transfers.push(&transfer);
        let id = |n: u8| [&[0; 15][..], &[n]].concat();
        let head = [1, 1, 0, 1, 0, 0x47, 0x83, 0x1e];
        let golden = [&head[..], &id(6), &id(4), b"\x09\xac\x02\x05\x06\x08\x01a\x01x\x02bc\x00"].concat();
        let command = transfers.into_command().bytes;
        assert_eq!(&command[..], &golden[..]);
        let decoded = decode(&golden).unwrap();
        assert_eq!(decoded.members[0].0, transfer);
        assert!(metadata.iter().eq([("a", "x"), ("bc", "")]));
        for length in 0..golden.len() {
            assert!(decode(&golden[..length]).is_err(), "cut at {length}");
        }
        // No further flag, one that is unknown, a number that is zero, names twice.
        let changed = |place: usize, byte: u8| {
            let mut bytes = golden.clone();
            bytes[place] = byte;
            decode(&bytes).is_err()
        };
        let end = golden.len();
        assert!(changed(7, 0) && changed(7, 0x3e) && changed(end - 10, 0) && changed(end - 2, 0xff));
        for texts in [b"\x01a\x01x\x01a\x01x", b"\x01b\x01x\x01a\x01x"] {
            assert!(decode(&[&golden[..end - 8], texts].concat()).is_err());
        }
    }

    #[test]
    fn layout_of_a_keyed_command_is_pinned() {
        let mut transfers = Transfers::new(false);
        transfers.push(&Transfer::new(6, Kind::Void { pending: 4 }));
        let key = Key { id: 7, fingerprint: 8 };
        transfers.set_key(key);
        let id = |n: u8| [&[0; 15][..], &[n]].concat();
        let golden = [&[1, 1, 2, 1, 0, 3][..], &id(6), &id(4), &id(7), &id(8)].concat();
        assert_eq!(&transfers.into_command().bytes[..], &golden[..]);
        assert_eq!(decode(&golden).unwrap().key, Some(key));
        for length in 0..golden.len() {
            assert!(decode(&golden[..length]).is_err(), "cut at {length}");
        }
        // No key is zero.
        let nothing = [&golden[..38], &[0; 32]].concat();
        assert!(decode(&nothing).is_err());
    }

    #[test]
    fn layout_of_a_fenced_command_is_pinned() {
        let mut transfers = Transfers::new(true);
        transfers.push(&Transfer::new(6, Kind::Void { pending: 4 }));
        let fence = Fence { stream: 7, number: 300, after: 299 };
        transfers.set_fence(fence);
        let id = |n: u8| [&[0; 15][..], &[n]].concat();
        let golden = [&[1, 1, 5, 1, 0, 3][..], &id(6), &id(4), &id(7), b"\xac\x02\xab\x02"].concat();
        assert_eq!(&transfers.into_command().bytes[..], &golden[..]);
        assert_eq!(decode(&golden).unwrap().fence, Some(fence));
        for length in 0..golden.len() {
            assert!(decode(&golden[..length]).is_err(), "cut at {length}");
        }
        // No number is zero.
        let nothing = [&golden[..golden.len() - 4], &[0, 0]].concat();
        assert!(decode(&nothing).is_err());
    }

    #[test]
    fn a_transfer_without_a_currency_agrees_with_any() {
        let kind = Kind::Void { pending: 1 };
        let named = Transfer { currency: "EUR".parse().ok(), ..Transfer::new(1, kind) };
        let other = Transfer { currency: "USD".parse().ok(), ..named };
        assert!(named.same_content(&Transfer::new(1, kind)) && Transfer::new(1, kind).same_content(&named));
        assert!(!named.same_content(&other));
        assert!(!named.same_content(&Transfer { code: 1, ..named }));
    }
}
