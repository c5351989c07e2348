//! Replies that the client does not want: CLIENT REPLY.
//!
//! Commands are done and answered as ever. What they were answered is taken back before it is sent, so that writes
//! without replies still go into the log together.

use super::session::Session;

/// Which replies are wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Replies {
    #[default]
    Wanted,
    Unwanted,
    /// Not the one to the present request, nor to the next.
    SkippingTwo,
    /// Not the one to the next request.
    SkippingNext,
    /// Not the one to the present request.
    Skipping,
}

/// What a connection wants.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Silence {
    replies: Replies,
    /// Where in the output the unwanted replies begin, unless they are wanted.
    from: usize,
}

impl Silence {
    /// All that stands in the output up to `end` is wanted.
    pub(super) fn keep(&mut self, end: usize) {
        self.from = end;
    }
}

impl Session {
    /// CLIENT REPLY ON, OFF or SKIP (`None`, which does not end OFF). Replies to earlier commands stand in the output.
    pub(super) fn want_replies(&mut self, wanted: Option<bool>) {
        self.take_back();
        let replies = match wanted {
            Some(true) => Replies::Wanted,
            Some(false) => Replies::Unwanted,
            None if self.silence.replies == Replies::Unwanted => return,
            None => Replies::SkippingTwo,
        };
        self.silence = Silence { replies, from: self.out.len() };
    }

    /// To be called before each request.
    pub(super) async fn begin_request(&mut self) {
        if self.silence.replies == Replies::SkippingNext {
            self.write_pending().await;
            self.silence = Silence { replies: Replies::Skipping, from: self.out.len() };
        }
    }

    /// To be called after each request.
    pub(super) async fn end_request(&mut self) {
        let next = match self.silence.replies {
            Replies::SkippingTwo => Replies::SkippingNext,
            Replies::Skipping => Replies::Wanted,
            _ => return,
        };
        self.write_pending().await;
        self.take_back();
        self.silence.replies = next;
    }

    /// Takes back the replies so far that are not wanted. To be called before the output is sent.
    pub(super) fn take_back(&mut self) {
        if !matches!(self.silence.replies, Replies::Wanted | Replies::SkippingNext) {
            self.out.truncate(self.silence.from);
        }
    }
}
