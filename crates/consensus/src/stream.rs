//! A connection between replicas: plain, or mutual TLS.
//!
//! A connection is read and written by one thread at a time, and after its greeting a connection for frames carries bytes in one
//! direction only. So one lock guards the state of TLS, and nobody waits for it.

use bytes::Bytes;
use parking_lot::Mutex;
use quoin_tls::{Certificate, Keys, Protocol};
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, Connection, ServerConnection};
use std::io::{self, BufRead, BufReader, IoSlice, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The first byte of a handshake of TLS.
const HANDSHAKE: u8 = 0x16;
/// Bytes read from a socket at once.
const READ_BYTES: usize = 64 << 10;
/// Bytes that are encrypted before they are written.
const SEALED_BYTES: usize = 1 << 20;
const SLICES_MAX: usize = 512;

/// See the module. A clone is the same connection.
#[derive(Clone, Debug)]
pub struct PeerStream {
    socket: Arc<TcpStream>,
    tls: Option<Arc<Mutex<Tls>>>,
}

#[derive(Debug)]
struct Tls {
    connection: Connection,
    incoming: BufReader<Timed>,
}

/// A socket whose reads may have one deadline together, so that nobody holds a connection by sending a byte now and then.
#[derive(Debug)]
struct Timed {
    socket: Arc<TcpStream>,
    end: Option<Instant>,
}

impl Read for Timed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if let Some(end) = self.end {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            self.socket.set_read_timeout(Some(left))?;
        }
        (&*self.socket).read(buffer)
    }
}

/// How a connection begins that a peer made.
#[derive(Debug)]
pub(crate) enum Accepted {
    /// It may be greeted.
    Stream(PeerStream),
    /// The peer speaks no TLS, and this node speaks nothing else: it can only be told so.
    Plain(PeerStream),
}

impl PeerStream {
    /// A connection that a peer made, once its handshake is done, if there is one. That must be before `end`.
    ///
    /// # Errors
    /// The peer is not authenticated, or says nothing in time.
    pub(crate) fn accept(socket: TcpStream, keys: Option<&Keys>, end: Instant) -> io::Result<Accepted> {
        let socket = Arc::new(socket);
        let Some(keys) = keys else { return Ok(Accepted::Stream(Self { socket, tls: None })) };
        let mut incoming =
            BufReader::with_capacity(READ_BYTES, Timed { socket: Arc::clone(&socket), end: Some(end) });
        if incoming.fill_buf()?.first().is_some_and(|byte| *byte != HANDSHAKE) {
            return Ok(Accepted::Plain(Self { socket, tls: None }));
        }
        let connection = ServerConnection::new(keys.server(Protocol::Peer)).map_err(io::Error::other)?;
        Self::shaken(socket, connection.into(), incoming).map(Accepted::Stream)
    }

    /// A connection that this node made to `address`.
    ///
    /// # Errors
    /// The other side is not authenticated, or says nothing in time.
    pub(crate) fn dialled(
        socket: TcpStream,
        keys: Option<&Keys>,
        address: SocketAddr,
        end: Instant,
    ) -> io::Result<Self> {
        let socket = Arc::new(socket);
        let Some(keys) = keys else { return Ok(Self { socket, tls: None }) };
        let incoming =
            BufReader::with_capacity(READ_BYTES, Timed { socket: Arc::clone(&socket), end: Some(end) });
        let name = ServerName::from(address.ip());
        let connection = ClientConnection::new(keys.dialler()?, name).map_err(io::Error::other)?;
        Self::shaken(socket, connection.into(), incoming).map_err(|error| {
            let text = format!("TLS with {address}: {error}; does it have certificates of the same authority? Its log says why");
            io::Error::new(error.kind(), text)
        })
    }

    fn shaken(
        socket: Arc<TcpStream>,
        mut connection: Connection,
        mut incoming: BufReader<Timed>,
    ) -> io::Result<Self> {
        connection.set_buffer_limit(None);
        while connection.is_handshaking() {
            let mut both = Both { reads: &mut incoming, writes: &socket };
            connection.complete_io(&mut both)?;
        }
        // The last of it may be unwritten: what it says is that the other is refused.
        while connection.wants_write() {
            connection.write_tls(&mut &*socket)?;
        }
        incoming.get_mut().end = None;
        Ok(Self { socket, tls: Some(Arc::new(Mutex::new(Tls { connection, incoming }))) })
    }

    /// The other side's certificate, with TLS.
    ///
    /// # Errors
    /// It has none, or one that cannot be read.
    pub(crate) fn certificate(&self) -> io::Result<Option<Certificate>> {
        let Some(tls) = &self.tls else { return Ok(None) };
        let tls = tls.lock();
        let first = tls.connection.peer_certificates().and_then(|chain| chain.first());
        let first =
            first.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the peer has no certificate"))?;
        Certificate::of(first).map(Some).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    }

    /// The socket below. With TLS, only [sealed](Self::seal) bytes are for it.
    pub(crate) fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// The socket, without TLS: what is written there is what the other side reads.
    pub fn as_plain(&self) -> Option<&TcpStream> {
        self.tls.is_none().then_some(&*self.socket)
    }

    /// Bounds how long a read may wait for bytes.
    ///
    /// # Errors
    /// The socket does not take it.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.socket.set_read_timeout(timeout)
    }

    /// Bounds how long a write may wait for room.
    ///
    /// # Errors
    /// The socket does not take it.
    pub fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.socket.set_write_timeout(timeout)
    }

    /// Says that nothing more comes.
    ///
    /// # Errors
    /// The connection broke.
    pub fn finish(&self) -> io::Result<()> {
        if let Some(tls) = &self.tls {
            let mut tls = tls.lock();
            tls.connection.send_close_notify();
            tls.flush(&self.socket)?;
        }
        self.socket.shutdown(Shutdown::Write)
    }

    /// What to write to the socket so that the other side reads `bytes`. What is sealed must be written in this order.
    ///
    /// # Errors
    /// The connection has been finished.
    pub(crate) fn seal(&self, bytes: Vec<u8>) -> io::Result<Vec<u8>> {
        let Some(tls) = &self.tls else { return Ok(bytes) };
        let mut tls = tls.lock();
        tls.connection.writer().write_all(&bytes)?;
        let mut sealed = Vec::with_capacity(bytes.len() + 64);
        while tls.connection.wants_write() {
            tls.connection.write_tls(&mut sealed)?;
        }
        Ok(sealed)
    }

    /// Writes all of `parts`, many per system call.
    ///
    /// # Errors
    /// The connection broke.
    pub(crate) fn write_parts(&self, parts: &[Bytes]) -> io::Result<()> {
        let Some(tls) = &self.tls else { return write_all_vectored(&mut &*self.socket, parts) };
        let mut tls = tls.lock();
        let mut sealed = 0;
        for part in parts {
            tls.connection.writer().write_all(part)?;
            sealed += part.len();
            if sealed >= SEALED_BYTES {
                tls.flush(&self.socket)?;
                sealed = 0;
            }
        }
        tls.flush(&self.socket)
    }
}

impl Tls {
    fn flush(&mut self, socket: &TcpStream) -> io::Result<()> {
        while self.connection.wants_write() {
            self.connection.write_tls(&mut &*socket)?;
        }
        Ok(())
    }
}

/// Both directions of a connection, for the handshake.
struct Both<'a> {
    reads: &'a mut BufReader<Timed>,
    writes: &'a TcpStream,
}

impl Read for Both<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.reads.read(buffer)
    }
}

impl Write for Both<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.writes.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for PeerStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Some(tls) = &self.tls else { return (&*self.socket).read(buffer) };
        let tls = &mut *tls.lock();
        loop {
            match tls.connection.reader().read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return read,
            }
            // At the end of the connection the reader says so.
            tls.connection.read_tls(&mut tls.incoming)?;
            let processed = tls.connection.process_new_packets();
            processed.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        }
    }
}

impl Write for PeerStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some(tls) = &self.tls else { return (&*self.socket).write(bytes) };
        let mut tls = tls.lock();
        let written = tls.connection.writer().write(bytes)?;
        tls.flush(&self.socket)?;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Reads with one deadline for all reads.
pub(crate) struct InTime<'a> {
    pub(crate) stream: &'a mut PeerStream,
    pub(crate) end: Instant,
}

impl Read for InTime<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match &self.stream.tls {
            None => Timed { socket: Arc::clone(&self.stream.socket), end: Some(self.end) }.read(buffer),
            Some(tls) => {
                tls.lock().incoming.get_mut().end = Some(self.end);
                let read = self.stream.read(buffer);
                if let Some(tls) = &self.stream.tls {
                    tls.lock().incoming.get_mut().end = None;
                }
                read
            }
        }
    }
}

/// Writes all of `parts`, many per system call.
fn write_all_vectored(stream: &mut impl Write, parts: &[Bytes]) -> io::Result<()> {
    for group in parts.chunks(SLICES_MAX) {
        let mut slices: Vec<IoSlice<'_>> = group.iter().map(|part| IoSlice::new(part)).collect();
        let mut left = &mut slices[..];
        while !left.is_empty() {
            match stream.write_vectored(left) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => IoSlice::advance_slices(&mut left, written),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}
