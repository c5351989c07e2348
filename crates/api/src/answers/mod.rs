//! Large answers to reads of etcd's API, while they are read and until their clients have taken them, over all
//! connections of a node's gRPC port.
//!
//! **Invariant: Bounded.** An answer is charged record by record while it is read, and until the last of it goes
//! to its client. What exceeds `limits.response_bytes_in_flight_max` is refused; an answer alone always goes. Nobody
//! waits for room: a client that takes nothing of its answer is given up by `body.rs`, so that it keeps others out
//! for a bounded time.
//!
//! What it deliberately does not count: answers of at most [`UNCHARGED_BYTES`], which cost little more than
//! the calls they are for; the copy that is made while an answer is encoded; and what streams send, which has bounds
//! of its own.

mod body;
#[cfg(test)]
mod tests;

pub(crate) use body::holding;

use crate::budget::{Budget, Share};
use crate::commands::{off_the_hot_path, read_metered, read_range};
use crate::error::Error;
use quoin_core::kv::{self, Refusal};
use quoin_engine::{Engine, ReadView};
use std::sync::Arc;

/// Answers up to this many bytes are not charged.
const UNCHARGED_BYTES: usize = 16 << 10;
/// Others are charged in steps of this many, so that most records change no shared count.
const STEP_BYTES: usize = 64 << 10;

/// Reads answers within what all together may have.
#[derive(Clone)]
pub(crate) struct Reader {
    budget: Budget,
    /// Of one answer.
    bytes_max: usize,
}

/// What an answer holds; given back when the last clone is dropped. As an extension of a response it goes over to
/// the response's body.
#[derive(Clone)]
pub(crate) struct Held {
    _share: Arc<Share>,
}

impl Held {
    fn of(share: Share) -> Self {
        Self { _share: Arc::new(share) }
    }
}

impl Reader {
    pub(crate) fn new(engine: &Engine) -> Self {
        Self { budget: Budget::of_answers(engine), bytes_max: engine.limits().response_bytes_max }
    }

    /// Reads a key at once, and a range on a thread that may block.
    ///
    /// # Errors
    /// An unavailable revision, an answer above `limits.response_bytes_max` or beyond what all may have, a
    /// fault of the store.
    pub(crate) async fn range(
        &self,
        view: ReadView,
        request: kv::Range,
    ) -> Result<(kv::RangeReply, Option<Held>), Error> {
        if request.range_end.is_empty() {
            let reply = read_range(&view, &request, self.bytes_max)?;
            let held = self.hold_point(&reply)?;
            return Ok((reply, held));
        }
        self.metered(move |meter| read_metered(&view, &request, meter)).await
    }

    /// The usual answer is small: it costs nothing here.
    fn hold_point(&self, reply: &kv::RangeReply) -> Result<Option<Held>, Error> {
        let bytes = reply.kvs.first().map_or(0, kv::answer_bytes);
        if bytes <= UNCHARGED_BYTES {
            return Ok(None);
        }
        // One key is answered however small the bound on an answer is.
        let mut charge = Charge { share: self.budget.share(), bytes: 0, bytes_max: usize::MAX };
        charge.take(bytes).map_err(|refusal| self.refused(refusal))?;
        Ok(charge.held())
    }

    /// Reads a transaction that only reads, on a thread that may block.
    ///
    /// # Errors
    /// As [`Self::range`].
    pub(crate) async fn txn(
        &self,
        view: ReadView,
        txn: kv::Txn,
    ) -> Result<(kv::Response, Option<Held>), Error> {
        self.metered(move |meter| Ok(kv::read_txn(view.view(), view.progress(), txn, meter)?)).await
    }

    async fn metered<T: Send + 'static>(
        &self,
        read: impl FnOnce(&mut kv::Meter<'_>) -> Result<Result<T, Refusal>, Error> + Send + 'static,
    ) -> Result<(T, Option<Held>), Error> {
        let mut charge = Charge { share: self.budget.share(), bytes: 0, bytes_max: self.bytes_max };
        let read = off_the_hot_path(move || {
            let answer = read(&mut |bytes| charge.take(bytes))?;
            Ok::<_, Error>(answer.map(|answer| (answer, charge.held())))
        });
        read.await??.map_err(|refusal| self.refused(refusal))
    }

    fn refused(&self, refusal: Refusal) -> Error {
        match refusal {
            Refusal::ResponseTooLarge => Error::response_too_large(self.bytes_max),
            Refusal::Crowded => Error::answers_crowded(self.budget.bytes_max()),
            refusal => refusal.into(),
        }
    }
}

/// An answer that is being read.
struct Charge {
    share: Share,
    bytes: usize,
    bytes_max: usize,
}

impl Charge {
    /// Charges `bytes` more.
    fn take(&mut self, bytes: usize) -> Result<(), Refusal> {
        self.bytes += bytes;
        if self.bytes > self.bytes_max {
            return Err(Refusal::ResponseTooLarge);
        }
        let fits = self.bytes <= UNCHARGED_BYTES || self.share.hold(self.bytes.next_multiple_of(STEP_BYTES));
        if fits { Ok(()) } else { Err(Refusal::Crowded) }
    }

    /// What was charged, if anything was.
    fn held(self) -> Option<Held> {
        (self.bytes > UNCHARGED_BYTES).then(|| Held::of(self.share))
    }
}
