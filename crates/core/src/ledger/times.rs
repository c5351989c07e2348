//! Times that are the client's: when a transfer happened for it, and when it is to be settled. They are kept and shown;
//! the order of transfers is that of the log, and `at_time` means the cluster's time.
//!
//! In a command and in the journal they are the last fields, varints of milliseconds since the Unix epoch, if their
//! bits are among the further ones of `transfer.rs`:
//!
//! ```text
//! 0x80 imported    0x1000 client time    0x2000 settle time
//! ```

use crate::codec::{self, Malformed, Reader};

const IMPORTED: u64 = 0x80;
const CLIENT_TIME: u64 = 0x1000;
const SETTLE_TIME: u64 = 0x2000;
/// All of their bits.
pub(super) const TIMES: u64 = IMPORTED | CLIENT_TIME | SETTLE_TIME;

/// Times that are the client's, in milliseconds since the Unix epoch; 0 for none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// When it happened for the client.
    pub client_ms: u64,
    /// When it is to be settled.
    pub settle_ms: u64,
    /// It comes from another book, with its client time: see `imports.rs`.
    pub imported: bool,
}

impl Times {
    /// The bits of those that are there.
    pub(super) fn bits(self) -> u64 {
        let bit = |wanted: bool, bit: u64| if wanted { bit } else { 0 };
        bit(self.imported, IMPORTED)
            | bit(self.client_ms > 0, CLIENT_TIME)
            | bit(self.settle_ms > 0, SETTLE_TIME)
    }

    pub(super) fn encode_into(self, out: &mut Vec<u8>) {
        for time in [self.client_ms, self.settle_ms] {
            if time > 0 {
                codec::put_varint(out, time);
            }
        }
    }

    /// Reads those whose `bits` are set.
    ///
    /// # Errors
    /// One is 0, or an imported transfer has no client time.
    pub(super) fn decode_from(from: &mut Reader<&[u8]>, bits: u64) -> Result<Self, Malformed> {
        let mut times = Self { imported: bits & IMPORTED != 0, ..Self::default() };
        if bits & CLIENT_TIME != 0 {
            times.client_ms = from.varint()?;
        }
        if bits & SETTLE_TIME != 0 {
            times.settle_ms = from.varint()?;
        }
        // There is one way to encode them.
        let sound = times.bits() == bits & TIMES && (times.client_ms > 0 || !times.imported);
        if sound { Ok(times) } else { Err(from.malformed()) }
    }
}
