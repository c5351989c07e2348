//! One watch of a stream: takes events from the hub and turns them into etcd's answers.

use super::header::{header, signed};
use super::progress::Part;
use super::translate;
use crate::commands::long_read;
use crate::error::Error;
use crate::grpc::outbound::Answers;
use bytes::Bytes;
use prost::Message;
use quoin_core::{Change, Event, Revision, Sequence, StoreError, kv};
use quoin_engine::Engine;
use quoin_engine::watch::{WatchEnd, Watcher};
use quoin_proto::etcdserverpb::WatchResponse;
use quoin_proto::mvccpb;
use quoin_proto::mvccpb::event::EventType;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, interval_at};

/// Maximum changes whose previous values are read on the task's own thread; more are read on one that may
/// block.
const LOOKUPS_IN_PLACE_MAX: usize = 64;

/// Bytes of changes after which an answer is closed. What waits for a slow client, encoded and not, is a few
/// of these.
pub(super) const ANSWER_BYTES: usize = 128 << 10;

/// A message from the stream to a watch.
pub(super) enum Control {
    /// End.
    Cancel,
    /// End, for this reason: the client may not read the range any more.
    Forbid(String),
    /// Take part in a report of progress.
    Report(Part),
}

/// What a watch shall send.
#[derive(Clone, Copy)]
pub(super) struct Options {
    pub(super) id: i64,
    pub(super) without_puts: bool,
    pub(super) without_deletions: bool,
    pub(super) previous: bool,
    pub(super) fragment: bool,
    pub(super) progress: bool,
}

/// A watch.
pub(super) struct Feed {
    engine: Engine,
    options: Options,
    watcher: Watcher,
    responses: Answers<WatchResponse>,
}

impl Feed {
    pub(super) fn new(
        engine: Engine,
        options: Options,
        watcher: Watcher,
        responses: Answers<WatchResponse>,
    ) -> Self {
        Self { engine, options, watcher, responses }
    }

    /// Delivers until it is canceled, cannot go on, or the client has left.
    pub(super) async fn run(mut self, mut commands: mpsc::Receiver<Control>) {
        let period = Duration::from_secs(self.engine.limits().watch_progress_s);
        let mut quiet = interval_at(Instant::now() + period, period);
        loop {
            let delivered = tokio::select! {
                taken = self.watcher.next() => {
                    quiet.reset();
                    match taken {
                        Ok(events) => self.deliver(events).await,
                        Err(end) => return self.end(end).await,
                    }
                }
                command = commands.recv() => match command {
                    Some(Control::Report(part)) => self.report(part).await,
                    Some(Control::Cancel) => return self.canceled(String::new()).await,
                    Some(Control::Forbid(reason)) => return self.canceled(reason).await,
                    None => return,
                },
                // As in etcd, only a watch that has begun and caught up gets progress.
                _ = quiet.tick(), if self.options.progress => match self.watcher.is_synced() && self.watcher.is_live() {
                    true => self.send(self.response(self.watcher.position())).await,
                    false => Ok(()),
                },
            };
            if delivered.is_err() {
                return;
            }
        }
    }

    fn response(&self, revision: Revision) -> WatchResponse {
        let header = Some(header(&self.engine, revision));
        WatchResponse { header, watch_id: self.options.id, ..WatchResponse::default() }
    }

    async fn send(&self, response: WatchResponse) -> Result<(), ()> {
        self.responses.send(Ok(response)).await.map_err(drop)
    }

    /// Stops; delivers what it is told to; goes on when the report is queued.
    async fn report(&mut self, mut part: Part) -> Result<(), ()> {
        // This fails, as below, if the stream has ended.
        let _ = part.stopped.send(self.watcher.is_live());
        while let Some(order) = part.orders.recv().await {
            loop {
                match self.watcher.next_ready_to(order.to).await {
                    Ok(Some(events)) => self.deliver(events).await?,
                    Ok(None) => break,
                    Err(end) => {
                        self.end(end).await;
                        return Err(());
                    }
                }
            }
            let _ = order.delivered.send(());
        }
        Ok(())
    }

    async fn canceled(&self, cancel_reason: String) {
        let response = self.response(self.engine.hub().newest());
        // This fails if the client has left.
        let _ = self.send(WatchResponse { canceled: true, cancel_reason, ..response }).await;
    }

    async fn end(&self, end: WatchEnd) {
        let response = self.response(self.engine.hub().newest());
        let compact_revision = match &end {
            WatchEnd::Compacted { compacted } => signed(compacted.0),
            _ => 0,
        };
        let cancel_reason = Error::from(end).to_string();
        let response = WatchResponse { canceled: true, compact_revision, cancel_reason, ..response };
        // This fails if the client has left.
        let _ = self.send(response).await;
    }

    async fn deliver(&self, events: Vec<Arc<Event>>) -> Result<(), ()> {
        for events in answers(events) {
            self.answer(events).await?;
        }
        Ok(())
    }

    async fn answer(&self, events: Vec<Arc<Event>>) -> Result<(), ()> {
        let Some(newest) = events.last().map(|event| event.revision) else { return Ok(()) };
        // The place in the queue comes first, so that the answers of the stream's watches that are ready take no
        // more memory than the queue has places.
        let place = self.responses.reserve().await.map_err(drop)?;
        let events = match self.translated(events).await {
            Ok(events) => events,
            Err(error) => {
                let (response, cancel_reason) = (self.response(newest), error.to_string());
                place.send(Ok(WatchResponse { canceled: true, cancel_reason, ..response }));
                return Err(());
            }
        };
        if events.is_empty() {
            return Ok(());
        }
        let response = WatchResponse { events, ..self.response(newest) };
        if !self.options.fragment {
            place.send(Ok(response));
            return Ok(());
        }
        drop(place);
        for piece in fragments(response, self.engine.limits().request_bytes_max) {
            self.send(piece).await?;
        }
        Ok(())
    }

    /// The changes of `events` as the client sees them.
    async fn translated(&self, events: Vec<Arc<Event>>) -> Result<Vec<mvccpb::Event>, Error> {
        let changes: usize = events.iter().map(|event| event.changes.len()).sum();
        let long = self.options.previous && changes > LOOKUPS_IN_PLACE_MAX;
        let (engine, options) = (self.engine.clone(), self.options);
        let translate = move || {
            let mut translated = Vec::with_capacity(changes);
            for event in &events {
                for change in &event.changes {
                    translated.extend(change_event(&engine, options, event, change)?);
                }
            }
            Ok(translated)
        };
        if long { long_read(translate).await } else { Ok(translate()?) }
    }
}

/// Divides events among answers. An event has all of its revision, so none is split.
fn answers(events: Vec<Arc<Event>>) -> impl Iterator<Item = Vec<Arc<Event>>> {
    let mut events = events.into_iter();
    std::iter::from_fn(move || {
        let (mut answer, mut bytes) = (Vec::new(), 0);
        while bytes < ANSWER_BYTES
            && let Some(event) = events.next()
        {
            let size = |change: &Change| change.key.len() + change.value.as_ref().map_or(0, Bytes::len);
            bytes += event.changes.iter().map(size).sum::<usize>();
            answer.push(event);
        }
        (!answer.is_empty()).then_some(answer)
    })
}

/// A change as clients see it; `None` if it is filtered out.
fn change_event(
    engine: &Engine,
    options: Options,
    event: &Event,
    change: &Change,
) -> Result<Option<mvccpb::Event>, StoreError> {
    let deleted = change.value.is_none();
    if (deleted && options.without_deletions) || (!deleted && options.without_puts) {
        return Ok(None);
    }
    let Some(kv) = kv::change_to_key_value(change, event.revision)? else { return Ok(None) };
    let was_there = deleted || kv.version > 1;
    let previous = if options.previous && was_there { previous(engine, event, change)? } else { None };
    let kind = if deleted { EventType::Delete } else { EventType::Put };
    Ok(Some(mvccpb::Event {
        r#type: kind.into(),
        kv: Some(translate::key_value(kv)),
        prev_kv: previous.map(translate::key_value),
    }))
}

/// The previous value of a key; as in etcd also `None` if it is compacted.
fn previous(engine: &Engine, event: &Event, change: &Change) -> Result<Option<kv::KeyValue>, StoreError> {
    let before = Sequence(event.sequence.0.saturating_sub(1));
    let latest = engine.latest();
    let Ok(_pin) = latest.store().pin(before) else { return Ok(None) };
    let value = latest.view().at(before).get(&change.key)?;
    if value.is_none() {
        return Ok(None);
    }
    kv::change_to_key_value(&Change { key: change.key.clone(), value }, event.revision)
}

/// Splits an answer above `bytes_max` between its events.
fn fragments(response: WatchResponse, bytes_max: usize) -> Vec<WatchResponse> {
    let empty = WatchResponse { events: Vec::new(), fragment: true, ..response };
    let mut pieces = Vec::new();
    let mut piece = empty.clone();
    let mut bytes = 0;
    for event in response.events {
        let size = event.encoded_len();
        if bytes + size > bytes_max && !piece.events.is_empty() {
            pieces.push(std::mem::replace(&mut piece, empty.clone()));
            bytes = 0;
        }
        bytes += size;
        piece.events.push(event);
    }
    piece.fragment = false;
    pieces.push(piece);
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;
    use quoin_core::Stamp;

    fn event(value: usize) -> mvccpb::Event {
        let kv = mvccpb::KeyValue { key: "k".into(), value: vec![7; value].into(), ..Default::default() };
        mvccpb::Event { kv: Some(kv), ..Default::default() }
    }

    /// An answer had all that was taken at once, and each slow client had several of them in memory.
    #[test]
    fn what_was_taken_at_once_is_sent_in_answers_of_a_bounded_size() {
        let event = |revision: u64, bytes| {
            let change = Change { key: "k".into(), value: Some(vec![7; bytes].into()) };
            let (revision, sequence, stamp) = (Revision(revision), Sequence(revision), Stamp(1));
            Arc::new(Event { revision, sequence, stamp, changes: vec![change] })
        };
        let taken = vec![
            event(1, 10),
            event(2, 3 * ANSWER_BYTES),
            event(3, ANSWER_BYTES - 10),
            event(4, 9),
            event(5, 9),
        ];
        let sent: Vec<Vec<u64>> =
            answers(taken).map(|events| events.iter().map(|event| event.revision.0).collect()).collect();
        assert_eq!(sent, [vec![1, 2], vec![3, 4], vec![5]]);
        assert_eq!(answers(Vec::new()).count(), 0);
    }

    #[test]
    fn a_large_answer_is_split_between_events_and_only_the_last_piece_ends_it() {
        let sizes = [10, 400, 400, 2000, 5, 5];
        let events = sizes.map(event).to_vec();
        let whole = WatchResponse { watch_id: 3, events: events.clone(), ..Default::default() };
        let pieces = fragments(whole.clone(), 1000);
        let shape: Vec<_> = pieces.iter().map(|piece| (piece.events.len(), piece.fragment)).collect();
        assert_eq!(shape, [(3, true), (1, true), (2, false)]);
        assert!(pieces.iter().all(|piece| piece.watch_id == 3));
        assert_eq!(pieces.into_iter().flat_map(|piece| piece.events).collect::<Vec<_>>(), events);
        assert_eq!(fragments(whole.clone(), 1 << 20), vec![whole]);
    }
}
