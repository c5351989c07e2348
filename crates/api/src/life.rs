//! Whether the node is stopping, for streams that would go on for as long as their clients listen.

use tokio::sync::watch;

/// Tells when the node stops.
#[derive(Clone)]
pub(crate) struct Life(pub(crate) watch::Receiver<bool>);

impl Life {
    /// Returns when the node stops.
    pub(crate) async fn ended(&self) {
        // An error means that the servers are gone, which is an end too.
        let _ = self.0.clone().wait_for(|ended| *ended).await;
    }
}
