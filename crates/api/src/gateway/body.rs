//! The objects of a request's body.
//!
//! **Invariant: Bounded.** An object's bytes are charged to the node's budget as they come, and until the next one is
//! asked for. One above the bound is refused; one whose rest does not come is given up.

use super::split::Splitter;
use crate::budget::Share;
use crate::error::Known;
use crate::stall;
use axum::body::{Body, BodyDataStream};
use bytes::Bytes;
use tokio::time::timeout;
use tokio_stream::StreamExt;
use tonic::Status;

/// The objects that have not been taken.
pub(super) struct Objects {
    body: BodyDataStream,
    splitter: Splitter,
    share: Share,
    bytes_max: usize,
}

impl Objects {
    /// At most `bytes_max` bytes each.
    pub(super) fn new(body: Body, share: Share, bytes_max: usize) -> Self {
        Self { body: body.into_data_stream(), splitter: Splitter::default(), share, bytes_max }
    }

    /// The first object; `None` if the body is empty.
    ///
    /// # Errors
    /// As [`Self::next`]; or nothing comes.
    pub(super) async fn first(&mut self) -> Result<Option<Bytes>, Status> {
        match timeout(stall::PATIENCE, self.piece()).await.map_err(|_| stalled())?? {
            true => self.next().await,
            false => Ok(None),
        }
    }

    /// The next object, for as long as it takes to begin; `None` at the end of the body.
    ///
    /// # Errors
    /// The body has something else, breaks off, is too large, or exceeds the node's budget.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, Status> {
        loop {
            let found = self.splitter.next().map_err(|error| Status::invalid_argument(error.to_string()))?;
            if found.is_some() {
                return Ok(found);
            }
            let begun = self.splitter.pending() > 0;
            self.share.hold(self.splitter.pending());
            let more = match begun {
                true => timeout(stall::PATIENCE, self.piece()).await.map_err(|_| stalled())?,
                false => self.piece().await,
            };
            if !more? {
                return if begun { Err(cut_off()) } else { Ok(None) };
            }
        }
    }

    /// Returns when the client has left. What it sends meanwhile is dropped.
    pub(super) async fn abandoned(&mut self) {
        while let Some(piece) = self.body.next().await {
            if piece.is_err() {
                return;
            }
        }
        // The server drops the call then.
        std::future::pending().await
    }

    /// Takes the body's next piece; false at its end.
    async fn piece(&mut self) -> Result<bool, Status> {
        let Some(piece) = self.body.next().await else { return Ok(false) };
        let piece = piece.map_err(|error| Status::cancelled(error.to_string()))?;
        let bytes = self.splitter.pending() + piece.len();
        if bytes > self.bytes_max {
            let text = format!("quoin: a request of more than {} bytes: send less at a time", self.bytes_max);
            return Err(Status::resource_exhausted(text));
        }
        if !self.share.hold(bytes) {
            return Err(Known::TooManyRequests.into());
        }
        self.splitter.push(&piece);
        Ok(true)
    }
}

fn stalled() -> Status {
    Status::deadline_exceeded(stall::reason())
}

fn cut_off() -> Status {
    Status::invalid_argument("the body ends within an object")
}
