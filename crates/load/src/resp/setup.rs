//! What happens before a run: connections are opened, keys are written. It blocks, and is not measured.

use super::inbox::Inbox;
use super::{reply, request};
use anyhow::{Context, Result, ensure};
use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

/// How long a server may take to answer before a run.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Requests sent together while keys are written.
const FILL_PIPELINE: usize = 200;

/// Opens `connections`, distributed round-robin over `endpoints`, and sends the commands of `hello` on each.
///
/// # Errors
/// An endpoint cannot be reached, or answers with an error.
pub(crate) fn connect(endpoints: &[String], connections: usize, hello: &[&str]) -> Result<Vec<TcpStream>> {
    let one = |number: usize| {
        let endpoint = &endpoints[number % endpoints.len()];
        let mut stream = TcpStream::connect(endpoint).with_context(|| format!("connecting to {endpoint}"))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        for command in hello {
            let mut request = Vec::new();
            request::words(&mut request, &[command.as_bytes()]);
            ask(&mut stream, &request, 1).with_context(|| format!("{command} at {endpoint}"))?;
        }
        Ok(stream)
    };
    (0..connections).map(one).collect()
}

/// Sends one request for each of `keys` to one of the servers; `write` appends it.
///
/// # Errors
/// The server cannot be reached, or answers with an error.
pub(crate) fn fill(
    endpoints: &[String],
    keys: impl Iterator<Item = u64>,
    write: impl Fn(u64, &mut Vec<u8>),
) -> Result<()> {
    let mut stream = connect(endpoints, 1, &[])?.pop().context("a connection")?;
    let (mut out, mut gathered) = (Vec::new(), 0);
    let mut keys = keys.peekable();
    while let Some(key) = keys.next() {
        write(key, &mut out);
        gathered += 1;
        if gathered == FILL_PIPELINE || keys.peek().is_none() {
            ask(&mut stream, &out, gathered)?;
            out.clear();
            gathered = 0;
        }
    }
    Ok(())
}

/// Sends `requests` and waits for their answers, none of which may be an error.
fn ask(stream: &mut TcpStream, requests: &[u8], answers: usize) -> Result<()> {
    stream.write_all(requests)?;
    let mut inbox = Inbox::default();
    let mut answered = 0;
    while answered < answers {
        ensure!(inbox.read(stream)? > 0, "the server closed the connection");
        while let Some(answer) = inbox.next()? {
            reply::no_error(answer)?;
            answered += 1;
        }
    }
    Ok(())
}
