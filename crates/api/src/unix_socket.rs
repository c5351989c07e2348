//! A port at a path of the file system: for clients of this machine, whom the file's mode lets in.
//!
//! The socket is bound beside its path, given its mode and then renamed into place: nobody connects before the mode
//! counts. A file that a process left behind is replaced, and one at which somebody answers is not. It is removed when the
//! node stops, unless another one has taken its place.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener as StdListener;
use std::os::unix::net::UnixStream as StdStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::net::{UnixListener, UnixStream};

/// A socket with a path.
pub struct UnixSocket {
    listener: UnixListener,
    path: PathBuf,
    shown: Arc<str>,
    inode: u64,
}

impl UnixSocket {
    /// Listens at `path`, with these bits of permission. Call within a runtime.
    ///
    /// # Errors
    /// Somebody answers there, what is there is no socket, or the file system refuses.
    pub fn bind(path: &Path, mode: u32) -> io::Result<Self> {
        clear(path)?;
        let mut beside = path.as_os_str().to_owned();
        beside.push("~");
        let beside = PathBuf::from(beside);
        match fs::remove_file(&beside) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = StdListener::bind(&beside)?;
        fs::set_permissions(&beside, Permissions::from_mode(mode))?;
        fs::rename(&beside, path)?;
        let inode = fs::symlink_metadata(path)?.ino();
        listener.set_nonblocking(true)?;
        let listener = UnixListener::from_std(listener)?;
        Ok(Self { listener, path: path.to_path_buf(), shown: path.to_string_lossy().into(), inode })
    }

    /// The next connection, and the path.
    pub(crate) async fn accept(&self) -> io::Result<(UnixStream, Arc<str>)> {
        let (stream, _) = self.listener.accept().await?;
        Ok((stream, Arc::clone(&self.shown)))
    }
}

impl Drop for UnixSocket {
    fn drop(&mut self) {
        let is_ours = fs::symlink_metadata(&self.path).is_ok_and(|found| found.ino() == self.inode);
        if is_ours && let Err(error) = fs::remove_file(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "cannot remove a socket; the next start will");
        }
    }
}

/// Checks that nobody listens at `path`; what is left of a socket there is replaced.
fn clear(path: &Path) -> io::Result<()> {
    let found = match fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if !found.file_type().is_socket() {
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, "what is there is no socket"));
    }
    match StdStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Ok(_) => Err(io::Error::new(io::ErrorKind::AddrInUse, "another process answers there")),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test]
    async fn a_socket_has_its_mode_replaces_a_stale_one_and_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        // As a process leaves it that was killed.
        drop(StdListener::bind(&path).unwrap());
        let socket = UnixSocket::bind(&path, 0o620).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o620);
        assert_eq!(UnixSocket::bind(&path, 0o600).err().unwrap().kind(), io::ErrorKind::AddrInUse);
        let mut client = UnixStream::connect(&path).await.unwrap();
        // The one that only looked came first.
        let _ = socket.accept().await.unwrap();
        let (mut served, shown) = socket.accept().await.unwrap();
        assert_eq!(&*shown, path.to_str().unwrap());
        served.write_all(b"hello").await.unwrap();
        let mut answer = [0; 5];
        client.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"hello");
        drop(socket);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn files_of_others_are_left() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        fs::write(&path, "precious").unwrap();
        assert_eq!(UnixSocket::bind(&path, 0o600).err().unwrap().kind(), io::ErrorKind::AlreadyExists);
        fs::remove_file(&path).unwrap();
        let first = UnixSocket::bind(&path, 0o600).unwrap();
        fs::remove_file(&path).unwrap();
        let second = UnixSocket::bind(&path, 0o600).unwrap();
        drop(first);
        assert!(path.exists(), "another one has taken its place");
        drop(second);
    }
}
