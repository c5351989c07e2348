//! A real HTTP server for files that fails on demand, as servers do.

use anyhow::Result;
use axum::Router;
use axum::body::Body;
use axum::extract::{Path as Names, State};
use axum::http::{HeaderMap, Response, StatusCode, header};
use parking_lot::Mutex;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use tokio::sync::watch;

/// A request: the file's name, and the byte from which on it was asked for.
pub(crate) type Asked = (String, Option<u64>);

pub(crate) struct Files {
    folder: PathBuf,
    /// Where it serves the folder.
    pub(crate) url: String,
    /// Answers 503 to everything.
    pub(crate) unavailable: AtomicBool,
    /// Breaks the connection in the middle of this many of the next files.
    pub(crate) breaks: AtomicUsize,
    /// While true, answers pause in the middle of a file.
    pub(crate) held: watch::Sender<bool>,
    /// The id of the key that must sign requests.
    pub(crate) key_id: Option<&'static str>,
    pub(crate) asked: Mutex<Vec<Asked>>,
}

impl Files {
    pub(crate) fn asked_in_the_middle(&self) -> bool {
        self.asked.lock().iter().any(|(_, from)| from.is_some_and(|from| from > 0))
    }
}

/// Serves `folder` as long as the runtime runs.
pub(crate) async fn serve(folder: &Path, key_id: Option<&'static str>) -> Result<Arc<Files>> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let files = Arc::new(Files {
        folder: folder.into(),
        url: format!("http://{}", listener.local_addr()?),
        unavailable: AtomicBool::new(false),
        breaks: AtomicUsize::new(0),
        held: watch::channel(false).0,
        key_id,
        asked: Mutex::default(),
    });
    let router = Router::new().route("/{*name}", axum::routing::get(get)).with_state(Arc::clone(&files));
    tokio::spawn(async move { axum::serve(listener, router).await });
    Ok(files)
}

async fn get(
    State(files): State<Arc<Files>>,
    Names(name): Names<String>,
    headers: HeaderMap,
) -> Response<Body> {
    let status = |status| Response::builder().status(status).body(Body::empty()).expect("a status alone");
    if files.unavailable.load(Ordering::SeqCst) {
        return status(StatusCode::SERVICE_UNAVAILABLE);
    }
    let signed = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if let Some(key_id) = files.key_id
        && !signed.starts_with(&format!("AWS4-HMAC-SHA256 Credential={key_id}/"))
    {
        return status(StatusCode::FORBIDDEN);
    }
    let from = headers.get(header::RANGE).and_then(|range| range.to_str().ok());
    let range = from.and_then(|range| range.strip_prefix("bytes=")?.split_once('-'));
    let from = range.and_then(|(from, _)| from.parse::<u64>().ok());
    files.asked.lock().push((name.clone(), from));
    let Ok(bytes) = std::fs::read(files.folder.join(&name)) else { return status(StatusCode::NOT_FOUND) };
    let (length, begin) = (bytes.len() as u64, from.unwrap_or(0));
    let end =
        range.and_then(|(_, last)| last.parse::<u64>().ok()).map_or(length, |last| length.min(last + 1));
    let mut response = Response::builder()
        .header(header::CONTENT_LENGTH, end - begin)
        .header(header::LAST_MODIFIED, "Sat, 21 Nov 2026 00:00:00 GMT")
        .header(header::ETAG, format!("\"{length}\""));
    if from.is_some() {
        let range = format!("bytes {begin}-{}/{length}", end - 1);
        response = response.status(StatusCode::PARTIAL_CONTENT).header(header::CONTENT_RANGE, range);
    }
    response
        .body(body(&files, &name, bytes[begin as usize..end as usize].to_vec()))
        .expect("headers that are right")
}

/// The bytes in two halves, between which the answer breaks or pauses on demand.
fn body(files: &Arc<Files>, name: &str, bytes: Vec<u8>) -> Body {
    if name.ends_with(".json") {
        return Body::from(bytes);
    }
    let less = |left: usize| left.checked_sub(1);
    let breaks = files.breaks.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).is_ok();
    let (half, mut held) = (bytes.len() / 2, files.held.subscribe());
    let (sender, receiver) = tokio::sync::mpsc::channel::<std::io::Result<Vec<u8>>>(1);
    tokio::spawn(async move {
        let (first, rest) = bytes.split_at(half);
        let _ = sender.send(Ok(first.to_vec())).await;
        if breaks {
            let _ = sender.send(Err(std::io::Error::other("told to break"))).await;
            return;
        }
        let _ = held.wait_for(|held| !held).await;
        let _ = sender.send(Ok(rest.to_vec())).await;
    });
    Body::from_stream(tokio_stream::wrappers::ReceiverStream::new(receiver))
}
