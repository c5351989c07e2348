//! Reports of progress against the events around them.

use super::*;
use crate::testing::{alone, alone_with, settings};
use prost::Message;
use quoin_core::{Reply, kv};
use quoin_engine::Limits;
use tokio::sync::mpsc::Receiver;

type Answered = Receiver<Result<pb::WatchResponse, Status>>;

/// A stream whose queue has room for one answer, so that each further one waits for the client.
fn stream(engine: &Engine) -> (Stream, Answered) {
    let (responses, answered) = mpsc::channel(1);
    (Stream::new(engine.clone(), responses), answered)
}

async fn next(answered: &mut Answered) -> pb::WatchResponse {
    answered.recv().await.expect("the stream lives").expect("no error")
}

/// Watches one key from a revision on; 0 is from now on.
async fn create(stream: &mut Stream, answered: &mut Answered, key: &'static str, start_revision: i64) {
    let request = pb::WatchCreateRequest { key: key.into(), start_revision, ..Default::default() };
    stream.create(request).await;
    assert!(next(answered).await.created);
}

async fn put(engine: &Engine, key: &'static str) -> i64 {
    let put = kv::Put { key: key.into(), ..kv::Put::default() };
    match engine.propose(kv::Operation::Put(put).into_command()).await {
        Ok(Reply::Kv(kv::Reply { revision, .. })) => signed(revision.0),
        other => panic!("{other:?}"),
    }
}

/// Lets all tasks run until they wait.
async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

fn is_report(response: &pb::WatchResponse) -> bool {
    response.watch_id == NO_WATCH
}

fn revision(response: &pb::WatchResponse) -> i64 {
    response.header.expect("every answer has a header").revision
}

/// The watches were asked one after the other how far they are, and those asked first went on meanwhile: the
/// report was queued behind events above its revision.
#[test]
fn a_report_of_progress_stands_between_the_events_up_to_it_and_those_above_it() {
    alone(|engine| async move {
        let (mut stream, mut answered) = stream(&engine);
        for _ in 0..3 {
            create(&mut stream, &mut answered, "k", 0).await;
        }
        put(&engine, "k").await;
        settle().await;
        // One watch's event is in the queue; the other two wait to put theirs there.
        let client = async {
            settle().await;
            let second = put(&engine, "k").await;
            settle().await;
            let mut before = vec![next(&mut answered).await];
            while !before.last().is_some_and(is_report) {
                before.push(next(&mut answered).await);
            }
            let report = before.pop().expect("it was just taken");
            assert!(before.iter().all(|event| revision(event) <= revision(&report)), "{before:?} {report:?}");
            assert_eq!((before.len(), revision(&report)), (6, second), "nothing up to it is missing");
        };
        tokio::join!(stream.report_progress(), client);
        let third = put(&engine, "k").await;
        for _ in 0..3 {
            assert_eq!(revision(&next(&mut answered).await), third);
        }
    });
}

/// A client resumes a watch behind the last report, so it would have got events from before the beginning.
/// After a restart, reports of a replica that had not caught up went back behind earlier ones in this way.
#[test]
fn there_is_no_report_of_progress_before_every_watch_has_begun() {
    alone(|engine| async move {
        let (mut stream, mut answered) = stream(&engine);
        let newest = put(&engine, "other").await;
        create(&mut stream, &mut answered, "k", 0).await;
        create(&mut stream, &mut answered, "k", newest + 3).await;
        for _ in 0..2 {
            stream.report_progress().await;
            assert!(answered.is_empty() && stream.report_at.is_some());
            put(&engine, "other").await;
        }
        stream.report_progress().await;
        let report = next(&mut answered).await;
        assert!(is_report(&report) && stream.report_at.is_none());
        assert_eq!(revision(&report), newest + 2);
    });
}

/// A client that did not read had 6 MiB of answers waiting: each held all that its watch had taken at once.
#[test]
fn a_client_that_reads_nothing_has_a_few_answers_of_a_bounded_size_waiting() {
    const WATCHES: usize = 20;
    const PUTS: usize = 40;
    const VALUE_BYTES: usize = 64 << 10;
    alone(|engine| async move {
        let (responses, mut answered) = mpsc::channel(RESPONSES_MAX);
        let mut stream = Stream::new(engine.clone(), responses);
        for _ in 0..WATCHES {
            create(&mut stream, &mut answered, "k", 0).await;
        }
        for _ in 0..PUTS {
            let put = kv::Put { key: "k".into(), value: vec![7; VALUE_BYTES].into(), ..kv::Put::default() };
            engine.propose(kv::Operation::Put(put).into_command()).await.unwrap();
        }
        settle().await;
        assert_eq!(answered.len(), RESPONSES_MAX);
        let mut events = 0;
        while events < WATCHES * PUTS {
            let answer = next(&mut answered).await;
            let bytes = answer.encoded_len();
            assert!(bytes <= feed::ANSWER_BYTES + VALUE_BYTES + 1000, "an answer of {bytes} bytes");
            events += answer.events.len();
        }
        assert_eq!(events, WATCHES * PUTS);
    });
}

/// A client that gave its watches ids, and used one again at once, was told that the new watch had ended.
#[test]
fn what_a_canceled_watch_says_last_comes_before_the_next_watch_with_its_id() {
    alone(|engine| async move {
        let (mut stream, mut answered) = stream(&engine);
        let request = |watch_id| pb::WatchCreateRequest { key: "k".into(), watch_id, ..Default::default() };
        let client = async {
            let mut seen: Vec<pb::WatchResponse> = Vec::new();
            while seen.iter().filter(|answer| answer.created).count() < 2 {
                seen.push(next(&mut answered).await);
            }
            seen
        };
        let server = async {
            stream.create(request(5)).await;
            for _ in 0..2 {
                put(&engine, "k").await;
            }
            stream.cancel(5).await;
            stream.create(request(5)).await;
        };
        let (mut seen, ()) = tokio::join!(client, server);
        seen.retain(|answer| answer.events.is_empty());
        let shape: Vec<_> = seen.iter().map(|answer| (answer.created, answer.canceled)).collect();
        assert!(shape.starts_with(&[(true, false), (false, true)]), "{shape:?}");
    });
}

/// A stream's watches took as much memory as its client sent names.
#[test]
fn the_names_of_a_streams_watches_are_bounded_in_bytes() {
    alone(|engine| async move {
        let (mut stream, mut answered) = stream(&engine);
        let longest = engine.limits().key_bytes_max;
        let request =
            |bytes: usize| pb::WatchCreateRequest { key: vec![b'k'; bytes].into(), ..Default::default() };
        stream.create(request(longest + 1)).await;
        let refused = next(&mut answered).await;
        assert!(refused.canceled && refused.cancel_reason.contains("limits.key_bytes_max"), "{refused:?}");
        for _ in 0..WATCHED_BYTES_MAX / longest {
            stream.create(request(longest)).await;
            assert!(!next(&mut answered).await.canceled);
        }
        stream.create(request(longest)).await;
        let refused = next(&mut answered).await;
        assert!(refused.canceled && refused.cancel_reason.contains("open another stream"), "{refused:?}");
        stream.cancel(0).await;
        assert!(next(&mut answered).await.canceled);
        stream.create(request(longest)).await;
        assert!(!next(&mut answered).await.canceled);
        // It ends by itself when nobody can reach it any more.
        stream.watches.get_mut(&1).unwrap().control = mpsc::channel(1).0;
        settle().await;
        stream.create(request(longest)).await;
        assert!(!next(&mut answered).await.canceled);
    });
}

/// Clients that take a watch without progress for a broken one could not have it sooner.
#[test]
fn a_quiet_watch_gets_progress_as_often_as_the_setting_says() {
    let limits = Limits { watch_progress_s: 1, ..Limits::default() };
    alone_with(quoin_engine::Settings { limits, ..settings() }, |engine| async move {
        let (mut stream, mut answered) = stream(&engine);
        let request = pb::WatchCreateRequest { key: "k".into(), progress_notify: true, ..Default::default() };
        stream.create(request).await;
        assert!(next(&mut answered).await.created);
        let newest = put(&engine, "other").await;
        let progress = tokio::time::timeout(Duration::from_secs(30), next(&mut answered)).await;
        let progress = progress.expect("half of the default is over");
        assert_eq!((progress.watch_id, progress.events.len(), revision(&progress)), (0, 0, newest));
    });
}
