//! When this process is asked to end.

use anyhow::{Context, Result};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// SIGTERM and SIGINT, listened for from when this is made: until then they end the process at once.
pub(crate) struct Ending {
    terminate: Signal,
    interrupt: Signal,
}

impl Ending {
    pub(crate) fn listen() -> Result<Self> {
        let terminate = signal(SignalKind::terminate()).context("listening for SIGTERM")?;
        let interrupt = signal(SignalKind::interrupt()).context("listening for SIGINT")?;
        Ok(Self { terminate, interrupt })
    }

    /// Returns when one of them has come.
    pub(crate) async fn asked(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
